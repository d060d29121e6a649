"""Each launch script, executed with recorders in place of the programs of clusters: the commands that it runs."""

import shutil
import subprocess
import time

import pytest

from tests.launch.stubs import GCLOUD, LAUNCH, Stubs
from tests.small import finish

ARGUMENTS = ("runs/the run", "experiments/bert.py:size=base,data=files", "--config.data.files=/data/*.txt",
         "--config.x='a&b")
TRAIN = ["lmrep", "train", f"--config={ARGUMENTS[1]}", f"--workdir={ARGUMENTS[0]}", *ARGUMENTS[2:]]
CLOUD = {"TPU": "slice", "ZONE": "zone-b"}
UNTIL_STOPPED = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("trains", flush=True)
time.sleep(60)
sys.exit("""


@pytest.fixture
def stubs(tmp_path):
    stubs = Stubs(tmp_path)
    for name in ("lmrep", "srun", "scontrol", "gcloud", "kubectl", "nvidia-smi"):
        stubs.add(name)
    return stubs


def commands(stubs, *arguments, code=0, **environment):
    """The commands that a script ran."""
    answer = finish(stubs.start(*arguments, **environment))
    assert answer.code == code, answer
    return [call["words"] for call in stubs.called()]


@pytest.fixture
def writable(tmp_path):
    """The arguments with a workdir that may be written to."""
    workdir = f"{tmp_path}/runs/the run"
    return (workdir, *ARGUMENTS[1:]), [*TRAIN[:3], f"--workdir={workdir}", *TRAIN[4:]]


@pytest.mark.parametrize("script", sorted(LAUNCH.glob("*.sh")), ids=lambda path: path.name)
def test_script_is_valid_and_names_missing_arguments(script, stubs):
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)
    answer = finish(stubs.start(script.name))
    assert answer.code in (1, 2, 127) and "is missing" in answer.err and "Traceback" not in answer.err
    assert [call["words"][0] for call in stubs.called() if call["words"][0] != "nvidia-smi"] == []


def test_one_machine(stubs, writable):
    arguments, train = writable
    assert commands(stubs, "one_machine.sh", *arguments) == [train]
    (call,) = stubs.called()
    assert call["environment"]["JAX_COMPILATION_CACHE_DIR"]
    assert commands(stubs, "one_machine.sh", *arguments, code=143, STUB_CODE="143")


def test_several_gpus(stubs, writable):
    arguments, train = writable
    query, run = commands(stubs, "several_gpus.sh", *arguments, GPUS="2,3")
    assert query[0] == "nvidia-smi" and run == train
    assert [call["environment"].get("CUDA_VISIBLE_DEVICES") for call in stubs.called()] == ["2,3", "2,3"]
    commands(stubs, "several_gpus.sh", *arguments)
    assert "CUDA_VISIBLE_DEVICES" not in stubs.called()[-1]["environment"]


def test_slurm_starts_a_task_on_each_node(stubs):
    options = ["srun", "--label", "--wait=120", "--cpu-bind=none"]
    assert commands(stubs, "slurm.sh", *ARGUMENTS, SLURM_JOB_ID="7", SLURM_CPUS_PER_TASK="12") == [options + TRAIN]
    assert stubs.called()[0]["environment"]["SRUN_CPUS_PER_TASK"] == "12"


@pytest.mark.parametrize(("code", "again"), [(143, True), (2, False), (3, False)])
def test_slurm_requeues_a_run_that_saved_and_stopped(stubs, code, again):
    stubs.add("scontrol", "#!/bin/bash\necho \"$@\" > {calls}.again\n")
    commands(stubs, "slurm.sh", *ARGUMENTS, code=code, SLURM_JOB_ID="7", STUB_CODE=str(code))
    requeued = stubs.calls.with_name("calls.again")
    assert requeued.exists() == again and (not again or requeued.read_text() == "requeue 7\n")


def test_slurm_sweep_takes_the_runs_of_its_task(stubs):
    stubs.add("scontrol", "#!/bin/bash\necho \"$@\" > {calls}.again\n")
    arguments = (*ARGUMENTS[:2], "--grid=batch_size=16,32", "--seeds=0-4")
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8"}
    sweep = ["lmrep", "sweep", f"--config={ARGUMENTS[1]}", f"--workdir={ARGUMENTS[0]}", "--task=3", "--tasks=8"]
    expected = ["srun", "--cpu-bind=none", *sweep, *arguments[2:]]
    assert commands(stubs, "slurm_sweep.sh", *arguments, **array) == [expected]
    assert not stubs.calls.with_name("calls.again").exists()
    array |= {"SLURM_ARRAY_TASK_COUNT": "1", "TASKS": "8", "STUB_CODE": "143"}
    assert commands(stubs, "slurm_sweep.sh", *arguments, **array, code=143) == [expected] * 2
    assert stubs.calls.with_name("calls.again").read_text() == "requeue 9\n"


def test_slurm_sends_a_signal_before_the_end_and_runs_one_task_per_node():
    options = [line.split()[1] for line in (LAUNCH / "slurm.sh").read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--signal=TERM@120", "--requeue", "--open-mode=append", "--ntasks-per-node=1"} <= set(options)


def test_tpu_pod_runs_on_all_hosts(stubs):
    ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "slice", "--zone=zone-b", "--project=p", "--worker=all"]
    (command,) = commands(stubs, "tpu_pod.sh", "stop", **CLOUD, PROJECT="p")
    assert command == [*ssh, "--command=pkill --signal TERM --parent $(cat lmrep/train.pid)"]
    assert commands(stubs, "tpu_pod.sh", "fly", **CLOUD, code=2)[1:] == []


def test_tpu_pod_installs_runs_and_returns_the_exit_code(stubs, tmp_path):
    """Two hosts, each a folder, in which the shell commands run; `lmrep` is a recorder."""
    stubs.add("gcloud", GCLOUD)
    stubs.add("python3", "#!/bin/bash\nmkdir -p venv/bin; for name in pip lmrep; do "
                         "cp \"$(dirname \"$0\")/lmrep\" venv/bin/$name; done\n")
    installed = commands(stubs, "tpu_pod.sh", "install", **CLOUD)
    assert [call[0] for call in installed] == ["pip", "lmrep"] * 2
    assert installed[0] == ["pip", "install", "--quiet", "-e", ".[tpu]"]
    assert (tmp_path / "host1/lmrep/experiments/bert.py").exists()
    checked = commands(stubs, "tpu_pod.sh", "doctor", *ARGUMENTS[:2], **CLOUD)
    assert checked[4:] == [["lmrep", "doctor", *TRAIN[2:4]]] * 2

    for host in (0, 1):
        run = tmp_path / f"host{host}/lmrep/venv/bin/lmrep"
        run.write_text(run.read_text().replace("sys.exit(", UNTIL_STOPPED))
    commands(stubs, "tpu_pod.sh", "train", *ARGUMENTS, **CLOUD)  # returns while the runs go on
    logs = [tmp_path / f"host{host}/lmrep/train.log" for host in (0, 1)]
    wait(lambda: all(log.exists() and "trains" in log.read_text() for log in logs))
    assert [call["words"] for call in stubs.called()][-2:] == [TRAIN] * 2
    assert finish(stubs.start("tpu_pod.sh", "status", **CLOUD)).out.count(" trains\n") == 2
    assert finish(stubs.start("tpu_pod.sh", "stop", **CLOUD)).code == 0
    codes = [log.with_name("train.code") for log in logs]
    wait(lambda: all(code.exists() and code.read_text() for code in codes))
    assert finish(stubs.start("tpu_pod.sh", "status", **CLOUD)).out.count(": ended with 143\n") == 2


def wait(condition, seconds=20):
    """Returns as soon as it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_kubernetes_applies_an_indexed_job_with_a_service(stubs):
    yaml = pytest.importorskip("yaml")
    settings = {"NAME": "bert", "HOSTS": "4", "GPUS": "8", "IMAGE": "registry/lmrep:1", "CLAIM": "disk"}
    (call,) = commands(stubs, "kubernetes.sh", *ARGUMENTS, **settings)
    assert call == ["kubectl", "apply", "--filename=-"]
    service, job = yaml.safe_load_all(stubs.called()[0]["stdin"])
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] + container["args"] == TRAIN
    environment = {entry["name"]: entry.get("value") or entry["valueFrom"] for entry in container["env"]}
    index = environment["JAX_PROCESS_ID"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert environment["JAX_NUM_PROCESSES"] == "4" and job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    # Pod i of an indexed Job has the host name JOB-i, below the name of the service that is its subdomain.
    assert environment["JAX_COORDINATOR_ADDRESS"] == "bert-0.bert:8476"
    assert service["metadata"]["name"] == pod["subdomain"] == "bert" and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] >= 120
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8} and container["image"] == "registry/lmrep:1"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "disk"
    printed = finish(stubs.start("kubernetes.sh", *ARGUMENTS, **settings, SHOW="1")).out
    assert list(yaml.safe_load_all(printed)) == [service, job] and len(stubs.called()) == 1
