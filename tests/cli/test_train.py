"""What `lmrep train` prints at its end, for every objective."""

import shlex
from functools import partial
from types import MappingProxyType, SimpleNamespace

import jax
import numpy as np
import pytest

from lmrep.api import Outcome
from lmrep.cli.train import aligned, next_steps, samples, summary
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import batch_struct
from lmrep.metrics import judged, verdict
from lmrep.models import bilstm, encoder_decoder, transformer, transformer_xl
from lmrep.objectives import OBJECTIVES, replaced_token
from lmrep.objectives.base import Carry, Keys
from lmrep.tasks import TASKS
from tests import small
from tests.cli import printed_prompts

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
CASES = [*((name, {}) for name in OBJECTIVES), ("masked", {"sentence_pair": True}),
         *(("replaced_token", {"variant": variant}) for variant in replaced_token.VARIANTS)]


def metrics(name, fields):
    """The names of an objective's metrics, by shapes alone."""
    definition, b, t = OBJECTIVES[name], 2, 16
    vocabulary = Vocabulary(32, {role: i for i, role in enumerate(ROLES)}, np.ones(32, bool), np.ones(32, int),
                            sentinels=(31, 30))
    network = transformer.build(transformer.Config(vocab=32, width=16, layers=1, heads=2, mlp=16, max_length=2 * t))
    if definition.conditions_on(definition.config(**fields)) == "each_side":
        network = bilstm.build(bilstm.Config(vocab=32, reads="words", cell=16, width=8, layers=1))
    if definition.conditions_on(definition.config(**fields)) == "order":
        network = transformer_xl.build(transformer_xl.Config(vocab=32, width=16, layers=1, heads=2, mlp=16,
                                                             causal=False))
    if definition.conditions_on(definition.config(**fields)) == "source":
        network = encoder_decoder.build(encoder_decoder.Config(vocab=32, width=16, layers=1, heads=2, mlp=16))
    objective = definition.build(definition.config(**fields), network, vocabulary)
    batch = batch_struct(definition.batch_fields(definition.config(**fields)), False, b=b, t=t)
    keys = jax.eval_shape(lambda: Keys(jax.random.split(jax.random.key(0), b), jax.random.key(0)))
    prepared = jax.eval_shape(objective.prepare, keys, batch)
    loss = partial(objective.loss, key=None, carry=Carry())
    return jax.eval_shape(loss, P.abstract(objective.specs), prepared)[1][0].keys()


def outcome(table, before, after, unigram_loss=None, intervals=MappingProxyType({}), **fields):
    """The outcome of a run of 7 steps."""
    rows = verdict.comparison(table, before, after, step=7, unigram_loss=unigram_loss, intervals=intervals)
    return Outcome(7, before, after, comparison=tuple(rows), intervals=intervals,
                   verdict=verdict.sentence(table, rows, intervals), **fields)


@pytest.mark.parametrize(("name", "fields"), CASES, ids=str)
def test_every_headline_metric_is_shown_and_its_initial_value_if_there_is_one(name, fields):
    table = OBJECTIVES[name].metrics
    after = dict.fromkeys(metrics(name, fields), 0.25)
    shown = summary(outcome(table, dict.fromkeys(after, 0.125), after), table)
    assert shown.startswith("\nTrained to step 7.\nOn held-out text:\n")
    headline = [metric for metric in table if metric in after and table[metric].headline]
    assert headline or after.keys() <= {"lm_loss", "loss"}
    words = " ".join(shown.split())
    for metric in headline:
        assert all(word in words for word in table[metric].title.split()), shown
    baselines = [metric for metric in headline if table[metric].baseline in after]
    assert shown.count("12.50%") >= len(headline) and shown.count("25.00%") >= len(headline) + len(baselines), shown
    shown = summary(outcome(table, {}, after), table)
    assert "before training" not in shown and "this model at step 7" in shown and "25.00%" in shown


def test_language_model_has_a_perplexity():
    table = OBJECTIVES["causal"].metrics
    assert summary(outcome(table, {"lm_loss": 5.0}, {"lm_loss": 2.0}, 4.0), table) == """
Trained to step 7.
On held-out text:
                               Perplexity
  token frequencies (unigram)        54.6
  this model before training        148.4
  this model at step 7                7.4"""
    both = OBJECTIVES["bidirectional"].metrics
    shown = summary(outcome(both, {}, {"lm_loss": 2.0, "forward_loss": 1.0, "backward_loss": 3.0}), both)
    assert "Perplexity (mean)  Perplexity (forward)" in shown and shown.split()[-3:] == ["7.4", "2.7", "20.1"]


def test_the_table_of_a_task_ends_with_the_run_and_its_interval():
    table = TASKS["classification"].objective.metrics
    after = {"accuracy": 0.75, "majority_accuracy": 0.75, "matthews": 0.25}
    shown = summary(outcome(table, {"matthews": 0.0}, after, best_step=5, intervals={
        "accuracy": [0.5, 1.0], "matthews": [-0.125, 0.5]}), table)
    assert shown == """
Trained to step 7.
The best checkpoint is that of step 5.
On held-out text:
                                       Accuracy  Matthews correlation
  the most frequent class                75.00%
  a constant prediction                                        0.0000
  this model before training                                   0.0000
  this model at step 7                   75.00%                0.2500
    95 % interval             50.00% to 100.00%     -0.1250 to 0.5000
This run failed: it is no better than the most frequent class (by accuracy, within the 95 % interval)."""


def test_wide_tables_continue_below():
    head = ["", *(f"metric {i}" for i in range(6))]
    lines = aligned([head, ["a row", *"012345"]])
    assert [line.split() for line in lines] == [
        ["metric", "0", "metric", "1", "metric", "2", "metric", "3"], ["a", "row", *"0123"],
        ["metric", "4", "metric", "5"], ["a", "row", *"45"]]


@pytest.mark.parametrize(("objective", "after", "failed"), [
    ("replaced_token", {"discriminator_loss": 0.377, "discriminator_accuracy": 0.875, "replaced_fraction": 0.125}, 2),
    ("replaced_token", {"discriminator_loss": 0.3, "discriminator_accuracy": 0.9, "replaced_fraction": 0.1248}, 0),
    ("masked", {"pair_accuracy": 1.0, "pair_loss": 0.0, "pair_fraction": 1.0}, 2),  # pairs of one class
    ("masked", {"pair_accuracy": 0.6, "pair_loss": 0.6, "pair_fraction": 0.5}, 0),
    ("masked", {"mlm_loss": 6.5}, 1), ("masked", {"mlm_loss": 5.5}, 0),
    ("permutation", {"permutation_loss": 6.5, "permutation_accuracy": 0.1, "most_frequent_accuracy": 0.1}, 2),
    ("span_corruption", {"denoising_loss": 6.5}, 1), ("bidirectional", {"backward_loss": 6.5}, 1),
    ("span_boundary", {"boundary_loss": 6.5, "boundary_accuracy": 0.1, "most_frequent_accuracy": 0.2}, 2)])
def test_a_run_that_does_not_beat_a_trivial_predictor_says_so(objective, after, failed):
    table = OBJECTIVES[objective].metrics
    found = judged(table, {**after, "unigram_loss": 6.0}.get)
    assert sum(not one.better for one in found.values()) == failed and len(found) >= failed
    shown = summary(outcome(table, {}, after, 6.0), table)
    assert ("This run failed" in shown) == bool(failed)


def test_a_detector_is_compared_with_chance():
    table = OBJECTIVES["replaced_token"].metrics
    shown = summary(outcome(table, {}, {"replaced_accuracy": 0.5, "original_accuracy": 0.8}), table)
    assert "chance (1 - original tokens recognised) 20.00%" in " ".join(shown.split())


def test_report_path_is_printed_only_if_it_was_written():
    assert "open runs/x/report.html in a browser" in next_steps("runs/x", "", "a [MASK]")
    assert "report.html" not in (shown := next_steps("runs/x", "", "a [MASK]", report=False))
    assert "lmrep report runs/x; tensorboard" in shown
    assert "tensorboard" not in next_steps("runs/x", "", "a [MASK]", tensorboard=False)


@pytest.mark.parametrize(("split", "command"), [
    ("", "lmrep evaluate --workdir=runs/x\n"), ("validation", "--split=validation\n"), (None, "")])
def test_only_a_split_that_exists_is_to_be_evaluated(split, command):
    shown = next_steps("runs/x", "", "a [MASK]", split=split)
    assert command in shown and ("lmrep evaluate" in shown) == (split is not None)


@pytest.mark.parametrize("text", ["The [MASK] cat.", "He didn't come.", "It's \"so\".", "It's $5!"])
def test_prompt_of_the_next_step_is_one_word_of_a_shell(text):
    command = next(line for line in next_steps("runs/x", "", text).splitlines() if "lmrep predict" in line)
    assert shlex.split(command) == ["lmrep", "predict", "--workdir=runs/x", text]
    assert f'"{text}"' in command or "He didn't" not in text


@pytest.mark.slow
def test_run_without_samples_is_tried_with_its_own_text(small_home):
    train = ("train", f"--workdir={small_home}/run", f"--data_dir={small_home}/data", "--config.samples=()")
    result = small.command(*train)
    prompts = printed_prompts(result, "masked", "  the ")
    assert result.code == 0 and len(prompts) == 3 and all("[MASK]" in prompt for prompt in prompts)
    assert f"lmrep predict --workdir={small_home}/run '{prompts[0]}'" in result.out
    assert small.command(*train).out == result.out


def test_prompt_that_cannot_be_predicted_does_not_fail_the_command():
    class Failing:
        summary, sample_options = "fails", None

        def predict(self, *arguments):
            raise UserError("the text is too long")

    failing = Failing()
    run = SimpleNamespace(capabilities=(failing,), capability_of=lambda text: failing)
    assert samples(run, ["a"]) == "\nIt fails:\n  the text is too long"
