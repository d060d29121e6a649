#!/usr/bin/env bash
# Trains on several hosts of a Kubernetes cluster, with one pod on each.
#
#   IMAGE=registry/lmrep CLAIM=shared [NAME=lmrep HOSTS=2 GPUS=8] \
#     launch/kubernetes.sh /shared/runs/bert experiments/bert.py:size=base [--config.field=value ...]
#   IMAGE=registry/lmrep launch/kubernetes.sh gs://bucket/runs/bert ...   # without a shared volume
#   IMAGE=registry/lmrep CLAIM=shared TPU=tpu-v6e-slice TOPOLOGY=4x4 [NAME=lmrep CHIPS=4] \
#     launch/kubernetes.sh ...               # on a TPU slice of Google Kubernetes Engine
#   kubectl logs --follow job/NAME-hosts-0   # of process 0
#   kubectl logs -l jobset.sigs.k8s.io/jobset-name=NAME --prefix                # of all
#   kubectl delete jobset NAME               # SIGTERM: they agree on a step, save and exit; apply again to continue
#
# The cluster has JobSet (https://jobset.sigs.k8s.io/docs/installation). If a pod fails or its node is lost, JobSet
# starts all pods again, and the run continues from its newest checkpoint, up to 100 times.
# IMAGE has lmrep installed, and the experiments in its working directory: see launch/Dockerfile. CLAIM is a volume that
# all nodes can write to; it is mounted as /shared, and WORKDIR must be there, unless it is in an object store. Without
# CLAIM, each pod prepares the data on its node's disk. ACCOUNT is the pods' service account, which may give them access
# to the store. CPUS, MEMORY and SHM (/dev/shm, included in MEMORY) are what each pod requests and may use; no pod
# starts where no node has as much. TPU is tpu-v4-podslice, tpu-v5-lite-podslice (v5e), tpu-v5p-slice, tpu-v6e-slice or
# tpu7x; TOPOLOGY is that of the node pool, and CHIPS the chips of each of its hosts. SHOW=1 only prints the manifest.
set -euo pipefail
NAME=${NAME:-lmrep}
IMAGE=${IMAGE:?IMAGE is missing: a container image with lmrep}
workdir=${1:?WORKDIR is missing, for example /shared/runs/bert}
if [[ $workdir == *://* && -z ${CLAIM:-} ]]; then
  volume='emptyDir: {}'
else
  : "${CLAIM:?CLAIM is missing: the name of a PersistentVolumeClaim with access mode ReadWriteMany}"
  volume="persistentVolumeClaim: {claimName: $CLAIM}"
fi
ACCOUNT=${ACCOUNT:-default}
experiment=${2:?EXPERIMENT is missing, for example experiments/bert.py:size=base}
shift 2

TPU=${TPU:-}
TOPOLOGY=${TOPOLOGY:-}
GPUS=${GPUS:-8} # per host
CHIPS=${CHIPS:-4} # per host
if [[ -n $TPU ]]; then
  template=kubernetes_tpu.yaml accelerators=$CHIPS
  if [[ ! $TOPOLOGY =~ ^[0-9]+(x[0-9]+){1,2}$ ]]; then
    echo "$0: TOPOLOGY is '$TOPOLOGY'; expected that of the slice, for example 4x4 or 2x2x4" >&2
    exit 2
  fi
  chips=$((${TOPOLOGY//x/*})) # of the slice
  if ((chips % CHIPS)); then
    echo "$0: a slice of $TOPOLOGY has $chips chips, which hosts with CHIPS=$CHIPS each cannot have" >&2
    exit 2
  fi
  HOSTS=$((chips / CHIPS))
else
  template=kubernetes.yaml accelerators=$GPUS
  HOSTS=${HOSTS:-2}
fi
CPUS=${CPUS:-$((8 * accelerators))}
MEMORY=${MEMORY:-$((32 * accelerators))Gi}
SHM=${SHM:-16Gi}

arguments= # as a YAML list of single-quoted words
for word in --config="$experiment" --workdir="$workdir" "$@"; do
  arguments+=${arguments:+, }"'${word//\'/\'\'}'"
done
manifest=$(< "$(dirname "$0")/$template")
for name in NAME HOSTS GPUS TPU TOPOLOGY CHIPS CPUS MEMORY SHM IMAGE ACCOUNT; do
  manifest=${manifest//__"$name"__/"${!name}"}
done
manifest=${manifest//__VOLUME__/"$volume"}
manifest=${manifest//__ARGUMENTS__/"[$arguments]"}
if [[ -n ${SHOW:-} ]]; then
  echo "$manifest"
else
  kubectl apply --filename=- <<< "$manifest"
fi
