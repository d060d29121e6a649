#!/usr/bin/env bash
# Trains on all hosts of a TPU slice, over ssh.
#
#   export TPU=NAME ZONE=us-central2-b [PROJECT=...]
#   launch/tpu_pod.sh run WORKDIR EXPERIMENT...     # request the slice, install, train, and restart, until the end
#   launch/tpu_pod.sh create                        # request the slice (a queued resource), and wait until it is there
#   launch/tpu_pod.sh install                       # install this repository and its packages on every host
#   launch/tpu_pod.sh check                         # check that all hosts together see the TPUs
#   launch/tpu_pod.sh doctor WORKDIR EXPERIMENT...  # check on every host what training needs
#   launch/tpu_pod.sh train WORKDIR EXPERIMENT[:part=choice,...] [--config.field=value ...]
#   launch/tpu_pod.sh logs                          # follow the log of the first host; logs 3: of host 3
#   launch/tpu_pod.sh stop                          # SIGTERM: the hosts agree on a step, save and exit
#   launch/tpu_pod.sh status                        # whether each host is training, or its exit code
#   launch/tpu_pod.sh delete                        # give the slice back
#
# `run` takes the arguments of `train`. It requests a slice that was preempted again, and starts a run that failed
# again, at most RESTARTS times; the run continues from its newest checkpoint. It ends with the exit code of the run,
# and does not delete the slice. Stopped (Ctrl-C) and given again, it watches the run that goes on.
# `create` and `run` need TYPE and IMAGE; SPOT=1 requests capacity that may be preempted:
#   slice               TYPE, for example    IMAGE
#   Trillium (v6e)      v6e-16               v2-alpha-tpuv6e
#   v5p                 v5p-16               v2-alpha-tpuv5
#   v5e                 v5litepod-16         v2-alpha-tpuv5-lite
#   v4 and older        v4-32                tpu-ubuntu2204-base
# Ironwood (TPU7x) is available on Kubernetes only: launch/kubernetes.sh. The images have Python 3.10, which lmrep does
# not support: `install` brings Python $PYTHON of its own, with uv, and needs access to the internet.
# A config file of your own is copied to the hosts when the run starts.
# WORKDIR is in an object store (gs://bucket/runs/bert), or a path that is the same mounted disk on every host, for
# example a Filestore. Data are found under the same path or URL on every host. The run continues when the ssh
# connection ends.
set -euo pipefail
TPU=${TPU:?TPU is missing: the name of the slice}
ZONE=${ZONE:?ZONE is missing: its zone, for example us-central2-b}
PROJECT=${PROJECT:-} # default: that of `gcloud config`
HOST_DIR=${HOST_DIR:-lmrep} # on each host, in the home directory
PYTHON=${PYTHON:-3.12}
POLL=${POLL:-30} # seconds between two looks at the slice
RESTARTS=${RESTARTS:-20}
where=(--zone="$ZONE" ${PROJECT:+--project="$PROJECT"})
queue=(gcloud compute tpus queued-resources)

# Runs a shell command on one host, or on all.
on() { gcloud compute tpus tpu-vm ssh "$TPU" "${where[@]}" --worker="$1" --command="$2"; }

# The state of the request for the slice; NONE if there is no request of its name.
state() {
  local said
  if said=$("${queue[@]}" describe "$TPU" "${where[@]}" --format='value(state.state)' 2>&1); then
    tail -1 <<< "$said"
  elif [[ $said == *NOT_FOUND* || $said == *"not found"* ]]; then
    echo NONE
  else
    echo UNKNOWN # no connection?
  fi
}

create() {
  "${queue[@]}" create "$TPU" --node-id="$TPU" --accelerator-type="${TYPE:?TYPE is missing, for example v6e-16}" \
    --runtime-version="${IMAGE:?IMAGE is missing, for example v2-alpha-tpuv6e}" ${SPOT:+--spot} "${where[@]}"
  await
}

await() { # until the slice is there
  local now before=
  while now=$(state) && [[ $now != ACTIVE ]]; do
    [[ $now == "$before" ]] || echo "$(date +%T) the request for $TPU: $now"
    case $now in
      FAILED | SUSPEND* | NONE) fail "there is no slice $TPU; see ${queue[*]} describe $TPU ${where[*]}" ;;
    esac
    before=$now
    sleep "$POLL"
  done
}

run() { # until the run ends
  local now said code started='' failures=0
  : "${1:?WORKDIR is missing}" "${2:?EXPERIMENT is missing, for example experiments/bert.py:size=base}"
  while true; do
    now=$(state)
    case $now in
      ACTIVE) ;;
      NONE) create ;;
      FAILED | SUSPEND*)
        echo "$(date +%T) $TPU is $now; it is requested again"
        "$0" delete
        create
        ;;
      *) await ;;
    esac
    said=$("$0" status) || said=unreachable # its state will tell why
    code=$(sed -n 's/.*: ended with //p' <<< "$said" | sort -n | tail -1)
    if [[ $said == *": trains"* ]]; then
      started=yes
    elif [[ $said == unreachable ]]; then
      echo "$(date +%T) $TPU cannot be reached"
    elif [[ $said == *": not installed"* ]]; then
      "$0" install && "$0" train "$@" && started=yes || failures=$((failures + 1))
    elif [[ -z $started || $said == *": idle"* ]]; then # codes are of an earlier run
      "$0" train "$@" && started=yes || failures=$((failures + 1))
    elif [[ $said == *", stopped"* ]]; then
      return 143
    else
      echo "$(date +%T) the run ended with $code"
      ((code != 0 && code != 2)) || return "$code"
      failures=$((failures + 1))
      ((failures > RESTARTS)) || "$0" train "$@" || true
    fi
    ((failures <= RESTARTS)) || return "${code:-1}"
    sleep "$POLL"
  done
}

# These four run on a host, in its copy of the repository. A step that fails is named with its host.
fail() {
  echo "$(hostname): $1" >&2
  exit 1
}

install_here() { # PYTHON
  export UV_UNMANAGED_INSTALL=$PWD/uv PATH=$PWD/uv:$PATH
  command -v uv > /dev/null || curl --location --silent --show-error --fail https://astral.sh/uv/install.sh | sh
  command -v uv > /dev/null ||
    fail "uv cannot be installed from https://astral.sh/uv; install it (pip install uv) or allow access to the internet"
  rm -rf venv
  uv venv --quiet --python "$1" venv || fail "uv cannot install Python $1"
  uv pip install --quiet --python venv/bin/python --editable '.[tpu,gcs]' || fail "the packages cannot be installed"
  venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "venv has $(venv/bin/python --version); lmrep needs Python 3.11 or newer"
  version=$(venv/bin/lmrep --version) || fail "lmrep does not start"
  echo "$(hostname): $version, $(venv/bin/python --version)"
}

check_here() { # all hosts at the same time: the TPUs of a slice are initialized together
  JAX_PLATFORMS=tpu venv/bin/python - <<'PYTHON' || fail "JAX does not find the TPUs; the message above says why"
import socket
from lmrep.distributed import process_group
process_group.start()
import jax
print(f"{socket.gethostname()}: process {jax.process_index()} of {jax.process_count()}, JAX {jax.__version__} sees "
      f"{jax.local_device_count()} of {jax.device_count()} devices, {jax.devices()[0].device_kind}", flush=True)
PYTHON
}

report_here() { # DIRECTORY
  local said=idle
  if ! cd "$1" 2> /dev/null || [ ! -e venv/bin/lmrep ]; then
    said="not installed"
  elif [ -s train.code ]; then
    said="ended with $(cat train.code)$([ ! -e stopped ] || echo ', stopped')"
  elif [ -e train.pid ] && kill -0 "$(cat train.pid)" 2> /dev/null; then
    said=trains
  fi
  echo "$(hostname): $said"
}

here=$(cd "$(dirname "$0")/.." && pwd -P)
action=${1:?an action is missing: run, create, install, check, doctor, train, logs, stop, status or delete}
shift
case $action in
  create) create ;;
  run) run "$@" ;;
  delete) "${queue[@]}" delete "$TPU" --force --quiet "${where[@]}" ;;
  install)
    package=$(mktemp -d)/lmrep.tar.gz
    tar --create --gzip --file="$package" --exclude-vcs --directory="$here" \
      setup.py pyproject.toml README.md lmrep experiments
    gcloud compute tpus tpu-vm scp "$package" "$TPU:lmrep.tar.gz" "${where[@]}" --worker=all
    rm -r "$(dirname "$package")"
    on all "mkdir -p $HOST_DIR && tar --extract --gzip --file=lmrep.tar.gz --directory=$HOST_DIR && cd $HOST_DIR || exit
      $(declare -f fail install_here)
      install_here $PYTHON"
    "$0" check
    ;;
  check)
    on all "cd $HOST_DIR || exit
      $(declare -f fail check_here)
      check_here"
    ;;
  doctor | train)
    workdir=${1:?WORKDIR is missing}
    experiment=${2:?EXPERIMENT is missing, for example experiments/bert.py:size=base}
    shift 2
    file=${experiment%%:*}
    # `install` copies the others.
    if [[ -f $file && $(cd "$(dirname "$file")" && pwd -P)/ != "$here"/experiments/* ]]; then
      gcloud compute tpus tpu-vm scp "$file" "$TPU:$HOST_DIR/${file##*/}" "${where[@]}" --worker=all
      experiment=${file##*/}${experiment#"$file"}
    fi
    line=$(printf '%q ' venv/bin/lmrep "$action" --config="$experiment" --workdir="$workdir" "$@")
    if [[ $action == doctor ]]; then
      on all "cd $HOST_DIR && $line"
    else
      # setsid: a new session, which survives the ssh connection. JAX_PLATFORMS: not on the CPU where a TPU is missing.
      run="echo \$\$ > train.pid; $line; echo \$? > train.code"
      on all "cd $HOST_DIR && rm -f train.code stopped && export JAX_PLATFORMS=\${JAX_PLATFORMS:-tpu,cpu} || exit
        setsid nohup bash -c $(printf '%q' "$run") >> train.log 2>&1 < /dev/null &"
      echo "started; launch/tpu_pod.sh logs follows the log"
    fi
    ;;
  logs) on "${1:-0}" "tail --lines=100 --follow=name $HOST_DIR/train.log" ;;
  # The run is the child of the shell that was started. Signal all hosts at once: they agree on a step.
  stop) on all "touch $HOST_DIR/stopped && pkill --signal TERM --parent \$(cat $HOST_DIR/train.pid)" ;;
  status)
    on all "$(declare -f report_here)
      report_here $HOST_DIR"
    ;;
  *)
    echo "there is no action $action; expected one of those at the top of $0" >&2
    exit 2
    ;;
esac
