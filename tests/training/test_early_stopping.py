"""Training ends once validation has not improved for `evaluation.patience` validations, and resumes exactly."""

import pytest

from lmrep.core.errors import UserError
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.faults import FaultsConfig
from lmrep.training.loop_state import LoopState
from tests.training.test_loop import run, stage
from tests.training.test_plateau import losses


@pytest.mark.parametrize(("values", "patience", "ends"), [
    ([9, 5, 6, 7], 2, 6), ([9, 5, 5], 1, 4), ([9, 5, 6, 4, 5, 6], 2, 10), ([9, 5, 6, 7, 8, 9], 0, 10)])
def test_a_run_ends_after_validations_that_do_not_improve(tmp_path, monkeypatch, values, patience, ends):
    """Validated at steps 0, 2, 4, ...; an equal loss is no improvement."""
    losses(monkeypatch, [float(value) for value in values])
    recorder = run(tmp_path, stage(), validate=2, patience=patience, log_every=1)
    assert recorder.steps("train")[-1] == recorder.steps("validation")[-1] == ends
    assert Checkpoints(tmp_path).steps()[-1] == ends


def test_a_resumed_run_ends_at_the_same_step(tmp_path, monkeypatch):
    """One validation without improvement lies before the checkpoint, the other after it. The ended run stays as it is,
    and goes on with more patience."""
    losses(monkeypatch, [9.0, 5.0, 6.0, 7.0])
    expected = run(tmp_path, stage(), save=5, validate=2, patience=2, log_every=1)
    Checkpoints(tmp_path).drop_after(5)
    losses(monkeypatch, [7.0])
    resumed = run(tmp_path, stage(), save=5, validate=2, patience=2, log_every=1, resumed=5)
    assert [line for line in expected.lines if line[0] > 5] == resumed.lines
    assert run(tmp_path, stage(), validate=2, patience=2, resumed=6).lines == []
    losses(monkeypatch, [4.0, 5.0])
    assert run(tmp_path, stage(), validate=2, patience=3, resumed=6).steps("validation") == [8, 10]


def test_only_validations_of_the_last_stage_count(tmp_path, monkeypatch):
    """The first stage is validated at steps 0 to 10, the second at 12 to 20."""
    losses(monkeypatch, [float(value) for value in (1, 2, 3, 4, 5, 6, 9, 8, 9, 9, 9)])
    recorder = run(tmp_path, stage(), stage(), validate=2, patience=2)
    assert recorder.steps("validation")[-1] == 18


def test_scores_improve_in_the_direction_of_their_metric():
    loop = LoopState.from_json({}, FaultsConfig(), 1)
    counted = []
    for score in (0.5, 0.6, 0.6, 0.4, 0.7):
        loop.count_validation(1, score)
        counted.append(loop.unimproved)
    assert counted == [0, 0, 1, 2, 0]


def test_it_needs_validation_data(tmp_path):
    with pytest.raises(UserError, match=r"evaluation\.patience is 3, and there is no validation data"):
        run(tmp_path, stage(validation=False), patience=3)
