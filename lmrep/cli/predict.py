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
import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {
    "k": Flag(None, "fill_mask: the likeliest tokens to give for each mask (default: 5)", int),
    "tokens": Flag(None, "generate_text: the most tokens to generate (default: 50)", int),
    "samples": Flag(None, "generate_text: continuations of each text (default: 1)", int),
    "temperature": Flag(None, "generate_text: logits are divided by it; 0: always the likeliest token (default: 1)", float),
    "top_k": Flag(None, "generate_text: choose among the k likeliest tokens; 0: among all (default: 0)", int),
    "top_p": Flag(None, "generate_text: choose among the fewest tokens with this much probability (default: 1)", float),
    "seed": Flag(None, "generate_text: the same seed gives the same continuations (default: 0)", int),
    "input": Flag(None, "a file to read, a text a line, in place of standard input"),
    "jsonl": Flag(False, "read and write JSON, an object a line"),
    "step": Flag(-1, "which checkpoint; -1: the newest"),
}
OPTIONS = ("k", "tokens", "samples", "temperature", "top_k", "top_p", "seed")
LINES = 256  # that are answered at once
HALVES = re.compile("[\ud800-\udfff]")


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(config=True)
    workdir, flags = arguments.required_workdir(), arguments.flags
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
            for line in _predictions(trained, records, names, flags):
                print(line)
            sys.stdout.flush()
    return 0


def _predictions(
    trained, records: Sequence[dict], names: Sequence[str | None], flags: SimpleNamespace
) -> Iterator[str]:
    """What is printed for each record."""
    texts = [record["text"] for record in records]
    chosen = [trained.capability_of(text) for text in texts]
    given = {name: getattr(flags, name) for name in OPTIONS if getattr(flags, name) is not None}
    known = {field.name for each in trained.capabilities for field in dataclasses.fields(each.options)}
    if unknown := given.keys() - known:
        raise UserError(f"--{min(unknown)} is no option of a model that {trained.capabilities[-1].summary}; it has "
                        f"{', '.join(f'--{name}' for name in OPTIONS if name in known) or 'none'}")
    predictions: list = [None] * len(texts)
    for capability in dict.fromkeys(chosen):
        members = [i for i, each in enumerate(chosen) if each is capability]
        own = {field.name for field in dataclasses.fields(capability.options)}
        found = trained.predict([texts[i] for i in members], capability.name, [names[i] for i in members],
                                **{name: value for name, value in given.items() if name in own})
        for i, prediction in zip(members, found, strict=True):
            predictions[i] = prediction
    for record, capability, prediction in zip(records, chosen, predictions, strict=True):
        yield (_json(record | capability.to_json(prediction)) if flags.jsonl
               else capability.to_text(record["text"], prediction, trained.tokenizer))


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
