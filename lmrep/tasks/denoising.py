"""Unlabelled text as a source of a mixture of tasks: T5's denoising (Raffel et al., 2019, sections 3.1.4 and 3.5.2).

As in the released code, texts are joined and cut into pieces of the length whose sources have exactly `length` tokens:
568 for 512. Spans of a piece are replaced by sentinels in the source, and the target has them. Each piece is corrupted
once, when the data is read: every epoch shows the same spans, as the static masks of BERT's code. Pretraining draws new
ones (`objectives.span_corruption`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import jax
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.records import Record
from lmrep.data.records.encoding import Source, Units
from lmrep.objectives import span_corruption
from lmrep.objectives.capabilities import SENTINEL
from lmrep.tasks.base import Outputs, Result, TextEncoder

CORRUPTION = span_corruption.Config()
SEED = 0
CHUNK = 256  # pieces that are corrupted at once


def piece_length(length: int, sentinels: int) -> int:
    """Finds the most tokens of a piece whose source has at most `length` tokens, with its end: 568 for 512."""
    size = length
    while span_corruption.lengths(size + 1, CORRUPTION, sentinels)[0] <= length:
        size += 1
    return size


def pairs(tokens: np.ndarray, length: int, vocabulary: Vocabulary) -> list[tuple[np.ndarray, np.ndarray]]:
    """Corrupts the pieces of a text into sources and targets, each with its end.

    Args:
      tokens: int32[n].
      length: the tokens of a source, with its end; the last source may have fewer.
      vocabulary: with sentinels.

    Returns:
      (source int32[s], target int32[t]) of each piece, in the order of the text. A last piece of one token is left out.

    Raises:
      UserError: the tokenizer has no sentinels.
    """
    ids = span_corruption.special_ids(vocabulary, "a source with denoise=True")
    size = piece_length(length, len(ids.sentinels))
    count = -(-max(len(tokens) - 1, 0) // size)
    sizes = np.minimum(len(tokens) - size * np.arange(count), size)
    pieces = np.zeros((-(-count // CHUNK) * CHUNK, size), np.int32)
    pieces.reshape(-1)[: sizes.sum()] = tokens[: sizes.sum()]
    segments = (np.arange(size) < np.pad(sizes, (0, len(pieces) - count))[:, None]).astype(np.int32)
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(SEED, impl="threefry2x32")))(np.arange(len(pieces)))
    corrupt = jax.jit(jax.vmap(partial(span_corruption.corrupt, c=CORRUPTION, ids=ids)))
    corrupted = []
    for first in range(0, count, CHUNK):
        chunk = slice(first, first + CHUNK)
        corrupted += zip(*jax.device_get(corrupt(keys[chunk], pieces[chunk], segments[chunk])), strict=True)
    return [(source[:s], target[:t]) for source, s, target, t in corrupted[:count]]


def examples(records: Sequence[Record], encoder: TextEncoder, max_target: int) -> list[Record]:
    """Makes records of unlabelled texts, with `text` and `target`, which have sentinels, and `tokens`, the ids of both.

    Raises:
      UserError: the tokenizer has no sentinels, or targets are longer than `max_target`.
    """
    vocabulary, texts = encoder.tokenizer.vocabulary, encoder.ids(
        [record.fields["text"] for record in records], [record.where for record in records])
    corrupted = pairs(np.concatenate(texts), encoder.length, vocabulary)
    if not corrupted:
        raise UserError(f"{records[0].where}: the texts of this source have fewer than two tokens; give more")
    if (longest := max(len(target) for _, target in corrupted)) > max_target:
        raise UserError(f"targets of a source with denoise=True have up to {longest:,} tokens, with their ends, where "
                        f"sources have {encoder.length:,} (config.length), and config.objective.max_target is "
                        f"{max_target:,}; set it to {longest:,}")
    size = piece_length(encoder.length, len(vocabulary.sentinels))
    begins = np.searchsorted(np.cumsum([len(ids) for ids in texts]), size * np.arange(len(corrupted)), side="right")
    decode = encoder.tokenizer.decode
    return [Record({"text": decode(pair[0][:-1].tolist()), "target": decode(pair[1][:-1].tolist())}, str(i),
                   records[begin].where, source=records[begin].source, tokens=pair)
            for i, (begin, pair) in enumerate(zip(begins, corrupted, strict=True))]


def encode(records: Sequence[Record], encoder: TextEncoder, max_target: int) -> tuple[Units, int]:
    """Encodes records of `examples`, or texts with sentinels to predict, as `TaskDef.encode` does."""
    end = span_corruption.special_ids(encoder.tokenizer.vocabulary, "a source with denoise=True").end
    pieces = [record.tokens or _with_sentinels(record, encoder, end) for record in records]
    long = [record for record, (source, target) in zip(records, pieces, strict=True)
            if len(source) > encoder.length or len(target) > max_target]
    # The text of a piece that is tokenized again, as by reports, may have more tokens, and is cut.
    if encoder.format.long != "truncate" and (refused := [record for record in long if "target" not in record.fields]):
        raise UserError(f"{refused[0].where} has more than {encoder.length:,} tokens, with its end (config.length); "
                        "shorten it")
    sources, targets = ([np.append(ids[: most - 1], end) if len(ids) > most else ids for ids in texts]
                        for texts, most in zip(zip(*pieces, strict=True), (encoder.length, max_target), strict=True))
    return pair_units(targets, sources, ["target" in record.fields for record in records],
                      [not record.tokens for record in records], encoder.tokenizer.decode), len(long)


def pair_units(
    targets: Sequence[np.ndarray], sources: Sequence[np.ndarray], known: Sequence[bool], generated: Sequence[bool],
    decode: Callable[[Iterable[int]], str]
) -> Units:
    """Makes a unit of each target, int32 [t] with its end, and its source. The columns `known` and `generated` say
    whether the target is known, and whether a text is generated."""
    (tokens, offsets), (source, source_offsets) = (
        (np.concatenate(texts).astype(np.int32), np.concatenate([[0], np.cumsum([len(ids) for ids in texts])]))
        for texts in (targets, sources))
    return Units(tokens, np.zeros(len(tokens), np.int8), offsets, np.arange(len(targets), dtype=np.int32),
                 {"known": np.array(known, np.int32), "generated": np.array(generated, np.int32)},
                 source=Source(source, source_offsets, decode))


def _with_sentinels(record: Record, encoder: TextEncoder, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the source of a text to predict, and its target, or an end alone if it has none."""
    def ids(text: str) -> np.ndarray:
        return np.append(encoder.tokenizer.encode(text, specials=True).ids, end).astype(np.int32)

    if not SENTINEL.search(record.fields["text"]):
        raise UserError(f"{record.where}: there is no sentinel in {record.fields['text'][:60]!r}; write <extra_id_0>, "
                        "<extra_id_1> and so on for the spans to fill in")
    return ids(record.fields["text"]), ids(record.fields.get("target", ""))


def score(outputs: Outputs) -> Result:
    """Measures the loss and the accuracy of the targets' tokens, given those before them; the prediction of an example
    is its loss."""
    nll, correct = (np.concatenate(outputs[name]) for name in ("nll", "correct"))
    return Result({"loss": float(nll.mean()), "lm_loss": float(nll.mean()), "lm_accuracy": float(correct.mean())},
                  [{"loss": float(losses.mean())} for losses in outputs["nll"]])
