#!/usr/bin/env bash
# Trains on several hosts of a Kubernetes cluster, with one pod on each.
#
#   IMAGE=registry/lmrep CLAIM=shared [NAME=lmrep HOSTS=2 GPUS=8] \
#     launch/kubernetes.sh /shared/runs/bert experiments/bert.py:size=base [--config.field=value ...]
#   kubectl logs --follow job/NAME           # of process 0; kubectl logs -l job-name=NAME --prefix: of all
#   kubectl delete job NAME                  # SIGTERM: they agree on a step, save and exit; apply again to continue
#
# IMAGE has lmrep installed, and the experiments in its working directory. CLAIM is a volume that all nodes can write to;
# it is mounted as /shared, and WORKDIR must be there. SHOW=1 only prints the manifest.
set -euo pipefail
NAME=${NAME:-lmrep}
HOSTS=${HOSTS:-2}
GPUS=${GPUS:-8} # per host
IMAGE=${IMAGE:?IMAGE is missing: a container image with lmrep}
CLAIM=${CLAIM:?CLAIM is missing: the name of a PersistentVolumeClaim with access mode ReadWriteMany}
workdir=${1:?WORKDIR is missing, for example /shared/runs/bert}
experiment=${2:?EXPERIMENT is missing, for example experiments/bert.py:size=base}
shift 2

arguments= # as a YAML list of single-quoted words
for word in --config="$experiment" --workdir="$workdir" "$@"; do
  arguments+=${arguments:+, }"'${word//\'/\'\'}'"
done
manifest=$(< "$(dirname "$0")/kubernetes.yaml")
manifest=${manifest//__NAME__/"$NAME"}
manifest=${manifest//__HOSTS__/"$HOSTS"}
manifest=${manifest//__GPUS__/"$GPUS"}
manifest=${manifest//__IMAGE__/"$IMAGE"}
manifest=${manifest//__CLAIM__/"$CLAIM"}
manifest=${manifest//__ARGUMENTS__/"[$arguments]"}
if [[ -n ${SHOW:-} ]]; then
  echo "$manifest"
else
  kubectl apply --filename=- <<< "$manifest"
fi
