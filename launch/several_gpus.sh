#!/usr/bin/env bash
# Trains on several GPUs of one host.
#
#   [GPUS=0,1,2,3] launch/several_gpus.sh WORKDIR EXPERIMENT[:part=choice,...] [--config.field=value ...]
#
# One process drives all GPUs: they communicate directly (NCCL over NVLink), and the host has one copy of the data, one
# loader and one log. By default each GPU has a copy of the model; `:mesh=fsdp` shards parameters and optimizer state.
set -euo pipefail
GPUS=${GPUS:-all} # indices, as in nvidia-smi
if ! command -v nvidia-smi > /dev/null; then
  echo "$0: nvidia-smi is missing; install the NVIDIA driver from nvidia.com/drivers" >&2
  exit 2
fi
[[ $GPUS == all ]] || export CUDA_VISIBLE_DEVICES=$GPUS
nvidia-smi --query-gpu=index,name,memory.used,memory.total --format=csv >&2 # shows other programs on these GPUs
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu} # refused where JAX sees no GPU, instead of training on the CPU
exec "$(dirname "$0")/one_machine.sh" "$@"
