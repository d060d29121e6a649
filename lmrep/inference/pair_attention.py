"""Computes the attention probabilities of networks that read a source, for pairs of a source and a target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data import prompts
from lmrep.models.base import Context, Model, model_inputs

BATCH = 8  # pairs


@dataclass(frozen=True)
class PairAttention:
    """The attention probabilities of a pair. Step i of the decoder reads `inputs[i]` and predicts `target[i]`."""

    source: list[str]  # its s tokens, with the end
    target: list[str]  # its t tokens, with the end
    inputs: list[str]  # the t tokens that the decoder reads: a start token, and the target without its last token
    cross: np.ndarray  # f32[l, h, t, s], the probability with which step t attends to token s of the source
    # f32[l, h, s, s], self-attention of the source; None for a network without it
    encoder: np.ndarray | None = None
    # f32[l, h, t, t], self-attention of `inputs`; None for a network without it
    decoder: np.ndarray | None = None


def probabilities(params: Tree, batch: dict[str, Array], *, model: Model) -> tuple[Array | None, ...]:
    """Computes the attention to the source, f32[l, b, h, t, s], and the self-attention of encoder, f32[l, b, h, s, s],
    and decoder, f32[l, b, h, t, t]; None for attention that the network lacks. `batch` is as in `TextPairs.batch`."""
    encoded = model.encode(params, model_inputs(model, batch, conditions_on=Context.SOURCE), attention=True)
    return tuple(None if x is None else x.astype(jnp.float32)
                 for x in (encoded.cross_attention, encoded.source_attention, encoded.attention))


def of_texts(run: Any, pairs: Sequence[tuple[str, str]]) -> list[PairAttention]:
    """Computes the attention probabilities of pairs of texts, to each of which the token that ends it is added. Raises
    UserError as `of_tokens`, and for a text that is too long."""
    _check(run)
    if single := [pair for pair in pairs if isinstance(pair, str)]:
        raise UserError(f"attention takes pairs of a source and a target; it was given one text, {single[0][:60]!r}. "
                        "For self-attention of texts: encode(texts, attention=True)")
    tokenized = [prompts.tokenize_prompts(pair, run.tokenizer, run.model.max_length, around=run.special_tokens)
                 for pair in pairs]
    return of_tokens(run, [tuple(text.ids for text in pair) for pair in tokenized])


def of_tokens(run: Any, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[PairAttention]:
    """Computes the attention probabilities of pairs of token ids.

    Args:
      pairs: (source int32[s], target int32[t]), with the tokens that end them.

    Raises:
      UserError: the network reads no source, or has no attention.
    """
    _check(run)
    start, names = run.objective.uses.text_pairs.start, run.tokenizer.id_to_token
    attention: list = [None] * len(pairs)
    for members in prompts.group_by_length([np.concatenate(pair) for pair in pairs], BATCH):
        sources, targets = zip(*(pairs[i] for i in members), strict=True)
        inputs = [np.concatenate([[start], ids[:-1]]) for ids in targets]
        source, batch = (prompts.pad_batch(texts, start, run.model.max_length) for texts in (sources, inputs))
        arrays = [None if x is None else np.asarray(x)
                  for x in run.pair_probabilities(run.params["encoder"], batch | {"source": source})]
        for row, i in enumerate(members):
            (s, t), texts = map(len, pairs[i]), (*pairs[i], inputs[row])
            cut = [None if x is None else x[:, row, :, :rows, :columns].copy()
                   for x, rows, columns in zip(arrays, (t, s, t), (s, s, t), strict=True)]
            attention[i] = PairAttention(*([names(int(token)) for token in ids] for ids in texts), *cut)
    return attention


def _check(run: Any) -> None:
    if run.objective.uses.text_pairs is None:
        raise UserError(f"{run.directory} was trained with objective {run.objective.name!r}, whose network reads no "
                        "source; for self-attention of texts: encode(texts, attention=True)")
    if "cross" not in run.model.heads.attention:
        raise UserError(f"the network {run.model.name!r} was configured without attention to the source")
    run.require_network()
