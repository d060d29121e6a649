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
from tests import small
from tests.reference import random_params
from tests.tasks import tiny

TEMPERATURE = 3.0
TEACHER = distillation.Config(alpha_ce=0.5, alpha_task=0.25, temperature=TEMPERATURE)


def texts(count, seed=0):
    """Texts of three words and one that decides the class."""
    draw, records = random.Random(seed), []
    for _ in range(count):
        words, label = tiny.sentence(draw, 3).split(), draw.randrange(2)
        words.insert(draw.randrange(4), ("bad", "good")[label])
        records.append({"text": " ".join(words), "label": ("neg", "pos")[label]})
    return records


def tagged(count):
    draw = random.Random(0)
    lines = [tiny.sentence(draw, draw.randint(1, 6)).split() for _ in range(count)]
    return [{"words": words, "tags": ["N" if word in ("cat", "dog") else "X" for word in words]} for words in lines]


EXAMPLES = {"classification": texts(9), "tagging": tagged(9), "multiple_choice": [
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


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_loss_in_closed_form(name):
    student, taught, part, batch = pair(name)
    params = random_params(part.specs, seed=7)
    alone, (_, _) = student.objective.loss(student.params, batch, None, Carry())
    total, (metrics, _) = taught.loss(student.params | {"frozen": {"teacher": params}}, batch, None, Carry())
    group, field = READ[name]
    ours, theirs = (np.asarray(part.objective.predict(each, batch)[group][field], np.float64)
                    for each in (student.params, params))
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


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_gradient_reaches_the_teacher(name):
    student, taught, part, batch = pair(name)
    params = student.params | {"frozen": {"teacher": random_params(part.specs, seed=7)}}
    grads = jax.grad(lambda params: taught.loss(params, batch, None, Carry())[0])(params)
    assert all(not np.asarray(g).any() for g in jax.tree.leaves(grads.pop("frozen")))
    assert any(np.asarray(g).any() for g in jax.tree.leaves(grads))


@pytest.mark.parametrize(("fields", "message"), [
    ({"labels": ("pos", "neg")}, "has objective.labels pos,neg, and this run neg,pos"),
    ({"end_of_text": False}, "has objective.end_of_text False, and this run True"),
])
def test_teachers_that_do_not_fit(fields, message):
    with pytest.raises(UserError, match=message):
        pair("classification", **fields)


def test_a_teacher_of_another_task():
    student, _, part, _ = pair("tagging")
    with pytest.raises(UserError, match="trained with objective 'tagging', and this run is of the task classification"):
        distillation.teacher("classification", dataclasses.replace(student.config, teacher=TEACHER), {"teacher": part})


@pytest.mark.parametrize(("task", "fields", "message"), [
    ("regression", {}, "regression predicts a number"),
    ("tagging", {"network": "crf"}, "decides on sequences of tags"),
])
def test_tasks_without_a_distribution(task, fields, message, tmp_path):
    records = tagged(8) if task == "tagging" else [{"text": "cat", "label": float(i)} for i in range(8)]
    config = tiny.config(task, tiny.write(tmp_path / "train.jsonl", records), **{
        "objective__teacher__alpha_ce": 0.5, **{f"objective__{name}": value for name, value in fields.items()}})
    config.frozen = {"teacher": "none"}
    with pytest.raises(UserError, match=message):
        lmrep.train(config, tmp_path / "run")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a fine-tuned teacher of two layers."""
    home = tmp_path_factory.mktemp("distillation")
    tiny.write(home / "train.jsonl", texts(96))
    tiny.write(home / "dev.jsonl", texts(32, 1))
    config = tiny.config("classification", home / "train.jsonl", home / "dev.jsonl", epochs=8.0, model__layers=2)
    lmrep.train(config, home / "teacher")
    return home


def student(home, **fields):
    config = tiny.config("classification", home / "train.jsonl", home / "dev.jsonl", epochs=8.0, **fields)
    config.tokenizer.vocab_file = str(home / "teacher/tokenizer")
    config.frozen = {"teacher": str(home / "teacher")}
    return config


def test_a_student_learns_without_labels(home, tmp_path):
    """The labels' weight is 0, and the student reaches what its teacher predicts."""
    config = student(home, objective__teacher__alpha_ce=1.0, objective__teacher__alpha_task=0.0)
    outcome = lmrep.train(config, tmp_path / "run")
    first, *_, last = small.lines(tmp_path / "run", "train")
    assert last["distillation_loss"] < 0.3 * first["distillation_loss"]
    assert outcome.after["accuracy"] > 0.9
    run = lmrep.load(tmp_path / "run")  # predictions need no teacher
    assert not run.objective.frozen and not [path for path in flatten(run.params) if "frozen" in path]
    assert run.predict(["cat good dog fish"])[0]["label"] == "pos"


def test_a_task_without_its_teacher_is_refused(home, tmp_path):
    config = student(home, objective__teacher__alpha_ce=1.0)
    config.frozen = {}
    with pytest.raises(UserError, match="reads the frozen part 'teacher', which"):
        lmrep.train(config, tmp_path / "run")
    config = student(home)
    with pytest.raises(UserError, match="'teacher', which no objective of this run reads"):
        lmrep.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
