"""What `lmrep train` prints at its end, for every objective."""

import shlex
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from lmrep.cli.train import next_steps, samples, summary
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FIELDS
from lmrep.models import transformer
from lmrep.objectives import OBJECTIVES, replaced_token
from lmrep.objectives.base import Carry, Keys
from tests import small

ROLES = ("pad", "unk", "cls", "sep", "mask")
CASES = [*((name, {}) for name in OBJECTIVES), ("masked", {"sentence_pair": True}),
         *(("replaced_token", {"variant": variant}) for variant in replaced_token.VARIANTS)]


def metrics(name, fields):
    """The names of an objective's metrics, by shapes alone."""
    definition, b, t = OBJECTIVES[name], 2, 16
    vocabulary = Vocabulary(32, {role: i for i, role in enumerate(ROLES)}, np.ones(32, bool), np.ones(32, int))
    network = transformer.Config(vocab=32, width=16, layers=1, heads=2, mlp=16, max_length=t)
    objective = definition.build(definition.config(**fields), transformer.build(network), vocabulary)
    batch = {field: jax.ShapeDtypeStruct((b, t)[: len(FIELDS[field].axes)], np.int32)
             for field in definition.batch_fields(definition.config(**fields))}
    keys = jax.eval_shape(lambda: Keys(jax.random.split(jax.random.key(0), b), jax.random.key(0)))
    prepared = jax.eval_shape(objective.prepare, keys, batch)
    loss = partial(objective.loss, key=None, carry=Carry())
    return jax.eval_shape(loss, P.abstract(objective.specs), prepared)[1][0].keys()


@pytest.mark.parametrize(("name", "fields"), CASES, ids=str)
def test_every_headline_metric_is_shown_before_and_after(name, fields):
    table = OBJECTIVES[name].metrics
    after = dict.fromkeys(metrics(name, fields), 0.25)
    shown = summary(SimpleNamespace(steps=7, before=dict.fromkeys(after, 0.125), after=after), table)
    assert shown.startswith("\nTrained to step 7.")
    headline = [metric for metric in table if metric in after and table[metric].headline]
    assert headline or after.keys() <= {"lm_loss", "loss"}
    for metric in headline:
        assert f"{table[metric].title} on held-out text" in shown
    baselines = {table[metric].baseline for metric in headline} & after.keys()
    fractions = [metric for metric in table if metric in after and table[metric].unit == "fraction"]
    assert shown.count("25.00%") == len(headline) + len(baselines) + len(fractions), shown
    assert shown.count("12.50%") == len(headline) + len(fractions)
    assert shown.count("1.0 times the baseline") == len(baselines)


@pytest.mark.parametrize(("name", "fields"), CASES, ids=str)
def test_metrics_missing_from_the_first_stage_have_no_initial_value(name, fields):
    after = dict.fromkeys(metrics(name, fields), 0.25)
    shown = summary(SimpleNamespace(steps=7, before={}, after=after), OBJECTIVES[name].metrics)
    assert "before training" not in shown and "25.00%" in shown


def test_language_model_has_a_perplexity():
    outcome = SimpleNamespace(steps=7, before={"lm_loss": 5.0}, after={"lm_loss": 2.0})
    shown = summary(outcome, OBJECTIVES["causal"].metrics)
    assert "Perplexity of held-out text: before training 148.4, now 7.4" in shown
    assert "Perplexity" not in summary(outcome, OBJECTIVES["replaced_token"].metrics)


def test_report_path_is_printed_only_if_it_was_written():
    assert "open runs/x/report.html in a browser" in next_steps("runs/x", "", "a [MASK]")
    assert "report.html" not in (shown := next_steps("runs/x", "", "a [MASK]", report=False))
    assert "lmrep report runs/x;" in shown


@pytest.mark.parametrize("text", ["The [MASK] cat.", "He didn't come.", "It's \"so\".", "It's $5!"])
def test_the_prompt_of_the_next_step_is_one_word_of_a_shell(text):
    command = next(line for line in next_steps("runs/x", "", text).splitlines() if "lmrep predict" in line)
    assert shlex.split(command) == ["lmrep", "predict", "--workdir=runs/x", text]
    assert f'"{text}"' in command or "He didn't" not in text


@pytest.mark.parametrize("name", ["masked", "causal"])
def test_a_run_without_samples_is_tried_with_its_own_text(tmp_path, name):
    (tmp_path / "page.py").write_text(
        "from pathlib import Path\nfrom tests import small\n\n\ndef get_config(argument=''):\n"
        f"    return small.config(Path({str(small.corpus(tmp_path / 'texts'))!r}), {name!r})\n")
    train = ("train", f"--config={tmp_path}/page.py", f"--workdir={tmp_path}/run", f"--data_dir={tmp_path}/data")
    answer = small.command(*train, "--config.steps=2", "--config.model.max_length=48", "--config.evaluation.every=2")
    assert answer.code == 0, answer
    [summary] = [each.summary for each in OBJECTIVES[name].capabilities]
    shown = answer.out.split(f"It {summary}:\n")[1]
    before = "  the " if name == "masked" else " |"
    prompts = [line for line in shown.split("\nNext:")[0].splitlines() if before in line and not line.startswith("   ")]
    words = {"the", "[MASK]", *small.NOUNS, *small.VERBS, *small.KINDS}
    assert len(prompts) == 3
    assert all({word.strip(".") for word in line.partition(" |")[0].split()} <= words for line in prompts)
    assert f"lmrep predict --workdir={tmp_path}/run '{prompts[0].partition(' |')[0].strip()}'" in shown
    again = small.command(*train, "--config.steps=2", "--config.model.max_length=48", "--config.evaluation.every=2")
    assert again.out.split("It ")[1] == answer.out.split("It ")[1]


def test_a_prompt_that_cannot_be_predicted_does_not_fail_the_command():
    class Refuses:
        summary, sample_options = "refuses", None

        def predict(self, *arguments):
            raise UserError("the text is too long")

    run = SimpleNamespace(capabilities=(refuses := Refuses(),), capability_of=lambda text: refuses)
    assert samples(run, ["a"]) == "\nIt refuses:\n  the text is too long"
