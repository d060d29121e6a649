"""The masking rule against BERT's and RoBERTa's published ones.

Statistical tests reject at p < 1e-4 with fixed seeds; each check is shown to reject a planted error.
"""

import itertools
import math
from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.objectives import OBJECTIVES, masked, masking
from tests.cases import slow_after
from tests.chance import REJECT, fits, independent, least, rates, uniform
from tests.objectives.toys import CLS, MASK, PAD, SEP, UNK, VOCABULARY, V, batch, example, model, objective, prepare

EXAMPLES = 20_000
ROBERTA = {"count": "floor", "mask_specials": True, "random_specials": False}
# 14 tokens, of which 11 are no specials: BERT predicts 2 of these, RoBERTa 2 or 3 of all.
PAIR = example(16, ([5, 6, 7, 8, 9, 10], [11, 20, 12, 13, UNK]))
ALL_TOKENS = frozenset(range(V))
FRACTIONS = {"80/20/0": (0.8, 0.2, 0), "0/20/80": (0, 0.2, 0.8), "0/0/100": (0, 0, 1)}
BERT = (0.8, 0.1, 0.1)
RANDOM = {"mask": 0, "keep": 0, "random": 1}


@cache
def sample(**fields):
    """ROWS prepared copies of the example PAIR."""
    return prepare(objective(**fields), batch([PAIR] * EXAMPLES))


def target_mask(prepared):
    return prepared["weights"] > 0


def actions(prepared):
    """What replaces each target, [b, m]: 0 [MASK], 1 the token itself, 2 another one."""
    shown = np.take_along_axis(prepared["inputs"], prepared["predicted"], 1)
    return np.where(shown == MASK, 0, np.where(shown == prepared["targets"], 1, 2))


# --- The checks ---


def p_counts(prepared, config):
    """That each example has as many targets as its number n of tokens gives."""
    n, count = (prepared["segment_ids"] > 0).sum(1), target_mask(prepared).sum(1)
    if config.count == "round":
        return float(all(count == [max(1, round(0.15 * int(i))) for i in n]))
    low = np.array([math.floor(0.15 * int(i)) for i in n])
    probabilities = np.array([0.15 * int(i) % 1 for i in n]).round(9)
    if not np.isin(count - low, [0, 1]).all():
        return 0.0
    lengths = np.unique(n)
    return rates([(count - low)[n == i].sum() for i in lengths], [(n == i).sum() for i in lengths],
                 [probabilities[n == i][0] for i in lengths])


def p_positions(prepared, size, candidates):
    """That examples with `size` targets have every set of `size` positions out of `candidates` equally often."""
    chosen = target_mask(prepared).sum(1) == size
    sets = Counter(tuple(sorted(positions[counts])) for positions, counts
                   in zip(prepared["predicted"][chosen], target_mask(prepared)[chosen], strict=True))
    possible = list(itertools.combinations(candidates, size))
    return 0.0 if set(sets) - set(possible) else uniform([sets[positions] for positions in possible])


def p_replacements(prepared, fractions, words):
    """That [MASK], the token itself and a token out of `words` replace a target with the probabilities `fractions`."""
    mask, keep, random = fractions
    targets = prepared["targets"][target_mask(prepared)]
    shown = np.take_along_axis(prepared["inputs"], prepared["predicted"], 1)[target_mask(prepared)]
    expected = np.zeros((len(targets), V))
    expected[:, MASK] += mask
    expected[np.arange(len(targets)), targets] += keep
    expected[:, sorted(words)] += random / len(words)
    unchanged = expected[np.arange(len(targets)), targets].sum()
    expected[np.arange(len(targets)), targets] = 0
    others = np.bincount(shown[shown != targets], minlength=V)
    return fits([(shown == targets).sum(), *others], [unchanged, *expected.sum(0)])


def p_independent(prepared):
    """That a replacement depends neither on that of the example's other target, nor of the next example's, nor on the
    position, nor on the token."""
    observed = actions(prepared)
    both = target_mask(prepared)[:, :2].all(1)
    first, second = observed[both, 0], observed[both, 1]
    return least([independent(first, second), independent(first[1:], first[:-1]),
                  independent(first[1:], second[:-1]), independent(first[:-1], second[1:]),
                  independent(prepared["predicted"][both][:, :2], observed[both][:, :2]),
                  independent(prepared["targets"][both][:, :2], observed[both][:, :2])])


# --- BERT ---


def lengths(repeated=1):
    """Examples of 1 to 128 plain words, one text without specials."""
    n = np.tile(np.arange(1, 129), repeated)
    real = np.arange(128) < n[:, None]
    tokens = np.where(real, np.random.default_rng(0).integers(5, V, real.shape), PAD).astype(np.int32)
    return {"tokens": tokens, "segment_ids": real.astype(np.int32), "example": np.arange(len(n), dtype=np.int32)}


def test_bert_predicts_a_rounded_fraction():
    config = masked.Config()
    prepared = prepare(objective(), lengths())
    assert p_counts(prepared, config) == 1
    # Halves go to the even number, as Python rounds: 1.5, 4.5, 10.5, 16.5; and there is at least one target.
    some = {1: 1, 2: 1, 10: 2, 30: 4, 70: 10, 110: 16, 128: 19}
    assert {n: target_mask(prepared).sum(1)[n - 1] for n in some} == some
    wrong = prepared | {"weights": prepared["weights"].copy()}
    wrong["weights"][49, -1] = 1  # one too many for n = 50
    assert p_counts(wrong, config) == 0


def test_bert_predicts_any_two_words_and_never_specials_or_padding():
    prepared = sample()
    candidates = [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert (target_mask(prepared).sum(1) == 2).all()  # 14 tokens, specials among them
    assert p_positions(prepared, 2, candidates) > REJECT
    wrong = prepared["predicted"].copy()
    wrong[:400][wrong[:400] == 1] = 12  # in one example out of fifty, the first position is replaced by the last
    assert p_positions(prepared | {"predicted": wrong}, 2, candidates) < REJECT
    assert p_positions(sample(**ROBERTA), 2, candidates) < REJECT  # that predicts specials


def test_bert_replaces_80_10_10():
    prepared = sample()
    assert p_replacements(prepared, BERT, ALL_TOKENS) > REJECT
    assert p_independent(prepared) > REJECT


@pytest.mark.parametrize("fractions", slow_after(1, ["0/20/80", "80/20/0", "0/0/100"]))
def test_other_fractions(fractions):
    prepared = sample(**dict(zip(("mask", "keep", "random"), FRACTIONS[fractions], strict=True)))
    assert p_replacements(prepared, FRACTIONS[fractions], ALL_TOKENS) > REJECT
    assert p_replacements(prepared, BERT, ALL_TOKENS) < REJECT


@pytest.mark.slow
def test_wrong_fractions_and_words_are_detected():
    wrong = sample(mask=0.85, keep=0.05, random=0.1)
    assert p_replacements(wrong, BERT, ALL_TOKENS) < REJECT
    assert p_replacements(wrong, (0.85, 0.05, 0.1), ALL_TOKENS) > REJECT
    assert p_replacements(sample(mask=0.79, keep=0.105, random=0.105), BERT, ALL_TOKENS) < REJECT
    assert p_replacements(sample(), BERT, ALL_TOKENS - {CLS}) < REJECT
    assert p_replacements(sample(random_specials=False), BERT, ALL_TOKENS) < REJECT
    only = sample(**RANDOM)
    assert p_replacements(only, (0, 0, 1), ALL_TOKENS) > REJECT
    assert p_replacements(only, (0, 0, 1), ALL_TOKENS - {MASK}) < REJECT  # a random word may be [MASK] too


@pytest.mark.slow
def test_dependences_are_detected():
    prepared = sample()

    def showing(choose):
        """The same prepared batch with another replacement of the second target."""
        shown = np.take_along_axis(prepared["inputs"], prepared["predicted"], 1)
        shown[:, 1] = choose(shown, actions(prepared))
        inputs = prepared["inputs"].copy()
        np.put_along_axis(inputs, prepared["predicted"], shown, 1)
        return prepared | {"inputs": inputs}

    targets = prepared["targets"][:, 1]
    same = showing(lambda shown, observed: np.choose(observed[:, 0], [MASK, targets, shown[:, 1]]))  # one draw each
    shifted = showing(lambda shown, observed: np.where(np.roll(observed[:, 0] == 1, 1), targets, shown[:, 1]))
    by_token = showing(lambda shown, observed: np.where(targets == 5, MASK, shown[:, 1]))
    assert all(p_independent(wrong) < REJECT for wrong in (same, shifted, by_token))


# --- RoBERTa ---


@pytest.mark.slow
def test_roberta_predicts_a_fraction_rounded_at_random():
    config = masked.Config(**ROBERTA)
    prepared = prepare(objective(**ROBERTA), lengths(200))
    assert p_counts(prepared, config) > REJECT
    assert p_counts(prepare(objective(), lengths(20)), config) < REJECT
    count = target_mask(prepared).sum(1).reshape(200, 128)
    assert (count[:, [19, 39, 119]] == [3, 6, 18]).all()  # .15 n is an integer
    # one fewer in a twentieth of the examples
    wrong = np.random.default_rng(0).random(prepared["weights"].shape[0]) < 0.05
    fewer = np.where(wrong[:, None] & (target_mask(prepared).cumsum(1) == 1), 0, prepared["weights"])
    assert p_counts(prepared | {"weights": fewer}, config) < REJECT


def test_roberta_predicts_any_tokens_including_specials():
    prepared = sample(**ROBERTA)
    assert set(target_mask(prepared).sum(1)) == {2, 3}
    assert p_positions(prepared, 2, range(14)) > REJECT
    assert p_positions(prepared, 3, range(14)) > REJECT
    assert p_positions(sample(), 2, range(14)) < REJECT  # never the specials
    assert (prepared["targets"][target_mask(prepared)] != PAD).all()


def test_roberta_replaces_80_10_10_by_words_that_are_not_special():
    prepared = sample(**ROBERTA)
    words = ALL_TOKENS - {PAD, UNK, CLS, SEP}  # the dictionary's four; the mask can be drawn
    assert p_replacements(prepared, BERT, words) > REJECT
    assert p_replacements(prepared, BERT, ALL_TOKENS) < REJECT
    assert p_independent(prepared) > REJECT
    only = sample(**RANDOM, **ROBERTA)
    assert p_replacements(only, (0, 0, 1), words) > REJECT
    assert p_replacements(only, (0, 0, 1), words - {MASK}) < REJECT


# --- Whole words ---

# 20 tokens have 3 targets. The second text begins inside a word after the cut, and BERT's script joins that token to
# the word before, across the separator; the first token has no word before it.
WORDS_EXAMPLE = example(24, ([20, 21, 5, 6, 20, 7, 8, 21], [22, 9, 10, 23, 20, 11, 12, 13, 20]))
WORDS = [(1, 2), (3,), (4, 5), (6,), (7, 8, 10), (11,), (12, 13, 14), (15,), (16,), (17, 18)]


def exact(words, capacity, stop=False):
    """{set of positions: probability}. Words in random order, those that do not fit skipped: as those never fit later,
    the next one is any of the rest that fits. With the error `stop`, the first that does not fit ends it."""
    probabilities = Counter()

    def go(chosen, probability):
        remaining_words = [word for word in words if word not in chosen]
        remaining = capacity - sum(map(len, chosen))
        next_ones = [word for word in remaining_words if len(word) <= remaining]
        if not next_ones:
            probabilities[tuple(sorted(sum(chosen, ())))] += probability
        elif stop:
            probabilities[tuple(sorted(sum(chosen, ())))] += probability * (1 - len(next_ones) / len(remaining_words))
        for word in next_ones:
            go((*chosen, word), probability / len(remaining_words if stop else next_ones))

    go((), 1.0)
    assert sum(probabilities.values()) == pytest.approx(1)
    return probabilities


def p_words(sets, expected):
    return 0.0 if set(sets) - set(expected) else fits([sets[s] for s in expected], list(expected.values()))


@pytest.fixture(scope="module")
def whole_words():
    return prepare(objective(whole_word=True), batch([WORDS_EXAMPLE] * EXAMPLES))


def test_whole_words_are_chosen_as_in_berts_script(whole_words):
    chosen = zip(whole_words["predicted"], target_mask(whole_words), strict=True)
    sets = Counter(tuple(sorted(positions[counts])) for positions, counts in chosen)
    assert p_words(sets, exact(WORDS, 3)) > REJECT
    assert p_words(sets, exact(WORDS, 3, stop=True)) < REJECT
    assert p_words(sets, exact(WORDS, 2)) == 0
    torn = [word for word in WORDS if word != (7, 8, 10)] + [(7, 8), (10,)]
    assert p_words(sets, exact(torn, 3)) == 0


def test_each_token_of_a_word_is_replaced_independently(whole_words):
    assert p_replacements(whole_words, BERT, ALL_TOKENS) > REJECT
    tokens_of_word = np.isin(whole_words["predicted"], [12, 13, 14]) & target_mask(whole_words)
    chosen = tokens_of_word.sum(1) == 3
    observed = np.where(tokens_of_word, actions(whole_words), -1)[chosen]
    first, second, third = np.array([line[line >= 0] for line in observed]).T
    assert least([independent(first, second), independent(second, third), independent(first, third)]) > REJECT
    assert independent(first, np.where(np.arange(len(first)) % 4 == 0, first, second)) < REJECT


def test_whole_words_come_close_to_the_rate():
    rng = np.random.default_rng(0)
    tokens = np.where(rng.random((400, 128)) < 0.25, 20, 5)
    raw = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "example": np.arange(400)}
    count = target_mask(prepare(objective(whole_word=True), raw)).sum(1)
    assert count.max() == 19
    assert 0.145 < count.mean() / 128 <= 19 / 128


# --- Properties of every rule ---


@pytest.mark.parametrize("fields", [{}, ROBERTA, {"whole_word": True}], ids=["bert", "roberta", "whole words"])
def test_a_prepared_batch_is_well_formed(fields):
    """Two packed texts, specials alone, an empty example, and one token alone."""
    examples = [PAIR, example(16, ([5, 6, 7],), ([8, 9, 10, 20],)), example(16, ([], [])), example(16),
                example(16, ([5],))]
    prepared = prepare(objective(**fields), batch(examples))
    assert prepared["predicted"].dtype == prepared["targets"].dtype == prepared["inputs"].dtype == np.int32
    assert prepared["weights"].dtype == np.float32
    assert prepared["weights"].sum() == pytest.approx(1, abs=1e-6)
    assert len(set(prepared["weights"][target_mask(prepared)])) == 1
    np.testing.assert_array_equal(np.take_along_axis(prepared["tokens"], prepared["predicted"], 1), prepared["targets"])
    assert all(len(set(positions)) == len(positions) for positions in prepared["predicted"].tolist())
    changed = prepared["inputs"] != prepared["tokens"]
    positions = np.zeros_like(changed)
    np.put_along_axis(positions, prepared["predicted"], target_mask(prepared), 1)
    assert not (changed & ~positions).any()
    assert not (positions & (prepared["segment_ids"] == 0)).any()
    assert not target_mask(prepared)[3].any()
    assert prepared["inputs"].max() < V
    if not fields.get("mask_specials"):
        assert not target_mask(prepared)[2].any()
        assert target_mask(prepared).sum(1).tolist() == [2, 2, 0, 0, 1]  # n counts an example's segments together


def test_a_batch_without_content_has_no_weight():
    prepared = prepare(objective(), batch([example(16)] * 3))
    assert prepared["weights"].tolist() == [[0, 0]] * 3
    np.testing.assert_array_equal(prepared["inputs"], prepared["tokens"])


@pytest.mark.parametrize("fields", [{"max_predictions": 5}, {"max_predictions": 5, **ROBERTA},
                                    {"max_predictions": 5, "whole_word": True}])
def test_predictions_can_be_capped(fields):
    prepared = prepare(objective(**fields), lengths())
    assert prepared["predicted"].shape == (128, 5)
    count = target_mask(prepared).sum(1)
    assert (count[40:] == 5).all() if not fields.get("whole_word") else count.max() == 5
    if "count" not in fields and "whole_word" not in fields:
        assert count.tolist() == [min(5, max(1, round(0.15 * n))) for n in range(1, 129)]


@pytest.mark.parametrize(("rule", "length", "most"), [
    ({}, 128, 19), ({}, 512, 77), ({}, 1, 1), ({}, 30, 4), (ROBERTA, 512, 77), (ROBERTA, 128, 20), (ROBERTA, 6, 1),
])
def test_the_number_of_predicted_positions(rule, length, most):
    """The static number is the largest that a full example may need: 77 at 512, as in the published scripts."""
    assert masking.max_predictions(masked.Config(**rule), length) == most


def test_every_token_can_be_predicted():
    prepared = prepare(objective(rate=1.0), batch([PAIR]))
    assert sorted(prepared["predicted"][target_mask(prepared)]) == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    prepared = prepare(objective(rate=1.0, **ROBERTA), batch([PAIR]))
    assert sorted(prepared["predicted"][target_mask(prepared)]) == list(range(14))


# --- Batch fields ---


def test_the_definition_declares_its_batch_fields():
    definition = OBJECTIVES["masked"]
    assert definition.batch_fields(definition.config()) == ("tokens", "segment_ids", "example")
    assert "pair_label" in definition.batch_fields(definition.config(sentence_pair=True))
    assert definition.build(definition.config(masking="static"), model(), VOCABULARY).static
    assert not definition.build(definition.config(), model(), VOCABULARY).static


def test_a_word_does_not_reach_into_another_packed_document():
    """A packed document may begin inside a word; that token is then a word of its own."""
    starts = jnp.array([True, True, True, False, True, True, False, True])  # cls a b ##c sep cls ##d sep
    maskable = jnp.array([False, True, True, True, False, False, True, False])
    packed = jnp.array([1, 1, 1, 1, 1, 2, 2, 2])
    for segments, same_word in ((packed, False), (jnp.ones_like(packed), True)):
        chosen = jax.vmap(lambda key, s=segments: masking._choose_words(
            jax.random.uniform(key, (8,)), maskable, s, starts, jnp.int32(3)))(jax.random.split(jax.random.key(0), 50))
        same = np.asarray(chosen[:, 3] == chosen[:, 6])
        assert same.all() == same_word
