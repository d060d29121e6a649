"""DeBERTa (He et al., 2021 and 2023) against Hugging Face transformers, run side by side: buckets of distances, terms
of positions, the convolution, padding, sizes that are odd, and all parameters random."""

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
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs

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
