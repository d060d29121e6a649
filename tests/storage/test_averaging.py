"""The mean of a run's checkpoints as a workdir, and one batch learned by heart."""

import contextlib
import itertools
import json

import numpy as np
import pytest

import lmrep
from lmrep.core.params import flatten
from lmrep.storage.checkpoints import Checkpoints
from tests import small


def train(home, workdir, *words):
    return small.command("train", f"--config={home}/small.py", f"--workdir={workdir}", f"--data_dir={home}/data",
                         *words)


def params(workdir, step):
    with contextlib.closing(Checkpoints(workdir / "checkpoints")) as checkpoints:
        return flatten(checkpoints.read(step, "params")[0])


@pytest.mark.slow
@pytest.mark.parametrize(("words", "steps"), [(["--last=2"], (8, 12)), (["--steps=12,4"], (4, 12)), ([], (4, 8, 12))])
def test_averaged_checkpoint_is_a_usable_workdir(small_home, tmp_path, words, steps):
    answer = small.command("average", small_home / "run", tmp_path / "mean", *words)
    assert answer.code == 0 and f"the mean of checkpoints {', '.join(map(str, steps))} of" in answer.out, answer
    averaged = [params(small_home / "run", step) for step in steps]
    for path, value in params(tmp_path / "mean", steps[-1]).items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, np.mean([values[path] for values in averaged], axis=0), rtol=1e-5, atol=1e-7)
    if not words:
        assert "loss" in lmrep.evaluate(tmp_path / "mean", data_dir=small_home / "data")
        assert len(lmrep.load(tmp_path / "mean").fill_masks(["The [MASK] cat."])[0]) == 1


@pytest.mark.slow
def test_a_run_starts_from_an_averaged_workdir(small_home, tmp_path):
    assert small.command("average", small_home / "run", tmp_path / "mean").code == 0
    answer = train(small_home, tmp_path / "new", f"--config.init={tmp_path}/mean", "--config.steps=2")
    assert answer.code == 0, answer


@pytest.mark.slow
def test_overfitting_one_batch_reaches_a_low_loss(small_home, tmp_path):
    """The same examples at every step, none of them validated; the loss falls far below what all the data allow."""
    words = ["--config.overfit=1", "--config.steps=200", "--config.optimizer.learning_rate=3e-3",
             "--config.checkpoint.every=100", "--config.optimizer.schedule.warmup=20", "--config.batch_size=1",
             "--config.seed=1"]
    answer = train(small_home, tmp_path / "run", *words)
    assert answer.code == 0, answer
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {line["split"] for line in lines} == {"train"}
    assert len({line["tokens"] - before["tokens"] for before, line in itertools.pairwise(lines)}) == 1
    losses = [line["loss"] for line in lines]
    assert losses[0] > 4 and np.mean(losses[-20:]) < 0.1, losses[::25]
