"""BERT, RoBERTa, DistilBERT, XLNet and T5 against the implementations of Hugging Face transformers, and the adaptive
softmax against PyTorch's, run side by side.

All parameters are random, biases and norms too; sizes are odd; examples are padded and have two token types.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.params import unflatten
from lmrep.interop.huggingface import FAMILIES
from lmrep.interop.huggingface.read import assign
from lmrep.layers import adaptive, lm_head
from lmrep.layers.attention import AttentionMask
from lmrep.layers.relative_bias import Buckets
from lmrep.models import encoder_decoder, transformer, transformer_xl
from lmrep.models.base import Factorization, Inputs
from lmrep.models.transformer import Config
from lmrep.objectives import sentence_pair

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Imported for these tests alone: that takes seconds."""
    global torch, transformers
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))


LAYERS, B, T = 3, 2, 17
SIZES = {"vocab_size": 101, "hidden_size": 36, "num_hidden_layers": LAYERS, "num_attention_heads": 3,
         "intermediate_size": 70}
OURS = {"vocab": 101, "width": 36, "layers": LAYERS, "heads": 3, "mlp": 70, "max_length": 40}
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(4, 101, (B, T))
TYPES = RNG.integers(0, 2, (B, T))
REAL = np.ones((B, T), int)
REAL[1, 11:] = 0


def randomised(model):
    """The model with every parameter drawn anew, for inference."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            values = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values + (0.7 if parameter.ndim == 1 else 0))
    return model.eval()


def parameters(model, config, family):
    """A reference model's parameters as ours are named."""
    tensors = {name: x.detach().numpy() for name, x in model.state_dict().items()}
    tensors_found, extra = assign(tensors, FAMILIES[family], config, Path("its state"))
    assert not extra
    return unflatten(tensors_found)


def compare(config, params, theirs, **more):
    """The largest differences of the hidden states of all layers and of the masked-LM logits, wherever there is no
    padding; and our hidden states."""
    model = transformer.build(config)
    encoder, head_params = params["encoder"], params["objective"]["masked"]
    jax.tree.map(lambda spec, x: np.testing.assert_equal(x.shape, spec.shape), model.specs, encoder, is_leaf=P.is_spec)
    inputs = Inputs(tokens=jnp.asarray(TOKENS), attention_mask=AttentionMask(jnp.asarray(REAL)), **more)

    @jax.jit
    def run(params, head_params):
        encoded = model.encode(params, inputs, layers=True)
        style = model.head_style
        x = lm_head.transform(head_params, encoded.hidden, activation=style.activation, eps=style.eps)
        return encoded, lm_head.logits(head_params, model.output.table(params), x)

    encoded, our_logits = run(encoder, head_params)
    real = REAL.astype(bool)
    their_states = np.stack([state.numpy() for state in theirs.hidden_states])
    assert their_states.shape == (LAYERS + 1, B, T, 36)
    logits = theirs.prediction_logits if "prediction_logits" in theirs else theirs.logits
    return (np.abs(np.asarray(encoded.layers)[:, real] - their_states[:, real]).max(),
            np.abs(np.asarray(our_logits)[real] - logits.numpy()[real]).max(), encoded.hidden)


def test_distilbert():
    reference = randomised(transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(
        vocab_size=101, dim=36, n_layers=LAYERS, n_heads=3, hidden_dim=70, max_position_embeddings=40)))
    with torch.no_grad():
        expected = reference(torch.tensor(TOKENS), attention_mask=torch.tensor(REAL), output_hidden_states=True)
    config = Config(**OURS, activation="gelu", token_types=0)
    states_error, logits_error, _ = compare(config, parameters(reference, config, "distilbert"), expected)
    assert max(states_error, logits_error) <= 1e-5


@pytest.mark.parametrize(("ours", "theirs"), [("gelu", "gelu"), ("gelu_tanh", "gelu_new")])
def test_bert(ours, theirs):
    reference = randomised(transformers.BertForPreTraining(transformers.BertConfig(
        **SIZES, max_position_embeddings=40, hidden_act=theirs)))
    with torch.no_grad():
        expected = reference(torch.tensor(TOKENS), attention_mask=torch.tensor(REAL),
                             token_type_ids=torch.tensor(TYPES), output_hidden_states=True)
    config = Config(**OURS, activation=ours)
    params = parameters(reference, config, "bert")
    states_error, logits_error, hidden = compare(config, params, expected, token_type_ids=jnp.asarray(TYPES))
    assert max(states_error, logits_error) <= 1e-5
    np.testing.assert_allclose(sentence_pair.logits(params["objective"]["pair"], hidden[:, 0]),
                               expected.seq_relationship_logits.numpy(), rtol=0, atol=1e-5)


def test_roberta():
    """Theirs has a table of one token type, which is added at every position. Padding has id 1."""
    reference = randomised(transformers.RobertaForMaskedLM(transformers.RobertaConfig(
        **SIZES, max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1)))
    tokens = np.where(REAL, TOKENS, 1)
    with torch.no_grad():
        expected = reference(torch.tensor(tokens), attention_mask=torch.tensor(REAL), output_hidden_states=True)
    config = Config(**OURS, activation="gelu", norm_eps=1e-5, token_types=1, position_offset=2)
    states_error, logits_error, _ = compare(config, parameters(reference, config, "roberta"), expected)
    assert max(states_error, logits_error) <= 1e-5


# --- T5


@pytest.mark.parametrize("changed", [
    {}, {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 2}, {"feed_forward_proj": "gated-relu"}])
def test_t5(changed):
    """With heads wider than d / h, a padded source, and texts beyond the last bucket."""
    reference = randomised(transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=101, d_model=36, d_kv=10, d_ff=70, num_layers=LAYERS, num_heads=3, relative_attention_num_buckets=8,
        relative_attention_max_distance=11, **changed)))
    config = FAMILIES["t5"].network(reference.config.to_dict(), "its config")
    params, model = parameters(reference, config, "t5"), encoder_decoder.build(config)
    target = RNG.integers(1, 101, (B, 23))
    inputs = Inputs(jnp.asarray(target), source=Inputs(
        jnp.asarray(TOKENS), attention_mask=AttentionMask(jnp.asarray(REAL))))
    with jax.default_matmul_precision("highest"):
        encoded = jax.jit(lambda p, x: model.encode(p, x, layers=True))(params["encoder"], inputs)
        logits = lm_head.logits({}, model.output.table(params["encoder"]), encoded.hidden)
        source = model.encode(params["encoder"], inputs.source).hidden
    with torch.no_grad():
        expected = reference(torch.tensor(TOKENS), attention_mask=torch.tensor(REAL),
                             decoder_input_ids=torch.tensor(target), output_hidden_states=True)
    assert np.abs(logits - expected.logits.numpy()).max() <= 1e-4 < np.abs(expected.logits.numpy()).max()
    states = [x.numpy() for x in expected.decoder_hidden_states]
    for ours, theirs in zip([*encoded.layers[:-1], encoded.hidden], states, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    real = REAL.astype(bool)
    np.testing.assert_allclose(np.asarray(source)[real], expected.encoder_last_hidden_state.numpy()[real], rtol=0,
                               atol=1e-4)


@pytest.mark.parametrize("both_sides", [True, False])
def test_t5_buckets(both_sides):
    distances = np.arange(-500, 501)
    expected = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket(
        torch.tensor(-distances), bidirectional=both_sides, num_buckets=32, max_distance=128)
    np.testing.assert_array_equal(Buckets(both_sides=both_sides).of(distances), expected)


# --- XLNet

SEGMENT_TYPES = RNG.integers(0, 3, (2, B, T))  # of two segments that follow each other
SEGMENT_TOKENS = RNG.integers(0, 101, (2, B, T))
MEMORIES = {"longer": (23, None), "shorter": (5, None), "reused": (23, 7)}  # memory, reuse


def xlnet(**changed):
    """(a random model of the reference, our model, our parameters of the encoder and of the head)."""
    reference = randomised(transformers.XLNetLMHeadModel(transformers.XLNetConfig(
        vocab_size=101, d_model=36, n_layer=LAYERS, n_head=3, d_inner=70,
        **{"mem_len": 23, "ff_activation": "gelu_new", **changed})))
    config = FAMILIES["xlnet"].network(reference.config.to_dict(), "its config")
    params, model = parameters(reference, config, "xlnet"), transformer_xl.build(config)
    jax.tree.map(lambda spec, x: np.testing.assert_equal(x.shape, spec.shape), model.specs, params["encoder"],
                 is_leaf=P.is_spec)
    return reference, model, params


def encode_segment(model, params, i, real=REAL, order=None, at=None, carry=None):
    """(logits, the next carry) of segment i."""
    inputs = Inputs(jnp.asarray(SEGMENT_TOKENS[i]), token_type_ids=jnp.asarray(SEGMENT_TYPES[i]), carry=carry,
                    attention_mask=AttentionMask(jnp.asarray(real)), factorization=order)

    @jax.jit
    def run(params, inputs, at):
        encoded = model.encode(params["encoder"], inputs, at=at)
        table = model.output.table(params["encoder"])
        return lm_head.logits(params["objective"]["permutation"], table, encoded.hidden), encoded.carry

    with jax.default_matmul_precision("highest"):
        return run(params, inputs, at)


def reference_segment(model, i, real=REAL, **options):
    with torch.no_grad():
        return model(torch.tensor(SEGMENT_TOKENS[i]), token_type_ids=torch.tensor(SEGMENT_TYPES[i]),
                     attention_mask=torch.tensor(real), use_mems=True, **options)


def two_streams(seed):
    """(some positions [b, m], the order in which they are predicted, and the same for the reference)."""
    rng = np.random.default_rng(seed)
    at = np.stack([rng.permutation(11)[:5] for _ in range(B)])
    places = np.full((B, T), -1)
    np.put_along_axis(places, at, np.broadcast_to(np.arange(5), at.shape), 1)
    order = Factorization(jnp.asarray(places, jnp.int32), jnp.asarray(np.maximum(places, 0), jnp.int32))
    hidden = order.revealed[:, None, :] >= order.sees[:, :, None]
    return at, order, {"perm_mask": torch.tensor(np.asarray(hidden, np.float32)),
                       "target_mapping": torch.tensor(np.eye(T, dtype=np.float32)[at])}


@pytest.mark.parametrize("changed", [{}, {"ff_activation": "gelu", "clamp_len": 4}, {"mem_len": None}])
@pytest.mark.parametrize("padding", ["after", "before"])
def test_xlnet(changed, padding):
    """Positions are relative, so that padding may come first, as in its tokenizer."""
    reference, model, params = xlnet(**changed)
    real = REAL if padding == "after" else REAL[:, ::-1].copy()
    logits, _ = encode_segment(model, params, 0, real)
    expected = reference_segment(reference, 0, real).logits.numpy()
    assert np.abs(logits - expected)[real.astype(bool)].max() <= 1e-5 < np.abs(expected).max()


@pytest.mark.parametrize("memory", MEMORIES)
def test_xlnet_with_memory(memory):
    """Of two segments without padding, which the reference would remember. Both give remembered tokens type 0."""
    length, reuse = MEMORIES[memory]
    reference, model, params = xlnet(mem_len=length, reuse_len=reuse)
    all_real, mems, carry = np.ones_like(REAL), None, None
    for i in range(2):
        theirs = reference_segment(reference, i, all_real, mems=mems)
        logits, carry = encode_segment(model, params, i, all_real, carry=carry)
        mems = theirs.mems
        np.testing.assert_allclose(logits, theirs.logits, rtol=0, atol=1e-5)
    filled = min(length, 2 * (reuse or T))
    np.testing.assert_array_equal(carry["filled"], np.broadcast_to(np.arange(length) >= length - filled, (B, length)))
    for number, expected in enumerate(mems):
        ours = carry["layers"][str(number)][:, length - filled :]
        np.testing.assert_allclose(ours, expected.numpy().swapaxes(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("remembers", [False, True])
def test_two_streams_of_xlnet(remembers):
    """The order of the reference is a mask of pairs; its second stream has the positions to predict alone."""
    reference, model, params = xlnet()
    mems, carry = None, None
    if remembers:
        mems = reference_segment(reference, 0, np.ones_like(REAL)).mems
        _, carry = encode_segment(model, params, 0, np.ones_like(REAL))
    at, order, theirs = two_streams(0)
    expected = reference_segment(reference, 1, mems=mems, **theirs).logits.numpy()
    logits, _ = encode_segment(model, params, 1, order=order, at=jnp.asarray(at), carry=carry)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    content = reference_segment(reference, 1, mems=mems, perm_mask=theirs["perm_mask"], output_hidden_states=True)
    inputs = Inputs(jnp.asarray(SEGMENT_TOKENS[1]), token_type_ids=jnp.asarray(SEGMENT_TYPES[1]), carry=carry,
                    attention_mask=AttentionMask(jnp.asarray(REAL)), factorization=order)
    layers = jax.jit(lambda p: model.encode(p, inputs, layers=True).layers)(params["encoder"])
    real = REAL.astype(bool)
    for ours, expected in zip(layers, content.hidden_states, strict=True):
        np.testing.assert_allclose(ours[real], expected.numpy()[real], rtol=0, atol=1e-5)


def test_adaptive_softmax():
    """Theirs has no projection for the first cluster, and no biases."""
    reference = randomised(torch.nn.AdaptiveLogSoftmaxWithLoss(36, 101, [10, 40, 80], div_value=3.0))
    c = adaptive.Clusters(101, 36, 36, (10, 40, 80), 3)
    head_kernel = reference.head.weight.detach().numpy()
    clusters = {"0": {"token": head_kernel[:10], "project": np.eye(36, dtype=np.float32)}}
    for i, (project, table) in enumerate(reference.tail, 1):
        clusters[str(i)] = {"token": table.weight.detach().numpy(), "project": project.weight.detach().numpy()}
    jax.tree.map(lambda spec, x: np.testing.assert_equal(x.shape, spec.shape),
                 adaptive.embedding_specs(c), {"clusters": clusters}, is_leaf=P.is_spec)
    head = {"clusters": {"kernel": head_kernel[10:], "bias": np.zeros(3, np.float32)}}
    x = RNG.normal(size=(B, T, 36)).astype(np.float32)
    flat = torch.tensor(x.reshape(-1, 36), requires_grad=True)
    result = reference(flat, torch.tensor(TOKENS.reshape(-1)))
    result.loss.backward()
    weights = jnp.full((B, T), 1 / (B * T), jnp.float32)

    @jax.jit
    def run(clusters, x):
        def loss(clusters, x):
            total, nll, _ = adaptive.cross_entropy({"clusters": clusters}, head, x, jnp.asarray(TOKENS), weights, c)
            return total, nll
        return jax.value_and_grad(loss, (0, 1), has_aux=True)(clusters, x)

    (total, nll), (gradients, dx) = run(clusters, x)
    assert float(total) == pytest.approx(result.loss.item(), rel=1e-5)
    np.testing.assert_allclose(-nll.reshape(-1), result.output.detach(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(dx.reshape(-1, 36), flat.grad, rtol=0, atol=1e-6)
    for i, (project, table) in enumerate(reference.tail, 1):
        np.testing.assert_allclose(gradients[str(i)]["project"], project.weight.grad, rtol=0, atol=1e-6)
        np.testing.assert_allclose(gradients[str(i)]["token"], table.weight.grad, rtol=0, atol=1e-6)
    with torch.no_grad():
        np.testing.assert_allclose(adaptive.logits({"clusters": clusters}, head, jnp.asarray(x), c).reshape(-1, 101),
                                   reference.log_prob(flat), rtol=0, atol=1e-5)
