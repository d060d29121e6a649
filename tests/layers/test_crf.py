"""The linear-chain CRF against sums and maxima over all sequences of tags."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers import crf
from lmrep.tasks import schemes
from tests.cases import slow_after

B, T, L = 4, 5, 3
LABELS = ("O", "B-X", "I-X")
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 1, 0, 0]], bool)


def single(mask):
    """One chain in each row, at the positions where `mask` bool[b, t] holds."""
    count = jnp.cumsum(mask, -1)
    return crf.Chains(mask.astype(jnp.int32), mask & (count == 1), mask & (count == count[:, -1:]))


@pytest.fixture(scope="module")
def case():
    draw = np.random.default_rng(0)
    scores = {name: draw.normal(size=spec.shape).astype(np.float32) for name, spec in crf.specs(L).items()}
    return scores, draw.normal(size=(B, T, L)).astype(np.float32), draw.integers(0, L, (B, T))


def score(scores, emissions, tags, first=True, last=True):
    """By the formula, of one chain: emissions [n, l], tags of length n."""
    total = sum(emissions[i, tag] for i, tag in enumerate(tags))
    total += sum(scores["between"][a, b] for a, b in itertools.pairwise(tags))
    return total + first * scores["start"][tags[0]] + last * scores["end"][tags[-1]]


def enumerate_scores(scores, emissions, **flags):
    scores, emissions = jax.device_get(scores), np.asarray(emissions, np.float64)
    every = itertools.product(range(L), repeat=len(emissions))
    return {tags: score(scores, emissions, tags, **flags) for tags in every}


@jax.jit
def everything(scores, emissions, tags, chains):
    return (crf.log_likelihood(scores, emissions, tags, chains), crf.marginals(scores, emissions, chains),
            crf.viterbi(scores, emissions, chains))


def test_log_likelihood_marginals_and_viterbi_equal_enumeration(case):
    scores, emissions, tags = case
    found, probabilities, best = jax.device_get(everything(scores, emissions, tags, jax.jit(single)(MASK)))
    for row in range(B):
        at = np.flatnonzero(MASK[row])
        every = enumerate_scores(scores, emissions[row, at])
        values = np.array(list(every.values()))
        log_z = np.logaddexp.reduce(values)
        assert found[row].sum() == pytest.approx(every[tuple(tags[row, at])] - log_z, abs=1e-5)
        expected = np.zeros((len(at), L))
        for sequence, value in every.items():
            expected[np.arange(len(at)), sequence] += np.exp(value - log_z)
        np.testing.assert_allclose(probabilities[row, at], expected, atol=1e-5)
        assert tuple(best[row, at].tolist()) == max(every, key=every.get)
    assert not found[~MASK].any() and not probabilities[~MASK].any()


def test_chains_of_a_row_are_independent(case):
    """Two chains beside each other, the second one in the middle of a text, are as each by itself."""
    scores, emissions, tags = case
    number = np.array([[1, 1, 0, 2, 2]])
    first, last = np.array([[True, False, False, False, False]]), np.array([[False, True, False, False, False]])
    chains = crf.Chains(number, first, last)
    found, probabilities, best = (np.asarray(x)[0] for x in everything(scores, emissions[:1], tags[:1], chains))
    for at, flag in (([0, 1], True), ([3, 4], False)):
        every = enumerate_scores(scores, emissions[0, np.array(at)], first=flag, last=flag)
        log_z = np.logaddexp.reduce(list(every.values()))
        assert found[np.array(at)].sum() == pytest.approx(every[tuple(tags[0, at])] - log_z, abs=1e-5)
        assert tuple(best[np.array(at)].tolist()) == max(every, key=every.get)
        np.testing.assert_allclose(probabilities[np.array(at)].sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(("scheme", "labels"), slow_after(1, [
    ("BIOES", ("O", "B-X", "I-X", "E-X", "S-X")), ("IOB1", LABELS), ("BIO", LABELS)]))
def test_constraints_leave_the_sequences_that_a_scheme_allows(scheme, labels):
    """Their probabilities add to 1, no other is predicted, and every gradient is finite."""
    draw = np.random.default_rng(3)
    n, length = len(labels), 4
    params = {name: draw.normal(size=spec.shape).astype(np.float32) for name, spec in crf.specs(n).items()}
    emissions = draw.normal(size=(1, length, n)).astype(np.float32)
    allowed, sequences = schemes.allowed(scheme, labels), np.array([*itertools.product(range(n), repeat=length)])

    def log_likelihoods(params, tags):
        texts = jnp.broadcast_to(emissions, (*tags.shape, n))
        return crf.log_likelihood(crf.constrained(params, allowed), texts, tags, single(
            jnp.ones(tags.shape, bool))).sum(-1)

    @jax.jit
    def run(params):
        constrained, chains = crf.constrained(params, allowed), single(jnp.ones((1, length), bool))
        best = crf.viterbi(constrained, emissions, chains)
        return (log_likelihoods(params, sequences), best[0], crf.marginals(constrained, emissions, chains),
                jax.grad(lambda params: log_likelihoods(params, best).sum())(params))

    values, best, probabilities, gradient = jax.device_get(run(params))
    assert np.isfinite(values).all() and np.exp(values).sum() == pytest.approx(1, abs=1e-5)
    for sequence, value in zip(sequences, values, strict=True):
        assert (value > -100) == (not schemes.changed(scheme, [labels[i] for i in sequence]))
    assert not schemes.changed(scheme, [labels[i] for i in best])
    assert all(np.isfinite(value).all() for value in gradient.values())
    assert not gradient["between"][~allowed.between].any() and np.abs(gradient["between"]).sum() > 0
    assert np.isfinite(probabilities).all() and not probabilities[0, 0, ~allowed.start].any()


@pytest.mark.slow
def test_without_scores_between_tags_it_is_a_softmax_of_each_word(case):
    _, emissions, tags = case
    params, chains = P.init(crf.specs(L), jax.random.key(0)), single(jnp.asarray(MASK))
    found = crf.log_likelihood(params, emissions, jnp.asarray(tags), chains)
    expected = np.take_along_axis(np.asarray(jax.nn.log_softmax(emissions)), tags[..., None], -1)[..., 0] * MASK
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (crf.viterbi(params, emissions, chains) == emissions.argmax(-1))[MASK].all()
