"""Dai and Le (2015) from end to end: a sequence autoencoder, and a classifier that starts from it."""

import contextlib
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import lmrep
from lmrep.core.params import flatten
from lmrep.storage.checkpoints import Checkpoints
from tests import small
from tests.tasks import tiny

pytestmark = pytest.mark.slow

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
QUIET = {"log.tensorboard": False, "log.report": False, "log.every": 1}


def values(directory, step):
    with contextlib.closing(Checkpoints(directory / "checkpoints")) as checkpoints:
        return flatten(checkpoints.read(step, "params")[0])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`sa`, an autoencoder, and `clf`, a classifier from it, with everything that is drawn in training."""
    home, draw = tmp_path_factory.mktemp("dai_le"), random.Random(0)
    small.corpus(home / "texts")
    records = [{"text": tiny.sentence(draw, draw.randint(2, 9)), "label": draw.choice("ab")} for _ in range(16)]
    tiny.write(home / "train.jsonl", records)
    autoencoder(home, home / "sa")
    classifier(home, home / "clf")
    return home


def autoencoder(home, workdir):
    lmrep.train(f"{EXPERIMENTS / 'dai_le.py'}:size=tiny,data=files,mesh=1x1x1", workdir, **QUIET, **{
        "data.files": f"{home / 'texts'}/*.txt", "data.documents": "file", "data.validation": 0.1,
        "tokenizer.vocab_size": 64, "model.width": 16, "model.embedding": 8, "model.dropout": 0.1, "length": 24,
        "objective.chunk": 20, "batch_size": 8, "steps": 4, "checkpoint.every": 2, "checkpoint.keep": 9,
        "checkpoint.keep_best": 0, "evaluation.every": 2})


def classifier(home, workdir):
    choices = "set=rotten_tomatoes,mesh=1x1x1,linear_gain=yes,word_dropout=0.2,joint=sequence_autoencoder"
    lmrep.train(f"{EXPERIMENTS / 'tasks/dai_le.py'}:{choices},init={home / 'sa'}", workdir, **QUIET, **{
        "data.train": str(home / "train.jsonl"), "data.validation": str(home / "train.jsonl"),
        "objective.adversarial.weight": 1.0, "objective.adversarial.virtual": 1.0, "batch_size": 8, "steps": 4,
        "checkpoint.every": 2, "checkpoint.keep": 9, "checkpoint.keep_best": 0, "checkpoint.load": "newest",
        "evaluation.every": 2, "evaluation.patience": 0})


@pytest.mark.parametrize(("name", "train"), [("sa", autoencoder), ("clf", classifier)])
def test_a_resumed_run_ends_as_an_uninterrupted_one(home, tmp_path, name, train):
    shutil.copytree(home / name, tmp_path / name)
    shutil.rmtree(tmp_path / name / "checkpoints/4")
    train(home, tmp_path / name)
    expected, found = values(home / name, 4), values(tmp_path / name, 4)
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def test_a_text_is_written_again(home):
    result = small.command("predict", f"--workdir={home / 'sa'}", "The red cat sees the old dog.")
    assert result.code == 0 and "The red cat sees the old dog. => " in result.out, result


def test_the_classifier_starts_from_table_and_lstm_and_measures_its_losses(home):
    started, pretrained = values(home / "clf", 2), values(home / "sa", 4)
    assert {path for path in pretrained if path.startswith("encoder/")} <= started.keys()
    assert started["objective/classification/dense/kernel"].shape == (16, 512)
    last = small.lines(home / "clf", "train")[-1]
    assert {"adversarial_loss", "virtual_adversarial_loss", "reconstruction_loss"} <= last.keys()
    # the first step moves no parameter by more than the learning rate
    table = "encoder/embedding/token"
    assert np.abs(started[table] - pretrained[table]).max() < 0.01
