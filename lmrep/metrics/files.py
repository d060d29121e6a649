"""Files of gold and predicted values: labels, tags in columns, and SQuAD's JSON."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmrep.core.errors import UserError
from lmrep.core.input_files import open_input
from lmrep.core.json_text import json_object
from lmrep.core.messages import counted
from lmrep.core.text_files import lines, parse_number


class Values(NamedTuple):
    """The values of a file."""

    path: str
    values: list[str]
    lines: list[int]  # the line number of each value, from 1
    ids: list[str] | None = None  # the id of each value; None if the file has none

    def where(self, number: int) -> str:
        """Names file and line of value `number`, for messages."""
        return f"{self.path}, line {self.lines[number]}"


GOLD_FIELDS = ("label", "gold", "score")
PREDICTED_FIELDS = ("prediction", "predicted", "label", "score")
REFERENCE_FIELDS, TEXT_FIELDS = ("target", "reference", "gold"), ("generated", "prediction", "text")
ID_FIELDS = ("id", "index", "idx")
NESTED_FIELDS = ("label", "value", "choice")  # fields of a prediction that `lmrep` wrote


def _json(path: str) -> dict[str, Any]:
    with open_input(path) as file:
        return json_object(file.read(), path)


def table(path: str) -> Iterator[tuple[int, list[str]]]:
    """Reads (line number, cells) from a file with tabs between cells; skips empty lines. Quotes mean nothing."""
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            yield number, [cell.strip() for cell in line.split("\t")]


def read_values(path: str, field: str, usual: Sequence[str]) -> Values:
    """Reads one value per line, or a field of TSV with a header line (.tsv) or of JSON Lines (.jsonl).

    Args:
      path: the file.
      field: the field of .tsv and .jsonl files, for nested JSON a dotted path; "": the first of `usual` that the file
        has. Of an object, such as a prediction that `lmrep` wrote, the first of `NESTED_FIELDS` is read.
      usual: names of fields.

    Raises:
      UserError: the file cannot be read, or a line lacks the field, with file and line.
    """
    records = {".tsv": _tsv, ".jsonl": _json_lines}.get(Path(path).suffix.lower())
    if not records:
        if field:
            raise UserError(f"{path} is read as one value per line, which has no field {field!r}; expected a name that "
                            "ends with .tsv or .jsonl")
        values = [line.strip() for line in lines(path)]
        if "" in values:
            raise UserError(f"{path}, line {values.index('') + 1} is empty; expected one value per line")
        return Values(path, values, list(range(1, len(values) + 1)))
    values, numbers, ids, id_field = [], [], [], None
    for number, record in records(path):
        if not values:
            field = field or next((name for name in usual if name in record), usual[0])
            id_field = next((name for name in ID_FIELDS if name in record and name != field), None)
        for name in filter(None, (field, id_field)):
            if _follow(record, name) is None and name not in record:
                raise UserError(f"{path}, line {number} has no field {name!r}, only {', '.join(record)}; name the "
                                "field with --gold_field or --prediction_field")
        values.append(_text(_plain(_follow(record, field), field, usual, f"{path}, line {number}")))
        numbers.append(number)
        if id_field:
            ids.append(_text(record[id_field]))
    return Values(path, values, numbers, ids if id_field else None)


def read_texts(path: str, field: str, usual: Sequence[str]) -> list[str]:
    """Reads one text per line, which may be empty, or a field of TSV or JSON Lines. Arguments and errors are those of
    `read_values`."""
    if Path(path).suffix.lower() in (".tsv", ".jsonl"):
        return read_values(path, field, usual).values
    return [*lines(path)]


def _tsv(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    names: list[str] = []
    for number, cells in table(path):
        if not names:
            names = cells
        elif len(cells) != len(names):
            raise UserError(f"{path}, line {number} has {len(cells)} cells; the first line names {len(names)}")
        else:
            yield number, dict(zip(names, cells, strict=True))


def _json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            yield number, json_object(line, f"{path}, line {number}")


def _follow(record: Any, field: str) -> Any:
    """Returns the value of a field, whose name may be a dotted path; None if there is none."""
    if field in record:
        return record[field]
    for name in field.split("."):
        record = record.get(name) if isinstance(record, dict) else None
    return record


def _plain(value: Any, field: str, usual: Sequence[str], where: str) -> Any:
    """Returns a value, or the one of `NESTED_FIELDS` in an object. Raises UserError for other objects and for lists."""
    if not isinstance(value, dict | list):
        return value
    if isinstance(value, dict) and (name := next((name for name in NESTED_FIELDS if name in value), None)):
        return _plain(value[name], f"{field}.{name}", usual, where)
    flag = "--gold_field" if usual is GOLD_FIELDS else "--prediction_field"
    if isinstance(value, dict):
        raise UserError(f"{where}: {field!r} is an object with {', '.join(value) or 'no fields'}; name one of them "
                        f"with {flag}={field}.{next(iter(value), 'name')}")
    raise UserError(f"{where}: {field!r} is a list; expected one value: name its field with {flag}")


def _text(value: Any) -> str:
    """Returns a string unchanged, and other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def align(gold: Values, predicted: Values) -> list[int]:
    """Finds the number of the prediction for each gold value: by id if both files have ids, else by position.

    Predictions numbered 0, 1, ... belong to the gold examples in their order, whatever ids these have. Raises UserError
    if an id is missing, unknown or repeated, or the numbers of values differ."""
    if gold.ids is None or predicted.ids is None:
        if len(gold.values) != len(predicted.values):
            raise UserError(f"{gold.path} has {len(gold.values):,} examples and {predicted.path} has "
                            f"{len(predicted.values):,} predictions; expected one for each example, in its order")
        return list(range(len(gold.values)))
    number, wanted = _positions(predicted), list(_positions(gold))
    in_order = [str(i) for i in range(len(wanted))]
    if set(number) != set(wanted) and set(number) == set(in_order):
        wanted = in_order
    if missing := [key for key in wanted if key not in number]:
        raise UserError(f"{predicted.path} has no prediction for {_some(missing)} of {gold.path}")
    if extra := sorted(set(number) - set(wanted)):
        raise UserError(f"{predicted.path} has predictions for {_some(extra)}, which {gold.path} does not have")
    return [number[key] for key in wanted]


def _positions(values: Values) -> dict[str, int]:
    """Returns {id: position}. Raises UserError for a repeated id."""
    positions: dict[str, int] = {}
    for position, key in enumerate(values.ids):
        if key in positions:
            raise UserError(f"{values.where(position)}: the id {key!r} is on line {values.lines[positions[key]]} too")
        positions[key] = position
    return positions


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(map(repr, ids[:3])) + (", ..." if len(ids) > 3 else "")
    return f"{len(ids):,} id{'s' * (len(ids) > 1)} ({shown})"


def floats(values: Values) -> list[float]:
    """Converts values to finite numbers. Raises UserError with file and line."""
    numbers = []
    for position, value in enumerate(values.values):
        numbers.append(parse_number(value))
        if not math.isfinite(numbers[-1]):
            raise UserError(f"{values.where(position)} is {value[:80]!r}; expected a finite number")
    return numbers


def read_columns(path: str, min_columns: int) -> list[list[tuple[int, list[str]]]]:
    """Reads the sentences of a file with a line per token and columns between spaces or tabs. Empty lines and lines
    with -X- end a sentence.

    Args:
      path: the file.
      min_columns: the least number of columns of a line.

    Returns:
      A list of (line number, cells) for each sentence.

    Raises:
      UserError: the file cannot be read or has no token, or the number of columns changes, with file and line.
    """
    sentences, sentence, width = [], [], 0
    for number, line in enumerate(lines(path), 1):
        cells = [cell for cell in line.replace("\t", " ").split(" ") if cell]
        if not cells or cells[0] == "-X-":
            if sentence:
                sentences.append(sentence)
            sentence = []
            continue
        width = width or len(cells)
        if len(cells) != width or width < min_columns:
            raise UserError(f"{path}, line {number} has {counted(len(cells), 'column')}; expected "
                            + (f"{width}, as on the first line" if width >= min_columns else
                               f"at least {min_columns}, the last of them tags"))
        sentence.append((number, cells))
    sentences += [sentence] if sentence else []
    if not sentences:
        raise UserError(f"{path} has no tokens; expected a line per token, with its tag in the last column")
    return sentences


def read_tags(gold_path: str | None, predicted_path: str | None) -> tuple[list[list[str]], list[list[str]]]:
    """Reads the gold and predicted tags of each sentence from the last columns of two files, or the last two of one.
    Raises UserError as `read_columns`, and, with file and line, if the files differ in tokens or sentences."""
    if not gold_path or not predicted_path:
        sentences = read_columns(gold_path or predicted_path, 2)
        return tuple([[cells[column] for _, cells in sentence] for sentence in sentences] for column in (-2, -1))
    gold, predicted = read_columns(gold_path, 1), read_columns(predicted_path, 1)
    for number, (a, b) in enumerate(zip(gold, predicted, strict=False), 1):
        if len(a) != len(b):
            raise UserError(f"sentence {number:,} has {len(a)} tokens in {gold_path}, line {a[0][0]}, and {len(b)} in "
                            f"{predicted_path}, line {b[0][0]}; expected the same sentences")
        for (line, cells), (other_line, others) in zip(a, b, strict=True):
            if len(cells) > 1 and len(others) > 1 and cells[0] != others[0]:
                raise UserError(f"{predicted_path}, line {other_line} has the token {others[0]!r}; {gold_path}, line "
                                f"{line} has {cells[0]!r}; expected the same tokens")
    if len(gold) != len(predicted):
        raise UserError(f"{gold_path} has {len(gold):,} sentences and {predicted_path} has {len(predicted):,}; "
                        "expected the same sentences")
    return tuple([[cells[-1] for _, cells in sentence] for sentence in sentences] for sentences in (gold, predicted))


def read_squad(path: str) -> dict[str, list[str]]:
    """Reads the gold answers, {question id: texts}, of a file in SQuAD's format. Raises UserError if it is not."""
    content = _json(path)
    try:
        gold = {qa["id"]: [answer["text"] for answer in qa["answers"]]
                for article in content["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]}
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} is not in SQuAD's format ({type(error).__name__}: {str(error)[:200]}); expected data, "
                        "paragraphs and qas, each with id and answers") from None
    for key, answers in gold.items():
        if bad := [value for value in (key, *answers) if not isinstance(value, str)]:
            raise UserError(f"{path}, question {str(key)[:80]} has {str(bad[0])[:80]} as its id or an answer's text; "
                            "expected text")
    return gold


def read_by_id(path: str, type_: type) -> dict[str, Any]:
    """Reads a JSON object {id: value} whose values are texts (`type_` str) or finite numbers (float). Raises UserError
    for other values."""
    content = _json(path)
    for key, value in content.items():
        good = isinstance(value, str) if type_ is str else (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))
        if not good:
            raise UserError(f"{path}: the value of {key!r} is {value!r}; expected "
                            + ("the text of an answer" if type_ is str else "a finite number"))
    return content
