"""Properties of every network of `MODELS`, at its tiny size: what a position depends on, packing and padding,
generation, chosen positions, precision, gradients, and that neither rematerialization nor a scan nor a mesh changes a
result.

The programs and results of a network are shared by its tests. Equations and published values are in the other files.
"""

from dataclasses import fields, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core import sharding
from lmrep.layers import dropout
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, model_inputs, pretrained_models
from tests.cases import slow_after

slow = pytest.mark.slow
V, T, S, RATE = 31, 10, 7, 0.2
RNG = np.random.default_rng(0)
CHARACTERS = RNG.integers(1, 262, (V, 6)).astype(np.int32)  # of each word
KEY = jax.random.key(3)
ROWS = ["f", "ab", "a", "b", "", "ol", "l", "cd"]  # the texts of each example; one has none
LENGTHS = {"f": (10, 7), "a": (4, 3), "b": (3, 2), "o": (1, 2), "l": (9, 4), "c": (5, 4), "d": (5, 3)}  # and sources
TEXTS = {name: [RNG.integers(0, V, n) for n in lengths] for name, lengths in LENGTHS.items()}
AT = RNG.integers(0, T, (len(ROWS), 3)).astype(np.int32)

# Choices of a config that run other code than the tiny one.
VARIANTS = {
    "albert": ("transformer", {"embedding": 32, "share": "all"}),
    "pre_norm": ("transformer", {"norm": "pre", "embedding_norm": False, "token_types": 0, "positions": "sinusoidal",
                                 "attention_by_layer": True}),
    "modernbert": ("transformer", {
        "norm": "pre", "norm_kind": "layer_without_bias", "first_norm": False, "bias": False, "gated": True,
        "activation": "gelu", "token_types": 0, "positions": "rotary", "window": 2, "local_base": 100.0}),
    "deberta": ("transformer", {
        "token_types": 0, "positions": "disentangled", "position_buckets": 4, "max_distance": 6, "convolution": 3}),
    "relative_content": ("transformer", {"positions": "disentangled", "position_buckets": 0, "max_distance": 5,
                                         "position_terms": "c2p", "share": "attention"}),
    "neobert": ("transformer", {
        "norm": "pre", "norm_kind": "rms", "embedding_norm": False, "bias": False, "gated": True, "activation": "silu",
        "token_types": 0, "positions": "rotary", "rotary_fraction": 0.5, "query_key_norm": True}),
    "gptbert": ("transformer", {"norm": "pre", "positions": "rotary", "token_types": 0, "gated": True,
                                "layer_weights": "dense_blocks"}),
    "elc_bert": ("transformer", {"norm": "pre", "layers": 3, "layer_weights": "convex"}),
    "gemma2": ("transformer", {"norm": "pre", "norm_kind": "rms", "positions": "rotary", "token_types": 0, "window": 2,
                               "global_every": 2, "attention_cap": 0.02}),
    "xlnet": ("transformer_xl", {"causal": False, "segments": True, "untie": True, "scale_embedding": False}),
    "rnn": ("lstm", {"cell": "rnn", "layers": 2}),
    "word_tables": ("bilstm", {"reads": "words", "shared": False}),
    "forward_lstm": ("bilstm", {"reads": "words", "directions": "forward"}),
    "vaswani": ("encoder_decoder", {
        "positions": "sinusoidal", "max_length": 20, "norm": "post", "rms_norm": False, "mlp_bias": True,
        "scaled_attention": True, "scaled_embedding": True, "shared_dropout": False, "tied": "output"}),
    "t5_1_1": ("encoder_decoder", {"gated": True, "activation": "gelu_tanh", "tied": "embeddings", "head_width": 24}),
    "t5_same_text": ("encoder_decoder", {"stacks": "same_text"}),
    "cove": ("seq2seq_lstm", MODELS["seq2seq_lstm"].encoder),
}
QUICK = ("transformer", "transformer_xl")
CASES = [*(pytest.param((name, {}), id=name, marks=[slow] * (name not in QUICK)) for name in pretrained_models()),
         *(pytest.param(case, id=name, marks=slow) for name, case in VARIANTS.items())]


def packed(tokens, n):
    """Examples of the texts of `ROWS`, with padding: tokens i32[b, n], segments, and positions from 0 in each text."""
    rows = np.stack([np.full((len(ROWS), n), 1), *np.zeros((2, len(ROWS), n), int)]).astype(np.int32)
    for row, names in enumerate(ROWS):
        start = 0
        for number, name in enumerate(names, 1):
            text = TEXTS[name][tokens]
            rows[:, row, start : start + len(text)] = text, np.full(len(text), number), np.arange(len(text))
            start += len(text)
    return rows


def make_batch():
    (tokens, segments, positions), source = packed(0, T), packed(1, S)
    return {"tokens": tokens, "segment_ids": segments, "positions": positions, "token_type_ids": tokens % 2,
            "source": dict(zip(("tokens", "segment_ids", "positions"), source, strict=True))}


BATCH = make_batch()
SEGMENTS, SOURCE_SEGMENTS = BATCH["segment_ids"], BATCH["source"]["segment_ids"]
REAL = SEGMENTS > 0


def changed(where, source=False):
    """`BATCH` with other tokens where the mask says, of the text or of its source."""
    text = BATCH["source"] if source else BATCH
    text = text | {"tokens": np.where(where, (text["tokens"] + 7) % V, text["tokens"])}
    return BATCH | {"source": text} if source else text


class Network:
    """A network with random parameters, and its programs."""

    def __init__(self, name, changes):
        self.name, self.definition, self.is_variant = name, MODELS[name], bool(changes)
        self.config = self.definition.config(**self.definition.tiny | {"vocab": V} | changes)
        self.model = self.build(Execution())
        self.contexts = [each for each in ("left", "both", "source") if each in self.model.conditions_on]
        rng = np.random.default_rng(1)
        self.params = P.map_paths(lambda path, spec: np.asarray(
            path.endswith("scale") + 0.05 * rng.normal(size=spec.shape), np.float32), self.model.specs)
        self.keys = []  # of the masks that a run of `step` draws
        self.weights = rng.normal(size=(*REAL.shape, self.model.width)) * REAL[..., None] / REAL.sum()

    def build(self, execution, rate=0.0):
        rates = {field.name: rate for field in fields(self.config)
                 if field.name in self.definition.dropout_fields and isinstance(field.default, float)}
        return self.definition.build(replace(self.config, **rates), execution)

    def inputs(self, model, batch, context):
        batch = dict(batch, characters=jnp.asarray(CHARACTERS)[batch["tokens"]])
        if context != "source":
            del batch["source"]
        return model_inputs(model, jax.tree.map(jnp.asarray, batch), conditions_on=context)

    def forward(self, execution=Execution()):
        """(params, batch) -> for each context, the outputs, and those at the positions `AT`."""
        model = self.build(execution)
        return jax.jit(lambda params, batch: {
            context: [model.encode(params, self.inputs(model, batch, context), at=at).hidden
                      for at in (None, jnp.asarray(AT))] for context in self.contexts})

    @cached_property
    def compiled(self):
        return self.forward()

    def outputs(self, batch=BATCH):
        """For each context, the outputs [b, t, d] at all positions."""
        return {context: np.asarray(hidden) for context, (hidden, _) in self.compiled(self.params, batch).items()}

    def training(self, execution=Execution(), draw=dropout._hash):
        """(params, batch, key) -> ((loss, outputs), gradients) of the first context, with dropout."""
        model = self.build(execution, RATE)

        def loss(params, batch, key):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(dropout, "_hash", draw)
                hidden = model.encode(params, self.inputs(model, batch, self.contexts[0]), key).hidden
            return (hidden * self.weights).sum(), jnp.where(REAL[..., None], hidden, 0)

        return jax.jit(jax.value_and_grad(loss, has_aux=True))

    @cached_property
    def step(self):
        def recorded(key, number):
            jax.debug.callback(lambda data: self.keys.append(tuple(data.tolist())), jax.random.key_data(key))
            return draw(key, number)

        draw = dropout._hash
        return self.training(draw=recorded)

    @cached_property
    def trained(self):
        return self.step(self.params, BATCH, KEY)


@pytest.fixture(scope="module", params=CASES)
def network(request):
    return Network(*request.param)


def close(computed, expected):
    """Up to roundings of float32, which are those of an array's largest values."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, max(1e-6, 1e-5 * np.abs(y).max())),
                 computed, expected)


# --- What an output depends on


def dependencies(network, source=False):
    """For each context, bool[b, t, n, s]: whether output t, or its half n of two directions, depends on token s of the
    text, or of its source."""
    base, found, length = network.outputs(), {context: [] for context in network.contexts}, S if source else T
    for s in range(length):
        other = network.outputs(changed(np.arange(length) == s, source))
        for context, steps in found.items():
            difference = np.abs(other[context] - base[context])
            steps.append(difference.reshape(*REAL.shape, network.model.output.directions, -1).max(-1) > 1e-6)
    return {context: np.stack(steps, -1) for context, steps in found.items()}


def test_output_depends_on_its_text_as_far_as_its_context_goes(network):
    """Not on later tokens, on other texts of the example or on padding; and on everything else."""
    same_text = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
    before = np.tri(T, dtype=bool)
    for context, found in dependencies(network).items():
        sides = [before, before.T] if network.model.output.directions == 2 else [
            np.ones((T, T), bool) if context == "both" else before]
        for direction, side in enumerate(sides):
            np.testing.assert_array_equal(found[:, :, direction][REAL], (same_text & side)[REAL], err_msg=context)


def test_decoder_reads_all_of_the_source_of_its_text(network):
    for context, found in dependencies(network, source=True).items():
        same_text = (SEGMENTS[:, :, None] == SOURCE_SEGMENTS[:, None, :]) & (context == "source")
        np.testing.assert_array_equal(found[:, :, 0][REAL], same_text[REAL])


def test_packed_texts_are_encoded_as_alone(network):
    for hidden in network.outputs().values():
        for row, start, alone in ((1, 0, 2), (1, 4, 3), (5, 1, 6)):
            n = (SEGMENTS[alone] > 0).sum()
            close(hidden[row, start : start + n], hidden[alone, :n])


def test_padding_changes_no_gradient(network):
    batch = changed(~REAL) | {"source": changed(SOURCE_SEGMENTS == 0, source=True)["source"]}
    close(network.step(network.params, batch, KEY), network.trained)


def test_examples_may_be_in_any_order(network):
    turned = network.outputs(jax.tree.map(lambda x: x[::-1], BATCH))
    for context, hidden in network.outputs().items():
        close(turned[context][::-1], hidden)


def test_outputs_at_chosen_positions_are_those_of_all(network):
    for full, chosen in network.compiled(network.params, BATCH).values():
        real = np.take_along_axis(REAL, AT, 1)
        close(chosen[real], np.take_along_axis(np.asarray(full), AT[..., None], 1)[real])


def test_decoding_equals_encoding(network):
    """After a prompt with padding, token by token, for texts with and without a padded source."""
    model, params, b = network.model, network.params, len(ROWS)
    if model.state.decode is None:
        assert model.state.cache is None
        return
    context = "source" if "source" in network.contexts else "left"
    tokens = RNG.integers(0, V, (b, T)).astype(np.int32)
    batch = BATCH | {"tokens": tokens, "segment_ids": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens),
                     "positions": np.broadcast_to(np.arange(T, dtype=np.int32), (b, T)),
                     "source": BATCH["source"] | {
                         "segment_ids": np.int32(np.arange(S) < np.arange(1, b + 1)[:, None])}}
    source = network.inputs(model, batch, context).source
    cache = jax.jit(lambda params, source: model.state.cache(
        params, b, T + 2, **({} if source is None else {"source": source})))(params, source)
    decode = jax.jit(model.state.decode)
    hidden, cache = decode(params, np.pad(tokens[:, :4], ((0, 0), (0, 2)), constant_values=3), cache, jnp.int32(4))
    outputs = [hidden[:, :4]]
    for t in range(4, T):
        hidden, cache = decode(params, tokens[:, t : t + 1], cache)
        outputs.append(hidden)
    close(np.concatenate(outputs, 1), network.outputs(batch)[context])


@slow
def test_bfloat16_is_near_float32(network):
    if network.is_variant:
        return
    model, context = network.build(Execution("bfloat16")), network.contexts[0]
    found = jax.jit(lambda params, batch: model.encode(params, network.inputs(model, batch, context)).hidden)(
        network.params, BATCH)
    expected = network.outputs()[context][REAL]
    assert found.dtype == jnp.bfloat16
    error = np.asarray(found, np.float64)[REAL] - expected
    assert error.std() < 0.02 * expected.std()  # a few roundings of 2^-9


# --- Training


UNUSED = ("key/bias", "query")  # softmax takes no constant, and a query stream is read in an order alone


def test_every_parameter_has_a_finite_gradient(network):
    """Also where an example has no text at all."""
    (loss, hidden), gradients = network.trained
    assert np.isfinite(loss) and np.isfinite(hidden).all()
    for path, gradient in P.flatten(gradients).items():
        assert np.isfinite(gradient).all(), path
        assert np.abs(gradient).max() > 1e-9 or path.endswith(UNUSED), path


def test_dropout_depends_on_the_key_alone(network):
    (loss, hidden), _ = network.trained
    assert network.step(network.params, BATCH, KEY)[0][0] == loss
    (other, _), _ = network.step(network.params, BATCH, jax.random.key(4))
    plain = np.where(REAL[..., None], network.outputs()[network.contexts[0]], 0)
    assert other != loss and np.abs(hidden - plain).max() > 1e-2


def test_no_key_draws_two_masks(network):
    network.keys.clear()
    jax.block_until_ready(network.step(network.params, BATCH, KEY))
    jax.effects_barrier()
    assert len(set(network.keys)) == len(network.keys) >= 2


@pytest.mark.parametrize(("execution", "sizes"), slow_after(1, [
    (Execution(scan=True, remat="full"), (2, 2, 2)), (Execution(remat="dots"), (1, 2, 2, 2))]), ids=str)
def test_neither_execution_nor_mesh_changes_outputs_or_gradients(network, execution, sizes):
    """Sequences are sharded for the networks of `MODELS` whose attention can be."""
    if len(sizes) == 4 and (network.is_variant or network.definition.attention(network.config) is None):
        return
    mesh = sharding.make_mesh(*sizes)
    with sharding.use_mesh(mesh):
        params = jax.device_put(network.params, sharding.shardings(network.model.specs, mesh))
        found = network.training(execution)(params, jax.device_put(BATCH, sharding.batch_sharding(mesh)), KEY)
    assert len(jax.tree.leaves(found[1])[0].sharding.device_set) == mesh.size
    close(found, network.trained)
