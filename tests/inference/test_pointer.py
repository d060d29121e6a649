"""The cache pointer: perplexity against a naive computation over the whole text, and the memory that it takes."""

import itertools
import json

import jax
import numpy as np
import pytest
from scipy.special import softmax

import lmrep
from lmrep.core.errors import UserError
from lmrep.experiment.config import stage_at
from lmrep.inference import pointer
from lmrep.inference.evaluate import read_split
from lmrep.models.base import Inputs
from tests import runs, small


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("pointer")
    runs.copy("recurrent", home / "run")
    return home


def columns(run, batch_size, data):
    """(tokens, the token after each) of each part that the test split is read in."""
    stage = stage_at(run.experiment, run.step)
    plan = read_split(run, stage, "test", data).examples
    batch = plan.gather(np.arange(plan.examples))
    text = batch["tokens"].ravel()[: int((batch["segment_ids"] > 0).sum())]
    bounds = [row * plan.examples // batch_size * plan.length for row in range(batch_size)] + [len(text)]
    for first, last in itertools.pairwise(bounds):
        yield text[first:last], text[first + 1 : last + 1]


def naive(run, tokens, targets, window, weight, theta):
    """-log probability of each target, one at a time."""
    hidden = np.asarray(run.model.encode(run.params["encoder"], Inputs(tokens[None])).hidden, np.float64)[0]
    logits = run.objective.uses.next_token.logits(run.params, hidden[None].astype(np.float32))[0]
    result = []
    for t, target in enumerate(targets):
        p = softmax(np.float64(logits[t]))
        if t:
            known = slice(max(0, t - window), t)
            scores = softmax(theta * hidden[known] @ hidden[t])
            cache = np.zeros_like(p)
            for word, score in zip(targets[known], scores, strict=True):
                cache[word] += score
            p = (1 - weight) * p + weight * cache
        result.append(-np.log(p[target]))
    return result


@pytest.mark.parametrize(("batch_size", "window", "weight", "theta"), [(1, 7, 0.25, 2.0), (3, 40, 0.1, 1.0)])
def test_the_loss_equals_that_of_a_naive_computation(batch_size, window, weight, theta, home):
    data = runs.folder("recurrent") / "data"
    settings = {"window": window, "weight": weight, "theta": theta}
    values = lmrep.evaluate(home / "run", data_dir=data, batch_size=batch_size, pointer=settings)
    run, expected = lmrep.load(home / "run"), []
    for tokens, targets in columns(run, batch_size, data):
        expected += naive(run, tokens, targets, window, weight, theta)
    assert len(expected) > 3 * 16 * batch_size  # several batches
    assert values["pointer_loss"] == pytest.approx(np.mean(expected), rel=1e-6)
    plain = lmrep.evaluate(home / "run", data_dir=data, batch_size=batch_size)
    assert values["lm_loss"] == pytest.approx(plain["lm_loss"], rel=1e-6) == values["loss"]


def test_the_command_prints_the_perplexity_and_records_the_settings(home):
    answer = small.command("evaluate", f"--workdir={home}/run", f"--data_dir={runs.folder('recurrent')}/data",
                           "--pointer_window=50", "--pointer_theta=0.5", "--batch_size=2")
    [line] = [line for line in answer.out.splitlines() if line.startswith("pointer_loss")]
    assert "perplexity" in line
    record = json.loads((home / "run/eval.json").read_text())
    assert (record["pointer_window"], record["pointer_weight"], record["pointer_theta"]) == (50, 0.1, 0.5)


def test_the_cache_has_the_size_of_its_window(home):
    run = lmrep.load(home / "run")
    objective = pointer.with_pointer(run.objective, run.model, stage_at(run.experiment, run.step), pointer.Pointer(9))
    _, cache = jax.eval_shape(lambda: objective.carry(4)).per_example
    assert {name: x.shape for name, x in cache.items()} == {"hidden": (4, 9, run.model.width), "following": (4, 9)}


def test_it_is_refused_without_a_state_that_continues(tmp_path):
    runs.copy("causal", tmp_path / "run")
    with pytest.raises(UserError, match="whose examples do not continue each other"):
        lmrep.evaluate(tmp_path / "run", data_dir=runs.folder("causal") / "data", pointer={"window": 5})
    with pytest.raises(UserError, match=r"pointer\.weight is 1"):
        lmrep.evaluate(tmp_path / "run", pointer={"weight": 1.0})
    with pytest.raises(UserError, match=r"pointer is .*, and stride is"):
        lmrep.evaluate(tmp_path / "run", stride=8, pointer={"window": 5})
