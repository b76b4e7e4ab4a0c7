#!/usr/bin/env bash
#SBATCH --job-name=robostream-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
#
# Trains on N nodes × PROCS processes with examples/scaling/train_streaming_multinode.py. Submitted again (after a time
# limit, a cancellation or a crash), it goes on from the last checkpoint in OUTPUT_DIR, also on another number of nodes
# if NUM_STREAMS is the same and a multiple of all processes.
#   sbatch --nodes=4 --gres=gpu:8 slurm/train_streaming_robocasa.sh      (from the repository)
#
# Knobs, by environment:
#   REPO_ID      dataset on the Hub                     ROOT         local folder of it; then nothing is downloaded
#   BUCKET       URL that holds the data, if elsewhere  OUTPUT_DIR   checkpoints and log; all nodes must see it
#   STEPS, BATCH_SIZE (of each process), WORKERS (0: share the cores), BUFFER, SAVE_FREQ, POLICY
#   NUM_STREAMS  see above                              PROCS        processes on each node; by default one a GPU, else 1
#   TRAIN_ARGS   further flags of the example           PORT         of the rendezvous, which is on the first node
#   RUN          what runs Python, e.g. "uv run python" CONDA_ENV    environment to activate first
#   REPO_DIR     the repository; by default where it was submitted
set -euo pipefail

export REPO_DIR=${REPO_DIR:-${SLURM_SUBMIT_DIR:-$PWD}}
export REPO_ID=${REPO_ID:-pepijn223/robocasa_pretrain_human300_v4} ROOT=${ROOT:-} BUCKET=${BUCKET:-}
export OUTPUT_DIR=${OUTPUT_DIR:-$REPO_DIR/train-out} STEPS=${STEPS:-10000} BATCH_SIZE=${BATCH_SIZE:-64}
export WORKERS=${WORKERS:-0} BUFFER=${BUFFER:-2000} SAVE_FREQ=${SAVE_FREQ:-500} POLICY=${POLICY:-bc}
export NUM_STREAMS=${NUM_STREAMS:-} RUN=${RUN:-python} CONDA_ENV=${CONDA_ENV:-} TRAIN_ARGS=${TRAIN_ARGS:-}
export GPUS=${SLURM_GPUS_ON_NODE:-0}
export PROCS=${PROCS:-$((GPUS > 0 ? GPUS : 1))} PORT=${PORT:-$((20000 + ${SLURM_JOB_ID:?submit it with sbatch} % 20000))}

[ -f "$REPO_DIR/examples/scaling/train_streaming_multinode.py" ] ||
  { echo "no training example in $REPO_DIR: submit from the repository, or set REPO_DIR" >&2; exit 2; }

# The first node by its address: names of nodes need not be names of hosts.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
HEAD=${HEAD:-$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p' | head -n 1)}
export HEAD=${HEAD:-$first}
echo "$SLURM_NNODES nodes × $PROCS processes, rendezvous at $HEAD:$PORT"

# shellcheck disable=SC2016  # expanded on the nodes
node='
set -u
if [ -n "$CONDA_ENV" ]; then
  set +u; . "$(conda info --base)/etc/profile.d/conda.sh"; conda activate "$CONDA_ENV" || exit 1; set -u
fi
processes=$((SLURM_NNODES * PROCS))
[ "$GPUS" != 0 ] || export ACCELERATE_USE_CPU=true
# --multi_gpu is what makes Accelerate start several processes, also on CPUs; it refuses to start a single one.
exec $RUN -m accelerate.commands.launch $([ "$processes" = 1 ] || echo --multi_gpu) \
  --num_machines "$SLURM_NNODES" --num_processes "$processes" --machine_rank "$SLURM_NODEID" \
  --main_process_ip "$HEAD" --main_process_port "$PORT" --mixed_precision no --dynamo_backend no \
  "$REPO_DIR/examples/scaling/train_streaming_multinode.py" \
  --repo_id "$REPO_ID" ${ROOT:+--root "$ROOT"} ${BUCKET:+--data_files_root "$BUCKET"} --output_dir "$OUTPUT_DIR" \
  --steps "$STEPS" --batch_size "$BATCH_SIZE" --num_workers "$WORKERS" --buffer_size "$BUFFER" \
  --save_freq "$SAVE_FREQ" --policy "$POLICY" ${NUM_STREAMS:+--num_streams "$NUM_STREAMS"} --resume_from auto $TRAIN_ARGS
'
exec srun --ntasks-per-node=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" --kill-on-bad-exit=1 bash -c "$node"
