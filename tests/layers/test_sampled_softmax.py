"""The sampled softmax: its draws, its loss and gradients, and the memory that it takes."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from lmrep.core.params import ParamSpec
from lmrep.core.sharding import make_mesh, shardings, use_mesh
from lmrep.layers import lm_head, sampled_softmax
from lmrep.layers.sampled_softmax import ALL, Negatives
from tests.cases import slow_after

slow = pytest.mark.slow
V, E, B, T, K = 48, 6, 8, 3, 16
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(V, E)).astype(np.float32)
BIAS = RNG.normal(size=V).astype(np.float32)
X = RNG.normal(size=(B, T, E)).astype(np.float32)
TARGETS = np.minimum(RNG.geometric(0.15, (B, T)) - 1, V - 1).astype(np.int32)
WEIGHTS = RNG.uniform(0.1, 1, (B, T)).astype(np.float32)
NEGATIVES = Negatives(jnp.asarray(RNG.permutation(V)[:K], jnp.int32), jnp.int32(40))


def probabilities(vocab):
    i = np.arange(vocab)
    return np.log((i + 2) / (i + 1)) / np.log(vocab + 1)


def by_hand(table, bias, x, negatives):
    """nll float64 [b, t], as `tf.nn.sampled_softmax_loss` defines it."""
    words, draws = np.asarray(negatives.words), int(negatives.draws)
    q = 1 - (1 - probabilities(V)) ** draws
    y = np.asarray(x, np.float64) @ table.T + bias - np.log(q)
    true = np.take_along_axis(y, TARGETS[..., None], -1)
    sampled = np.where(TARGETS[..., None] == words, -np.inf, y[..., words])
    return logsumexp(np.concatenate([true, sampled], -1), axis=-1) - true[..., 0]


def total(table, bias, x, negatives=NEGATIVES):
    return sampled_softmax.cross_entropy(table, x, jnp.asarray(TARGETS), jnp.asarray(WEIGHTS), negatives, bias)


@pytest.mark.parametrize(("k", "vocab"), slow_after(1, [(47, V), (1, 3), (300, 1000)]))
def test_a_draw_has_distinct_words_of_the_vocabulary_and_is_a_function_of_its_key(k, vocab):
    sample = jax.jit(partial(sampled_softmax.draw, k=k, vocab=vocab))
    words, draws = sample(jax.random.key(3))
    assert len(set(words.tolist())) == k and set(words.tolist()) <= set(range(vocab)) and int(draws) >= k
    np.testing.assert_array_equal(words, sample(jax.random.key(3)).words)


@slow
def test_draws_are_log_uniform_even_for_the_rarest_of_many_words():
    vocab, n = 800_000, 2**21
    ids, accepted = jax.jit(partial(sampled_softmax._candidates, n=n, vocab=vocab))(jax.random.key(0))
    drawn = np.asarray(ids)[np.asarray(accepted)]
    edges = np.array([0, 1, 2, 3, 10, 100, 1000, 10_000, 399_999, 700_001, 700_004, 799_000, vocab])
    expected = len(drawn) * np.diff(np.log(edges + 1)) / np.log(vocab + 1)
    found = np.histogram(drawn, edges)[0]
    assert (np.abs(found - expected) < 4 * np.sqrt(expected) + 1).all(), (found, expected)


@pytest.mark.slow
def test_the_number_of_draws_and_expected_counts_are_those_of_a_simulation():
    """k distinct words take as many draws as drawing one by one, and expected counts are how often words are found."""
    simulated, rng, p = [], np.random.default_rng(1), probabilities(V)
    for _ in range(1000):
        order = rng.choice(V, 400, p=p)
        simulated.append(np.sort(np.unique(order, return_index=True)[1])[K - 1] + 1)
    words, draws = jax.jit(jax.vmap(partial(sampled_softmax.draw, k=K, vocab=V)))(
        jax.random.split(jax.random.key(1), 4000))
    error = np.std(simulated) * np.sqrt(1 / 1000 + 1 / 4000)
    assert abs(np.mean(draws) - np.mean(simulated)) < 4 * error
    frequency = np.bincount(np.ravel(words), minlength=V) / 4000
    # TensorFlow's formula takes the number of draws as given: good to 3 % here.
    log_count = jax.vmap(lambda n: sampled_softmax.log_expected_counts(jnp.arange(V), n, K, V))(draws)
    np.testing.assert_allclose(np.exp(log_count).mean(0), frequency, atol=0.03)


def test_expected_counts_equal_their_definition():
    for draws in (K + 1, 40, 5000):
        found = sampled_softmax.log_expected_counts(jnp.arange(V), jnp.int32(draws), K, V)
        np.testing.assert_allclose(np.exp(found), 1 - (1 - probabilities(V)) ** draws, rtol=1e-5)
    without_repeats = sampled_softmax.log_expected_counts(jnp.arange(V), jnp.int32(K), K, V)
    np.testing.assert_allclose(np.exp(without_repeats), K * probabilities(V), rtol=1e-5)


def test_loss_equals_its_definition_with_targets_among_the_negatives():
    assert np.isin(TARGETS, NEGATIVES.words).any() and not np.isin(TARGETS, NEGATIVES.words).all()
    loss, nll = jax.jit(total)(TABLE, BIAS, X)
    expected = by_hand(TABLE, BIAS, X, NEGATIVES)
    np.testing.assert_allclose(nll, expected, atol=1e-4)
    assert float(loss) == pytest.approx((expected * WEIGHTS).sum(), rel=1e-5)


def test_gradients_equal_finite_differences_in_any_number_of_chunks(monkeypatch):
    def losses(chunk):
        monkeypatch.setattr(sampled_softmax, "CHUNK_LOGITS", chunk)
        return jax.jit(jax.value_and_grad(lambda *args: 3 * total(*args)[0], (0, 1, 2)))(TABLE, BIAS, X)

    loss, grads = losses(2**22)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-5), losses(B * K), (loss, grads))
    point = [np.asarray(each, np.float64) for each in (TABLE, BIAS, X)]
    for i, grad in enumerate(grads):
        step = np.random.default_rng(i).normal(size=grad.shape)
        ends = [3 * (by_hand(*(x + h * step if j == i else x for j, x in enumerate(point)), NEGATIVES) * WEIGHTS).sum()
                for h in (1e-5, -1e-5)]
        assert float((np.asarray(grad, np.float64) * step).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4)


def test_with_the_complete_vocabulary_it_is_the_full_softmax():
    everything = sampled_softmax.draw(jax.random.key(0), V, V)
    assert int(everything.draws) == ALL
    loss = partial(total, negatives=everything)
    (_, nll), grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(TABLE, BIAS, X)
    full = -np.take_along_axis(log_softmax(X @ TABLE.T + BIAS, axis=-1), TARGETS[..., None], -1)[..., 0]
    np.testing.assert_allclose(nll, full, atol=1e-5)
    expected = jax.jit(jax.grad(lambda table, bias, x: lm_head.chunked_cross_entropy(
        table, x, jnp.asarray(TARGETS), jnp.asarray(WEIGHTS), bias)[0], (0, 1, 2)))(TABLE, BIAS, X)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), grads, expected)


@slow
def test_the_expected_gradient_is_zero_with_the_correct_logits_and_nears_that_of_the_full_softmax():
    """The gradient of the logits, in expectation over targets with the model's own probabilities and over negatives.

    That of the full softmax is 0. The mean of 4,000 draws is within 5 % of the length of a gradient, since expected
    counts take the number of draws as given; without the correction by them it is more than a third.
    """
    logits = np.random.default_rng(4).normal(size=V).astype(np.float32)
    probability = np.exp(log_softmax(logits))

    def mean_gradient(k, draws, corrected=True):
        def one(key):
            found = sampled_softmax.draw(key, k, V)
            found = found if corrected else Negatives(found.words, jnp.int32(ALL))

            def loss(bias):
                x, everything = jnp.zeros((V, 1, 1)), jnp.arange(V)[:, None]
                return sampled_softmax.cross_entropy(jnp.zeros((V, 1)), x, everything, probability[:, None], found,
                                                     bias)[0]

            return jax.grad(loss)(jnp.asarray(logits))

        return jax.jit(lambda keys: jax.vmap(one)(keys).mean(0))(jax.random.split(jax.random.key(k), draws))

    length = np.sqrt((probability**2).sum())
    biases = {k: np.linalg.norm(mean_gradient(k, 4000)) / length for k in (8, 24, 40)}
    assert max(biases.values()) < 0.05, biases
    assert np.linalg.norm(mean_gradient(8, 400, corrected=False)) / length > 0.3


@slow
@pytest.mark.usefixtures("no_compilation_cache")
@pytest.mark.parametrize(("sizes", "k"), [((2, 2, 2), 13), ((1, 8, 1), 13)])
def test_every_mesh_gives_the_loss_and_gradients_of_one_device(capfd, sizes, k):
    table = RNG.normal(size=(V, 8)).astype(np.float32)
    x = RNG.normal(size=(B, T, 8)).astype(np.float32)

    def loss(table, bias, x):
        found = sampled_softmax.draw(jax.random.key(0), k, V)
        total, nll = sampled_softmax.cross_entropy(table, x, jnp.asarray(TARGETS), jnp.asarray(WEIGHTS), found, bias)
        return total, (nll, found)

    run = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
    expected = jax.jit(run)(table, BIAS, x)
    mesh = make_mesh(*sizes)
    specs = (ParamSpec(table.shape, ("vocab", "embed")), ParamSpec(BIAS.shape, ("vocab",)),
             ParamSpec(x.shape, ("batch", None, None)))
    with use_mesh(mesh):
        args = jax.device_put((table, BIAS, x), shardings(specs, mesh))
        found = jax.jit(run, out_shardings=(None, shardings(specs, mesh)))(*args)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)
    assert not re.findall(r".*rematerial.*", capfd.readouterr().err, re.IGNORECASE)


def test_memory_at_800_000_words_is_a_twentieth_of_the_full_softmax():
    """Temporary memory of the loss and its gradients, for two directions with 128 x 20 positions each."""
    b, t, e, v, k = 128, 40, 512, 800_000, 8192
    shape = jax.ShapeDtypeStruct
    args = (shape((v, e), jnp.float32), shape((v,), jnp.float32), shape((b, t, e), jnp.float32),
            shape((b, t), jnp.int32), shape((b, t), jnp.float32))

    def full(table, bias, x, targets, weights):
        return lm_head.chunked_cross_entropy(table, x, targets, weights, bias)[0]

    def sampled(table, bias, x, targets, weights, words, draws):
        return sampled_softmax.cross_entropy(table, x, targets, weights, Negatives(words, draws), bias)[0]

    def temporary(loss, *args):
        compiled = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*args).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    found = temporary(sampled, *args, shape((k,), jnp.int32), shape((), jnp.int32))
    assert found * 20 <= temporary(full, *args), found
