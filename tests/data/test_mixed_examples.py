"""Mixtures of labelled data sets: rates, proportions, epochs and lengths of batches."""

import jax
import numpy as np
import pytest

from lmrep.data.mixture import BLOCK, block_counts, mixing_weights
from lmrep.data.records.encoding import Source, Units, join, take
from lmrep.data.records.examples import POOL, arrange, mix
from tests.data.test_mixture import max_deviation
from tests.tasks import tiny

SIZES, COUNTS = (300, 40, 7), (5, 3, 2)


def units(count, seed):
    """Targets of 1 to 4 tokens and sources of 1 to 60."""
    draw = np.random.default_rng([seed, count])

    def texts(most):
        lengths = draw.integers(1, most, count, endpoint=True)
        return draw.integers(5, 9, lengths.sum()).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)])

    (tokens, offsets), (source, source_offsets) = texts(4), texts(60)
    return Units(tokens, np.zeros(len(tokens), np.int8), offsets, np.arange(count, dtype=np.int32),
                 {"known": draw.integers(0, 2, count)}, source=Source(source, source_offsets, str))


def parts(packed=0):
    return [arrange(units(count, 0), tiny.tokenizer().vocabulary, 0, f"{count}", packed) for count in SIZES]


@pytest.fixture(scope="module")
def mixture():
    return mix(("a", "b", "c"), parts()).with_counts(COUNTS)


def sources_of(mixture, numbers):
    source = np.searchsorted(mixture.bounds, numbers, side="right") - 1
    return source, numbers - np.array(mixture.bounds)[source]


# --- Rates ---


@pytest.mark.parametrize("temperature, cap, expected", [
    (1, 0, (8_000, 2_000, 100)), (1, 2_000, (2_000, 2_000, 100)), (2, 0, np.sqrt([8_000, 2_000, 100])),
    (2, 500, np.sqrt([500, 500, 100])), (0, 0, (1, 1, 1)), (4, 50, (1, 1, 1))])
def test_rates_are_those_of_the_paper(temperature, cap, expected):
    """r_m = min(e_m, K) / sum of min(e_n, K), to the power of 1 / T, normalized again."""
    weights = np.array(mixing_weights((1, 1, 1), (8_000, 2_000, 100), temperature, cap))
    np.testing.assert_allclose(weights / weights.sum(), np.array(expected) / np.sum(expected), rtol=1e-12)
    counts = np.array(block_counts([float(weight) for weight in weights]))
    np.testing.assert_allclose(counts / counts.sum(), np.array(expected) / np.sum(expected), atol=1 / BLOCK)


def test_given_weights_multiply_the_rates():
    one, other = mixing_weights((3.0, 1.0), (50, 800), 1, 200)
    assert one / other == pytest.approx(3 * 50 / 200)


# --- The examples of a run ---


@pytest.mark.parametrize("packed", [0, 64])
def test_after_any_number_of_sequences_proportions_are_exact_to_within_one(packed):
    mixture = mix(("a", "b", "c"), parts(packed)).with_counts(COUNTS)
    sources, _ = sources_of(mixture, mixture.numbers(np.arange(1500), 8, seed=3))
    assert max_deviation(sources, COUNTS) < 1


def test_each_source_has_its_own_epochs(mixture):
    """After any pool of batches, the numbers of times that examples of a source were shown differ by one at most."""
    sources, examples = sources_of(mixture, mixture.numbers(np.arange(4 * POOL * 8), 8, seed=3))
    for pools in range(1, 5):
        for source, size in enumerate(SIZES):
            shown = examples[: pools * POOL * 8][sources[: pools * POOL * 8] == source]
            counts = np.bincount(shown, minlength=size)
            assert counts.max() - counts.min() <= 1
    one, other = (examples[sources == source] for source in (1, 2))
    assert len(set(one.tolist())) == 40 and len(set(other.tolist())) == 7


def test_sources_of_the_same_examples_have_independent_orders():
    part = parts()[0]
    twins = mix(("a", "b"), (part, part)).with_counts((1, 1))
    _, examples = sources_of(twins, twins.numbers(np.arange(512), 8, seed=0))
    assert (examples[::2] == examples[1::2]).mean() < 0.1


def test_the_position_alone_determines_the_example(mixture):
    """In any order, and far away; `test_format_properties.py` has resumed runs on several hosts."""
    positions = np.arange(1000)
    numbers = mixture.numbers(positions, 8, seed=3)
    other = mix(("a", "b", "c"), parts()).with_counts(COUNTS)
    draw = np.random.default_rng(0).permutation(positions)
    np.testing.assert_array_equal(other.numbers(draw, 8, seed=3), numbers[draw])
    late = 10**12 + positions
    assert max_deviation(sources_of(mixture, mixture.numbers(late, 8, seed=3))[0], COUNTS) < 1
    assert (mixture.numbers(positions, 8, seed=4) != numbers).mean() > 0.5


def test_batches_have_sequences_of_similar_lengths(mixture):
    """The mean length of sequences over that of the longest of each batch is higher than in a random order."""
    def filled(numbers):
        lengths = mixture.lengths[numbers.reshape(-1, 8)]
        return lengths.sum() / (8 * lengths.max(axis=1)).sum()

    numbers = mixture.numbers(np.arange(POOL * 8), 8, seed=1)
    assert filled(numbers) > 0.7 > filled(np.random.default_rng(0).permutation(numbers))


@pytest.mark.parametrize("packed", [0, 64])
def test_batches_consist_of_the_sources_units(packed):
    own = parts(packed)
    mixture = mix(("a", "b", "c"), own).with_counts(COUNTS)
    numbers = mixture.numbers(np.arange(32), 32, seed=1)
    numbers[[3, 20]] = -1
    batch = mixture.gather(numbers, mixture.batch_length(numbers))
    sources, examples = sources_of(mixture, numbers)
    for index in np.flatnonzero(numbers >= 0):
        expected = own[sources[index]].gather(examples[[index]], mixture.batch_length(numbers))
        for name in ("tokens", "positions", "source"):
            jax.tree.map(lambda x, y, i=index: np.testing.assert_array_equal(x[i], y[0]), batch[name], expected[name])
        known = expected["known"][0]
        np.testing.assert_array_equal(batch["known"][index][: len(known)], known)
    assert (batch["source"]["segment_ids"][[3, 20]] == 0).all()


def test_different_mixtures_have_different_fingerprints(mixture):
    own = parts()
    others = [mix("abc", own).with_counts((5, 2, 3)), mix("abc", own[::-1]).with_counts(COUNTS), mix("abc", own)]
    assert len({each.fingerprint for each in (mixture, *others)}) == 4
    assert mix("xyz", own).with_counts(COUNTS).fingerprint == mixture.fingerprint  # names are for people


def test_units_are_joined_and_taken_apart():
    several = [units(count, 1) for count in SIZES]
    joined = join(several)
    assert joined.example.tolist() == list(range(sum(SIZES)))
    for first, own in zip(np.cumsum([0, *SIZES]), several, strict=False):
        found = take(joined, np.arange(first, first + len(own.example)))
        for one, other in zip((*found[:4], *found.source[:2]), (*own[:4], *own.source[:2]), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(found.columns["known"], own.columns["known"])
    some = take(joined, np.array([2, 301, 345]))
    assert some.example.tolist() == [0, 1, 2] and some.offsets[-1] == len(some.tokens)
    np.testing.assert_array_equal(some.tokens[some.offsets[1] : some.offsets[2]],
                                  several[1].tokens[several[1].offsets[1] : several[1].offsets[2]])
