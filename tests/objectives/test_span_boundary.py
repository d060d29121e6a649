"""SpanBERT: which spans are chosen, what replaces them, what is predicted from the tokens around them.

Statistical tests reject at p < 1e-4 with fixed seeds; each check is shown to reject a planted error.
"""

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from lmrep.objectives import OBJECTIVES, masking, span_boundary
from tests.cases import slow_after
from tests.chance import REJECT, fits, independent, uniform
from tests.objectives.toys import CLS, FREQUENT, MASK, SPECIALS, UNK, VOCABULARY, V, batch, example, model, prepare

EXAMPLES = 20_000
# Two texts of 7 and 3 tokens; 20 to 23 continue the word before them, the first of the second text has none.
EXAMPLE = example(16, ([5, 20, 6, 7, 21, 22, 8], [22, 9, 20]))
TEXTS = [[(1, 2), (3,), (4, 5, 6), (7,)], [(9,), (10, 11)]]
# The tokens of EXAMPLE are never drawn as random words.
OTHER_WORDS = replace(VOCABULARY, counts=np.where(np.isin(np.arange(V), EXAMPLE[0]), 0, np.arange(V)))


def build(vocabulary=VOCABULARY, **fields):
    return span_boundary.build(span_boundary.Config(**fields), model(), vocabulary)


@cache
def sample(texts=((5, 20, 6, 7, 21, 22, 8), (22, 9, 20)), other_words=False, **fields):
    """ROWS prepared copies of one example."""
    one = example(16, tuple(list(text) for text in texts))
    return prepare(build(OTHER_WORDS if other_words else VOCABULARY, **fields), batch([one] * EXAMPLES))


def sets(prepared):
    """The predicted positions of each example."""
    used = prepared["weights"] > 0
    return [tuple(sorted(positions[mask])) for positions, mask in zip(prepared["predicted"], used, strict=True)]


def runs(positions):
    """[(first, last)] of neighbours."""
    spans = []
    for position in sorted(positions):
        if spans and spans[-1][1] + 1 == position:
            spans[-1][1] = position
        else:
            spans.append([position, position])
    return [tuple(run) for run in spans]


# --- Which spans ---


def exact(texts, budget, p=0.2, max_span_length=10, anchor="token", cut=True):
    """{set of positions: probability}, by the published procedure. The errors: an anchor among the words, all of the
    last word."""
    lengths = np.array([p * (1 - p) ** (n - 1) for n in range(1, max_span_length + 1)])
    lengths = dict(enumerate(lengths / lengths.sum(), 1))
    states, final = {frozenset(): 1.0}, Counter()
    words = [(text, i) for text in texts for i in range(len(text))]
    while states:
        next_states = Counter()
        for chosen, probability in states.items():
            free = [(text, i, sum(position not in chosen for position in text[i])) for text, i in words]
            weights = [(n > 0) if anchor == "word" else n for *_, n in free]
            for (text, i, _), weight in zip(free, weights, strict=True):
                for length, length_probability in lengths.items() if weight else ():
                    grown = set(chosen)
                    for word in text[i:i + length]:
                        for position in word:
                            if len(grown) < budget or not cut:
                                grown.add(position)
                        if len(grown) >= budget:
                            break
                    into = final if len(grown) >= budget else next_states
                    into[frozenset(grown)] += probability * weight / sum(weights) * length_probability
        states = next_states
    assert sum(final.values()) == pytest.approx(1)
    return {tuple(sorted(positions)): probability for positions, probability in final.items()}


def p_sets(prepared, expected):
    counts = Counter(sets(prepared))
    return 0.0 if set(counts) - set(expected) else fits([counts[s] for s in expected], list(expected.values()))


@pytest.mark.slow
def test_spans_are_chosen_as_published():
    prepared = sample(rate=0.35)
    assert {len(positions) for positions in sets(prepared)} == {4}  # ceil(.35 * 10)
    assert p_sets(prepared, exact(TEXTS, 4)) > REJECT
    assert p_sets(prepared, exact(TEXTS, 4, p=0.25)) < REJECT
    assert p_sets(prepared, exact(TEXTS, 4, max_span_length=3)) < REJECT
    assert p_sets(prepared, exact(TEXTS, 4, anchor="word")) < REJECT
    assert p_sets(prepared, exact(TEXTS, 4, cut=False)) == 0
    assert p_sets(prepared, exact([TEXTS[0] + TEXTS[1]], 4)) == 0  # no span continues in another text


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"p": 0.5, "max_span_length": 2}, {"p": 1.0}])
def test_lengths_are_fields(fields):
    prepared = sample(rate=0.35, **fields)
    assert p_sets(prepared, exact(TEXTS, 4, **({"max_span_length": 1} if fields["p"] == 1 else fields))) > REJECT
    assert p_sets(prepared, exact(TEXTS, 4)) < REJECT


def test_packed_segments_are_texts_of_their_own():
    """Also where no special tokens are between them."""
    packed = example(16, ([5, 20, 6, 7],), ([22, 9, 20],))
    adjacent = np.pad(np.delete(packed, [0, 5, 6, 10], axis=1), ((0, 0), (0, 4)))
    assert adjacent[1].tolist() == [1, 1, 1, 1, 2, 2, 2] + [0] * 9
    texts = [[(0, 1), (2,), (3,)], [(4,), (5, 6)]]
    prepared = prepare(build(rate=0.4), batch([adjacent] * EXAMPLES))
    assert p_sets(prepared, exact(texts, 3)) > REJECT
    assert p_sets(prepared, exact([texts[0] + texts[1]], 3)) == 0


def test_lengths_have_the_published_distribution():
    probabilities = 0.8 ** np.arange(10)
    assert (probabilities * np.arange(1, 11)).sum() / probabilities.sum() == pytest.approx(3.8, abs=0.01)
    drawn = 1 + np.asarray(masking.sample_index(jax.random.bits(jax.random.key(0), (200_000,)), probabilities))
    counts = np.bincount(drawn, minlength=11)[1:]
    assert len(counts) == 10 and fits(counts, probabilities) > REJECT
    clipped = probabilities.copy()
    clipped[-1] = 0.8**9 / 0.2  # longer ones cut to ten words
    assert fits(counts, clipped) < REJECT


def lengths():
    """Examples of 0 to 99 plain words between [CLS] and [SEP]."""
    return batch([example(102, (np.random.default_rng(n).integers(5, V, n).tolist(),)) for n in range(100)])


@pytest.mark.parametrize(("count", "expected"), slow_after(1, [
    ("ceil", lambda n: math.ceil(0.15 * n)), ("round", lambda n: min(n, max(1, round(0.15 * (n + 2)))))]))
def test_as_many_are_predicted_as_the_budget_gives(count, expected):
    prepared = prepare(build(count=count), lengths())
    number = (prepared["weights"] > 0).sum(1).tolist()
    assert number == [expected(n) for n in range(100)]
    assert number != [round(0.15 * n) for n in range(100)]
    assert prepared["weights"].sum() == pytest.approx(1, abs=1e-6)
    assert prepared["predicted"].shape[1] == {"ceil": 16, "round": 15}[count]


# --- Replacements ---


def span_actions(prepared):
    """Of each example's first span of two tokens or more: 0 all [MASK], 1 all unchanged, 2 all other words, 3 mixed."""
    actions = []
    for inputs, tokens, positions in zip(prepared["inputs"], prepared["tokens"], sets(prepared), strict=True):
        span = next((run for run in runs(positions) if run[1] > run[0]), None)
        if span is not None:
            shown, own = inputs[span[0]:span[1] + 1], tokens[span[0]:span[1] + 1]
            fits_one = [(shown == MASK).all(), (shown == own).all(), ((shown != MASK) & (shown != own)).all()]
            actions.append(fits_one.index(True) if any(fits_one) else 3)
    return np.bincount(actions, minlength=4)


@pytest.mark.slow
def test_a_span_is_replaced_in_one_way():
    counts = span_actions(sample(rate=0.35, other_words=True))
    assert fits(counts, [0.8, 0.1, 0.1, 0]) > REJECT
    assert fits(counts, [0.85, 0.15, 0, 0]) < REJECT and fits(counts, [0.78, 0.11, 0.11, 0]) < REJECT
    assert fits(span_actions(sample(rate=0.35, other_words=True, replace="token")), [0.8, 0.1, 0.1, 0]) == 0
    other = span_actions(sample(rate=0.35, other_words=True, mask=0.5, keep=0.3, random=0.2))
    assert fits(other, [0.5, 0.3, 0.2, 0]) > REJECT and fits(other, [0.5, 0.2, 0.3, 0]) < REJECT


def replacements(prepared):
    """The inputs at the targets, of which each example has four: [b, 4]."""
    assert ((prepared["weights"] > 0) == (np.arange(prepared["weights"].shape[1]) < 4)).all()
    return np.take_along_axis(prepared["inputs"], prepared["predicted"], 1)[:, :4]


def actions(prepared):
    """Of each target: 0 [MASK], 1 the token itself, 2 another; [b, 4]."""
    shown = replacements(prepared)
    return np.where(shown == MASK, 0, np.where(shown == prepared["targets"][:, :4], 1, 2))


@pytest.mark.slow
def test_tokens_can_be_replaced_independently():
    prepared = actions(sample(rate=0.35, other_words=True, replace="token"))
    assert fits(np.bincount(prepared.ravel()), [0.8, 0.1, 0.1]) > REJECT
    assert fits(np.bincount(prepared.ravel()), [0.82, 0.09, 0.09]) < REJECT
    assert independent(prepared[:, 0], prepared[:, 1]) > REJECT
    by_span = actions(sample(rate=0.35, other_words=True))
    assert independent(by_span[:, 0], by_span[:, 1]) < REJECT


def test_spans_are_replaced_independently():
    prepared = sample(rate=0.35, other_words=True)
    starts = [[run[0] for run in runs(positions)][:2] for positions in sets(prepared)]
    two = np.array([len(first) == 2 for first in starts])
    positions = np.array([first for first in starts if len(first) == 2])
    shown, unchanged = (np.take_along_axis(prepared[name][two], positions, 1) for name in ("inputs", "tokens"))
    observed = np.where(shown == MASK, 0, np.where(shown == unchanged, 1, 2))
    assert len(observed) > EXAMPLES / 4 and independent(observed[:, 0], observed[:, 1]) > REJECT
    first, second = observed.T
    assert independent(first, np.where(np.arange(len(first)) % 4 == 0, first, second)) < REJECT


@pytest.mark.slow
def test_random_words_are_as_frequent_as_in_the_corpus():
    prepared = sample(rate=0.35, mask=0, keep=0, random=1)
    words = np.bincount(replacements(prepared).ravel(), minlength=V)
    counts = np.where(np.isin(np.arange(V), [i for role, i in SPECIALS.items() if role != "unk"]), 0,
                      VOCABULARY.counts)
    assert counts[FREQUENT] == 9 and counts[UNK] == 1 and fits(words, counts) > REJECT
    assert fits(words, counts > 0) < REJECT and fits(words, np.where(np.arange(V) == UNK, 0, counts)) == 0
    unknown_counts = prepare(build(replace(VOCABULARY, counts=np.zeros(V, int)), rate=0.35, mask=0, keep=0, random=1),
                      batch([EXAMPLE] * 2000))
    words = np.bincount(replacements(unknown_counts).ravel(), minlength=V)
    assert fits(words, counts > 0) > REJECT and fits(words, counts) < REJECT  # unknown counts: any word


# --- What is predicted from the tokens around a span ---

BATCH = batch([EXAMPLE, example(16, ([5, 6, 7, 20],), ([8, 9, 10, 20],)), example(16, ([], [])), example(16),
               example(16, ([5],)), example(16, ([5, 6, 7, 20, 8, 9, 10, 20, 11, 12, 13],))] * 40,
              pair_label=np.tile([0, 1, 0, 0, 1, 1], 40))


@pytest.mark.parametrize("fields", slow_after(1, [{"max_targets": 2, "sentence_pair": True}, {}, {"rate": 1.0}]),
                         ids=str)
def test_a_span_inside_its_text_is_predicted_from_its_neighbours(fields):
    fields = {"rate": 0.3} | fields
    prepared = prepare(build(**fields), BATCH)
    most = fields.get("max_targets", 20)
    count = 0
    for b, chosen in enumerate(sets(prepared)):
        tokens, segments, needed = (prepared[name][b] for name in ("tokens", "segment_ids", "needed"))
        special = np.isin(tokens, [CLS, 3]) | (segments == 0)
        expected = {}
        for first, last in runs(chosen):
            inside = not special[first - 1] and not special[last + 1]
            if inside:
                expected |= {i: (first - 1, last + 1, i - first) for i in range(first, min(last + 1, first + most))}
        order = prepared["predicted"][b][prepared["weights"][b] > 0].tolist()
        assert order == list(chosen) == needed[prepared["slot"][b]][:len(chosen)].tolist()
        assert len(set(needed)) == len(needed)
        bounded = prepared["boundary_weights"][b] > 0
        assert set(prepared["predicted"][b][bounded]) == set(expected)
        for i, left, right, position in zip(
                prepared["predicted"][b][bounded], needed[prepared["left"][b]][bounded],
                needed[prepared["right"][b]][bounded], prepared["span_position"][b][bounded], strict=True):
            assert expected[i] == (left, right, position)
        count += bounded.sum()
        untouched = np.ones(16, bool)
        untouched[list(chosen)] = False
        assert (prepared["inputs"][b] == tokens)[untouched].all()
        np.testing.assert_array_equal(tokens[prepared["predicted"][b]], prepared["targets"][b])
        if fields.get("sentence_pair"):
            assert needed[0] == 0
    assert count > 0 or fields["rate"] == 1
    assert prepared["boundary_weights"].sum() == pytest.approx(count / (count + 1), abs=1e-6)
    assert prepared["weights"].sum() == pytest.approx(1, abs=1e-5)


def test_a_batch_without_content_has_no_weight():
    prepared = prepare(build(), batch([example(16), example(16, ([], []))]))
    assert not prepared["weights"].any() and not prepared["boundary_weights"].any()
    np.testing.assert_array_equal(prepared["inputs"], prepared["tokens"])


def test_without_the_boundary_only_masks_remain():
    plain, full = (prepare(build(rate=0.35, **fields), batch([EXAMPLE] * 100)) for fields in ({"boundary": False}, {}))
    for name in ("inputs", "predicted", "targets", "weights"):
        np.testing.assert_array_equal(plain[name], full[name])
    assert plain["needed"].shape[1] == plain["predicted"].shape[1]
    assert not {"left", "right", "span_position", "boundary_weights"} & set(plain)
    assert set(build(boundary=False).specs["objective"]) == {"masked"}


# --- Batch fields ---


def test_the_definition_declares_its_batch_fields():
    definition = OBJECTIVES["span_boundary"]
    assert definition.batch_fields(definition.config()) == ("tokens", "segment_ids", "example")
    assert "pair_label" in definition.batch_fields(definition.config(sentence_pair=True))


def test_anchors_are_uniform():
    """With spans of one word and one target, all are equally probable."""
    prepared = sample(texts=((5, 6, 7, 8, 9, 10, 11, 12, 5, 6),), rate=0.1, p=1.0)
    counts = np.bincount(prepared["predicted"][:, 0], minlength=16)[1:11]
    assert counts.sum() == EXAMPLES and uniform(counts) > REJECT
    assert uniform(counts + np.where(np.arange(10) == 3, 400, 0)) < REJECT
