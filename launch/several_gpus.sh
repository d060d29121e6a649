#!/usr/bin/env bash
# Trains on several GPUs of one host.
#
#   [GPUS=0,1,2,3] launch/several_gpus.sh WORKDIR EXPERIMENT[:part=choice,...] [--config.field=value ...]
#
# One process drives them all, which is JAX's way: they still talk to each other directly (NCCL over NVLink), while the
# host keeps one copy of the data, one loader and one log. The mesh says how they share the work: all copies of the
# model by default, `:mesh=fsdp` to cut parameters and optimizer among them.
set -euo pipefail
GPUS=${GPUS:-all} # which, as nvidia-smi counts them
command -v nvidia-smi > /dev/null || { echo "$0: there is no nvidia-smi, so no NVIDIA driver; see nvidia.com/drivers" >&2; exit 2; }
[[ $GPUS == all ]] || export CUDA_VISIBLE_DEVICES=$GPUS
nvidia-smi --query-gpu=index,name,memory.used,memory.total --format=csv >&2 # is another program on one of them?
exec "$(dirname "$0")/one_machine.sh" "$@"
