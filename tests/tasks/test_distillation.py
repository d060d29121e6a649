"""Teachers in fine-tuning: the loss in closed form, what is refused, and runs."""

import dataclasses
import random

import jax
import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.objectives.base import Carry, FrozenPart, Keys
from lmrep.tasks import distillation
from tests import runs, small
from tests.reference import random_params
from tests.tasks import tiny

TEMPERATURE = 3.0
TEACHER = distillation.Config(alpha_ce=0.5, alpha_task=0.25, temperature=TEMPERATURE)


def tagged(count):
    draw = random.Random(0)
    lines = [tiny.sentence(draw, draw.randint(1, 6)).split() for _ in range(count)]
    return [{"words": words, "tags": ["N" if word in ("cat", "dog") else "X" for word in words]} for words in lines]


EXAMPLES = {"classification": runs.labelled_texts(9, 0), "tagging": tagged(9), "multiple_choice": [
    {"text": "cat dog", "choices": ["bird", "fish tree", "stone"][: 2 + i % 2], "label": i % 2} for i in range(8)]}
READ = {"classification": ("units", "log_probabilities"), "tagging": ("tokens", "log_probabilities"),
        "multiple_choice": ("units", "log_probability")}


def pair(name, **fields):
    """(a student, its teacher as a frozen part, a batch)."""
    teaching = tiny.Tiny(name, EXAMPLES[name], **fields)
    part = FrozenPart("teacher", "runs/teacher", teaching.objective.specs, [], teaching.model, teaching.objective,
                      teaching.config)
    student = tiny.Tiny(name, EXAMPLES[name])
    config = dataclasses.replace(student.config, teacher=TEACHER)
    taught = student.task.objective.build(config, student.model, student.tokenizer.vocabulary, {"teacher": part})
    examples = student.examples()
    batch = taught.prepare(Keys(None, None), examples.gather(np.arange(examples.examples)))
    return student, taught, part, batch


@pytest.mark.parametrize("name", ["classification", *(pytest.param(name, marks=pytest.mark.slow) for name in (
    "tagging", "multiple_choice"))])
def test_the_loss_in_closed_form_has_no_gradient_for_the_teacher(name):
    student, taught, part, batch = pair(name)
    params = random_params(part.specs, seed=7)
    alone, _ = jax.jit(student.objective.loss)(student.params, batch, None, Carry())
    (total, (metrics, _)), grads = jax.jit(jax.value_and_grad(taught.loss, has_aux=True))(
        student.params | {"frozen": {"teacher": params}}, batch, None, Carry())
    assert not any(np.any(g) for g in jax.tree.leaves(grads.pop("frozen"))) and any(
        np.any(g) for g in jax.tree.leaves(grads))
    group, field = READ[name]
    predict = jax.jit(part.objective.predict)
    ours, theirs = (np.asarray(predict(each, batch)[group][field], np.float64) for each in (student.params, params))
    weights = np.asarray(batch["weights"], np.float64)

    def probabilities(y):
        e = np.exp((y - y.max(-1, keepdims=True)) / TEMPERATURE)
        return e / e.sum(-1, keepdims=True)

    p, q = probabilities(theirs), probabilities(ours)
    divergence = TEMPERATURE**2 * np.where(p > 0, p * np.log(np.maximum(p, 1e-300) / np.maximum(q, 1e-300)), 0).sum(-1)
    assert float(total) == pytest.approx(0.25 * float(alone) + 0.5 * (divergence * weights).sum(), rel=1e-4)
    assert float(metrics["distillation_loss"][0]) == pytest.approx(divergence[weights > 0].sum(), rel=1e-4, abs=1e-5)
    possible = theirs > -1e20
    equal = TEMPERATURE**2 * (np.log(possible.sum(-1)) + np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0).sum(-1))
    constant = float(metrics["constant_distillation_loss"][0])
    assert constant == pytest.approx(equal[weights > 0].sum(), rel=1e-4, abs=1e-5)
    assert taught.frozen == {"teacher": part.specs} and taught.specs.keys() == student.objective.specs.keys()


def student(**fields):
    """The config of a run on the data of the shared run of classification, which teaches it."""
    home = runs.folder("classification")
    config = tiny.config("classification", home / "train.jsonl", home / "dev.jsonl", epochs=8.0, **fields)
    config.tokenizer.vocab_file = str(home / "run/tokenizer")
    config.frozen = {"teacher": str(home / "run")}
    return config


@pytest.mark.slow
def test_a_student_learns_without_labels(tmp_path):
    """The labels' weight is 0, and the student reaches what its teacher predicts."""
    config = student(objective__teacher__alpha_ce=1.0, objective__teacher__alpha_task=0.0)
    outcome = lmrep.train(config, tmp_path / "run")
    first, *_, last = small.lines(tmp_path / "run", "train")
    assert last["distillation_loss"] < 0.3 * first["distillation_loss"]
    assert outcome.after["accuracy"] > 0.9
    run = lmrep.load(tmp_path / "run")  # predictions need no teacher
    assert not run.objective.frozen and not [path for path in flatten(run.params) if "frozen" in path]
    assert run.predict(["cat good dog fish"])[0]["label"] == "pos"


@pytest.mark.slow
def test_a_task_without_its_teacher_is_refused(tmp_path):
    config = student(objective__teacher__alpha_ce=1.0)
    config.frozen = {}
    with pytest.raises(UserError, match="reads the frozen part 'teacher', which"):
        lmrep.train(config, tmp_path / "run")
    config = student()
    with pytest.raises(UserError, match="'teacher', which no objective of this run reads"):
        lmrep.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
