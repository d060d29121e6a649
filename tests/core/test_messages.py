"""Log messages of the package on standard error."""

import logging

from lmrep.core.messages import show_messages


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
