"""What a run's network answers, before training and now, and where its heads look."""

import base64
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from lmrep import assembly, starting, trained
from lmrep.analysis.report.facts import Facts
from lmrep.core import params as P
from lmrep.core.errors import RunFault, UserError
from lmrep.data import loader
from lmrep.data.tokenizers import Tokenizer
from lmrep.trained import Run
from lmrep.training.stages import put
from lmrep.training.state import specs_of
from lmrep.training.step import question_keys

TEXTS = 12  # sample texts that are shown, at most
ROWS, AROUND = 16, 12  # held-out rows of each of which a word is shown, and pieces shown on either side of it
LONGEST = 48  # tokens of a text whose attention is shown

Guesses = list[tuple[str, float]]  # words and their probabilities, the likeliest first


@dataclass(frozen=True)
class Blank:
    """One hidden word.

    Attributes:
      left, right: the text around it.
      answer: the word, where it is known.
      before: what the untrained network guesses; None where that could not be made.
      now: what the trained one guesses; None where there is no checkpoint.
    """

    left: str
    right: str
    answer: str | None
    before: Guesses | None
    now: Guesses | None


@dataclass(frozen=True)
class Attention:
    """Where the heads look in one text: `weights` are uint8[l, h, t, s] in base64, 255 for 1. `first` is the token to
    show first: a hidden one, or the one after the text's beginning."""

    pieces: Sequence[str]
    first: int
    layers: int
    heads: int
    weights: str


@dataclass(frozen=True)
class Answers:
    """What one run's network gives.

    Attributes:
      step: of the checkpoint; None where there is none.
      mask: the token that stands for a hidden word.
      samples, held_out: the config's texts and the corpus's own.
      attention: of some of these texts.
      notes: what could not be asked, for people.
    """

    step: int | None
    mask: str
    samples: Sequence[Blank]
    held_out: Sequence[Blank]
    attention: Sequence[Attention]
    notes: Sequence[str]


def ask(facts: Facts, room: int) -> Answers:
    """Asks the network of a run.

    Args:
      facts: the run.
      room: bytes that the attention maps may take.
    """
    if facts.network is None:
        return Answers(None, "[MASK]", (), (), (), ())
    tokenizer = facts.network.tokenizer
    mask = tokenizer.piece(tokenizer.vocabulary.specials["mask"]) if "mask" in tokenizer.vocabulary.specials else ""
    notes, now = [], None
    try:
        now = trained.load(facts.directory)
    except (UserError, RunFault) as error:
        notes.append(f"No trained parameters: {error}")
    before = _untrained(facts, now, notes)
    runs = (before, now)
    if not any(runs):
        return Answers(None, mask, (), (), (), tuple(notes))
    samples, held_out = _samples(facts, runs, mask, notes), _held_out(facts, runs)
    texts = [*facts.experiment.samples[:3], *(f"{blank.left} {blank.answer} {blank.right}" for blank in held_out[:2])]
    maps = _attention(now, texts, mask, room) if now else ()
    return Answers(now and now.step, mask, samples, held_out, maps, tuple(notes))


def _untrained(facts: Facts, now: Run | None, notes: list[str]) -> Run | None:
    """The run as it stood before its first step: its parameters are a function of the seed, and of `init`. None of one
    that was converted."""
    if facts.source:
        return None
    network, experiment = facts.network, facts.experiment
    objective = network.objectives[0]
    params = jax.jit(lambda key: P.init(specs_of(objective), key))(jax.random.key(experiment.seed))
    if experiment.init:
        try:
            origin = starting.load(experiment.init)
            params = put(params, starting.fit(specs_of(objective), origin, network.tokenizer.pieces).values)
        except (UserError, RunFault) as error:
            notes.append(f"What it answered before training is not shown, as its start cannot be read: {error}")
            return None
    if now is not None:
        return dataclasses.replace(now, step=0, objective=objective, params=params)
    return Run(facts.directory, 0, experiment, network.tokenizer, network.model, objective, params)


def _samples(facts: Facts, runs: Sequence[Run | None], mask: str, notes: list[str]) -> list[Blank]:
    """The config's sample texts, a `Blank` for each of their masks."""
    texts = facts.experiment.samples[:TEXTS]
    if not texts or not mask or any(run and run.objective.predict is None for run in runs):
        return []
    try:
        answers = [run.fill_masks(texts) if run else None for run in runs]
    except UserError as error:
        notes.append(f"The sample texts could not be asked: {error}")
        return []
    found = []
    for i, text in enumerate(texts):
        parts = text.split(mask)
        for place in range(len(parts) - 1):
            guesses = [each[i][place] if each and place < len(each[i]) else None for each in answers]
            found.append(Blank(mask.join(parts[: place + 1]), mask.join(parts[place + 1 :]), None, *guesses))
    return found


def _held_out(facts: Facts, runs: Sequence[Run | None]) -> list[Blank]:
    """One of the words that the objective hides in each of some rows, evenly spread over the held-out ones: not chosen
    by how they are answered."""
    stage, prepared = facts.stage, facts.prepared
    store = prepared and (prepared.stores.get("validation") or prepared.stores.get("test"))
    if not store or not store.tokens or any(run and run.objective.predict is None for run in runs):
        return []
    plan = assembly.held_out_plan(stage, store, facts.experiment.seed, prepared.directory.parent)
    batch = loader.gather(plan, np.unique(np.linspace(0, plan.examples - 1, ROWS).astype(np.int64)))
    objective = next(run.objective for run in reversed(runs) if run)
    seed = facts.experiment.seed
    asked = jax.device_get(jax.jit(lambda batch: objective.corrupt(
        question_keys(objective, batch, seed, np.int32(0)), batch))(batch))
    if "predicted" not in asked:
        return []
    shown = {name: value for name, value in asked.items() if name in plan.fields} | {
        "tokens": asked["inputs"], "predicted": asked["predicted"]}
    given = [run and jax.device_get(jax.jit(run.objective.predict)(run.params, shown)) for run in runs]
    found, tokenizer = [], facts.network.tokenizer
    for row in range(len(shown["tokens"])):
        counted = np.flatnonzero(asked["weights"][row] > 0)
        if not len(counted):
            continue
        m = counted[np.argsort(asked["predicted"][row][counted])[len(counted) // 2]]  # with text on both sides
        guesses = [each and [(tokenizer.piece(int(word)), float(share)) for word, share in
                             zip(each["words"][row, m], each["probabilities"][row, m], strict=True)] for each in given]
        left, right = _around(shown, row, int(asked["predicted"][row, m]), tokenizer)
        found.append(Blank(left, right, tokenizer.piece(int(asked["targets"][row, m])), *guesses))
    return found


def _around(shown: dict[str, np.ndarray], row: int, place: int, tokenizer: Tokenizer) -> tuple[str, str]:
    """The text on both sides of a place, of its own packed segment, other hidden words included."""
    tokens, segments, special = shown["tokens"][row], shown["segment_ids"][row], tokenizer.vocabulary.specials
    ends = [special[role] for role in ("cls", "sep") if role in special]
    own = np.flatnonzero((segments == segments[place]) & ~np.isin(tokens, ends) | (np.arange(len(tokens)) == place))
    first, last = max(own[0], place - AROUND), min(own[-1], place + AROUND)
    left, right = (tokenizer.decode(part.tolist()) for part in (tokens[first:place], tokens[place + 1 : last + 1]))
    return ("… " if first > own[0] else "") + left, right + (" …" if last < own[-1] else "")


def _attention(run: Run, texts: Sequence[str], mask: str, room: int) -> list[Attention]:
    """The maps of as many texts as there is room for, cut to whole words where they are too long."""
    found = []
    for text in dict.fromkeys(texts):
        words = text.split()
        while words:
            try:
                given = run.encode([" ".join(words)], attention=True)[0]
            except UserError:  # longer than the model, or a model without attention maps
                given = None
            if given is not None and given.attention is None:
                return []
            if given is not None and len(given.pieces) <= LONGEST and given.attention.size * 4 / 3 <= room:
                break
            words = words[: len(words) * 3 // 4]
        if not words:
            break
        layers, heads = given.attention.shape[:2]
        weights = np.round(given.attention * 255).astype(np.uint8)
        first = given.pieces.index(mask) if mask in given.pieces else min(1, len(given.pieces) - 1)
        found.append(Attention(given.pieces, first, layers, heads, base64.b64encode(weights.tobytes()).decode()))
        room -= len(found[-1].weights)
    return found
