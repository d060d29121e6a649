"""The page itself: sections as HTML, the figures as JSON beside them. Every text of a run passes `e` or `embedded`."""

import html
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata, resources
from typing import Any

from lmrep.analysis.report import facts as F
from lmrep.analysis.report import prose
from lmrep.analysis.report.answers import Answers, Blank, Guesses
from lmrep.analysis.report.facts import Facts
from lmrep.analysis.report.recipes import compare, meanings
from lmrep.core.errors import UserError

CHARTS = {  # metric: (title, whether it is a share)
    "loss": ("Loss, nats", False),
    "masked_accuracy": ("Hidden words guessed", True),
    "pair_accuracy": ("Pairs told apart", True),
    "learning_rate": ("Learning rate", False),
    "gradient_norm": ("Norm of the gradient", False),
    "tokens_per_second": ("Tokens a second", False),
}
SECTIONS = {"curves": "Curves", "answers": "Answers", "attention": "Attention", "config": "Config", "data": "Data",
            "speed": "Speed", "repeat": "Repeat"}

Runs = Sequence[tuple[Facts, Answers]]


def render(runs: Runs) -> str:
    """The whole page."""
    title = ", ".join(facts.label for facts, _ in runs)
    curves = [{"label": facts.label, **F.curves(facts, max(60, 1800 // len(runs)))} for facts, _ in runs]
    attention = [vars(a) for _, answers in runs for a in answers.attention]
    body = [_top(title, runs), _curves(runs), _answers(runs), _attention(runs), _config(runs), _data(runs),
            _speed(runs), _repeat(runs)]
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


class Html(str):
    """Text that is HTML already."""


def e(text: Any) -> Html:
    """`text` as HTML shows it, wherever it came from."""
    return text if isinstance(text, Html) else Html(html.escape(str(text)))


def embedded(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or open another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf8")


def _section(name: str, title: str, *parts: str) -> str:
    return f'<section><h2 id="{name}">{e(title)}</h2>{"".join(parts)}</section>'


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    """A table. `kind` "figures": all columns but the first are numbers; "stack": a row is a list on narrow screens."""
    number = ' class="n"' if kind == "figures" else ""
    top = "".join(f"<th{number if i else ''}>{e(cell)}</th>" for i, cell in enumerate(head))
    body = "".join("<tr>" + "".join(
        f'<td{number} data-is="{e(head[i])}">{e(cell)}</td>' if i else f"<th>{e(cell)}</th>"
        for i, cell in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _code(value: Any, mark: str = "") -> Html:
    """A config's value."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return Html(f'<code class="{mark}">{e(text)}</code>')


def _each(runs: Runs, part) -> str:
    """`part(facts, answers)` for every run, under its name where there are several; what says the same, once."""
    texts: dict[str, list[str]] = {}
    for facts, answers in runs:
        texts.setdefault(part(facts, answers), []).append(facts.label)
    return "".join((f"<h3>{e(', '.join(names))}</h3>" if len(runs) > 1 else "") + text for text, names in texts.items())


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
    return f"<h1>{heading}</h1>{several}{_each(runs, paragraph)}"


def _tiles(facts: Facts) -> str:
    tiles = [("held-out words guessed", _share(facts.last("validation", "masked_accuracy")),
              f"most frequent word: {_share(facts.last('validation', 'most_frequent'))}"),
             ("held-out loss", _figure(facts.last("validation", "loss"), ".3f"),
              f"training: {_figure(facts.last('train', 'loss'), '.3f')}"),
             ("parameters", prose.number(facts.network.parameters) if facts.network else "unknown",
              f"encoder: {prose.number(facts.network.encoder)}" if facts.network else ""),
             ("steps", "unknown" if facts.source else f"{facts.step:,}", f"of {facts.experiment.steps:,} planned"),
             ("time", _figure(F.seconds(facts), prose.duration), _hours(facts))]
    cells = "".join(f"<div><dt>{e(name)}</dt><dd>{e(value)}<small>{e(more)}</small></dd></div>"
                    for name, value, more in tiles if value != "unknown")
    return f'<dl class="tiles">{cells}</dl>'


def _side_by_side(runs: Runs) -> str:
    rows = [(f.label, _share(f.last("validation", "masked_accuracy")), _figure(f.last("validation", "loss"), ".4f"),
             f"{f.step:,}", _figure(f.tokens, prose.number), _figure(f.flops_at(f.step), prose.number),
             _figure(f.network and f.network.parameters, prose.number), _figure(F.seconds(f), prose.duration))
            for f, _ in runs]
    return _table(("run", "held-out words guessed", "held-out loss", "steps", "tokens", "operations", "parameters",
                   "time"), rows, "figures")


def _differences(runs: Runs) -> str:
    configs = [F.flat(facts.experiment) for facts, _ in runs]
    names = [name for name in dict.fromkeys(name for c in configs for name in c)
             if len({json.dumps(c.get(name, "none")) for c in configs}) > 1]
    if not names:
        return '<p class="note">Their configs are the same.</p>'
    rows = [(name, *(_code(c[name]) if name in c else "none" for c in configs)) for name in names]
    return "<h3>What differs between their configs</h3>" + _table(("field", *(f.label for f, _ in runs)), rows)


def _curves(runs: Runs) -> str:
    recorded = {name for facts, _ in runs for lines in (facts.train, facts.validation, facts.timing)
                for line in lines for name in line}
    figures = "".join(
        f'<figure data-metric="{name}"{" data-percent" if share else ""}><h3>{e(title)}</h3><div class="plot"></div>'
        "<output></output></figure>" for name, (title, share) in CHARTS.items() if name in recorded)
    if not figures:
        return _section("curves", "Curves", '<p class="note">No step was logged.</p>')
    axes = "".join(f'<label><input type="radio" name="axis" value="{value}"{" checked" * (value == "step")}> {text}'
                   "</label>" for value, text in (("step", "step"), ("tokens", "token"), ("flop", "FLOP")))
    legend = "".join(f'<span style="--c:var(--r{i % 8})">{e(facts.label)}</span>' for i, (facts, _) in enumerate(runs))
    return _section(
        "curves", "Curves",
        '<p class="note">Thin: training text, as it was learned. Thick, with dots: held-out text. Dashed: always the '
        "most frequent word.</p>",
        f'<div class="controls" id="axes"><fieldset><legend>over</legend>{axes}</fieldset>'
        '<label><input type="checkbox" id="logx"> logarithmic across</label>'
        '<label><input type="checkbox" id="logy"> logarithmic up</label></div>',
        f'<div class="legend">{legend}</div>' if len(runs) > 1 else "", f'<div class="charts">{figures}</div>',
        _each(runs, lambda facts, _: _validations(facts)))


def _validations(facts: Facts) -> str:
    names = [name for name in dict.fromkeys(n for line in facts.validation for n in line)
             if name not in ("step", "kind")]
    size = max(1, len(facts.validation) // 40)
    chosen = [*facts.validation[::-1][::size]][::-1]
    rows = [(f"{line['step']:,}", *(_figure(line.get(name), ".4f") for name in names)) for line in chosen]
    if not rows:
        return '<p class="note">Nothing was measured on held-out text.</p>'
    return (f'<details class="long"><summary>The held-out figures as a table</summary>'
            f'{_table(("step", *names), rows, "figures")}</details>')


def _answers(runs: Runs) -> str:
    parts, texts = [], {(b.left, b.right): answers.mask for _, answers in runs for b in answers.samples}
    if texts:
        parts.append("<h3>Sample texts</h3>")
        for (left, right), mask in texts.items():
            cells = [_guesses(facts, answers, blank, runs) for facts, answers in runs for blank in answers.samples
                     if (blank.left, blank.right) == (left, right)]
            parts.append(f'<div class="asked"><p>{_sentence(left, mask, right)}</p>'
                         f'<div class="answers">{"".join(cells)}</div></div>')
    for facts, answers in runs:
        if answers.held_out:
            parts.append(_held_out(facts, answers, len(runs) > 1))
    if not parts:
        parts.append('<p class="note">There is nothing to show: no sample texts in the config, and no held-out text or '
                     "no parameters at hand.</p>")
    return _section("answers", "What it is asked, and what it answers", *parts)


def _sentence(left: str, word: str, right: str) -> Html:
    marked = f"{e(left.rstrip())} <mark>{e(word)}</mark>"
    return Html(f"{marked}{'' if right[:1] in '.,;:!?)' else ' '}{e(right.lstrip())}")


def _guesses(facts: Facts, answers: Answers, blank: Blank, runs: Runs) -> str:
    name = f"{facts.label}, " if len(runs) > 1 else ""
    now = f"at step {answers.step:,}" if answers.step is not None else "now"
    return "".join(f"<div><h4>{e(name + when)}</h4>{_bars(guesses)}</div>" for when, guesses in (
        ("before training", blank.before), (now, blank.now)) if guesses is not None)


def _bars(guesses: Guesses) -> str:
    rows = "".join(f'<li style="--p:{min(1, share):.1%}"><b>{e(word)}</b><i>{prose.percent(share)}</i></li>'
                   for word, share in guesses)
    return f'<ol class="bars">{rows}</ol>'


def _held_out(facts: Facts, answers: Answers, several: bool) -> str:
    def first(blank: Blank, guesses: Guesses | None) -> str:
        if not guesses:
            return "none"
        (word, share), *_ = guesses
        hit = word == blank.answer
        return Html(f'<span class="{"hit" if hit else "miss"}">{e(word)} {prose.percent(share)}{" ✓" * hit}</span>')

    blanks = answers.held_out
    before, now = (sum(bool(g) and g[0][0] == b.answer for b, g in pairs)
                   for pairs in ([(b, b.before) for b in blanks], [(b, b.now) for b in blanks]))
    counted = f"{before} right before training" + (f", {now} now" if answers.step is not None else "")
    share = getattr(facts.stage.objective, "random", 0)
    replaced = f", and {share:.0%} of the hidden ones have a random piece in their place" if share else ""
    rows = [(_sentence(b.left, "?", b.right), b.answer, first(b, b.before), first(b, b.now)) for b in blanks]
    return (f"<h3>Held-out text{f': {e(facts.label)}' if several else ''}</h3>"
            "<p class=note>A hidden word of each of some rows, evenly spread over the held-out text and not chosen by "
            f"how they are answered. Of {len(blanks)}, {counted}. The text is as the model is given it: "
            f"{e(answers.mask)} is another hidden word{replaced}. A piece that begins with ## continues the word "
            "before it.</p>"
            + _table(("text", "hidden", "before training", "now"), rows, "stack"))


def _attention(runs: Runs) -> str:
    names = [(f"{facts.label}: " if len(runs) > 1 else "") + " ".join(a.pieces) for facts, answers in runs
             for a in answers.attention]
    if not names:
        return _section("attention", "Attention", '<p class="note">There are no attention maps: no trained parameters, '
                        "no text to show them on, or a network without attention.</p>")
    options = "".join(f'<option value="{i}">{e(name if len(name) < 70 else name[:69] + "…")}</option>'
                      for i, name in enumerate(names))
    return _section(
        "attention", "Attention",
        '<p class="note">How much of each token enters the representation of another. Choose a token, a layer and a '
        "head; a head can also be clicked among all of them.</p>",
        f'<div class="controls"><label><span>text</span><select id="text">{options}</select></label>'
        '<label><span>layer</span><select id="layer"></select></label>'
        '<label><span>head</span><select id="head"></select></label></div>',
        '<div class="tokens" id="tokens"></div><p class="note" id="looks" aria-live="polite"></p>',
        '<div class="maps"><figure><div id="map"></div><figcaption>Rows take in, columns are taken in.</figcaption>'
        '</figure><figure><canvas id="heads" role="img"></canvas><figcaption>All heads: a row a layer, a column a head.'
        "</figcaption></figure></div>")


def _config(runs: Runs) -> str:
    def one(facts: Facts, _: Answers) -> str:
        meaning = meanings(facts.experiment)
        every = [(name, _code(value), meaning.get(name, "")) for name, value in F.flat(facts.experiment).items()]
        whole = ('<details class="long"><summary>Every field</summary>'
                 f"{_table(('field', 'value', 'meaning'), every, 'stack')}</details>")
        if facts.stages[0].objective_name != "masked":
            return f"<p>There is no recipe here of a paper with this objective to compare with.</p>{whole}"
        found = compare(facts)
        rows = [(name, _code(ours, "mark"), _code(theirs), help) for name, ours, theirs, help in found.differing]
        return (f"<p>The nearest published network is <b>{e(found.preset)}</b>. From the recipe of {e(found.paper)}, "
                f"this run departs in {len(found.differing)} fields and agrees in {len(found.same)}.</p>"
                + _table(("field", "this run", "the paper", "meaning"), rows, "stack")
                + f'<details class="long"><summary>The {len(found.same)} fields that agree</summary>'
                f"<p>{e(', '.join(found.same))}</p></details>{whole}")

    return _section("config", "Config", _each(runs, one))


def _data(runs: Runs) -> str:
    def one(facts: Facts, _: Answers) -> str:
        if facts.prepared is None:
            return '<p class="note">The tokenized corpus is not at hand; lmrep inspect shows it where it is.</p>'
        rows = [(split, *(f"{s[name]:,}" for name in ("documents", "sentences", "characters", "tokens")),
                 f"{s['tokens_per_word']:.2f}", prose.percent(s["unknown_share"]))
                for split, s in facts.prepared.statistics.items()]
        counts = facts.prepared.tokenizer.vocabulary.counts
        total, order = max(1, int(counts.sum())), (-counts).argsort()[:15]
        frequent = ", ".join(f"{facts.prepared.tokenizer.piece(int(i))} {counts[i] / total:.1%}" for i in order)
        seen = f" Training saw its split {facts.tokens / max(1, facts.prepared.statistics['train']['tokens']):.2f} " \
               "times." if facts.tokens else ""
        stages = "".join(f"<li>{e(stage.name)}: {e(stage.format_name)} rows of {stage.length} tokens, "
                         f"{stage.batch_size} a step, {stage.steps:,} steps</li>" for stage in facts.stages)
        return (_table(("split", "documents", "sentences", "characters", "tokens", "tokens a word", "unknown"), rows,
                       "figures")
                + f"<p>Documents are held out whole.{e(seen)} The vocabulary has {len(counts):,} pieces, "
                f"{int((counts == 0).sum()):,} of which do not occur in the training split. The most frequent: "
                f"{e(frequent)}.</p>"
                f"<ul>{stages}</ul>")

    return _section("data", "Data", _each(runs, one))


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
            "tokens a second": _figure(s.tokens, ",.0f"),
            "steps a second": _figure(s.steps, ",.3g"),
            "FLOP a step": _figure(per_step, prose.number),
            "FLOP a second": _figure(s.flops, prose.number),
            "utilisation": use,
            "time, device-hours": ", ".join(
                filter(None, (_figure(F.seconds(facts), prose.duration), _hours(facts)))),
            "memory: parameters": _figure(weights, prose.amount),
            "memory: gradients": _figure(weights, prose.amount),
            "memory: optimizer state": _figure(network and network.optimizer_bytes, prose.amount),
            "memory: most used on a device": _figure(s.memory.get("device_peak_bytes"), prose.amount),
            "memory: most used by the process": _figure(s.memory.get("host_peak_bytes"), prose.amount),
        }

    columns = [column(facts) for facts, _ in runs]
    rows = [(name, *(c[name] for c in columns)) for name in columns[0]
            if any(c[name] != "unknown" for c in columns)]
    return _section(
        "speed", "Speed, utilisation and memory", _table(("", *(f.label for f, _ in runs)), rows),
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
        code, versions = start.get("code") or {}, start.get("versions") or {}
        changed = ("<p>The code had changes that were not committed; the diff is in provenance.jsonl.</p>"
                   if code.get("status") else "")
        others = "".join(f"<li>{e(s['time'])}: <code>{e(s.get('command', ''))}</code></li>" for s in facts.starts)
        listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        return (f"<p>The command as it was given; with another --workdir it trains anew, with the same one it goes on "
                f"from the newest checkpoint.</p><pre>{e(prose.command(facts))}</pre>"
                f"<p>It ran in <code>{e(start.get('directory', 'a directory not recorded'))}</code>"
                + (f", with the code at commit <code>{e(code['commit'])}</code>." if code.get("commit") else ".")
                + f"</p>{changed}<p class=faint>Seed {facts.experiment.seed}. {e(listed)}.</p>"
                + (f'<details class="long"><summary>All {len(facts.starts)} starts</summary><ul>{others}</ul></details>'
                   if len(facts.starts) > 1 else ""))

    return _section("repeat", "Repeat it", _each(runs, one))


# Values as text


def _figure(value: float | None, how) -> str:
    if value is None or isinstance(value, str):
        return "unknown"
    return how(value) if callable(how) else format(value, how)


def _share(value: float | None) -> str:
    return _figure(value, prose.percent)


def _mesh(facts: Facts) -> str:
    try:
        return " × ".join(map(str, facts.experiment.mesh.sizes(facts.devices["count"])))
    except (UserError, TypeError):  # of other devices, or of none on record
        return "unknown"


def _hours(facts: Facts) -> str:
    seconds, devices = F.seconds(facts), facts.devices
    return f"{seconds * devices['count'] / 3600:.3g} device-hours" if seconds is not None and devices else ""
