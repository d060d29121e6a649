"""Predictions of a run's network before training and now, for sample texts and for validation text, and its attention.

`RENDERERS` says how the report shows a capability. Capabilities without a row there are shown as `lmrep predict` prints
them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.analysis.report import attention, replaced_tokens
from lmrep.analysis.report.attention import Attention
from lmrep.analysis.report.results import Results
from lmrep.analysis.report.run_data import Predictions, RunData, Sample
from lmrep.core import params as P
from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import Array, Tree
from lmrep.data import loader
from lmrep.data.formats import FIELDS
from lmrep.data.prompts import pad_batch
from lmrep.data.tokenizers import Tokenizer
from lmrep.experiment import build
from lmrep.experiment.task_data import tokenize_records
from lmrep.inference import load, prompts
from lmrep.inference.run import Run
from lmrep.interop import init_from
from lmrep.models.base import Context, model_inputs
from lmrep.objectives.base import Objective
from lmrep.objectives.uses import HeldOut
from lmrep.training.stages import set_params
from lmrep.training.state import FROZEN, specs_of
from lmrep.training.step import SHARED, prepare_keys

MAX_TEXTS = 12  # sample texts that are shown
EXAMPLES, CONTEXT = 16, 12  # validation examples with a predicted token; tokens shown on either side
CONTINUED, PROMPT, NEW_TOKENS = 4, 12, 20  # validation texts that are continued; tokens of each prompt and continuation
DESCRIBED, WORDS = 4, 60  # validation examples that are described, and words of each

Runs = Sequence[Run | None]  # the untrained and the trained run; None for one that is missing



def predict(data: RunData, attention_bytes: int) -> Predictions:
    """Computes predictions of a run's network, untrained and trained. Attention takes at most `attention_bytes`."""
    if data.network is None:
        return Predictions()
    notes, now = [], None
    try:
        now = load.load(data.directory)
    except (UserError, RunFault) as error:
        notes.append(f"No trained parameters: {error}")
    runs = (_untrained(data, now, notes), now)
    if not any(runs):
        return Predictions(notes=tuple(notes))
    run = _newest(runs)
    # The objective of the first stage, which the untrained run has, may have other capabilities.
    runs = tuple(other if other and other.capabilities == run.capabilities else None for other in runs)
    batch = held_out_batch(data, run.objective)
    held_out = _held_out(data, runs, batch, notes) if batch else {}
    samples = _samples(data, runs, notes)
    complete = now is not None and P.flatten(specs_of(now.objective)).keys() <= P.flatten(now.params).keys()
    attentions = _attention(data, now, batch, attention_bytes) if now else ()
    return Predictions(now and now.step, samples, held_out, attentions, tuple(notes), complete)


def _attention(data: RunData, run: Run, batch: dict[str, np.ndarray] | None, max_bytes: int) -> Sequence[Attention]:
    """Computes attention probabilities for texts or, where the network reads a source, for validation examples."""
    results = data.results or Results()
    if run.objective.uses.text_pairs and results.records and max_bytes:
        units = tokenize_records(run.experiment, run.model, run.tokenizer, results.records, "validation").units
        return attention.of_pairs(run, lambda _: [(
            units.source.tokens[units.source.offsets[i] : units.source.offsets[i + 1]],
            units.tokens[units.offsets[i] : units.offsets[i + 1]]) for i in range(len(units.example))], max_bytes)
    if run.objective.uses.text_pairs and batch:
        return attention.of_pairs(run, lambda length: _pairs(data, run.objective, length), max_bytes)
    texts = [*data.experiment.samples[:3], *(text for _, text in results.texts),
             *(list(_beginnings(data, batch, 2 * CONTEXT))[:2] if batch else ())]
    return attention.of_texts(run, texts, max_bytes)


def _pairs(data: RunData, objective: Objective, length: int) -> list[attention.Pair]:
    """Returns the sources and targets that the objective makes of the first `length` tokens of validation examples."""
    batch = objective.uses.text_pairs.batch(held_out_batch(data, objective, length))
    return [(source[in_source == 1], target[in_target == 1]) for source, in_source, target, in_target in zip(
        batch["source"]["tokens"], batch["source"]["segment_ids"], batch["targets"], batch["segment_ids"], strict=True)]


def _newest(runs: Runs) -> Run:
    """Returns the trained run, or else the untrained one."""
    return next(run for run in reversed(runs) if run)


def _untrained(data: RunData, now: Run | None, notes: list[str]) -> Run | None:
    """Makes the run before its first step, with the parameters that follow from the seed and from `init`. None for a
    converted run, and for a task, whose predictions are recorded."""
    if data.source or data.results is not None:
        return None
    network, experiment = data.network, data.experiment
    objective = network.objectives[0]
    params = jax.jit(lambda key: P.init(objective.specs, key))(jax.random.key(experiment.seed))
    if experiment.init:
        try:
            source = init_from.load(experiment.init)
            params = set_params(params, init_from.match(
                objective.specs, source, network.tokenizer.tokens, experiment.init_mapping).values)
        except (UserError, RunFault) as error:
            notes.append(f"Predictions before training are not shown: {error}")
            return None
    if now is not None:
        if FROZEN in now.params:
            params = params | {FROZEN: now.params[FROZEN]}
        if len(network.objectives) == 1:
            return now.with_params(params, 0)
        return dataclasses.replace(now, step=0, objective=objective, params=params)
    return Run(data.directory, 0, experiment, network.tokenizer, network.model, objective, params)


def held_out_batch(data: RunData, objective: Objective, length: int | None = None) -> dict[str, np.ndarray] | None:
    """Returns `EXAMPLES` evenly spaced validation examples, prepared by the objective; with `length`, their first
    `length` tokens. None without validation text."""
    stage, prepared, seed = data.stage, data.prepared, data.experiment.evaluation.seed
    store = prepared and (prepared.stores.get("validation") or prepared.stores.get("test"))
    if not store or not store.tokens:
        return None
    plan = build.plan(stage, store, seed, prepared.directory.parent, once=True)
    batch = loader.gather(plan, np.unique(np.linspace(0, plan.examples - 1, EXAMPLES).astype(np.int64)))
    if length:
        batch = jax.tree.map(lambda x: x[:, :length] if x.ndim == 2 else x, batch)
    return jax.device_get(jax.jit(lambda batch: objective.prepare(
        prepare_keys(objective, batch, seed, np.int32(0)), batch))(batch))


# Sample texts


def _samples(data: RunData, runs: Runs, notes: list[str]) -> list[Sample]:
    """Computes predictions for the config's sample texts, or else for sentences of the run's text. The first capability
    that accepts a text makes its predictions."""
    run, samples = _newest(runs), []
    prompts_ = prompts.sample_prompts(
        data.experiment.samples, run.capabilities, data.prepared, run.model.max_length)[:MAX_TEXTS]
    for capability in run.capabilities:
        texts = [text for text in prompts_ if run.capability_of(text) is capability]
        if not texts:
            continue
        renderer = RENDERERS.get(capability.name, Renderer())
        options = renderer.options(run) or dataclasses.asdict(capability.sample_options)
        try:
            pair = [other and other.predict(texts, capability.name, **options) for other in runs]
        except UserError as error:
            notes.append(f"No predictions for the sample texts: {error}")
            continue
        show = renderer.samples or _sample("printed", capability.to_text)
        for i, text in enumerate(texts):
            samples += show(text, *(predictions and predictions[i] for predictions in pair), tokenizer=run.tokenizer)
    return samples


def _masks(text: str, before: Any, now: Any, *, tokenizer: Tokenizer) -> list[Sample]:
    """Makes a sample for each mask of a text."""
    mask, samples = tokenizer.mask_token, []
    parts = text.replace("[MASK]", mask).split(mask)
    for i in range(len(parts) - 1):
        pair = [masks[i] if masks and i < len(masks) else None for masks in (before, now)]
        samples.append(Sample("candidates", (mask.join(parts[: i + 1]), mask, mask.join(parts[i + 1:])), *pair))
    return samples


def _sample(view: str, show: Callable[[str, Any, Tokenizer], Any]) -> Callable[..., list[Sample]]:
    """Makes `Renderer.samples` that shows `show(text, prediction, tokenizer)`, and nothing where that is None."""
    def samples(text: str, before: Any, now: Any, *, tokenizer: Tokenizer) -> list[Sample]:
        pair = [None if prediction is None else show(text, prediction, tokenizer) for prediction in (before, now)]
        return [Sample(view, (text, "", ""), *pair)] if pair != [None, None] else []

    return samples


# Validation text


def _held_out(data: RunData, runs: Runs, batch: dict[str, np.ndarray], notes: list[str]) -> dict[str, Any]:
    """Returns {macro: its content} for validation examples: predictions, or else descriptions of the examples."""
    run, contents = _newest(runs), {}
    for capability in run.capabilities:
        for view, predictions in RENDERERS.get(capability.name, Renderer()).held_out.items():
            if content := predictions(data, runs, batch, notes):
                contents[view] = content
    if not contents and run.objective.uses.describe is not None:
        some = jax.tree.map(lambda x: x[:: EXAMPLES // DESCRIBED],
                            {name: value for name, value in batch.items() if name != SHARED})
        words = [text.split() for text in run.objective.uses.describe(some, data.network.tokenizer)]
        contents["described"] = [" ".join(w[:WORDS]) + (" …" if len(w) > WORDS else "") for w in words]
    return contents


def _held_out_tokens(runs: Runs, batch: dict[str, np.ndarray], notes: list[str]) -> HeldOut | None:
    """Returns the tokens that are predicted in a prepared batch; None, with a note, if the objective does not tell."""
    objective = _newest(runs).objective
    if objective.uses.held_out is None:
        notes.append(f"Predictions for validation text are not shown: objective {objective.name!r} does not tell which "
                     "tokens it predicts (Uses.held_out).")
        return None
    return HeldOut(*map(np.asarray, objective.uses.held_out(batch)))


def _masked_tokens(data: RunData, runs: Runs, batch: dict[str, np.ndarray], notes: list[str]) -> list[Sample]:
    """Predicts one of the masked tokens of each example."""
    if any(run and run.objective.predict is None for run in runs) or not (
            held_out := _held_out_tokens(runs, batch, notes)):
        return []
    inputs = {name: value for name, value in batch.items() if name in FIELDS} | {
        "tokens": held_out.tokens, "predicted": held_out.positions}
    predictions = [run and run.predict_batch(inputs, k=min(5, run.tokenizer.size)) for run in runs]
    samples, tokenizer = [], data.network.tokenizer
    for i, (at, targets) in enumerate(zip(held_out.positions, held_out.targets, strict=True)):
        used = np.flatnonzero(targets >= 0)
        if not len(used):
            continue
        m = used[np.argsort(at[used])[len(used) // 2]]  # with text on both sides
        pair = [p and _candidates(p["words"][i, m], p["probabilities"][i, m], tokenizer) for p in predictions]
        left, right = _context(inputs, i, int(at[m]), tokenizer)
        target = tokenizer.id_to_token(int(targets[m]))
        samples.append(Sample("candidates", (left, "?", right), *pair, target))
    return samples


def _next_tokens(data: RunData, runs: Runs, batch: dict[str, np.ndarray], notes: list[str]) -> list[Sample]:
    """Predicts a token near the middle of each example from those before it; [] for objectives that read both sides."""
    uses = [run.objective.uses for run in runs if run]
    if any(use.next_token is None or use.conditions_on != Context.LEFT for use in uses) or not (
            held_out := _held_out_tokens(runs, batch, notes)):
        return []
    tokenizer, model, specials = data.network.tokenizer, data.network.model, data.network.tokenizer.vocabulary.specials
    used = [np.flatnonzero(targets >= 0) for targets in held_out.targets]
    middle = {i: int(numbers[len(numbers) // 2]) for i, numbers in enumerate(used) if len(numbers)}
    if not middle:
        return []
    texts = []  # the packed segments up to the positions that predict
    for i, m in middle.items():
        tokens, segments, t = batch["tokens"][i], batch["segment_ids"][i], int(held_out.positions[i, m])
        texts.append(tokens[: t + 1][segments[: t + 1] == segments[t]])
    padded = pad_batch(texts, specials.get("pad", 0), model.max_length)
    inputs, last = model_inputs(model, padded, conditions_on=Context.LEFT), np.zeros(len(padded["tokens"]), np.int32)
    last[: len(texts)] = [len(text) - 1 for text in texts]

    @partial(jax.jit, static_argnums=1)
    def predict(params: Tree, logits: Callable) -> tuple[Array, Array]:
        hidden = model.encode(params["encoder"], inputs, None, at=last[:, None]).hidden
        probabilities = jax.nn.softmax(logits(params, hidden)[:, 0])
        return jax.lax.top_k(probabilities[:, : tokenizer.size], min(5, tokenizer.size))

    predictions = [run and jax.device_get(predict(run.params, run.objective.uses.next_token.logits)) for run in runs]
    samples = []
    for i, ((example, m), text) in enumerate(zip(middle.items(), texts, strict=True)):
        text = text[~np.isin(text, list(specials.values()))]
        left = ("… " if len(text) > 2 * CONTEXT else "") + tokenizer.decode(text[-2 * CONTEXT:].tolist())
        pair = [p and _candidates(p[1][i], p[0][i], tokenizer) for p in predictions]
        target = tokenizer.id_to_token(int(held_out.targets[example, m]))
        samples.append(Sample("candidates", (left, "?", ""), *pair, target))
    return samples


def _continued(data: RunData, runs: Runs, batch: dict[str, np.ndarray], notes: list[str]) -> list[Sample]:
    """Continues the beginnings of some examples."""
    new_tokens = _new_tokens(_newest(runs))
    texts = _beginnings(data, batch, PROMPT, more=new_tokens)
    try:
        pairs = [run and run.generate(list(texts), new_tokens) if texts else () for run in runs]
    except UserError as error:
        notes.append(f"Validation texts could not be continued: {error}")
        return []
    return [Sample("continuation", (text, "", ""), *(p and p[i][0] for p in pairs), texts[text])
            for i, text in enumerate(texts)]


def _new_tokens(run: Run) -> int:
    """Returns the number of tokens to generate: half of what the network takes beyond a prompt, since a text and its
    continuation may be tokenized differently together."""
    return max(1, min(NEW_TOKENS, (run.model.max_length - PROMPT) // 2)) if run.model.max_length else NEW_TOKENS


class Renderer(NamedTuple):
    """How the report shows a capability."""

    # run -> options of its predictions for sample texts; {} for the capability's own
    options: Callable[[Run], dict[str, Any]] = lambda run: {}
    # (text, prediction before, prediction now, tokenizer=) -> [Sample]; None prints them
    samples: Callable[..., list[Sample]] | None = None
    # {macro of templates/predictions.html.j2: (data, runs, batch, notes) -> its content}
    held_out: Mapping[str, Callable[..., Any]] = {}


RENDERERS = {
    "fill_mask": Renderer(lambda run: {"k": 5}, _masks, {"masked_tokens": _masked_tokens}),
    "generate_text": Renderer(
        lambda run: {"tokens": _new_tokens(run)}, _sample("continuation", lambda text, texts, tokenizer: texts[0]),
        {"continued": _continued, "next_tokens": _next_tokens}),
    "detect_replaced": Renderer(
        samples=_sample("shaded", lambda text, tokens, tokenizer: replaced_tokens.shade(text, tokens)),
        held_out={"replaced": lambda data, runs, batch, notes: replaced_tokens.held_out(runs, batch)}),
}


# Tokens and texts


def _candidates(ids: np.ndarray, probabilities: np.ndarray, tokenizer: Tokenizer) -> list[tuple[str, float]]:
    """Returns (token, probability), the most probable first."""
    return [(tokenizer.id_to_token(int(token)), float(p)) for token, p in zip(ids, probabilities, strict=True)]


def _beginnings(data: RunData, batch: Mapping[str, np.ndarray], size: int, more: int = 0) -> dict[str, str]:
    """Returns {text of the first `size` tokens: text of the next `more` tokens} of some examples. With `more`, examples
    that end at `size` tokens are left out."""
    tokenizer, beginnings = data.network.tokenizer, {}
    special = list(tokenizer.vocabulary.specials.values())
    for i in range(0, len(batch["tokens"]), EXAMPLES // CONTINUED):
        ids = batch["tokens"][i][batch["segment_ids"][i] == 1]
        ids = ids[~np.isin(ids, special)]
        text = tokenizer.decode(ids[:size].tolist())
        if text.strip() and (len(ids) > size or not more):
            whole = tokenizer.decode(ids[: size + more].tolist())
            beginnings[text] = whole[: -len(text)] if tokenizer.backward else whole[len(text):]
    return beginnings


def _context(batch: Mapping[str, np.ndarray], i: int, t: int, tokenizer: Tokenizer) -> tuple[str, str]:
    """Returns the text on both sides of position `t` of example `i`, within its packed segment."""
    tokens = batch["tokens"][i]
    segment = replaced_tokens.text_positions(
        tokens, batch["segment_ids"][i], t, np.arange(len(tokens)) == t, tokenizer)
    first, last = max(segment[0], t - CONTEXT), min(segment[-1], t + CONTEXT)
    left, right = (tokenizer.decode(ids.tolist()) for ids in (tokens[first:t], tokens[t + 1 : last + 1]))
    return ("… " if first > segment[0] else "") + left, right + (" …" if last < segment[-1] else "")
