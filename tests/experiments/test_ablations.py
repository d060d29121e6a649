"""The ablations: every run of theirs is a config that fits, and the question that all share asks the same tokens."""

import argparse
import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.tokenizers import SPECIALS
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.models import transformer
from lmrep.objectives.base import Carry, Keys
from lmrep.training.state import specs_of
from tests import small

FOLDER = Path(__file__).parents[2] / "experiments/ablations"


@pytest.fixture(scope="module", autouse=True)
def beside():
    """The scripts find `common` beside them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield


@pytest.fixture(scope="module")
def objectives():
    return importlib.import_module("objectives")


@pytest.fixture(scope="module")
def given():
    return argparse.Namespace(steps=8, files="texts/*.txt")


def test_every_run_is_a_config_that_fits(objectives, given):
    roberta = importlib.import_module("roberta_inputs")
    configs = [*(objectives.config(name, given) for name in objectives.RUNS),
               *(roberta.config(form, masking, given) for form, masking in roberta.RUNS)]
    plans = [experiments.resolve_stages(experiments.parse(c))[0] for c in configs]
    assert {plan.objective_name for plan in plans} == {"masked", "causal", "span_boundary", "replaced_token"}
    assert len({(plan.objective_name, plan.format_name, str(plan.objective), str(plan.format)) for plan in plans}) == 13


def test_runs_of_an_objective_differ_in_it_alone(objectives, given):
    one, other = (objectives.config(name, given).to_dict() for name in ("masked", "causal"))
    assert [name for name in one if one[name] != other[name]] == ["objective"]


def test_one_question_asks_all_networks_for_the_same_tokens(objectives, given):
    size, rows, t = 40, 16, 24
    words = Vocabulary(size, {role: i for i, role in enumerate(SPECIALS)}, np.ones(size, bool), np.arange(size))
    draw = np.random.default_rng(0)
    tokens = draw.integers(6, size, (rows, t)).astype(np.int32)
    segments = np.where(np.arange(t) < 10, 1, np.where(np.arange(t) < draw.integers(14, t, rows)[:, None], 2, 0))
    tokens[:, [0, 10]] = words.specials["cls"]
    batch = {"tokens": tokens, "segment_ids": segments.astype(np.int32), "example": np.arange(rows, dtype=np.int32)}
    keys = Keys(jax.random.split(jax.random.key(0), rows), jax.random.key(1))
    answers = {}
    for name in ("masked", "causal", "span_boundary", "masked_sop"):
        config = objectives.config(name, given)
        config.model.update({"vocab": size, "width": 16, "heads": 2, "mlp": 16})
        experiment = experiments.parse(config)
        network = transformer.build(experiments.model_config(experiment))
        trained = build.objective(experiments.resolve_stages(experiment)[0], network, words)
        asked = objectives.ask(experiments.resolve_stages(experiment)[0], network, words)
        assert P.flatten(specs_of(asked)).keys() <= P.flatten(specs_of(trained)).keys()
        question = jax.jit(asked.prepare)(keys, batch)
        counted = np.asarray(question["weights"]) > 0
        params = jax.tree.map(lambda spec: np.zeros(spec.shape, np.float32), specs_of(asked),
                              is_leaf=lambda x: hasattr(x, "axes"))
        _, (metrics, _) = jax.jit(lambda params, batch, asked=asked: asked.loss(params, batch, None, Carry()))(
            params, question)
        answers[name] = np.asarray(question["targets"])[counted], {
            each: float(total) / float(count) for each, (total, count) in metrics.items()}
    first, figures = answers["masked"]
    assert first.shape == (rows,) and figures["mlm_loss"] == pytest.approx(np.log(size), rel=1e-5)
    shares = (words.counts + 1) / (words.counts + 1).sum()
    assert figures["by_frequency"] == pytest.approx(-np.log(shares[first]).mean(), rel=1e-5)
    for targets, other in answers.values():
        np.testing.assert_array_equal(targets, first)
        assert other["by_frequency"] == pytest.approx(figures["by_frequency"], rel=1e-6)


def test_it_trains_scores_and_writes_a_page_and_does_not_train_twice(objectives, tmp_path, capsys):
    texts = small.corpus(tmp_path / "texts", 200)
    words = [f"--workdir={tmp_path / 'runs'}", f"--files={texts}/*.txt", f"--data_dir={tmp_path / 'data'}", "--steps=2"]
    objectives.main([*words, "--runs=causal,causal"])
    [row] = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("causal ")]
    assert len(row) == 8 and row[2].endswith("%") and row[4].endswith("%") and row[6].endswith("%")
    assert float(row[5]) > 0 and (tmp_path / "runs/report.html").exists()
    metrics = tmp_path / "runs/causal/metrics.jsonl"
    before, given = metrics.read_bytes(), objectives.arguments("").parse_args(words)
    [again] = objectives.train({"causal": objectives.config("causal", given)}, given)
    assert metrics.read_bytes() == before and f"{again.outcome.after['lm_accuracy']:.2%}" == row[2]


def test_an_unknown_run_is_refused(objectives, capsys):
    with pytest.raises(SystemExit):
        objectives.main(["--workdir=runs", "--runs=maskd"])
    assert "expected some of masked" in capsys.readouterr().err


def test_an_error_that_a_user_can_fix_is_one_line(objectives, capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        objectives.run_script(lambda: objectives.main([f"--workdir={tmp_path}", f"--files={tmp_path}/no.txt"]))
    assert stopped.value.code == 2 and capsys.readouterr().err.count("\n") == 1
