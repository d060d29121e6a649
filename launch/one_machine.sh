#!/usr/bin/env bash
# Trains on all accelerators of this machine.
#
#   launch/one_machine.sh WORKDIR EXPERIMENT[:part=choice,...] [--config.field=value ...]
#
# What is printed also goes to WORKDIR.log. The exit code is that of `lmrep train`.
set -euo pipefail
workdir=${1:?WORKDIR is missing; usage: launch/one_machine.sh WORKDIR EXPERIMENT[:part=choice,...] [flags]}
experiment=${2:?EXPERIMENT is missing, experiments/bert.py:size=base say}
shift 2
mkdir -p "$(dirname "$workdir")"
# Compiled programs are kept, so that a resumed run starts at once.
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$HOME/.cache/lmrep/compiled}
# A signal to this script must reach the run, which saves before it exits: no pipe, and exec.
exec lmrep train --config="$experiment" --workdir="$workdir" "$@" > >(tee -a "$workdir.log") 2>&1
