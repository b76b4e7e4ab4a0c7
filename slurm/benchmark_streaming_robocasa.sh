#!/usr/bin/env bash
#SBATCH --job-name=robostream-bench
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out
#
# One benchmark on each node, all at the same time: what a node gets while others read, too.
#   sbatch --nodes=4 slurm/benchmark_streaming_robocasa.sh          (from the repository)
#   NUM_BATCHES=50 ROOT=demo-out/dataset bash slurm/benchmark_streaming_robocasa.sh     (without SLURM, too)
# Results: OUT_DIR/node<id>/*.json, one for each mode.
#
# Knobs, by environment:
#   REPO_ID     dataset on the Hub                       ROOT        local folder of it; then nothing is downloaded
#   BUCKET      URL that holds the data, if elsewhere    SOURCE      label of the source in the results
#   OUT_DIR     folder for results                       MODES       "single sarm"
#   BATCH_SIZE, NUM_BATCHES, WORKERS, BUFFER             DECODE      cpu or cuda
#   RUN         what runs Python, e.g. "uv run python"   CONDA_ENV   environment to activate first
#   BENCH_ARGS  further flags of benchmark_streaming.py  REPO_DIR    the repository; by default where it was submitted
set -euo pipefail

export REPO_DIR=${REPO_DIR:-${SLURM_SUBMIT_DIR:-$PWD}}
export REPO_ID=${REPO_ID:-pepijn223/robocasa_pretrain_human300_v4} ROOT=${ROOT:-} BUCKET=${BUCKET:-}
export OUT_DIR=${OUT_DIR:-$REPO_DIR/bench-out} MODES=${MODES:-single sarm} DECODE=${DECODE:-cpu}
export BATCH_SIZE=${BATCH_SIZE:-64} NUM_BATCHES=${NUM_BATCHES:-200} WORKERS=${WORKERS:-8} BUFFER=${BUFFER:-2000}
export RUN=${RUN:-python} CONDA_ENV=${CONDA_ENV:-} BENCH_ARGS=${BENCH_ARGS:-}
export SOURCE=${SOURCE:-$(if [ -n "$ROOT" ]; then echo local; elif [ -n "$BUCKET" ]; then echo bucket; else echo hub; fi)}

script=$REPO_DIR/benchmarks/streaming/benchmark_streaming.py
[ -f "$script" ] || { echo "no $script: submit from the repository, or set REPO_DIR" >&2; exit 2; }

# shellcheck disable=SC2016  # expanded on the node
node='
set -u
if [ -n "$CONDA_ENV" ]; then
  set +u; . "$(conda info --base)/etc/profile.d/conda.sh"; conda activate "$CONDA_ENV" || exit 1; set -u
fi
failed=0
for mode in $MODES; do
  echo "node ${SLURM_NODEID:-0} ($(hostname)): $mode"
  $RUN "$REPO_DIR/benchmarks/streaming/benchmark_streaming.py" \
    --repo_id "$REPO_ID" ${ROOT:+--root "$ROOT"} ${BUCKET:+--data_files_root "$BUCKET"} --source "$SOURCE" \
    --mode "$mode" --batch_size "$BATCH_SIZE" --num_batches "$NUM_BATCHES" --num_workers "$WORKERS" \
    --buffer_size "$BUFFER" --video_decode_device "$DECODE" --out_dir "$OUT_DIR/node${SLURM_NODEID:-0}" \
    $BENCH_ARGS || failed=1
done
exit $failed
'
if [ -n "${SLURM_JOB_ID:-}" ] && command -v srun >/dev/null; then
  srun --ntasks-per-node=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" bash -c "$node"
else
  bash -c "$node"
fi
