"""Draws what each position reads and predicts, how distances are grouped, and which layers are trained when, from
networks, configs and batches that the objectives prepare: the files of docs/masks.

    python docs/draw_masks.py

The networks are tiny and untrained: only the inputs that an objective gives them are drawn. Pictures have the colour of
the text around them.
"""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.config import loading
from lmrep.core import params as P
from lmrep.core.vocabulary import Vocabulary
from lmrep.experiment import config as experiments
from lmrep.experiment import unfreezing
from lmrep.layers.disentangled_attention import Buckets
from lmrep.models import MODELS
from lmrep.models.base import Encoded, Inputs, Model
from lmrep.objectives import OBJECTIVES, Objective, sequence_autoencoder
from lmrep.objectives.base import Batch, Carry
from lmrep.optimizers import rate_factors
from lmrep.training.step import prepare_keys

FOLDER = Path(__file__).parent / "masks"
TEXT = ("the", "poet", "wrote", "un", "##publish", "##ed", "lines", "about", "the", "grey", "sea", "and", "then", "she",
        "slept", "well")
SHORT = TEXT[:9] + TEXT[10:11]
PLAIN = TEXT[:3] + TEXT[7:9] + TEXT[10:11]  # words that are one token each
SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "bos": "<S>",
            "eos": "</S>"}
SENTINELS = ("<X>", "<Y>", "<Z>")
WORDS = [*SPECIALS.values(), *SENTINELS, *dict.fromkeys(TEXT), "one", "two", "old", "sun", "sings"]
IDS = {word: i for i, word in enumerate(WORDS)}
VOCABULARY = Vocabulary(
    len(WORDS), {role: IDS[word] for role, word in SPECIALS.items()},
    np.array([not word.startswith("##") for word in WORDS]),
    np.array([{"the": 40, "and": 20, "about": 8, "she": 8}.get(word, 2) for word in WORDS]),
    sentinels=tuple(IDS[word] for word in SENTINELS))
TINY = {"vocab": len(WORDS), "layers": 1, "width": 8, "heads": 1, "mlp": 8}
NETWORKS = {"transformer": TINY | {"max_length": 32}, "transformer_xl": TINY, "encoder_decoder": TINY,
            "lstm": {"vocab": len(WORDS), "layers": 1, "width": 8}, "awd_lstm": {"layers": 3},
            "seq2seq_lstm": {"vocab": len(WORDS), "layers": 1, "width": 8, "embedding": 8, "stacks": "encoder"},
            "bilstm": {"vocab": len(WORDS), "layers": 1, "width": 8, "cell": 8, "reads": "words"}}


class Panel(NamedTuple):
    """A picture: rows of what is read, or of rules, columns of tokens, and a value for each pair."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Any  # of rows x columns: True or False, or a letter; "" for nothing
    targets: Sequence[str] = ()  # of rows, "" for none
    changed: Sequence[bool] = ()  # of rows, whether what is read is not what the text has


# What objectives make


def network(name: str, **fields: Any) -> Model:
    """Builds a tiny network."""
    return MODELS[name].build(MODELS[name].config(**NETWORKS[name] | fields))


def prepared(objective: Objective, batch: Batch, seed: int = 0, step: int = 0) -> Batch:
    """Prepares a batch with the keys of a training step."""
    made = jax.jit(objective.prepare)(prepare_keys(objective, batch, seed, step), batch)
    return jax.tree.map(np.asarray, made)


def batch_of(*texts: Sequence[str], segments: Sequence[Sequence[int]] | None = None) -> Batch:
    """Makes a batch of texts of one length."""
    tokens = np.array([[IDS[word] for word in text] for text in texts], np.int32)
    ids = np.ones_like(tokens) if segments is None else np.array(segments, np.int32)
    return {"tokens": tokens, "segment_ids": ids, "example": np.arange(len(texts), dtype=np.int32)}


def encoded(model: Model, inputs: Inputs) -> Encoded:
    """Runs a network with random parameters."""
    return jax.jit(lambda key: model.encode(P.init(model.specs, key), inputs, attention=True))(jax.random.key(0))


class _Read(Exception):
    """What a network was given to read."""


def build(name: str, model: Model, **fields: Any) -> Objective:
    """Builds an objective with a network that reads and computes nothing."""
    def encode(params: Any, inputs: Inputs, *_: Any, **__: Any) -> None:
        raise _Read(inputs)

    row = OBJECTIVES[name]
    return row.build(row.config(**fields), model._replace(encode=encode), VOCABULARY)


def read(objective: Objective, batch: Batch) -> Inputs:
    """Returns the inputs that an objective gives its network in training."""
    try:
        objective.loss(P.abstract(objective.specs), batch, None, Carry())
    except _Read as given:
        return given.args[0]
    raise AssertionError("the loss reads no network")


def depends(model: Model, run: Callable[[Any, Any], Any], tokens: Any) -> Any:
    """Returns which outputs of `run(params, tokens i32[t])` [n, d] change with which token: bool[n, t]."""
    assert IDS["well"] not in tokens  # which replaces each of them
    run = partial(jax.jit(run), jax.jit(partial(P.init, model.specs))(jax.random.key(0)))
    before, changed = np.asarray(run(tokens)), np.where(np.eye(len(tokens), dtype=bool), IDS["well"], tokens)
    return np.stack([(np.asarray(run(other)) != before).any(-1) for other in changed], 1)


def words(ids: Iterable[int]) -> list[str]:
    """Returns the words of ids."""
    return [WORDS[int(i)] for i in ids]


def targets_at(batch: Batch, length: int, row: int = 0) -> list[str]:
    """Returns what each of `length` positions predicts, where the batch has chosen positions."""
    made = [""] * length
    for at, target, weight in zip(batch["predicted"][row], batch["targets"][row], batch["weights"][row], strict=True):
        if weight > 0:
            made[at] = WORDS[int(target)]
    return made


def next_targets(batch: Batch, row: int = 0) -> list[str]:
    """Returns what each position predicts, where every position may."""
    return [WORDS[int(i)] if weight > 0 else "" for i, weight in zip(
        batch["targets"][row], batch["weights"][row], strict=True)]


def shown(title: str, inputs: Inputs, batch: Batch, targets: Sequence[str], row: int = 0) -> Panel:
    """Makes the panel of a text that attends to itself."""
    tokens, visible = words(inputs.tokens[row]), np.asarray(inputs.attention_mask.to_bool())[row]
    changed = np.asarray(inputs.tokens[row]) != batch["tokens"][row]
    return Panel(title, tokens, tokens, visible, targets, changed)


# The pictures


def masked() -> Panel:
    objective = build("masked", network("transformer"))
    batch = prepared(objective, batch_of(["[CLS]", *SHORT, "[SEP]"]), seed=2)
    return shown("Masked language model", read(objective, batch), batch, targets_at(batch, 12))


def causal() -> Panel:
    objective = build("causal", network("transformer"))
    batch = prepared(objective, batch_of(SHORT))
    return shown("Causal language model", read(objective, batch), batch, next_targets(batch))


def packed() -> Panel:
    objective = build("causal", network("transformer"))
    batch = prepared(objective, batch_of(SHORT, segments=[[1] * 6 + [2] * 4]))
    return shown("Two documents in a sequence", read(objective, batch), batch, next_targets(batch))


def local() -> Panel:
    model = network("transformer", positions="rotary", window=2, layers=2, global_every=2)
    tokens = ["[CLS]", *SHORT, "[SEP]"]
    attention = encoded(model, Inputs(batch_of(tokens)["tokens"])).attention
    return Panel("A local layer, window 2", tokens, tokens, np.asarray(attention)[1, 0, 0] > 0)


def memory() -> Panel:
    model = network("transformer_xl", memory=4)
    carry = model.state.carry(1)
    for text in (TEXT[:4], TEXT[6:10]):
        made = encoded(model, Inputs(batch_of(text)["tokens"], carry=carry))
        carry = made.carry
    batch = prepared(build("causal", network("transformer_xl")), batch_of(TEXT[6:10]))
    return Panel("Second segment, with a memory of 4", TEXT[6:10], TEXT[:4] + TEXT[6:10],
                 np.asarray(made.attention)[0, 0, 0] > 0, next_targets(batch))


def autoencoder() -> Panel:
    text = [*PLAIN[:4], "</S>"]
    objective, model = build("sequence_autoencoder", network("lstm")), network("lstm")
    batch = prepared(objective, batch_of(text))
    twice, writing = sequence_autoencoder.twice(batch, model)
    tokens, targets = words(twice["tokens"][0]), [""] * (2 * len(text) - 1)
    for at, target in zip(np.asarray(writing)[0], text, strict=True):
        targets[at] = target
    return Panel("Sequence autoencoder", tokens, tokens, np.tri(len(tokens)) > 0, targets)


def directions() -> dict[str, Panel]:
    forward, back = batch_of(["<S>", *PLAIN]), batch_of(["</S>", *PLAIN[::-1]])
    for text, mark in ((forward, "<S>"), (back, "</S>")):
        text |= {"following": np.array([IDS[mark]], np.int32), "reset": np.ones(1, np.int32)}
    objective = build("bidirectional", network("bilstm"), negatives=0)
    batch = prepared(objective, forward | {"backward": back})
    given, panels = read(objective, batch), {}
    for name, text, inputs in (("forward", batch, given), ("backward", batch["backward"], given.backward)):
        tokens = words(inputs.tokens[0])
        panels[f"elmo_{name}"] = Panel(f"ELMo, {name}", tokens, tokens, np.tri(len(tokens)) > 0, next_targets(text))
    return panels


def permutation() -> dict[str, Panel]:
    objective = build("permutation", network("transformer_xl", causal=False), k=3.0, reuse=0)
    batch = prepared(objective, batch_of([*SHORT, "[SEP]", "[CLS]"]), seed=1)
    order = read(objective, batch).factorization
    revealed, sees = np.asarray(order.revealed)[0], np.asarray(order.sees)[0]
    visible, tokens, targets = revealed[None] < sees[:, None], words(batch["tokens"][0]), targets_at(batch, 12)
    rank = {at: i for i, at in enumerate(sorted((at for at in range(12) if targets[at]), key=lambda at: sees[at]), 1)}
    chosen = [*rank]
    return {"permutation_content": Panel("Content stream", tokens, tokens, visible | np.eye(12, dtype=bool)),
            "permutation_query": Panel(
                "Query stream, in the order of prediction", [f"{rank[at]}." for at in chosen], tokens, visible[chosen],
                [targets[at] for at in chosen])}


def corruption(variant: str, title: str, seed: int, step: int, **fields: Any) -> dict[str, Panel]:
    objective = build("span_corruption", network("encoder_decoder"), variant=variant, **fields)
    batch = prepared(objective, batch_of(SHORT), seed, step)
    given, panels = read(objective, batch), {}
    real, written = (np.asarray(x.attention_mask.segment_ids)[0] > 0 for x in (given.source, given))
    source, inputs = words(given.source.tokens[0][real]), words(given.tokens[0][written])
    inputs[0] = "start"
    visible = np.asarray(given.source.attention_mask.to_bool())[0][real][:, real]
    panels["encoder"] = Panel(f"{title}: encoder", source, source, visible,
                              changed=[token in SENTINELS for token in source])
    visible = np.asarray(given.attention_mask.to_bool())[0][written][:, written]
    cross = np.ones((len(inputs), len(source)), bool)
    panels["decoder"] = Panel(f"{title}: decoder", inputs, [*source, *inputs], np.concatenate([cross, visible], 1),
                              next_targets(batch)[: len(inputs)])
    return {f"{variant}_{name}": panel for name, panel in panels.items()}


def hybrid() -> dict[str, Panel]:
    objective = build("masked_next_token", network("transformer"), share=0.5)
    batch = prepared(objective, batch_of(*[["[CLS]", *SHORT, "[SEP]"]] * 2), seed=2)
    given = read(objective, batch)
    return {f"hybrid_{name}": shown(title, given, batch, next_targets(batch, row), row) for row, (name, title) in
            enumerate((("masked", "A masked example"), ("causal", "A causal example")))}


def replaced() -> Panel:
    model = network("transformer")
    row = OBJECTIVES["replaced_token"]
    objective = row.build(row.config(generator=1.0, rate=0.25), model, VOCABULARY)
    batch = prepared(objective, batch_of(["[CLS]", *SHORT, "[SEP]"]), seed=4, step=18)
    replace = jax.jit(lambda key: objective.uses.replaced(P.init(objective.specs, key), batch))
    tokens, judged = replace(jax.random.key(1))
    original, shown = words(batch["tokens"][0]), words(np.asarray(tokens)[0])
    labels = [("replaced" if a != b else "original") if real else "" for a, b, real in zip(
        original, shown, np.asarray(judged)[0], strict=True)]
    columns = ["generator reads", "encoder reads"]
    return Panel("Replaced-token detection", original, columns, [*zip(
        words(batch["inputs"][0]), shown, strict=True)], labels)


def stream() -> Panel:
    model, tokens = network("lstm"), batch_of(TEXT[:3] + TEXT[6:11])["tokens"][0]

    def second(params: Any, tokens: Any) -> Any:
        carry = model.encode(params, Inputs(tokens[None, :4]), None).carry
        return model.encode(params, Inputs(tokens[None, 4:], carry=carry), None).hidden[0]

    cells = [[(bool(read) if i > 3 else "s" if read else "") for i, read in enumerate(row)]
             for row in depends(model, second, tokens)]
    return Panel("Second sequence of a stream", words(tokens[4:]), words(tokens), cells)


def both_directions() -> Panel:
    model, tokens = network("bilstm"), batch_of(PLAIN)["tokens"][0]

    def vectors(params: Any, tokens: Any) -> Any:  # the forward ones, and below them the backward ones
        return model.encode(params, Inputs(tokens[None]), None).hidden[0].reshape(len(PLAIN), 2, -1).swapaxes(
            0, 1).reshape(2 * len(PLAIN), -1)

    forward, backward = np.split(depends(model, vectors, tokens), 2)
    cells = np.select([forward & backward, forward, backward], ["+", ">", "<"], "")
    return Panel("Vectors of two language models", PLAIN, PLAIN, cells.tolist())


def context_vectors() -> Panel:
    model, tokens = network("seq2seq_lstm"), batch_of(PLAIN)["tokens"][0]

    def vectors(params: Any, tokens: Any) -> Any:  # of words, and below them the encoder's
        made = model.encode(params, Inputs(tokens[None]), None, layers=True)
        return jax.numpy.concatenate([made.layers[0][0], made.hidden[0]])

    word, context = np.split(depends(model, vectors, tokens), 2)
    cells = np.select([word & context, context], ["+", "z"], "")
    return Panel("Two vectors of each word", PLAIN, PLAIN, cells.tolist())


GERMAN = ("der", "Dichter", "schrieb", "Verse", "</S>")  # which have ids of other words


def translation() -> Panel:
    model, source, n = network("encoder_decoder"), ("the", "poet", "wrote", "lines", "</S>"), len(GERMAN)

    def run(params: Any, tokens: Any) -> Any:
        return model.encode(params, Inputs(tokens[None, n:], source=Inputs(tokens[None, :n])), None).hidden[0]

    reads = depends(model, run, batch_of([*source, "[PAD]", "one", "two", "old", "sun"])["tokens"][0])
    return Panel("Decoder of a translation", ["start", *GERMAN[:-1]], [*source, "start", *GERMAN[:-1]], reads, GERMAN)


def buckets() -> Panel:
    distances = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 31, 40])
    sizes = {f"{number} a side": Buckets(number, 32) for number in (4, 6, 8)}
    return Panel("Buckets of distances up to 31", [*sizes], [str(distance) for distance in distances],
                 [[str(i) for i in size.of(distances) - size.rows // 2] for size in sizes.values()])


def unfrozen() -> Panel:
    experiment = experiments.parse(loading.load(
        Path(__file__).parents[1] / "experiments/tasks/ulmfit.py", "task=imdb,data=aclImdb"))
    network_specs = network("awd_lstm").specs
    groups = {"words": "encoder/embedding", **{f"LSTM {i + 1}": f"encoder/layers/{i}" for i in range(3)},
              "head": "objective"}
    specs = {"encoder": network_specs, "objective": {"classification": {"bias": P.ParamSpec((2,), (None,), P.zeros)}}}
    factors = rate_factors(experiment.optimizer, specs)
    rows, stages = {}, unfreezing.stages(experiment, network_specs)
    for name, start in reversed(groups.items()):
        factor = next(factor for path, factor in factors.items() if path.startswith(start))
        rows[f"{name}, rate x {factor:.2g}"] = [not any(
            pattern.startswith(start) for pattern in stage.optimizer["multipliers"]) for stage in stages]
    return Panel("Gradual unfreezing", [*rows], [f"epoch {i + 1}" for i in range(len(stages))], [*rows.values()])


RULES: dict[str, tuple[str, dict[str, tuple]]] = {  # name: (title, {row: (objective, its fields, seed, step)})
    "epochs": ("Static and dynamic masks", {
        "static, epoch 1": ("masked", {"masking": "static"}, 5, 0),
        "static, epoch 2": ("masked", {"masking": "static"}, 5, 1),
        "dynamic, epoch 1": ("masked", {}, 5, 0), "dynamic, epoch 2": ("masked", {}, 5, 1)}),
    "units": ("Words, n-grams and spans", {
        "whole words": ("masked", {"whole_word": True}, 0, 6), "n-grams": ("masked", {"ngram": 3}, 0, 1),
        "spans": ("span_boundary", {}, 0, 7)}),
    "rare": ("Rare tokens more often", {
        "epoch 1": ("distillation", {}, 0, 0), "epoch 2": ("distillation", {}, 0, 3)})}


def rules(name: str) -> Panel:
    """Which tokens are predicted: M for those that become [MASK], R for random ones, = for those that stay."""
    (title, rows), text, cells = RULES[name], ["[CLS]", *TEXT, "[SEP]"], []
    for objective, fields, seed, step in rows.values():
        batch = prepared(build(objective, network("transformer"), **fields), batch_of(text), seed, step)
        predicted = targets_at(batch, len(text))
        cells.append(["" if not target else "M" if seen == "[MASK]" else "=" if seen == word else "R"
                      for word, seen, target in zip(text, words(batch["inputs"][0]), predicted, strict=True)])
    return Panel(title, [*rows], text, cells)


def panels() -> Mapping[str, Panel]:
    """Returns all pictures by the names of their files."""
    spans = {"rate": 0.3, "mean_span": 2.0}
    return {"masked": masked(), "causal": causal(), "packed": packed(), "local": local(), "memory": memory(),
            "autoencoder": autoencoder(), "stream": stream(), "both_directions": both_directions(),
            "context_vectors": context_vectors(), "translation": translation(), "buckets": buckets(),
            "unfrozen": unfrozen(), **directions(), **permutation(), **hybrid(), "replaced": replaced(),
            **corruption("replace_spans", "Span corruption", 3, 0, **spans), **corruption("prefix", "Prefix LM", 0, 6),
            **{name: rules(name) for name in RULES}}


# Drawing

CELL, LETTER, TOP = 17, 6.7, 24  # pixels: a cell, the width of a letter of the labels, the title
VISIBLE, CHANGED, TARGET = "#3b82d8", "#c08a1e", "#1f9d61"
LETTERS = {"M": CHANGED, "R": "#d64541", "=": "#7b8794", "s": "#7b8794", ">": VISIBLE, "z": VISIBLE, "<": TARGET,
           "+": CHANGED}


def svg(panel: Panel) -> str:
    """Draws a panel."""
    texts = any(len(value) > 1 for row in panel.cells for value in row if isinstance(value, str))
    wide = 8 + LETTER * max(map(len, [*panel.columns, *(c for row in panel.cells for c in row)])) if texts else CELL
    left = 10 + LETTER * max(map(len, panel.rows))
    top = TOP + (20 if texts else 8 + LETTER * max(map(len, panel.columns)))
    width, height = wide * len(panel.columns), CELL * len(panel.rows)
    right = 22 + LETTER * max(map(len, panel.targets), default=0) if any(panel.targets) else 4
    total = max(left + width + right, 8 + 7.2 * len(panel.title)), top + height + 4
    parts = [_text(0, 13, panel.title, 'font-weight="600"')]
    for i, column in enumerate(panel.columns):
        x = left + wide * i
        turned = f'<g transform="translate({_n(x + CELL / 2 + 4)} {_n(top - 5)}) rotate(-90)">{_text(0, 0, column)}</g>'
        parts.append(_text(x + 4, top - 6, column) if texts else turned)
    for i, (row, cells) in enumerate(zip(panel.rows, panel.cells, strict=True)):
        y = top + CELL * i
        changed = bool(len(panel.changed) and panel.changed[i])
        if changed:
            parts.append(_box(left - 6 - LETTER * len(row), y + 1, LETTER * len(row) + 4, CHANGED, 0.35))
        parts.append(_text(left - 4, y + 12, row, 'text-anchor="end"'))
        parts += _cells(cells, row, left, y, wide)
        if len(panel.targets) and panel.targets[i]:
            target, x = panel.targets[i], left + width + 16
            parts += [_text(left + width + 3, y + 12, "→"),
                      _box(x - 2, y + 1, LETTER * len(target) + 4, TARGET, 0.3), _text(x, y + 12, target)]
    lines = "".join(f"M{_n(left + wide * i)} {_n(top)}v{_n(height)}" for i in range(len(panel.columns) + 1)) + "".join(
        f"M{_n(left)} {_n(top + CELL * i)}h{_n(width)}" for i in range(len(panel.rows) + 1))
    parts.append(f'<path d="{lines}" stroke="currentColor" stroke-opacity=".25" fill="none"/>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(total[0])} {_n(total[1])}" '
            f'width="{_n(total[0])}" role="img" aria-label="{html.escape(panel.title)}" font-family="monospace" '
            'font-size="11" fill="currentColor">\n' + "\n".join(parts) + "\n</svg>\n")


def _cells(cells: Sequence[Any], row: str, left: float, y: float, wide: float) -> list[str]:
    """Draws the cells of a row: texts, marked where they are not the row's, and what is visible, as one box where cells
    stand side by side."""
    parts, start = [], None
    for i, cell in enumerate([*cells, False]):
        if isinstance(cell, str):
            if fill := LETTERS.get(cell, CHANGED if len(cell) > 1 and cell != row else ""):
                parts.append(_box(left + wide * i + 0.5, y + 0.5, wide - 1, fill, 0.45, CELL - 1))
            parts += [_text(left + wide * i + 5, y + 12, cell)] if cell else []
        elif cell and start is None:
            start = i
        elif not cell and start is not None:
            parts.append(_box(left + wide * start, y, wide * (i - start), VISIBLE, 0.55, CELL))
            start = None
    return parts


def _box(x: float, y: float, width: float, fill: str, opacity: float, height: float = CELL - 2) -> str:
    return (f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" fill="{fill}" '
            f'fill-opacity="{opacity:g}"/>')


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}"{more and " " + more}>{html.escape(text)}</text>'


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def main() -> None:
    """Writes the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, panel in panels().items():
        (FOLDER / f"{name}.svg").write_text(svg(panel), encoding="utf8")


if __name__ == "__main__":
    main()
