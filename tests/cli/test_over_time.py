"""The table of `lmrep evaluate --checkpoints=all`."""

import pytest

from lmrep.cli import over_time
from lmrep.inference.evaluate import Measured


def test_stages_of_different_objectives_share_a_table(capsys):
    """A metric that a checkpoint lacks has an empty cell; texts such as names of paradigms are left out."""
    stored = []
    values = {2: {"loss": 1.5, "lm_loss": 1.5, "score": "pll"}, 1000: {"loss": 0.25, "mlm_loss": 0.25}}
    over_time.measure([2, 1000], lambda step: Measured(values[step], {}, lambda: stored.append(step)))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [["step", "loss", "lm_loss", "mlm_loss"], ["2", "1.5", "1.5"], ["1,000", "0.25", "0.25"]]
    assert stored == [2, 1000]


def test_a_killed_command_keeps_what_it_has_measured():
    stored = []

    def at(step):
        if step == 2:
            raise KeyboardInterrupt
        return Measured({"loss": 1.0}, {}, lambda: stored.append(step))

    with pytest.raises(KeyboardInterrupt):
        over_time.measure([0, 1, 2, 4], at)
    assert stored == [0, 1]
