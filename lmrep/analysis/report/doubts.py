"""How likely a network that tells replaced tokens apart holds each piece of a text to be replaced: of the config's
texts, and of held-out ones in which its generator replaced some."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.formats import FIELDS
from lmrep.data.tokenizers import Tokenizer
from lmrep.experiment.config import stage_at
from lmrep.inference.load import Run
from lmrep.objectives import replaced_token

AROUND = 12  # pieces shown on either side of a replaced one
SHOWN = 6  # held-out rows that are shown
CLOSED = frozenset(".,;:!?)]}'-")  # not preceded by a space, where the tokenizer keeps no record of spaces


@dataclass(frozen=True)
class Piece:
    """A piece of a text.

    Attributes:
      gap: the text between it and the piece before.
      word: its characters.
      before, now: the probability that it was replaced, by the untrained network and by the trained one; None where
        there is no such network.
      was: the text's own piece, where the generator put this one in its place.
    """

    gap: str
    word: str
    before: float | None
    now: float | None
    was: str | None = None


@dataclass(frozen=True)
class Doubted:
    """A text as its pieces, and what stands after the last one."""

    tokens: Sequence[Piece]
    end: str


@dataclass(frozen=True)
class Replaced:
    """Held-out rows after the generator.

    Attributes:
      texts: parts of some of them, about a replaced piece.
      rows, replaced, others: of how many rows they are chosen, and how many of the pieces there that the network is
        asked about were replaced, or not.
      before, now: how many of either kind each network suspects; None where there is no such network.
      words: whether the network finds words, and its probability is what it leaves for all but the one that stands
        there.
    """

    texts: Sequence[Doubted]
    rows: int
    replaced: int
    others: int
    before: tuple[int, int] | None
    now: tuple[int, int] | None
    words: bool


def samples(runs: Sequence[Run | None], texts: Sequence[str], notes: list[str]) -> list[Doubted]:
    """What the runs, the untrained and the trained one, say of texts."""
    try:
        given = [run and run.detect_replaced(texts) for run in runs]
    except UserError as error:
        notes.append(f"The sample texts could not be asked: {error}")
        return []
    found = []
    for i, text in enumerate(texts):
        each = [doubts and doubts[i] for doubts in given]
        pieces, end = [], 0
        for j, (word, start, stop, _) in enumerate(next(doubts for doubts in each if doubts is not None)):
            said = [doubts and doubts[j].probability for doubts in each]
            if start >= end and word:
                pieces.append(Piece(text[end:start], word, *said))
            elif word:  # the bytes of one character are shown as one
                former = pieces[-1].before, pieces[-1].now
                said = [p if p is None else max(p, q) for p, q in zip(said, former, strict=True)]
                pieces[-1] = Piece(pieces[-1].gap, pieces[-1].word + text[end:stop], *said)
            end = max(end, stop)
        if pieces:
            found.append(Doubted(pieces, text[end:]))
    return found


def held_out(runs: Sequence[Run | None], rows: dict[str, np.ndarray]) -> Replaced | None:
    """What the runs say of held-out rows in which the generator, of the trained one where there is one, put the words
    that it draws; None where it replaced none. `rows` are as the objective asks them."""
    run = next(run for run in reversed(runs) if run)
    c = stage_at(run.experiment, run.step).objective
    generator = run.model.make_generator(c.generator, c.generator_layers)

    @jax.jit
    def filled(params, rows):
        return replaced_token.replace(rows, replaced_token.generate(params, rows, None, c, generator)[2])

    shown = jax.device_get(filled(run.params, rows))
    asked = {name: value for name, value in rows.items() if name in FIELDS} | {"tokens": shown}
    said = [run and jax.device_get(jax.jit(run.objective.predict)(run.params, asked))["replaced"] for run in runs]
    swapped, counted = (shown != rows["tokens"]) & (rows["segment_ids"] > 0), rows["token_weights"] > 0
    some = np.flatnonzero(swapped.any(1))
    if not len(some):
        return None
    texts = []
    for row in some[np.unique(np.linspace(0, len(some) - 1, SHOWN).astype(int))]:
        texts.append(_part(rows, shown, swapped, said, int(row), run.tokenizer))
    tally = [None if p is None else tuple(int(((p > 0.5) & counted & kind).sum()) for kind in (swapped, ~swapped))
             for p in said]
    return Replaced(texts, len(shown), *(int((counted & kind).sum()) for kind in (swapped, ~swapped)), *tally,
                    c.variant not in replaced_token.DETECTING)


def _part(
    rows: dict[str, np.ndarray], shown: np.ndarray, swapped: np.ndarray, said: Sequence[np.ndarray | None], row: int,
    tokenizer: Tokenizer,
) -> Doubted:
    """The pieces around the middle one of a row's replaced pieces, of its own packed segment."""
    places = np.flatnonzero(swapped[row])
    place, segments, special = places[len(places) // 2], rows["segment_ids"][row], tokenizer.vocabulary.specials
    ends = [special[role] for role in ("cls", "sep") if role in special]
    whole = np.flatnonzero((segments == segments[place]) & (swapped[row] | ~np.isin(rows["tokens"][row], ends)))
    own = whole[abs(whole - place) <= AROUND]
    pieces = []
    for i, (gap, word) in zip(own, _spoken(shown[row, own].tolist(), tokenizer), strict=True):
        was = None
        if swapped[row, i]:  # both as they are, since they may differ in how they join the piece before
            word, was = (tokenizer.id_to_token(int(tokens[row, i])).strip() or "␣" for tokens in (shown, rows["tokens"]))
        pieces.append(Piece(gap, word or "␣", *(p if p is None else float(p[row, i]) for p in said), was))
    pieces[0] = dataclasses.replace(pieces[0], gap="… " if own[0] > whole[0] else "")
    return Doubted(pieces, " …" if own[-1] < whole[-1] else "")


def _spoken(tokens: Sequence[int], tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Each token as the space before it and its characters."""
    found, gap = [], ""
    for text in map(tokenizer.spaced_token, tokens):
        word = text.strip()
        before = gap + text[: len(text) - len(text.lstrip())]
        found.append(("" if word in CLOSED and not tokenizer.keeps_spacing else before, word))
        gap = text[len(text.rstrip()):] if word else ""
    return found
