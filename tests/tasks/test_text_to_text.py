"""Texts from texts: sources and targets, losses, generation and metrics."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lmrep
from lmrep.cli import predict as predict_command
from lmrep.core.errors import UserError
from lmrep.inference.evaluate_task import intervals
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.models.base import Context, model_inputs
from lmrep.models.decoding import Search
from lmrep.objectives.outputs import output_table
from lmrep.tasks import text_to_text
from lmrep.tasks.text_metrics import TEXT_METRICS
from lmrep.tasks.text_to_text import Config
from tests import runs, small
from tests.tasks import tiny
from tests.tasks.tiny import Tiny

PAIRS = [{"text": "cat dog bird", "target": "bird dog cat"}, {"text": "fish", "target": "fish"},
         {"text": "horse mouse tree stone cat", "target": "cat stone tree mouse horse"}]
SIZES = {"head_width": 0, "max_length": 0}


def task(records=PAIRS, model="encoder_decoder", **fields):
    return Tiny("text_to_text", records, model, sizes=SIZES, **{"max_target": 8} | fields)


@pytest.fixture(scope="module")
def whole():
    return task()


@pytest.fixture(scope="module")
def lstm():
    return task(model="seq2seq_lstm")


def test_sources_and_targets_end_and_start_as_in_t5(whole):
    """The decoder reads padding, then the target without its end."""
    special, encode = whole.tokenizer.vocabulary.specials, lambda text: whole.tokenizer.encode(text).ids.tolist()
    batch = whole.examples().gather(np.arange(3))
    ready = whole.objective.prepare(None, batch)
    for i, record in enumerate(PAIRS):
        real, source = batch["segment_ids"][i] > 0, batch["source"]["segment_ids"][i] > 0
        ids = [*encode(record["target"]), special["sep"]]
        assert ready["targets"][i][real].tolist() == ids
        assert ready["tokens"][i][real].tolist() == [special["pad"], *ids[:-1]]
        assert batch["source"]["tokens"][i][source].tolist() == [*encode(record["text"]), special["sep"]]
        np.testing.assert_allclose(ready["weights"][i], real / 12, rtol=1e-6)


def test_templates_read_fields_and_numbers_are_rounded():
    records = tiny.as_records([{"text": "cat", "text2": "dog", "target": "3.77"}, {"text": "fish", "target": "bird"}])
    c = Config(template="pair: {text} {text2}", round_to=0.2)
    assert text_to_text._source(c, records[0]) == "pair: cat dog"
    assert text_to_text.target(c, records[0]) == "3.8" and text_to_text.target(c, records[1]) == "bird"


def test_long_texts_are_cut():
    units, long = task(max_target=4, form={"long": "truncate"}).encode()
    assert long == 1 and units.lengths.tolist() == [4, 2, 4] and units.source.lengths.tolist() == [4, 2, 6]


def test_batches_have_a_length_for_sources_and_one_for_targets(whole):
    examples = task([{"text": "cat " * 20, "target": "dog"}], max_target=8).examples()
    batch = examples.gather(np.arange(1), examples.batch_length(np.arange(1)))
    assert batch["tokens"].shape == (1, 8) and batch["source"]["tokens"].shape == (1, 24)
    assert whole.examples().batch_length(np.array([1, -1])) == (8, 8)


@pytest.mark.parametrize("search", [Search(), *(pytest.param(search, marks=pytest.mark.slow) for search in (
    Search(beams=3), Search(temperature=1.0, samples=2)))])
def test_rows_of_a_padded_table_are_not_generated(whole, search):
    """The table of T5 has 28 rows more than its tokenizer has tokens."""
    table = whole.params["encoder"]["embedding"]["token"]
    padded = np.concatenate([table, -100 * table, 100 * table])
    params = whole.params | {"encoder": whole.params["encoder"] | {"embedding": {"token": padded}}}
    batch = whole.examples().gather(np.arange(3))
    predict = jax.jit(partial(whole.objective.predict, c=replace(whole.config, search=search)))
    assert predict(params, batch)["units"]["generated"].max() < len(table)


@pytest.mark.parametrize("name", ["whole", pytest.param("lstm", marks=pytest.mark.slow)])
def test_generation_continues_with_the_most_probable_token(name, request):
    """Greedy search with the cache equals the argmax of the network that reads the text so far."""
    whole = request.getfixturevalue(name)
    examples, model = whole.examples(), whole.model
    batch, special = examples.gather(np.arange(3)), whole.tokenizer.vocabulary.specials
    found = whole.predict(whole.params, batch)["units"]["generated"][:, 0, 0]
    text = np.full((3, 8), special["pad"], np.int32)
    for step in range(8):
        inputs = np.concatenate([np.full((3, 1), special["pad"], np.int32), text[:, :-1]], 1)
        own = batch | {"tokens": inputs, "segment_ids": np.ones((3, 8), np.int32)}
        inputs = model_inputs(model, own, conditions_on=Context.SOURCE, positions=False)
        hidden = model.encode(whole.params["encoder"], inputs).hidden
        table = output_table(model, whole.params, whole.params.get("objective", {}).get("text_to_text"))
        logits = jnp.einsum("bte,ve->btv", hidden, table)
        text[:, step] = np.asarray(logits[:, step].argmax(-1))
    for own, ids in zip(text.tolist(), found.tolist(), strict=True):
        end = own.index(special["sep"]) + 1 if special["sep"] in own else 8
        assert ids == own[:end] + [special["pad"]] * (8 - end)


def test_predictions_have_texts_and_metrics(whole):
    result = whole.score()
    texts = [prediction["text"] for prediction in result.predictions]
    assert result.metrics["bleu"] == TASK_METRICS["bleu"].function([record["target"] for record in PAIRS], texts)
    batch = whole.examples().gather(np.arange(3))
    np.testing.assert_allclose(result.metrics["loss"], whole.loss(batch)[0], rtol=1e-5)
    files = text_to_text.submission(whole.config, whole.records, result)
    assert files["predictions.txt"].splitlines() == texts and "tok:13a" in files["sacrebleu.txt"]
    unknown = task([{"text": "cat"}, *PAIRS])
    assert unknown.score().metrics == {} and len(unknown.score().predictions) == 4


@pytest.mark.slow
def test_classes_and_numbers_are_measured_as_by_heads():
    records = [{"text": word, "target": target} for word, target in zip(tiny.WORDS, "01101001", strict=True)]
    own = task(records, metrics=("accuracy", "f1", "matthews", "pearson"), positive="1", max_target=3)
    metrics = own.score().metrics
    assert metrics["majority_accuracy"] == 0.5
    assert {"accuracy", "f1", "matthews", "pearson"} <= metrics.keys()


@pytest.mark.slow
def test_numbers_in_texts_are_measured_with_intervals():
    """What is no number counts as 0."""
    records = [{"text": word, "target": f"{i / 2}"} for i, word in enumerate(tiny.WORDS)]
    result = task(records, metrics=("pearson", "spearman")).score()
    texts = ["0.0", "1", "none", "1.4", "2.2", "2.4", "nan", "3.6"]
    found = intervals(result._replace(predicted=texts))
    numbers = [0, 1, 0, 1.4, 2.2, 2.4, 0, 3.6]
    gold = [i / 2 for i in range(8)]
    for name in ("pearson", "spearman"):
        own = TEXT_METRICS[name].function(result.gold, texts)
        assert own == TASK_METRICS[name].function(gold, numbers)
        assert found[name][0] <= own <= found[name][1]


@pytest.fixture(scope="module")
def home():
    """The folder of the shared run."""
    return runs.folder("text_to_text")


def config(home, **fields):
    own = {"model__" + name: value for name, value in SIZES.items()} | {"objective__max_target": 8, "epochs": 6.0}
    return tiny.config("text_to_text", home / "train.jsonl", home / "dev.jsonl", **own | fields)


def test_a_run_learns_to_copy(home):
    lines = small.lines(home / "run", "validation")
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"] and lines[-1]["chrf"] > lines[0]["chrf"]
    (prediction,) = lmrep.load(home / "run").predict(["cat dog"])
    assert set(prediction) == {"text", "score"}


@pytest.mark.slow
def test_a_run_is_evaluated_with_beams_and_sampled(home, tmp_path, monkeypatch):
    runs.copy("text_to_text", tmp_path / "run")
    lines = small.lines(tmp_path / "run", "validation")
    found = lmrep.evaluate(tmp_path / "run", search={"beams": 3, "length_penalty": 0.6, "penalty": "gnmt"})
    best = next(line for line in lines if line["step"] == lmrep.load(tmp_path / "run").step)
    assert found["loss"] == pytest.approx(best["loss"], rel=1e-5)
    with pytest.raises(UserError, match="beams is 0"):
        lmrep.evaluate(tmp_path / "run", search={"beams": 0})
    check_predictions(lmrep.load(tmp_path / "run"))
    check_printed_draws(tmp_path / "run", monkeypatch)


def check_predictions(run):
    """Searched and drawn texts of a run, in Python and as printed."""
    sources = ["cat dog", "fish", "tree stone bird"]
    greedy = run.predict(sources)
    assert run.predict(sources, temperature=1e-6) == run.predict(sources, temperature=2.0, top_k=1) == greedy
    found, plain = (run.predict(sources, beams=beams, length_penalty=0.0) for beams in (8, 1))
    assert sum(each["score"] for each in found) >= sum(each["score"] for each in plain) - 1e-4
    drawn = run.predict(sources, temperature=1.5, samples=5, seed=3)
    assert drawn == run.predict(sources, temperature=1.5, samples=5, seed=3)
    assert [len(each["texts"]) for each in drawn] == [5, 5, 5] and len(set(drawn[2]["texts"])) > 1
    assert all(each["text"] == each["texts"][0] and len(each["scores"]) == 5 for each in drawn)
    assert run.predict(sources[:1], temperature=1.5, samples=2, seed=3)[0]["texts"] == drawn[0]["texts"][:2]
    assert run.predict(sources, temperature=1.5, samples=5, seed=4) != drawn
    [capability] = run.capabilities
    assert capability.to_text("cat dog", drawn[0], run.tokenizer).splitlines() == [
        f"{text}\tcat dog" for text in drawn[0]["texts"]]
    for options, message in (({"samples": 2}, "samples is 2 and temperature 0"),
                             ({"temperature": 1.0, "beams": 2}, "beams is 2 and temperature 1"),
                             ({"penalty": "none"}, "penalty is 'none'; expected one of power, gnmt")):
        with pytest.raises(UserError, match=message):
            run.predict(sources, **options)


def check_printed_draws(directory, monkeypatch):
    """They do not depend on how many lines are read at a time, and those of equal lines differ."""
    words = (f"--workdir={directory}", "--temperature=1.5", "--samples=3")
    together = small.command("predict", *words, stdin="cat dog\n" * 4)
    monkeypatch.setattr(predict_command, "LINES", 2)
    assert together.code == 0 and small.command("predict", *words, stdin="cat dog\n" * 4) == together
    lines = together.out.splitlines()
    assert len({tuple(lines[i : i + 3]) for i in range(0, 12, 3)}) == 4
    assert small.command("predict", *words, "--first=1", stdin="cat dog\n" * 3).out.splitlines() == lines[3:]


@pytest.mark.slow
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(home, tmp_path):
    """With batches of limited tokens. (Packed pairs: `test_sources`.)"""
    fields = {"steps": 6, "checkpoint__every": 2, "checkpoint__keep": 2, "model__dropout": 0.1,
              "format__batch_tokens": 64}
    lmrep.train(config(home, **fields), tmp_path / "one")
    small.interrupted(tmp_path / "one", tmp_path / "two")
    lmrep.train(config(home, **fields), tmp_path / "two")
    assert small.lines(tmp_path / "two") == small.lines(tmp_path / "one")
    jax.tree.map(np.testing.assert_array_equal, *(lmrep.load(tmp_path / name).params for name in ("one", "two")))
