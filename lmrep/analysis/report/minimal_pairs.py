"""Tables of the accuracies on minimal pairs that `lmrep evaluate --pairs` has stored in the workdirs."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from lmrep.analysis.report.run_data import RunData
from lmrep.inference.pairs import notes


def tables(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Returns a table for each set of pairs, with the newest results of each run. Damaged results are left out.

    It has the `title`, the name of the set; the `head`, "" and one or two headings for each result; rows of cells: the
    `means`, of all and of each phenomenon, and the `paradigms`; and `notes`, caveats as sentences."""
    sets: dict[tuple, list[tuple[str, Mapping[str, Any]]]] = {}
    for run in runs:
        newest = {(result.get("pairs"), result.get("examples"), result.get("score")): result
                  for result in run.evaluations if _is_intact(result)}
        for result in newest.values():
            label = f"{run.label}, {result['score']}" if len(runs) > 1 else result["score"]
            contents = tuple((name, entry["pairs"]) for name, entry in result["paradigms"].items())
            sets.setdefault((PurePath(result["pairs"]).name, contents), []).append(
                (f"{label}, step {result['step']:,}", result))
    return [_table(name, results) for (name, _), results in sets.items()]


def _is_intact(result: Mapping[str, Any]) -> bool:
    """Returns whether a line of eval.jsonl is a complete result on minimal pairs."""
    def has_accuracies(entry: Any) -> bool:
        names = ("accuracy", "low", "high", "per_token_accuracy", "per_token_low", "per_token_high", "pairs", "ties",
                 "identical", "disagreeing")
        return isinstance(entry, dict) and all(isinstance(entry.get(name), int | float) for name in names)

    groups = [result.get(name) for name in ("phenomena", "paradigms")]
    return (all(isinstance(result.get(name), str) for name in ("pairs", "score", "summary"))
            and isinstance(result.get("examples"), int | None) and has_accuracies(result.get("metrics"))
            and all(isinstance(group, dict) and all(map(has_accuracies, group.values())) for group in groups))


def _table(name: str, results: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    columns = [(heading, result, prefix) for heading, result in results
               for prefix in ("", "per_token_")[: 1 + (result["metrics"]["disagreeing"] > 0)]]

    def cells(title: str, entries: Sequence[Mapping[str, Any]]) -> list[str]:
        return [title, *(f"{entry[f'{prefix}accuracy']:.1%} ({100 * entry[f'{prefix}low']:.1f} to "
                         f"{100 * entry[f'{prefix}high']:.1f})"
                         for entry, (_, _, prefix) in zip(entries, columns, strict=True))]

    def rows(group: str) -> list[list[str]]:
        return [cells(title, [result[group].get(title) for _, result, _ in columns])
                for title in columns[0][1][group] if all(title in result[group] for _, result, _ in columns)]

    first = results[0][1]
    mean = cells(f"mean over {len(first['paradigms'])} paradigms", [result["metrics"] for _, result, _ in columns])
    sentences = [f"{heading}: {' '.join(notes(result['metrics'] | {'summary': result['summary']}))}"
                 for heading, result in results]
    return {"title": f"{name}, {first['metrics']['pairs']:,} pairs",
            "head": ["", *(heading + (", mean per token" if prefix else "") for heading, _, prefix in columns)],
            "means": [mean, *rows("phenomena")], "paradigms": rows("paradigms"), "notes": sentences}
