"""What validation found for a checkpoint, as a loaded run reads it."""

import json
import logging

import pytest

from lmrep.experiment import config as experiments
from lmrep.inference.evaluate_task import with_tuned
from tests.tasks import tiny


@pytest.fixture
def threshold(tmp_path, caplog):
    """threshold(lines, step) -> (that of the loaded run, what was logged)."""
    experiment = experiments.parse(tiny.config("span_extraction", tmp_path / "train.json"))

    def read(lines, step):
        caplog.clear()
        (tmp_path / "metrics.jsonl").write_text("".join(
            line if isinstance(line, str) else json.dumps({"split": "validation", **line}) + "\n" for line in lines))
        with caplog.at_level(logging.INFO, "lmrep"):
            found = with_tuned(experiment, tmp_path, step)
        return found.objective["threshold"], caplog.text

    return read


def test_threshold_is_that_of_the_checkpoint_in_spite_of_damaged_lines(threshold):
    lines = [{"step": 4, "threshold": 1.5}, '{"step": 4, "spl\n', "[1]\n", {"step": 8, "threshold": 2.5}]
    value, logged = threshold(lines, 8)
    assert value == 2.5 and "2 of 4 lines are damaged" in logged
    assert threshold(lines, 4)[0] == 1.5


def test_threshold_of_an_earlier_validation_is_logged(threshold):
    value, logged = threshold([{"step": 4, "threshold": 1.5}], 8)
    assert value == 1.5 and "that of step 4" in logged


def test_validation_without_a_threshold_is_silent(threshold):
    assert threshold([{"step": 8, "answer_f1": 0.5}], 8) == (0.0, "")
    assert "no validation" in threshold([], 8)[1]
