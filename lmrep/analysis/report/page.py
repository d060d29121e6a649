"""Renders the page of runs, and the page of a plan. The functions give the data of sections; templates escape all texts
of a run."""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata, resources
from typing import Any

import jinja2
from markupsafe import Markup

from lmrep.analysis import heads, probes
from lmrep.analysis.report import (
    compute,
    dynamics,
    metrics,
    minimal_pairs,
    prose,
    recipes,
    run_data,
    tables,
)
from lmrep.analysis.report.run_data import RunData
from lmrep.config.record import flatten_config
from lmrep.core.errors import UserError
from lmrep.core.messages import byte_size
from lmrep.core.sharding import describe_sizes
from lmrep.experiment import small_networks
from lmrep.metrics import is_token_loss, verdict
from lmrep.planning import accelerators
from lmrep.planning import table as plans

MAX_VALIDATIONS = 40  # lines of the table of validation metrics
MAX_ITEMS = 40  # of a list that is the value of a field


@cache
def environment() -> jinja2.Environment:
    """Returns the Jinja environment of templates/, which escapes all texts."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals |= {"prose": prose, "heads": heads, "probes": probes, "plans": plans,
                            "css": text_of("page.css")}
    environment.filters |= {"percent": prose.percent, "byte_size": byte_size}
    return environment


def text_of(name: str) -> str:
    """Reads a text file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf8")


def render_plan(record: Mapping[str, Any]) -> str:
    """Returns the HTML of a page about one plan, made by `lmrep.planning.table.record`."""
    return environment().get_template("plan_page.html.j2").render(plan=record, name=record["config"].get("name", ""))


def render(runs: Sequence[RunData]) -> str:
    """Returns the HTML of the page."""
    labelled, over_steps = [run for run in runs if run.results is not None], dynamics.charts(runs)
    labels = [run.label for run in runs]
    groups = {run.label: labels.index(group[0].label) for group in metrics.group_by_seed(runs) for run in group}
    return environment().get_template("page.html.j2").render(
        runs=runs, labels=labels, groups=groups,
        groups_of_seeds=len({*groups.values()}) < len(runs), several=len(runs) > 1, merged=merged,
        labelled=labelled, all_labelled=len(labelled) == len(runs), baselines=" or ".join(dict.fromkeys(
            judgement.against for run in runs for judgement in metrics.judged(run).values()
            if judgement.metric.baseline)),
        page={function.__name__: function for function in (
            tiles, comparison, validations, headings, fields, differing)},
        tables=tables, recipes=recipes, chosen_numbers=small_networks.describe,
        objectives_change=any(len({repr(stage.objective) for stage in run.stages}) > 1 for run in runs),
        flops_known=any(run.flops_at(0) is not None for run in runs),
        comparison=_comparison(runs), differences=_differences(runs), charts=metrics.charts(runs),
        attention=[(f"{run.label}: " if len(runs) > 1 else "") + attention["title"]
                   for run in runs for attention in run.predictions.attention],
        samples=_samples(runs), pairs=minimal_pairs.tables(runs), speed=tables.by_run([_speed(run) for run in runs]),
        dynamics=over_steps, logarithmic=dynamics.logarithmic(over_steps), probe_tables=dynamics.tables,
        compute=compute.rows(runs), compute_charts=compute.charts(runs),
        script=text_of("page.js"), version=metadata.version("lmrep"),
        written=time.strftime("%Y-%m-%d %H:%M %Z"), figures={
            "runs": [{"label": run.label, "group": groups[run.label],
                      **run_data.curves(run, max(60, 1800 // len(runs)))} for run in runs],
            "attention": [attention for run in runs for attention in run.predictions.attention]})


def merged(runs: Sequence[RunData], section: Callable[[RunData], str]) -> list[tuple[str, str]]:
    """Renders the macro `section` for each run. Returns (labels of runs, text); runs of equal texts share one."""
    groups: dict[str, list[str]] = {}
    for run in runs:
        groups.setdefault(section(run), []).append(run.label)
    return [(", ".join(labels), text) for text, labels in groups.items()]


def _optional(value: float | None, show: str | Callable[[float], str]) -> str:
    """Formats a number by a format specification or a function; "" where it is not known."""
    if value is None:
        return ""
    return show(value) if callable(show) else format(value, show)


# Summary and comparison


def tiles(run: RunData) -> list[tuple[str, str, str]]:
    """Returns (name, value, note) of the most important figures."""
    figures, judged = [], metrics.judged(run)
    for name, metric in metrics.headlines(run).items():
        base = judged[name].trivial if name in judged else None
        show = prose.perplexity if is_token_loss(metric) else metric.format
        title = metric.title.removesuffix(" loss") + " perplexity" if is_token_loss(metric) else metric.title
        interval = metrics.interval(run, name)
        notes = [*([f"95%: {prose.between(interval, metric)}"] if interval else []),
                 *([f"baseline: {_optional(base, show)}"] if base is not None else [])]
        figures.append((title, _optional(run.last("validation", name), show), ", ".join(notes)))
    losses = [_optional(run.last(split, "loss"), ".3f") for split in ("validation", "train")]
    figures.append(("Validation loss", losses[0], f"training: {losses[1]}" if losses[1] else ""))
    if network := run.network:
        figures.append(("Parameters", prose.number(network.parameters), "; ".join(
            [f"encoder: {prose.number(network.encoder)}", *network.frozen])))
    if not run.source:
        figures.append(("Steps", f"{run.step:,}", f"of {run.experiment.steps:,} planned"))
    figures.append(("Time", _optional(run_data.seconds(run), prose.duration), prose.device_hours(run)))
    return [figure for figure in figures if figure[1]]


def comparison(run: RunData) -> list[list[str]]:
    """Returns the table of what a run is compared with, its head first; [] where nothing was validated."""
    return verdict.table(metrics.declared(run), metrics.compared(run), metrics.intervals(run))


def _comparison(runs: Sequence[RunData]) -> dict[str, Any] | None:
    """Returns the table that compares groups of runs which differ only in their seed; None for a single run."""
    if len(runs) < 2:
        return None
    groups = metrics.group_by_seed(runs)
    columns = metrics.comparison(groups)
    figures: dict[str, Callable[[RunData], str]] = {
        "Steps": lambda run: f"{run.step:,}", "Tokens": lambda run: _optional(run.tokens, prose.number),
        "Operations": lambda run: _optional(run.flops_at(run.step), prose.number),
        "Parameters": lambda run: _optional(run.network and run.network.parameters, prose.number),
        "Time": lambda run: _optional(run_data.seconds(run), prose.duration)}
    for name, show in figures.items():
        cells = [metrics.Cell(", ".join(dict.fromkeys(show(run) for run in group))) for group in groups]
        if any(cell.text for cell in cells):
            columns[name] = cells
    rows = [(", ".join(run.label for run in group), [column[i] for column in columns.values()])
            for i, group in enumerate(groups)]
    return {"columns": list(columns), "rows": rows, "settings": metrics.differing_settings(groups),
            "seeds": max(map(len, groups))}


def _differences(runs: Sequence[RunData]) -> dict[str, list] | None:
    """Returns the config fields that differ between runs: the fields that all configs have, and the others."""
    if len(runs) < 2:
        return None
    configs = [flatten_config(run.experiment) for run in runs]
    names = [name for name in dict.fromkeys(name for config in configs for name in config)
             if name != "name" and len({json.dumps(config.get(name, "none")) for config in configs}) > 1]
    rows = {name: (name, *(_code(config[name]) if name in config else "" for config in configs)) for name in names}
    shared = [name for name in names if all(name in config for config in configs)]
    return {"shared": [rows[name] for name in shared], "some": [rows[name] for name in names if name not in shared]}


# Curves and predictions


def validations(run: RunData) -> list[list[str]]:
    """Returns a table of validation metrics, its head first; [] where nothing was measured."""
    names = [name for name in dict.fromkeys(n for line in run.validation for n in line)
             if name not in ("step", "split")]
    size = max(1, len(run.validation) // MAX_VALIDATIONS)
    lines = [*run.validation[::-1][::size]][::-1]
    return [["step", *names], *([f"{line['step']:,}", *(
        _optional(line.get(name), ".4f") if isinstance(line.get(name), int | float) else "" for name in names)]
        for line in lines)] if lines else []


def _samples(runs: Sequence[RunData]) -> list[tuple[str, tuple, list]]:
    """Returns (view, prompt, [(heading, prediction)]) for each prompt, with the predictions of all runs."""
    by_prompt: dict[tuple, list] = {}
    for run in runs:
        for sample in run.predictions.samples:
            by_prompt.setdefault((sample.view, sample.prompt), []).extend(
                (heading, value) for heading, value in zip(
                    headings(run, len(runs) > 1), (sample.before, sample.now), strict=True) if value is not None)
    return [(view, prompt, cells) for (view, prompt), cells in by_prompt.items()]


def headings(run: RunData, several: bool = False) -> tuple[str, str]:
    """Returns the headings of predictions before training and now, with the run's label if there are several runs."""
    name, step = f"{run.label}, " if several else "", run.predictions.step
    return f"{name}before training", name + (f"step {step:,}" if step is not None else "now")


# Config, speed


def fields(run: RunData) -> list[tuple[str, str, str]]:
    """Returns (name, value, help) of all fields of a run's config."""
    meaning = recipes.meanings(run.experiment)
    return [(name, _code(value), meaning.get(name, "")) for name, value in flatten_config(run.experiment).items()]


def differing(closest: recipes.Comparison) -> list[tuple[str, str, str, str]]:
    """Returns (name, the run's value, the recipe's value, help) of the fields that differ from a published recipe."""
    return [(name, _code(value, "mark"), _code(published), help) for name, value, published, help in closest.differing]


def _code(value: Any, mark: str = "") -> str:
    """Formats a config value as a table cell."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        shown = json.dumps(value[:MAX_ITEMS], ensure_ascii=False).removesuffix("]")
        text = f"{shown}, ...] ({len(value):,} in all)"
    return Markup('<code class="{}">{}</code>').format(mark, text)


def _speed(run: RunData) -> Mapping[str, str]:
    """Returns {name: figure} of the speed, medians over the lines of timing.jsonl, and the memory of a run."""
    def logged(name: str) -> list[float]:
        return [line[name] for line in run.timing if name in line]

    def shown(numbers: Sequence[float], show: Any, of: Callable[..., float] = statistics.median) -> str:
        return _optional(of(numbers) if numbers else None, show)

    devices, network = run.devices, run.network
    utilization = "the peak of this device is not known" if devices and (network is None or network.flops) else ""
    rates = [line["steps_per_second"] * (run.flops_at(line["step"]) - run.flops_at(line["step"] - 1))
             for line in run.timing if "steps_per_second" in line] if network and network.flops else []
    peak = accelerators.known(devices["kind"]).flops if devices else None
    if peak and any(rates):
        peak *= devices["count"]
        utilization = f"{statistics.median(rates) / peak:.1%} of {prose.number(peak)} FLOP/s in bfloat16"
    weights = network and 4 * network.parameters
    return {
        "devices": f"{devices['count']} × {devices['kind']}" if devices else "not recorded",
        "mesh": _mesh(run),
        "precision": run.experiment.execution.dtype,
        "tokens per second": shown(logged("tokens_per_second"), ",.0f"),
        "steps per second": shown(logged("steps_per_second"), ",.3g"),
        "FLOP per step": _optional(network.flops[run.stages.index(run.stage)] if network and network.flops else None,
                                   prose.number),
        "FLOP per second": shown(rates, prose.number),
        "utilization": utilization,
        "time, device-hours": ", ".join(
            filter(None, (_optional(run_data.seconds(run), prose.duration), prose.device_hours(run)))),
        "memory: parameters": _optional(weights, byte_size),
        "memory: gradients": _optional(weights, byte_size),
        "memory: optimizer state": _optional(network and network.optimizer_bytes, byte_size),
        "memory: peak of a device": shown(logged("device_peak_bytes"), byte_size, max),
        "memory: peak of the process": shown(logged("host_peak_bytes"), byte_size, max),
    }


def _mesh(run: RunData) -> str:
    try:
        return describe_sizes(run.experiment.mesh.sizes(run.devices["count"])).replace(" x ", " × ")
    except (UserError, TypeError):  # the mesh does not fit the devices, or these are not recorded
        return ""
