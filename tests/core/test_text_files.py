"""Numbers in text files."""

import math

import pytest

from lmrep.core.text_files import parse_number


@pytest.mark.parametrize(("text", "value"), [
    ("2", 2), ("-2.5", -2.5), (" +.5\t", 0.5), ("1.", 1), ("1e-3", 0.001), ("2E5", 2e5), ("3\x1f", 3)])
def test_decimal_numbers_are_read(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize("text", ["", " ", "x", "1_0", "1,5", "nan", "inf", "-Infinity", "0x1", "1 2", ".", "e5", "--1",
                                  "\u0661\u0662", "\uff11", "9" * 5000])
def test_other_texts_are_none(text):
    assert math.isnan(parse_number(text))
