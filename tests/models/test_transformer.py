"""The Transformer against its definition in numpy, and properties of what it computes."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models import transformer
from lmrep.models.base import Inputs
from lmrep.models.transformer import Config
from lmrep.planning import flops
from tests import reference
from tests.programs import products

B, T = 2, 8
TINY = {"vocab": 30, "width": 12, "layers": 2, "heads": 3, "mlp": 20, "max_length": 10}
CONFIGS = {
    "bert": Config(**TINY),
    "roberta": Config(**TINY, activation="gelu", norm_eps=1e-5, token_types=0, position_offset=2),
    "albert": Config(**TINY, embedding=6, share="all"),
    "pre-norm": Config(**TINY, norm="pre", embedding_norm=False, token_types=0),  # GPT-2 but for the mask
    "pre-norm relu": Config(**TINY, norm="pre", positions="sinusoidal", activation="relu", norm_eps=0.2, share="mlp"),
    "by layer": Config(**TINY, norm="pre", attention_by_layer=True, activation="silu"),
    "unscaled": Config(**TINY, scaled_attention=False, share="attention", norm="pre"),
    "dense": Config(**TINY, layer_weights="dense", share="mlp"),
    "dense blocks": Config(**TINY, layer_weights="dense_blocks", norm="pre", token_types=0),
    "convex": Config(**TINY | {"layers": 3}, layer_weights="convex", norm="pre", embedding_norm=False),
    "offset sinusoids": Config(**TINY, positions="sinusoidal", position_offset=2, share="attention", embedding=6),
}
LESS = ("roberta", "pre-norm", "unscaled", "dense", "offset sinusoids")  # their choices are in others
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 30, (B, T))
TYPES = np.array([[0, 0, 0, 1, 1, 0, 0, 1], [0, 1, 1, 1, 1, 0, 0, 0]])
SEGMENTS = np.array([[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 0, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 9, 0, 1, 0, 0, 0]])  # up to the last row of the table
REAL = SEGMENTS > 0
WEIGHTS = RNG.normal(size=(B, T, 12)) * REAL[..., None]


def inputs(c, tokens=TOKENS, types=TYPES, positions=POSITIONS, segments=SEGMENTS, causal=False):
    types, positions = types if c.token_types else None, positions if c.positions != "none" else None
    return Inputs(tokens=tokens, token_type_ids=types, positions=positions,
                  attention_mask=AttentionMask(segments, causal))


class Network:
    """A config with random parameters and its compiled function."""

    def __init__(self, c, **execution):
        self.c, self.model = c, transformer.build(c, Execution(**{"scan": True} | execution))  # compiles sooner
        self.params = reference.random_params(self.model.specs, seed=11)

        def f(params, x, causal):
            x = x._replace(attention_mask=AttentionMask(x.attention_mask.segment_ids, causal))
            encoded = self.model.encode(params, x, layers=True, attention=True)
            return (encoded.hidden * WEIGHTS).sum(), encoded

        self.compiled = jax.jit(jax.value_and_grad(f, has_aux=True), static_argnums=2)

    def __call__(self, params=None, **changed):
        x = inputs(self.c, **changed)
        causal = x.attention_mask.causal
        x = jax.tree.map(jnp.asarray, x._replace(attention_mask=AttentionMask(x.attention_mask.segment_ids, None)))
        (_, encoded), grads = self.compiled(self.params if params is None else params, x, causal)
        return encoded, grads


@pytest.fixture(scope="module")
def bert():
    return Network(CONFIGS["bert"])


@pytest.mark.parametrize("name", [*(name for name in CONFIGS if name not in LESS), *(
    pytest.param(name, marks=pytest.mark.slow) for name in LESS)])
def test_equals_its_definition(name):
    """Hidden states, layers and attention; and gradients against differences of the definition."""
    c = CONFIGS[name]
    network = Network(c)
    encoded, grads = network()
    allowed = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
    define = partial(reference.encode, c=c, tokens=TOKENS, types=TYPES, positions=POSITIONS, allowed=allowed)
    hidden, layers, probabilities = define(network.params)
    np.testing.assert_allclose(encoded.hidden, hidden, atol=2e-5)
    np.testing.assert_allclose(np.stack(encoded.layers), layers, atol=2e-5)
    np.testing.assert_allclose(encoded.attention, probabilities, atol=1e-5)

    point = reference.float64(network.params)
    direction = jax.tree.map(lambda x: np.random.default_rng(1).normal(size=x.shape), point)

    def along(h):
        return (define(jax.tree.map(lambda a, b: a + h * b, point, direction))[0] * WEIGHTS).sum()

    products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
    slope = (along(1e-6) - along(-1e-6)) / 2e-6
    assert sum(jax.tree.leaves(products)) == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize(("kind", "sizes"), [
    ("dense", [2, 3, 4]), ("dense_blocks", [2, 3, 4, 5, 6, 7]), ("convex", [2, 3]), ("convex_zero", [2, 3])])
def test_weights_of_layers_begin_at_the_last_output(kind, sizes):
    """So that a new network with dense averages computes what the one without them does; their number is exact."""
    c = Config(**TINY | {"layers": 3}, layer_weights=kind, norm="pre")
    plain, averaged = (transformer.build(config) for config in (replace(c, layer_weights="none"), c))
    params = P.init(averaged.specs, jax.random.key(0))
    assert [len(params["layer_weights"][str(i)]) for i in range(len(sizes))] == sizes
    assert P.count(averaged.specs) - P.count(plain.specs) == sum(sizes)
    assert averaged.sizes.matrices - plain.sizes.matrices == sum(sizes) * c.width
    for weights in params["layer_weights"].values():
        assert weights[-1] == (kind != "convex_zero") and not weights[:-1].any()
    if kind.startswith("dense"):
        without = {name: part for name, part in params.items() if name != "layer_weights"}
        np.testing.assert_allclose(averaged.encode(params, inputs(c)).hidden, plain.encode(without, inputs(c)).hidden,
                                   atol=1e-6)


def test_optional_outputs(bert):
    encoded, _ = bert()
    plain = jax.eval_shape(lambda params: bert.model.encode(params, inputs(bert.c)), bert.params)
    assert (plain.layers, plain.attention, plain.carry) == (None, None, None)
    assert np.stack(encoded.layers).shape == (3, B, T, 12)
    assert encoded.attention.shape == (2, B, 3, T, T)
    np.testing.assert_array_equal(encoded.layers[-1], encoded.hidden)
    np.testing.assert_allclose(encoded.attention.sum(-1), 1, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "execution"), [
    ("pre-norm", Execution(scan=True, remat="full")), ("albert", Execution()),
    ("dense blocks", Execution(remat="full")), ("convex", Execution())], ids=str)
def test_the_last_layer_can_run_at_some_positions_only(name, execution):
    """Values, and gradients of every parameter, are those of a run at all positions."""
    model = transformer.build(CONFIGS[name], execution)
    params = reference.random_params(model.specs, seed=11)
    at = jnp.array([[5, 0, 2], [1, 1, 4]])  # in no order; one twice
    w = jnp.asarray(WEIGHTS[:, :3], jnp.float32)

    def loss(params, selected):
        x = inputs(CONFIGS[name])
        hidden = (model.encode(params, x, at=at).hidden if selected else
                  jnp.take_along_axis(model.encode(params, x).hidden, at[..., None], axis=1))
        return (hidden * w).sum(), hidden

    f = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (_, selected), selected_grads = f(params, True)
    (_, full), full_grads = f(params, False)
    np.testing.assert_allclose(selected, full, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), selected_grads, full_grads)


def test_the_last_layer_computes_only_the_selected_positions():
    c = CONFIGS["bert"]
    model = transformer.build(c)
    abstract = P.abstract(model.specs)
    at = jnp.zeros((B, 3), jnp.int32)
    full = flops.count(lambda p: model.encode(p, inputs(c)).hidden, abstract)
    selected = flops.count(lambda p: model.encode(p, inputs(c), at=at).hidden, abstract)
    skipped = B * (T - 3)  # positions at which queries, outputs, feed-forward block and attention are not computed
    assert full - selected == 2 * skipped * (2 * c.width**2 + 2 * c.width * c.mlp + 2 * T * c.width)


def test_positions_count_up_where_none_are_given(bert):
    counted, _ = bert(positions=np.broadcast_to(np.arange(T), (B, T)))
    inputs_given = inputs(bert.c)._replace(positions=None), Inputs(tokens=jnp.asarray(TOKENS))  # no mask, token type 0
    plain, everything = jax.jit(lambda params: [bert.model.encode(params, x) for x in inputs_given])(bert.params)
    np.testing.assert_allclose(plain.hidden, counted.hidden, atol=1e-6)
    same, _ = bert(positions=np.broadcast_to(np.arange(T), (B, T)), segments=np.ones((B, T), int),
                   types=np.zeros((B, T), int))
    np.testing.assert_allclose(everything.hidden, same.hidden, atol=1e-6)


def test_the_position_offset_leaves_the_first_rows_unused():
    """RoBERTa counts positions from row 2 of a table that is as much longer."""
    network = Network(CONFIGS["roberta"])
    table = network.params["embedding"]["position"]
    assert table.shape[0] == 12
    before, grads = network()
    touched = np.abs(np.asarray(grads["embedding"]["position"])).max(1) > 0
    assert touched.tolist() == [row - 2 in POSITIONS[REAL] for row in range(12)]
    changed = table.copy()
    changed[:2] = 5.0
    embedding = network.params["embedding"] | {"position": changed}
    after, _ = network(network.params | {"embedding": embedding})
    np.testing.assert_array_equal(before.hidden, after.hidden)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_product_of_a_bfloat16_layer_is_in_bfloat16(norm):
    """A forgotten cast would upcast silently and halve the speed. The embeddings' own sum is float32."""
    model = transformer.build(Config(**TINY, norm=norm, token_types=0), Execution(dtype="bfloat16"))
    params = P.abstract(model.specs)
    x = inputs(CONFIGS["roberta"])

    def value(params, key):
        return model.encode(params, x, key).hidden.astype(jnp.float32).sum()

    dtypes = [{str(x.aval.dtype) for x in product.invars}
              for product in products(jax.grad(value), params, jax.random.key(0))]
    assert len(dtypes) >= 3 * 8  # six dense layers and two products of attention, and twice that back
    assert {"bfloat16"} == set().union(*dtypes)


def test_parameters_by_config():
    names = {name: set(transformer.specs(c)) for name, c in CONFIGS.items()}
    assert names["bert"] == {"embedding", "embedding_norm", "layers"}
    assert names["albert"] == {"embedding", "embedding_norm", "project", "layers"}
    assert names["pre-norm"] == {"embedding", "layers", "final_norm"}
    table = transformer.build(CONFIGS["albert"])
    assert table.output.table(table.specs).shape == (30, 6)


def test_a_generator_has_any_fraction_of_the_width():
    """Over the same tables; its heads are as wide if that divides the width (a prime width has one head)."""
    c = Config(width=768, heads=12, mlp=3072)
    generators = {fraction: transformer.generator_config(c, fraction, 3) for fraction in (1 / 3, 0.4, 0.3, 1, 1e-9)}
    assert {fraction: (n.width, n.heads, n.mlp) for fraction, n in generators.items()} == {
        1 / 3: (256, 4, 1024), 0.4: (307, 1, 1228), 0.3: (230, 2, 920), 1: (768, 12, 3072), 1e-9: (1, 1, 4)}
    assert {(n.layers, n.embedding) for n in generators.values()} == {(3, 768)}
    for network in generators.values():
        transformer.check(network)


def test_published_formulas_count_the_attention_of_global_layers():
    c = transformer.Config(layers=7, width=12, heads=2, mlp=20, window=4)
    sizes = transformer.sizes(c)
    assert sizes.attention == 12 * c.windows.count(0) == 12 * 3 and sizes.transformer is None
    assert sizes.matrices == transformer.sizes(replace(c, window=0)).matrices == 7 * (4 * 12 * 12 + 2 * 12 * 20)
    assert transformer.sizes(replace(c, gated=True)).matrices == 7 * (4 * 12 * 12 + 3 * 12 * 20)
