"""Where a process stands among several, by what launchers put into its environment, and how they meet."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from lmrep.core.errors import UserError
from lmrep.distributed import process_group
from lmrep.distributed.process_group import Place, devices, meet, place

SLURM = {"SLURM_JOB_ID": "100", "SLURM_STEP_NODELIST": "n[03-04,7],m1", "SLURM_STEP_NUM_TASKS": "8",
         "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "2"}
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
       "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
URI = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
SAID = {"JAX_COORDINATOR_ADDRESS": "h:99", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, None),
    (SAID, Place("h:99", 2, 1)),
    (SAID | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, None),
    ({"JAX_NUM_PROCESSES": "1"}, None),
    (SLURM, Place("n03:61540", 8, 5, 1, 2)),
    (SLURM | {"SLURM_STEP_NODELIST": "m1,n[1-2]"}, Place("m1:61540", 8, 5, 1, 2)),
    (SLURM | {"SLURM_STEP_NODELIST": "solo"}, Place("solo:61540", 8, 5, 1, 2)),
    (SLURM | {"SLURM_NODEID": "3"}, Place("n03:61540", 8, 5, 1, 1)),
    (SLURM | {"JAX_COORDINATOR_ADDRESS": "h:99"}, Place("h:99", 8, 5, 1, 2)),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}, None),  # the shell of an allocation
    ({name: text for name, text in SLURM.items() if "STEP" not in name} | {"SLURM_NTASKS": "8"}, None),  # sbatch's own
    (MPI | URI, Place("10.96.0.1:62624", 4, 3, 1, 2)),
    (MPI | {"OMPI_MCA_orte_hnp_uri": "8192.0;tcp6://[fe80::b9b,2620::2]:433"}, Place("[fe80::b9b]:61442", 4, 3, 1, 2)),
    (MPI | {"JAX_COORDINATOR_ADDRESS": "h:99"}, Place("h:99", 4, 3, 1, 2)),
    (MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
    ({"JOB_COMPLETION_INDEX": "1"}, None),  # of a Job of tasks that know nothing of each other
    ({"JOB_COMPLETION_INDEX": "1", "JAX_COORDINATOR_ADDRESS": "p-0.p:8476", "JAX_NUM_PROCESSES": "2"},
     Place("p-0.p:8476", 2, 1)),
])
def test_places(environment, expected):
    assert place(environment) == expected


@pytest.mark.parametrize(("environment", "message"), [
    ({"JAX_COORDINATOR_ADDRESS": "h:99"}, "set also JAX_NUM_PROCESSES=.*, JAX_PROCESS_ID=.*; or unset"),
    ({"JAX_PROCESS_ID": "0"}, "set also JAX_COORDINATOR_ADDRESS=HOST:PORT of process 0, JAX_NUM_PROCESSES="),
    (MPI, "set also JAX_COORDINATOR_ADDRESS=HOST:PORT of process 0;"),  # Open MPI 5
    (SAID | {"JAX_PROCESS_ID": "2"}, "process 2 of 2, .* expected an index from 0 to 1"),
    (SAID | {"JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID is '-1'; expected a whole number"),
    (SAID | {"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES is 'two'; expected a whole number"),
    (SAID | {"JAX_COORDINATOR_ADDRESS": "host"}, "address is 'host'; expected HOST:PORT"),
])
def test_half_a_place_is_refused(environment, message):
    with pytest.raises(UserError, match=message):
        place(environment)


@pytest.mark.parametrize(("here", "environment", "expected"), [
    (Place("h:1", 4, 2), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, None),  # alone on its host: all
    (Place("h:1", 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [2, 3]),
    (Place("h:1", 8, 7, 3, 4), {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, [3]),
    (Place("h:1", 8, 7, 3, 4), {"CUDA_VISIBLE_DEVICES": "0"}, None),  # dealt out
    (Place("h:1", 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_PER_TASK": "2"}, None),
    (Place("h:1", 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": ""}, None),
    (Place("h:1", 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": "0,1", "JAX_LOCAL_DEVICE_IDS": "0"}, None),
])
def test_processes_of_one_host_share_its_gpus(here, environment, expected):
    assert devices(here, environment) == expected


def test_alone_nothing_happens_and_jax_is_not_even_imported():
    script = "import sys; from lmrep.distributed import process_group as d; d.start({}); print(d.joined(), 'jax' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stdout == "False False\n", result.stderr


def test_alone_all_agree():
    assert process_group.first() and process_group.agreed(lambda: 3) == 3
    with pytest.raises(KeyError):
        process_group.agreed(lambda: {}[1])


# Meeting


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def meeting(address, places, seconds=5.0):
    """What `meet` says, at each place of [(index, processes, seconds that it comes late)]."""
    said = {}

    def come(key, index, processes, late):
        time.sleep(late)
        try:
            said[key] = meet(Place(address, processes, index), seconds)
        except UserError as error:
            said[key] = str(error)

    threads = [threading.Thread(target=come, args=(key, *given)) for key, given in enumerate(places)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [said[key] for key in range(len(places))]


def test_all_meet_whoever_comes_first_and_whoever_else_knocks(address):
    def knock(words):
        with contextlib.suppress(OSError), socket.create_connection(("localhost", int(address.split(":")[1]))) as door:
            door.sendall(words)

    strangers = [threading.Timer(0.3, knock, [words]) for words in (b"GET / HTTP/1.1\r\n\r\n", b"", b"[]\n", b"{}\n")]
    for stranger in strangers:
        stranger.start()
    assert meeting(address, [(2, 3, 0), (0, 3, 0.2), (1, 3, 0.6)]) == [None] * 3


def test_one_that_comes_again_replaces_itself(address):
    def first_life():
        time.sleep(0.2)
        with socket.create_connection(("localhost", int(address.split(":")[1]))) as connection:
            connection.sendall(json.dumps({"index": 1, "processes": 3, "host": "h"}).encode() + b"\n")

    threading.Thread(target=first_life).start()
    assert meeting(address, [(0, 3, 0), (1, 3, 0.6), (2, 3, 0.8)]) == [None] * 3


def test_those_who_came_hear_who_did_not(address):
    one, two = meeting(address, [(0, 4, 0), (2, 4, 0)], seconds=0.6)
    assert one == two and one.startswith("2 of 4 processes did not come within 0.6 s: 1, 3; ")


def test_process_0_that_does_not_come_is_named(address):
    (said,) = meeting(address, [(1, 2, 0)], seconds=0.3)
    assert said.startswith("process 1 of 2 on ") and f"could not join process 0 at {address} within 0.3 s (" in said
    (said,) = meeting("no-such-host.invalid:1", [(1, 2, 0)], seconds=0.3)
    assert "could not join process 0 at no-such-host.invalid:1" in said


def test_counts_that_disagree_are_named_to_all(address):
    said = meeting(address, [(0, 3, 0), (1, 3, 0.1), (2, 4, 0.4)])
    assert len(set(said)) == 1 and "was started as one of 4, and process 0 on" in said[0]


def test_two_with_one_index_are_named_to_all(address):
    said = meeting(address, [(0, 3, 0), (1, 3, 0.1), (1, 3, 0.4)])
    assert len(set(said)) == 1 and said[0].startswith("two processes have the index 1, on ")


def test_a_port_that_is_taken_is_named(address):
    with socket.create_server(("", int(address.split(":")[1]))):
        (said,) = meeting(address, [(0, 2, 0)])
    assert said.startswith(f"process 0 cannot listen at port {address.split(':')[1]} of {address}: ")
