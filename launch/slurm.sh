#!/usr/bin/env bash
#SBATCH --job-name=lmrep
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
# Trains on the nodes of a Slurm job, and continues in a new job when the time limit is reached.
#
#   sbatch --nodes=4 --gpus-per-node=8 launch/slurm.sh WORKDIR EXPERIMENT[:part=choice,...] [--config.field=value ...]
#
# Options before the script's name override the #SBATCH lines above (--partition=..., --account=..., --time=...).
# --mem=0 takes all memory of the nodes: the default of many sites is a few gigabytes per core. On nodes that are shared
# with other jobs, give --oversubscribe --mem=64G --cpus-per-task=16 and the like instead.
# By default one task per node drives all its GPUs. For one task per GPU, each bound to the nearest cores:
#   sbatch --nodes=4 --ntasks-per-node=8 --gpus-per-task=1 --cpus-per-task=12 launch/slurm.sh ...
# WORKDIR is in an object store (gs://bucket/runs/bert), or on a file system that all nodes share. The virtual
# environment that is active when sbatch is called is used. sbatch runs a copy of this script in the current directory.
#
# 120 seconds before the time limit, or when the job is preempted, the tasks get SIGTERM: they agree on a step, save and
# exit with 143, and the job is requeued. `scancel --signal=TERM JOB` does the same by hand; `scancel JOB` ends the job.
set -euo pipefail
workdir=${1:?WORKDIR is missing; usage: sbatch [options] launch/slurm.sh WORKDIR EXPERIMENT[:part=choice,...] [flags]}
experiment=${2:?EXPERIMENT is missing, for example experiments/bert.py:size=base}
shift 2
# Since Slurm 22.05 srun does not inherit this from sbatch, and would give each task one core.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# Refused where JAX sees no GPU, instead of training on the CPU. JAX_PLATFORMS=cpu sbatch ... trains on the CPU.
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu}

# --wait: seconds until the other tasks are ended after the first. --cpu-bind: the loader uses all cores.
code=0
srun --label --wait=120 --cpu-bind=none \
  lmrep train --config="$experiment" --workdir="$workdir" "$@" || code=$?

if ((code == 143)); then # saved and stopped: requeue and continue
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
