"""What stages and the loop refuse before the first step, and the field that messages name."""

import numpy as np
import optax
import pytest

from lmrep.core.errors import UserError
from lmrep.core.sharding import make_mesh
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training import faults
from lmrep.training.config import CheckpointConfig, TrainerConfig
from lmrep.training.faults import FaultsConfig
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.stages import Stage, check, copy_params, set_params
from tests.contract import objectives as toys
from tests.training import test_loop, test_plateau, test_stages
from tests.training.test_stages import stage, tree


def start(paths):
    return lambda tmp_path: copy_params(tree(2), tree(2), paths)


def follow(**second):
    return lambda tmp_path: check([stage(3), stage(2, **second)])


def of_another_optimizer(tmp_path):
    check([stage(3), Stage("tuned", 2, toys.cloze("encoder"), optax.sgd(0.1), stage(2).batches, test_stages.BATCH)])


def best(tmp_path):
    Trainer([test_loop.stage(metrics=test_loop.F1)], make_mesh(1, 1, 1), 0, RunOutputs(Checkpoints(tmp_path)),
            TrainerConfig(CheckpointConfig(best="f2")))


REFUSALS = {  # what is called -> what the message names
    "a plateau without validation data": (
        lambda tmp_path: test_loop.run(tmp_path, test_plateau.staged(validation=False)), ("validation",)),
    "a start of no parameters": (start({"decoder": "encoder"}), ("'decoder'", "encoder/a", "objective/g")),
    "a start of no parameters, by a slash": (start({"encoder/": "encoder"}), ("'encoder/'",)),
    "a start from no parameters": (start({"encoder": "generator"}), ("'encoder/a'", "'generator/a'")),
    "a start from parameters of another shape": (
        lambda _: copy_params(tree(2), tree(3), {"encoder/a": "objective/g/a"}),
        ("'encoder/a'", "(2,)", "'objective/g/a'", "(3,)")),
    "values of another shape": (
        lambda _: set_params(tree(2), {"encoder/a": np.zeros(3)}), ("'encoder/a'", "(2,)", "(3,)")),
    "values of no parameter": (
        lambda _: set_params(tree(2), {"encoder/aa": np.zeros(2)}), ("'encoder/aa'", "did you mean 'encoder/a")),
    "a stage that continues with another optimizer": (of_another_optimizer, ("'tuned'", "'main'", "start")),
    "a stage that starts no parameters": (follow(start={"nowhere": "encoder"}), ("'nowhere'",)),
    "a stage that starts from what the previous one lacks": (
        follow(start={"encoder": "objective"}), ("'objective/",)),
    "a spike below the median": (lambda _: faults.check(FaultsConfig(spike=0.5)), ("faults.spike", "0.5")),
    "a best metric that is unknown": (best, ("checkpoint.best", "'f2'", "f1", "loss")),
}


@pytest.mark.parametrize(("act", "names"), REFUSALS.values(), ids=REFUSALS)
def test_it_is_refused(act, names, tmp_path):
    with pytest.raises(UserError) as refused:
        act(tmp_path)
    assert all(name in str(refused.value) for name in names), refused.value


def test_what_fits_is_not_refused():
    check([stage(3), stage(2), stage(4, start={"encoder": "encoder"})])
