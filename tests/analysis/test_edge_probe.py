"""Edge probes: targets of files, pooling of spans, control tasks, scores and description lengths."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

import lmrep
from lmrep.analysis import edge_probe, probes, span_classifier
from lmrep.analysis.edge_probe import Edge
from lmrep.analysis.span_classifier import Targets
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.interop import checkpoint_config
from lmrep.layers import linear
from tests import small
from tests.analysis.test_structural_probe import treebank
from tests.tasks import tiny


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(span_classifier, "STEPS", 40)
    monkeypatch.setattr(span_classifier, "BATCH", 16)
    monkeypatch.setattr(span_classifier, "WIDTH", 8)
    monkeypatch.setattr(span_classifier, "RATE", 0.02)


def targets(draw, count, spans=1, labels=2, layers=1):
    """Random spans of 1 to 3 of 600 tokens, and random labels."""
    first = draw.integers(597, size=(count, spans))
    ends = first + draw.integers(1, 4, size=(count, spans))
    x = draw.normal(size=(layers, 600, 6)).astype(np.float32)
    return Targets(x, np.stack([first, ends], -1), np.eye(labels, dtype=bool)[draw.integers(labels, size=count)])


# The classifier


def test_a_span_of_one_token_is_its_projection_and_longer_ones_are_weighted_means():
    draw = np.random.default_rng(0)
    attention = P.init({"attention": linear.specs(4, 1, (None, None))}, jax.random.key(0))["attention"]
    x = draw.normal(size=(5, 4)).astype(np.float32)
    pool = jax.jit(span_classifier.pool, static_argnums=3)
    pooled = np.asarray(pool(attention, x, np.array([0, 1, 1, 1, 3]), 3))
    np.testing.assert_allclose(pooled[0], x[0], rtol=1e-6)
    weights = np.exp(x[1:4] @ attention["kernel"] + attention["bias"])
    np.testing.assert_allclose(pooled[1], (weights / weights.sum() * x[1:4]).sum(0), rtol=1e-5)
    assert not pooled[2].any()  # without tokens; the last token is padding


def test_batches_have_all_tokens_of_the_chosen_spans():
    """Of each span, the tokens follow each other; a token says which of the chosen targets it belongs to."""
    spans = np.array([[[2, 5], [0, 1]], [[7, 8], [4, 6]], [[1, 3], [1, 4]]])
    batch = span_classifier.batch_of(Targets(None, spans, np.eye(3, dtype=bool)), np.array([2, 0]), 4)
    for i, (tokens, owners) in enumerate((([1, 2, 2, 3, 4], [0, 0, 1, 1, 1]), ([1, 2, 3, 0], [0, 0, 0, 1]))):
        assert batch.token[i][batch.target[i] < 4].tolist() == tokens
        assert batch.target[i][batch.target[i] < 4].tolist() == owners
    assert batch.labels[:2].argmax(1).tolist() == [2, 0] and batch.weights.tolist() == [0.5, 0.5, 0, 0]


def test_padding_changes_neither_logits_nor_gradients():
    """Of a batch of two spans, in one with more targets and tokens."""
    data = targets(np.random.default_rng(1), 5, spans=2, labels=3, layers=2)
    params = P.init(span_classifier.specs(2, 6, 2, 3), jax.random.key(0))
    params["output"]["kernel"] = jax.random.normal(jax.random.key(1), params["output"]["kernel"].shape)

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def gradients(params, batch):
        y = span_classifier.logits(params, jnp.asarray(data.x), batch)
        return (span_classifier.losses(y, batch.labels, False) * batch.weights).sum(), y

    small_, large = (span_classifier.batch_of(data, np.arange(5), size) for size in (5, 16))
    assert large.token.shape[1] > small_.token.shape[1]
    (g, y), (padded_g, padded_y) = (gradients(params, batch) for batch in (small_, large))
    np.testing.assert_allclose(padded_y[:5], y, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), padded_g, g)


def test_a_label_of_the_second_span_is_found_in_its_layer_by_the_mix():
    """The second of two layers holds the label; in the first there is noise."""
    draw = np.random.default_rng(2)
    train, held_out = targets(draw, 400, 2, layers=2), targets(draw, 100, 2, layers=2)
    train, held_out = (data._replace(labels=np.eye(2, dtype=bool)[
        (data.x[1, data.spans[:, 1, 0], 0] > 0).astype(int)], spans=np.stack(
            [data.spans[:, 0], data.spans[:, 1, :1] + [0, 1]], 1)) for data in (train, held_out))
    params = span_classifier.fit(train._replace(x=jnp.asarray(train.x)), np.arange(400), softmax=True)
    y = span_classifier.predict(params, held_out._replace(x=jnp.asarray(held_out.x)), np.arange(100))
    assert (y.argmax(1) == held_out.labels.argmax(1)).mean() > 0.9
    assert np.diff(params["mix"]["scores"]) > 1


# Description lengths


def test_portions_are_those_of_the_paper_and_blocks_without_targets_are_left_out():
    assert span_classifier.portions(100_000) == [
        100, 200, 400, 800, 1600, 3200, 6250, 12500, 25000, 50000, 100000]
    assert span_classifier.portions(8) == [1, 2, 4, 8] and span_classifier.portions(1) == [1]


def test_the_code_of_one_block_is_uniform_and_random_labels_are_not_compressed(monkeypatch):
    draw = np.random.default_rng(3)
    data, held_out = targets(draw, 120, labels=4), targets(draw, 60, labels=4)
    assert span_classifier.code_length(data._replace(labels=data.labels[:1], spans=data.spans[:1]), held_out) == 2
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr(span_classifier, "fit", lambda *_: {})
        patch.setattr(span_classifier, "_loss", lambda *_: 0.0)
        bits = span_classifier.code_length(data, held_out, trained=lambda: calls.append(1))
    assert bits == 2 * 1 and len(calls) == 7  # one target of the first block, log2(4) bits; blocks of 120 targets
    monkeypatch.setattr(span_classifier, "STEPS", 20)
    monkeypatch.setattr(span_classifier, "PORTIONS", (10, 50, 100))
    assert 0.9 < 120 * 2 / span_classifier.code_length(data, held_out) < 1.1


def test_labels_that_a_layer_holds_are_compressed(monkeypatch):
    monkeypatch.setattr(span_classifier, "PORTIONS", (10, 50, 100))
    draw = np.random.default_rng(4)
    data, held_out = targets(draw, 300), targets(draw, 60)
    planted = [part._replace(labels=np.eye(2, dtype=bool)[(part.x[0, part.spans[:, 0, 0], 0] > 0).astype(int)],
                             spans=part.spans[..., :1] + [0, 1]) for part in (data, held_out)]
    assert 300 / span_classifier.code_length(*planted) > 2


# Control tasks and scores


def test_control_labels_depend_on_the_words_and_the_seed_alone():
    words = [f"w{i}" for i in range(3000)]
    labels = [("a",)] * 8 + [("b", "c")] * 2
    drawn = edge_probe.control(words, labels, 0)
    assert edge_probe.control([*words[::-1], "new"], labels, 0)[:3000] == drawn[::-1]
    assert edge_probe.control(words, labels, 1) != drawn
    assert drawn.count(("a",)) / 3000 == pytest.approx(0.8, abs=0.03)  # as frequent as in the task


def test_micro_f1_is_that_of_scikit_learn(monkeypatch):
    """Also with labels that the training data lacks, which no classifier predicts."""
    draw = np.random.default_rng(5)
    y, names = draw.normal(size=(40, 3)), ["a", "b", "c"]
    gold = [tuple(name for name in "abcd" if draw.random() < 0.4) for _ in range(40)]
    monkeypatch.setattr(span_classifier, "predict", lambda *_: y)
    result = edge_probe.score({}, None, gold, sorted(draw.integers(9, size=40).tolist()), names)
    true = np.array([[name in labels for name in "abcd"] for labels in gold])
    expected = sklearn.metrics.f1_score(true, np.pad(y > 0, ((0, 0), (0, 1))), average="micro")
    assert result.metrics == {"micro_f1": pytest.approx(expected)}


# Files


def test_published_targets_are_parsed():
    line = {"text": " Ann  left\u00a0Rome", "info": 1, "targets": [
        {"span1": [1, 2], "span2": [0, 1], "label": "A0", "info": {}}, {"span1": [0, 3], "label": ["x", 1, "x"]},
        {"span1": [0, 1], "label": []}]}
    record = edge_probe.parse(json.dumps(line), "")
    assert record.fields["words"] == ["Ann", "left", "Rome"]
    assert record.fields["targets"] == [
        Edge(("A0",), ((1, 2), (0, 1))), Edge(("x", "1"), ((0, 3),)), Edge((), ((0, 1),))]


@pytest.mark.parametrize("change", [
    {"span1": [1, 4]}, {"span1": [1, 1]}, {"span1": [-1, 1]}, {"span1": None}, {"span2": "0"}, {"label": None},
    {"label": [[]]}, {"span1": [0, 1.0]}])
def test_a_target_that_is_no_span_of_words_is_refused(change):
    target = {"span1": [0, 2], "label": "x"} | change
    with pytest.raises(UserError, match=r"x\.jsonl, line 3 has the target .* of 3 words"):
        edge_probe.parse(json.dumps({"text": "a b c", "targets": [target]}), "x.jsonl, line 3")
    for line in ("{", "[]", '{"text": " ", "targets": []}', '{"text": "\\ud800", "targets": []}'):
        with pytest.raises(UserError, match=r"x\.jsonl, line 3"):
            edge_probe.parse(line, "x.jsonl, line 3")


def experiment(home, train, validation, *fields):
    page = "experiments/tasks/ud_pos.py" if train.endswith("conllu") else "experiments/tasks/tag.py"
    return experiments.parse(checkpoint_config.load_config(page, f"init={home}/run", [
        ("data.train", f"{home}/{train}"), ("data.validation", f"{home}/{validation}"), *fields]))


def test_arcs_and_tags_and_entities_are_targets(small_home):
    treebank(small_home / "arcs.conllu", 3, seed=0)
    prepared = edge_probe.prepare(experiment(small_home, "arcs.conllu", "arcs.conllu"), "arcs", mdl=True)
    record = prepared.records["train"][0]
    assert record.fields["targets"][:2] == [Edge(("dep",), ((0, 1), (0, 1))), Edge(("dep",), ((1, 2), (0, 1)))]
    assert len(record.fields["targets"]) == len(record.fields["words"])
    tags = edge_probe.prepare(experiment(small_home, "arcs.conllu", "arcs.conllu"), "tags").records["validation"][0]
    assert tags.fields["targets"][-1] == Edge(("PUNCT",), ((len(tags.fields["words"]) - 1, len(tags.fields["words"])),))
    (small_home / "ner.bio").write_text("a B-X\nb I-X\nc O\nd B-Y\n\ne O\nf O\n\n")
    entities = edge_probe.prepare(experiment(small_home, "ner.bio", "ner.bio"), "tags").records["train"]
    assert [record.fields["targets"] for record in entities] == [[Edge(("X",), ((0, 2),)), Edge(("Y",), ((3, 4),))]]


@pytest.mark.slow
@pytest.mark.parametrize("length", [32, 10])  # the second reads sentences in windows
def test_spans_have_the_tokens_of_their_words(small_home, length):
    treebank(small_home / "few.conllu", 6, seed=3)
    prepared = edge_probe.prepare(experiment(small_home, "few.conllu", "few.conllu", ("length", str(length))), "arcs")
    run, records = lmrep.load(small_home / "run"), prepared.records["train"]
    params = P.map_paths(lambda path, x: 0 * x if "position" in path else x, run.params)["encoder"]
    model = build.experiments.build_model(prepared.experiment, run.tokenizer.size)
    c = experiments.resolve_stages(prepared.experiment)[0].objective
    split = edge_probe.encode(params, model, c, records, prepared.splits["train"])
    tokens = [run.tokenizer.encode(word).ids for record in records for word in record.fields["words"]]
    np.testing.assert_array_equal(np.diff(split.spans[:, 0]).ravel(), [len(ids) for ids in tokens])
    assert split.words == [word for record in records for word in record.fields["words"]]
    by_id = {}  # without positions, the embeddings of a token are the same everywhere
    for (first, end), ids in zip(split.spans[:, 0], tokens, strict=True):
        for i, x in zip(ids, split.x[0, first:end], strict=True):
            np.testing.assert_allclose(x, by_id.setdefault(i, x), atol=1e-5)
    heads = [edge.spans[1] for record in records for edge in record.fields["targets"]]
    assert [split.spans[:, 1].tolist()[i][0] for i in range(3)] == [
        split.spans[head[0], 0, 0] for head in heads[:3]]


# The command


def planted(path, count, seed, **labels):
    """Pairs of words of random sentences, labelled by whether the first is one of the first half of the words."""
    draw, rows = np.random.default_rng(seed), []
    for _ in range(count):
        words = [str(draw.choice(tiny.WORDS)) for _ in range(6)]
        rows.append({"text": " ".join(words), "targets": [
            {"span1": [i, i + 1], "span2": [4, 6], "label": labels.get(words[i], str(tiny.WORDS.index(words[i]) % 2))}
            for i in range(4)]})
    tiny.write(path, rows)


@pytest.mark.slow
def test_targets_are_probed_in_every_layer_and_in_the_mix(small_home, monkeypatch):
    monkeypatch.setattr(span_classifier, "PORTIONS", (10, 50, 100))
    planted(small_home / "train.jsonl", 60, 0)
    planted(small_home / "dev.jsonl", 20, 1)
    words = ("probe", "--config=experiments/tasks/tag.py", f"--workdir={small_home}/run", "--config.length=32",
             f"--config.data.train={small_home}/train.jsonl", f"--config.data.validation={small_home}/dev.jsonl")
    answer = small.command(*words, "--edges=targets", "--mdl", "--untrained", "--examples=50")
    assert answer.code == 0, answer.err
    assert "200 training and 80 validation targets with 2 labels" in answer.out and "0.20 kbit" in answer.out
    for name in ("0 (embeddings)", "mix", "untrained 2", "selectivity", "control compression"):
        assert name in answer.out
    [result] = [each for each in probes.read(small_home / "run/probes.json") if each["task"] == "edges_targets"]
    assert [layer["layer"] for layer in result["layers"]] == [0, 1, 2, "mix"] and len(result["untrained"]) == 4
    metrics = result["layers"][0]["metrics"]
    assert metrics["micro_f1"] > 0.9 and metrics["compression"] > 1  # words are in the embeddings
    assert metrics["selectivity"] == pytest.approx(metrics["micro_f1"] - metrics["control_f1"])
    assert metrics["compression"] == pytest.approx(metrics["uniform_code_length"] / metrics["code_length"])
    planted(small_home / "dev.jsonl", 20, 1, **{tiny.WORDS[0]: ["0", "1"]})
    answer = small.command(*words, "--edges=targets", "--mdl")
    assert answer.code == 2 and "dev.jsonl, line " in answer.err and "leave --mdl out" in answer.err
    assert small.command(*words, "--edges=targets").code == 0
    for flags, message in ((["--mdl"], "--edges"), (["--edges=targets", "--trees"], "--trees"),
                           (["--edges=x"], "arcs")):
        answer = small.command(*words, *flags)
        assert answer.code == 2 and message in answer.err
