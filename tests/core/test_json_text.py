import json

import pytest

from lmrep.core.json_text import MAX_DEPTH, InvalidJSON, loads


@pytest.mark.parametrize("text, message", [
    ("", "Expecting value at character 1"),
    ('{"a": 1,\n "b" 2}', "line 2, character 6"),
    ('{"a": 1} x', "Extra data"),
    ("[" * 100_000, "nests deeper than 100 levels"),
    ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nests deeper than 100 levels"),
    ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "nests deeper than 100 levels"),
    ('{"a": {"b": 1, "b": 2}}', "key 'b' occurs twice"),
    ('[1, {"a": ' + "9" * 400 + "}]", "400 digits, more than 300$"),
    ("1" * 5000, "digits"),
    (r'["\ud800"]', "surrogate"),
    (r'{"\udc00x": 1}', "surrogate"),
    ('["\ud800"]', "surrogate"),
    (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
])
def test_refused(text, message):
    with pytest.raises(InvalidJSON, match=message) as error:
        loads(text)
    assert len(str(error.value)) < 100


@pytest.mark.parametrize("value", [
    None, 1.5, -3, "\U0001f600", {"": [{}, []]}, [[i] for i in range(1000)], 10 ** 299, "9" * 1000,
])
def test_values(value):
    assert loads(json.dumps(value)) == value
    assert loads(json.dumps(value, ensure_ascii=False).encode("utf-8-sig")) == value


def test_depth():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert loads(text) == json.loads(text)
