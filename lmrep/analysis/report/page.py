"""The page itself: sections as HTML, the figures as JSON beside them. Every text of a run passes `e` or `embedded`."""

import json
import time
from collections.abc import Mapping
from functools import cache
from importlib import metadata, resources

from lmrep.analysis.report import exhibits, prose
from lmrep.analysis.report import facts as F
from lmrep.analysis.report.answers import Answers
from lmrep.analysis.report.facts import Facts
from lmrep.analysis.report.markup import Runs, code, e, each, embedded, figure, section, share, table
from lmrep.analysis.report.measures import MEASURES, question
from lmrep.analysis.report.recipes import compare, meanings
from lmrep.core.errors import UserError

SECTIONS = {"curves": "Curves", "answers": "Answers", "attention": "Attention", "config": "Config", "data": "Data",
            "speed": "Speed", "repeat": "Repeat"}


def render(runs: Runs) -> str:
    """The whole page."""
    title = ", ".join(facts.label for facts, _ in runs)
    curves = [{"label": facts.label, **F.curves(facts, max(60, 1800 // len(runs)))} for facts, _ in runs]
    attention = [vars(a) for _, answers in runs for a in answers.attention]
    body = [_top(title, runs), exhibits.curves(runs), exhibits.answers(runs), exhibits.attention(runs), _config(runs),
            _data(runs), _speed(runs), _repeat(runs)]
    links = "".join(f'<a href="#{name}">{text}</a>' for name, text in SECTIONS.items())
    return f"""<!DOCTYPE html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{e(title)}: report</title>
<style>{_asset("page.css")}</style>
<script>if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark"</script>
</head>
<body>
<header><div><nav>{links}</nav><label><span>theme</span><select id="theme"><option value="auto">auto</option>\
<option value="light">light</option><option value="dark">dark</option></select></label></div></header>
<main>
<noscript><p class="note">Curves and attention need JavaScript; all else is here.</p></noscript>
{"".join(body)}
<p class="faint">Made by lmrep {e(metadata.version("lmrep"))} on {time.strftime("%Y-%m-%d %H:%M %Z")}.</p>
</main>
<svg id="blank" width="0" height="0" hidden></svg>
<script type="application/json" id="figures">{embedded({"runs": curves, "attention": attention})}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf8")


# The sections


def _top(title: str, runs: Runs) -> str:
    def paragraph(facts: Facts, answers: Answers) -> str:
        mark, text = prose.verdict(facts)
        first, _, rest = text.partition(". ") if ". " in text else (text, "", "")
        notes = "".join(f"<li>{e(note)}</li>" for note in (*facts.notes, *answers.notes))
        lines = "".join(f"<li>{e(advice)}{f'<pre>{e(command)}</pre>' if command else ''}</li>"
                        for advice, command in prose.next_steps(facts, answers))
        folded = f"<details><summary>What to do next</summary><ol class=next>{lines}</ol></details>"
        steps = f"<h3>What to do next</h3><ol class=next>{lines}</ol>" if len(runs) == 1 else folded
        return (f'<p class="lead verdict {mark}">{e(prose.subject(facts))} <b>{e(first.rstrip("."))}.</b> {e(rest)} '
                f"{e(prose.cost(facts))}</p>{_tiles(facts) if len(runs) == 1 else ''}{steps if lines else ''}"
                + (f'<ul class="note">{notes}</ul>' if notes else ""))

    heading = e(title) if len(runs) == 1 else f"{len(runs)} runs"
    several = (_side_by_side(runs) + _differences(runs)) if len(runs) > 1 else ""
    return f"<h1>{heading}</h1>{several}{each(runs, paragraph)}"


def _tiles(facts: Facts) -> str:
    def last(name: str) -> float | None:
        return facts.last("validation", name)

    measure, base = MEASURES.get(facts.stage.objective_name), last("most_frequent_accuracy")
    tiles = [("replaced tokens found", share(last("replaced_accuracy")),
              f"of the others let pass: {share(last('original_accuracy'))}"),
             (f"held-out {measure.guessed}", share(last(measure.right)),
              "" if base is None else f"most frequent word: {share(base)}") if measure else ("", "unknown", ""),
             ("perplexity a token", figure(last("lm_loss"), prose.perplexity)
              if facts.stage.objective_name == "causal" else "unknown",
              f"by frequency alone: {figure(F.by_frequency(facts), prose.perplexity)}"),
             ("pairs told apart", share(last("pair_accuracy")), ""),
             ("held-out loss", figure(last("loss"), ".3f"), f"training: {figure(facts.last('train', 'loss'), '.3f')}"),
             ("parameters", prose.number(facts.network.parameters) if facts.network else "unknown",
              f"encoder: {prose.number(facts.network.encoder)}" if facts.network else ""),
             ("steps", "unknown" if facts.source else f"{facts.step:,}", f"of {facts.experiment.steps:,} planned"),
             ("time", figure(F.seconds(facts), prose.duration), _hours(facts))]
    cells = "".join(f"<div><dt>{e(name)}</dt><dd>{e(value)}<small>{e(more)}</small></dd></div>"
                    for name, value, more in tiles if value != "unknown")
    return f'<dl class="tiles">{cells}</dl>'


def _side_by_side(runs: Runs) -> str:
    several = len({question(facts.stage) for facts, _ in runs}) > 1

    def column(f: Facts) -> Mapping[str, str]:
        def last(name: str) -> float | None:
            return f.last("validation", name)

        measure = MEASURES.get(f.stage.objective_name)
        return {
            "asked": question(f.stage) if several else "unknown",
            "tokens guessed": share(measure and last(measure.right)),
            "nats of a token": figure(measure and last(measure.nats), ".4f"),
            "replaced found": share(last("replaced_accuracy")),
            "others let pass": share(last("original_accuracy")),
            "pairs": share(last("pair_accuracy")),
            "loss": "unknown" if several else figure(last("loss"), ".4f"),
            "steps": f"{f.step:,}",
            "tokens": figure(f.tokens, prose.number),
            "operations": figure(f.flops_at(f.step), prose.number),
            "parameters": figure(f.network and f.network.parameters, prose.number),
            "time": figure(F.seconds(f), prose.duration)}

    columns = [column(facts) for facts, _ in runs]
    names = [name for name in columns[0] if any(c[name] != "unknown" for c in columns)]
    cells = [[f.label, *("" if c[name] == "unknown" else c[name] for name in names)]
             for (f, _), c in zip(runs, columns, strict=True)]
    apart = ('<p class="note">Of held-out text. These runs were asked different questions, so that neither losses nor '
             "shares of tokens guessed say which network is better: masked ones are guessed from both sides, those of "
             "a causal objective from the left, those of replaced_token by its generator.</p>") if several else ""
    return table(("run", *names), cells, "figures") + apart


def _differences(runs: Runs) -> str:
    configs = [F.flat(facts.experiment) for facts, _ in runs]
    names = [name for name in dict.fromkeys(name for c in configs for name in c)
             if name != "name" and len({json.dumps(c.get(name, "none")) for c in configs}) > 1]
    if not names:
        return '<p class="note">Their configs are the same.</p>'
    head = ("field", *(f.label for f, _ in runs))
    rows = {name: (name, *(code(c[name]) if name in c else "" for c in configs)) for name in names}
    some = {name: row for name, row in rows.items() if not all(name in c for c in configs)}  # with their part's name
    folded = (f"<details><summary>Fields that only some of them have</summary>{table(head, some.values())}"
              "</details>" if some else "")
    return ("<h3>What differs between their configs</h3>"
            + table(head, (row for name, row in rows.items() if name not in some)) + folded)


def _config(runs: Runs) -> str:
    def one(facts: Facts, _: Answers) -> str:
        meaning = meanings(facts.experiment)
        every = [(name, code(value), meaning.get(name, "")) for name, value in F.flat(facts.experiment).items()]
        whole = ('<details class="long"><summary>Every field</summary>'
                 f"{table(('field', 'value', 'meaning'), every, 'stack')}</details>")
        if (found := compare(facts)) is None:
            return whole
        rows = [(name, code(ours, "mark"), code(theirs), help) for name, ours, theirs, help in found.differing]
        return (f"<p>The nearest published network is <b>{e(found.preset)}</b>. From the recipe of {e(found.paper)}, "
                f"this run departs in {len(found.differing)} fields and agrees in {len(found.same)}.</p>"
                + table(("field", "this run", "the paper", "meaning"), rows, "stack")
                + f'<details class="long"><summary>The {len(found.same)} fields that agree</summary>'
                f"<p>{e(', '.join(found.same))}</p></details>{whole}")

    return section("config", "Config", each(runs, one))


def _data(runs: Runs) -> str:
    def one(facts: Facts, _: Answers) -> str:
        if facts.prepared is None:
            return '<p class="note">The tokenized corpus is not at hand; lmrep inspect shows it where it is.</p>'
        rows = [(split, *(f"{s[name]:,}" for name in ("documents", "sentences", "characters", "tokens")),
                 f"{s['tokens_per_word']:.2f}", prose.percent(s["unknown_share"]))
                for split, s in facts.prepared.statistics.items()]
        counts = facts.prepared.tokenizer.vocabulary.counts
        total, order = max(1, int(counts.sum())), (-counts).argsort()[:15]
        frequent = ", ".join(f"{facts.prepared.tokenizer.id_to_token(int(i))} {counts[i] / total:.1%}" for i in order)
        seen = f" Training saw its split {facts.tokens / max(1, facts.prepared.statistics['train']['tokens']):.2f} " \
               "times." if facts.tokens else ""
        stages = "".join(f"<li>{e(stage.name)}: {e(stage.format_name)} rows of {stage.length} tokens, "
                         f"{stage.batch_size} a step, {stage.steps:,} steps</li>" for stage in facts.stages)
        return (table(("split", "documents", "sentences", "characters", "tokens", "tokens a word", "unknown"), rows,
                       "figures")
                + f"<p>Documents are held out whole.{e(seen)} The vocabulary has {len(counts):,} pieces, "
                f"{int((counts == 0).sum()):,} of which do not occur in the training split. The most frequent: "
                f"{e(frequent)}.</p>"
                f"<ul>{stages}</ul>")

    return section("data", "Data", each(runs, one))


def _speed(runs: Runs) -> str:
    def column(facts: Facts) -> Mapping[str, str]:
        s, devices, network = F.speed(facts), facts.devices, facts.network
        use = f"{s.flops / s.peak:.1%} of {prose.number(s.peak)} FLOP/s in bfloat16" if s.flops and s.peak else \
            "the peak of this device is not known" if devices else "unknown"
        weights = network and 4 * network.parameters
        per_step = network and network.flops[facts.stages.index(facts.stage)]
        return {
            "devices": f"{devices['count']} × {devices['kind']}" if devices else "not recorded",
            "mesh: data × fsdp × tensor": _mesh(facts),
            "precision": facts.experiment.execution.dtype,
            "tokens a second": figure(s.tokens, ",.0f"),
            "steps a second": figure(s.steps, ",.3g"),
            "FLOP a step": figure(per_step, prose.number),
            "FLOP a second": figure(s.flops, prose.number),
            "utilisation": use,
            "time, device-hours": ", ".join(
                filter(None, (figure(F.seconds(facts), prose.duration), _hours(facts)))),
            "memory: parameters": figure(weights, prose.amount),
            "memory: gradients": figure(weights, prose.amount),
            "memory: optimizer state": figure(network and network.optimizer_bytes, prose.amount),
            "memory: most used on a device": figure(s.memory.get("device_peak_bytes"), prose.amount),
            "memory: most used by the process": figure(s.memory.get("host_peak_bytes"), prose.amount),
        }

    columns = [column(facts) for facts, _ in runs]
    rows = [(name, *(c[name] for c in columns)) for name in columns[0]
            if any(c[name] != "unknown" for c in columns)]
    return section(
        "speed", "Speed, utilisation and memory", table(("", *(f.label for f, _ in runs)), rows),
        '<p class="note">Speeds are medians over the log, validation and saving left out. FLOP are those of the matrix '
        "products of the training step's program. Parameters, gradients and optimizer state are computed from their "
        "shapes, over all devices; activations come on top. Time is from each start to its last logged step.</p>")


def _repeat(runs: Runs) -> str:
    def one(facts: Facts, _: Answers) -> str:
        if facts.source:
            return f"<pre>{e(prose.command(facts))}</pre>"
        if not facts.starts:
            return ('<p class="note">No start is on record; config.json in the workdir holds every field: '
                    "lmrep.train(config, directory) takes it.</p>")
        start = facts.starts[-1]
        tree, versions = start.get("code") or {}, start.get("versions") or {}
        changed = ("<p>The code had changes that were not committed; the diff is in provenance.jsonl.</p>"
                   if tree.get("status") else "")
        others = "".join(f"<li>{e(s['time'])}: <code>{e(s.get('command', ''))}</code></li>" for s in facts.starts)
        listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        return (f"<p>The command as it was given; with another --workdir it trains anew, with the same one it goes on "
                f"from the newest checkpoint.</p><pre>{e(prose.command(facts))}</pre>"
                f"<p>It ran in <code>{e(start.get('directory', 'a directory not recorded'))}</code>"
                + (f", with the code at commit <code>{e(tree['commit'])}</code>." if tree.get("commit") else ".")
                + f"</p>{changed}<p class=faint>Seed {facts.experiment.seed}. {e(listed)}.</p>"
                + (f'<details class="long"><summary>All {len(facts.starts)} starts</summary><ul>{others}</ul></details>'
                   if len(facts.starts) > 1 else ""))

    return section("repeat", "Repeat it", each(runs, one))


def _mesh(facts: Facts) -> str:
    try:
        return " × ".join(map(str, facts.experiment.mesh.sizes(facts.devices["count"])))
    except (UserError, TypeError):  # of other devices, or of none on record
        return "unknown"


def _hours(facts: Facts) -> str:
    seconds, devices = F.seconds(facts), facts.devices
    return f"{seconds * devices['count'] / 3600:.3g} device-hours" if seconds is not None and devices else ""
