"""SpanBERT: which spans are chosen, what stands in their place, what is asked by the tokens around them.

Statistical tests reject at p < 1e-4 with fixed seeds; each check is shown to reject a planted error.
"""

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.objectives import OBJECTIVES, masking, span_boundary
from tests.chance import REJECT, fits, independent, uniform
from tests.objectives.toys import CLS, FREQUENT, MASK, SPECIALS, UNK, VOCABULARY, V, batch, model, prepare, row

ROWS = 20_000
# Two texts of 7 and 3 tokens; 20 to 23 go on with the word before them, the first of the second text has none.
ROW = row(16, ([5, 20, 6, 7, 21, 22, 8], [22, 9, 20]))
TEXTS = [[(1, 2), (3,), (4, 5, 6), (7,)], [(9,), (10, 11)]]
# What ROW has is never drawn as a random word.
BARE = replace(VOCABULARY, counts=np.where(np.isin(np.arange(V), ROW[0]), 0, np.arange(V)))


def build(vocabulary=VOCABULARY, **fields):
    return span_boundary.build(span_boundary.Config(**fields), model(), vocabulary)


@cache
def sample(given=((5, 20, 6, 7, 21, 22, 8), (22, 9, 20)), bare=False, **fields):
    """ROWS questions about one row."""
    line = row(16, tuple(list(text) for text in given))
    return prepare(build(BARE if bare else VOCABULARY, **fields), batch([line] * ROWS))


def sets(found):
    """Of every row the positions that are asked for."""
    return [tuple(sorted(places[counts])) for places, counts in zip(found["predicted"], found["weights"] > 0,
                                                                    strict=True)]


def runs(places):
    """[(first, last)] of neighbours."""
    found = []
    for place in sorted(places):
        if found and found[-1][1] + 1 == place:
            found[-1][1] = place
        else:
            found.append([place, place])
    return [tuple(run) for run in found]


# --- Which spans ---


def exact(texts, budget, p=0.2, max_span_length=10, anchor="token", cut=True):
    """{set of positions: probability}, by the published procedure. The errors: an anchor among the words, all of the
    last word."""
    lengths = np.array([p * (1 - p) ** (n - 1) for n in range(1, max_span_length + 1)])
    lengths = dict(enumerate(lengths / lengths.sum(), 1))
    states, final = {frozenset(): 1.0}, Counter()
    words = [(text, i) for text in texts for i in range(len(text))]
    while states:
        following = Counter()
        for chosen, odds in states.items():
            free = [(text, i, sum(place not in chosen for place in text[i])) for text, i in words]
            weights = [(n > 0) if anchor == "word" else n for *_, n in free]
            for (text, i, _), weight in zip(free, weights, strict=True):
                for length, share in lengths.items() if weight else ():
                    grown = set(chosen)
                    for word in text[i:i + length]:
                        for place in word:
                            if len(grown) < budget or not cut:
                                grown.add(place)
                        if len(grown) >= budget:
                            break
                    into = final if len(grown) >= budget else following
                    into[frozenset(grown)] += odds * weight / sum(weights) * share
        states = following
    assert sum(final.values()) == pytest.approx(1)
    return {tuple(sorted(places)): odds for places, odds in final.items()}


def p_sets(found, expected):
    seen = Counter(sets(found))
    return 0.0 if set(seen) - set(expected) else fits([seen[s] for s in expected], list(expected.values()))


def test_spans_are_chosen_as_published():
    found = sample(rate=0.35)
    assert {len(places) for places in sets(found)} == {4}  # ceil(.35 * 10)
    assert p_sets(found, exact(TEXTS, 4)) > REJECT
    assert p_sets(found, exact(TEXTS, 4, p=0.25)) < REJECT
    assert p_sets(found, exact(TEXTS, 4, max_span_length=3)) < REJECT
    assert p_sets(found, exact(TEXTS, 4, anchor="word")) < REJECT
    assert p_sets(found, exact(TEXTS, 4, cut=False)) == 0
    assert p_sets(found, exact([TEXTS[0] + TEXTS[1]], 4)) == 0  # no span goes on in another text


@pytest.mark.parametrize("fields", [{"p": 0.5, "max_span_length": 2}, {"p": 1.0}, {"p": 0.01, "max_span_length": 3}])
def test_lengths_are_fields(fields):
    found = sample(rate=0.35, **fields)
    assert p_sets(found, exact(TEXTS, 4, **({"max_span_length": 1} if fields["p"] == 1 else fields))) > REJECT
    assert p_sets(found, exact(TEXTS, 4)) < REJECT


def test_packed_segments_are_texts_of_their_own():
    line = row(16, ([5, 20, 6, 7],), ([22, 9, 20],))
    close = np.pad(np.delete(line, [0, 5, 6, 10], axis=1), ((0, 0), (0, 4)))  # no special tokens between them
    assert close[1].tolist() == [1, 1, 1, 1, 2, 2, 2] + [0] * 9
    for given, texts in ((line, [[(1, 2), (3,), (4,)], [(7,), (8, 9)]]),
                         (close, [[(0, 1), (2,), (3,)], [(4,), (5, 6)]])):
        found = prepare(build(rate=0.4), batch([given] * ROWS))
        assert p_sets(found, exact(texts, 3)) > REJECT
        assert p_sets(found, exact([texts[0] + texts[1]], 3)) == 0


def test_lengths_have_the_published_distribution():
    shares = 0.8 ** np.arange(10)
    assert (shares * np.arange(1, 11)).sum() / shares.sum() == pytest.approx(3.8, abs=0.01)
    drawn = 1 + np.asarray(masking.sample_index(jax.random.bits(jax.random.key(0), (200_000,)), shares))
    counts = np.bincount(drawn, minlength=11)[1:]
    assert len(counts) == 10 and fits(counts, shares) > REJECT
    clipped = shares.copy()
    clipped[-1] = 0.8**9 / 0.2  # longer ones cut to ten words
    assert fits(counts, clipped) < REJECT


def lengths():
    """Rows of 0 to 99 plain words between [CLS] and [SEP]."""
    return batch([row(102, (np.random.default_rng(n).integers(5, V, n).tolist(),)) for n in range(100)])


@pytest.mark.parametrize(("count", "expected"), [
    ("ceil", lambda n: math.ceil(0.15 * n)), ("round", lambda n: min(n, max(1, round(0.15 * (n + 2)))))])
def test_as_many_are_asked_for_as_the_budget_says(count, expected):
    found = prepare(build(count=count), lengths())
    number = (found["weights"] > 0).sum(1).tolist()
    assert number == [expected(n) for n in range(100)]
    assert number != [round(0.15 * n) for n in range(100)]
    assert found["weights"].sum() == pytest.approx(1, abs=1e-6)
    assert found["predicted"].shape[1] == {"ceil": 16, "round": 15}[count]


# --- What is shown ---


def kinds(found):
    """Of every row's first span of two tokens or more: 0 all [MASK], 1 all its own, 2 all other words, 3 mixed."""
    answers = []
    for inputs, tokens, places in zip(found["inputs"], found["tokens"], sets(found), strict=True):
        span = next((run for run in runs(places) if run[1] > run[0]), None)
        if span is not None:
            shown, own = inputs[span[0]:span[1] + 1], tokens[span[0]:span[1] + 1]
            fits_one = [(shown == MASK).all(), (shown == own).all(), ((shown != MASK) & (shown != own)).all()]
            answers.append(fits_one.index(True) if any(fits_one) else 3)
    return np.bincount(answers, minlength=4)


def test_a_span_is_shown_in_one_way():
    found = kinds(sample(rate=0.35, bare=True))
    assert fits(found, [0.8, 0.1, 0.1, 0]) > REJECT
    assert fits(found, [0.85, 0.15, 0, 0]) < REJECT and fits(found, [0.78, 0.11, 0.11, 0]) < REJECT
    assert fits(kinds(sample(rate=0.35, bare=True, replace="token")), [0.8, 0.1, 0.1, 0]) == 0
    other = kinds(sample(rate=0.35, bare=True, mask=0.5, keep=0.3, random=0.2))
    assert fits(other, [0.5, 0.3, 0.2, 0]) > REJECT and fits(other, [0.5, 0.2, 0.3, 0]) < REJECT


def shown_words(found):
    """What is shown for the first four that are asked for, of each row all: [b, 4]."""
    assert ((found["weights"] > 0) == (np.arange(found["weights"].shape[1]) < 4)).all()
    return np.take_along_axis(found["inputs"], found["predicted"], 1)[:, :4]


def actions(found):
    """Of all that is asked for: 0 [MASK], 1 the token itself, 2 another; [b, 4]."""
    shown = shown_words(found)
    return np.where(shown == MASK, 0, np.where(shown == found["targets"][:, :4], 1, 2))


def test_or_each_token_in_its_own():
    found = actions(sample(rate=0.35, bare=True, replace="token"))
    assert fits(np.bincount(found.ravel()), [0.8, 0.1, 0.1]) > REJECT
    assert fits(np.bincount(found.ravel()), [0.82, 0.09, 0.09]) < REJECT
    assert independent(found[:, 0], found[:, 1]) > REJECT
    together = actions(sample(rate=0.35, bare=True))
    assert independent(together[:, 0], together[:, 1]) < REJECT


def test_spans_are_shown_independently():
    found = sample(rate=0.35, bare=True)
    firsts = [[run[0] for run in runs(places)][:2] for places in sets(found)]
    two = np.array([len(first) == 2 for first in firsts])
    places = np.array([first for first in firsts if len(first) == 2])
    shown, own = (np.take_along_axis(found[name][two], places, 1) for name in ("inputs", "tokens"))
    seen = np.where(shown == MASK, 0, np.where(shown == own, 1, 2))
    assert len(seen) > ROWS / 4 and independent(seen[:, 0], seen[:, 1]) > REJECT
    assert independent(seen[:, 0], np.where(np.arange(len(seen)) % 4 == 0, seen[:, 0], seen[:, 1])) < REJECT


def test_random_words_are_as_frequent_as_in_the_corpus():
    found = sample(rate=0.35, mask=0, keep=0, random=1)
    words = np.bincount(shown_words(found).ravel(), minlength=V)
    counts = np.where(np.isin(np.arange(V), [i for role, i in SPECIALS.items() if role != "unk"]), 0,
                      VOCABULARY.counts)
    assert counts[FREQUENT] == 9 and counts[UNK] == 1 and fits(words, counts) > REJECT
    assert fits(words, counts > 0) < REJECT and fits(words, np.where(np.arange(V) == UNK, 0, counts)) == 0
    nothing = prepare(build(replace(VOCABULARY, counts=np.zeros(V, int)), rate=0.35, mask=0, keep=0, random=1),
                      batch([ROW] * 2000))
    words = np.bincount(shown_words(nothing).ravel(), minlength=V)
    assert fits(words, counts > 0) > REJECT and fits(words, counts) < REJECT  # unknown counts: any word


# --- What is asked by the tokens around a span ---

MANY = batch([ROW, row(16, ([5, 6, 7, 20],), ([8, 9, 10, 20],)), row(16, ([], [])), row(16), row(16, ([5],)),
              row(16, ([5, 6, 7, 20, 8, 9, 10, 20, 11, 12, 13],))] * 40, pair_label=np.tile([0, 1, 0, 0, 1, 1], 40))


@pytest.mark.parametrize("fields", [{}, {"max_targets": 2}, {"rate": 0.6}, {"rate": 1.0}, {"sentence_pair": True}],
                         ids=str)
def test_a_span_inside_its_text_is_asked_for_by_its_neighbours(fields):
    fields = {"rate": 0.3} | fields
    found = prepare(build(**fields), MANY)
    most = fields.get("max_targets", 20)
    number = 0
    for b, chosen in enumerate(sets(found)):
        tokens, segments, needed = (found[name][b] for name in ("tokens", "segment_ids", "needed"))
        special = np.isin(tokens, [CLS, 3]) | (segments == 0)
        asked = {}
        for first, last in runs(chosen):
            inside = not special[first - 1] and not special[last + 1]
            asked |= {i: (first - 1, last + 1, i - first) for i in range(first, min(last + 1, first + most)) if inside}
        order = found["predicted"][b][found["weights"][b] > 0].tolist()
        assert order == list(chosen) == needed[found["own"][b]][:len(chosen)].tolist()
        assert len(set(needed)) == len(needed)
        bounded = found["boundary_weights"][b] > 0
        assert set(found["predicted"][b][bounded]) == set(asked)
        for i, left, right, place in zip(
                found["predicted"][b][bounded], needed[found["left"][b]][bounded], needed[found["right"][b]][bounded],
                found["span_position"][b][bounded], strict=True):
            assert asked[i] == (left, right, place)
        number += bounded.sum()
        untouched = np.ones(16, bool)
        untouched[list(chosen)] = False
        assert (found["inputs"][b] == tokens)[untouched].all()
        np.testing.assert_array_equal(tokens[found["predicted"][b]], found["targets"][b])
        if fields.get("sentence_pair"):
            assert needed[0] == 0
    assert number > 0 or fields["rate"] == 1
    assert found["boundary_weights"].sum() == pytest.approx(number / (number + 1), abs=1e-6)
    assert found["weights"].sum() == pytest.approx(1, abs=1e-5)


def test_a_batch_without_content_has_no_weight():
    found = prepare(build(), batch([row(16), row(16, ([], []))]))
    assert not found["weights"].any() and not found["boundary_weights"].any()
    np.testing.assert_array_equal(found["inputs"], found["tokens"])


def test_without_the_boundary_only_masks_remain():
    plain, full = sample(rate=0.35, boundary=False), sample(rate=0.35)
    for name in ("inputs", "predicted", "targets", "weights"):
        np.testing.assert_array_equal(plain[name], full[name])
    assert plain["needed"].shape[1] == plain["predicted"].shape[1]
    assert not {"left", "right", "span_position", "boundary_weights"} & set(plain)
    assert set(build(boundary=False).specs["objective"]) == {"masked"}


# --- What is refused ---


def test_what_is_refused_and_what_it_needs():
    with pytest.raises(UserError, match=r"is 0\.9; .* must add to 1"):
        build(mask=0.7)
    with pytest.raises(UserError, match=r"span_boundary needs a \[MASK\] token"):
        build(replace(VOCABULARY, specials={"cls": CLS}))
    kind = OBJECTIVES["span_boundary"]
    assert kind.batch_fields(kind.config()) == ("tokens", "segment_ids", "example")
    assert "pair_label" in kind.batch_fields(kind.config(sentence_pair=True))


def test_anchors_are_uniform():
    """With one word a span and one token asked for, any is as likely as any other."""
    found = sample(given=((5, 6, 7, 8, 9, 10, 11, 12, 5, 6),), rate=0.1, p=1.0)
    counts = np.bincount(found["predicted"][:, 0], minlength=16)[1:11]
    assert counts.sum() == ROWS and uniform(counts) > REJECT
    assert uniform(counts + np.where(np.arange(10) == 3, 400, 0)) < REJECT
