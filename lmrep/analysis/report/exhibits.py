"""What a page shows of networks at work: their curves, their answers, their attention maps."""

import json

from lmrep.analysis.report import measures, prose
from lmrep.analysis.report.answers import Answers, Blank, Guesses
from lmrep.analysis.report.doubts import Doubted, Piece, Replaced
from lmrep.analysis.report.facts import Facts
from lmrep.analysis.report.markup import Html, Runs, e, each, figure, section, table

SHADE = 55  # per cent of the colour behind a piece that was replaced for certain
SHADED = ("Under each piece, and by its shade: how likely, in per cent, the network holds it to be replaced; "
          "underlined where that is rather so than not.")


def curves(runs: Runs) -> str:
    """The section of the curves; page.js draws what `measures.charts` says."""
    found = measures.charts([facts for facts, _ in runs])
    if not found:
        return section("curves", "Curves", '<p class="note">No step was logged.</p>')
    figures = "".join(
        f'<figure data-metric="{e(name)}" data-lines="{e(json.dumps(chart.lines))}" data-base="{chart.base}"'
        f'{" data-percent" if chart.share else ""}><h3>{e(chart.title)}</h3><div class="plot"></div><output></output>'
        f"{f'<figcaption>{e(chart.about)}</figcaption>' if chart.about else ''}</figure>"
        for name, chart in found.items())
    axes = "".join(f'<label><input type="radio" name="axis" value="{value}"{" checked" * (value == "step")}> {text}'
                   "</label>" for value, text in (("step", "step"), ("tokens", "token"), ("flop", "FLOP")))
    legend = "".join(f'<span style="--c:var(--r{i % 8})">{e(facts.label)}</span>' for i, (facts, _) in enumerate(runs))
    questions = {measures.question(facts.stage) for facts, _ in runs}
    apart = (" These runs were asked different questions: a loss is drawn with those of the same question alone, and a "
             "token that is guessed from both sides is easier than one that is foretold from the left."
             if len(questions) > 1 else "")
    if any(len({repr(stage.objective) for stage in facts.stages}) > 1 for facts, _ in runs):
        apart += " A loss jumps where a stage begins that asks for other things, or weighs them otherwise."
    return section(
        "curves", "Curves",
        '<p class="note">Thin: training text, as it was learned. Thick, with dots: held-out text. Dashed: what costs '
        f"nothing to know, always the most frequent word, or how frequent each is.{apart}</p>",
        f'<div class="controls" id="axes"><fieldset><legend>over</legend>{axes}</fieldset>'
        '<label><input type="checkbox" id="logx"> logarithmic across</label>'
        '<label><input type="checkbox" id="logy"> logarithmic up</label></div>',
        f'<div class="legend">{legend}</div>' if len(runs) > 1 else "", f'<div class="charts">{figures}</div>',
        each(runs, lambda facts, _: _validations(facts)))


def _validations(facts: Facts) -> str:
    names = [name for name in dict.fromkeys(n for line in facts.validation for n in line)
             if name not in ("step", "split")]
    size = max(1, len(facts.validation) // 40)
    chosen = [*facts.validation[::-1][::size]][::-1]
    rows = [(f"{line['step']:,}", *(figure(line.get(name), ".4f") for name in names)) for line in chosen]
    if not rows:
        return '<p class="note">Nothing was measured on held-out text.</p>'
    return (f'<details class="long"><summary>The held-out figures as a table</summary>'
            f'{table(("step", *names), rows, "figures")}</details>')


def answers(runs: Runs) -> str:
    """The section of what the networks are asked and answer."""
    parts, texts = [], {(b.left, b.right): answers.mask for _, answers in runs for b in answers.samples}
    doubted = list(dict.fromkeys(_whole(text) for _, answers in runs for text in answers.doubted))
    if texts or doubted:
        parts.append("<h3>Sample texts</h3>")
        for (left, right), mask in texts.items():
            cells = [_guesses(facts, answers, blank, runs) for facts, answers in runs for blank in answers.samples
                     if (blank.left, blank.right) == (left, right)]
            parts.append(f'<div class="asked"><p>{_sentence(left, mask, right)}</p>'
                         f'<div class="answers">{"".join(cells)}</div></div>')
    if doubted:
        parts.append(f"<p class=note>{SHADED}</p>")
    for whole in doubted:
        cells = [_doubts(facts, answers, text, runs) for facts, answers in runs for text in answers.doubted
                 if _whole(text) == whole]
        parts.append(f'<div class="asked"><div class="answers wide">{"".join(cells)}</div></div>')
    for facts, answers in runs:
        name = f": {facts.label}" if len(runs) > 1 else ""
        parts += [_continued(answers, name) if answers.continued else "",
                  _held_out(facts, answers, name) if answers.held_out else "",
                  _replaced(facts, answers, answers.replaced, name) if answers.replaced else "",
                  _described(answers, name) if answers.described else ""]
    if not any(parts):
        parts.append('<p class="note">There is nothing to show: no sample texts in the config, and no held-out text or '
                     "no parameters at hand.</p>")
    return section("answers", "What it is asked, and what it answers", *parts)


def _continued(answers: Answers, name: str) -> str:
    rows = [(one.text, *("" if text is None else text.strip() for text in (one.before, one.now, one.actual)))
            for one in answers.continued]
    return (f"<h3>Texts continued{e(name)}</h3><p class=note>Each token is drawn with the probability that the network "
            "gives it. The last column has what follows in held-out texts, which are evenly spread and not chosen by "
            "how they are continued.</p>"
            + table(("text", "before training", "now", "the text itself"), rows, "stack"))


def _described(answers: Answers, name: str) -> str:
    rows = "".join(f"<li>{e(text)}</li>" for text in answers.described)
    return (f"<h3>Held-out text, as it is asked{e(name)}</h3><p class=note>Some rows, evenly spread. "
            f"lmrep inspect shows more.</p><ul class=rows>{rows}</ul>")


def _sentence(left: str, word: str, right: str) -> Html:
    marked = f"{e(left.rstrip())} <mark>{e(word)}</mark>"
    return Html(f"{marked}{'' if right[:1] in '.,;:!?)' else ' '}{e(right.lstrip())}")


def _guesses(facts: Facts, answers: Answers, blank: Blank, runs: Runs) -> str:
    return "".join(f"<div><h4>{e(when)}</h4>{_bars(guesses)}</div>" for when, guesses in zip(
        _times(facts, answers, runs), (blank.before, blank.now), strict=True) if guesses is not None)


def _times(facts: Facts, answers: Answers, runs: Runs) -> tuple[str, str]:
    """What the answers before training and those of now are called."""
    name = f"{facts.label}, " if len(runs) > 1 else ""
    return f"{name}before training", name + (f"at step {answers.step:,}" if answers.step is not None else "now")


def _bars(guesses: Guesses) -> str:
    rows = "".join(f'<li style="--p:{min(1, share):.1%}"><b>{e(word)}</b><i>{prose.percent(share)}</i></li>'
                   for word, share in guesses)
    return f'<ol class="bars">{rows}</ol>'


def _held_out(facts: Facts, answers: Answers, name: str) -> str:
    def first(blank: Blank, guesses: Guesses | None) -> Html | str:
        if not guesses:
            return "none"
        (word, part), *_ = guesses
        hit = word == blank.answer
        return Html(f'<span class="{"hit" if hit else "miss"}">{e(word)} {prose.percent(part)}{" ✓" * hit}</span>')

    blanks, causal = answers.held_out, facts.stage.objective_name == "causal"
    before, now = (sum(bool(g) and g[0][0] == b.answer for b, g in pairs)
                   for pairs in ([(b, b.before) for b in blanks], [(b, b.now) for b in blanks]))
    counted = f"{before} right before training" + (f", {now} now" if answers.step is not None else "")
    random = getattr(facts.stage.objective, "random", 0)
    replaced = f", and {random:.0%} of the hidden ones have a random piece in their place" if random else ""
    what, given = ("The next word", "") if causal else (
        "A hidden word", f" The text is as the model is given it: {e(answers.mask)} is another hidden word{replaced}.")
    marks = f" {facts.network.tokenizer.notation}".rstrip()
    rows = [(_sentence(b.left, "?", b.right), b.answer, first(b, b.before), first(b, b.now)) for b in blanks]
    return (f"<h3>Held-out text{e(name)}</h3>"
            f"<p class=note>{what} of each of some rows, evenly spread over the held-out text and not chosen by how "
            f"they are answered. Of {len(blanks)}, {counted}.{given}{marks}</p>"
            + table(("text", "next" if causal else "hidden", "before training", "now"), rows, "stack"))


def _whole(text: Doubted) -> str:
    return "".join(f"{piece.gap}{piece.word}" for piece in text.tokens) + text.end


def _doubts(facts: Facts, answers: Answers, text: Doubted, runs: Runs) -> str:
    """A text before training and now, its pieces shaded."""
    said = [[piece.before for piece in text.tokens], [piece.now for piece in text.tokens]]
    return "".join(
        f'<div><h4>{e(when)}</h4><p class="tokens">{"".join(map(_piece, text.tokens, each))}{e(text.end)}</p></div>'
        for when, each in zip(_times(facts, answers, runs), said, strict=True) if None not in each)


def _piece(piece: Piece, probability: float) -> str:
    found = probability > 0.5
    word = f"<b>{e(piece.word)}</b>"
    if piece.was is not None:
        word = f"<span><del>{e(piece.was)}</del> → <ins>{e(piece.word)}</ins> <i>{'✓' if found else '✗'}</i></span>"
    return (f'{e(piece.gap)}<span style="--p:{SHADE * probability:.0f}%"{" class=doubted" * found}>{word}'
            f"<small>{100 * probability:.0f}</small></span>")


def _replaced(facts: Facts, answers: Answers, replaced: Replaced, name: str) -> str:
    def counts(tally: tuple[int, int] | None, when: str) -> list[str]:
        return [] if tally is None else [f"{tally[0]:,} and {tally[1]:,} {when}"]

    counted = ", ".join([*counts(replaced.before, "before training"), *counts(replaced.now, "now")])
    words = (" The network finds words: a piece is the less likely replaced, the likelier it finds the one that stands "
             "there.") if replaced.words else ""
    cells = "".join(f'<div class="asked"><div class="answers wide">{_doubts(facts, answers, text, [])}</div></div>'
                    for text in replaced.texts)
    return (f"<h3>Held-out text with words replaced{e(name)}</h3>"
            "<p class=note>Parts of some rows, evenly spread over the held-out text and not chosen by how they are "
            "answered, as the generator leaves them: what stands after an arrow it put there for what is struck out; ✓ "
            f"where that is found, ✗ where not. {SHADED} Of the {replaced.replaced:,} pieces that it replaced in "
            f"{replaced.rows:,} rows and the {replaced.others:,} others that the network is asked about, it suspects "
            f"{counted}.{words} {facts.network.tokenizer.notation}</p>{cells}")


def attention(runs: Runs) -> str:
    """The section of the attention maps; page.js draws them."""
    names = [(f"{facts.label}: " if len(runs) > 1 else "") + " ".join(a.tokens) for facts, answers in runs
             for a in answers.attention]
    if not names:
        return section("attention", "Attention", '<p class="note">There are no attention maps: no trained parameters, '
                        "no text to show them on, or a network without attention.</p>")
    options = "".join(f'<option value="{i}">{e(name if len(name) < 70 else name[:69] + "…")}</option>'
                      for i, name in enumerate(names))
    return section(
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
