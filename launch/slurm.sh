#!/usr/bin/env bash
#SBATCH --job-name=lmrep
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
# Trains on the nodes of a Slurm job, and goes on in a new job where the time was too short.
#
#   sbatch --nodes=4 --gpus-per-node=8 launch/slurm.sh WORKDIR EXPERIMENT[:part=choice,...] [--config.field=value ...]
#
# Whatever stands before the script's name goes before the #SBATCH lines above (--partition=..., --account=...,
# --time=...). One task a node drives all its GPUs. For one task a GPU, which binds each to the cores beside it:
#   sbatch --nodes=4 --ntasks-per-node=8 --gpus-per-task=1 --cpus-per-task=12 launch/slurm.sh ...
# WORKDIR and the data must be on a file system that all nodes share. A virtual environment that was active when sbatch
# was called is active here. sbatch runs a copy of this script in the folder where it was called.
#
# 120 seconds before the time ends, or when the job is preempted, the tasks get SIGTERM: they agree on a step, save and
# exit with 143, and the job queues again. `scancel --signal=TERM JOB` does the same, by hand; `scancel JOB` ends it.
set -euo pipefail
workdir=${1:?WORKDIR is missing; usage: sbatch [options] launch/slurm.sh WORKDIR EXPERIMENT[:part=choice,...] [flags]}
experiment=${2:?EXPERIMENT is missing, experiments/bert.py:size=base say}
shift 2
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$HOME/.cache/lmrep/compiled}
# Since Slurm 22.05 srun does not take this over from sbatch, and would give each task one core.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# --wait: once a task has ended, the others have this many seconds to end too. --cpu-bind: the loader uses all cores.
code=0
srun --label --wait=120 --cpu-bind=none \
  lmrep train --config="$experiment" --workdir="$workdir" "$@" || code=$?

if ((code == 143)); then # saved and stopped: queue again, and go on from there
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
