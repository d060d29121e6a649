"""Adaptive softmax and adaptive embeddings against their definition, one softmax over all words."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.core.sharding import make_mesh, use_mesh
from lmrep.layers import adaptive
from lmrep.layers.adaptive import Clusters
from tests import reference
from tests.cases import slow_after

slow = pytest.mark.slow
V, D, E, B, T = 29, 12, 8, 4, 6
CUTOFFS = (5, 9, 20)
RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, V, (B, T))
WEIGHTS = RNG.uniform(0.1, 1, (B, T)).astype(np.float32)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
CASES = {
    "one table": Clusters(V, D, D, CUTOFFS),
    "narrow table": Clusters(V, D, E, CUTOFFS),
    "narrower clusters": Clusters(V, D, E, CUTOFFS, 2),
    "first projection of its own": Clusters(V, D, E, CUTOFFS, 2, "tails"),
    "all projections of their own": Clusters(V, D, E, CUTOFFS, 2, "none"),
    "one cluster": Clusters(V, D, E),
}


def random_params(c, bias=True):
    """(embedding, head), with a bias of each word."""
    embedding = reference.random_params(adaptive.embedding_specs(c), seed=1)
    head = reference.random_params(adaptive.output_specs(c), seed=2)
    return embedding, head | ({"bias": RNG.normal(size=V).astype(np.float32)} if bias else {})


def vectors_by_hand(embedding, c):
    """The vector [d] of each word."""
    found = []
    for i, (start, end) in enumerate(c.ranges):
        own = embedding if c.div == 1 else embedding["clusters"][str(i)]
        table = own["token"][start:end] if c.div == 1 else own["token"]
        found.append(table @ own["project"] if "project" in own else table)
    return np.concatenate(found)


def log_p_by_hand(embedding, head, x, c):
    """log p [..., v], one cluster at a time."""
    parts = []
    for i, (start, end) in enumerate(c.ranges):
        own = embedding if c.div == 1 else embedding["clusters"][str(i)]
        table = own["token"][start:end] if c.div == 1 else own["token"]
        project = head.get("cluster_projects", {}).get(str(i), own.get("project", np.eye(D)))
        y = x @ project.T @ table.T + head.get("bias", np.zeros(V))[start:end]
        if i == 0 and c.cutoffs:
            more = x @ project.T @ head["clusters"]["kernel"].T + head["clusters"]["bias"]
            y = np.concatenate([y, more], -1)
        parts.append(log_softmax(y, -1))
    size = c.ranges[0][1]
    return np.concatenate([parts[0][..., :size],
                           *(parts[0][..., size + i, None] + part for i, part in enumerate(parts[1:]))], -1)


def numpy(tree):
    return jax.tree.map(np.asarray, tree)


def jitted(f, c, *arrays):
    return jax.jit(partial(f, c=c))(*arrays)


FEW = ["one table", "first projection of its own", *(pytest.param(name, marks=slow) for name in (
    "narrow table", "narrower clusters", "all projections of their own", "one cluster"))]


@pytest.mark.parametrize("name", FEW)
def test_the_embedding_of_a_word_is_its_vector_times_its_clusters_projection(name):
    c = CASES[name]
    embedding, _ = random_params(c)
    np.testing.assert_allclose(jitted(adaptive.embed, c, embedding, TARGETS),
                               vectors_by_hand(embedding, c)[TARGETS], atol=1e-5)


@pytest.mark.parametrize("name", FEW)
def test_probabilities_equal_their_definition_and_add_to_one(name):
    c = CASES[name]
    embedding, head = random_params(c)
    expected = log_p_by_hand(*reference.float64((embedding, head, X)), c)
    np.testing.assert_allclose(np.exp(expected).sum(-1), 1)
    found = jitted(adaptive.logits, c, embedding, head, X)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    of_targets = np.take_along_axis(expected, TARGETS[..., None], -1)[..., 0]
    found = jitted(adaptive.log_probabilities, c, embedding, head, X, TARGETS)
    np.testing.assert_allclose(found, of_targets, atol=1e-5)


def losses(c):
    """(the adaptive loss, the same from the logits of all words), each a function of (embedding, head, x)."""
    def own(embedding, head, x):
        return adaptive.cross_entropy(embedding, head, x, jnp.asarray(TARGETS), jnp.asarray(WEIGHTS), c)[0]

    def plain(embedding, head, x):
        y = adaptive.logits(embedding, head, x, c)
        return -(jnp.take_along_axis(y, TARGETS[..., None], -1)[..., 0] * WEIGHTS).sum()

    return own, plain


@pytest.mark.parametrize(("name", "bias"), [
    ("first projection of its own", True), *(pytest.param(*case, marks=slow) for case in (
        ("all projections of their own", False), ("narrow table", False)))])
def test_the_gradient_is_that_of_the_softmax_over_all_words(name, bias, monkeypatch):
    monkeypatch.setattr(adaptive, "BLOCKS", 8)  # several blocks in a tail
    monkeypatch.setattr(adaptive, "BLOCK_LOGITS", 16)
    own, plain = losses(CASES[name])
    params = *random_params(CASES[name], bias), X
    value, gradient = jax.jit(jax.value_and_grad(own, (0, 1, 2)))(*params)
    expected, expected_gradient = jax.jit(jax.value_and_grad(plain, (0, 1, 2)))(*params)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), gradient, expected_gradient)


@pytest.mark.parametrize("cluster", slow_after(1, [3, 0]))
def test_any_number_of_targets_may_be_in_a_cluster(cluster, monkeypatch):
    monkeypatch.setattr(adaptive, "BLOCKS", 8)
    monkeypatch.setattr(adaptive, "BLOCK_LOGITS", 16)
    c = CASES["narrower clusters"]
    start, end = c.ranges[cluster]
    embedding, head = random_params(c)
    targets = start + TARGETS % (end - start)
    total, nll, _ = jax.jit(partial(adaptive.cross_entropy, c=c))(embedding, head, X, targets, WEIGHTS)
    expected = -np.take_along_axis(log_p_by_hand(*reference.float64((embedding, head, X)), c),
                                   targets[..., None], -1)[..., 0]
    np.testing.assert_allclose(nll, expected, atol=1e-5)
    np.testing.assert_allclose(total, (expected * WEIGHTS).sum(), rtol=1e-5)


def test_a_target_is_correct_where_its_class_and_its_word_have_the_largest_logits():
    c = CASES["one table"]
    embedding, head = random_params(c)
    expected = log_p_by_hand(*reference.float64((embedding, head, X)), c)
    tails = [np.logaddexp.reduce(expected[..., start:end], -1) for start, end in c.ranges[1:]]
    classes = np.stack([*np.moveaxis(expected[..., :CUTOFFS[0]], -1, 0), *tails], -1).argmax(-1)
    clusters = np.maximum(classes - CUTOFFS[0] + 1, 0)
    best = np.choose(clusters, [classes, *(start + expected[..., start:end].argmax(-1) for start, end in c.ranges[1:])])
    assert len(np.unique(clusters)) > 2
    for targets in (best, (best + 1) % V):
        correct = jitted(adaptive.cross_entropy, c, embedding, head, X, targets, WEIGHTS)[2]
        np.testing.assert_array_equal(correct, targets == best)


@slow
@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 1, 1, 2)], ids=str)
def test_meshes_give_the_same(sizes):
    own, _ = losses(CASES["first projection of its own"])
    params = *random_params(CASES["first projection of its own"]), X
    expected = jax.jit(jax.value_and_grad(own, (0, 1, 2)))(*params)
    with use_mesh(make_mesh(*sizes)):
        found = jax.jit(jax.value_and_grad(own, (0, 1, 2)))(*params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), numpy(found), numpy(expected))


@pytest.mark.slow
def test_bfloat16_is_near_float32():
    c = CASES["narrower clusters"]
    params = random_params(c)
    own, _ = losses(c)
    run = partial(jax.jit(jax.value_and_grad(own, 2)), *params)
    value, gradient = run(jnp.asarray(X))
    rounded, rounded_gradient = run(jnp.asarray(X, jnp.bfloat16))
    np.testing.assert_allclose(rounded, value, rtol=2e-2)
    assert rounded_gradient.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded_gradient.astype(np.float32), gradient, atol=5e-2)


@pytest.mark.parametrize(("vocab", "width", "embedding", "div", "tied", "cutoffs", "input_size", "output_size"), [
    (267_735, 410, 410, 1, "tails", (20_000, 40_000, 200_000), 109_771_350, 1_233),
    (267_735, 1024, 1024, 4, "tails", (20_000, 40_000, 200_000), 36_923_760 + 1_392_640, 1_048_576 + 3_075)])
def test_parameters_are_those_of_transformer_xl(vocab, width, embedding, div, tied, cutoffs, input_size, output_size):
    c = Clusters(vocab, width, embedding, cutoffs, div, tied)
    assert (P.count(adaptive.embedding_specs(c)), P.count(adaptive.output_specs(c))) == (input_size, output_size)


@pytest.mark.parametrize("c", [Clusters(V, D, E, (9, 5)), Clusters(V, D, E, (5, 5)), Clusters(V, D, E, (0, 5)),
                               Clusters(V, D, E, (5, V)), Clusters(V, D, 8, CUTOFFS, 4)])
def test_clusters_that_do_not_fit_are_refused(c):
    with pytest.raises(UserError, match=r"expected ascending ids|below 1"):
        adaptive.check(c)
