"""The linear-chain CRF against sums and maxima over all sequences of tags."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers import crf
from lmrep.tasks import schemes

B, T, L = 4, 5, 3
LABELS = ("O", "B-X", "I-X")
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 1, 0, 0]], bool)


@pytest.fixture(scope="module")
def case():
    draw = np.random.default_rng(0)
    scores = {name: jnp.asarray(draw.normal(size=spec.shape), jnp.float32) for name, spec in crf.specs(L).items()}
    return scores, jnp.asarray(draw.normal(size=(B, T, L)), jnp.float32), draw.integers(0, L, (B, T))


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
    found, probabilities, best = everything(scores, emissions, tags, crf.single(jnp.asarray(MASK)))
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
    number = jnp.array([[1, 1, 0, 2, 2]])
    first, last = jnp.array([[True, False, False, False, False]]), jnp.array([[False, True, False, False, False]])
    chains = crf.Chains(number, first, last)
    found, probabilities, best = (x[0] for x in everything(scores, emissions[:1], tags[:1], chains))
    for at, flag in (([0, 1], True), ([3, 4], False)):
        every = enumerate_scores(scores, emissions[0, np.array(at)], first=flag, last=flag)
        log_z = np.logaddexp.reduce(list(every.values()))
        assert found[np.array(at)].sum() == pytest.approx(every[tuple(tags[0, at])] - log_z, abs=1e-5)
        assert tuple(best[np.array(at)].tolist()) == max(every, key=every.get)
        np.testing.assert_allclose(probabilities[np.array(at)].sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(("scheme", "labels"), [
    ("BIO", LABELS), ("IOB1", LABELS), ("BIOES", ("O", "B-X", "I-X", "E-X", "S-X")),
    ("BILOU", ("O", "B-X", "I-X", "L-X", "U-X"))])
def test_constraints_leave_the_sequences_that_a_scheme_allows(scheme, labels):
    """Their probabilities add to 1, no other is predicted, and every gradient is finite."""
    draw = np.random.default_rng(3)
    n, length = len(labels), 4
    params = {name: jnp.asarray(draw.normal(size=spec.shape), jnp.float32) for name, spec in crf.specs(n).items()}
    emissions = jnp.asarray(draw.normal(size=(1, length, n)), jnp.float32)
    chains, allowed = crf.single(jnp.ones((1, length), bool)), schemes.allowed(scheme, labels)

    @jax.jit
    def log_likelihood(params, tags):
        return crf.log_likelihood(crf.constrained(params, allowed), emissions, tags, chains).sum()

    total = 0.0
    for sequence in itertools.product(range(n), repeat=length):
        value = float(log_likelihood(params, jnp.array([sequence])))
        legal = not schemes.changed(scheme, [labels[i] for i in sequence])
        assert np.isfinite(value) and (value > -100) == legal
        total += np.exp(value)
    assert total == pytest.approx(1, abs=1e-5)
    constrained = crf.constrained(params, allowed)
    best = crf.viterbi(constrained, emissions, chains)[0]
    assert not schemes.changed(scheme, [labels[i] for i in best])
    gradient = jax.grad(log_likelihood)(params, best[None])
    assert all(np.isfinite(value).all() for value in gradient.values())
    assert not gradient["between"][~allowed.between].any() and np.abs(gradient["between"]).sum() > 0
    probabilities = crf.marginals(constrained, emissions, chains)
    assert np.isfinite(probabilities).all() and not probabilities[0, 0, ~allowed.start].any()


@pytest.mark.slow
def test_without_scores_between_tags_it_is_a_softmax_of_each_word(case):
    _, emissions, tags = case
    params, chains = P.init(crf.specs(L), jax.random.key(0)), crf.single(jnp.asarray(MASK))
    found = crf.log_likelihood(params, emissions, jnp.asarray(tags), chains)
    expected = np.take_along_axis(np.asarray(jax.nn.log_softmax(emissions)), tags[..., None], -1)[..., 0] * MASK
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (crf.viterbi(params, emissions, chains) == emissions.argmax(-1))[MASK].all()
