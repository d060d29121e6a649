"""Fills in masked words: prints the likeliest ones for each [MASK] (<mask> with RoBERTa's tokenizer), of the texts
given as words, or line by line in a file or on standard input.

With --jsonl, lines are JSON as {"text": "The [MASK] of a list."}, and so are the answers: the same with "masks", for
each [MASK] a list of {"word": ..., "probability": ...}. Answers come in order, after every 256 lines and at the end."""

import contextlib
import itertools
import json
import sys
from collections.abc import Iterable, Iterator

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {
    "top": Flag(5, "how many words for each mask"),
    "input": Flag(None, "a file to read, a text a line, in place of standard input"),
    "jsonl": Flag(False, "read and write JSON, an object a line"),
    "step": Flag(-1, "which checkpoint; -1: the newest"),
}
LINES = 256  # that are answered at once


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(config=True)
    workdir, flags = arguments.required_workdir(), arguments.flags
    if flags.top < 1:
        raise UserError(f"--top is {flags.top}; expected at least 1")
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
            raise UserError(f"{source} has no text; give a text with [MASK] a line, or as arguments")

        from lmrep import api

        trained = api.load(workdir, None if flags.step < 0 else flags.step)
        asked = itertools.chain([first], asked)
        while block := list(itertools.islice(asked, LINES)):
            names, records = zip(*block, strict=True)
            answers = trained.fill_masks([record["text"] for record in records], flags.top, names)
            for record, answer in zip(records, answers, strict=True):
                print(_json(record, answer) if flags.jsonl else _text(record, answer, trained.tokenizer.mask_token))
            sys.stdout.flush()
    return 0


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
    except ValueError as error:
        raise UserError(f'{name} is not JSON: {error}; expected {{"text": "..."}}') from None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise UserError(f'{name} is {line.strip()[:60]}; expected {{"text": "..."}}')
    return record


def _text(record: dict, answers: list[list[tuple[str, float]]], mask: str) -> str:
    """For the eye."""
    lines = [record["text"]]
    for number, answer in enumerate(answers, 1):
        lines.append(f"  {mask} {number}" if len(answers) > 1 else f"  {mask}")
        lines += [f"    {probability:6.1%}  {word}" for word, probability in answer]
    return "\n".join(lines)


def _json(record: dict, answers: list[list[tuple[str, float]]]) -> str:
    """As one line; other fields of the record come back with it."""
    masks = [[{"word": word, "probability": float(f"{probability:.6g}")} for word, probability in answer]
             for answer in answers]
    return json.dumps({**record, "masks": masks}, ensure_ascii=False)
