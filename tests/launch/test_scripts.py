"""Each launch script, executed with recorders in place of the programs of clusters: the commands that it runs."""

import os
import re
import shutil
import socket
import subprocess
import time

import pytest

from tests.launch.stubs import GCLOUD, LAUNCH, ROOT, UV, Stubs
from tests.small import SECONDS, finish

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
    subprocess.run(["bash", "-n", script], check=True, timeout=SECONDS)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True, timeout=SECONDS)
    answer = finish(stubs.start(script.name))
    assert answer.code in (1, 2, 127) and "is missing" in answer.err and "Traceback" not in answer.err
    assert [call["words"][0] for call in stubs.called() if call["words"][0] != "nvidia-smi"] == []


def test_one_machine(stubs, writable):
    arguments, train = writable
    assert commands(stubs, "one_machine.sh", *arguments) == [train]
    assert commands(stubs, "one_machine.sh", *arguments, code=143, STUB_CODE="143")


def test_several_gpus(stubs, writable):
    arguments, train = writable
    query, run = commands(stubs, "several_gpus.sh", *arguments, GPUS="2,3")
    assert query[0] == "nvidia-smi" and run == train
    assert [call["environment"].get("CUDA_VISIBLE_DEVICES") for call in stubs.called()] == ["2,3", "2,3"]
    commands(stubs, "several_gpus.sh", *arguments)
    assert "CUDA_VISIBLE_DEVICES" not in stubs.called()[-1]["environment"]


@pytest.mark.parametrize("script", ["several_gpus.sh", "slurm.sh", "slurm_sweep.sh"])
@pytest.mark.parametrize(("given", "passed"), [("", "cuda,cpu"), ("cpu", "cpu"), ("rocm", "rocm")])
def test_scripts_for_gpus_do_not_train_on_the_cpu_unless_they_are_told_to(stubs, writable, script, given, passed):
    commands(stubs, script, *writable[0], JAX_PLATFORMS=given, SLURM_JOB_ID="7", SLURM_ARRAY_TASK_ID="0",
             SLURM_ARRAY_TASK_COUNT="1")
    assert stubs.called()[-1]["environment"]["JAX_PLATFORMS"] == passed


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


@pytest.mark.parametrize(("step", "message"), [
    ("venv", "uv cannot install Python 3.12"), ("pip", "the packages cannot be installed")])
def test_tpu_pod_names_the_step_and_the_host_that_failed(stubs, step, message):
    stubs.add("gcloud", GCLOUD)
    stubs.add("uv", UV)
    answer = finish(stubs.start("tpu_pod.sh", "install", **CLOUD, FAILS=step))
    assert answer.code == 1 and answer.err == f"{socket.gethostname()}: {message}\n"


def test_tpu_pod_names_the_check_that_failed(stubs, tmp_path):
    stubs.add("gcloud", GCLOUD)
    python = tmp_path / "host0/lmrep/venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/bash\necho no TPU >&2; exit 1\n")
    python.chmod(0o755)
    answer = finish(stubs.start("tpu_pod.sh", "check", **CLOUD))
    assert answer.code == 1
    assert answer.err == f"no TPU\n{socket.gethostname()}: JAX does not find the TPUs; the message above says why\n"


def test_slurm_sends_a_signal_before_the_end_and_runs_one_task_per_node():
    options = [line.split()[1] for line in (LAUNCH / "slurm.sh").read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--signal=TERM@120", "--requeue", "--open-mode=append", "--ntasks-per-node=1", "--mem=0"} <= set(options)


def test_tpu_pod_runs_on_all_hosts(stubs):
    ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "slice", "--zone=zone-b", "--project=p", "--worker=all"]
    (command,) = commands(stubs, "tpu_pod.sh", "stop", **CLOUD, PROJECT="p")
    assert command == [*ssh, "--command=touch lmrep/stopped && pkill --signal TERM --parent $(cat lmrep/train.pid)"]
    assert commands(stubs, "tpu_pod.sh", "fly", **CLOUD, code=2)[1:] == []


def test_tpu_pod_installs_runs_and_returns_the_exit_code(stubs, tmp_path):
    """Two hosts, each a folder, in which the shell commands run; `uv` makes recorders in place of its programs."""
    stubs.add("gcloud", GCLOUD)
    stubs.add("uv", UV)
    installed = commands(stubs, "tpu_pod.sh", "install", **CLOUD)
    assert [call[0] for call in installed] == ["uv", "uv", "python", "lmrep", "python"] * 2 + ["python"] * 2
    assert installed[0] == ["uv", "venv", "--quiet", "--python", "3.12", "venv"]
    packages = ["uv", "pip", "install", "--quiet", "--python", "venv/bin/python", "--editable", ".[tpu,gcs]"]
    assert installed[1] == packages
    check = stubs.called()[-1]
    assert check["environment"]["JAX_PLATFORMS"] == "tpu"
    compile(check["stdin"], "check", "exec")
    assert (tmp_path / "host1/lmrep/experiments/bert.py").exists()
    assert (tmp_path / "host1/lmrep/pyproject.toml").exists()
    before = len(installed)
    checked = commands(stubs, "tpu_pod.sh", "doctor", *ARGUMENTS[:2], **CLOUD)
    assert checked[before:] == [["lmrep", "doctor", *TRAIN[2:4]]] * 2

    for host in (0, 1):
        run = tmp_path / f"host{host}/lmrep/venv/bin/lmrep"
        run.write_text(run.read_text().replace("sys.exit(", UNTIL_STOPPED))
    commands(stubs, "tpu_pod.sh", "train", *ARGUMENTS, **CLOUD)  # returns while the runs go on
    logs = [tmp_path / f"host{host}/lmrep/train.log" for host in (0, 1)]
    wait(lambda: all(log.exists() and "trains" in log.read_text() for log in logs))
    assert [call["words"] for call in stubs.called()][-2:] == [TRAIN] * 2
    assert stubs.called()[-1]["environment"]["JAX_PLATFORMS"] == os.environ.get("JAX_PLATFORMS", "tpu,cpu")
    assert finish(stubs.start("tpu_pod.sh", "status", **CLOUD)).out.count(" trains\n") == 2
    assert finish(stubs.start("tpu_pod.sh", "stop", **CLOUD)).code == 0
    codes = [log.with_name("train.code") for log in logs]
    wait(lambda: all(code.exists() and code.read_text() for code in codes))
    assert finish(stubs.start("tpu_pod.sh", "status", **CLOUD)).out.count(": ended with 143, stopped\n") == 2


def test_tpu_pod_requests_a_preempted_slice_again_and_runs_to_the_end(stubs, tmp_path):
    stubs.add("gcloud", GCLOUD)
    stubs.add("uv", UV)
    (tmp_path / "states").write_text("WAITING_FOR_RESOURCES PROVISIONING ACTIVE SUSPENDED ACTIVE")
    settings = {**CLOUD, "TYPE": "v6e-16", "IMAGE": "v2-alpha-tpuv6e", "SPOT": "1", "POLL": "0.2"}
    answer = finish(stubs.start("tpu_pod.sh", "run", *ARGUMENTS, **settings))
    assert answer.code == 0, answer
    requests = [line.split() for line in (tmp_path / "requests").read_text().splitlines()]

    assert [words[0] for words in requests if words[0] != "describe"] == ["create", "delete", "create"]
    assert requests[1] == ["create", "slice", "--node-id=slice", "--accelerator-type=v6e-16",
                           "--runtime-version=v2-alpha-tpuv6e", "--spot", "--zone=zone-b"]
    assert "--force" in next(words for words in requests if words[0] == "delete")
    trained = [call["words"] for call in stubs.called() if call["words"][:2] == ["lmrep", "train"]]
    assert trained == [TRAIN] * 4  # two hosts, twice
    assert "the request for slice: PROVISIONING" in answer.out and "slice is SUSPENDED" in answer.out


@pytest.mark.parametrize(("code", "starts"), [(0, 1), (2, 1), (3, 3), (143, 3)])
def test_tpu_pod_starts_a_run_that_failed_again(stubs, tmp_path, code, starts):
    """143 is the code of a run that the system stopped: it goes on, unless a user stopped it."""
    stubs.add("gcloud", GCLOUD)
    hosts(stubs, tmp_path, code)
    answer = finish(stubs.start("tpu_pod.sh", "run", *ARGUMENTS, **CLOUD, POLL="0.2", RESTARTS="2"))
    assert answer.code == code, answer
    assert [call["words"] for call in stubs.called()] == [TRAIN] * 2 * starts


@pytest.mark.parametrize("stopped", [False, True])
def test_tpu_pod_runs_where_an_earlier_run_has_ended(stubs, tmp_path, stopped):
    stubs.add("gcloud", GCLOUD)
    for run in hosts(stubs, tmp_path):
        (run.parents[2] / "train.code").write_text("0\n")
        if stopped:
            (run.parents[2] / "stopped").touch()
    answer = finish(stubs.start("tpu_pod.sh", "run", *ARGUMENTS, **CLOUD, POLL="0.2"))
    assert answer.code == 0 and [call["words"] for call in stubs.called()] == [TRAIN] * 2


def test_tpu_pod_watches_a_run_that_goes_on_until_a_user_stops_it(stubs, tmp_path):
    stubs.add("gcloud", GCLOUD)
    for run in hosts(stubs, tmp_path):
        run.write_text(run.read_text().replace("sys.exit(", UNTIL_STOPPED))
    assert finish(stubs.start("tpu_pod.sh", "train", *ARGUMENTS, **CLOUD)).code == 0
    wait(lambda: len(stubs.called()) == 2)
    watching = stubs.start("tpu_pod.sh", "run", *ARGUMENTS, **CLOUD, POLL="0.2")
    requests = tmp_path / "requests"
    wait(lambda: requests.exists() and requests.read_text().count("describe") > 1)  # it has seen that the run goes on
    assert finish(stubs.start("tpu_pod.sh", "stop", **CLOUD)).code == 0
    assert finish(watching).code == 143 and len(stubs.called()) == 2


def test_tpu_pod_copies_a_config_file_of_the_user(stubs, tmp_path):
    stubs.add("gcloud", GCLOUD)
    hosts(stubs, tmp_path)
    (tmp_path / "mine.py").write_text("# mine")
    finish(stubs.start("tpu_pod.sh", "train", "gs://b/run", f"{tmp_path}/mine.py:size=tiny", **CLOUD))
    wait(lambda: len(stubs.called()) == 2)
    assert (tmp_path / "host1/lmrep/mine.py").read_text() == "# mine"
    assert stubs.called()[0]["words"] == ["lmrep", "train", "--config=mine.py:size=tiny", "--workdir=gs://b/run"]


def hosts(stubs, folder, code=0):
    """Makes two hosts of a slice, on which lmrep is installed and ends with a code; its files on them."""
    (folder / "requested").touch()
    (folder / "states").write_text("ACTIVE")
    files = [folder / f"host{host}/lmrep/venv/bin/lmrep" for host in (0, 1)]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text((stubs.folder / "lmrep").read_text().replace('"STUB_CODE", "0"', f'"STUB_CODE", "{code}"'))
        file.chmod(0o755)
    return files


def wait(condition, seconds=20):
    """Returns as soon as it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_kubernetes_applies_a_set_of_one_indexed_job(stubs):
    yaml = pytest.importorskip("yaml")
    settings = {"NAME": "bert", "HOSTS": "4", "GPUS": "8", "IMAGE": "registry/lmrep:1", "CLAIM": "disk"}
    (call,) = commands(stubs, "kubernetes.sh", *ARGUMENTS, **settings)
    assert call == ["kubectl", "apply", "--filename=-"]
    jobs, job = job_of(stubs.called()[0]["stdin"])
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] + container["args"] == TRAIN
    environment = {entry["name"]: entry.get("value") or entry["valueFrom"] for entry in container["env"]}
    index = environment["JAX_PROCESS_ID"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert environment["JAX_NUM_PROCESSES"] == "4" and job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    # Pod i of Job j of a JobSet has the host name SET-NAME-j-i, below the name of the set.
    name = jobs["spec"]["replicatedJobs"][0]["name"]
    assert environment["JAX_COORDINATOR_ADDRESS"] == f"bert-{name}-0-0.bert:8476"
    assert jobs["spec"]["network"]["enableDNSHostnames"] and jobs["metadata"]["name"] == "bert"
    # A pod that fails ends the Job, and all start again, but for exit code 2.
    assert job["spec"]["backoffLimit"] == 0 and jobs["spec"]["failurePolicy"]["maxRestarts"] == 100
    (rule,), (refused,) = jobs["spec"]["failurePolicy"]["rules"], job["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert (refused["action"], refused["onExitCodes"]["values"]) == ("FailJob", [2])
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] >= 120
    limits = {"cpu": 64, "memory": "256Gi", "nvidia.com/gpu": 8}
    assert container["resources"] == {"requests": limits, "limits": limits}
    assert container["image"] == "registry/lmrep:1" and environment["JAX_PLATFORMS"] == "cuda,cpu"
    assert pod["volumes"][1]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "disk"
    printed = finish(stubs.start("kubernetes.sh", *ARGUMENTS, **settings, SHOW="1")).out
    assert yaml.safe_load(printed) == jobs and len(stubs.called()) == 1


def job_of(text):
    """A JobSet, and its Job."""
    jobs = pytest.importorskip("yaml").safe_load(text)
    assert (jobs["apiVersion"], jobs["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (replicated,) = jobs["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1
    return jobs, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, **replicated["template"]}


@pytest.mark.parametrize(("topology", "chips", "hosts"), [("4x4", 4, 4), ("2x2x4", 4, 4), ("2x4", 8, 1)])
def test_kubernetes_runs_a_pod_on_each_host_of_a_tpu_slice(stubs, topology, chips, hosts):
    settings = {"IMAGE": "r/lmrep", "CLAIM": "disk", "NAME": "bert", "TPU": "tpu-v6e-slice", "TOPOLOGY": topology,
                "CHIPS": str(chips), "CPUS": "100", "MEMORY": "300Gi", "SHOW": "1"}
    jobs, job = job_of(finish(stubs.start("kubernetes.sh", *ARGUMENTS, **settings)).out)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] + container["args"] == TRAIN
    assert pod["nodeSelector"] == {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
                                   "cloud.google.com/gke-tpu-topology": topology}
    limits = {"cpu": 100, "memory": "300Gi", "google.com/tpu": chips}
    assert container["resources"] == {"requests": limits, "limits": limits}
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == hosts
    assert job["spec"]["completionMode"] == "Indexed" and jobs["metadata"]["name"] == "bert"
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["JAX_NUM_PROCESSES"] == str(hosts) and environment["JAX_PLATFORMS"] == "tpu,cpu"
    assert environment["JAX_COORDINATOR_ADDRESS"] == "bert-hosts-0-0.bert:8476"


@pytest.mark.parametrize(("settings", "message"), [
    ({}, "TOPOLOGY is ''; expected that of the slice"), ({"TOPOLOGY": "16"}, "TOPOLOGY is '16'; expected"),
    ({"TOPOLOGY": "1x2"}, "a slice of 1x2 has 2 chips, which hosts with CHIPS=4 each cannot have")])
def test_kubernetes_refuses_a_slice_that_cannot_be(stubs, settings, message):
    answer = finish(stubs.start("kubernetes.sh", *ARGUMENTS, IMAGE="i", CLAIM="c", TPU="tpu-v6e-slice", **settings))
    assert answer.code == 2 and message in answer.err and not stubs.called()


def test_kubernetes_needs_no_claim_for_a_workdir_in_an_object_store(stubs):
    arguments = ("gs://bucket/runs/bert", *ARGUMENTS[1:])
    shown = finish(stubs.start("kubernetes.sh", *arguments, IMAGE="i", SHOW="1", ACCOUNT="trainer")).out
    pod = job_of(shown)[1]["spec"]["template"]["spec"]
    assert pod["volumes"][0] == {"name": "shared", "emptyDir": {}} and pod["serviceAccountName"] == "trainer"
    answer = finish(stubs.start("kubernetes.sh", *ARGUMENTS, IMAGE="i", SHOW="1"))
    assert answer.code == 1 and "CLAIM is missing" in answer.err


def test_one_machine_writes_the_log_of_a_remote_workdir_here(stubs, tmp_path):
    answer = finish(stubs.start("one_machine.sh", "gs://bucket/runs/bert", *ARGUMENTS[1:], cwd=tmp_path))
    assert answer.code == 0 and [path.name for path in tmp_path.iterdir() if "bert" in path.name] == ["bert.log"]


@pytest.mark.parametrize("slice", [{}, {"TPU": "tpu-v5p-slice", "TOPOLOGY": "2x2x4"}], ids=["GPUs", "TPUs"])
@pytest.mark.parametrize("volume", [{}, {"CLAIM": "c"}], ids=["store", "claim"])
def test_kubernetes_manifests_match_the_schema(stubs, slice, volume):
    """The Job: Kubernetes has no schema of a JobSet."""
    validate = pytest.importorskip("kubernetes_validate")
    workdir = "/shared/run" if volume else "gs://bucket/run"
    words = (workdir, *ARGUMENTS[1:])
    shown = finish(stubs.start("kubernetes.sh", *words, IMAGE="i", SHOW="1", **slice, **volume)).out
    validate.validate(job_of(shown)[1], validate.latest_version(), strict=True)


def test_dockerfile_copies_what_is_there_and_installs_an_extra_that_is_there():
    """It is checked and not built: that takes a container engine and gigabytes."""
    file = LAUNCH / "Dockerfile"
    text = file.read_text()
    sources = [word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert {"setup.py", "lmrep", "experiments"} <= set(sources) and all((ROOT / source).exists() for source in sources)
    kept = [line[1:] for line in (LAUNCH / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")]
    assert sorted(kept) == sorted(sources)
    for extras in re.findall(r"EXTRA=(\w+(?:,\w+)*)", text):
        assert all(f'"{extra}": [' in (ROOT / "setup.py").read_text() for extra in extras.split(","))
    assert int(re.search(r"^USER (.*)$", text, re.MULTILINE)[1]) > 0
    if shutil.which("hadolint"):
        subprocess.run(["hadolint", file], check=True, timeout=SECONDS)


def test_lines_of_scripts_are_not_too_long():
    for path in (*LAUNCH.glob("*.sh"), LAUNCH / "Dockerfile"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 120, f"{path}, line {number}"
