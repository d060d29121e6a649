"""A run on a mixture that is interrupted and resumed shows the same examples as without that. (On several hosts:
`test_format_properties.py`.)"""

import contextlib
import json

import numpy as np
import pytest

from lmrep import api
from lmrep.data import loader
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from tests import small
from tests.data.test_mixture import max_deviation, sources_of

STEPS, BATCH, COUNTS = 45, 8, (5, 3)

BATCHES = loader.batches


class Interrupted(Exception):
    pass


def logged(path, steps):
    """`loader.batches` that writes the examples of each step to a file, and fails after some steps."""
    def batches(plan, **options):
        with path.open("a", buffering=1) as log:
            for step, batch in enumerate(BATCHES(plan, **options), options["first_step"]):
                if step == steps:
                    raise Interrupted
                log.write(json.dumps([step, options["indices"].tolist(), batch["example"].tolist()]) + "\n")
                yield batch

    return batches


def experiment(home):
    """A tiny experiment with enough steps to be interrupted in between."""
    config = small.config(home / "a", "causal")
    config.data.validation = 0.0
    config.steps, config.batch_size, config.length = STEPS, BATCH, 16
    config.model.update({"layers": 1, "width": 16, "heads": 2, "mlp": 16})
    config.sources = ({"weight": 5.0, "data": {}}, {"weight": 3.0, "data": {"files": f"{home}/b/*.txt"}})
    config.checkpoint.every, config.evaluation.every, config.evaluation.examples = 10, 1000, 8
    return config


def shown(home):
    """int[steps, batch size], the examples by the logs of all processes, which must agree where a step was repeated."""
    shown_at = {}
    for path in home.glob("shown*.jsonl"):
        for line in path.read_text().rpartition("\n")[0].splitlines():
            step, indices, examples = json.loads(line)
            for index, example in zip(indices, examples, strict=True):
                assert shown_at.setdefault(step, {}).setdefault(index, example) == example
    return np.array([[shown_at[step][index] for index in range(BATCH)] for step in sorted(shown_at)])


@pytest.mark.slow
def test_an_interrupted_and_resumed_run_shows_the_same_examples(tmp_path, monkeypatch):
    small.corpus(tmp_path / "a", 40)
    small.corpus(tmp_path / "b", 12, seed=1)
    for name, steps in (("shown-0", 25), ("shown-1", STEPS)):
        monkeypatch.setattr(loader, "batches", logged(tmp_path / f"{name}.jsonl", steps))
        with pytest.raises(Interrupted) if steps < STEPS else contextlib.nullcontext():
            api.train(experiment(tmp_path), tmp_path / "run", data_dir=tmp_path / "data")
    numbers = shown(tmp_path)
    assert numbers.shape == (STEPS, BATCH)

    record = experiments.parse(experiment(tmp_path))
    [stage] = experiments.resolve_stages(record)
    prepared = build.prepare_data(record, tmp_path / "data").corpus
    mixture = build.plan(stage, prepared.stores["train"], record.seed, tmp_path / "data")
    np.testing.assert_array_equal(numbers.ravel(), mixture.numbers(np.arange(STEPS * BATCH), BATCH, record.seed))
    sources, examples = sources_of(mixture, numbers.ravel())
    assert max_deviation(sources, COUNTS) < 1
    for source, plan in enumerate(mixture.plans):
        counts = np.bincount(examples[sources == source], minlength=plan.examples)
        assert counts.max() - counts.min() <= 1 and counts.min() >= 1

    values = api.evaluate(tmp_path / "run", data_dir=tmp_path / "data")
    held_out = build.plan(stage, prepared.stores["test"], 0, tmp_path / "data", once=True)
    assert json.loads((tmp_path / "run/eval.json").read_text())["examples"] == held_out.evaluation_examples
    assert values["loss"] > 0
