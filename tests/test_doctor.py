"""What `lmrep doctor` finds: each thing is broken for real, and named with its mend."""

import contextlib
import shutil
import socket
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import lmrep
from lmrep import assembly, doctor
from lmrep import experiment as experiments
from lmrep.data import tokenizers
from lmrep.data.formats import FORMATS
from lmrep.doctor import machine, text
from lmrep.models import PRESETS
from lmrep.training import workdir
from lmrep.training.checkpoints import Checkpoints
from tests import small


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a corpus in `texts`, and a run trained on it in `run`, whose stores are in `data`."""
    home = tmp_path_factory.mktemp("doctor")
    small.corpus(home / "texts")
    lmrep.train(small.config(home / "texts"), home / "run", data_dir=home / "data")
    return home


@pytest.fixture
def config(home):
    config = small.config(home / "texts")
    config.mesh.data = -1
    return config


@pytest.fixture
def copied(home, tmp_path):
    """The run, in a folder of the test's own."""
    shutil.copytree(home / "run", tmp_path / "run")
    return tmp_path / "run"


def examined(config, directory=None, data_dir="/nowhere", **given) -> dict[str, doctor.Finding]:
    findings = doctor.examine(config, directory, data_dir, **given)
    assert all("\n" not in finding.text for finding in findings)
    return {finding.check: finding for finding in findings}


def failed(found: dict[str, doctor.Finding]) -> dict[str, str]:
    return {name: finding.text for name, finding in found.items() if finding.mark == doctor.FAILED}


def spoil(path: Path, at: int = -1) -> None:
    """Flips a bit of one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# A run that has what it needs


def test_before_and_after_a_healthy_run_nothing_fails_and_nothing_is_written(home, config, tmp_path):
    before = small.contents(home)
    fresh = examined(config, tmp_path / "new/run", tmp_path / "new/data", files=f"{home}/texts/0*.txt")
    assert {finding.mark for finding in fresh.values()} == {doctor.OK, doctor.SKIPPED}
    assert [name for name, finding in fresh.items() if finding.mark == doctor.SKIPPED] == ["examples"]
    assert "not built yet" in fresh["store"].text and fresh["resuming"].text == "a new run"
    assert not (tmp_path / "new").exists()
    there = examined(config, home / "run", home / "data")
    assert {finding.mark for finding in there.values()} == {doctor.OK}
    assert "all 12 steps are done" in there["resuming"].text and "train" in there["store"].text
    assert small.contents(home) == before


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_tried_on_the_text(home, name):
    config = small.config(home / "texts", format=name)
    assert examined(config, None, home / "data")["examples"].mark == doctor.OK


def test_without_a_workdir_what_is_about_it_is_skipped(config, tmp_path):
    found = examined(config, None, tmp_path)
    skipped = {name: finding.text for name, finding in found.items() if finding.mark == doctor.SKIPPED}
    assert skipped.keys() == {"examples", "workdir", "resuming", "checkpoints", "dashboards"}
    assert skipped["workdir"] == "needs --workdir" and not failed(found)


def test_the_command_prints_a_line_a_check_and_exits_2_where_one_failed(home, tmp_path):
    words = (f"--config={small.experiment_file(tmp_path, home / 'texts')}", f"--workdir={home / 'run'}",
             f"--data_dir={home / 'data'}", "--config.mesh.data=-1")
    answer = small.command("doctor", *words)
    *lines, blank, last = answer.out.splitlines()
    assert answer.code == 0 and all(line.startswith("ok ") for line in lines) and not blank
    assert last == f"{len(lines)} checks: {len(lines)} ok; the run has what it needs."
    answer = small.command("doctor", *words, "--config.mesh.tensor=3", "--config.data.files=none/*.txt")
    marks = [line.split()[:2] for line in answer.out.splitlines()]
    assert answer.code == 2 and ["FAILED", "mesh"] in marks and ["FAILED", "corpus"] in marks
    assert ["ok", "dashboards"] in marks and ["skipped", "memory"] in marks


def test_one_of_several_processes_tells_what_failed_on_its_host(home, tmp_path, monkeypatch):
    words = (f"--config={small.experiment_file(tmp_path, home / 'texts')}", f"--data_dir={home / 'data'}",
             "--config.mesh.data=-1", "--config.batch_size=32", "--config.data.files=none/*.txt")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "elsewhere:1234")  # where nobody is asked
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    assert "16 x 1 x 1 on 16 x cpu, of which 8 are here" in small.command("doctor", *words).out
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    [line] = (answer := small.command("doctor", *words)).out.splitlines()
    assert answer.code == 2 and line.startswith("process 1 on ") and "FAILED corpus data.files 'none/*.txt'" in line


# The config and the mesh


def test_a_config_that_does_not_fit_is_named_and_what_needs_none_is_checked(config, home):
    config.length = 64
    found = examined(config, home / "run", home / "data")
    assert "model.length to 64" in failed(found)["config"] and found["workdir"].mark == doctor.OK
    assert found["corpus"] == doctor.Finding(doctor.SKIPPED, "corpus", "needs config")


@pytest.mark.parametrize(("axes", "said"), [
    ({"data": 16}, "16, fsdp=1, tensor=1, and there are 8"), ({"data": 3}, "make batch_size a multiple of 3"),
    ({"data": 1, "tensor": 3}, "heads is 4, which mesh.tensor=3")])
def test_a_mesh_that_does_not_divide(config, tmp_path, axes, said):
    config.mesh.update(axes)
    found = examined(config, tmp_path / "run", tmp_path)
    assert said in failed(found)["mesh"] and failed(found).keys() == {"mesh"}
    assert found["memory"].mark == doctor.SKIPPED and found["checkpoints"].mark == doctor.OK


def test_a_mesh_of_devices_that_are_elsewhere(config, tmp_path):
    config.mesh.update({"data": 4, "fsdp": 4})
    found = examined(config, tmp_path / "run", tmp_path, devices=16, processes=2)
    assert not failed(found) and "4 x 4 x 1 on 16 x cpu, of which 8 are here" in found["mesh"].text
    found = examined(config, tmp_path / "run", tmp_path, devices=32, processes=2)
    assert "2 processes 32; use all of them" in failed(found)["mesh"]


def test_parameters_that_the_mesh_leaves_whole(config, tmp_path):
    config.mesh.update({"tensor": 2})
    config.model.vocab = 201
    found = examined(config, tmp_path / "run", tmp_path)
    assert found["network"].mark == doctor.WARNING and "(201, 32)" in found["network"].text
    config.model.vocab = 202
    assert examined(config, tmp_path / "run", tmp_path)["network"].mark == doctor.OK


# The corpus


def test_a_file_that_cannot_be_read(home, config, tmp_path):
    (tmp_path / "bad.txt").symlink_to("/proc/self/mem")  # which even root cannot read at its start
    config.data.files = f"{tmp_path}/*.txt"
    found = examined(config, tmp_path / "run", tmp_path)
    assert "bad.txt" in failed(found)["corpus"] and failed(found).keys() == {"corpus"}
    assert found["tokenizer"].mark == found["checkpoints"].mark == doctor.OK


@pytest.mark.parametrize("documents", [text.DOCUMENTS, 5])
def test_bytes_that_are_not_utf8_in_the_first_documents_or_beyond(config, tmp_path, monkeypatch, documents):
    monkeypatch.setattr(text, "DOCUMENTS", documents)
    texts = small.corpus(tmp_path / "texts", 20)
    (texts / "99.txt").write_bytes(b"caf\xe9 au lait\n")
    config.data.files = f"{texts}/*.txt"
    said = failed(examined(config, tmp_path / "run", tmp_path))["corpus"]
    assert "99.txt, line 1: byte 0xe9" in said and "iconv" in said


def test_a_corpus_that_is_read_in_part(home, config, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "DOCUMENTS", 5)
    (tmp_path / "texts").mkdir()
    for path in (home / "texts").iterdir():
        shutil.copy(path, tmp_path / "texts")
    (tmp_path / "texts/98.txt").write_text("")
    (tmp_path / "texts/99.txt").write_text(" \n\n")
    config.data.files = f"{tmp_path}/texts/*.txt"
    found = examined(config, tmp_path / "run", tmp_path)
    assert not failed(found) and "62 files" in found["corpus"].text and "0.1 of the documents" in found["splits"].text


def test_a_corpus_too_small_for_its_splits_or_a_batch(config, tmp_path):
    config.data.files = f"{small.corpus(tmp_path / 'two', 2)}/*.txt"
    assert "too few for the splits" in failed(examined(config, tmp_path / "run", tmp_path))["splits"]
    config.data.files = f"{small.corpus(tmp_path / 'three', 3)}/*.txt"
    found = examined(config, tmp_path / "run", tmp_path)["splits"]
    assert found.mark == doctor.WARNING and "lower batch_size or length" in found.text
    assert "of the text is held out, where 20% was asked for: the corpus has 3 documents" in found.text


def test_lines_of_jsonl_that_are_none(config, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "The red cat."}\n{"text": \n')
    config.data.update({"corpus": "jsonl", "files": f"{tmp_path}/*.jsonl", "validation": 0.0, "test": 0.0})
    assert "texts.jsonl, line 2 is no JSON" in failed(examined(config, tmp_path / "run", tmp_path))["corpus"]
    config.data.damaged_lines = 1
    found = examined(config, tmp_path / "run", tmp_path)["corpus"]
    assert found.mark == doctor.WARNING and "1 damaged lines" in found.text


def test_each_source_of_a_mixture_is_looked_at(home, config, tmp_path):
    config.sources = ({"name": "mine", "data": {}}, {"name": "theirs", "data": {"files": f"{tmp_path}/*.txt"}})
    found = examined(config, tmp_path / "run", tmp_path)
    assert "matches no file" in failed(found)["corpus theirs"] and found["splits mine"].mark == doctor.OK
    small.corpus(tmp_path / "texts", 20, seed=3)
    config.sources[1]["data"]["files"] = f"{tmp_path}/texts/*.txt"
    assert not failed(examined(config, tmp_path / "run", tmp_path / "data"))
    assert not (tmp_path / "data").exists()
    assembly.prepared(experiments.parse(config), tmp_path / "data")
    found = examined(config, tmp_path / "run", tmp_path / "data")
    assert {finding.mark for finding in found.values()} == {doctor.OK} and "built in" in found["store"].text


def test_evaluation_files_that_are_not_there(config, tmp_path):
    found = examined(config, tmp_path / "run", tmp_path, files=f"{tmp_path}/none*.txt")
    assert "matches no file" in failed(found)["evaluation"] and found["corpus"].mark == doctor.OK


@pytest.mark.parametrize("name", ["*array_record*", "sentences.npy"])
def test_a_damaged_store(home, config, tmp_path, name):
    shutil.copytree(home / "data", tmp_path / "data")
    [path] = next(iter((tmp_path / "data").glob("text_files*[!k]"))).glob(f"train/{name}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said = failed(examined(config, tmp_path / "run", tmp_path / "data"))["store"]
    assert str(tmp_path / "data") in said and "delete " in said


# The tokenizer


@pytest.fixture(scope="module")
def pieces(home):
    texts = [path.read_text() for path in sorted((home / "texts").iterdir())]
    return tokenizers.train(tokenizers.Config(vocab_size=200), lambda: iter(texts)).pieces


@pytest.mark.parametrize(("change", "said"), [
    (lambda p: [*p, p[20]], "stands on line 21 already"),
    (lambda p: [x for x in p if x != "[MASK]"], "[MASK] on none of its"),
    (lambda p: [*p[:7], "", *p[7:]], "line 8 is empty"),
    (lambda p: [x.title() if x.isalpha() else x for x in p], "tokenizer.lowercase=False"),
    (lambda p: None, "cannot read the vocabulary"),
])
def test_a_vocabulary_that_will_not_do(config, pieces, tmp_path, change, said):
    path, found = tmp_path / "vocab.txt", change(pieces)
    if found:
        path.write_text("".join(f"{piece}\n" for piece in found))
    config.tokenizer.vocab_file = str(path)
    assert said in failed(examined(config, tmp_path / "run", tmp_path))["tokenizer"]


def test_a_table_smaller_than_the_vocabulary(config, tmp_path):
    config.model.vocab = 100
    said = failed(examined(config, tmp_path / "run", tmp_path))["tokenizer"]
    assert "200 ids, and the model's table 100 rows; set model.vocab to 200" in said


def test_a_table_much_larger_than_the_vocabulary_is_told():
    network = PRESETS["bert_tiny"].config
    assert "30,522 rows, and the tokenizer 2,000 ids" in assembly.idle_rows(network, 2000)
    assert not assembly.idle_rows(network, 30000)


def test_a_vocabulary_of_another_language(config, pieces, tmp_path):
    without_b = [piece for piece in pieces if "b" not in piece]  # one word in ten has one
    for kept, mark, said in ((pieces[:5], doctor.FAILED, "choose another"), (without_b, doctor.WARNING, "is that")):
        (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in kept))
        config.tokenizer.vocab_file = str(tmp_path / "vocab.txt")
        found = examined(config, tmp_path / "run", tmp_path)["examples"]
        assert found.mark == mark and "[UNK]" in found.text and said in found.text


def test_a_sample_text_that_asks_nothing(home, config):
    config.samples = ("No mask.",)
    assert "write [MASK]" in failed(examined(config, home / "run", home / "data"))["tokenizer"]


# Room


def test_disks_that_are_too_small(config, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10**6, 10**6 - 5000, 5000))
    said = failed(examined(config, tmp_path / "run", tmp_path / "data"))
    assert said.keys() == {"checkpoints", "data"}
    for name, flag in (("checkpoints", "--workdir"), ("data", "--data_dir")):
        assert f"GB more in {tmp_path}" in said[name] and "5e-06 GB are free" in said[name] and flag in said[name]


def test_stores_and_checkpoints_share_a_disk(config, tmp_path, monkeypatch):
    """There is room for either."""
    needed = machine.checkpoints
    usage = namedtuple("usage", "total used free")
    seen = []
    monkeypatch.setattr(machine, "checkpoints", lambda *given: seen.append(needed(*given)) or seen[-1])
    examined(config, tmp_path / "run", tmp_path / "data")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(0, 0, seen[0].value.bytes + 100))
    assert failed(examined(config, tmp_path / "run", tmp_path / "data")).keys() == {"data"}


def test_what_checkpoints_are_said_to_need_is_what_they_take(home, config):
    found = examined(config, home / "run", home / "data")
    [path] = [path for path in (home / "run/checkpoints").iterdir() if path.name == "12"]
    taken = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    said = float(found["checkpoints"].text.split(" of ")[1].split(" GB")[0]) * 1e9
    assert said <= taken <= 1.5 * said


def test_memory_that_is_too_small(config, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "host_memory", lambda: 10**5)
    said = failed(examined(config, tmp_path / "run", tmp_path))["memory"]
    assert "0.0001 GB" in said and "activations are not counted" in said and "mesh.fsdp" in said


def test_memory_of_an_accelerator_that_is_too_small_or_hardly_enough(config, tmp_path, monkeypatch):
    device = SimpleNamespace(platform="gpu", device_kind="H1", memory_stats=lambda: {"bytes_limit": limit})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    for limit, mark in ((10**5, doctor.FAILED), (5 * 10**5, doctor.WARNING), (10**9, doctor.OK)):  # noqa: B007
        found = examined(config, None, tmp_path)["memory"]
        assert found.mark == mark and "each H1 has" in found.text


def test_cutting_parameters_makes_them_smaller_on_each_device(config, tmp_path):
    def needed(**axes) -> float:
        config.mesh.update({"data": 1, **axes})
        return float(examined(config, tmp_path / "run", tmp_path)["memory"].text.split("take ")[1].split(" GB")[0])

    assert needed(fsdp=8) < 0.2 * needed(fsdp=1)


# The workdir


def test_a_workdir_that_another_run_holds(home, config):
    with workdir.lock(home / "run"):
        said = failed(examined(config, home / "run", home / "data"))
    assert said.keys() == {"workdir"} and "in use by process" in said["workdir"] and "wait" in said["workdir"]


def test_a_workdir_and_a_data_directory_that_cannot_be(config, tmp_path):
    (tmp_path / "file").write_text("")
    said = failed(examined(config, tmp_path / "file/run", tmp_path / "file/data"))
    assert "give another --workdir" in said["workdir"] and "give another --data_dir" in said["store"]


def test_damaged_checkpoints_are_listed_and_refused_where_none_is_left(home, config, copied):
    *_, before, last = Checkpoints(copied / "checkpoints").steps()
    spoil(max((copied / f"checkpoints/{last}").rglob("d/*"), key=lambda path: path.stat().st_size))
    found = examined(config, copied, home / "data")["resuming"]
    assert found.mark == doctor.WARNING and f"goes on from step {before}" in found.text
    assert f"checkpoint {last} is damaged" in found.text and "SHA-256" in found.text
    for path in (copied / "checkpoints").glob("*/manifest.json"):
        path.unlink()
    assert "none verifies: put an intact copy" in failed(examined(config, copied, home / "data"))["resuming"]


def test_a_run_of_another_config_or_corpus(home, config, tmp_path):
    config.seed = 1
    config.checkpoint.keep = 7  # may differ
    said = failed(examined(config, home / "run", home / "data"))["resuming"]
    assert "config.seed: 0 -> 1" in said and "another --workdir" in said and "keep" not in said
    other = small.config(small.corpus(tmp_path / "texts", 40, seed=5))
    assembly.prepared(experiments.parse(other), tmp_path / "data")
    assert "data.train: " in failed(examined(other, home / "run", tmp_path / "data"))["resuming"]


def test_a_damaged_record_of_the_run(home, config, copied):
    (copied / "config.json").write_text("{")
    assert "is damaged" in failed(examined(config, copied, home / "data"))["resuming"]


def test_where_parameters_start(home, config, copied, tmp_path):
    config.init = "/nowhere/run"
    assert "no directory" in failed(examined(config, tmp_path / "run", home / "data"))["init"]
    config.init = str(home / "run")
    found = examined(config, tmp_path / "new", home / "data")["init"]
    assert found.mark == doctor.OK and "step 12: " in found.text and " 0 missing" in found.text
    former = copied / "config.json"
    former.write_text(former.read_text().replace('"init": ""', f'"init": "{config.init}"'))
    assert "not looked at" in examined(config, copied, home / "data")["init"].text
    config.model.width = 64
    assert "give the model the sizes" in failed(examined(config, tmp_path / "new", home / "data"))["init"]


# Dashboards


def test_weights_and_biases(home, config, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    config.log.wandb = "project"

    def found():
        return examined(config, tmp_path / "run", tmp_path)["dashboards"]

    with monkeypatch.context() as missing:
        missing.setattr("importlib.util.find_spec", lambda name: None)
        assert found().mark == doctor.FAILED and "pip install" in found().text
    (tmp_path / "wandb.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert found().mark == doctor.FAILED and "WANDB_API_KEY" in found().text
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password secret\n")
        assert found() == doctor.Finding(doctor.OK, "dashboards", "metrics.jsonl, Weights & Biases at 127.0.0.1")
    assert found().mark == doctor.WARNING and "WANDB_MODE=offline" in found().text  # nobody listens any more
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert found().mark == doctor.OK and "offline" in found().text


def test_a_dashboard_that_cannot_be_written(config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/tensorboard").write_text("")
    config.log.tensorboard = True
    assert "tensorboard is not a directory" in failed(examined(config, tmp_path / "run", tmp_path))["dashboards"]
