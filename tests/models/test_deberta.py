"""DeBERTa (He et al., 2021 and 2023) against Hugging Face transformers, run side by side: buckets of distances, terms
of positions, the convolution, padding, sizes that are odd, and all parameters random."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep import models
from lmrep.core.params import flatten, unflatten
from lmrep.interop.heads import HEADS
from lmrep.interop.huggingface import FAMILIES
from lmrep.interop.huggingface.read import assign
from lmrep.interop.huggingface.write import from_network
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs
from lmrep.objectives import mlm_head

pytestmark = pytest.mark.slow

B, T, V = 2, 37, 101
FAMILY = FAMILIES["deberta-v2"]
SIZES = {
    "vocab_size": V, "hidden_size": 33, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 41,
    "max_position_embeddings": 40, "relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm",
    "position_biased_input": False, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "attn_implementation": "eager"}
CASES = {
    "v3": {"position_buckets": 8, "pos_att_type": "p2c|c2p"},
    "v2_xlarge": {"position_buckets": 9, "pos_att_type": "p2c|c2p", "conv_kernel_size": 3, "conv_act": "gelu"},
    "no_buckets": {"position_buckets": -1, "max_relative_positions": 21, "pos_att_type": "c2p"},
    "published_head": {"position_buckets": 256, "max_position_embeddings": 512, "pos_att_type": "p2c", "legacy": False},
}
RNG = np.random.default_rng(0)
REAL = np.ones((B, T), np.int32)
REAL[1, 30:] = 0
TOKENS = np.where(REAL, RNG.integers(3, V, (B, T)), 0).astype(np.int32)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_those_of_the_library(case):
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    reference = transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**SIZES | CASES[case])).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in reference.parameters():
            values = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values + (0.7 if parameter.ndim == 1 else 0))
    weights = RNG.normal(size=(B, T, V)).astype(np.float32) * REAL[..., None]
    expected = reference(input_ids=torch.tensor(TOKENS), attention_mask=torch.tensor(REAL)).logits
    (expected * torch.tensor(weights)).sum().backward()

    config = FAMILY.network(reference.config.to_dict(), "config.json")
    model = models.build(config)
    params, gradients = (unflatten(dict(assign(
        {name: of(x).numpy() for name, x in reference.named_parameters()}, FAMILY, config, Path("x"))[0]))
        for of in (torch.Tensor.detach, lambda x: torch.zeros_like(x) if x.grad is None else x.grad))

    def logits(params):
        with jax.default_matmul_precision("highest"):
            hidden = model.encode(params["encoder"], Inputs(
                jnp.asarray(TOKENS), attention_mask=AttentionMask(jnp.asarray(REAL)))).hidden
            return HEADS["masked"].logits(params, hidden, model)

    real = REAL[..., None]
    np.testing.assert_allclose(jax.jit(logits)(params) * real, expected.detach() * real, atol=1e-4)
    ours = flatten(jax.jit(jax.grad(lambda params: (logits(params) * weights).sum()))(params))
    theirs = flatten(gradients)
    assert ours.keys() == theirs.keys()
    largest = max(np.abs(value).max() for value in theirs.values())
    for path, value in theirs.items():
        np.testing.assert_allclose(ours[path], value, atol=2e-5 * max(np.abs(value).max(), 1e-3 * largest),
                                   err_msg=path)


@pytest.mark.parametrize("case", ["v3", "v2_xlarge"])
def test_the_mask_decoder_is_the_last_layer_whose_queries_know_their_position(case):
    """As in the authors' code, with the library's layers: two passes, in which keys and values stay the same. With
    chosen positions, the vectors there are the same."""
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    reference = transformers.DebertaV2Model(transformers.DebertaV2Config(**SIZES | CASES[case])).eval()
    generator, at = torch.Generator().manual_seed(0), jnp.array([[0, 5, 36], [29, 3, 3]])
    with torch.no_grad():
        for parameter in reference.parameters():
            values = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values + (0.7 if parameter.ndim == 1 else 0))
    config = replace(FAMILY.network(reference.config.to_dict(), "config.json"), mask_decoder=2)
    model = models.build(config)
    tensors = {name: x.detach().numpy() for name, x in reference.named_parameters()}
    params = unflatten(dict(assign(tensors, FAMILY, replace(config, mask_decoder=0), Path("x"))[0]))["encoder"]
    positions = RNG.normal(size=(40, 33)).astype(np.float32)
    params["mask_decoder"] = {"position": positions}
    assert flatten(params).keys() == flatten(model.specs).keys()
    with torch.no_grad():
        real = torch.tensor(REAL)
        x = reference(torch.tensor(TOKENS), real, output_hidden_states=True).hidden_states[-2]
        encoder, y = reference.encoder, x + torch.tensor(positions)[:T]
        for _ in range(2):
            y = encoder.layer[-1](
                x, encoder.get_attention_mask(real), query_states=y, relative_pos=encoder.get_rel_pos(x),
                rel_embeddings=encoder.get_rel_embedding())[0]
    inputs = Inputs(jnp.asarray(TOKENS), attention_mask=AttentionMask(jnp.asarray(REAL)))

    @jax.jit
    def decode(params, at):
        with jax.default_matmul_precision("highest"):
            return (model.output.encode_masked(params, inputs, at=at).hidden, model.encode(params, inputs).hidden)

    (ours, plain), (chosen, _) = decode(params, None), decode(params, at)
    np.testing.assert_allclose(ours * REAL[..., None], y * REAL[..., None], atol=1e-4)
    np.testing.assert_allclose(chosen, np.take_along_axis(ours, at[..., None], 1), atol=1e-5)
    assert np.abs(ours - plain).max() > 0.1
    flat = {f"encoder/{path}": np.asarray(value) for path, value in flatten(params).items()}
    head = {path: np.zeros(spec.shape, np.float32) for path, spec in flatten(
        {"objective": {"masked": mlm_head.specs(model)}}).items()}
    written, remarks = from_network(config, flat | head, {"pad": 0})
    assert written.class_name == "DebertaV2Model" and written.config == replace(config, mask_decoder=0)
    assert any("left out" in remark and "mask_decoder/position" in remark for remark in remarks)
    assert from_network(replace(config, mask_decoder=0), flat | head, {"pad": 0})[0].heads == ("masked",)
