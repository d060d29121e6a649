"""Generation of texts from texts by T5, with lmrep and with Hugging Face transformers, for the benchmarks beside this
file. Every text has the same number of tokens, since none ends earlier; the most probable token follows.
"""

import jax
import jax.numpy as jnp
import numpy as np
from training_steps import t5

from lmrep.core import params as P
from lmrep.layers import lm_head
from lmrep.layers.attention import AttentionMask
from lmrep.models import MODELS, decoding, name_of
from lmrep.models.base import Inputs

NO_TOKEN = -1  # as the end of a text, which is never generated


def searching(model, tokens, beams=1, end=NO_TOKEN):
    """(params, sources i32[b, s], i32[b, s] with 1 at their tokens) -> i32[b, tokens], the search that `lmrep predict`
    runs, with the cache."""
    def search(params, source, real):
        def decode(last, cache):
            hidden, cache = model.state.decode(params, last, cache)
            return lm_head.logits({}, model.output.table(params), hidden), cache

        inputs = Inputs(source, attention_mask=AttentionMask(real))
        return decoding.generate(decode, lambda number: model.state.cache(params, number, tokens, source=inputs),
                                 len(source), tokens, decoding.Search(beams=beams), start=0, end=end).tokens

    return jax.jit(search)


def sources(vocab, batch_size, length, rng):
    """Random sources, and 1 at their tokens: a quarter of `length` at least, padded to it."""
    real = (np.arange(length) < rng.integers(length // 4, length + 1, (batch_size, 1))).astype(np.int32)
    return rng.integers(2, vocab, (batch_size, length)).astype(np.int32) * real, real


class LmrepTexts:
    """Generation with lmrep for batches in turn, as `ObjectiveSteps`. The parameters are random, in the dtype of
    `execution`.

    Args:
      system: the network; `fields["tokens"]` are generated for each text.
      batches: those of `sources`.
      execution: how the network is computed.
    """

    def __init__(self, system, batches, execution):
        name = name_of(system.config)
        model = MODELS[name].build(system.config, execution, name)
        self._batches = [jax.tree.map(jnp.asarray, batch) for batch in batches]
        self._params = jax.jit(lambda key: jax.tree.map(
            lambda x: x.astype(execution.dtype), P.init(model.specs, key)))(jax.random.key(0))
        search = searching(model, system.fields["tokens"])
        self._search = search.lower(self._params, *self._batches[0]).compile()

    def run(self, i):
        """Starts generating for batch i modulo their number."""
        self.texts = self._search(self._params, *self._batches[i % len(self._batches)])

    def wait(self):
        """Returns when all is done."""
        jax.block_until_ready(self.texts)

    def last(self):
        """There is no loss."""
        return ()


class TransformersTexts:
    """As `LmrepTexts`, with the `generate` of transformers and its cache, on PyTorch, without torch.compile."""

    def __init__(self, system, batches, device="cpu", dtype="bfloat16"):
        import torch
        from transformers import logging

        logging.set_verbosity_error()
        self._torch, self._device, self._tokens = torch, device, system.fields["tokens"]
        self._batches = [[torch.tensor(x, dtype=torch.int64, device=device) for x in batch] for batch in batches]
        with torch.device(device):
            self._network = t5(system.config).to(getattr(torch, dtype)).eval()

    def run(self, i):
        """As `LmrepTexts.run`."""
        source, real = self._batches[i % len(self._batches)]
        with self._torch.inference_mode():
            self.texts = self._network.generate(
                source, attention_mask=real, min_new_tokens=self._tokens, max_new_tokens=self._tokens, use_cache=True,
                num_beams=1, do_sample=False)[:, 1:]

    def wait(self):
        """As `LmrepTexts.wait`."""
        if self._device != "cpu":
            self._torch.cuda.synchronize()

    def last(self):
        """As `LmrepTexts.last`."""
        return ()
