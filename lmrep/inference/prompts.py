"""What a trained model is asked in words: texts as rows of ids, and rows as batches of few shapes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import layout
from lmrep.data.tokenizers import Tokenizer
from lmrep.experiment.config import StagePlan
from lmrep.inference import encode
from lmrep.inference.encode import Pieces

EXAMPLES = {"masks": "The [MASK] of a list is an integer.", "texts": "The value of",
            "replaced": "The length of a list is an elephant."}  # by what a run answers


class Doubt(NamedTuple):
    """How likely one piece of a text was replaced: the characters [start, end) of the text, which are `word`, and the
    probability. Bytes of one character are pieces with the same; a piece that is white space alone has no characters.
    """

    word: str
    start: int
    end: int
    probability: float


def has_mask(text: str, tokenizer: Tokenizer) -> bool:
    """Whether a text asks for a word. [MASK] is every tokenizer's mask, so that a text outlives a change of it."""
    return "[MASK]" in text or tokenizer.specials.get("mask", "[MASK]") in text


def askable(samples: Sequence[str], answers: str) -> list[str]:
    """A run's sample texts that it can be asked, or one of EXAMPLES where none of them fits. Samples may be left over
    from another objective, and a mask is nothing that a text goes on from."""
    if not samples or answers not in EXAMPLES:
        return []
    fitting = [text for text in samples if answers != "texts" or not any(mask in text for mask in ("[MASK]", "<mask>"))]
    return fitting or [EXAMPLES[answers]]


def example(samples: Sequence[str], answers: str) -> str:
    """A text for `lmrep predict`: the first that is `askable`, or one of EXAMPLES; "" where the run answers none."""
    return next(iter(askable(samples, answers)), EXAMPLES.get(answers, ""))


def masked_rows(
    texts: Sequence[str], tokenizer: Tokenizer, longest: int, names: Sequence[str | None] | None = None
) -> list[np.ndarray]:
    """The ids int32[t] of each text, between [CLS] and [SEP]. `longest` is how many the model takes, 0 for any number;
    `names` are what messages call the texts.

    Raises:
      UserError: a text has no [MASK], more than `longest` tokens, or is no Unicode text.
    """
    mask, name = tokenizer.vocabulary.specials["mask"], tokenizer.mask_token
    read = read_whole([text.replace("[MASK]", name) for text in texts], tokenizer, longest, names)
    for i, each in enumerate(read):
        if not (each.ids == mask).any():
            where = f"{names[i]}: " if names and names[i] else ""
            raise UserError(f"{where}there is no {name} in {texts[i]!r}; write {name} where a word is to be found")
    return [each.ids for each in read]


def read_whole(
    texts: Sequence[str], tokenizer: Tokenizer, longest: int, names: Sequence[str | None] | None = None
) -> list[Pieces]:
    """The pieces of each text, between [CLS] and [SEP]. Raises UserError as `masked_rows`."""
    found = []
    for text, name in zip(texts, names or [None] * len(texts), strict=True):
        found.append(encode.read(text, tokenizer, name))
        if 0 < longest < len(found[-1].ids):
            raise UserError(f"{f'{name}: ' if name else ''}{text[:60]!r}... has {len(found[-1].ids)} tokens; the model "
                            f"takes {longest} at most")
    return found


def alike(rows: Sequence[np.ndarray], most: int = 32) -> list[list[int]]:
    """Groups of row numbers of like length, at most `most` a group, so that little is padding."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    return [order[i : i + most] for i in range(0, len(order), most)]


def _room(n: int) -> int:
    return 1 << (n - 1).bit_length()


def batch(rows: Sequence[np.ndarray], pad: int, longest: int) -> dict[str, np.ndarray]:
    """Rows padded to a power of two, so that few shapes are compiled."""
    b, t = _room(len(rows)), max(16, _room(max(map(len, rows))))
    t = min(t, longest) if longest else t
    tokens, segments = np.full((b, t), pad, np.int32), np.zeros((b, t), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], segments[i, : len(row)] = row, 1
    return {"tokens": tokens, "segment_ids": segments}


def mask_batch(rows: Sequence[np.ndarray], pad: int, mask: int, longest: int) -> dict[str, np.ndarray]:
    """As `batch`, and the places of their masks as `predicted`."""
    whole, places = batch(rows, pad, longest), [np.flatnonzero(row == mask) for row in rows]
    predicted = np.zeros((len(whole["tokens"]), _room(max(map(len, places)))), np.int32)
    for i, each in enumerate(places):
        predicted[i, : len(each)] = each
    return whole | {"predicted": predicted}


def opening(stage: StagePlan | None, vocabulary: Vocabulary) -> int | None:
    """The token that stands before a document's first one, as a run was trained; None where nothing does.

    That is what the stage's format puts there, [CLS] say, or what ends the document before, where rows go on across.
    `stage` is None for a converted checkpoint: [CLS], or the token that begins or ends its texts.
    """
    if stage is None:
        return next((vocabulary.specials[role] for role in ("cls", "bos", "eos") if role in vocabulary.specials), None)
    across = getattr(stage.objective, "across", False)
    if stage.format_name == "stream":
        marks, across = layout(vocabulary, lead=(), tail=("eos", "sep")), across or not stage.format.isolate
    else:
        marks = layout(vocabulary)
    return marks.lead if marks.lead is not None else marks.tail if across else None


def beyond(before: str, whole: str) -> str:
    """What a text `whole` says after `before`, which it begins with but for spaces: what follows a mark of punctuation
    may close it up."""
    if whole.startswith(before):
        return whole[len(before):]
    written, said = (np.flatnonzero([not c.isspace() for c in text]) for text in (whole, before))
    return whole[written[min(len(said), len(written)) - 1] + 1 :] if len(said) and len(written) else whole
