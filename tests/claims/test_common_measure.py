"""Fine-tuning as the common measure of networks that were trained under different objectives."""

import json

import pytest

import lmrep
from tests import small
from tests.tasks import tiny


@pytest.mark.slow
def test_equal_networks_score_the_same_whatever_their_objective(small_home, tmp_path):
    """The parameters of one network, saved as trained by three objectives. With one head, since ELECTRA's is another by
    default, fine-tuning reads nothing else of the runs: losses and scores are equal bit for bit."""
    run = lmrep.load(small_home / "run")
    data = tiny.write(tmp_path / "train.jsonl", [{"text": f"The {word} sees the dog.", "label": word}
                                                  for word in small.NOUNS[:2] * 20])
    scores = {}
    for objective in ("masked", "span_boundary", "replaced_token"):
        config = small.config(small_home / "texts", objective)
        lmrep.save({"encoder": run.params["encoder"]}, config, run.tokenizer, tmp_path / objective)
        fine_tuned = tmp_path / f"{objective}-classify"
        lmrep.train(f"tasks/classify.py:init={tmp_path / objective},mesh=1x1x1", fine_tuned, **{
            "data.train": str(data), "data.validation": str(data), "steps": 4, "batch_size": 8, "length": 16,
            "objective.activation": "tanh", "objective.input_dropout": 0.0, "log.report": False,
            "log.tensorboard": False})
        results = json.loads((fine_tuned / "results.json").read_text())
        scores[objective] = small.losses(fine_tuned), results["evaluations"]
    assert scores["masked"] == scores["span_boundary"] == scores["replaced_token"] and scores["masked"][0]
