"""The ablations: their configs are valid, and the common objective has the same targets for all networks."""

import argparse
import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

from lmrep.analysis import report
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
def import_path():
    """The scripts import `common` from their own directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield


@pytest.fixture(scope="module")
def objectives():
    return importlib.import_module("objectives")


@pytest.fixture(scope="module")
def flags():
    return argparse.Namespace(steps=8, files="texts/*.txt")


def test_every_run_has_a_valid_config(objectives, flags):
    roberta = importlib.import_module("roberta_inputs")
    configs = [*(objectives.config(name, flags) for name in objectives.RUNS),
               *(roberta.config(name, masking, flags) for name, masking in roberta.RUNS)]
    plans = [experiments.resolve_stages(experiments.parse(c))[0] for c in configs]
    assert {plan.objective_name for plan in plans} == {"masked", "causal", "span_boundary", "replaced_token"}
    assert len({(plan.objective_name, plan.format_name, str(plan.objective), str(plan.format)) for plan in plans}) == 13


def test_configs_of_objectives_differ_only_in_the_objective(objectives, flags):
    one, other = (objectives.config(name, flags).to_dict() for name in ("masked", "causal"))
    assert [name for name in one if one[name] != other[name]] == ["objective"]


@pytest.mark.slow
def test_all_networks_predict_the_same_tokens(objectives, flags):
    size, b, t = 40, 16, 24
    words = Vocabulary(size, {role: i for i, role in enumerate(SPECIALS)}, np.ones(size, bool), np.arange(size))
    draw = np.random.default_rng(0)
    tokens = draw.integers(6, size, (b, t)).astype(np.int32)
    segments = np.where(np.arange(t) < 10, 1, np.where(np.arange(t) < draw.integers(14, t, b)[:, None], 2, 0))
    tokens[:, [0, 10]] = words.specials["cls"]
    batch = {"tokens": tokens, "segment_ids": segments.astype(np.int32), "example": np.arange(b, dtype=np.int32)}
    keys = Keys(jax.random.split(jax.random.key(0), b), jax.random.key(1))
    results = {}
    for name in ("masked", "causal", "span_boundary", "masked_sop"):
        config = objectives.config(name, flags)
        config.model.update({"vocab": size, "width": 16, "heads": 2, "mlp": 16})
        experiment = experiments.parse(config)
        network = transformer.build(experiments.model_config(experiment.model))
        trained = build.objective(experiments.resolve_stages(experiment)[0], network, words)
        evaluated = objectives.one_token_objective(experiments.resolve_stages(experiment)[0], network, words)
        assert P.flatten(specs_of(evaluated)).keys() <= P.flatten(specs_of(trained)).keys()
        prepared = jax.jit(evaluated.prepare)(keys, batch)
        target_mask = np.asarray(prepared["weights"]) > 0
        params = jax.tree.map(lambda spec: np.zeros(spec.shape, np.float32), specs_of(evaluated),
                              is_leaf=lambda x: hasattr(x, "axes"))
        _, (metrics, _) = jax.jit(lambda params, batch, objective=evaluated: objective.loss(
            params, batch, None, Carry()))(params, prepared)
        results[name] = np.asarray(prepared["targets"])[target_mask], {
            metric: float(total) / float(count) for metric, (total, count) in metrics.items()}
    first, means = results["masked"]
    assert first.shape == (b,) and means["mlm_loss"] == pytest.approx(np.log(size), rel=1e-5)
    frequencies = (words.counts + 1) / (words.counts + 1).sum()
    assert means["frequency_loss"] == pytest.approx(-np.log(frequencies[first]).mean(), rel=1e-5)
    for targets, other in results.values():
        np.testing.assert_array_equal(targets, first)
        assert other["frequency_loss"] == pytest.approx(means["frequency_loss"], rel=1e-6)


@pytest.mark.slow
def test_script_trains_once_evaluates_and_reports(objectives, tmp_path, capsys, monkeypatch):
    full, reported = objectives.small, []
    monkeypatch.setattr(objectives, "small", lambda *arguments: tiny(full(*arguments)))
    monkeypatch.setattr(report, "write", lambda *arguments, **options: reported.append((arguments, options)))
    texts = small.corpus(tmp_path / "texts", 200)
    argv = [f"--workdir={tmp_path / 'runs'}", f"--files={texts}/*.txt", f"--data_dir={tmp_path / 'data'}", "--steps=2"]
    objectives.main([*argv, "--runs=causal,causal"])
    [cells] = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("causal ")]
    assert len(cells) == 8 and cells[2].endswith("%") and cells[4].endswith("%") and cells[6].endswith("%")
    assert float(cells[5]) > 0
    runs, data = tmp_path / "runs", tmp_path / "data"
    assert reported == [(([runs / "causal"], runs / "report.html"), {"data_dir": data})]
    metrics = tmp_path / "runs/causal/metrics.jsonl"
    before, flags = metrics.read_bytes(), objectives.arguments("").parse_args(argv)
    [again] = objectives.train({"causal": objectives.config("causal", flags)}, flags)
    assert metrics.read_bytes() == before and f"{again.outcome.after['lm_accuracy']:.2%}" == cells[2]


def tiny(config):
    """The config with a network that compiles quickly."""
    config.model.update({"layers": 1, "width": 32, "mlp": 32})
    return config


def test_unknown_run_is_refused(objectives, capsys):
    with pytest.raises(SystemExit):
        objectives.main(["--workdir=runs", "--runs=maskd"])
    assert "expected some of masked" in capsys.readouterr().err


def test_user_error_is_one_line(objectives, capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        objectives.run_script(lambda: objectives.main([f"--workdir={tmp_path}", f"--files={tmp_path}/no.txt"]))
    assert stopped.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_t5_objectives_are_those_of_the_tables(flags):
    script = importlib.import_module("t5_objectives")
    plans = {name: experiments.resolve_stages(experiments.parse(script.config(name, flags)))[0].objective
             for name in script.RUNS}
    assert len({str(plan) for plan in plans.values()}) == len(plans) == 13
    assert {plans[name].variant for name in script.VARIANTS} == set(script.VARIANTS)
    assert {plan.rate for name, plan in plans.items() if not name.startswith("rate")} == {0.15}


@pytest.mark.slow
def test_t5_objectives_are_compared_after_fine_tuning(tmp_path, capsys, monkeypatch):
    script = importlib.import_module("t5_objectives")
    full, reported = script.config, []

    def tiny_config(name, flags):
        c = tiny(full(name, flags))
        c.batch_size, c.length, c.tokenizer.vocab_size = 8, 16, 300
        return c

    monkeypatch.setattr(script, "config", tiny_config)
    monkeypatch.setattr(report, "write", lambda workdirs, file, data_dir: reported.append((file.name, workdirs)))
    texts, folder = tmp_path / "texts", tmp_path / "sst2"
    texts.mkdir()
    folder.mkdir()
    words = ["".join(chr(97 + i) for i in own) for own in np.random.default_rng(0).integers(0, 26, (400, 4))]
    for i in range(40):
        (texts / f"{i}.txt").write_text(" ".join(words[10 * i : 10 * i + 10] * 4))
    for split in ("train", "dev"):
        rows = "".join(f"a film number {i}\t{i % 2}\n" for i in range(6))
        (folder / f"{split}.tsv").write_text(f"sentence\tlabel\n{rows}")
    runs = tmp_path / "runs"
    script.main([f"--workdir={runs}", f"--files={texts}/*.txt", f"--data_dir={tmp_path / 'data'}", "--steps=2",
                 "--runs=drop_tokens", f"--sst2={folder}", "--finetune_steps=2"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines if line and line[0] in ("drop_tokens", "scratch")] == [
        "drop_tokens", "drop_tokens", "scratch"]
    assert reported == [("report.html", [runs / "drop_tokens"]),
                        ("sst2.html", [runs / "sst2-drop_tokens", runs / "sst2-scratch"])]
