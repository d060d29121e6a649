"""Asks a trained model what its objective taught it: to fill in masked words, or to continue texts.

Of a masked language model, prints the likeliest ones for each [MASK] (<mask> with RoBERTa's tokenizer), of the texts
given as words, or line by line in a file or on standard input. Of a causal one, prints continuations of each text.

With --jsonl, lines are JSON as {"text": "The [MASK] of a list."}, and so are the answers: the same with "masks", for
each [MASK] a list of {"word": ..., "probability": ...}. Answers come in order, after every 256 lines and at the end."""

import contextlib
import itertools
import json
import sys
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
            raise UserError(f"{source} has no text; give a text with [MASK] a line, or as arguments")

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
    texts = [record["text"] for record in records]
    if trained.objective.follow is None:
        for record, answer in zip(records, trained.fill_masks(texts, flags.top, names), strict=True):
            yield _json(record, answer) if flags.jsonl else _text(record, answer, trained.tokenizer.mask_token)
        return
    from lmrep.config.record import read
    from lmrep.generation import Sampling

    how = read(Sampling, {"temperature": flags.temperature, "top_k": flags.top_k, "top_p": flags.top_p}, "sampling")
    found = trained.extend(texts, flags.tokens, flags.samples, how, flags.seed, names)
    for record, continuations in zip(records, found, strict=True):
        if flags.jsonl:
            yield json.dumps({**record, "continuations": continuations}, ensure_ascii=False)
        else:
            yield "\n".join(f"{record['text']} |{text}" for text in continuations)


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
