#!/usr/bin/env bash
# Trains on all hosts of a TPU slice, over ssh.
#
#   export TPU=NAME ZONE=us-central2-b [PROJECT=...]
#   launch/tpu_pod.sh install                       # install this repository and its packages on every host
#   launch/tpu_pod.sh doctor WORKDIR EXPERIMENT...  # check on every host what training needs
#   launch/tpu_pod.sh train WORKDIR EXPERIMENT[:part=choice,...] [--config.field=value ...]
#   launch/tpu_pod.sh logs                          # follow the log of the first host; logs 3: of host 3
#   launch/tpu_pod.sh stop                          # SIGTERM: the hosts agree on a step, save and exit
#   launch/tpu_pod.sh status                        # whether each host is training, or its exit code
#
# The slice must exist: gcloud compute tpus tpu-vm create "$TPU" --zone="$ZONE" --accelerator-type=v4-32 \
#   --version=tpu-ubuntu2204-base
# WORKDIR and the data must have the same path on every host, for example on a mounted Filestore. The run continues when
# the ssh connection ends.
set -euo pipefail
TPU=${TPU:?TPU is missing: the name of the slice}
ZONE=${ZONE:?ZONE is missing: its zone, for example us-central2-b}
PROJECT=${PROJECT:-} # default: that of `gcloud config`
HOST_DIR=${HOST_DIR:-lmrep} # on each host, in the home directory
where=(--zone="$ZONE" ${PROJECT:+--project="$PROJECT"})

# Runs a shell command on one host, or on all.
on() { gcloud compute tpus tpu-vm ssh "$TPU" "${where[@]}" --worker="$1" --command="$2"; }

action=${1:?an action is missing: install, doctor, train, logs, stop or status}
shift
case $action in
  install)
    here=$(cd "$(dirname "$0")/.." && pwd)
    package=$(mktemp -d)/lmrep.tar.gz
    tar --create --gzip --file="$package" --exclude-vcs --directory="$here" setup.py README.md lmrep experiments
    gcloud compute tpus tpu-vm scp "$package" "$TPU:lmrep.tar.gz" "${where[@]}" --worker=all
    on all "mkdir -p $HOST_DIR && tar --extract --gzip --file=lmrep.tar.gz --directory=$HOST_DIR && cd $HOST_DIR &&
      python3 -m venv venv && venv/bin/pip install --quiet -e '.[tpu]' && venv/bin/lmrep --version"
    ;;
  doctor | train)
    workdir=${1:?WORKDIR is missing}
    experiment=${2:?EXPERIMENT is missing, for example experiments/bert.py:size=base}
    shift 2
    line=$(printf '%q ' venv/bin/lmrep "$action" --config="$experiment" --workdir="$workdir" "$@")
    if [[ $action == doctor ]]; then
      on all "cd $HOST_DIR && $line"
    else
      # setsid: a new session, which survives the ssh connection.
      run="echo \$\$ > train.pid; $line; echo \$? > train.code"
      on all "cd $HOST_DIR && rm -f train.code && export JAX_COMPILATION_CACHE_DIR=~/.cache/lmrep/compiled || exit
        setsid nohup bash -c $(printf '%q' "$run") >> train.log 2>&1 < /dev/null &"
      echo "started; launch/tpu_pod.sh logs follows the log"
    fi
    ;;
  logs) on "${1:-0}" "tail --lines=100 --follow=name $HOST_DIR/train.log" ;;
  # The run is the child of the shell that was started. Signal all hosts at once: they agree on a step.
  stop) on all "pkill --signal TERM --parent \$(cat $HOST_DIR/train.pid)" ;;
  status) on all "cd $HOST_DIR && if [ -e train.code ]; then echo \"\$(hostname): ended with \$(cat train.code)\"; else
      echo \"\$(hostname): process \$(cat train.pid) trains\"; fi" ;;
  *) echo "there is no action $action; expected install, doctor, train, logs, stop or status" >&2; exit 2 ;;
esac
