"""Prints what a trained model predicts: it labels texts, fills in masked words, continues texts, or finds replaced
words, by its objective.

Texts are arguments, or lines of a file or of standard input; blank lines are skipped.

  A masked language model prints the most probable tokens for each [MASK] (or <mask>, with RoBERTa's tokenizer).
  A causal language model prints continuations of each text.
  ELECTRA prints each text with the replaced tokens between asterisks, and for each token the probability that it was
  replaced. Its generator fills in texts with [MASK].
  A model that generates texts from texts prints them: the most probable one, as greedy or beam search finds it
  (--beams, --length_penalty), or drawn ones (--temperature above 0, --top_k, --top_p, --samples, --seed).
  A fine-tuned model prints its prediction, for example a class and its probability, before each text. A tab stands
  between the two texts of a pair, a question and its context, or a text and its choices.

With --jsonl, a line is a JSON object as {"text": "The [MASK] of a list."}. The output has the same objects in the same
order, each with one more field: "masks", for each mask a list of {"word": ..., "probability": ...}; "continuations", a
list of texts; or "replaced", for each token {"word": ..., "start": ..., "end": ..., "probability": ...}, where
[start, end) are its characters. An object for a fine-tuned model has the fields of the task, such as text and text2,
and the output adds those of its prediction, such as "label", or "generated" for a text from a text. Output is flushed
after every 256 lines."""

import dataclasses
import io
import itertools
import json
import logging
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lmrep.cli.arguments import ENSEMBLE, STEP, Arguments, Flag
from lmrep.core import text_files
from lmrep.core.errors import UserError
from lmrep.core.json_text import json_object
from lmrep.core.paths import as_path

FLAGS = {
    "input": Flag(None, "a file of texts, one per line, instead of standard input", as_path),
    "jsonl": Flag(False, "read and write JSON Lines, see above"),
    "ensemble": ENSEMBLE,
    "step": STEP,
}
LINES = 256  # predicted together
log = logging.getLogger(__name__)
SURROGATES = re.compile("[\ud800-\udfff]")


def flags() -> dict[str, Flag]:
    """Returns a flag for each option of each capability, and `FLAGS`."""
    from lmrep.experiment.record import ALL_OBJECTIVES

    capabilities = {capability.name: capability for objective in ALL_OBJECTIVES.values()
                    for capability in objective.capabilities}
    options: dict[str, Flag] = {}
    for capability in capabilities.values():
        types = typing.get_type_hints(capability.options)
        for option in dataclasses.fields(capability.options):
            bounds = option.metadata["bounds"]
            default = "as in validation" if option.default is None else option.default
            help = f"{capability.name}: {bounds.help} (default: {default})"
            if option.name in options:
                help = f"{options[option.name].help}; {help}"
            type_ = next(member for member in typing.get_args(types[option.name]) or [types[option.name]]
                         if member is not type(None))
            options[option.name] = Flag(None, help, type_, bounds)
    return options | FLAGS


def run(arguments: Arguments) -> None:
    """Runs the command."""
    workdir, values = arguments.required_workdir(), arguments.flags
    if arguments.words and (values.input or values.jsonl):
        raise UserError(f"lmrep predict was given the text {arguments.words[0]!r} and --"
                        f"{'input' if values.input else 'jsonl'}, which reads texts from elsewhere; leave one out")
    if not arguments.words and not values.input and sys.stdin.isatty():
        raise UserError('lmrep predict needs a text: lmrep predict --workdir=DIR "The [MASK] of a list is an integer."')
    source = "standard input" if values.input is None else values.input
    if (values.input or "").endswith(".jsonl") and not values.jsonl:
        log.warning("each line of %s is read as a text; give --jsonl for JSON Lines", values.input)
    numbered = ((None, {"text": text}) for text in arguments.words) if arguments.words else _records(
        _open(values.input), source, values.jsonl)
    first = next(numbered, None)
    if first is None:
        raise UserError(f"{source} has no text; give one text per line, or texts as arguments")

    from lmrep import api
    from lmrep.data import prompts

    names_of_options = flags().keys() - FLAGS.keys()
    options = {name: value for name, value in vars(values).items() if name in names_of_options and value is not None}
    trained = api.load(workdir, arguments.step, ensemble=values.ensemble)
    numbered, done, unknown, words, example = itertools.chain([first], numbered), 0, 0, 0, ""
    while block := list(itertools.islice(numbered, LINES)):
        names, records = zip(*block, strict=True)
        for line in _predictions(trained, records, names, options, done, values.jsonl):
            print(line)
        sys.stdout.flush()
        done += len(records)
        for text in (record["text"] for record in records if isinstance(record.get("text"), str)):
            unknown_words, count = prompts.unknown_words(text, trained.tokenizer)
            unknown, words = unknown + len(unknown_words), words + count
            example = example or next(iter(unknown_words), "")
    if unknown:
        log.warning("%s of %s words are unknown to the tokenizer, for example %r, and are read as %s",
                    f"{unknown:,}", f"{words:,}", example[:40], trained.tokenizer.specials["unk"])


def _predictions(
    trained, records: Sequence[dict], names: Sequence[str | None], options: dict[str, Any], done: int, jsonl: bool
) -> Iterator[str]:
    """Iterates over the output lines of records. `done` is the number of records before them."""
    known = list(dict.fromkeys(field.name for capability in trained.capabilities
                               for field in dataclasses.fields(capability.options)))
    if unknown := sorted(options.keys() - set(known)):
        advice = f"its options are {', '.join(f'--{name}' for name in known)}" if known else "leave it out"
        raise UserError(f"--{unknown[0]} is no option of a model that {trained.capabilities[-1].summary}; {advice}")
    if "first" in known:  # draws do not depend on how many texts are predicted together
        options = options | {"first": options.get("first", 0) + done}
    prompts = [_prompt(trained, record, name) for record, name in zip(records, names, strict=True)]
    predictions = trained.predict(prompts, names=names, **options)
    for record, prompt, prediction in zip(records, prompts, predictions, strict=True):
        capability = trained.capability_of(prompt)
        yield (_json(record | capability.to_json(prediction)) if jsonl
               else capability.to_text(prompt, prediction, trained.tokenizer))


def _prompt(trained, record: dict, name: str | None) -> Any:
    """Returns the input of `Run.predict`: a text; for a task, also a tuple, if the text has tabs, or all fields."""
    text = record.get("text")
    if trained.capabilities and dict in trained.capabilities[0].types:
        if len(record) > 1 or not isinstance(text, str):
            return record
        return tuple(text.split("\t")) if "\t" in text else text
    if not isinstance(text, str):
        raise UserError(f'{name} is {json.dumps(record)[:60]}; expected {{"text": "..."}}')
    return text


def _open(path: str | None) -> Iterable[str]:
    """Opens a file, or standard input, as an iterable of lines."""
    if path is not None:
        return text_files.lines(path, pipes=True)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(newline="\n")
    return sys.stdin


def _records(file: Iterable[str], source: str, jsonl: bool) -> Iterator[tuple[str, dict]]:
    """Iterates over (name of the line in messages, record) of the lines that are not blank."""
    number = 0
    try:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix("\ufeff")
            if line.strip():
                name = f"line {number:,} of {source}"
                yield name, json_object(line, name, '{"text": "..."}', surrogates=True) if jsonl else {
                    "text": line.rstrip("\r\n")}  # fields other than the text are passed through
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text: {error.reason} at byte 0x{error.object[error.start]:02x}, "
                        f"after line {number:,}; convert it to UTF-8") from None


def _json(record: dict) -> str:
    """Formats a record as a line of JSON; in ASCII if it has lone surrogates, which UTF-8 cannot encode."""
    line = json.dumps(record, ensure_ascii=False)
    return line if line.isascii() or not SURROGATES.search(line) else json.dumps(record)
