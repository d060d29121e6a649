"""T5's published files, against a plain NumPy forward pass of their tensors."""

import json

import numpy as np
import pytest

from lmrep.interop import certificate, tensor_files
from lmrep.interop.huggingface.read import read
from lmrep.interop.huggingface.write import tensors as tensors_of
from tests.interop.test_published import same

D, K, F, HEADS, VOCAB, BUCKETS, DISTANCE, LAYERS = 12, 5, 14, 2, 31, 8, 20, {"encoder": 2, "decoder": 1}
CONFIG = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": VOCAB, "d_model": D,
          "d_kv": K, "d_ff": F, "num_heads": HEADS, "num_layers": 2, "num_decoder_layers": 1,
          "relative_attention_num_buckets": BUCKETS, "relative_attention_max_distance": DISTANCE,
          "decoder_start_token_id": 0, "pad_token_id": 0}
FORMS = {"1.0": {"feed_forward_proj": "relu"},
         "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}


def tensors(gated, seed=0):
    """Random tensors under the names of the published files."""
    shapes, rng = {"shared.weight": (VOCAB, D)}, np.random.default_rng(seed)
    for stack, layers in LAYERS.items():
        shapes[f"{stack}.final_layer_norm.weight"] = (D,)
        shapes[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (BUCKETS, HEADS)
        attentions = ["SelfAttention", "EncDecAttention"][: 1 if stack == "encoder" else 2]
        for i in range(layers):
            for number, name in enumerate([*attentions, "DenseReluDense"]):
                start = f"{stack}.block.{i}.layer.{number}"
                shapes[f"{start}.layer_norm.weight"] = (D,)
                parts = {**dict.fromkeys("qkv", (HEADS * K, D)), "o": (D, HEADS * K)} if name in attentions else {
                    **dict.fromkeys(("wi_0", "wi_1") if gated else ("wi",), (F, D)), "wo": (D, F)}
                shapes |= {f"{start}.{name}.{part}.weight": shape for part, shape in parts.items()}
    if gated:
        shapes["lm_head.weight"] = (VOCAB, D)
    return {name: rng.normal(0.3, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def normalized(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def bucket(distance, both):
    """Of a key `distance` positions after the query, as the released code has it."""
    first, buckets = (BUCKETS // 2 * (distance > 0), BUCKETS // 2) if both else (0, BUCKETS)
    distance, exact = abs(distance) if both else -min(distance, 0), buckets // 2
    if distance < exact:
        return first + distance
    far = exact + int(np.log(distance / exact) / np.log(DISTANCE / exact) * (buckets - exact))
    return first + min(far, buckets - 1)


def attention(own, name, x, keys, bias, allowed):
    """x [t, d], keys [s, d], bias [t, s, h], allowed bool[t, s] -> [t, d]. Logits are not scaled."""
    q, k, v = (each @ own[f"{name}.{part}.weight"].T for part, each in (("q", x), ("k", keys), ("v", keys)))
    mixed = np.zeros_like(q)
    for h in range(HEADS):
        part = slice(h * K, (h + 1) * K)
        scores = np.where(allowed, q[:, part] @ k[:, part].T + bias[..., h], -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed[:, part] = weights / weights.sum(-1, keepdims=True) @ v[:, part]
    return mixed @ own[f"{name}.o.weight"].T


def stack(own, name, tokens, real, source=None):
    """The vectors [t, d] of one text; `source` are those of the encoder and which of them are real."""
    x, t = own["shared.weight"][tokens], len(tokens)
    table = own[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias = np.array([[table[bucket(key - query, source is None)] for key in range(t)] for query in range(t)])
    allowed = np.broadcast_to(real > 0, (t, t)) & (np.tri(t, dtype=bool) if source else True)
    for i in range(LAYERS[name]):
        start = f"{name}.block.{i}.layer"
        y = normalized(x, own[f"{start}.0.layer_norm.weight"])
        x = x + attention(own, f"{start}.0.SelfAttention", y, y, bias, allowed)
        if source:
            y = normalized(x, own[f"{start}.1.layer_norm.weight"])
            x = x + attention(own, f"{start}.1.EncDecAttention", y, source[0], np.zeros((1, 1, HEADS)), source[1] > 0)
        last = f"{start}.{2 if source else 1}"
        y, names = normalized(x, own[f"{last}.layer_norm.weight"]), f"{last}.DenseReluDense"
        if f"{names}.wi.weight" in own:
            y = np.maximum(y @ own[f"{names}.wi.weight"].T, 0)
        else:
            gate = y @ own[f"{names}.wi_0.weight"].T
            gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            y = gate * (y @ own[f"{names}.wi_1.weight"].T)
        x = x + y @ own[f"{names}.wo.weight"].T
    return normalized(x, own[f"{name}.final_layer_norm.weight"])


@pytest.mark.parametrize("form", FORMS)
def test_outputs_equal_the_forward_pass_of_the_tensors(form, tmp_path):
    written = tensors(form == "1.1")
    tensor_files.write(tmp_path / "model.safetensors", written, {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | FORMS[form]))
    checkpoint = read(tmp_path)
    assert same(tensors_of(checkpoint), written) and not checkpoint.extra_tensors
    batch = certificate.random_batch(checkpoint)
    found = certificate.our_outputs(checkpoint, batch)
    own = {name: value.astype(np.float64) for name, value in written.items()}
    for i, (tokens, real, target) in enumerate(zip(batch.tokens, batch.attention_mask, batch.target, strict=True)):
        source = stack(own, "encoder", tokens, real), real
        hidden = stack(own, "decoder", target, np.ones(len(target)), source)
        np.testing.assert_allclose(found["hidden"][i], hidden, rtol=0, atol=1e-4)
        logits = hidden @ own["lm_head.weight"].T if form == "1.1" else hidden / np.sqrt(D) @ own["shared.weight"].T
        np.testing.assert_allclose(found["span_corruption"][i], logits, rtol=0, atol=1e-4)
