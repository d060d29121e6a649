"""Log messages of the package on standard error."""

import logging

from lmrep.core.errors import UserError
from lmrep.core.messages import byte_size, counted, show_messages


def test_messages_go_to_standard_error(capsys):
    package = logging.getLogger("lmrep")
    before = package.handlers[:], package.level, package.propagate
    try:
        show_messages()
        show_messages()
        logging.getLogger("lmrep.storage.checkpoints").warning("checkpoint %d is damaged", 3)
        logging.getLogger("lmrep.storage.checkpoints").info("a note")
    finally:
        package.handlers, package.level, package.propagate = before
    assert capsys.readouterr().err == "warning: checkpoint 3 is damaged\na note\n"


def test_nouns_are_plural_unless_there_is_one():
    assert [counted(n, "column") for n in (0, 1, 2, 1500)] == ["0 columns", "1 column", "2 columns", "1,500 columns"]


def test_control_characters_of_errors_are_escaped():
    assert str(UserError("a\tb\x1b[1m\x00 caf\u00e9\nnext")) == "a\\tb\\x1b[1m\\x00 caf\u00e9\nnext"


def test_sizes_have_three_digits_and_a_unit():
    assert [byte_size(n) for n in (0, 512, 999.6, 1234, 45_600_000, 139e9, 1.2e12, 5e15)] == [
        "0 B", "512 B", "1 kB", "1.23 kB", "45.6 MB", "139 GB", "1.2 TB", "5,000 TB"]
