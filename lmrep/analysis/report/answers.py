"""What a run's network answers, before training and now, and where its heads look."""

import base64
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from lmrep.analysis.report import doubts
from lmrep.analysis.report.doubts import Doubted, Replaced
from lmrep.analysis.report.facts import Facts
from lmrep.core import params as P
from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import Array, Tree
from lmrep.data import loader
from lmrep.data import prompts as data_prompts
from lmrep.data.formats import FIELDS
from lmrep.data.tokenizers import Tokenizer
from lmrep.experiment import build
from lmrep.inference import load, prompts
from lmrep.inference.load import Run
from lmrep.interop import init_from
from lmrep.models.base import Inputs, Model, model_inputs
from lmrep.objectives.base import Objective
from lmrep.training.stages import set_params
from lmrep.training.state import specs_of
from lmrep.training.step import prepare_keys

TEXTS = 12  # sample texts that are shown, at most
ROWS, AROUND = 16, 12  # held-out rows of each of which a word is shown, and pieces shown on either side of it
LONGEST = 48  # tokens of a text whose attention is shown
BEGINNINGS, FIRST, MORE = 4, 12, 20  # held-out texts that are continued, pieces given of each, and pieces asked for
DESCRIBED, WORDS = 4, 60  # held-out rows that are shown as they are asked, and words of each

Guesses = list[tuple[str, float]]  # words and their probabilities, the likeliest first


@dataclass(frozen=True)
class Blank:
    """One hidden word, or the next one.

    Attributes:
      left, right: the text around it; of a next word there is none on its right.
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
class Continued:
    """The beginning of a text, as the untrained network, the trained one and, where it is known, the text go on."""

    text: str
    before: str | None
    now: str | None
    actual: str | None


@dataclass(frozen=True)
class Attention:
    """Where the heads look in one text: `weights` are uint8[l, h, t, s] in base64, 255 for 1. `first` is the token to
    show first: a hidden one, or the one after the text's beginning."""

    tokens: Sequence[str]
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
      continued: of both, where the network continues texts.
      doubted: the config's texts, where it tells replaced words from others.
      replaced: the corpus's own, likewise.
      described: held-out rows as they are asked, where it answers none of this.
      attention: of some of these texts.
      notes: what could not be asked, for people.
      whole: whether the checkpoint has all that its objective asks with; a converted one may lack a head.
    """

    step: int | None
    mask: str
    samples: Sequence[Blank]
    held_out: Sequence[Blank]
    continued: Sequence[Continued]
    doubted: Sequence[Doubted]
    replaced: Replaced | None
    described: Sequence[str]
    attention: Sequence[Attention]
    notes: Sequence[str]
    whole: bool = False


def ask(facts: Facts, room: int) -> Answers:
    """Asks the network of a run.

    Args:
      facts: the run.
      room: bytes that the attention maps may take.
    """
    nothing = Answers(None, "[MASK]", (), (), (), (), None, (), (), ())
    if facts.network is None:
        return nothing
    tokenizer = facts.network.tokenizer
    mask = tokenizer.id_to_token(tokenizer.vocabulary.specials["mask"]) if "mask" in tokenizer.vocabulary.specials else ""
    notes, now = [], None
    try:
        now = load.load(facts.directory)
    except (UserError, RunFault) as error:
        notes.append(f"No trained parameters: {error}")
    before = _untrained(facts, now, notes)
    runs = (before, now)
    if not any(runs):
        return dataclasses.replace(nothing, mask=mask, notes=tuple(notes))
    rows = _rows(facts, runs)
    capabilities = next(run for run in reversed(runs) if run).capabilities
    runs = [run if run and run.capabilities == capabilities else None for run in runs]  # a first stage may differ
    names, texts, given = {each.name for each in capabilities}, facts.experiment.samples[:TEXTS], {}
    if "generate_text" in names:
        given = {"held_out": _next_words(facts, runs, rows) if rows else (),
                 "continued": _continued(facts, runs, rows, notes)}
    elif "detect_replaced" in names:
        masked = [text for text in texts if data_prompts.has_mask(text, tokenizer)]
        plain = [text for text in texts if text not in masked]
        given = {"samples": _samples(runs, masked, mask, notes),
                 "doubted": doubts.samples(runs, plain, notes) if plain else (),
                 "replaced": doubts.held_out(runs, rows) if rows else None}
    elif "fill_mask" in names:
        given = {"samples": _samples(runs, texts, mask, notes),
                 "held_out": _hidden_words(facts, runs, rows) if rows else ()}
    elif rows:
        given = {"described": _described(facts, runs, rows)}
    whole = now is not None and P.flatten(specs_of(now.objective)).keys() <= P.flatten(now.params).keys()
    found = dataclasses.replace(nothing, step=now and now.step, mask=mask, whole=whole, **given)
    texts = [*texts[:3], *(f"{blank.left} {blank.answer} {blank.right}" for blank in found.held_out[:2])]
    if rows and not found.held_out:
        special = list(tokenizer.vocabulary.specials.values())
        texts += [tokenizer.decode([i for i in row[: 2 * AROUND].tolist() if i not in special])
                  for row in rows["tokens"][:2]]
    maps = _attention(now, texts, mask, room) if now and room else ()
    return dataclasses.replace(found, attention=maps, notes=tuple(notes))


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
            origin = init_from.load(experiment.init)
            params = set_params(params, init_from.match(specs_of(objective), origin, network.tokenizer.tokens).values)
        except (UserError, RunFault) as error:
            notes.append(f"What it answered before training is not shown, as its start cannot be read: {error}")
            return None
    if now is not None:
        return dataclasses.replace(now, step=0, objective=objective, params=params)
    return Run(facts.directory, 0, experiment, network.tokenizer, network.model, objective, params)


def _samples(runs: Sequence[Run | None], texts: Sequence[str], mask: str, notes: list[str]) -> list[Blank]:
    """The config's sample texts, a `Blank` for each of their masks."""
    if not texts or not mask:
        return []
    try:
        answers = [run.fill_masks(texts) if run else None for run in runs]
    except UserError as error:
        notes.append(f"The sample texts could not be asked: {error}")
        return []
    found = []
    for i, text in enumerate(texts):
        parts = text.replace("[MASK]", mask).split(mask)
        for place in range(len(parts) - 1):
            guesses = [each[i][place] if each and place < len(each[i]) else None for each in answers]
            found.append(Blank(mask.join(parts[: place + 1]), mask.join(parts[place + 1 :]), None, *guesses))
    return found


def _rows(facts: Facts, runs: Sequence[Run | None]) -> dict[str, np.ndarray] | None:
    """Some held-out rows with what they are asked, evenly spread and not chosen by how they are answered."""
    stage, prepared = facts.stage, facts.prepared
    store = prepared and (prepared.stores.get("validation") or prepared.stores.get("test"))
    if not store or not store.tokens:
        return None
    plan = build.evaluation_plan(stage, store, facts.experiment.evaluation.seed, prepared.directory.parent)
    batch = loader.gather(plan, np.unique(np.linspace(0, plan.examples - 1, ROWS).astype(np.int64)))
    objective = next(run.objective for run in reversed(runs) if run)
    seed = facts.experiment.evaluation.seed
    return jax.device_get(jax.jit(lambda batch: objective.prepare(
        prepare_keys(objective, batch, seed, np.int32(0)), batch))(batch))


def _hidden_words(facts: Facts, runs: Sequence[Run | None], rows: dict[str, np.ndarray]) -> list[Blank]:
    """One of the words that the objective hides in each row."""
    if any(run and run.objective.predict is None for run in runs):
        return []
    shown = {name: value for name, value in rows.items() if name in FIELDS} | {
        "tokens": rows["inputs"], "predicted": rows["predicted"]}
    given = [run and jax.device_get(jax.jit(run.objective.predict)(run.params, shown)) for run in runs]
    found, tokenizer = [], facts.network.tokenizer
    for row in range(len(shown["tokens"])):
        counted = np.flatnonzero(rows["weights"][row] > 0)
        if not len(counted):
            continue
        m = counted[np.argsort(rows["predicted"][row][counted])[len(counted) // 2]]  # with text on both sides
        guesses = [each and _words(each["words"][row, m], each["probabilities"][row, m], tokenizer) for each in given]
        left, right = _around(shown, row, int(rows["predicted"][row, m]), tokenizer)
        found.append(Blank(left, right, tokenizer.id_to_token(int(rows["targets"][row, m])), *guesses))
    return found


def _next_words(facts: Facts, runs: Sequence[Run | None], rows: dict[str, np.ndarray]) -> list[Blank]:
    """The next word at one place of each row, about its middle."""
    tokenizer, t = facts.network.tokenizer, rows["tokens"].shape[1]
    asked = [np.flatnonzero(weights > 0) for weights in rows["weights"]]
    places = {row: int(each[len(each) // 2]) for row, each in enumerate(asked) if len(each)}
    if not places:
        return []
    tokens, last = np.zeros((len(places), t), np.int32), np.zeros(len(places), np.int32)
    for i, (row, place) in enumerate(places.items()):
        text = _read(rows, row, place)
        tokens[i, : len(text)], last[i] = text, len(text) - 1
    segments = (np.arange(t) <= last[:, None]).astype(np.int32)
    positions = np.broadcast_to(np.arange(t, dtype=np.int32), tokens.shape)
    inputs = model_inputs(facts.network.model, {
        "tokens": tokens, "segment_ids": segments, "positions": positions}, context="left")
    given = [run and jax.device_get(jax.jit(partial(
        _next, model=run.model, objective=run.objective, size=tokenizer.size))(run.params, inputs, last))
        for run in runs]
    found = []
    for i, (row, place) in enumerate(places.items()):
        text = _read(rows, row, place)
        text = text[~np.isin(text, list(tokenizer.vocabulary.specials.values()))]
        left = ("… " if len(text) > 2 * AROUND else "") + tokenizer.decode(text[-2 * AROUND :].tolist())
        found.append(Blank(left, "", tokenizer.id_to_token(int(rows["targets"][row, place])), *(
            each and _words(each[1][i], each[0][i], tokenizer) for each in given)))
    return found


def _next(
    params: Tree, inputs: Inputs, last: Array, *, model: Model, objective: Objective, size: int
) -> tuple[Array, Array]:
    """(probabilities, ids) of the five likeliest tokens after the place `last` i32[b] of each row."""
    hidden = model.encode(params["encoder"], inputs, None, at=last[:, None]).hidden
    probabilities = jax.nn.softmax(objective.next_token_logits(params, hidden)[:, 0])
    return jax.lax.top_k(probabilities[:, :size], min(5, size))


def _words(ids: np.ndarray, shares: np.ndarray, tokenizer: Tokenizer) -> Guesses:
    return [(tokenizer.id_to_token(int(word)), float(share)) for word, share in zip(ids, shares, strict=True)]


def _read(rows: dict[str, np.ndarray], row: int, place: int) -> np.ndarray:
    """The tokens up to a place and with it, of its own packed segment."""
    own = rows["segment_ids"][row] == rows["segment_ids"][row, place]
    return rows["tokens"][row][own & (np.arange(len(own)) <= place)]


def _continued(
    facts: Facts, runs: Sequence[Run | None], rows: dict[str, np.ndarray] | None, notes: list[str]
) -> list[Continued]:
    """The config's sample texts that can be continued, and the beginnings of some rows."""
    tokenizer, longest = facts.network.tokenizer, facts.network.model.max_length
    more = min(MORE, (longest - FIRST) // 2) if longest else MORE  # there is room, if the text is cut otherwise anew
    if more < 1:
        return []
    texts: dict[str, str | None] = dict.fromkeys(prompts.sample_prompts(
        facts.experiment.samples, now_capabilities(runs))[:TEXTS])
    special = list(tokenizer.vocabulary.specials.values())
    for row in range(0, ROWS, ROWS // BEGINNINGS) if rows else ():
        if row < len(rows["tokens"]):
            own = rows["tokens"][row][rows["segment_ids"][row] == 1]
            own = own[~np.isin(own, special)]
            text = tokenizer.decode(own[:FIRST].tolist())
            if len(own) > FIRST and text.strip():
                texts[text] = tokenizer.decode(own[: FIRST + more].tolist())[len(text) :]
    try:
        given = [run and [each for (each,) in run.generate(list(texts), more)] for run in runs]
    except UserError as error:
        notes.append(f"Texts could not be continued: {error}")
        return []
    return [Continued(text, *(each and each[i] for each in given), actual)
            for i, (text, actual) in enumerate(texts.items())]


def now_capabilities(runs: Sequence[Run | None]) -> tuple:
    """What the runs can be asked."""
    return next((run.capabilities for run in runs if run), ())


def _described(facts: Facts, runs: Sequence[Run | None], rows: dict[str, np.ndarray]) -> list[str]:
    """Some rows as the objective tells of them."""
    describe = next(run for run in runs if run).objective.describe
    if describe is None:
        return []
    some = {name: value[:: ROWS // DESCRIBED] for name, value in rows.items() if np.ndim(value)}
    texts = [text.split() for text in describe(some, facts.network.tokenizer)]
    return [" ".join(words[:WORDS]) + (" …" if len(words) > WORDS else "") for words in texts]


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
            if given is not None and len(given.tokens) <= LONGEST and given.attention.size * 4 / 3 <= room:
                break
            words = words[: len(words) * 3 // 4]
        if not words:
            break
        layers, heads = given.attention.shape[:2]
        weights = np.round(given.attention * 255).astype(np.uint8)
        first = given.tokens.index(mask) if mask in given.tokens else min(1, len(given.tokens) - 1)
        found.append(Attention(given.tokens, first, layers, heads, base64.b64encode(weights.tobytes()).decode()))
        room -= len(found[-1].weights)
    return found
