"""Asks a trained model what its objective taught it: to fill in masked words, to continue texts, or to tell which of
their words were replaced.

Of a masked language model, prints the likeliest ones for each [MASK] (<mask> with RoBERTa's tokenizer), of the texts
given as words, or line by line in a file or on standard input. Of a causal one, prints continuations of each text, and
refuses those with [MASK]; one that was converted goes on from the text alone, as its reference does, any other from
what it saw before documents. Of ELECTRA, prints each text with the pieces between asterisks that were rather replaced
than not, and for each piece with what probability it was; a text with [MASK] is its generator's to fill.

With --jsonl, lines are JSON as {"text": "The [MASK] of a list."}, and so are the answers: the same with "masks", for
each [MASK] a list of {"word": ..., "probability": ...}; or "continuations", a list of texts; or "replaced", for each
piece {"word": ..., "start": ..., "end": ..., "probability": ...}, the characters [start, end) of the text. Answers come
in order, after every 256 lines and at the end."""

import contextlib
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {
    "top": Flag(5, "how many words for each mask"),
    "tokens": Flag(50, "of a continuation, at most"),
    "samples": Flag(1, "continuations of each text"),
    "temperature": Flag(1.0, "scores are divided by it; 0: the likeliest token always"),
    "top_k": Flag(0, "choose among the k likeliest tokens; 0: among all"),
    "top_p": Flag(1.0, "choose among the fewest tokens that have this much of the probability"),
    "seed": Flag(0, "of the continuations, which it repeats"),
    "input": Flag(None, "a file to read, a text a line, in place of standard input"),
    "jsonl": Flag(False, "read and write JSON, an object a line"),
    "step": Flag(-1, "which checkpoint; -1: the newest"),
}
LINES = 256  # that are answered at once
WIDE = 100  # columns of a table of pieces
HALVES = re.compile("[\ud800-\udfff]")


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(config=True)
    workdir, flags = arguments.required_workdir(), arguments.flags
    for name in ("top", "tokens", "samples"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} is {getattr(flags, name)}; expected at least 1")
    if arguments.words and (flags.input or flags.jsonl):
        raise UserError(f"lmrep predict was given the text {arguments.words[0]!r} and --"
                        f"{'input' if flags.input else 'jsonl'}, which reads texts elsewhere; leave one out")
    if not arguments.words and not flags.input and sys.stdin.isatty():
        raise UserError('lmrep predict needs a text: lmrep predict --workdir=DIR "The [MASK] of a list is an integer."')
    with _source(flags.input) as (source, file):
        asked = ((None, {"text": text}) for text in arguments.words) if arguments.words else _records(
            file, source, flags.jsonl)
        first = next(asked, None)
        if first is None:
            raise UserError(f"{source} has no text; give a text a line, or as arguments")

        from lmrep import api

        trained = api.load(workdir, None if flags.step < 0 else flags.step)
        asked = itertools.chain([first], asked)
        while block := list(itertools.islice(asked, LINES)):
            names, records = zip(*block, strict=True)
            for line in _answers(trained, records, names, flags):
                print(line)
            sys.stdout.flush()
    return 0


def _answers(trained, records: Sequence[dict], names: Sequence[str | None], flags: SimpleNamespace) -> Iterator[str]:
    """What is printed for each record."""
    from lmrep.inference.prompts import has_mask

    texts, answers = [record["text"] for record in records], {}
    asked = ["masks" if trained.answers == "replaced" and has_mask(text, trained.tokenizer) else trained.answers
             for text in texts]
    for text, what, name in zip(texts, asked, names, strict=True):
        if what == "texts" and has_mask(text, trained.tokenizer):
            raise UserError(f"{f'{name}: ' if name else ''}{text[:60]!r} has a mask, and {trained.directory} fills "
                            f"none: it was trained with objective {trained.objective.name!r} and continues texts from "
                            "their end; give a text up to where it is to go on")
    for what in dict.fromkeys(asked):
        members = [i for i, each in enumerate(asked) if each == what]
        given = [texts[i] for i in members], [names[i] for i in members]
        answers |= zip(members, _ask(trained, what, *given, flags), strict=True)
    for i, (record, what) in enumerate(zip(records, asked, strict=True)):
        told, shown = TELLING[what]
        yield (_json(record | told(answers[i])) if flags.jsonl else shown(texts[i], answers[i], trained.tokenizer))


def _ask(trained, what: str, texts: Sequence[str], names: Sequence[str | None], flags: SimpleNamespace) -> list:
    """The answers to texts that ask the same."""
    if what == "replaced":
        return trained.spot_replaced(texts, names)
    if what != "texts":
        return trained.fill_masks(texts, flags.top, names)
    from lmrep.config.record import read
    from lmrep.inference.generate import Sampling

    how = read(Sampling, {"temperature": flags.temperature, "top_k": flags.top_k, "top_p": flags.top_p}, "sampling")
    return trained.extend(texts, flags.tokens, flags.samples, how, flags.seed, names)


@contextlib.contextmanager
def _source(path: str | None) -> Iterator[tuple[str, Iterable[str]]]:
    """Where lines come from, and what messages call it."""
    if path is None:
        yield "standard input", sys.stdin
        return
    try:
        file = open(path, encoding="utf8")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    with file:
        yield path, file


def _records(file: Iterable[str], source: str, jsonl: bool) -> Iterator[tuple[str, dict]]:
    """(what messages call the line, its record) of each line that is not blank."""
    number = 0
    try:
        for number, line in enumerate(file, 1):
            if line.strip():
                name = f"line {number:,} of {source}"
                yield name, _record(line, name) if jsonl else {"text": line.rstrip("\r\n")}
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text: {error.reason} at byte 0x{error.object[error.start]:02x}, "
                        f"after line {number:,}; convert it") from None


def _record(line: str, name: str) -> dict:
    """The JSON object of a line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f'{name} is not JSON: {error}; expected {{"text": "..."}}') from None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise UserError(f'{name} is {line.strip()[:60]}; expected {{"text": "..."}}')
    return record


def _json(record: dict) -> str:
    """A record as a line, in plain characters where there are such as UTF-8 has not: halves of a pair."""
    line = json.dumps(record, ensure_ascii=False)
    return line if line.isascii() or not HALVES.search(line) else json.dumps(record)


# Answers for the eye, and as the fields that they add to a record


def marked(text: str, doubts: Sequence) -> str:
    """The text, asterisks around what was rather replaced than not; `doubts` as `Run.spot_replaced` gives them."""
    spans: list[tuple[int, int]] = []
    for _, start, end, probability in doubts:
        if probability > 0.5 and start < end:
            joined = spans.pop() if spans and start <= spans[-1][1] else (start, end)  # a word has one pair around it
            spans.append((joined[0], max(joined[1], end)))
    for start, end in reversed(spans):
        text = f"{text[:start]}*{text[start:end]}*{text[end:]}"
    return text


def _doubted(text: str, doubts: Sequence, tokenizer) -> str:
    """Under the marked text its pieces, each above its probability. A piece of white space alone is left out."""
    lines, above, below = [marked(text, doubts)], "", ""
    for doubt in doubts:
        word = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in doubt.word)
        columns = sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in word)
        share, width = f"{doubt.probability:.0%}", max(4, columns)
        if above and len(below) + width > WIDE:
            lines, above, below = [*lines, above, below], "", ""
        if word:
            above, below = f"{above}  {' ' * (width - columns)}{word}", f"{below}  {share:>{width}}"
    return "\n".join([*lines, above, below] if above else lines)


def _filled(text: str, answers: list[list[tuple[str, float]]], tokenizer) -> str:
    lines, mask = [text], tokenizer.mask_token
    for number, answer in enumerate(answers, 1):
        lines.append(f"  {mask} {number}" if len(answers) > 1 else f"  {mask}")
        lines += [f"    {probability:6.1%}  {word}" for word, probability in answer]
    return "\n".join(lines)


def _figure(probability: float) -> float:
    return float(f"{probability:.6g}")


TELLING = {  # what is asked: (fields of the answer, the answer as text)
    "masks": (lambda answers: {"masks": [
        [{"word": word, "probability": _figure(p)} for word, p in answer] for answer in answers]}, _filled),
    "replaced": (lambda doubts: {"replaced": [d._asdict() | {"probability": _figure(d.probability)} for d in doubts]},
                 _doubted),
    "texts": (lambda texts: {"continuations": texts},
              lambda text, texts, tokenizer: "\n".join(f"{text} |{more}" for more in texts)),
}
