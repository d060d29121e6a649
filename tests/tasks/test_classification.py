"""Classification, and what all tasks share: labels, long texts, batches and heads. (Runs:
`test_classification_runs`.)"""

import itertools
import random
from collections import Counter

import jax
import numpy as np
import pytest
from sklearn.metrics import f1_score
from sklearn.utils.class_weight import compute_class_weight

from lmrep.core.errors import UserError
from lmrep.data import loader
from lmrep.data.formats.base import truncate_pair
from lmrep.experiment import config as experiments
from lmrep.experiment.task_data import prepare_examples
from lmrep.interop import init_from
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs
from lmrep.tasks import classification
from tests.tasks import tiny

CLASSES = ("neg", "pos", "zero")


def examples(count, seed=0, most=12, classes=CLASSES, pairs=True):
    """Texts, and pairs of texts, of 1 to `most` words."""
    draw = random.Random(seed)
    return [{"text": tiny.sentence(draw, draw.randint(1, most)), "label": classes[i % len(classes)]}
            | ({"text2": tiny.sentence(draw, draw.randint(1, most))} if pairs and i % 2 else {}) for i in range(count)]


@pytest.fixture(scope="module")
def task():
    return tiny.Tiny("classification", examples(21))


# Labels


def labels_of(labels):
    records = tiny.as_records([{"text": "cat", "label": label} for label in labels])
    return classification.resolve(classification.Config(), records).labels


@pytest.mark.parametrize(("labels", "expected"), [
    (("pos", "neg", "zero"), ("neg", "pos", "zero")),
    (("10", "9", "-1.5", "1"), ("-1.5", "1", "9", "10")),
    (("nan", "2", "inf", "1", "b"), ("1", "2", "b", "inf", "nan"))])
def test_the_order_of_labels_does_not_depend_on_that_of_the_examples(labels, expected):
    for order in itertools.permutations(labels):
        assert labels_of(order) == expected


def test_a_validation_label_that_training_lacks_is_an_error_that_is_counted(tmp_path, caplog):
    records = examples(6)
    train = tiny.write(tmp_path / "train.jsonl", records)
    dev = tiny.write(tmp_path / "dev.jsonl", [*records[:2], records[2] | {"label": "poz"}])
    config = tiny.config("classification", train, dev)
    experiment = experiments.parse(config)
    prepared = prepare_examples(experiment, experiment.tokenizer)
    assert prepared.experiment.objective["labels"] == ("neg", "pos", "zero")
    [message] = [each for each in caplog.messages if "poz" in each]
    assert "dev.jsonl, line 3: the label is 'poz'" in message and "'pos'" in message and "1 of 3" in message
    outputs = {"log_probabilities": list(np.log(np.tile([0.2, 0.7, 0.1], (3, 1))))}
    metrics = classification.score(experiments.resolve_stages(prepared.experiment)[0].objective,
                                   prepared.records["validation"], prepared.splits["validation"].units, outputs).metrics
    gold = [each["label"] for each in records[:2]]
    assert metrics["accuracy"] == gold.count("pos") / 3
    assert metrics["loss"] == pytest.approx(-np.mean([np.log({"neg": 0.2, "pos": 0.7, "zero": 0.1}[x]) for x in gold]))
    config.objective.labels = ("pos", "neg")
    with pytest.raises(UserError, match=r"train\.jsonl, line \d: the label is 'zero', and config.objective.labels has"):
        prepare_examples(experiments.parse(config), experiment.tokenizer)
    config.objective.labels = ("pos", "poz", "neg", "zero")
    prepared = prepare_examples(experiments.parse(config), experiment.tokenizer)
    assert prepared.experiment.objective["labels"] == ("pos", "poz", "neg", "zero")


def test_training_pairs_are_read_in_both_orders(tmp_path):
    own = [{"text": "cat dog", "text2": "bird", "label": "pos"}, {"text": "fish", "label": "neg"}]
    train, dev = (tiny.write(tmp_path / f"{name}.jsonl", own) for name in ("train", "dev"))
    config = tiny.config("classification", train, dev, format__both_orders=True)
    experiment = experiments.parse(config)
    prepared = prepare_examples(experiment, experiment.tokenizer)
    texts = [(record.fields["text"], record.fields.get("text2")) for record in prepared.records["train"]]
    assert texts == [("cat dog", "bird"), ("bird", "cat dog"), ("fish", None)]
    assert prepared.splits["train"].examples == 3 and prepared.splits["validation"].examples == 2
    train.write_text(train.read_text().splitlines()[1] + "\n" + '{"text": "cat", "label": "pos"}\n')
    with pytest.raises(UserError, match=r"format.both_orders is True, and .*line 1 has no second text"):
        prepare_examples(experiment, experiment.tokenizer)


# Class weights


def test_balanced_weights_are_those_of_scikit_learn():
    labels = [*"aaaabbc"]
    records = tiny.as_records([{"text": "cat", "label": label} for label in labels])
    resolved = classification.resolve(classification.Config(balanced=True), records)
    expected = compute_class_weight("balanced", classes=np.array(resolved.labels), y=np.array(labels))
    np.testing.assert_allclose(resolved.class_weights, expected)
    assert classification.resolve(resolved, records) == resolved  # as a resumed run does


@pytest.mark.parametrize(("fields", "message"), [
    ({"class_weights": (1.0, 2.0)}, "class_weights has 2 values, and there are 3 labels"),
    ({"balanced": True, "labels": (*CLASSES, "none")}, "no example of 'none'; set class_weights")])
def test_weights_belong_to_the_labels(fields, message):
    with pytest.raises(UserError, match=message):
        classification.resolve(classification.Config(**fields), tiny.as_records(examples(9)))


def test_the_loss_of_each_example_is_multiplied_by_the_weight_of_its_class(task):
    """The probabilities do not depend on the weights."""
    weights = (0.5, 2.0, 4.0)
    weighted = tiny.Tiny("classification", examples(21), class_weights=weights)
    store = task.examples()
    batch = store.gather(np.r_[np.arange(21), -1], store.batch_length(np.arange(21)))
    logs = np.stack(task.outputs(store)["log_probabilities"])
    labels = [CLASSES.index(record.fields["label"]) for record in task.records]
    losses = -logs[np.arange(21), labels]
    np.testing.assert_allclose(task.loss(batch)[0], losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(weighted.loss(batch)[0], (losses * np.take(weights, labels)).mean(), rtol=1e-5)
    assert weighted.score().metrics == task.score().metrics


# Long texts


def removed_one_by_one(a, b, capacity):
    while a + b > capacity:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    return a, b


def test_the_longer_text_of_a_pair_is_truncated_first():
    for a, b, capacity in itertools.product(range(13), range(13), range(15)):
        assert truncate_pair(a, b, capacity) == removed_one_by_one(a, b, capacity)


@pytest.fixture(scope="module")
def long():
    """Texts and pairs of up to 12 words each, in units of 9 tokens."""
    return lambda **form: tiny.Tiny("classification", examples(40), length=9, form=form)


def ids(task, text):
    return [] if text is None else task.tokenizer.encode_batch([text])[0].tolist()


def sizes(task):
    """(tokens of the first text, tokens of the second one or None) of each example."""
    return [(len(ids(task, fields["text"])), len(ids(task, fields["text2"])) if "text2" in fields else None)
            for fields in (record.fields for record in task.records)]


def too_long(task):
    return [a + (b or 0) > task.length - (2 if b is None else 3) for a, b in sizes(task)]


def test_truncated_texts_are_counted_and_end_where_they_should(long):
    task = long(long="truncate")
    units, count = task.encode()
    assert count == sum(too_long(task)) and 0 < count < 40
    for i, (record, (a, b)) in enumerate(zip(task.records, sizes(task), strict=True)):
        kept = (min(a, 7), 0) if b is None else removed_one_by_one(a, b, 6)
        text, second = ids(task, record.fields["text"]), ids(task, record.fields.get("text2"))
        [cls], [sep] = task.layout.lead, task.layout.tail
        expected = [cls, *text[: kept[0]], sep] + ([*second[: kept[1]], sep] if b is not None else [])
        assert units.tokens[units.offsets[i] : units.offsets[i + 1]].tolist() == expected


def test_windows_cover_every_token_and_the_label_is_that_of_their_mean(long):
    task = long(long="windows", stride=3)
    units, count = task.encode()
    assert count == sum(too_long(task))
    for i, (record, (_, b)) in enumerate(zip(task.records, sizes(task), strict=True)):
        own = np.flatnonzero(units.example == i)
        assert (len(own) > 1) <= too_long(task)[i] and (units.lengths[own] <= 9).all()
        assert set(units.columns["label"][own]) == {task.config.labels.index(record.fields["label"])}
        windows = [units.tokens[units.offsets[u] : units.offsets[u + 1]].tolist() for u in own]
        if b is None:
            text = ids(task, record.fields["text"])
            assert all(window[1:-1] == text[3 * n : 3 * n + 7] for n, window in enumerate(windows))
            assert windows[-1][1:-1][-1] == text[-1]
        else:
            [sep], first = task.layout.tail, ids(task, record.fields["text"])
            parts = [(window[1 : window.index(sep)], window[window.index(sep) + 1 : -1]) for window in windows]
            second = ids(task, record.fields["text2"])
            longer = len(first) <= len(second)
            assert parts[0][longer][0] == (first, second)[longer][0]
            assert parts[-1][longer][-1] == (first, second)[longer][-1]
            kept = (second, first)[longer][: max(3, 6 - max(len(first), len(second)))]
            assert all(part[not longer] == kept for part in parts)
    logs, result = np.stack(task.outputs(task.examples())["log_probabilities"]), task.score()
    for i, prediction in enumerate(result.predictions):
        mean = np.exp(logs[units.example == i].mean(0))
        np.testing.assert_allclose(list(prediction["probabilities"].values()), mean / mean.sum(), rtol=1e-4)


# Batches


@pytest.mark.parametrize("batch_size", [4, 32])
def test_every_epoch_shows_each_example_once(task, batch_size):
    store = task.examples()
    steps = store.steps_per_epoch(batch_size)
    batches = list(loader.batches(store, batch_size=batch_size, indices=np.arange(batch_size), seed=3, first_step=0,
                                  last_step=3 * steps))
    epochs = [np.concatenate([batch["example"] for batch in batches[i * steps : (i + 1) * steps]]) for i in range(3)]
    for shown in epochs:
        assert len(shown) == steps * batch_size and sorted(shown[shown >= 0]) == list(range(21))
    assert len({tuple(shown[shown >= 0]) for shown in epochs}) == 3
    assert all((batch["example"] >= 0).any() for batch in batches)
    for batch in batches:  # the tokens of an example are those of its unit
        for example, tokens, segments in zip(batch["example"], batch["tokens"], batch["segment_ids"], strict=True):
            start, end = store.units.offsets[example : example + 2] if example >= 0 else (0, 0)
            assert tokens[segments > 0].tolist() == store.units.tokens[start:end].tolist()


# Metrics


def test_metrics_count_every_example_once_and_no_empty_one(task):
    result = task.score(batch_size=4)
    gold = [record.fields["label"] for record in task.records]
    chosen = [prediction["label"] for prediction in result.predictions]
    probability = [prediction["probabilities"][label]
                   for prediction, label in zip(result.predictions, gold, strict=True)]
    assert result.metrics == pytest.approx({
        "accuracy": np.mean(np.array(chosen) == gold), "majority_accuracy": max(Counter(gold).values()) / 21,
        "loss": -np.log(probability).mean()}, rel=1e-5)
    alone = [prediction["probabilities"] for prediction in task.score(batch_size=21).predictions]  # no empty sequences
    for prediction, expected in zip(result.predictions, alone, strict=True):
        assert prediction["probabilities"] == pytest.approx(expected, rel=1e-4)


def test_predictions_have_the_most_probable_of_many_classes_and_the_own_one():
    labels = tuple(f"class{i}" for i in range(30))
    task = tiny.Tiny("classification", [{"text": "cat", "label": label} for label in labels])
    logs = [np.log(np.arange(1, 31) / 465)] * 30
    result = task.task.score(task.config, task.records, task.encode()[0], {"log_probabilities": logs})
    best = [label for _, label in sorted(zip(logs[0], task.config.labels, strict=True), reverse=True)][:10]
    assert result.metrics["loss"] == pytest.approx(-np.mean(logs[0]))
    for record, prediction in zip(task.records, result.predictions, strict=True):
        probabilities, own = prediction["probabilities"], record.fields["label"]
        assert list(probabilities) == best + [own] * (own not in best) and prediction["label"] == best[0]
        number = task.config.labels.index(own)
        assert task.task.compare(task.config, record, prediction).loss == pytest.approx(-logs[0][number])
    unlabelled = [record._replace(fields={"text": "cat"}) for record in task.records]
    result = task.task.score(task.config, unlabelled, task.encode()[0], {"log_probabilities": logs})
    assert all(list(prediction["probabilities"]) == best for prediction in result.predictions)


def scored(labels, chosen, **fields):
    """The metrics of predictions."""
    task = tiny.Tiny("classification", [{"text": "cat", "label": label} for label in labels], **fields)
    own, (units, _) = task.config.labels, task.encode()
    logs = [np.log(np.where(np.array(own) == label, 0.9, 0.1)) for label in chosen]
    return task.task.score(task.config, task.records, units, {"log_probabilities": logs}).metrics


def test_f1_is_that_of_the_positive_class():
    gold, chosen = ["0", "1", "1", "0", "0", "0"], ["0", "1", "0", "1", "0", "0"]
    for positive, expected in (("", "1"), ("0", "0"), ("1", "1")):
        found = scored(gold, chosen, metrics=("f1",), positive=positive)
        assert found["f1"] == pytest.approx(f1_score(gold, chosen, pos_label=expected))
        assert found["accuracy"] == pytest.approx(4 / 6)  # by which checkpoints are compared


# Heads


def by_hand(task, i, position):
    """The log-probabilities of unit i, by itself: the head on the network's output at `position`."""
    units, _ = task.encode()
    span = slice(units.offsets[i], units.offsets[i + 1])
    inputs = {"tokens": units.tokens[None, span]}
    if "token_type_ids" in task.model.inputs:
        inputs["token_type_ids"] = units.token_types[None, span].astype(np.int32)
    if task.config.context == "left" and "attention_mask" in task.model.inputs:
        inputs["attention_mask"] = AttentionMask(np.ones_like(inputs["tokens"]), causal=True)
    hidden = jax.jit(task.model.encode)(task.params["encoder"], Inputs(**inputs)).hidden[0, position]
    head = task.params["objective"]["classification"]
    if "dense" in head:
        hidden = np.tanh(hidden @ head["dense"]["kernel"] + head["dense"]["bias"])
    return jax.nn.log_softmax(hidden @ head["out"]["kernel"] + head["out"].get("bias", 0))


@pytest.mark.parametrize(("model", "fields", "position"), [
    ("transformer", {}, 0),
    pytest.param("transformer", {"context": "left", "dense": False, "bias": False}, -1, marks=pytest.mark.slow),
    ("lstm", {"context": "left"}, -1)])
def test_the_head_reads_the_first_position_or_the_last_of_a_left_context(model, fields, position):
    task = tiny.Tiny("classification", examples(4), model=model, **fields)
    found = task.outputs(task.examples(), 4)["log_probabilities"]
    for i in range(4):
        np.testing.assert_allclose(found[i], by_hand(task, i, position), rtol=1e-4, atol=1e-5)


# Where a head starts

SOURCE = init_from.SourceCheckpoint(
    "runs/old", [], {"encoder/w": np.ones(1), "objective/pair/pooler/kernel": np.full(1, 2.0),
                     "objective/classification/out/kernel": np.full(1, 3.0)}, {},
    {"name": "classification", "labels": ("a", "b")})
INITIAL = {"objective/classification/dense": "objective/pair/pooler"}


def started(labels=("a", "b"), new=False, source=SOURCE, **fields):
    found = init_from.for_task(source, INITIAL, {"name": "classification", "labels": labels, **fields}, new)
    return {path: float(value[0]) for path, value in found.params.items() if not path.startswith("objective/pair")}


def test_a_head_starts_from_the_pooler_and_from_a_head_for_the_same_classes():
    assert started() == {"encoder/w": 1, "objective/classification/dense/kernel": 2,
                         "objective/classification/out/kernel": 3}
    both = SOURCE._replace(params=SOURCE.params | {"objective/classification/dense/kernel": np.full(1, 4.0)})
    assert started(source=both)["objective/classification/dense/kernel"] == 4
    assert "objective/classification/dense/kernel" not in started(hidden=5)  # a pooler has another width


def test_a_head_with_a_norm_starts_from_the_masked_lm_head():
    """As ModernBERT's; unless that is of another width, or the head has no norm."""
    source = SOURCE._replace(params=SOURCE.params | {
        "objective/masked/transform/kernel": np.full(1, 5.0), "objective/masked/norm/scale": np.full(1, 6.0),
        "objective/masked/bias": np.full(1, 7.0)})

    def head(**fields):
        found = started(**{"source": source} | fields)
        return {path.rpartition("classification/")[2]: value for path, value in found.items()
                if path.startswith("objective/classification/")}

    assert head(norm=True) == {"dense/kernel": 5, "norm/scale": 6, "out/kernel": 3}
    assert head() == {"dense/kernel": 2, "out/kernel": 3} and head(norm=True, new=True) == {}
    assert head(norm=True, hidden=5) == {"out/kernel": 3}
    assert head(norm=True, source=source._replace(network={"embedding": 4})) == {"dense/kernel": 2, "out/kernel": 3}


def test_a_new_head_takes_nothing_but_the_network():
    assert started(new=True) == started(("x", "y"), new=True) == {"encoder/w": 1}


@pytest.mark.parametrize("labels", [("a", "c"), ("b", "a"), ("a", "b", "c")])
def test_a_head_for_other_classes_is_refused(labels):
    with pytest.raises(UserError, match=r"init has a head for the labels a, b, in this order \(runs/old\), and this "
                                        rf"run has {', '.join(labels)}; .*--config\.head=new"):
        started(labels)
    other = SOURCE._replace(objective={"name": "tagging", "labels": ("a", "b")})
    assert "encoder/w" in started(labels, source=other)
