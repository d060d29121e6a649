"""The vectors of texts by a loaded run (`lmrep.inference.run.Run`)."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array
from lmrep.data.tokenized_text import TokenizedText
from lmrep.inference import encode
from lmrep.inference.encode import EncodedText
from lmrep.inference.streams import Streams
from lmrep.models.layer_choice import Layers

ATTENTION_TOKENS = 512  # in a batch: the attention probabilities of a full one would be large


def of_texts(
    run: Any, texts: Sequence[str], layers: str | int | Sequence[int], attention: bool, long: str, pretokenized: bool,
    streams: int,
) -> list[EncodedText]:
    """As `Run.encode`."""
    if streams and attention:
        raise UserError("attention is not returned of streams; leave one of them out")
    if attention and "self" not in run.model.heads.attention:
        raise UserError(f"the network {run.model.name!r} has no self-attention; leave attention out"
                        + " (Run.attention returns that of a source and a target)" * bool(run.model.heads.attention))
    tokenized = [run.tokenize(text, None, pretokenized) for text in texts]
    limit = run.model.max_length
    if attention and (far := [each for each in tokenized if limit and len(each.ids) > limit]):
        raise UserError(f"{far[0].text[:60]!r}... has {len(far[0].ids):,} tokens; attention is returned only for "
                        f"texts that the model reads at once, {limit} tokens at most; shorten it")
    found: list = [None] * len(tokenized)
    chosen = run.layers(layers)
    vectors = ((*each, None) for each in Streams(run, streams).vectors(tokenized, chosen)) if streams else (
        run.vectors(tokenized, chosen, long=long, attention=attention))
    for i, hidden, probabilities in vectors:
        found[i] = EncodedText(**vars(tokenized[i]), hidden=hidden, attention=probabilities)
    return found


def of_tokenized(
    run: Any, texts: Sequence[TokenizedText], layers: Layers, long: str, attention: bool, names: Sequence[str] | None,
) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """As `Run.vectors`."""
    around = tuple(map(len, run.special_tokens))
    windows = [window for i, text in enumerate(texts) for window in encode.windows(
        i, text.ids, around, run.model.max_length, long, names[i] if names else f"{text.text[:60]!r}...")]

    def states(batch: dict[str, np.ndarray]) -> tuple[Array, Array | None]:
        return run.states(run.params["encoder"], run.completed(batch), layers=layers, attention=attention)

    return encode.compute(states, windows, run.model.max_length, run.tokenizer.vocabulary.specials.get("pad", 0),
                          ATTENTION_TOKENS if attention else None,
                          {"positions", "attention_mask"} <= run.model.inputs)
