"""What a process learns from launchers' environment variables, and how processes join or fail to."""

import re
import socket
import subprocess
import sys

import jax
import pytest

from lmrep.core.errors import UserError
from lmrep.distributed import process_group
from lmrep.distributed.process_group import Process, launched, local_devices
from tests import forked, small

SLURM = {"SLURM_JOB_ID": "100", "SLURM_STEP_NODELIST": "n[03-04,7],m1", "SLURM_STEP_NUM_TASKS": "8",
         "SLURM_NTASKS": "8", "SLURM_STEP_NUM_NODES": "4", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
       "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
PMI = {"PMI_SIZE": "8", "PMI_RANK": "6", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "2"}  # MPICH, Intel MPI
TORCH = {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "h",
         "MASTER_PORT": "29500"}
TORCHRUN = TORCH | {"TORCHELASTIC_RUN_ID": "none"}
EXPLICIT = {"JAX_COORDINATOR_ADDRESS": "h:99", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, None),
    (EXPLICIT, Process(2, 1, address="h:99")),
    (EXPLICIT | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, None),
    ({"JAX_NUM_PROCESSES": "1"}, None),
    (SLURM, Process(8, 5, 2, 1)),
    (SLURM | {"SLURM_STEP_NUM_NODES": "8", "SLURM_LOCALID": "0"}, Process(8, 5, 1, 0)),
    (SLURM | {"JAX_COORDINATOR_ADDRESS": "h:99"}, Process(8, 5, 2, 1, "h:99")),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),  # the interactive shell of an allocation
    ({name: text for name, text in SLURM.items() if "STEP" not in name}, None),  # the batch script itself
    (MPI, Process(4, 3, 2, 1)),
    (MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
    (SLURM | {"JAX_NUM_PROCESSES": "1"}, None),
    (PMI, Process(8, 6, 4, 2)),
    (PMI | {"JAX_COORDINATOR_ADDRESS": "h:99"}, Process(8, 6, 4, 2, "h:99")),
    (PMI | {"PMI_SIZE": "1", "PMI_RANK": "0"}, None),
    ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),
    (SLURM | {"PMI_SIZE": "8", "PMI_RANK": "5"}, Process(8, 5, 2, 1)),  # srun --mpi=pmi2
    (SLURM | {"PMI_SIZE": "32", "PMI_RANK": "21", "MPI_LOCALNRANKS": "4"}, Process(32, 21, 4)),  # srun mpiexec
    ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "1"}, Process(2, 1)),
    (TORCHRUN, Process(8, 5, 4, 1, "h:29501")),
    (TORCHRUN | {"MASTER_PORT": "65535"}, Process(8, 5, 4, 1, "h:65534")),
    (TORCHRUN | {"JAX_COORDINATOR_ADDRESS": "h:99"}, Process(8, 5, 4, 1, "h:99")),
    (TORCH, Process(8, 5, 4, 1, "h:29500")),  # another program than torchrun sets its variables
    (SLURM | TORCHRUN | {"WORLD_SIZE": "64", "RANK": "40"}, Process(64, 40, 4, 1, "h:29501")),  # srun torchrun
    (SLURM | {"WORLD_SIZE": "8", "MASTER_ADDR": "h"}, Process(8, 5, 2, 1)),  # exported by a batch script
    (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, None),
    (EXPLICIT | TORCHRUN, Process(2, 1, 4, 1, "h:99")),
    ({"JOB_COMPLETION_INDEX": "1"}, None),
])
def test_process_is_read_from_the_environment(environment, expected):
    assert launched(environment) == expected


@pytest.mark.parametrize("environment", [
    {}, {"JOB_COMPLETION_INDEX": "1", "JAX_PLATFORMS": "cpu"}], ids=["TPU", "pod"])
def test_jax_does_not_look_for_others_of_a_process_that_trains_alone(monkeypatch, environment):
    """On a host that seems to be of a TPU slice, or in a pod of an indexed Job."""
    monkeypatch.setattr(process_group.glob, "glob", lambda pattern: ["/dev/accel0"])
    monkeypatch.setattr(process_group.importlib.util, "find_spec", lambda name: name)
    assert process_group._jax_may_detect(environment)
    for alone in ("1", "01"):
        assert not process_group._jax_may_detect(environment | {"JAX_NUM_PROCESSES": alone})


@pytest.mark.parametrize(("process", "environment", "expected"), [
    (Process(4, 2), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, []),  # the only process of its host
    (Process(4, 3, 2, 1), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [2, 3]),
    (Process(8, 7, 4, 3), {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, [3]),
    (Process(8, 7, 4, 3), {"CUDA_VISIBLE_DEVICES": "0"}, []),  # assigned by the launcher
    (Process(4, 3, 2, 1), {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_PER_TASK": "2"}, []),
    (Process(4, 3, 2, 1), {"CUDA_VISIBLE_DEVICES": ""}, []),
    (Process(4, 3, 2, 1), {"CUDA_VISIBLE_DEVICES": "0,1", "JAX_LOCAL_DEVICE_IDS": "0"}, [0]),
])
def test_processes_of_one_host_divide_its_gpus(process, environment, expected):
    assert local_devices(process, environment) == expected


def test_a_single_process_agrees_with_itself():
    assert process_group.first() and process_group.agreed(lambda: 3) == 3
    with pytest.raises(KeyError):
        process_group.agreed(lambda: {}[1])


# Joining


def join_others():
    try:
        process_group.start()
    except UserError as error:
        sys.exit(f"lmrep: error: {error}")
    print(jax.process_index(), jax.process_count())


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def start(environment, seconds=30):
    """Starts a process that joins others."""
    return forked.Child(join_others, environment={"LMREP_JOIN_SECONDS": str(seconds)} | environment)


def join(*environments, seconds=30):
    """Runs processes that join; returns (exit code, standard output, error messages of ours) of each."""
    processes = [start(environment, seconds) for environment in environments]
    results = []
    for code, out, err in map(small.finish, processes):
        messages = [line.partition("lmrep: error: ")[2] for line in err.splitlines() if "lmrep: error: " in line]
        assert "Traceback" not in err and len(messages) == (code != 0), err
        results.append((code, out, "".join(messages)))
    return results


def explicit(address, count, index):
    return {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(index)}


def test_a_single_process_does_not_import_jax():
    program = "import sys; from lmrep.distributed import process_group as g; g.start(); sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_ranks_of_open_mpi_join_at_the_address_that_jax_detects(address):
    port = int(address.rpartition(":")[2])
    ranks = [{"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(rank), "JAX_COORDINATOR_PORT": str(port),
              "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1,10.148.0.1:34911"} for rank in range(2)]
    assert join(*ranks) == [(0, "0 2\n", ""), (0, "1 2\n", "")]


@pytest.mark.slow
def test_processes_of_torchrun_join_beside_its_own_port():
    with listen_below_a_free_port() as torchrun:
        host, port = torchrun.getsockname()
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none"}
        assert join(*(common | {"RANK": str(rank)} for rank in range(2))) == [
            (0, "0 2\n", ""), (0, "1 2\n", "")]


def listen_below_a_free_port():
    """Listens at a port, as torchrun does, whose successor is free."""
    for _ in range(20):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            try:
                return socket.create_server(("localhost", free.getsockname()[1] - 1))
            except OSError:  # another process has it
                continue
    raise AssertionError("no two free ports in a row")


@pytest.mark.slow
def test_ranks_of_mpich_join_at_the_given_address(address):
    common = {"PMI_SIZE": "2", "JAX_COORDINATOR_ADDRESS": address}
    assert join(*(common | {"PMI_RANK": str(rank)} for rank in range(2))) == [
        (0, "0 2\n", ""), (0, "1 2\n", "")]


@pytest.mark.slow
def test_processes_that_do_not_find_each_other_end_with_one_message(address):
    zero, one, three = join(explicit(address, 5, 0), explicit("no-such-host.invalid:1", 5, 1), explicit(address, 5, 3),
                            seconds=3)
    for index, (code, _, message) in zip((0, 1, 3), (zero, one, three), strict=True):
        assert code == 2 and message.startswith(f"process {index} of 5 on {socket.gethostname()} (coordinator ")
        assert "could not join the others: " in message and "Check that all processes run" in message
    for _, _, message in (zero, three):
        missing = re.search(r": 3 of 5 did not arrive within 3 s \(LMREP_JOIN_SECONDS\): process (\d), (\d) and others",
                            message)
        assert {*map(int, missing.groups())} < {1, 2, 4}
        assert "Start all, or fewer with that JAX_NUM_PROCESSES: a run continues on any number" in message
    assert ": process 0 did not answer within 3 s (LMREP_JOIN_SECONDS): " in one[2]


@pytest.mark.slow
def test_train_names_the_process_that_is_missing(address, tmp_path):
    """As two processes on hosts, of which one does not start."""
    process = forked.Child(forked.lmrep, "train", f"--workdir={tmp_path}/run", environment={
        "LMREP_JOIN_SECONDS": "3", **explicit(address, 2, 0)})
    code, out, err = small.finish(process)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"lmrep: error: process 0 of 2 on {socket.gethostname()} (coordinator {address}) could not ")
    assert "1 of 2 did not arrive within 3 s (LMREP_JOIN_SECONDS): process 1. Start all, or fewer with" in err


@pytest.mark.slow
def test_an_abort_of_jax_ends_with_one_message(address):
    zero = start(explicit(address, 2, 0))
    ((code, _, message),) = join(explicit(address, 3, 2))
    zero.kill()
    small.finish(zero)
    assert code == 2 and message.startswith("process 2 of 3 on ")
    assert "JAX's message above says why. Check that all processes" in message


@pytest.mark.slow
def test_a_port_that_is_in_use_is_reported(address):
    with socket.create_server(("", int(address.rpartition(":")[2]))):
        ((code, _, message),) = join(explicit(address, 2, 0))
    assert code and "could not start: " in message and "to another one" in message


@pytest.mark.slow
@pytest.mark.parametrize("environment", [MPI, PMI], ids=["Open MPI 5", "MPICH"])
def test_ranks_without_a_coordinator_are_refused(environment):
    ((code, _, message),) = join(environment)
    assert code and "found no coordinator: " in message and "Set JAX_COORDINATOR_ADDRESS to HOST:PORT" in message
