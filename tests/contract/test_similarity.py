"""A task by the book, which is one file and one entry of `TASKS`, has what the tasks of lmrep have: frozen features,
word vectors, networks, poolings, and every command. Its mistakes are refused by its name and its file."""

import json
import random
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.data.formats.base import Field
from lmrep.experiment.build import objective as build_objective
from lmrep.experiment.config import parse
from lmrep.experiment.contracts import checked_task
from lmrep.tasks import TASKS
from lmrep.tasks.base import Reads
from tests import small
from tests.contract import similarity
from tests.tasks import examples, tiny

PAGE = """
from lmrep.experiment.fine_tuning import compose_task
from lmrep.tasks import TASKS
from tests.contract import similarity
from tests.tasks.tiny import NETWORK

TASKS["similarity"] = similarity.DEFINITION

def get_config(argument=""):
    c = compose_task("mesh=1x1x1," + argument, "similarity")
    if c.model.name != "none" and not c.init:
        c.model.update(NETWORK)
    c.data.update({{"train": {train!r}, "validation": {dev!r}}})
    c.length, c.batch_size, c.steps, c.tokenizer.vocab_size = 32, 8, 6, 100
    c.objective.bilstm.width = 8
    c.objective.pooling = "mean"
    c.log.update({{"every": 1, "tensorboard": False, "report": True}})
    return c
"""
PAIRS = [{"text": "cat dog", "text2": "dog cat cat"}, {"text": "fish", "text2": "fish bird"},
         {"text": "tree stone", "text2": "stone"}, {"text": "horse", "text2": "horse mouse"}]
NETWORKS = {
    "head alone": ("transformer", {}),
    "mean": ("transformer", {"pooling": "mean"}),
    "LSTM": ("transformer", {**examples.BILSTM, "pooling": "max"}),
    "words and characters": ("none", {**examples.BILSTM, **examples.READS, "pooling": "attention"}),
    "frozen features": ("none", {"pooling": "mean", **examples.features(layers="mix:all")}),
}


@pytest.fixture(autouse=True, scope="module")
def known():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "similarity", similarity.DEFINITION)
        yield


@pytest.mark.parametrize("name", [
    "LSTM", *(pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS if name != "LSTM")])
def test_every_network_and_input_is_read(name):
    model, fields = NETWORKS[name]
    task = tiny.Tiny("similarity", PAIRS, model, **examples.made(fields))
    store = task.examples()
    batch = store.gather(np.array([0, 1, 2, 3, -1]), store.batch_length(np.arange(4)))
    value, gradient = task.loss(batch)
    assert np.isfinite(value)
    still = [path for path, part in flatten(gradient).items() if "frozen" not in path and not jnp.abs(part).max()]
    assert not [path for path in still if path.startswith("objective/")], still
    result = task.score()
    assert len(result.predictions) == len(PAIRS) and 0 <= result.metrics["accuracy"] <= 1
    if name == "mean":
        for a, b in zip(result.predictions, task.score(batch_size=1).predictions, strict=True):
            assert a["similarity"] == pytest.approx(b["similarity"], abs=1e-5)


def broken(**fields):
    return similarity.DEFINITION._replace(**fields)


def with_column(c, records, encoder):
    units, long = similarity.encode(c, records, encoder)
    return units._replace(columns={"topic": np.zeros(len(units.example), np.int32)}), long


LABEL = {"label": Field("bn", np.int32, "the class")}
TOKENS = {"topic": Field("bt", np.int32, "of each token")}
MISTAKES = {
    "a field of records that does not exist": (broken(reads=Reads(("txt",), ())), "'txt'"),
    "a metric that does not exist": (broken(best="acuracy"), "'acuracy'"),
    "a column that is not declared": (broken(encode=with_column), "'topic'"),
    "a column that is not there": (broken(columns=lambda c: LABEL), "'label'"),
    "a column of units, declared of tokens": (broken(encode=with_column, columns=lambda c: TOKENS), "'topic'"),
    "units of other examples": (broken(encode=lambda c, records, encoder: similarity.encode(
        c, records[:2], encoder)), "2 examples for 4 records"),
    "encode gives units alone": (broken(encode=lambda *a: similarity.encode(*a)[0]), "encode returns Units"),
    "encode reads a field that its config lacks": (broken(encode=lambda c, *a: c.lenth), "'lenth'"),
    "score gives metrics": (broken(score=lambda *a: similarity.score(*a).metrics), "score returns dict"),
    "score gives no prediction": (broken(score=lambda *a: similarity.score(*a)._replace(predictions=[])),
                                  "0 predictions for 4 records"),
    "score measures what is not declared": (broken(score=lambda *a: similarity.score(*a)._replace(
        metrics={"recall": 1.0})), "'recall'"),
}


@pytest.mark.parametrize(("row", "problem"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_by_the_name_and_the_file_of_the_task(row, problem, monkeypatch):
    with pytest.raises(UserError) as refused:
        monkeypatch.setitem(TASKS, "similarity", checked_task("similarity", row))
        trained().score()
    assert f"task 'similarity' ({similarity.__file__})" in str(refused.value) and problem in str(refused.value)


@pytest.mark.parametrize(("change", "problem"), [
    (lambda outputs: outputs["units"], "its predict returns {'vector'}; expected {'units': "),
    (lambda outputs: outputs["units"]["vector"], "its predict returns an array float32["),
    (lambda outputs: {"units": {"vector": outputs["units"]["vector"][:, 0]}}, "'vector' of units as an array float32["),
    (lambda outputs: outputs["unit"], "KeyError: 'unit'")])
def test_predictions_are_of_units_or_tokens(change, problem, monkeypatch):
    row = similarity.DEFINITION

    def build(*arguments):
        built = row.objective.build(*arguments)
        return built._replace(predict=lambda *a: change(built.predict(*a)))

    monkeypatch.setitem(TASKS, "similarity", row._replace(objective=row.objective._replace(build=build)))
    task = trained()
    stage = SimpleNamespace(objective_name="similarity", objective=task.config, microbatches=1)
    objective = build_objective(stage, task.model, task.tokenizer.vocabulary, task.frozen)
    with pytest.raises(UserError) as refused:
        jax.eval_shape(objective.predict, task.params, task.examples().gather(np.arange(2), 32))
    assert f"task 'similarity' ({similarity.__file__})" in str(refused.value) and problem in str(refused.value)


def test_microbatches_that_would_keep_pairs_apart_are_refused(tmp_path):
    config = tiny.config("similarity", tmp_path / "pairs.jsonl", microbatches=2)
    with pytest.raises(UserError, match="microbatches is 2, and objective 'similarity' compares the examples of a"):
        parse(config)


def trained():
    return tiny.Tiny("similarity", PAIRS, "none", **examples.made(
        {"pooling": "mean", "words": examples.READS["words"], "frozen": examples.READS["frozen"]}))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with pairs, word vectors, a page and a run."""
    home, draw = tmp_path_factory.mktemp("similarity"), random.Random(0)
    paths = {}
    for split, count in (("train", 48), ("dev", 12)):
        texts = [draw.sample(tiny.WORDS, 3) for _ in range(count)]
        paths[split] = str(tiny.write(home / f"{split}.jsonl", [
            {"text": " ".join(words), "text2": " ".join(draw.sample(words, 2))} for words in texts]))
    (home / "page.py").write_text(PAGE.format(**paths))
    (home / "glove.txt").write_text("".join(
        f"{word} {' '.join(f'{draw.gauss(0, 1):.3f}' for _ in range(6))}\n" for word in tiny.WORDS))
    command("train", f"--config={home}/page.py:model=bert_tiny", f"--workdir={home}/run")
    return home


def command(*words, stdin=""):
    """The output of a command that succeeds."""
    answer = small.command(*words, stdin=stdin)
    assert answer.code == 0, answer
    return answer.out


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["features={home}/run,network=bilstm", "vectors={home}/glove.txt",
                                      "features={home}/run,vectors={home}/glove.txt,network=linear"])
def test_pages_choose_its_inputs_and_its_network(home, argument):
    workdir = home / argument.split("=")[0] / argument[-3:]
    command("train", f"--config={home}/page.py:{argument.format(home=home)}", f"--workdir={workdir}",
            "--config.log.report=false")
    first, *_, last = small.losses(workdir, "train")
    assert np.isfinite([first, last]).all() and lmrep.evaluate(workdir)["accuracy"] <= 1


@pytest.mark.slow
def test_every_command_works(home):
    shown = command("evaluate", f"--workdir={home}/run")
    assert "accuracy" in shown and json.loads((home / "run/eval.json").read_text())["intervals"]["accuracy"]
    line = json.loads(command("predict", f"--workdir={home}/run", "--jsonl",
                              stdin='{"text": "cat dog", "text2": "dog cat"}\n'))
    [again] = lmrep.load(home / "run").predict([("cat dog", "dog cat")])
    assert line["similarity"] == pytest.approx(again["similarity"], abs=1e-5)
    assert "Texts whose nearest text is the right one" in (home / "run/report.html").read_text()
    assert "Task similarity" in command("inspect", f"--workdir={home}/run")
    page = f"--config={home}/page.py:model=bert_tiny"
    assert "similarity" in command("plan", page, "--topology=cpu:1", f"--output={home}/plan.json") or (
        home / "plan.json").exists()
