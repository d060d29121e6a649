"""Checks that fail: a change of the config, and by the check that fails, what its message names. No other check fails.
`test_labelled.py` has tasks, `test_machine.py` disks and memory, `test_run.py` what depends on a run."""

import pytest

from lmrep import doctor
from lmrep.data import tokenizers
from lmrep.doctor import text
from tests import small
from tests.doctor import examined, failed


def write(path, content=""):
    path.write_text(content)


def texts_of(content):
    def change(config, folder):
        config.data.files = f"{small.corpus(folder / 'texts', 20)}/*.txt"
        (folder / "texts/99.txt").write_bytes(content)
    return change


def unreadable(config, folder):
    (folder / "bad.txt").symlink_to("/proc/self/mem")  # which even root cannot read at its start
    config.data.files = f"{folder}/*.txt"


def damaged_line(config, folder):
    write(folder / "texts.jsonl", '{"text": "The red cat."}\n{"text": \n')
    config.data.update({"corpus": "jsonl", "files": f"{folder}/*.jsonl", "validation": 0.0, "test": 0.0})


def blocked(config, folder):
    write(folder / "run")
    write(folder / "data")
    config.log.tensorboard = True


def blocked_log(config, folder):
    (folder / "run").mkdir()
    write(folder / "run/tensorboard")
    config.log.tensorboard = True


def fields(**changes):
    return lambda config, folder: config.update_from_flattened_dict(
        {name.replace("__", "."): value for name, value in changes.items()})


CHANGES = {
    "more devices than there are": (fields(mesh__data=16), {"mesh": ["data=16", "there are 8"]}),
    "a batch that the mesh does not divide": (fields(mesh__data=3), {"mesh": ["batch_size", "3"]}),
    "heads that the mesh does not divide": (
        fields(mesh__data=1, mesh__tensor=3), {"mesh": ["4 heads", "mesh.tensor=3"]}),
    "sequences longer than the network": (fields(length=64), {"config": ["model.max_length to 64"]}),
    "no such checkpoint": (fields(init="/nowhere/run"), {"init": ["/nowhere/run"]}),
    "a table smaller than the vocabulary": (fields(model__vocab=100), {"tokenizer": ["200 ids", "model.vocab to 200"]}),
    "no such vocabulary": (
        fields(tokenizer__vocab_file="/nowhere/vocab.txt"), {"tokenizer": ["/nowhere/vocab.txt"], "store": []}),
    "an unreadable file": (unreadable, {"corpus": ["bad.txt"]}),
    "not UTF-8": (texts_of(b"caf\xe9 au lait\n"), {"corpus": ["99.txt, line 1", "0xe9"]}),
    "a damaged line": (damaged_line, {"corpus": ["texts.jsonl, line 2"]}),
    "files in place of folders": (blocked, {"workdir": ["--workdir"], "store": ["--data_dir"]}),
    "a file in place of the log": (blocked_log, {"dashboards": ["tensorboard"]}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_checks_that_fail(config, tmp_path, change):
    make, expected = CHANGES[change]
    make(config, tmp_path)
    found = examined(config, tmp_path / "run", tmp_path / "data")
    failures = failed(found)
    assert failures.keys() == expected.keys()
    assert all(name in failures[check] for check, names in expected.items() for name in names), failures
    if "mesh" in expected:
        assert found["memory"].mark == doctor.SKIPPED and found["checkpoints"].mark == doctor.OK
    if "config" in expected:
        assert found["corpus"] == doctor.Finding(doctor.SKIPPED, "corpus", "needs config")


def test_invalid_utf8_after_the_sample(config, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "DOCUMENTS", 5)
    CHANGES["not UTF-8"][0](config, tmp_path)
    assert "99.txt, line 1" in failed(examined(config, tmp_path / "run", tmp_path))["corpus"]


@pytest.mark.parametrize(("change", "named"), [
    (lambda tokens: [*tokens, tokens[20]], "line 21"),
    (lambda tokens: [token for token in tokens if token != "[MASK]"], "[MASK]"),
    (lambda tokens: [*tokens[:7], "", *tokens[7:]], "line 8"),
    (lambda tokens: [token.title() if token.isalpha() else token for token in tokens], "tokenizer.lowercase=False"),
], ids=["twice", "no mask", "empty", "upper case"])
def test_vocabularies(home, config, tmp_path, change, named):
    texts = [path.read_text() for path in sorted((home / "texts").iterdir())]
    tokens = change(tokenizers.train(tokenizers.Config(vocab_size=200), lambda: iter(texts)).tokens)
    write(tmp_path / "vocab.txt", "".join(f"{token}\n" for token in tokens))
    config.tokenizer.vocab_file = str(tmp_path / "vocab.txt")
    assert named in failed(examined(config, tmp_path / "run", tmp_path))["tokenizer"]


def test_evaluation_files(config, tmp_path):
    found = failed(examined(config, tmp_path / "run", tmp_path, files=f"{tmp_path}/none*.txt"))
    assert found.keys() == {"evaluation"} and f"{tmp_path}/none*.txt" in found["evaluation"]
