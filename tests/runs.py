"""Six small trained runs that the whole suite shares, made once for all workers when a test first asks for one.

`folder(NAME)` is the folder of a run, which no test changes: the run is in `run`, its data lie beside it. A test that
writes into the run takes a copy (`copy(NAME, directory)`), whose config still names the shared data.
"""

import contextlib
import fcntl
import functools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import lmrep
from tests import small

LABELS = ("neg", "pos")
TEXT_TO_TEXT = {"model__head_width": 0, "model__max_length": 0, "objective__max_target": 8}


def labelled_texts(count: int, seed: int, labels=LABELS) -> list[dict]:
    """Texts of three words and one that decides the class."""
    from tests.tasks import tiny

    draw, records = random.Random(seed), []
    for _ in range(count):
        words, label = tiny.sentence(draw, 3).split(), draw.randrange(2)
        words.insert(draw.randrange(4), ("bad", "good")[label])
        records.append({"text": " ".join(words), "label": labels[label]})
    return records


def _masked(home: Path) -> None:
    """12 steps of a BERT, with checkpoints 4, 8 and 12; `small.py` is its config file, `printed` what train printed."""
    small.experiment_file(home, small.corpus(home / "texts"))
    answer = small.command("train", f"--config={home}/small.py", f"--workdir={home}/run", f"--data_dir={home}/data",
                           f"--config.samples={small.SAMPLE}")
    assert answer.code == 0, answer
    (home / "printed").write_text(answer.out)


def _causal(home: Path) -> None:
    """150 steps of a Transformer of one layer, which learn the grammar of `small.corpus`."""
    config = small.config(small.corpus(home / "texts"), "causal")
    config.steps = config.checkpoint.every = config.evaluation.every = 150
    config.optimizer.learning_rate, config.model.layers = 5e-3, 1
    lmrep.train(config, home / "run", data_dir=home / "data")


def _recurrent(home: Path) -> None:
    """12 steps of an LSTM whose state is carried from batch to batch, with checkpoints 4, 8 and 12."""
    from lmrep.config import loading

    page = Path(__file__).parents[1] / "experiments/lstm_lm.py"
    config = loading.load(page, "size=tiny,data=files,mesh=1x1x1")
    config.model.update({"width": 32})
    config.update_from_flattened_dict({
        "data.files": f"{small.corpus(home / 'texts')}/*.txt", "data.documents": "file", "data.validation": 0.1,
        "data.test": 0.1, "tokenizer.vocab_size": 300, "model.vocab": 0, "length": 16, "batch_size": 8, "steps": 12,
        "checkpoint.every": 4, "checkpoint.keep_best": 0, "evaluation.every": 6, "log.every": 1,
        "log.tensorboard": False, "log.report": False})
    lmrep.train(config, home / "run", data_dir=home / "data")


def _classification(home: Path) -> None:
    """Three epochs (24 steps) on 120 texts of two classes, validated every 4 steps; `others.jsonl` has other labels."""
    from tests.tasks import tiny

    for name, count, seed, labels in (("train", 120, 0, LABELS), ("dev", 44, 1, LABELS),
                                      ("others", 120, 0, ("no", "yes"))):
        tiny.write(home / f"{name}.jsonl", labelled_texts(count, seed, labels))
    lmrep.train(tiny.config("classification", home / "train.jsonl", home / "dev.jsonl", epochs=3.0, checkpoint__every=0,
                            evaluation__every=4, checkpoint__keep=2), home / "run")


def _tagging(home: Path) -> None:
    """Eight epochs on 120 sentences of persons and cities (`tests/tasks/tags.py`); `test.conll` lacks tags."""
    from tests.tasks import tags

    files = {split: tags.write(home / f"{split}.conll", tags.sentences(count, seed))
             for seed, (split, count) in enumerate((("train", 120), ("validation", 20)))}
    (home / "test.conll").write_text("Ann\nvisits\nOslo\n.\n\nDora\n.\n")
    data = {f"data.{split}": str(path) for split, path in {**files, "test": home / "test.conll"}.items()}
    lmrep.train("experiments/tasks/tag.py:size=tiny,mesh=1x1x1", home / "run", **data, **{
        "length": 16, "model.max_length": 16, "model.width": 32, "model.heads": 4, "model.mlp": 64, "format.stride": 8,
        "model.layers": 1, "tokenizer.vocab_size": 200, "epochs": 8.0, "batch_size": 16,
        "optimizer.learning_rate": 2e-2, "log.report": False, "log.tensorboard": False})


def _text_to_text(home: Path) -> None:
    """Five epochs of an encoder-decoder that copies texts of one to three words."""
    from tests.tasks import tiny

    draw = random.Random(0)
    for name, count in (("train", 160), ("dev", 24)):
        texts = [tiny.sentence(draw, draw.randint(1, 3)) for _ in range(count)]
        tiny.write(home / f"{name}.jsonl", [{"text": text, "target": text} for text in texts])
    lmrep.train(tiny.config("text_to_text", home / "train.jsonl", home / "dev.jsonl", epochs=5.0,
                            evaluation__every=25, objective__metrics=("chrf",), **TEXT_TO_TEXT), home / "run")


RUNS: dict[str, Callable[[Path], None]] = {
    "masked": _masked, "causal": _causal, "recurrent": _recurrent, "classification": _classification,
    "tagging": _tagging, "text_to_text": _text_to_text}
base = Path()  # set by conftest.py: a folder that all workers of this session share


@functools.cache
def folder(name: str) -> Path:
    """The folder of a shared run, which is not to be changed."""
    return shared(name, RUNS[name])


def shared(name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name`, filled by `make`, once for all workers."""
    home = base / name
    with open(f"{home}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "made").exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            with contextlib.chdir(Path(__file__).parents[1]):
                make(home)
            (home / "made").touch()
    return home


def copy(name: str, directory: Path) -> Path:
    """Copies a shared run to `directory` (which does not exist), and returns the copied workdir."""
    return Path(shutil.copytree(folder(name) / "run", directory, ignore=shutil.ignore_patterns(".lock")))


def workers_folder(basetemp: Path) -> Path:
    """A folder that all workers share, beside or in pytest's temporary folder."""
    directory = (basetemp.parent if "PYTEST_XDIST_WORKER" in os.environ else basetemp) / "shared_runs"
    directory.mkdir(exist_ok=True)
    return directory
