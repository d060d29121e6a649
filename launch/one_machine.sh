#!/usr/bin/env bash
# Trains on all accelerators of this machine.
#
#   launch/one_machine.sh WORKDIR EXPERIMENT[:part=choice,...] [--config.field=value ...]
#
# The output is also written to WORKDIR.log, or in the current directory if WORKDIR is in an object store. The exit code
# is that of `lmrep train`.
set -euo pipefail
workdir=${1:?WORKDIR is missing; usage: launch/one_machine.sh WORKDIR EXPERIMENT[:part=choice,...] [flags]}
experiment=${2:?EXPERIMENT is missing, for example experiments/bert.py:size=base}
shift 2
log=$workdir.log
[[ $workdir != *://* ]] || log=$(basename "$workdir").log
mkdir -p "$(dirname "$log")"
# Signals must reach the run, which saves before it exits: hence exec, and no pipe.
exec lmrep train --config="$experiment" --workdir="$workdir" "$@" > >(tee -a "$log") 2>&1
