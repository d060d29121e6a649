"""Measures which attention heads a trained run needs (Michel et al., 2019): importance, ablation of each head, one head
a layer alone, and scores while heads are removed in the order of importance."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from lmrep.analysis.head_importance import Gated
from lmrep.config import json_files
from lmrep.config.json_files import Count, Number

FILE = "heads.json"  # of the workdir
PERCENT = 5  # of the heads that a step of pruning removes
Head = tuple[int, int]  # layer and head, from 0


class Point(TypedDict):
    """The score without some heads."""

    removed: Count
    fraction: Number
    score: Number
    heads: list[tuple[Count, Count]]


class HeadsRecord(TypedDict):
    """The content of heads.json, made by `analyse`. Tables have a row for each layer and a value for each head."""

    step: Count
    metric: str
    higher_is_better: bool
    examples: Annotated[dict[str, Count], lambda sizes: "" if len(sizes) == 2 else "two splits"]
    base: Number
    exact: bool
    at_least: Count
    kept: list[list[Count]]
    importance: list[list[Number]]
    ablation: NotRequired[list[list[Number | None]]]
    single: NotRequired[list[list[Number | None]]]
    curve: NotRequired[list[Point]]
    random: NotRequired[list[list[Point]]]


def analyse(
    gated: Gated, ablation: bool = True, single: bool = True, curve: bool = True, exact: bool = False,
    at_least: int = 0, random: int = 0, seed: int = 0,
) -> dict[str, Any]:
    """Measures the heads of a run. Returns the fields of `HeadsRecord`.

    Args:
      ablation: measure the score without each head.
      single: measure the score with each head as the only one of its layer.
      curve: measure scores while ever more heads are removed, 5 % of all at each step.
      exact: compute importance again after each step of pruning, not once from the full network.
      at_least: number of heads that pruning leaves in each layer.
      random: number of curves in random order; they need `curve`.
      seed: of the random orders.
    """
    kept, number = gated.run.model.heads.kept(), gated.run.model.heads.number
    full = gates_without((), kept, number)
    heads, base, scores = [*all_heads(kept)], gated.score(full), gated.importance(full)
    result = {"step": gated.run.step, "metric": gated.metric, "higher_is_better": gated.higher_is_better,
              "examples": gated.sizes, "base": base, "exact": exact, "at_least": at_least, "kept": kept,
              "importance": scores.tolist()}

    def score(removed: Iterable[Head]) -> float:
        return gated.score(gates_without(removed, kept, number))

    def by_head(removed: Callable[[Head], Iterable[Head]]) -> list[list[float | None]]:
        return [[score(removed((layer, head))) if head in layer_heads else None for head in range(number)]
                for layer, layer_heads in enumerate(kept)]

    def points(importance: Callable[[Sequence[Head]], np.ndarray], exact: bool = False) -> list[dict[str, Any]]:
        return [{"removed": len(removed), "fraction": len(removed) / len(heads),
                 "score": score(removed) if removed else base, "heads": list(removed)}
                for removed in removals(importance, kept, at_least, exact)]

    if ablation:
        result["ablation"] = by_head(lambda head: [head])
    if single:
        result["single"] = by_head(lambda head: [other for other in heads if other[0] == head[0] and other != head])
    if curve:
        result["curve"] = points(lambda removed: gated.importance(gates_without(removed, kept, number))
                                 if exact and removed else scores, exact)
        orders = [np.random.default_rng(seed + i).permutation(full.size).reshape(full.shape) for i in range(random)]
        result["random"] = [points(lambda _, order=order: order) for order in orders]
    return result


def all_heads(kept: Sequence[Sequence[int]]) -> Iterable[Head]:
    """Iterates over the heads of a network, layer by layer. `kept` has the heads of each layer."""
    return ((layer, head) for layer, heads in enumerate(kept) for head in heads)


def gates_without(removed: Iterable[Head], kept: Sequence[Sequence[int]], heads: int) -> np.ndarray:
    """Returns gates, float32[l, heads]: 1 for the heads in `kept` that are not removed, 0 for others."""
    gates = np.zeros((len(kept), heads), np.float32)
    for head in all_heads(kept):
        gates[head] = 1
    for head in removed:
        gates[head] = 0
    return gates


def lowest(
    importance: np.ndarray, kept: Sequence[Sequence[int]], count: int, at_least: int = 0, removed: Sequence[Head] = ()
) -> list[Head]:
    """Returns the `count` least important heads, or fewer where every layer is down to `at_least` heads.

    Args:
      importance: float[l, h].
      kept: the heads of each layer.
      count: number of heads to return, those in `removed` included.
      at_least: a layer with fewer heads keeps all.
      removed: heads that were removed before; they come first.
    """
    selected, remaining = list(removed), [len(heads) for heads in kept]
    for layer, _ in selected:
        remaining[layer] -= 1
    for head in sorted(set(all_heads(kept)) - set(selected), key=lambda head: (importance[head], head)):
        if len(selected) >= count:
            break
        if remaining[head[0]] > at_least:
            selected.append(head)
            remaining[head[0]] -= 1
    return selected


def removals(
    importance: Callable[[Sequence[Head]], np.ndarray], kept: Sequence[Sequence[int]], at_least: int = 0,
    exact: bool = False,
) -> list[list[Head]]:
    """Returns the heads that are removed at each step of pruning: none at first, then floor(heads * percent / 100).

    Args:
      importance: removed heads -> float[l, h].
      kept, at_least: as in `lowest`.
      exact: keep the heads that the step before removed, and add to them.
    """
    total = sum(map(len, kept))
    steps: list[list[Head]] = [[]]
    for percent in range(PERCENT, 101, PERCENT):
        before = steps[-1] if exact else []
        removed = lowest(importance(steps[-1]), kept, total * percent // 100, at_least, before)
        if len(removed) > len(steps[-1]):
            steps.append(removed)
    return steps


# Files and tables



def read(path: Path) -> HeadsRecord | None:
    """Reads heads.json. Returns None where there is no file. Raises UserError if it is damaged."""
    return json_files.read(Annotated[HeadsRecord, _mismatch], path, "run lmrep heads again")


def _mismatch(result: HeadsRecord) -> str:
    """Says what was expected where the tables of a record do not match each other; "" where they do."""
    layers, width = len(result["importance"]), len(result["importance"][0]) if result["importance"] else 0
    if not width or len(result["kept"]) != layers or any(
            head >= width for heads in result["kept"] for head in heads):
        return "importance and kept heads of the same layers"
    for name in ("importance", "ablation", "single"):
        table = result.get(name, result["importance"])
        if len(table) != layers or any(len(row) != width for row in table):
            return f"a value for each of {width} heads of {layers} layers as {name!r}"
    if any(all(value is None for value in row) for row in result.get("single", ())):
        return "a value in every layer of 'single'"
    return "" if "random" in result or "curve" not in result else "'random' beside 'curve'"


def describe(result: Mapping[str, Any]) -> str:
    """Describes in a sentence what was measured."""
    (train, trained_on), (split, held_out) = result["examples"].items()
    return (f"Importance on {trained_on:,} examples of {train}; {result['metric']} on {held_out:,} of {split}, "
            f"{result['base']:.4f} with all {sum(map(len, result['kept']))} heads, at step {result['step']:,}")


Table = tuple[str, list[str], list[list[str]]]  # title, head, rows


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Formats the results as tables, in the order in which they are printed."""
    columns = ["layer", *(f"head {head}" for head in range(len(result["importance"][0])))]

    def by_head(title: str, values: Sequence[Sequence[float | None]], form: str, base: float = 0.0) -> Table:
        return title, columns, [[str(layer), *("" if value is None else format(value - base, form) for value in row)]
                                for layer, row in enumerate(values)]

    metric, base = result["metric"], result["base"]
    known = [[value if head in heads else None for head, value in enumerate(values)]
             for heads, values in zip(result["kept"], result["importance"], strict=True)]
    formatted = [by_head("Importance", known, ".4f")]
    if "ablation" in result:
        formatted.append(by_head(f"Without one head: change of {metric}", result["ablation"], "+.4f", base))
    if "single" in result:
        rows = []
        for layer, row in enumerate(result["single"]):
            values = {head: value for head, value in enumerate(row) if value is not None}
            best = (max if result["higher_is_better"] else min)(values, key=values.get)
            rows.append([str(layer), str(best), f"{values[best] - base:+.4f}",
                         f"{sum(values.values()) / len(values) - base:+.4f}"])
        title = f"One head of a layer alone: change of {metric} (the best head is chosen on the same examples)"
        formatted.append((title, ["layer", "best head", "with it alone", "mean of its heads"], rows))
    if "curve" in result:
        formatted.append(_curves(result))
    return formatted


def _curves(result: Mapping[str, Any]) -> Table:
    order = "least important first" + (", computed again at each step" if result["exact"] else "")
    random: dict[int, list[float]] = {}
    for point in chain.from_iterable(result["random"]):
        random.setdefault(point["removed"], []).append(point["score"])
    rows = [[str(point["removed"]), f"{point['fraction']:.0%}", f"{point['score']:.4f}",
             *([f"{np.mean(random[point['removed']]):.4f}" if point["removed"] in random else ""] if random else [])]
            for point in result["curve"]]
    return (f"Removed heads: {result['metric']}", ["removed", "of all", order, *(
        [f"random order, mean of {len(result['random'])}"] if random else [])], rows)
