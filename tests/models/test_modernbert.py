"""ModernBERT (Warner et al., 2024) against Hugging Face transformers, run side by side: local and global layers,
padding, sizes that are odd, and all parameters random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers import lm_head
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models import transformer
from lmrep.models.base import Inputs

pytestmark = pytest.mark.slow

LAYERS, B, T = 5, 2, 37
CONFIG = transformer.Config(
    vocab=101, width=48, layers=LAYERS, heads=4, mlp=41, max_length=64, positions="rotary", rotary_base=160_000.0,
    local_base=10_000.0, window=5, token_types=0, norm="pre", norm_kind="layer_without_bias", first_norm=False,
    norm_eps=1e-5, bias=False, gated=True, activation="gelu", dropout=0.0, attention_dropout=0.0)
RNG = np.random.default_rng(0)
REAL = np.ones((B, T), np.int32)
REAL[1, 30:] = 0
TOKENS = np.where(REAL, RNG.integers(3, 101, (B, T)), 0).astype(np.int32)


@pytest.fixture(scope="module")
def reference():
    """The library's model, with random parameters."""
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(
        vocab_size=101, hidden_size=48, intermediate_size=41, num_hidden_layers=LAYERS, num_attention_heads=4,
        local_attention=10, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2, attn_implementation="eager")).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            values = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values + (0.7 if parameter.ndim == 1 else 0))
    return model


def parameters(model, of_gradients=False):
    """The library's parameters, or their gradients, as ours are named: (encoder, head)."""
    tensors = {name: (x.grad if of_gradients else x.detach()).numpy() for name, x in model.named_parameters()}

    def kernels(name, *paths):
        parts = np.split(tensors[f"{name}.weight"], len(paths))
        return {path: {"kernel": part.T} for path, part in zip(paths, parts, strict=True)}

    def layer(number):
        name = f"model.layers.{number}"
        return {"attention": (kernels(f"{name}.attn.Wqkv", "query", "key", "value")
                              | kernels(f"{name}.attn.Wo", "output")),
                "mlp": kernels(f"{name}.mlp.Wi", "gate", "up") | kernels(f"{name}.mlp.Wo", "out"),
                "mlp_norm": {"scale": tensors[f"{name}.mlp_norm.weight"]},
                **({"attention_norm": {"scale": tensors[f"{name}.attn_norm.weight"]}} if number else {})}

    encoder = {"embedding": {"token": tensors["model.embeddings.tok_embeddings.weight"]},
               "embedding_norm": {"scale": tensors["model.embeddings.norm.weight"]},
               "layers": {str(number): layer(number) for number in range(LAYERS)},
               "final_norm": {"scale": tensors["model.final_norm.weight"]}}
    return encoder, {"transform": {"kernel": tensors["head.dense.weight"].T},
                     "norm": {"scale": tensors["head.norm.weight"]}, "bias": tensors["decoder.bias"]}


def logits(params, attention):
    encoder, head = params
    model = transformer.build(CONFIG, Execution(attention=attention))
    hidden = model.encode(encoder, Inputs(
        tokens=jnp.asarray(TOKENS), attention_mask=AttentionMask(jnp.asarray(REAL)))).hidden
    return lm_head.logits(head, encoder["embedding"]["token"], lm_head.transform(
        head, hidden, activation="gelu", eps=1e-5))


@pytest.mark.parametrize("attention", ["xla", "auto"])
def test_logits_and_gradients_are_those_of_the_library(reference, attention):
    import torch

    weights = RNG.normal(size=(B, T, 101)) * REAL[..., None]
    reference.zero_grad()
    expected = reference(input_ids=torch.tensor(TOKENS), attention_mask=torch.tensor(REAL)).logits
    (expected * torch.tensor(weights)).sum().backward()
    params = parameters(reference)
    specs = transformer.build(CONFIG).specs
    assert jax.tree.map(np.shape, params[0]) == jax.tree.map(lambda spec: spec.shape, specs, is_leaf=P.is_spec)
    computed = jax.jit(logits, static_argnums=1)(params, attention)
    np.testing.assert_allclose(computed * REAL[..., None], expected.detach() * REAL[..., None], atol=1e-4)
    grads = jax.jit(jax.grad(lambda params: (logits(params, attention) * weights).sum()))(params)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max()),
                 grads, parameters(reference, of_gradients=True))
