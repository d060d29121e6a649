"""Whole commands, with what new users get wrong: what is refused, what is told, what is left untouched."""

import json
import os
import shutil
from pathlib import Path

import jax
import pytest

from tests import small

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus in `texts`, the experiment file, and a finished run in `run`."""
    home = tmp_path_factory.mktemp("cli")
    small.experiment_file(home, small.corpus(home / "texts"))
    answer = small.command(*train(home, home / "run", "--config.samples=The [MASK] cat sees the old dog."))
    assert answer.code == 0, answer
    (home / "said").write_text(answer.out)
    return home


def train(home, workdir, *words, part=""):
    """The command line of the small experiment."""
    return ["train", f"--config={home}/small.py{part}", f"--workdir={workdir}", f"--data_dir={home}/data", *words]


@pytest.fixture
def copy(home, tmp_path):
    """The finished run, to spoil."""
    return shutil.copytree(home / "run", tmp_path / "run")


@pytest.fixture
def compilations():
    """The programs that a test compiles, as a list that grows."""
    found = []

    def listen(event, seconds, **_):
        if event == COMPILED:
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def refused(answer, *parts, code=2):
    """Checks that a command gave one short message, with these parts in it, and no traceback."""
    assert answer.code == code, answer
    message = answer.err[answer.err.index("lmrep: error: "):]
    assert message.count("\n") <= 3 and "Traceback" not in answer.err
    for part in parts:
        assert part in message, message


# Bad configs, refused before anything is compiled or written

BAD = {
    "misspelt field": (["--config.optimizer.learning_rat=1"], "optimizer has no field 'learning_rat'; did you mean 'learning_rate'?"),
    "misspelt part": ({"part": ":formt=packed"}, "no part 'formt'; did you mean 'format'?"),
    "unknown choice": ({"part": ":format=paked"}, "format is 'paked'; expected one of packed, segment_pair"),
    "unknown mesh": ({"part": ":mesh=4x4"}, "mesh is '4x4'; expected data, fsdp, or sizes"),
    "wrong type": (["--config.steps=many"], "config.steps cannot be 'many'; expected a whole number"),
    "not a number": (["--config.optimizer.learning_rate=nan"], "learning_rate cannot be 'nan'; expected a number"),
    "infinite": (["--config.optimizer.weight_decay=1e999"], "weight_decay is inf; expected a finite number"),
    "negative rate": (["--config.optimizer.learning_rate=-1e-3"], "learning_rate is -0.001; expected above 0"),
    "negative dropout": (["--config.model.dropout=-0.1"], "dropout is -0.1; expected at least 0"),
    "no steps": (["--config.steps=0"], "config.steps is 0; expected at least 1"),
    "batch on mesh": (["--config.batch_size=12", "--config.mesh.data=8"], "batch_size is 12", "8 does not divide"),
    "microbatches": (["--config.microbatches=3"], "batch_size is 16, which 3 microbatches do not divide"),
    "heads on mesh": (["--config.mesh.tensor=8"], "model.heads is 4, which mesh.tensor=8 does not divide", "1, 2, 4"),
    "heads": (["--config.model.heads=5"], "model.width is 32, which model.heads=5 does not divide"),
    "devices": (["--config.mesh.data=16"], "mesh is data=16", "there are 8 device(s)"),
    "vocabulary": (["--config.model.vocab=100"], "the tokenizer has 200 ids, and the model's table 100 rows"),
    "pairing": (["--config.objective.sentence_pair=True"], "needs pair_label, which format 'packed' does not give",
                "formats that do: segment_pair"),
    "objective": (["--config.objective.name=maskd"], "objective.name is 'maskd'", "did you mean 'masked'?"),
    "length": (["--config.length=64"], "length is 64, and the model has positions for 32"),
    "warm-up": (["--config.optimizer.schedule.warmup=13"], "warmup is 13, more than the 12 steps there are"),
    "shares": (["--config.objective.mask=0.5"], "mask + keep + random is 0.7", "must add to 1"),
    "no such file": ({"file": "smal.py"}, "there is no experiment file", "did you mean 'small.py'?"),
    "syntax": ({"file": "syntax.py"}, "syntax.py:2: SyntaxError"),
    "fails": ({"file": "fails.py"}, "fails.py:2: ZeroDivisionError"),
    "no files": (["--config.data.files=nowhere/*.txt"], "data.files 'nowhere/*.txt' matches no file"),
    "one document": (["--config.data.files={home}/one/*.txt"], "the corpus has 1 document: too few for the splits"),
    "little text": (["--config.batch_size=4096"], "examples of length 32, fewer than batch_size=4096; give more text"),
    "latin-1": (["--config.data.files={home}/latin/*.txt"], "latin/a.txt, line 2: byte 0xe9 is not UTF-8 text"),
    "no vocabulary": (["--config.tokenizer.vocab_file={home}/none.txt"], "cannot read the vocabulary", "none.txt"),
    "not a vocabulary": (["--config.tokenizer.vocab_file={home}/texts/00.txt"], "expected"),
    "another language": (["--config.tokenizer.vocab_file={home}/vocab.txt"], "of the corpus is [UNK] to"),
    "sample": (["--config.samples=no mask"], "there is no [MASK] in 'no mask'"),
    "long sample": (["--config.samples=" + "cat " * 40 + "[MASK]"], "has 43 tokens; the model takes 32 at most"),
    "word": (["steps=3"], "lmrep train has no use for 'steps=3'; a field of the config is set by --config.FIELD=VALUE"),
    "data_dir": (["--data_dir={home}/small.py"], "cannot write to the data directory"),
    "Weights & Biases": (["--config.log.wandb=mine"], "pip install 'lmrep[wandb]'"),
}


@pytest.fixture(scope="module")
def spoilt(home):
    """`home`, with files that will not do."""
    for name, content in {
        "one/a.txt": b"The red cat.", "latin/a.txt": "The red cat.\nUn caf\xe9.\n".encode("latin-1"),
        "syntax.py": b"\ndef get_config(:\n", "fails.py": b"def get_config(argument=''):\n    1 / 0\n",
        "vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "а", "б"]).encode(),
    }.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(content)
    return home


@pytest.mark.parametrize("case", BAD)
def test_a_bad_config_is_refused_before_anything_is_compiled_or_written(spoilt, tmp_path, compilations, monkeypatch, case):
    what, *parts = BAD[case]
    words = [word.format(home=spoilt) for word in what] if isinstance(what, list) else []
    line = train(spoilt, tmp_path / "run", *words, part=what.get("part", "") if isinstance(what, dict) else "")
    if isinstance(what, dict) and "file" in what:
        line[1] = f"--config={spoilt}/{what['file']}"
    if case == "Weights & Biases":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(small.command(*line), *parts)
    assert not (tmp_path / "run").exists() and not compilations


@pytest.mark.parametrize("place", ["small.py", "small.py/run", "texts/00.txt/deep/run"])
def test_a_workdir_that_cannot_be_is_refused_before_the_data_are_read(home, tmp_path, place):
    line = [*train(home, home / place), f"--data_dir={tmp_path}/data"]
    refused(small.command(*line), f"the workdir {home / place} cannot be used", "is not a directory; give another")
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_workdir_without_permission_is_refused(home, tmp_path):
    tmp_path.chmod(0o500)
    refused(small.command(*train(home, tmp_path / "run")), "may not be written to; give another --workdir")
