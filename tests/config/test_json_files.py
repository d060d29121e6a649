"""Files that are read back: typed values, or one message that names the file and the key."""

from typing import Annotated, NamedTuple, NotRequired, TypedDict

import pytest

from lmrep.config import json_files
from lmrep.config.json_files import Count, Measured, Number, numbers
from lmrep.core.errors import UserError


class Part(TypedDict):
    score: Measured
    note: NotRequired[str]


class Whole(NamedTuple):
    step: Count
    parts: list[Part]
    pair: tuple[str, int]
    rate: Number | None = None


INTACT = '{"step": 3, "parts": [{"score": "nan", "more": [1]}], "pair": ["a", 1]}'


def test_values_have_their_types(tmp_path):
    (tmp_path / "x.json").write_text(INTACT)
    assert json_files.read(Whole, tmp_path / "x.json") == Whole(3, [{"score": "nan", "more": [1]}], ("a", 1))
    assert json_files.read(Whole, tmp_path / "none.json") is None
    assert json_files.read_lines(Whole, tmp_path / "none.json") is None


@pytest.mark.parametrize(("old", "new", "message"), [
    ("3", "-1", "step is -1; expected a whole number"),
    ("3", "3.0", "step is 3.0"),
    ("3", "true", "step is True"),
    ("3", "1e400", "step is inf"),
    ("3", "9" * 30, "step is 999"),
    ("3", "9" * 400, "not JSON: an integer has 400 digits"),
    ("3", '"' + "x" * 50_000 + '"', "50,002 characters"),
    ('"nan"', "NaN", "parts.0.score is nan; expected a number"),
    ('"nan"', "1e301", "parts.0.score is 1e.301"),
    ('"score": "nan"', '"note": "a"', "parts.0.score is missing"),
    ('"more"', '"note"', r"parts.0.note is \[1\]; expected a string"),
    ('["a", 1]', '["a"]', r"pair is \['a'\]; expected 2 values"),
    ('["a", 1]', "{}", "pair is {}; expected 2 values"),
    ('"step"', '"stop"', "it has no field 'stop'; did you mean 'step'"),
    ('"parts"', '"step"', "the key 'step' occurs twice"),
    ("[1]", "[" * 90_000 + "]" * 90_000, "nests deeper than 100 levels"),
    (INTACT, "[]", r"it is \[\]; expected a mapping"),
    (INTACT, "", "is not JSON"),
])
def test_damage_is_one_message_with_file_and_key(tmp_path, old, new, message):
    (tmp_path / "x.json").write_text(INTACT.replace(old, new, 1))
    with pytest.raises(UserError, match=message) as error:
        json_files.read(Whole, tmp_path / "x.json", "do this")
    text = str(error.value)
    assert text.startswith(f"{tmp_path}/x.json is damaged: ") and text.endswith("; do this") and len(text) < 500


def test_damaged_lines_are_counted_and_the_first_is_described(tmp_path):
    class Line(TypedDict):
        step: Count

    lines = [b'{"step": 1, "loss": 0.5}', b'{"step": 1, "loss": []}', b"", b'{"loss": 1}', b"\xff", b'{"step": 2}']
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    found = json_files.read_lines(Annotated[Line, numbers()], tmp_path / "x.jsonl")
    assert [line["step"] for line in found.records] == [1, 2]
    assert found.note.startswith("4 of 6 lines are damaged and left out: line 2: ") and "'loss'" in found.note


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a file"):
        json_files.read(Whole, tmp_path)
