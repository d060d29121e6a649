import pytest

from lmrep.core.errors import RunFault, UserError


@pytest.mark.parametrize("value", ["x" * 50_000, "a word " * 10_000, "'" + "9" * 400 + "'"])
@pytest.mark.parametrize("error", [UserError, RunFault])
def test_values_in_a_message_are_cut(error, value):
    text = str(error(f"data/x.json: the label is {value}; expected a number\nand a second line"))
    assert len(text) < 1000 and "characters ...]" in text
    assert text.startswith("data/x.json: the label is ") and text.endswith("expected a number\nand a second line")


def test_usual_messages_are_unchanged():
    text = "config has no field 'x'; it has " + ", ".join(f"field_{i}" for i in range(100))
    assert str(UserError(text)) == text
