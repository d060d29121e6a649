"""CoVe from end to end: a translation LSTM over fixed word vectors, and its layers as features of a classifier."""

import contextlib
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import lmrep
from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.storage.checkpoints import Checkpoints
from tests import small
from tests.tasks import tiny

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TABLE = "encoder/source_embedding/token"
QUIET = {"log.tensorboard": False, "log.report": False}


def values(directory, step):
    with contextlib.closing(Checkpoints(directory / "checkpoints")) as checkpoints:
        return flatten(checkpoints.read(step, "params")[0])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A translation run, `mt`, over word vectors that lack the last of WORDS."""
    home, draw = tmp_path_factory.mktemp("cove"), random.Random(0)
    texts = [tiny.sentence(draw, draw.randint(2, 4)) for _ in range(16)]
    for suffix, lines in (("en", texts), ("de", [text.upper() for text in texts])):
        (home / f"train.{suffix}").write_text("\n".join(lines) + "\n")
    vectors = np.random.default_rng(0).normal(size=(len(tiny.WORDS) - 1, 6))
    (home / "glove.txt").write_text("".join(
        f"{word} {' '.join(f'{x:.3f}' for x in row)}\n" for word, row in zip(tiny.WORDS, vectors, strict=False)))
    lmrep.train(config(home), home / "mt")
    return home


def config(home):
    c = loading.load(ROOT / "experiments/cove.py", f"size=tiny,vectors={home / 'glove.txt'}")
    c.update_from_flattened_dict({
        **QUIET, "data.train": str(home / "train.en"), "data.validation": str(home / "train.en"), "model.embedding": 6,
        "model.width": 8, "model.layers": 2, "batch_size": 8, "steps": 2, "length": 8, "objective.max_target": 6,
        "checkpoint.every": 1, "checkpoint.keep": 9, "optimizer.schedule.name": "plateau", "evaluation.every": 1})
    return c


def test_the_table_is_that_of_the_file_and_stays_so(home):
    found, run = values(home / "mt", 2), lmrep.load(home / "mt")
    table, tokens = found[TABLE], run.tokenizer.tokens
    lines = [line.split() for line in (home / "glove.txt").read_text().splitlines()]
    for word, *numbers in lines:
        np.testing.assert_array_equal(table[tokens.index(word)], np.float32(numbers))
    others = [i for i, token in enumerate(tokens) if token not in {line[0] for line in lines}]
    assert tiny.WORDS[-1] in [tokens[i] for i in others] and not table[others].any()
    assert found["encoder/embedding/token"].any()


def test_a_resumed_run_needs_no_vectors_and_is_the_same(home, tmp_path):
    shutil.copytree(home / "mt", tmp_path / "mt")
    shutil.rmtree(tmp_path / "mt/checkpoints/2")
    (home / "glove.txt").rename(home / "away.txt")
    try:
        lmrep.train(config(home), tmp_path / "mt")
    finally:
        (home / "away.txt").rename(home / "glove.txt")
    expected, found = values(home / "mt", 2), values(tmp_path / "mt", 2)
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def test_layers_are_the_embeddings_and_those_of_the_lstm(home):
    run = lmrep.load(home / "mt")
    text = run.encode(["cat dog"], layers=0)[0]
    table = values(home / "mt", 2)[TABLE]
    np.testing.assert_array_equal(text.hidden[0], table[text.ids])
    first, last = run.encode(["cat dog"], layers="1,2")[0].hidden
    assert first.shape == last.shape == (len(text.ids), 8) and not np.allclose(first, last)
    with pytest.raises(UserError, match=r"different widths \(0: 6, 1: 8, 2: 8\).*concat:0,1,2"):
        run.encode(["cat dog"], layers="all")


def test_a_classifier_reads_the_vectors_and_predicts_what_it_was_validated_with(home):
    draw = random.Random(1)
    records = [{"text": tiny.sentence(draw, 3), "text2": tiny.sentence(draw, 2), "label": draw.choice("ab")}
               for _ in range(12)]
    data = tiny.write(home / "pairs.jsonl", records)
    choices = f"mesh=1x1x1,features={home / 'mt'},vectors={home / 'glove.txt'},network=bcn"
    outcome = lmrep.train(f"{ROOT / 'experiments/tasks/classify.py'}:{choices}", home / "bcn", **QUIET, **{
        "data.train": str(data), "data.validation": str(data), "objective.features.layers": "mix:1,2",
        "objective.bcn.width": 4, "objective.bcn.maxout": (4,), "batch_size": 4, "length": 16, "epochs": 2.0})
    run = lmrep.load(home / "bcn")
    assert run.params["shared"]["0"]["mean"].any()
    trained = {line["step"]: line["loss"] for line in small.lines(home / "bcn", "validation")}
    assert lmrep.evaluate(home / "bcn")["loss"] == pytest.approx(trained[outcome.best_step], rel=1e-5)


@pytest.mark.parametrize(("path", "text", "message"), [
    ("encoder/source", "cat 1 2 3 4 5 6\n", "no table of tokens"),
    (TABLE, "cat 1 2\n", "vectors of 2 numbers"),
    (TABLE, "unheard 1 2 3 4 5 6\n", "none of the tokenizer's"),
])
def test_vectors_that_do_not_fit_are_refused_before_anything_is_written(home, tmp_path, path, text, message):
    (tmp_path / "vectors.txt").write_text(text)
    c = config(home)
    c.init_vectors = {path: str(tmp_path / "vectors.txt")}
    c.optimizer.multipliers = {}
    with pytest.raises(UserError, match=message):
        lmrep.train(c, tmp_path / "run")
    assert not (tmp_path / "run/config.json").exists()
