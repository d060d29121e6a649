"""Prompts: texts for a trained model as rows of ids, and rows as batches of few shapes, so that little is compiled."""

from collections.abc import Sequence

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data import tokenized_text
from lmrep.data.tokenized_text import TokenizedText
from lmrep.data.tokenizers import Tokenizer


def has_mask(text: str, tokenizer: Tokenizer) -> bool:
    """Whether a text asks for a word. [MASK] is every tokenizer's mask, so that a text outlives a change of it."""
    return "[MASK]" in text or tokenizer.specials.get("mask", "[MASK]") in text


def tokenize_masked(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, names: Sequence[str | None] | None = None
) -> list[np.ndarray]:
    """The ids int32[t] of each text, between [CLS] and [SEP]. `max_length` is how many the model takes, 0 for any number;
    `names` are what messages call the texts.

    Raises:
      UserError: a text has no [MASK], more than `max_length` tokens, or is no Unicode text.
    """
    mask, name = tokenizer.vocabulary.specials["mask"], tokenizer.mask_token
    read = tokenize_prompts([text.replace("[MASK]", name) for text in texts], tokenizer, max_length, names)
    for i, each in enumerate(read):
        if not (each.ids == mask).any():
            where = f"{names[i]}: " if names and names[i] else ""
            raise UserError(f"{where}there is no {name} in {texts[i]!r}; write {name} where a word is to be found")
    return [each.ids for each in read]


def tokenize_prompts(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, names: Sequence[str | None] | None = None
) -> list[TokenizedText]:
    """The pieces of each text, between [CLS] and [SEP]. Raises UserError as `tokenize_masked`."""
    found = []
    for text, name in zip(texts, names or [None] * len(texts), strict=True):
        found.append(tokenized_text.tokenize_text(text, tokenizer, name))
        if 0 < max_length < len(found[-1].ids):
            raise UserError(f"{f'{name}: ' if name else ''}{text[:60]!r}... has {len(found[-1].ids)} tokens; the model "
                            f"takes {max_length} at most")
    return found


def group_by_length(rows: Sequence[np.ndarray], most: int = 32) -> list[list[int]]:
    """Groups of row numbers of like length, at most `most` a group, so that little is padding."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    return [order[i : i + most] for i in range(0, len(order), most)]


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def pad_batch(rows: Sequence[np.ndarray], pad: int, max_length: int) -> dict[str, np.ndarray]:
    """Rows padded to a power of two, so that few shapes are compiled."""
    b, t = _power_of_two(len(rows)), max(16, _power_of_two(max(map(len, rows))))
    t = min(t, max_length) if max_length else t
    tokens, segments = np.full((b, t), pad, np.int32), np.zeros((b, t), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], segments[i, : len(row)] = row, 1
    return {"tokens": tokens, "segment_ids": segments}


def mask_batch(rows: Sequence[np.ndarray], pad: int, mask: int, max_length: int) -> dict[str, np.ndarray]:
    """As `pad_batch`, and the places of their masks as `predicted`."""
    whole, places = pad_batch(rows, pad, max_length), [np.flatnonzero(row == mask) for row in rows]
    predicted = np.zeros((len(whole["tokens"]), _power_of_two(max(map(len, places)))), np.int32)
    for i, each in enumerate(places):
        predicted[i, : len(each)] = each
    return whole | {"predicted": predicted}


def continuation(before: str, whole: str) -> str:
    """What a text `whole` says after `before`, which it begins with but for spaces: what follows a mark of punctuation
    may close it up."""
    if whole.startswith(before):
        return whole[len(before):]
    written, said = (np.flatnonzero([not c.isspace() for c in text]) for text in (whole, before))
    return whole[written[min(len(said), len(written)) - 1] + 1 :] if len(said) and len(written) else whole
