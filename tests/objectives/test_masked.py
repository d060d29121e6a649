"""The masking rule against BERT's and RoBERTa's published ones.

Statistical tests reject at p < 1e-4 with fixed seeds; each check is shown to reject a planted error.
"""

import itertools
import math
from collections import Counter
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.objectives import OBJECTIVES, masked, masking
from lmrep.objectives.masked import RULES
from tests.chance import REJECT, fits, independent, least, rates, uniform
from tests.objectives.toys import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIALS,
    UNK,
    VOCABULARY,
    V,
    batch,
    model,
    objective,
    prepare,
    row,
)

ROWS = 20_000
# 14 tokens, of which 11 are no specials: BERT asks for 2 of these, RoBERTa for 2 or 3 of all.
PAIR = row(16, ([5, 6, 7, 8, 9, 10], [11, 20, 12, 13, UNK]))
EVERYTHING = frozenset(range(V))
MIXES = {"100/0/0": (1, 0, 0), "80/20/0": (0.8, 0.2, 0), "0/20/80": (0, 0.2, 0.8), "0/0/100": (0, 0, 1)}
BERT = (0.8, 0.1, 0.1)
RANDOM = {"mask": 0, "keep": 0, "random": 1}


@cache
def sample(**fields):
    """ROWS questions about the one row PAIR."""
    return prepare(objective(**fields), batch([PAIR] * ROWS))


def asked(found):
    return found["weights"] > 0


def actions(found):
    """Of every [b, m] what is shown: 0 [MASK], 1 the token itself, 2 another one."""
    shown = np.take_along_axis(found["inputs"], found["predicted"], 1)
    return np.where(shown == MASK, 0, np.where(shown == found["targets"], 1, 2))


# --- The checks ---


def p_counts(found, config):
    """That each row asks for as many as its number n of tokens says."""
    n, number = (found["segment_ids"] > 0).sum(1), asked(found).sum(1)
    if config.count == "round":
        return float(all(number == [max(1, round(0.15 * int(i))) for i in n]))
    low = np.array([math.floor(0.15 * int(i)) for i in n])
    odds = np.array([0.15 * int(i) % 1 for i in n]).round(9)
    if not np.isin(number - low, [0, 1]).all():
        return 0.0
    lengths = np.unique(n)
    return rates([(number - low)[n == i].sum() for i in lengths], [(n == i).sum() for i in lengths],
                 [odds[n == i][0] for i in lengths])


def p_places(found, size, candidates):
    """That rows which ask for `size` positions ask for every set of these out of `candidates` equally often."""
    rows = asked(found).sum(1) == size
    sets = Counter(tuple(sorted(places[counts])) for places, counts
                   in zip(found["predicted"][rows], asked(found)[rows], strict=True))
    possible = list(itertools.combinations(candidates, size))
    return 0.0 if set(sets) - set(possible) else uniform([sets[places] for places in possible])


def p_shown(found, mix, words):
    """That [MASK], the token itself and a word out of `words` stand in its place in the shares `mix`."""
    mask, keep, random = mix
    targets = found["targets"][asked(found)]
    shown = np.take_along_axis(found["inputs"], found["predicted"], 1)[asked(found)]
    odds = np.zeros((len(targets), V))
    odds[:, MASK] += mask
    odds[np.arange(len(targets)), targets] += keep
    odds[:, sorted(words)] += random / len(words)
    own = odds[np.arange(len(targets)), targets].sum()
    odds[np.arange(len(targets)), targets] = 0
    others = np.bincount(shown[shown != targets], minlength=V)
    return fits([(shown == targets).sum(), *others], [own, *odds.sum(0)])


def p_apart(found):
    """That what is shown depends neither on what the row's other position shows, nor the next row's, nor on where,
    nor on which token it is."""
    seen = actions(found)
    both = asked(found)[:, :2].all(1)
    first, second = seen[both, 0], seen[both, 1]
    return least([independent(first, second), independent(first[1:], first[:-1]),
                  independent(first[1:], second[:-1]), independent(first[:-1], second[1:]),
                  independent(found["predicted"][both][:, :2], seen[both][:, :2]),
                  independent(found["targets"][both][:, :2], seen[both][:, :2])])


# --- BERT ---


def lengths(repeated=1):
    """Rows of 1 to 128 plain words, one text without specials."""
    n = np.tile(np.arange(1, 129), repeated)
    real = np.arange(128) < n[:, None]
    tokens = np.where(real, np.random.default_rng(0).integers(5, V, real.shape), PAD).astype(np.int32)
    return {"tokens": tokens, "segment_ids": real.astype(np.int32), "example": np.arange(len(n), dtype=np.int32)}


def test_bert_asks_for_a_rounded_share():
    config = masked.Config()
    found = prepare(objective(), lengths())
    assert p_counts(found, config) == 1
    # Halves go to the even number, as Python rounds: 1.5, 4.5, 10.5, 16.5; and one is asked for at least.
    some = {1: 1, 2: 1, 10: 2, 30: 4, 70: 10, 110: 16, 128: 19}
    assert {n: asked(found).sum(1)[n - 1] for n in some} == some
    planted = found | {"weights": found["weights"].copy()}
    planted["weights"][49, -1] = 1  # one too many for n = 50
    assert p_counts(planted, config) == 0


def test_bert_asks_for_any_two_words_and_never_for_specials_or_padding():
    found = sample()
    candidates = [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert (asked(found).sum(1) == 2).all()  # 14 tokens, specials among them
    assert p_places(found, 2, candidates) > REJECT
    planted = found["predicted"].copy()
    planted[:400][planted[:400] == 1] = 12  # in one row out of fifty, the first place gives way to the last
    assert p_places(found | {"predicted": planted}, 2, candidates) < REJECT
    assert p_places(sample(**RULES["roberta"]), 2, candidates) < REJECT  # that asks for specials


def test_bert_shows_80_10_10():
    found = sample()
    assert p_shown(found, BERT, EVERYTHING) > REJECT
    assert p_apart(found) > REJECT


@pytest.mark.parametrize("mix", MIXES)
def test_other_mixes(mix):
    found = sample(**dict(zip(("mask", "keep", "random"), MIXES[mix], strict=True)))
    assert p_shown(found, MIXES[mix], EVERYTHING) > REJECT
    assert p_shown(found, BERT, EVERYTHING) < REJECT


def test_planted_mixes_and_words_are_found():
    wrong = sample(mask=0.85, keep=0.05, random=0.1)
    assert p_shown(wrong, BERT, EVERYTHING) < REJECT
    assert p_shown(wrong, (0.85, 0.05, 0.1), EVERYTHING) > REJECT
    assert p_shown(sample(mask=0.79, keep=0.105, random=0.105), BERT, EVERYTHING) < REJECT
    assert p_shown(sample(), BERT, EVERYTHING - {CLS}) < REJECT
    assert p_shown(sample(random_specials=False), BERT, EVERYTHING) < REJECT
    only = sample(**RANDOM)
    assert p_shown(only, (0, 0, 1), EVERYTHING) > REJECT
    assert p_shown(only, (0, 0, 1), EVERYTHING - {MASK}) < REJECT  # a random word may be [MASK] too


def test_planted_dependences_are_found():
    found = sample()

    def showing(choose):
        """The same questions with the second position's shown token changed."""
        shown = np.take_along_axis(found["inputs"], found["predicted"], 1)
        shown[:, 1] = choose(shown, actions(found))
        inputs = found["inputs"].copy()
        np.put_along_axis(inputs, found["predicted"], shown, 1)
        return found | {"inputs": inputs}

    targets = found["targets"][:, 1]
    same = showing(lambda shown, seen: np.choose(seen[:, 0], [MASK, targets, shown[:, 1]]))  # one draw a row
    shifted = showing(lambda shown, seen: np.where(np.roll(seen[:, 0] == 1, 1), targets, shown[:, 1]))
    by_token = showing(lambda shown, seen: np.where(targets == 5, MASK, shown[:, 1]))
    assert all(p_apart(planted) < REJECT for planted in (same, shifted, by_token))


# --- RoBERTa ---


def test_roberta_asks_for_a_share_rounded_at_random():
    config = masked.Config(**RULES["roberta"])
    found = prepare(objective(**RULES["roberta"]), lengths(200))
    assert p_counts(found, config) > REJECT
    assert p_counts(prepare(objective(), lengths(20)), config) < REJECT
    number = asked(found).sum(1).reshape(200, 128)
    assert (number[:, [19, 39, 119]] == [3, 6, 18]).all()  # .15 n is whole
    planted = np.random.default_rng(0).random(found["weights"].shape[0]) < 0.05  # one fewer in a twentieth of the rows
    fewer = np.where(planted[:, None] & (asked(found).cumsum(1) == 1), 0, found["weights"])
    assert p_counts(found | {"weights": fewer}, config) < REJECT


def test_roberta_asks_for_any_tokens_specials_included():
    found = sample(**RULES["roberta"])
    assert set(asked(found).sum(1)) == {2, 3}
    assert p_places(found, 2, range(14)) > REJECT
    assert p_places(found, 3, range(14)) > REJECT
    assert p_places(sample(), 2, range(14)) < REJECT  # never the specials
    assert (found["targets"][asked(found)] != PAD).all()


def test_roberta_shows_80_10_10_of_words_that_are_not_special():
    found = sample(**RULES["roberta"])
    words = EVERYTHING - {PAD, UNK, CLS, SEP}  # the dictionary's four; the mask can be drawn
    assert p_shown(found, BERT, words) > REJECT
    assert p_shown(found, BERT, EVERYTHING) < REJECT
    assert p_apart(found) > REJECT
    only = sample(**RANDOM, **RULES["roberta"])
    assert p_shown(only, (0, 0, 1), words) > REJECT
    assert p_shown(only, (0, 0, 1), words - {MASK}) < REJECT


# --- Whole words ---

# 20 tokens ask for 3. Sizes of the words; the third begins inside a word after the cut, and BERT's script joins it to
# the word before, across the separator; the first piece of all has no word before it.
WHOLE = row(24, ([20, 21, 5, 6, 20, 7, 8, 21], [22, 9, 10, 23, 20, 11, 12, 13, 20]))
WORDS = [(1, 2), (3,), (4, 5), (6,), (7, 8, 10), (11,), (12, 13, 14), (15,), (16,), (17, 18)]


def exact(words, room, stop=False):
    """{set of positions: probability}. Words in random order, those that do not fit skipped: as those never fit later
    on, the next one is any of the rest that fits. With the error `stop`, the first that does not fit ends it."""
    found = Counter()

    def go(chosen, odds):
        left = [word for word in words if word not in chosen]
        room_left = room - sum(map(len, chosen))
        next_ones = [word for word in left if len(word) <= room_left]
        if not next_ones:
            found[tuple(sorted(sum(chosen, ())))] += odds
        elif stop:
            found[tuple(sorted(sum(chosen, ())))] += odds * (1 - len(next_ones) / len(left))
        for word in next_ones:
            go((*chosen, word), odds / len(left if stop else next_ones))

    go((), 1.0)
    assert sum(found.values()) == pytest.approx(1)
    return found


def p_words(sets, expected):
    return 0.0 if set(sets) - set(expected) else fits([sets[s] for s in expected], list(expected.values()))


@pytest.fixture(scope="module")
def whole():
    return prepare(objective(whole_word=True), batch([WHOLE] * ROWS))


def test_whole_words_are_asked_for_as_in_berts_script(whole):
    rows = zip(whole["predicted"], asked(whole), strict=True)
    sets = Counter(tuple(sorted(places[counts])) for places, counts in rows)
    assert p_words(sets, exact(WORDS, 3)) > REJECT
    assert p_words(sets, exact(WORDS, 3, stop=True)) < REJECT
    assert p_words(sets, exact(WORDS, 2)) == 0
    torn = [word for word in WORDS if word != (7, 8, 10)] + [(7, 8), (10,)]
    assert p_words(sets, exact(torn, 3)) == 0


def test_each_piece_of_a_word_draws_on_its_own(whole):
    assert p_shown(whole, BERT, EVERYTHING) > REJECT
    pieces = np.isin(whole["predicted"], [12, 13, 14]) & asked(whole)
    rows = pieces.sum(1) == 3
    seen = np.where(pieces, actions(whole), -1)[rows]
    first, second, third = np.array([line[line >= 0] for line in seen]).T
    assert least([independent(first, second), independent(second, third), independent(first, third)]) > REJECT
    assert independent(first, np.where(np.arange(len(first)) % 4 == 0, first, second)) < REJECT


def test_whole_words_come_close_to_the_rate():
    rng = np.random.default_rng(0)
    tokens = np.where(rng.random((400, 128)) < 0.25, 20, 5)
    given = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "example": np.arange(400)}
    number = asked(prepare(objective(whole_word=True), given)).sum(1)
    assert number.max() == 19
    assert 0.145 < number.mean() / 128 <= 19 / 128


# --- What every rule keeps to ---


@pytest.mark.parametrize("fields", [{}, RULES["roberta"], {"whole_word": True}], ids=["bert", "roberta", "whole words"])
def test_a_question_is_well_formed(fields):
    """Two packed texts, specials alone, an empty row, and one token alone."""
    rows = [PAIR, row(16, ([5, 6, 7],), ([8, 9, 10, 20],)), row(16, ([], [])), row(16), row(16, ([5],))]
    found = prepare(objective(**fields), batch(rows))
    assert found["predicted"].dtype == found["targets"].dtype == found["inputs"].dtype == np.int32
    assert found["weights"].dtype == np.float32
    assert found["weights"].sum() == pytest.approx(1, abs=1e-6)
    assert len(set(found["weights"][asked(found)])) == 1
    np.testing.assert_array_equal(np.take_along_axis(found["tokens"], found["predicted"], 1), found["targets"])
    assert all(len(set(places)) == len(places) for places in found["predicted"].tolist())
    changed = found["inputs"] != found["tokens"]
    places = np.zeros_like(changed)
    np.put_along_axis(places, found["predicted"], asked(found), 1)
    assert not (changed & ~places).any()
    assert not (places & (found["segment_ids"] == 0)).any()
    assert not asked(found)[3].any()
    assert found["inputs"].max() < V
    if not fields.get("mask_specials"):
        assert not asked(found)[2].any()
        assert asked(found).sum(1).tolist() == [2, 2, 0, 0, 1]  # n counts a row's segments together


def test_a_batch_without_content_has_no_weight():
    found = prepare(objective(), batch([row(16)] * 3))
    assert found["weights"].tolist() == [[0, 0]] * 3
    np.testing.assert_array_equal(found["inputs"], found["tokens"])


@pytest.mark.parametrize("fields", [{"max_predictions": 5}, {"max_predictions": 5, **RULES["roberta"]},
                                    {"max_predictions": 5, "whole_word": True}])
def test_predictions_can_be_capped(fields):
    found = prepare(objective(**fields), lengths())
    assert found["predicted"].shape == (128, 5)
    number = asked(found).sum(1)
    assert (number[40:] == 5).all() if not fields.get("whole_word") else number.max() == 5
    if "count" not in fields and "whole_word" not in fields:
        assert number.tolist() == [min(5, max(1, round(0.15 * n))) for n in range(1, 129)]


@pytest.mark.parametrize(("rule", "length", "most"), [
    ("bert", 128, 19), ("bert", 512, 77), ("bert", 1, 1), ("bert", 30, 4),
    ("roberta", 512, 77), ("roberta", 128, 20), ("roberta", 6, 1),
])
def test_room_for_predictions(rule, length, most):
    """The static number is the most that a full row may ask for: 77 at 512, as the published scripts have it."""
    assert masking.max_predictions(masked.Config(**RULES[rule]), length) == most


def test_every_token_can_be_asked_for():
    found = prepare(objective(rate=1.0), batch([PAIR]))
    assert sorted(found["predicted"][asked(found)]) == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    found = prepare(objective(rate=1.0, **RULES["roberta"]), batch([PAIR]))
    assert sorted(found["predicted"][asked(found)]) == list(range(14))


# --- What is refused ---


def test_shares_must_add_to_one():
    with pytest.raises(UserError, match=r"is 0\.9; .* must add to 1"):
        objective(mask=0.7)


def test_a_tokenizer_without_a_mask_is_refused():
    specials = {role: i for role, i in SPECIALS.items() if role != "mask"}
    with pytest.raises(UserError, match=r"needs a \[MASK\] token, .* it has pad, unk, cls, sep"):
        objective(replace(VOCABULARY, specials=specials))


def test_it_says_what_it_needs():
    kind = OBJECTIVES["masked"]
    assert kind.batch_fields(kind.config()) == ("tokens", "segment_ids", "example")
    assert "pair_label" in kind.batch_fields(kind.config(sentence_pair=True))
    assert kind.build(kind.config(masking="static"), model(), VOCABULARY).static
    assert not kind.build(kind.config(), model(), VOCABULARY).static


def test_a_word_does_not_reach_into_another_packed_document():
    """A packed document may begin inside a word; that piece is then a word of its own."""
    starts = jnp.array([True, True, True, False, True, True, False, True])  # cls a b ##c sep cls ##d sep
    maskable = jnp.array([False, True, True, True, False, False, True, False])
    packed = jnp.array([1, 1, 1, 1, 1, 2, 2, 2])
    for segments, together in ((packed, False), (jnp.ones_like(packed), True)):
        chosen = jax.vmap(lambda key, s=segments: masking._choose_words(
            jax.random.uniform(key, (8,)), maskable, s, starts, jnp.int32(3)))(jax.random.split(jax.random.key(0), 50))
        same = np.asarray(chosen[:, 3] == chosen[:, 6])
        assert same.all() == together
