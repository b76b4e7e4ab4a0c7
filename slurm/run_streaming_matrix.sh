#!/usr/bin/env bash
# Submits one benchmark job for each source × mode × decode device, one after another, so that none takes bandwidth from
# another. A job that fails or runs out of memory does not stop the next.
#   BUCKET=hf://buckets/me/data bash slurm/run_streaming_matrix.sh      (on a login node, from anywhere)
# Results: OUT_DIR/*.json; what the jobs say: OUT_DIR/logs.
#
# Knobs, by environment:
#   REPO_ID      dataset on the Hub                          ROOT         local folder of it: the source "local"
#   BUCKET       URL of its data: the source "bucket"        WARM_BUCKET  another, warmed up: the source "warm"
#   SOURCES      of: hub bucket warm local; by default those that are given
#   MODES        of: single sarm sarm_images                 DECODES      of: cpu cuda
#   OUT_DIR, NUM_BATCHES, BATCH_SIZE                         SERIAL       0: all jobs at the same time
#   CPU_WORKERS, CPU_BUFFER   cores, and frames of the shuffle window, of jobs that decode on CPUs
#   GPU_WORKERS, GPU_BUFFER   the same, of jobs that decode on GPUs: the window takes GPU memory there
#   GPUS         of each job; by default 1 if the cluster has any, else 0
#   TIME, MEM, ACCOUNT, PARTITION, QOS   as sbatch takes them
#   RUN          what runs Python, e.g. "uv run python"      CONDA_ENV    environment to activate first
#   BENCH_ARGS   further flags of benchmark_streaming.py
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REPO_ID=${REPO_ID:-pepijn223/robocasa_pretrain_human300_v4}
ROOT=${ROOT:-} BUCKET=${BUCKET:-} WARM_BUCKET=${WARM_BUCKET:-}
OUT_DIR=${OUT_DIR:-$repo/bench-out}
NUM_BATCHES=${NUM_BATCHES:-200} BATCH_SIZE=${BATCH_SIZE:-64}
TIME=${TIME:-01:00:00} MEM=${MEM:-64G}
CPU_WORKERS=${CPU_WORKERS:-8} CPU_BUFFER=${CPU_BUFFER:-2000}
GPU_WORKERS=${GPU_WORKERS:-4} GPU_BUFFER=${GPU_BUFFER:-1000}
SERIAL=${SERIAL:-1} RUN=${RUN:-python} CONDA_ENV=${CONDA_ENV:-} BENCH_ARGS=${BENCH_ARGS:-}
GPUS=${GPUS:-$(if sinfo -h -o %G 2>/dev/null | grep -q gpu; then echo 1; else echo 0; fi)}
SOURCES=${SOURCES:-hub ${BUCKET:+bucket} ${WARM_BUCKET:+warm} ${ROOT:+local}}
MODES=${MODES:-single sarm}
DECODES=${DECODES:-cpu$([ "$GPUS" = 0 ] || echo " cuda")}

# The job's commands are read by whatever /bin/sh is there: single quotes only.
quote() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }

say() { echo "$*" >&2; }

source_flags() {
  case $1 in
    hub) ;;
    bucket) [ -n "$BUCKET" ] || { say "SOURCES has bucket, but BUCKET is not set"; return 1; }
      printf ' --data_files_root %s' "$(quote "$BUCKET")" ;;
    warm) [ -n "$WARM_BUCKET" ] || { say "SOURCES has warm, but WARM_BUCKET is not set"; return 1; }
      printf ' --data_files_root %s' "$(quote "$WARM_BUCKET")" ;;
    local) [ -n "$ROOT" ] || { say "SOURCES has local, but ROOT is not set"; return 1; }
      printf ' --root %s' "$(quote "$ROOT")" ;;
    *) say "SOURCES has $1; known are hub, bucket, warm, local"; return 1 ;;
  esac
}

activate=
if [ -n "$CONDA_ENV" ]; then
  activate=". \"\$(conda info --base)/etc/profile.d/conda.sh\" && conda activate $(quote "$CONDA_ENV") && "
fi
for source in $SOURCES; do source_flags "$source" >/dev/null; done # before anything is submitted
for decode in $DECODES; do
  case $decode in cpu | cuda) ;; *) say "DECODES has $decode; known are cpu, cuda"; exit 1 ;; esac
  [ "$decode" = cpu ] || [ "$GPUS" != 0 ] || { say "DECODES has cuda, but GPUS is 0"; exit 1; }
done
mkdir -p "$OUT_DIR/logs"

previous=
for source in $SOURCES; do
  for mode in $MODES; do
    for decode in $DECODES; do
      workers=$CPU_WORKERS buffer=$CPU_BUFFER device=cpu
      if [ "$decode" = cuda ]; then workers=$GPU_WORKERS buffer=$GPU_BUFFER device=cuda; fi
      wrap="${activate}cd $(quote "$repo") && exec $RUN benchmarks/streaming/benchmark_streaming.py"
      wrap+=" --repo_id $(quote "$REPO_ID")$(source_flags "$source") --source $source --mode $(quote "$mode")"
      wrap+=" --video_decode_device $decode --device $device --batch_size $BATCH_SIZE --num_batches $NUM_BATCHES"
      wrap+=" --num_workers $workers --buffer_size $buffer --out_dir $(quote "$OUT_DIR") $BENCH_ARGS"
      options=(--parsable "--job-name=robostream-$source-$mode-$decode" --nodes=1 --ntasks=1)
      options+=("--cpus-per-task=$workers" "--mem=$MEM" "--time=$TIME" "--output=$OUT_DIR/logs/%x-%j.out")
      [ "$GPUS" = 0 ] || options+=("--gres=gpu:$GPUS")
      [ -z "${ACCOUNT:-}" ] || options+=("--account=$ACCOUNT")
      [ -z "${PARTITION:-}" ] || options+=("--partition=$PARTITION")
      [ -z "${QOS:-}" ] || options+=("--qos=$QOS")
      [ "$SERIAL" = 0 ] || [ -z "$previous" ] || options+=("--dependency=afterany:$previous")
      previous=$(sbatch "${options[@]}" --wrap "$wrap")
      previous=${previous%%;*}
      echo "$previous  $source  $mode  $decode"
    done
  done
done
