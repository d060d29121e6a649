"""HTML out of plain values. Every text of a run passes `e` or `embedded`."""

import html
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lmrep.analysis.report import prose
from lmrep.analysis.report.answers import Answers
from lmrep.analysis.report.facts import Facts

Runs = Sequence[tuple[Facts, Answers]]


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


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page that a link leads to."""
    return f'<section><h2 id="{name}">{e(title)}</h2>{"".join(parts)}</section>'


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    """A table. `kind` "figures": all columns but the first are numbers; "stack": a row is a list on narrow screens."""
    number = ' class="n"' if kind == "figures" else ""
    top = "".join(f"<th{number if i else ''}>{e(cell)}</th>" for i, cell in enumerate(head))
    body = "".join("<tr>" + "".join(
        f'<td{number} data-is="{e(head[i])}">{e(cell)}</td>' if i else f"<th>{e(cell)}</th>"
        for i, cell in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def code(value: Any, mark: str = "") -> Html:
    """A config's value."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return Html(f'<code class="{mark}">{e(text)}</code>')


def each(runs: Runs, part: Callable[[Facts, Answers], str]) -> str:
    """`part(facts, answers)` for every run, under its name where there are several; what says the same, once."""
    texts: dict[str, list[str]] = {}
    for facts, answers in runs:
        texts.setdefault(part(facts, answers), []).append(facts.label)
    return "".join((f"<h3>{e(', '.join(names))}</h3>" if len(runs) > 1 else "") + text for text, names in texts.items())


def figure(value: float | None, how: str | Callable[[float], str]) -> str:
    """A number by a format or a function; "unknown" where it is None or no number."""
    if value is None or isinstance(value, str):
        return "unknown"
    return how(value) if callable(how) else format(value, how)


def share(value: float | None) -> str:
    """The same as per cent."""
    return figure(value, prose.percent)
