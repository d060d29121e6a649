"""Greedy and beam search of T5 against Hugging Face's `generate`, token for token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.interop.huggingface import FAMILIES
from lmrep.layers import lm_head
from lmrep.layers.attention import AttentionMask
from lmrep.models import decoding, encoder_decoder
from lmrep.models.base import Inputs
from lmrep.models.decoding import Search
from tests.models import test_parity as parity
from tests.models.test_parity import libraries, parameters, randomised  # noqa: F401

pytestmark = pytest.mark.slow
V, B, S, N = 29, 8, 11, 14
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(2, V, (B, S))
REAL = (np.arange(S) < RNG.integers(3, S + 1, (B, 1))).astype(int)


@pytest.fixture(scope="module")
def networks():
    """(the reference, our model, its parameters, some ids that end texts at many lengths)."""
    torch, transformers = parity.torch, parity.transformers
    reference = randomised(transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=V, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
        relative_attention_max_distance=11, decoder_start_token_id=0)))
    with torch.no_grad():
        texts = reference.generate(torch.tensor(TOKENS), attention_mask=torch.tensor(REAL), max_new_tokens=N,
                                   do_sample=False, eos_token_id=None).numpy()[:, 1:]
    first = [len({text.tolist().index(i) for text in texts if i in text}) for i in range(V)]
    config = FAMILIES["t5"].network(reference.config.to_dict(), "its config")
    params = jax.tree.map(jnp.asarray, parameters(reference, config, "t5")["encoder"])
    return reference, encoder_decoder.build(config), params, np.argsort(first)[-4:].tolist()


@pytest.mark.parametrize("search", [
    Search(), Search(beams=2), Search(beams=4), Search(beams=4, length_penalty=0.0),
    Search(beams=3, length_penalty=2.0)], ids=str)
def test_texts_equal_the_reference(networks, search):
    torch, (reference, model, params, ends) = parity.torch, networks
    source = Inputs(jnp.asarray(TOKENS), attention_mask=AttentionMask(jnp.asarray(REAL)))

    def decode(tokens, cache):
        hidden, cache = model.state.decode(params, tokens, cache)
        return lm_head.logits({}, model.output.table(params), hidden), cache

    def start_cache(number):
        return model.state.cache(params, number, N, source=source)

    with jax.default_matmul_precision("highest"):
        generate = jax.jit(lambda end: decoding.generate(decode, start_cache, B, N, search, start=0, end=end))
        found = {end: generate(end) for end in ends}
    for end, ours in found.items():
        with torch.no_grad():
            theirs = reference.generate(
                torch.tensor(TOKENS), attention_mask=torch.tensor(REAL), max_new_tokens=N, num_beams=search.beams,
                do_sample=False, early_stopping=False, length_penalty=search.length_penalty, eos_token_id=end,
                pad_token_id=0, return_dict_in_generate=True, output_scores=True)
        texts = theirs.sequences.numpy()[:, 1:]
        for text, length, their_text in zip(np.asarray(ours.tokens), ours.lengths.tolist(), texts, strict=True):
            assert text[:length].tolist() == their_text[:length].tolist()
            assert not text[length:].any() and set(their_text[length:]) <= {0, end}  # padding
        if search.beams > 1:
            np.testing.assert_allclose(ours.scores, theirs.sequences_scores.numpy(), atol=1e-4)
    lengths = {int(n) for ours in found.values() for n in ours.lengths}
    assert len(lengths) > 1 or search.length_penalty != 1.0
