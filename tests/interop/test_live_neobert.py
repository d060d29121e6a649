"""NeoBERT's network against its formulas in PyTorch, since the library has no class for it."""

import numpy as np
import pytest

from lmrep.interop import certificate
from lmrep.interop.huggingface.read import read
from tests.interop.test_neobert import DECODER, HEADS, LAYERS, MLP, WIDTH, make

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def by_formula(tensors, tokens, real):
    """The hidden states [b, t, d] and the logits [b, t, v] in float64."""
    w = {name.removeprefix("model."): torch.tensor(x, dtype=torch.float64) for name, x in tensors.items()}
    b, t, k = *tokens.shape, WIDTH // HEADS
    turns = torch.exp(1j * torch.arange(t)[:, None, None] * 10_000.0 ** (-2 * torch.arange(k // 2).double() / k))

    def norm(name, x):
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-5) * w[f"{name}.weight"]

    def turned(x):  # neighbours are the two parts of a complex number
        x = torch.view_as_complex(x.reshape(b, t, HEADS, k // 2, 2)) * turns
        return torch.view_as_real(x).reshape(b, t, HEADS, k)

    x = w["encoder.weight"][torch.from_numpy(tokens)]
    for i in range(LAYERS):
        layer = f"transformer_encoder.{i}"
        of_heads = (norm(f"{layer}.attention_norm", x) @ w[f"{layer}.qkv.weight"].T).reshape(b, t, HEADS, 3 * k)
        query, key, value = of_heads.split(k, -1)
        scores = torch.einsum("bthk,bshk->bhts", turned(query.contiguous()), turned(key.contiguous())) / k**0.5
        scores = scores.masked_fill(torch.from_numpy(real == 0)[:, None, None], -torch.inf)
        mixed = torch.einsum("bhts,bshk->bthk", scores.softmax(-1), value).reshape(b, t, WIDTH)
        x = x + mixed @ w[f"{layer}.wo.weight"].T
        gate, up = (norm(f"{layer}.ffn_norm", x) @ w[f"{layer}.ffn.w12.weight"].T).split(MLP, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ w[f"{layer}.ffn.w3.weight"].T
    hidden = norm("layer_norm", x)
    return hidden.numpy(), (hidden @ w["decoder.weight"].T + w["decoder.bias"]).numpy()


def test_hidden_states_and_logits_are_those_of_the_formulas(tmp_path):
    directory, tensors = tmp_path / "x", make(tmp_path / "x", DECODER)
    checkpoint = read(directory)
    batch = certificate.random_batch(checkpoint)
    real = batch.attention_mask.astype(bool)
    found = certificate.our_outputs(checkpoint, batch)
    hidden, logits = by_formula(tensors, batch.tokens, batch.attention_mask)
    np.testing.assert_allclose(found["hidden"][real], hidden[real], rtol=0, atol=2e-5)
    np.testing.assert_allclose(found["masked"][real], logits[real], rtol=0, atol=1e-4)
    assert real.sum() < real.size
