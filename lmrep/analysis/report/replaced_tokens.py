"""Replaced-token probabilities (Clark et al., 2020) of sample texts and of corrupted validation text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.data.formats import FIELDS
from lmrep.data.tokenizers import Tokenizer
from lmrep.inference.run import Run
from lmrep.objectives.capabilities import ReplacedToken

CONTEXT = 12  # tokens shown on either side of a replaced one
MAX_SHOWN = 6  # validation examples that are shown
CLOSING = frozenset(".,;:!?)]}'-")  # not preceded by a space, where the tokenizer keeps no record of spaces


class ShadedToken(NamedTuple):
    """A token of a text."""

    gap: str  # the text between it and the token before
    word: str  # its characters
    probability: float  # that it was replaced
    original: str | None = None  # the token of the text, where this one replaced it


class ShadedText(NamedTuple):
    """A text as its tokens, and what follows the last one."""

    tokens: list[ShadedToken]
    end: str


class Replaced(NamedTuple):
    """Validation text with replaced tokens. A network that is missing has None."""

    texts: list[tuple[ShadedText | None, ShadedText | None]]  # (untrained, trained) around a token of some examples
    examples: int  # number of examples
    replaced: int  # number of replaced tokens
    originals: int  # number of other tokens that are judged
    before: tuple[int, int] | None  # (replaced, original) tokens that the untrained network takes for replaced
    now: tuple[int, int] | None  # likewise, the trained network


def shade(text: str, prediction: Sequence[ReplacedToken]) -> ShadedText | None:
    """Pairs a text with its prediction. The bytes of one character become one token, with their largest probability.
    Returns None where no token has characters."""
    tokens: list[ShadedToken] = []
    end = 0
    for word, start, stop, probability in prediction:
        if start >= end and word:
            tokens.append(ShadedToken(text[end:start], word, probability))
        elif word:
            last = tokens[-1]
            tokens[-1] = last._replace(word=last.word + text[end:stop], probability=max(last.probability, probability))
        end = max(end, stop)
    return ShadedText(tokens, text[end:]) if tokens else None


def held_out(runs: Sequence[Run | None], batch: Mapping[str, np.ndarray]) -> Replaced | None:
    """Predicts which tokens of validation examples were replaced. The trained network replaces them, if there is one.

    Args:
      runs: the untrained and the trained run; None for one that is missing.
      batch: a prepared batch.

    Returns:
      None where the objective replaces no tokens, or replaced none here.
    """
    run = next(run for run in reversed(runs) if run)
    if run.objective.uses.replaced is None:
        return None
    corrupted, judged = jax.device_get(jax.jit(run.objective.uses.replaced)(run.params, batch))
    inputs = {name: value for name, value in batch.items() if name in FIELDS} | {"tokens": corrupted}
    probabilities = [run and run.predict_batch(inputs)["replaced"] for run in runs]
    replaced = (corrupted != batch["tokens"]) & (batch["segment_ids"] > 0)
    examples = np.flatnonzero(replaced.any(1))
    if not len(examples):
        return None
    spread = examples[np.unique(np.linspace(0, len(examples) - 1, MAX_SHOWN).astype(int))]
    texts = [_excerpt(batch, corrupted, replaced, probabilities, int(i), run.tokenizer) for i in spread]
    groups = judged & replaced, judged & ~replaced
    counts = [None if p is None else tuple(int(((p > 0.5) & group).sum()) for group in groups) for p in probabilities]
    return Replaced(texts, len(corrupted), *(int(group.sum()) for group in groups), *counts)


def _excerpt(
    batch: Mapping[str, np.ndarray], corrupted: np.ndarray, replaced: np.ndarray, probabilities: Sequence[Any], i: int,
    tokenizer: Tokenizer,
) -> tuple[ShadedText | None, ShadedText | None]:
    """Returns the tokens around the middle one of example `i`'s replaced tokens, within its packed segment."""
    positions = np.flatnonzero(replaced[i])
    middle = positions[len(positions) // 2]
    segment = text_positions(batch["tokens"][i], batch["segment_ids"][i], middle, replaced[i], tokenizer)
    window = segment[abs(segment - middle) <= CONTEXT]
    words = []
    for t, (gap, word) in zip(window, spaced(corrupted[i, window].tolist(), tokenizer), strict=True):
        original = None
        if replaced[i, t]:  # as in the vocabulary, since they may join the token before differently
            word, original = (tokenizer.id_to_token(int(ids[i, t])).strip() or "␣"
                              for ids in (corrupted, batch["tokens"]))
        words.append((gap, word or "␣", original))
    words[0] = ("… " if window[0] > segment[0] else "", *words[0][1:])
    end = " …" if window[-1] < segment[-1] else ""
    return tuple(None if p is None else ShadedText(
        [ShadedToken(gap, word, float(p[i, t]), original)
         for t, (gap, word, original) in zip(window, words, strict=True)], end) for p in probabilities)


def text_positions(
    tokens: np.ndarray, segment_ids: np.ndarray, position: int, keep: np.ndarray, tokenizer: Tokenizer
) -> np.ndarray:
    """Returns the positions [n] of the packed segment at `position`, without [CLS] and [SEP] unless `keep` bool[t]."""
    ends = [i for role, i in tokenizer.vocabulary.specials.items() if role in ("cls", "sep")]
    return np.flatnonzero((segment_ids == segment_ids[position]) & (keep | ~np.isin(tokens, ends)))


def spaced(ids: Sequence[int], tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Returns (the space before it, its characters) of each token."""
    tokens, gap = [], ""
    for text in map(tokenizer.spaced_token, ids):
        word = text.strip()
        before = gap + text[: len(text) - len(text.lstrip())]
        tokens.append(("" if word in CLOSING and not tokenizer.keeps_spacing else before, word))
        gap = text[len(text.rstrip()):] if word else ""
    return tokens
