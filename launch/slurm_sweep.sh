#!/usr/bin/env bash
#SBATCH --job-name=lmrep-sweep
#SBATCH --output=%x-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --array=0-7
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
# Trains a sweep as a Slurm job array. Task I of N takes every Nth run, one after the other, on the devices of its job,
# and continues in a new job when the time limit is reached.
#
#   sbatch --array=0-7 --gpus=1 --cpus-per-task=8 --mem=64G launch/slurm_sweep.sh WORKDIR EXPERIMENT[:part=choice,...] \
#       --grid='optimizer.learning_rate=1e-4,3e-4;batch_size=16,32' --seeds=0-4 [--config.field=value ...]
#
# Options before the script's name override the #SBATCH lines above. Tasks share nodes: give the memory that one needs
# (--mem), because the default of many sites is a few gigabytes. The array begins with 0; --array=0-7%4 runs four
# tasks at a time. To run some tasks again, give the size of the first array: TASKS=8 sbatch --array=2,5 ...
# WORKDIR and the data must be on a file system that all nodes share. The virtual environment that is active when sbatch
# is called is used. The task that finishes last writes the report; `lmrep sweep --workdir=WORKDIR --show` prints the
# results so far.
set -euo pipefail
workdir=${1:?WORKDIR is missing; usage: sbatch [options] launch/slurm_sweep.sh WORKDIR EXPERIMENT[:...] [flags]}
experiment=${2:?EXPERIMENT is missing, for example experiments/bert.py:size=tiny}
task=${SLURM_ARRAY_TASK_ID:?SLURM_ARRAY_TASK_ID is missing; start this script with sbatch --array=0-7}
tasks=${TASKS:-$SLURM_ARRAY_TASK_COUNT}
shift 2
# Since Slurm 22.05 srun does not inherit this from sbatch, and would give the task one core.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# Refused where JAX sees no GPU, instead of training on the CPU. JAX_PLATFORMS=cpu sbatch ... trains on the CPU.
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu}

code=0
srun --cpu-bind=none \
  lmrep sweep --config="$experiment" --workdir="$workdir" --task="$task" --tasks="$tasks" "$@" || code=$?

if ((code == 143)); then # saved and stopped: requeue and continue
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
