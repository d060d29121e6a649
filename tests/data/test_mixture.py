"""Mixtures: the proportions of the sources at any step, their examples, and their common tokenizer."""

import dataclasses

import numpy as np
import pytest

from lmrep.data import tokenizers
from lmrep.data.formats import plan
from lmrep.data.formats.packed import Packed
from lmrep.data.formats.plans import Plan
from lmrep.data.loader import evaluation_batches
from lmrep.data.mixture import BLOCK, Mixture, Sources, block_counts, mixing_weights
from lmrep.data.order import assign, interleave
from lmrep.data.store.sources import prepare_sources
from lmrep.experiment import build, inspection
from lmrep.experiment import config as experiments
from lmrep.experiment.record import RESUMABLE_FIELDS
from lmrep.storage import provenance
from tests import small

# --- Proportions ---

COUNTS = [(1,), (1, 1), (3, 1), (7, 3), (1, 1, 1), (5, 3, 2), (97, 2, 1), (1, 50, 49, 900), (3, 3, 3, 1, 1, 1, 1),
          tuple(range(1, 21)), (9_999, 1), (5_001, 4_999)]


def max_deviation(sources, counts):
    """The maximum, over all initial parts of a sequence of sources, of the difference between a source's number of
    examples and its proportion."""
    actual = np.cumsum(np.eye(len(counts))[sources], axis=0)
    expected = np.outer(np.arange(1, len(sources) + 1), np.array(counts) / sum(counts))
    return np.abs(actual - expected).max()


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_after_any_number_of_examples_proportions_are_exact_to_within_one(counts):
    block = interleave(counts)
    np.testing.assert_array_equal(np.bincount(block), counts)
    assert max_deviation(np.tile(block, 3 if len(block) < 2000 else 1), counts) < 1 - 1e-9


def test_sources_in_sequence_or_at_random_are_rejected():
    counts = (5, 3, 2)
    assert max_deviation(np.repeat([0, 1, 2], counts), counts) > 1
    assert max_deviation(np.random.default_rng(0).choice(3, 1000, p=[0.5, 0.3, 0.2]), counts) > 1


@pytest.mark.parametrize(("weights", "block"), [
    ((1,), (1,)), ((3, 1), (3, 1)), ((300.0, 100.0), (3, 1)), ((0.7, 0.3), (7, 3)), ((0.5, 0.25, 0.25), (2, 1, 1)),
    ((1e-3, 2e-3), (1, 2)), ((0.333, 0.667), (333, 667)), ((1 / 3, 2 / 3), (1, 2))])
def test_weights_of_few_digits_are_exact(weights, block):
    assert block_counts(weights) == block


@pytest.mark.parametrize("weights", [(np.pi, np.e), tuple(np.random.default_rng(0).random(30) + 0.01)])
def test_other_weights_are_rounded_to_a_block(weights):
    counts = block_counts([float(weight) for weight in weights])
    assert sum(counts) == BLOCK
    np.testing.assert_allclose(np.array(counts) / BLOCK, np.array(weights) / sum(weights), atol=1 / BLOCK)


# --- The plan ---


@pytest.fixture(scope="module")
def mixture(random_store):
    stores = tuple(dataclasses.replace(random_store(seed, count), fingerprint=f"{seed}")
                   for seed, count in enumerate((40, 9, 15)))
    sources = Sources(("a", "b", "c"), stores, (5, 3, 2), stores[0].vocabulary)
    return Mixture(tuple(plan("packed", Packed(), store, 32, 0) for store in stores), sources)


def sources_of(mixture, numbers):
    firsts = np.cumsum([0, *(each.examples for each in mixture.plans)])
    source = np.searchsorted(firsts, numbers, side="right") - 1
    return source, numbers - firsts[source]


def test_a_run_shows_each_source_in_proportion_and_epoch_by_epoch(mixture):
    sources, examples = sources_of(mixture, mixture.numbers(np.arange(2000), 8, seed=3))
    assert max_deviation(sources, (5, 3, 2)) < 1
    for source, each in enumerate(mixture.plans):
        shown = examples[sources == source]
        count = len(shown) // each.examples
        assert count >= 3
        epochs = shown[: count * each.examples].reshape(count, each.examples)
        np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(each.examples), (count, 1)))
        assert (epochs[0] != epochs[1]).any()


def test_sources_have_independent_orders(random_store):
    store = random_store(0, 40)
    sources = Sources(("a", "b"), (store,) * 2, (1, 1), store.vocabulary)
    twins = Mixture((plan("packed", Packed(), store, 32, 0),) * 2, sources)
    _, examples = sources_of(twins, twins.numbers(np.arange(2 * twins.plans[0].examples), 8, seed=0))
    one, other = examples[::2], examples[1::2]
    assert sorted(one) == sorted(other) and (one == other).mean() < 0.2


def test_late_positions_are_found_directly(mixture):
    positions = 10**12 + np.arange(4000)
    sources, before = assign(mixture.store.block_counts, positions)
    counts = np.array([before[sources == source][0] for source in range(3)])
    np.testing.assert_allclose(counts, 10**12 * np.array([0.5, 0.3, 0.2]), atol=1)
    for source in range(3):
        assert (np.diff(before[sources == source]) == 1).all()


def test_batches_consist_of_the_sources_examples(mixture):
    numbers = mixture.numbers(np.arange(64), 64, seed=1)
    numbers[[3, 40]] = -1
    batch = mixture.gather(numbers)
    sources, examples = sources_of(mixture, numbers)
    for index, number in enumerate(numbers):
        expected = mixture.plans[max(sources[index], 0)].gather(np.array([examples[index] if number >= 0 else -1]))
        for name, array in expected.items():
            if name != "example":
                np.testing.assert_array_equal(batch[name][index], array[0], err_msg=name)
    np.testing.assert_array_equal(batch["example"], numbers)
    assert batch["example"].dtype == np.int32
    with pytest.raises(IndexError, match="of a plan that has"):
        mixture.gather(np.array([mixture.examples]))


def test_a_second_text_comes_from_the_source_of_its_example(mixture, monkeypatch):
    gather = Plan.gather
    monkeypatch.setattr(Plan, "gather", lambda *args: (batch := gather(*args)) | {
        "source": {"tokens": batch["tokens"]}})
    batch = mixture.gather(mixture.numbers(np.arange(64), 64, seed=1))
    np.testing.assert_array_equal(batch["source"]["tokens"], batch["tokens"])


def test_evaluation_shows_examples_once_and_in_proportion_until_a_source_ends(mixture):
    run = evaluation_batches(mixture, batch_size=8, indices=np.arange(8))
    numbers = np.concatenate([batch["example"] for batch in run])
    shown = numbers[numbers >= 0]
    sources, examples = sources_of(mixture, shown)
    assert max_deviation(sources, (5, 3, 2)) < 1 and len(set(shown)) == len(shown) == mixture.evaluation_examples
    used = np.bincount(sources)
    assert any(used[i] == each.examples for i, each in enumerate(mixture.plans))
    for source in range(3):
        np.testing.assert_array_equal(examples[sources == source], np.arange(used[source]))
    limited = np.concatenate([batch["example"] for batch in
                              evaluation_batches(mixture, batch_size=8, indices=np.arange(8), limit=20)])
    np.testing.assert_array_equal(limited[limited >= 0], shown[:20])


def test_statistics_are_weighted_by_the_proportions(mixture):
    numbers = mixture.numbers(np.arange(20_000), 8, seed=0)
    real = (mixture.gather(numbers)["segment_ids"] > 0).mean()
    assert mixture.statistics()["padding"] == pytest.approx(1 - real, abs=0.01)


def test_different_mixtures_have_different_fingerprints(mixture):
    other = dataclasses.replace(mixture, store=dataclasses.replace(mixture.store, block_counts=(5, 2, 3)))
    reversed_ = Mixture(mixture.plans[::-1], mixture.store)
    assert len({each.fingerprint for each in (mixture, other, reversed_)}) == 3
    assert other.store.fingerprint != mixture.store.fingerprint


# --- From texts ---


def experiment(texts, objective="masked", **fields):
    """The small experiment on two corpora, the second with three times the weight of the first."""
    config = small.config(texts / "a", objective)
    config.sources = ({"name": "animals", "weight": 1, "data": {}},
                      {"name": "letters", "weight": 3, "data": {"files": f"{texts}/b/*.txt", "test": 0.2}})
    config.update_from_flattened_dict(fields)
    return experiments.parse(config)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two corpora without a common word."""
    directory = tmp_path_factory.mktemp("texts")
    small.corpus(directory / "a", 60)
    (directory / "b").mkdir()
    for number in range(20):
        (directory / f"b/{number}.txt").write_text(f"zyzz qyqq xuxu. Vovo wawa jyjy zyzz {number % 7}.\n")
    return directory


@pytest.fixture(scope="module")
def prepared(texts):
    lines = []
    return build.prepare_data(experiment(texts), texts / "data", lines.append).corpus, lines


def test_a_mixture_has_one_tokenizer_for_all_sources(prepared, texts):
    ready, lines = prepared
    assert sum("training a tokenizer" in line for line in lines) == 1
    assert {"cat", "zyzz", "horse", "qyqq"} <= set(ready.tokenizer.tokens)
    train = ready.stores["train"]
    assert train.block_counts == (1, 3) and {store.vocabulary.size for store in train.stores} == {ready.tokenizer.size}
    assert set(ready.stores) == {"train", "validation", "test"}
    counts = ready.tokenizer.vocabulary.counts
    zyzz, cat = (counts[ready.tokenizer.tokens.index(token)] for token in ("zyzz", "cat"))
    assert zyzz / counts.sum() == pytest.approx(0.75 * 2 / 10, rel=0.05) and cat > 0  # 10 tokens a document
    assert ready.statistics["train"]["documents"] == sum(len(store.documents) - 1 for store in train.stores)
    again = []
    build.prepare_data(experiment(texts), texts / "data", again.append)
    assert not again
    changed = []
    build.prepare_data(experiment(texts, **{"tokenizer.vocab_size": 210}), texts / "data", changed.append)
    assert any("training a tokenizer" in line for line in changed)


def test_a_loaded_tokenizer_is_used_unchanged(prepared, texts):
    own = tokenizers.Config(vocab_file=str(prepared[0].directory / "tokenizer"))
    ready = build.prepare_data(experiment(texts), texts / "data", None, own).corpus
    assert {split: store.fingerprint for split, store in ready.stores.items()} == {
        split: store.fingerprint for split, store in prepared[0].stores.items()}


@pytest.mark.parametrize(("weights", "learned"), [((8, 1), {"cat", "horse"}), ((1, 8), {"zyzz", "qyqq", "xuxu"})])
def test_the_tokenizer_is_trained_on_the_sources_in_proportion_to_their_weights(weights, learned, texts, tmp_path):
    """The second corpus is an eighth of the text, and the vocabulary has space for few words."""
    sources = [source._replace(weight=float(weight))
               for source, weight in zip(experiment(texts).data_sets(), weights, strict=True)]
    tokens = prepare_sources(sources, 0, tokenizers.Config(vocab_size=90), tmp_path).tokenizer.tokens
    assert {"cat", "horse", "zyzz", "qyqq", "xuxu"} & set(tokens) == learned


@pytest.mark.parametrize(("temperature", "expected"), [(0, (2, 1)), (1, (2 * 100, 400)), (2, (2 * 10, 20))])
def test_a_temperature_weights_sources_by_a_power_of_their_size(temperature, expected):
    one, other = mixing_weights((2.0, 1.0), (100, 400), temperature)
    assert one / other == pytest.approx(expected[0] / expected[1])


def test_the_size_of_a_source_is_its_number_of_tokens(texts, prepared):
    ready = build.prepare_data(experiment(texts, temperature=2.0), texts / "data").corpus
    sizes = np.array([store.tokens for store in ready.stores["train"].stores])
    expected = np.array([1, 3]) * np.sqrt(sizes)
    counts = ready.stores["train"].block_counts
    np.testing.assert_allclose(np.array(counts) / BLOCK, expected / expected.sum(), atol=1e-4)
    assert ready.stores["validation"].block_counts == counts


def test_a_resumed_run_may_change_names_and_paths_but_not_weights(texts, prepared):
    """Weights, temperature and contents of files change the results; the location of the files does not."""
    def changed(**fields):
        other = dataclasses.asdict(experiment(texts))
        other = dataclasses.asdict(experiments.parse({**other, **fields}))
        free = tuple(f"config.{pattern}" for pattern in RESUMABLE_FIELDS)
        return provenance.differences({"config": dataclasses.asdict(experiment(texts))}, {"config": other}, free)

    one, other = ({"name": name, "weight": weight, "data": data} for name, weight, data in (
        ("animals", 1, {}), ("letters", 3, {"files": f"{texts}/b/*.txt", "test": 0.2})))
    assert changed(sources=(one, other)) == []
    assert changed(sources=(one, other | {"name": "b", "data": other["data"] | {"files": "moved/*.txt"}})) == []
    assert changed(sources=(one, other | {"weight": 4})) == ["config.sources.1.weight: 3.0 -> 4.0"]
    assert changed(temperature=2) == ["config.temperature: 0.0 -> 2.0"]
    assert changed(sources=(one,)) and changed(sources=(other, one))
    heavier = build.prepare_data(experiment(texts, temperature=2.0), texts / "data").corpus
    assert heavier.stores["train"].fingerprint != prepared[0].stores["train"].fingerprint


def test_inspect_shows_each_source(prepared, texts):
    text = inspection.report(experiment(texts, "causal"), texts / "data", examples=1)
    (line,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["letters"]]
    store = prepared[0].stores["train"].stores[1]
    shown = 12 * 16 * 0.75
    assert line[1:3] == ["75.00%", f"{store.tokens:,}"]
    assert float(line[4]) == pytest.approx(shown / int(line[3]), abs=0.005)
