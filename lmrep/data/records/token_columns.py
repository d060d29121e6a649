"""Reads column files: a word per line with its tags beside it, and a blank line after each sentence.

`columns` reads the files of CoNLL-2003 and WNUT-17; `conllu` reads Universal Dependencies.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from lmrep.core.errors import UserError
from lmrep.core.messages import counted
from lmrep.data.records import files
from lmrep.data.records.base import Job, ReaderDef, Record
from lmrep.data.records.values import CORRECT, missing_column, short

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
CHECKED = 20  # sentences that are checked for a column without words
TAG = re.compile(r"O|[BIESLU]-\S+")
Line = tuple[int, list[str]]  # (number, cells)


def read(job: Job) -> Iterator[Record | UserError]:
    """Yields the sentences of a file with numbered columns, separated by tabs if its first line has one, otherwise by
    white space. Skips comments and lines of -DOCSTART-. Yields a UserError for a sentence whose number of columns
    differs from the first line's. Raises UserError if the default column of words holds numbers or tags."""
    skipped = ("-DOCSTART-", job.config.comment or "#")
    filled = (line for line in files.lines(job.path, job.config) if line.strip(" \t"))
    separator = "\t" if "\t" in next((line for line in filled if not line.startswith(skipped)), "") else "[ \t]+"

    def split(text: str) -> list[str]:
        return re.split(separator, text if separator == "\t" else text.strip(" \t"))

    records = _records(job, _sentences(job, split, _comments(job, split)))
    first = [*itertools.islice(records, CHECKED)]
    if "words" not in ((job.split == "test" and job.config.test_columns) or job.config.columns):
        _check_words(first)
    yield from itertools.chain(first, records)


def _records(job: Job, sentences: Iterator[list[Line]]) -> Iterator[Record | UserError]:
    width = 0
    for lines in sentences:
        lines = [(number, cells) for number, cells in lines if cells[0] != "-DOCSTART-"]
        if not lines:
            continue
        if not width:
            width = len(lines[0][1])
            columns = {field: _number(job, field, name, width) for field, name in job.columns.items()}
            if columns["tags"] == columns["words"]:  # the words alone
                if job.split != "test":
                    raise UserError(f"{job.path}, line {lines[0][0]} has no column of tags beside the words: found "
                                    f"{counted(width, 'column')}, expected at least 2, between tabs or white space")
                del columns["tags"]
        yield _record(job, lines, columns, width, "")


def _check_words(items: Sequence[Record | UserError]) -> None:
    """Raises UserError if the first column has no words, as in the files of GermEval and MIT."""
    records = [item for item in items if isinstance(item, Record)]
    words = [record.fields["words"] for record in records]
    tags = [tag for record in records for tag in record.fields.get("tags", ())]
    if any(len(sentence) > 1 for sentence in words) and all(
            sentence == [str(i + int(sentence[0] == "1")) for i in range(len(sentence))] for sentence in words):
        content, columns = "the numbers of words", "{'words': '1'}"
    elif words and all(TAG.fullmatch(word) for sentence in words for word in sentence) and any(
            word != "O" for sentence in words for word in sentence) and tags and not all(map(TAG.fullmatch, tags)):
        content, columns = "tags", "{'words': '1', 'tags': '0'}"
    elif sum(map(len, words)) >= CHECKED and len({word for sentence in words for word in sentence}) == 1:
        content, columns = "the same text in every line", "{'words': '1'}"
    else:
        return
    raise UserError(f"{records[0].where}: the first column, which words are read from, has {content} "
                    f"({short(words[0])}); set --config.data.columns=\"{columns}\", or to other columns, by number "
                    "from 0 (tags are in the last column by default)")


def _comments(job: Job, split: Callable[[str], list[str]]) -> Callable[[str, bool], bool]:
    """Returns a function (line, whether it begins a sentence) -> whether it is a comment. A comment begins with
    `config.comment`. By default, it begins with # above a sentence, and has another number of columns than words, or is
    above every sentence with a last column that is not a tag."""
    if job.config.comment:
        return lambda text, first: text.startswith(job.config.comment)
    blocks = [block.split("\n") for block in
              re.split(r"\n[ \t]*\n+", files.beginning(job.path, job.config).replace("\r\n", "\n").strip("\n"))]
    cells = [split(line) for block in blocks for line in block if not line.startswith(("#", "-DOCSTART-"))]
    width = Counter(map(len, cells)).most_common(1)[0][0] if cells else 0
    above = [block[0] for block in blocks if block[0].startswith(("# ", "#\t"))]
    above_all = len(above) == len(blocks) > 1 and not {split(line)[-1] for line in above} & {row[-1] for row in cells}
    return lambda text, first: first and text.startswith("#") and (above_all or len(split(text)) != width)


def read_conllu(job: Job) -> Iterator[Record | UserError]:
    """Yields the sentences of a CoNLL-U file. Skips ranges of multiword tokens (1-2) and empty nodes (8.1)."""
    columns = {}
    for field, name in job.columns.items():
        if name not in CONLLU and not re.fullmatch("-?[0-9]+", name):
            raise missing_column(str(job.path), field, name, CONLLU)
        columns[field] = _number(job, field, str(CONLLU.index(name)) if name in CONLLU else name, len(CONLLU))
    comment = job.config.comment
    for lines in _sentences(job, lambda text: text.split("\t"),
                            lambda text, first: bool(comment) and text.startswith(comment)):
        comments = "\n".join(cells[0] for _, cells in lines if cells[0].startswith("#"))
        name = re.search(r"^# *sent_id *= *(.*\S)", comments, re.MULTILINE)
        lines = [(number, cells) for number, cells in lines if not cells[0].startswith("#")
                 and not re.fullmatch(r"[0-9]+[-.][0-9]+", cells[0])]
        if lines:
            yield _record(job, lines, columns, len(CONLLU), name[1] if name else "")


def _sentences(
    job: Job, split: Callable[[str], list[str]], is_comment: Callable[[str, bool], bool]
) -> Iterator[list[Line]]:
    """Yields the lines of each block between blank lines, without comments."""
    lines: list[Line] = []
    for number, text in enumerate(files.lines(job.path, job.config), 1):
        if is_comment(text, not lines):
            continue
        if text.strip(" \t"):
            lines.append((number, split(text)))
        elif lines:
            yield lines
            lines = []
    if lines:
        yield lines


def _record(job: Job, lines: list[Line], columns: dict[str, int], width: int, name: str) -> Record | UserError:
    for number, cells in lines:
        if len(cells) != width:
            return UserError(f"{job.path}, line {number} has {counted(len(cells), 'column')}; expected {width}"
                             f"{', tab-separated' if width == len(CONLLU) else ', as the first line has'}: {CORRECT}")
    fields = {field: [cells[column] for _, cells in lines] for field, column in columns.items()}
    return Record(fields, name, f"{job.path}, line {lines[0][0]}", tuple(number for number, _ in lines))


def _number(job: Job, field: str, name: str, width: int) -> int:
    if field not in ("words", "tags"):
        raise UserError(f"{job.path} is a column file, with words and tags alone; there is no field {field!r}")
    if not re.fullmatch("-?[0-9]{1,9}", name) or not -width <= int(name) < width:
        raise UserError(f"{job.path} has {counted(width, 'column')}; the column {short(name)} for the field {field!r} "
                        f"is not one of 0 to {width - 1}, or -1 for the last")
    return int(name) % width


def detects(beginning: str) -> bool:
    """Returns whether a file begins with -DOCSTART-, or has blank lines between lines of one number of columns, from 2
    to 12."""
    lines = beginning.rpartition("\n")[0].strip("\r\n").split("\n")[:200]
    widths = {len(line.split()) for line in lines if not line.startswith("#")}
    return lines[0].startswith("-DOCSTART-") or (0 in widths and len(widths) == 2 and 2 <= max(widths) <= 12)


def _detects_conllu(beginning: str) -> bool:
    lines = [line for line in beginning.split("\n")[:-1] if line and not line.startswith("#")]
    return bool(lines) and all(re.match(r"[0-9]+[-.0-9]*\t", line) and line.count("\t") == 9 for line in lines[:50])


COLUMNS = ReaderDef(read, (".conll", ".bio", ".iob", ".iob2", ".tsv"), detects, {"words": "0", "tags": "-1"})
CONLLU_DEFINITION = ReaderDef(read_conllu, (".conllu", ".conll"), _detects_conllu, {"words": "form", "tags": "upos"})
