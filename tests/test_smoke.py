"""The quick start's path with a tiny network: train, resume, load, predict, evaluate."""

import lmrep
from tests import small


def test_a_tiny_run_trains_resumes_predicts_and_evaluates(tmp_path):
    config = small.config(small.corpus(tmp_path / "texts"))
    config.steps, config.evaluation.every = 4, 4
    outcome = lmrep.train(config, tmp_path / "run", data_dir=tmp_path / "data")
    assert outcome.steps == 4 and outcome.after["loss"] > 0
    config.steps = 6
    assert lmrep.train(config, tmp_path / "run", data_dir=tmp_path / "data").steps == 6
    run = lmrep.load(tmp_path / "run")
    assert run.step == 6
    [[mask]] = run.fill_masks(["The red [MASK] sees the dog."], k=3)
    assert len(mask) == 3 and 0 < mask[0][1] < 1
    metrics = lmrep.evaluate(tmp_path / "run", split="test", data_dir=tmp_path / "data")
    assert metrics["mlm_loss"] > 0
