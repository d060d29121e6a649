"""Computes the vectors of texts that continue each other: the state after a text is the initial state of the next text
of its stream.

Text i belongs to stream i modulo the number of streams, as ELMo's released code reads batches of that many sentences
(Peters et al., 2018). With a state from previous texts, vectors differ a little from those of a text alone.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import jax
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data.characters import add_characters
from lmrep.data.tokenized_text import TokenizedText
from lmrep.inference import encode
from lmrep.models.base import Context, Model, model_inputs
from lmrep.models.layer_choice import Layers, combine, outputs


class Streams:
    """The states of `number` streams of a run, which start as the network's initial states.

    Raises:
      UserError: the number is not positive, or the network carries no state.
    """

    def __init__(self, run, number: int):
        if number < 1:
            raise UserError(f"streams is {number}; expected 1 or more, or none, so that each text is read by itself")
        if run.model.state.carry is None or "attention_mask" not in run.model.inputs:
            raise UserError(f"the network {run.model.name!r} has no state to carry from text to text; leave streams "
                            "out")
        self._run, self._number, self._next = run, number, 0
        self._carry = run.model.state.carry(number)
        self._states = jax.jit(partial(_states, model=run.model, conditions_on=run.conditions_on),
                               static_argnames="layers")

    def vectors(
        self, texts: Sequence[TokenizedText], layers: Layers, names: Sequence[str] | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (index of the text, hidden f32[n, t, d]) of the next texts, in their order. `names` are their names in
        messages.

        Raises:
          UserError: at once, if a text is too long for the network.
        """
        vocabulary, limit = self._run.tokenizer.vocabulary, self._run.model.max_length
        around = tuple(map(len, self._run.special_tokens))
        for i, text in enumerate(texts):
            encode.windows(i, text.ids, around, limit, "refuse", names[i] if names else f"{text.text[:60]!r}...")
        return self._read(texts, layers, limit, vocabulary)

    def _read(self, texts, layers, limit, vocabulary) -> Iterator[tuple[int, np.ndarray]]:
        done = 0
        while done < len(texts):
            chosen = range(done, min(len(texts), done + self._number - self._next))
            rows: list[list[np.ndarray]] = [[] for _ in range(self._number)]
            for i in chosen:
                rows[self._next + i - done] = [texts[i].ids]
            length = encode.padded_length(max(len(texts[i].ids) for i in chosen), encode.MIN_INPUT_LENGTH, limit)
            batch = encode.make_batch(rows, length, self._number, vocabulary.specials.get("pad", 0))
            hidden, self._carry = self._states(
                self._run.params["encoder"], add_characters(batch, vocabulary), self._carry, layers=layers)
            hidden = np.asarray(hidden)
            for i in chosen:
                yield i, hidden[:, self._next + i - done, : len(texts[i].ids)].copy()
            self._next = (self._next + len(chosen)) % self._number
            done += len(chosen)


def _states(
    params: Tree, batch: dict[str, Array], carry: Tree, *, model: Model, layers: Layers, conditions_on: Context
) -> tuple[Array, Tree]:
    """Computes (f32[n, b, t, d] of the chosen layers, the state after the batch). Padding leaves a state unchanged."""
    encoded = model.encode(params, model_inputs(model, batch, conditions_on=conditions_on, carry=carry), layers=True)
    return combine(outputs(encoded), layers), encoded.carry
