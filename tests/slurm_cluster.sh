#!/usr/bin/env bash
# A real SLURM of two nodes on this machine, with all that it writes in one folder. Needs root, slurm-wlm and munge.
# usage: slurm_cluster.sh start FOLDER PORT | stop FOLDER
# Nodes are n1 and n2: two slurmd on the loopback. Daemons take PORT … PORT + 3. Talk to it with SLURM_CONF=FOLDER/slurm.conf.
set -euo pipefail
action=$1 folder=$2

stop() {
  for daemon in slurmd-n1 slurmd-n2 slurmctld munged; do
    pid=$(cat "$folder/$daemon.pid" 2>/dev/null || true)
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    for _ in $(seq 50); do [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
  done
}

start() {
  port=$3 host=$(hostname)
  memory=$(($(awk '/MemTotal/ {print $2}' /proc/meminfo) / 2048))
  mkdir -p "$folder"/{state,spool-n1,spool-n2}
  chmod 755 "$folder"
  head -c 256 /dev/urandom >"$folder/munge.key"
  chmod 400 "$folder/munge.key"
  # Of the folder's own, so that a cluster that this machine may be part of is left alone.
  munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
  cat >"$folder/slurm.conf" <<CONF
ClusterName=loopback
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
KillWait=3
SlurmUser=root
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
StateSaveLocation=$folder/state
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmdLogFile=$folder/slurmd-%n.log
SlurmdSpoolDir=$folder/spool-%n
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=$(nproc) RealMemory=$memory
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
  export SLURM_CONF=$folder/slurm.conf
  slurmctld
  slurmd -N n1
  slurmd -N n2
  for _ in $(seq 60); do
    [ "$(sinfo -h -N -o %T | grep -cx idle)" = 2 ] && return
    sleep 0.5
  done
  echo "the nodes are not idle:" >&2
  sinfo >&2
  tail -n 20 "$folder"/*.log >&2
  return 1
}

"$action" "$@"
