"""The page: plain data of each section, rendered by templates/page.html.j2. All texts of a run are escaped there."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from lmrep.analysis import probes
from lmrep.analysis.report import (
    assets,
    compute,
    heads_page,
    metrics,
    minimal_pairs,
    plan_page,
    prose,
    run_data,
    task_page,
)
from lmrep.analysis.report.predictions import Predictions
from lmrep.analysis.report.recipes import compare, meanings
from lmrep.analysis.report.run_data import RunData
from lmrep.config.record import flatten_config
from lmrep.core.errors import UserError
from lmrep.core.messages import byte_size
from lmrep.core.sharding import describe_sizes
from lmrep.metrics import is_token_loss

Runs = Sequence[tuple[RunData, Predictions]]

MAX_VALIDATIONS = 40  # lines of the table of validation metrics
MAX_ITEMS = 40  # of a list that is the value of a field


class Code(NamedTuple):
    """A table cell that shows a config value."""

    code: str
    mark: str = ""


def render(runs: Runs) -> str:
    """The HTML of the page."""
    run_list = [run for run, _ in runs]
    return assets.environment().get_template("page.html.j2").render(
        title=", ".join(run.label for run in run_list), labels=[run.label for run in run_list],
        several=len(runs) > 1, summaries=_per_run(runs, _summary), comparison=_comparison(run_list),
        differences=_differences(run_list), charts=metrics.charts(run_list),
        objectives_change=any(len({repr(stage.objective) for stage in run.stages}) > 1 for run in run_list),
        validations=_per_run(runs, _validations),
        tasks=_per_run([pair for pair in runs if pair[0].experiment.labelled], lambda run, _: task_page.results(run)),
        all_tasks=all(run.experiment.labelled for run in run_list), task_baselines=task_page.baselines(run_list),
        samples=_samples(runs), held_out=[_held_out(*run) for run in runs],
        pairs=minimal_pairs.tables(run_list),
        probes=[(run.label, [(probes.describe(each), *probes.table(each)) for each in run.probes]) for run in run_list
                if run.probes],
        heads=[(run.label, heads_page.section(run.heads)) for run in run_list if run.heads],
        plans=[(run.label, plan_page.section(run.plan)) for run in run_list if run.plan],
        attention=[(f"{run.label}: " if len(runs) > 1 else "") + one.title
                   for run, predictions in runs for one in predictions.attention],
        configs=_per_run(runs, _config), data=_per_run(runs, _data), speed=_speed(run_list),
        compute=compute.rows(run_list), compute_charts=compute.charts(run_list),
        flops_known=any(run.flops_at(0) is not None for run in run_list),
        reproduction=_per_run(runs, _reproduction), css=assets.read("page.css"), script=assets.read("page.js"),
        version=metadata.version("lmrep"), written=time.strftime("%Y-%m-%d %H:%M %Z"), figures={
            "runs": [{"label": run.label, **run_data.curves(run, max(60, 1800 // len(runs)))} for run in run_list],
            "attention": [{"title": one.title, "maps": [each._asdict() for each in one.maps]}
                          for _, predictions in runs for one in predictions.attention]})


def _per_run(runs: Runs, section: Callable[[RunData, Predictions], Any]) -> list[tuple[str, Any]]:
    """(labels of runs, what `section` gives of them) for each run; equal ones once."""
    sections: list[tuple[str, Any]] = []
    for run, predictions in runs:
        content, label = section(run, predictions), run.label
        for i, (labels, other) in enumerate(sections):
            if other == content:
                sections[i] = (f"{labels}, {label}", content)
                break
        else:
            sections.append((label, content))
    return sections


def _optional(value: float | None, show: str | Callable[[float], str]) -> str:
    """A number by a format or a function; "" where it is not known."""
    if value is None:
        return ""
    return show(value) if callable(show) else format(value, show)


# Summary and comparison


def _summary(run: RunData, predictions: Predictions) -> dict[str, Any]:
    return {"verdict": prose.verdict(run), "subject": prose.subject(run), "cost": prose.cost(run),
            "tiles": _tiles(run), "notes": [*run.notes, *predictions.notes],
            "next_steps": prose.next_steps(run, predictions)}


def _tiles(run: RunData) -> list[tuple[str, str, str]]:
    """(name, value, note) of the most important figures."""
    tiles = []
    for name, metric in metrics.headlines(run).items():
        base = metrics.baseline(run, metric)
        show = prose.perplexity if is_token_loss(metric) else metric.format
        title = metric.title.removesuffix(" loss") + " perplexity" if is_token_loss(metric) else metric.title
        interval = prose.interval(run, name)
        notes = [*([f"95%: {prose.between(interval, metric)}"] if interval else []),
                 *([f"baseline: {_optional(base, show)}"] if base is not None else [])]
        tiles.append((title, _optional(run.last("validation", name), show), ", ".join(notes)))
    losses = [_optional(run.last(split, "loss"), ".3f") for split in ("validation", "train")]
    tiles += [("Validation loss", losses[0], f"training: {losses[1]}" if losses[1] else "")]
    if network := run.network:
        tiles.append(("Parameters", prose.number(network.parameters), "; ".join(
            [f"encoder: {prose.number(network.encoder)}", *network.frozen])))
    if not run.source:
        tiles.append(("Steps", f"{run.step:,}", f"of {run.experiment.steps:,} planned"))
    tiles.append(("Time", _optional(run_data.seconds(run), prose.duration), prose.device_hours(run)))
    return [tile for tile in tiles if tile[1]]


def _comparison(runs: Sequence[RunData]) -> dict[str, Any] | None:
    """A table of groups of runs, which differ in their seed alone."""
    if len(runs) < 2:
        return None
    groups = metrics.group_by_seed(runs)
    columns = metrics.comparison(groups)
    others: dict[str, Callable[[RunData], str]] = {
        "Steps": lambda f: f"{f.step:,}", "Tokens": lambda f: _optional(f.tokens, prose.number),
        "Operations": lambda f: _optional(f.flops_at(f.step), prose.number),
        "Parameters": lambda f: _optional(f.network and f.network.parameters, prose.number),
        "Time": lambda f: _optional(run_data.seconds(f), prose.duration)}
    for name, show in others.items():
        cells = [metrics.Cell(", ".join(dict.fromkeys(show(run) for run in group.runs))) for group in groups]
        if any(cell.text for cell in cells):
            columns[name] = cells
    rows = [(group.label, [column[i] for column in columns.values()]) for i, group in enumerate(groups)]
    return {"columns": list(columns), "rows": rows, "settings": metrics.differing_settings(groups),
            "seeds": max(len(group.runs) for group in groups)}


def _differences(runs: Sequence[RunData]) -> dict[str, list] | None:
    """Fields of the configs that differ: those that all configs have, and the others."""
    if len(runs) < 2:
        return None
    configs = [flatten_config(run.experiment) for run in runs]
    names = [name for name in dict.fromkeys(name for config in configs for name in config)
             if name != "name" and len({json.dumps(config.get(name, "none")) for config in configs}) > 1]
    rows = {name: (name, *(_code(config[name]) if name in config else "" for config in configs)) for name in names}
    shared = [name for name in names if all(name in config for config in configs)]
    return {"shared": [rows[name] for name in shared], "some": [rows[name] for name in names if name not in shared]}


# Curves and predictions


def _validations(run: RunData, _: Predictions) -> dict[str, list]:
    names = [name for name in dict.fromkeys(n for line in run.validation for n in line)
             if name not in ("step", "split")]
    size = max(1, len(run.validation) // MAX_VALIDATIONS)
    chosen = [*run.validation[::-1][::size]][::-1]
    return {"names": names, "rows": [(f"{line['step']:,}", *(
        _optional(line.get(name), ".4f") if isinstance(line.get(name), int | float) else "" for name in names))
        for line in chosen]}


def _samples(runs: Runs) -> list[tuple[str, tuple, list]]:
    """(view, prompt, [(heading, prediction)]) for each prompt; all runs' predictions for it."""
    by_prompt: dict[tuple, list] = {}
    for run, predictions in runs:
        for sample in predictions.samples:
            cells = by_prompt.setdefault((sample.view, sample.prompt), [])
            cells += [(when, value) for when, value in zip(
                _headings(run, predictions, len(runs) > 1), (sample.before, sample.now), strict=True)
                if value is not None]
    return [(view, prompt, cells) for (view, prompt), cells in by_prompt.items()]


def _held_out(run: RunData, predictions: Predictions) -> dict[str, Any]:
    return {"label": run.label, "views": predictions.held_out, "trained": predictions.step is not None,
            "headings": _headings(run, predictions, False),
            "token_note": run.network.tokenizer.notation if run.network else ""}


def _headings(run: RunData, predictions: Predictions, several: bool) -> tuple[str, str]:
    """Headings of predictions before training and now."""
    name = f"{run.label}, " if several else ""
    return f"{name}before training", name + (f"step {predictions.step:,}" if predictions.step is not None else "now")


# Config, data, speed, reproduction


def _config(run: RunData, _: Predictions) -> dict[str, Any]:
    meaning, closest = meanings(run.experiment), compare(run)
    differing = [(name, _code(ours, "mark"), _code(theirs), help)
                 for name, ours, theirs, help in closest.differing] if closest else []
    return {"closest": closest, "differing": differing,
            "fields": [(name, _code(value), meaning.get(name, ""))
                       for name, value in flatten_config(run.experiment).items()]}


def _code(value: Any, mark: str = "") -> Code:
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        shown = json.dumps(value[:MAX_ITEMS], ensure_ascii=False).removesuffix("]")
        return Code(f"{shown}, ...] ({len(value):,} in all)", mark)
    return Code(value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False), mark)


def _data(run: RunData, _: Predictions) -> dict[str, Any] | None:
    if run.experiment.labelled:
        return {"task": task_page.data(run)}
    if run.prepared is None:
        return None
    statistics, tokenizer = run.prepared.statistics, run.prepared.tokenizer
    counts = tokenizer.vocabulary.counts
    total, order = max(1, int(counts.sum())), (-counts).argsort()[:15]
    return {
        "splits": [(split, *(f"{s[name]:,}" for name in ("documents", "sentences", "characters", "tokens")),
                    f"{s['tokens_per_word']:.2f}", prose.percent(s["unknown_fraction"]))
                   for split, s in statistics.items()],
        "epochs": f"{run.epochs:,.2f}" if run.epochs else "",
        "vocabulary": len(counts), "unused": int((counts == 0).sum()),
        "frequent": ", ".join(f"{tokenizer.id_to_token(int(i))} {counts[i] / total:.1%}" for i in order),
        "stages": [(stage.name, stage.format_name, stage.length, stage.batch_size, stage.steps)
                   for stage in run.stages]}


def _speed(runs: Sequence[RunData]) -> list[tuple[str, ...]]:
    columns = [_speed_of(run) for run in runs]
    return [(name, *(column[name] for column in columns)) for name in columns[0] if any(c[name] for c in columns)]


def _speed_of(run: RunData) -> Mapping[str, str]:
    speed, devices, network = run_data.speed(run), run.devices, run.network
    counted = network is None or network.flops
    utilization = "the peak of this device is not known" if devices and counted else ""
    if speed.flops and speed.peak:
        utilization = f"{speed.flops / speed.peak:.1%} of {prose.number(speed.peak)} FLOP/s in bfloat16"
    weights = network and 4 * network.parameters
    return {
        "devices": f"{devices['count']} × {devices['kind']}" if devices else "not recorded",
        "mesh": _mesh(run),
        "precision": run.experiment.execution.dtype,
        "tokens per second": _optional(speed.tokens, ",.0f"),
        "steps per second": _optional(speed.steps, ",.3g"),
        "FLOP per step": _optional(network.flops[run.stages.index(run.stage)] if network and network.flops else None,
                                   prose.number),
        "FLOP per second": _optional(speed.flops, prose.number),
        "utilization": utilization,
        "time, device-hours": ", ".join(
            filter(None, (_optional(run_data.seconds(run), prose.duration), prose.device_hours(run)))),
        "memory: parameters": _optional(weights, byte_size),
        "memory: gradients": _optional(weights, byte_size),
        "memory: optimizer state": _optional(network and network.optimizer_bytes, byte_size),
        "memory: peak of a device": _optional(speed.memory.get("device_peak_bytes"), byte_size),
        "memory: peak of the process": _optional(speed.memory.get("host_peak_bytes"), byte_size),
    }


def _mesh(run: RunData) -> str:
    try:
        return describe_sizes(run.experiment.mesh.sizes(run.devices["count"])).replace(" x ", " × ")
    except (UserError, TypeError):  # of other devices, or of none on record
        return ""


def _reproduction(run: RunData, _: Predictions) -> dict[str, Any]:
    start = run.starts[-1] if run.starts else {}
    code, versions = start.get("code") or {}, start.get("versions") or {}
    return {"command": prose.command(run), "converted": bool(run.source), "started": bool(run.starts),
            "directory": start.get("directory", "a directory not recorded"), "commit": code.get("commit") or "",
            "uncommitted": bool(code.get("status")), "seed": run.experiment.seed,
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
            "starts": [(one["time"], one.get("command", "")) for one in run.starts]}
