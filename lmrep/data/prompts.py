"""Prompts: texts for a trained model as ids, in batches of few different shapes, each of which is compiled."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data import tokenized_text
from lmrep.data.tokenized_text import TokenizedText
from lmrep.data.tokenizers import Tokenizer


def text_list(texts: Iterable[Any], method: str, pairs: bool = False, types: tuple[type, ...] = (str,)) -> list[Any]:
    """Returns the texts as a list. Raises UserError, which names `method`, unless each is a string (or of `types`), or
    a pair of these, if `pairs`."""
    if isinstance(texts, str):
        raise UserError(f"{method} takes a list of texts; it was given one: {method}([{texts[:40]!r}])")
    if not isinstance(texts, Iterable):
        raise UserError(f"{method} takes a list of texts; it was given {repr(texts)[:60]}")
    texts = list(texts)
    for i, text in enumerate(texts):
        parts = text if pairs and isinstance(text, tuple | list) and len(text) == 2 else [text]
        if not all(isinstance(part, types) for part in parts):
            raise UserError(f"{method} takes a list of texts{' or pairs of texts' * pairs}; number {i}, counting from "
                            f"0, is {repr(text)[:60]}")
    return texts


def unknown_words(text: str, tokenizer: Tokenizer) -> tuple[list[str], int]:
    """Returns (the words of a text that have an unknown token, number of words). The name of the unknown token is not
    listed. Raises UserError if the text is not Unicode text."""
    text = text.replace("[MASK]", tokenizer.specials.get("mask", "[MASK]"))
    encoded, unk = tokenized_text.tokenize_text(text, tokenizer, around=([], [])), tokenizer.specials.get("unk")
    words = {word: text[start:end] for i, word, (start, end) in zip(
        encoded.ids, encoded.words, encoded.offsets, strict=True) if tokenizer.id_to_token(i) == unk}
    return [word for word in words.values() if word and word != unk], len(set(encoded.words) - {None})


def tokenize_masked(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, names: Sequence[str | None] | None = None,
    around: tuple[list[int], list[int]] | None = None,
) -> list[np.ndarray]:
    """Tokenizes texts with masks to ids int32[t], with the ids `around` each, by default [CLS] and [SEP]. `max_length`
    is the model's, 0 for any length; messages name the texts `names`. Raises UserError if a text has no [MASK], has
    more than `max_length` tokens, or is not Unicode text."""
    mask, name = tokenizer.vocabulary.specials["mask"], tokenizer.mask_token
    tokenized = tokenize_prompts([text.replace("[MASK]", name) for text in texts], tokenizer, max_length, names,
                                 around)
    for i, prompt in enumerate(tokenized):
        if not (prompt.ids == mask).any():
            where = f"{names[i]}: " if names and names[i] else ""
            raise UserError(f"{where}there is no {name} in {texts[i]!r}; write {name} for each word to predict")
    return [prompt.ids for prompt in tokenized]


def tokenize_prompts(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, names: Sequence[str | None] | None = None,
    around: tuple[list[int], list[int]] | None = None,
) -> list[TokenizedText]:
    """Tokenizes texts with or without masks; arguments and errors are as in `tokenize_masked`."""
    prompts = []
    for text, name in zip(texts, names or [None] * len(texts), strict=True):
        prompt = tokenized_text.tokenize_text(text, tokenizer, name, around)
        if 0 < max_length < len(prompt.ids):
            raise UserError(f"{f'{name}: ' if name else ''}{text[:60]!r}... has {len(prompt.ids)} tokens; the model "
                            f"takes {max_length} at most: shorten it, or split it into several texts")
        prompts.append(prompt)
    return prompts


def group_by_length(sequences: Sequence[np.ndarray], batch_size: int = 32) -> list[list[int]]:
    """Groups the indices of at most `batch_size` sequences of similar length, so that batches need little padding."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def pad_batch(sequences: Sequence[np.ndarray], pad: int, max_length: int) -> dict[str, np.ndarray]:
    """Pads sequences to powers of two, so that few shapes are compiled: `tokens` and `segment_ids`, int32[b, t]."""
    b, t = _power_of_two(len(sequences)), max(16, _power_of_two(max(map(len, sequences))))
    t = min(t, max_length) if max_length else t
    tokens, segments = np.full((b, t), pad, np.int32), np.zeros((b, t), np.int32)
    for i, ids in enumerate(sequences):
        tokens[i, : len(ids)], segments[i, : len(ids)] = ids, 1
    return {"tokens": tokens, "segment_ids": segments}


def mask_batch(sequences: Sequence[np.ndarray], pad: int, mask: int, max_length: int) -> dict[str, np.ndarray]:
    """Makes the batch of `pad_batch`, and the positions of the masks as `predicted`, int32[b, m]."""
    batch, positions = pad_batch(sequences, pad, max_length), [np.flatnonzero(ids == mask) for ids in sequences]
    predicted = np.zeros((len(batch["tokens"]), _power_of_two(max(map(len, positions)))), np.int32)
    for i, masked in enumerate(positions):
        predicted[i, : len(masked)] = masked
    return batch | {"predicted": predicted}


def continuation(prompt: str, text: str) -> str:
    """Returns what follows `prompt` in `text`, which begins with it except for spaces: decoding may remove the space
    before a punctuation mark once the next token is known."""
    if text.startswith(prompt):
        return text[len(prompt):]
    in_text, in_prompt = (np.flatnonzero([not c.isspace() for c in string]) for string in (text, prompt))
    if not (len(in_prompt) and len(in_text)):
        return text
    return text[in_text[min(len(in_prompt), len(in_text)) - 1] + 1 :]
