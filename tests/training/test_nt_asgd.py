"""SGD with averages that validation starts: when it does, what is averaged, and that runs resume exactly."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from lmrep import optimizers
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.optimizers import ScheduleConfig, nt_asgd, plateau, sgd
from lmrep.storage import averaging
from lmrep.storage.checkpoints import Checkpoints
from tests.optimizers.updates import STACKED, train, values
from tests.training.test_loop import CLOZE, STEPS, run, stage
from tests.training.test_plateau import losses, resumed

CONFIG = nt_asgd.Config("nt_asgd", learning_rate=0.5, weight_decay=0.01, clip=0.0, nonmonotone=2,
                        schedule=ScheduleConfig("constant"))
RULE = optimizers.validation_rule(CONFIG)


@functools.cache
def optimizer():
    return optimizers.build(CONFIG, CLOZE.specs, STEPS)


def staged():
    return stage(None, optimizer(), validation_rule=RULE)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_trigger_is_that_of_the_released_code(n):
    """There the loss is compared with `min(losses[:-n])`, if there are more than n before it."""
    for seed in range(20):
        found = np.random.default_rng(seed).normal(size=14).astype(np.float32) - np.arange(14, dtype=np.float32) / 4
        state = optimizers.build(dataclasses.replace(CONFIG, nonmonotone=n), {}, 10).init({})
        triggered = False
        for i, loss in enumerate(found):
            triggered |= bool(i > n and loss > min(found[: i - n]))
            state = nt_asgd.after_validation(state, loss, RULE)
            assert int(state.rule.averages) == triggered


def test_averages_are_of_the_parameters_at_the_trigger_and_after_it():
    """1 / (K - T + 1) of each of w_T to w_K. The updates are those of SGD."""
    start, gradients = values(STACKED, 0), [values(STACKED, i) for i in range(1, 7)]
    plain = sgd.Config("sgd", **{field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(CONFIG)
                                 if field.name not in ("name", "nonmonotone", "averages")})
    expected, _ = train(plain, STACKED, start, gradients)
    rule = optimizers.build(CONFIG, STACKED, 10)
    params, state, update = start, rule.init(start), jax.jit(rule.update)
    for step, (gradient, now) in enumerate(zip(gradients, expected, strict=True)):
        updates, state = update(gradient, state, params)
        params = jax.tree.map(lambda x, y: x + y, params, updates)
        jax.tree.map(np.testing.assert_array_equal, params, now)
        first = min(step, 2)  # the trigger is after the third update
        for path, x in flatten(optimizers.averaged(params, state)).items():
            mean = np.mean([flatten(p)[path] for p in expected[first if step > 2 else step : step + 1]], 0)
            np.testing.assert_allclose(x, mean, rtol=1e-5, atol=1e-6)
        if step == 2:
            for loss in (1.0, 3.0, 3.0, 2.0):
                state = nt_asgd.after_validation(state, loss, RULE)


def test_with_averages_always_all_parameters_after_an_update_are_averaged():
    """As PyTorch's ASGD(t0=0, lambd=0), which leaves the first of them out, over 50 steps with factors of the rate.
    There a factor takes effect a step late: the rate of an update is computed after the one before it."""
    torch = pytest.importorskip("torch")
    rule = optimizers.build(dataclasses.replace(CONFIG, averages="always"), STACKED, 50)
    start, history = jax.tree.map(np.float64, values(STACKED, 0)), []
    theirs = {path: torch.nn.Parameter(torch.tensor(x)) for path, x in flatten(start).items()}
    asgd = torch.optim.ASGD(theirs.values(), lr=0.5, t0=0, lambd=0, weight_decay=0.01)
    with jax.enable_x64(True):
        params, state, update = start, rule.init(start), jax.jit(rule.update)
        for step, factor in enumerate(np.random.default_rng(0).integers(1, 12, 50) / 8):
            gradient = jax.tree.map(np.float64, values(STACKED, step + 1))
            updates, state = update(gradient, state, params, rate_factor=factor)
            params = jax.tree.map(lambda x, y: x + y, params, updates)
            for path, parameter in theirs.items():
                parameter.grad = torch.tensor(flatten(gradient)[path])
                if step:
                    asgd.state[parameter]["eta"].fill_(0.5 * factor)
            asgd.param_groups[0]["lr"] = 0.5 * factor
            asgd.step()
            history.append({path: parameter.detach().clone() for path, parameter in theirs.items()})
        for path, average in flatten(state.average).items():
            expected = (49 * asgd.state[theirs[path]]["ax"] + history[0][path]) / 50
            np.testing.assert_allclose(flatten(params)[path], history[-1][path], rtol=1e-6)
            np.testing.assert_allclose(average, expected, rtol=1e-6)


def test_with_averages_always_the_trigger_ends_training(tmp_path, monkeypatch):
    """After step 8, whose loss is above the lowest of all but the last two before it; a resumed run does not go on. The
    loss before the first step is that of the first training, and does not count."""
    config = dataclasses.replace(CONFIG, averages="always")
    one = stage(None, optimizers.build(config, CLOZE.specs, STEPS), validation_rule=optimizers.validation_rule(config))
    losses(monkeypatch, [1.0, 7.0, 9.0, 8.5, 8.1])
    assert run(tmp_path, one, validate=2, log_every=1).steps("validation") == [0, 2, 4, 6, 8]
    assert Checkpoints(tmp_path).steps()[-1] == 8
    assert run(tmp_path, one, resumed=8, validate=2).lines == []


def test_another_average_is_kept_instead_and_another_rule_is_refused():
    assert optimizers.validation_rule(dataclasses.replace(CONFIG, ema=0.9)) is None
    with pytest.raises(UserError, match=r"'nt_asgd' and optimizer\.schedule 'plateau' both"):
        optimizers.check(dataclasses.replace(CONFIG, schedule=plateau.Config("plateau")), 10)


@pytest.mark.parametrize("found", [[3.0, 2.0, 2.5, 4.0, 5.0], [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]],
                         ids=["triggered", "not_triggered"])
def test_a_resumed_run_is_the_same_to_the_bit(found, tmp_path, monkeypatch):
    """Whether the trigger is before the checkpoint or after it. Checkpoints give the averages."""
    expected = resumed(monkeypatch, tmp_path, staged, [*found, *[9.0] * STEPS])
    assert int(expected.opt_state.rule.averages) == 1 and int(expected.opt_state.count) > 2
    saved = flatten(averaging.parameters(Checkpoints(tmp_path), STEPS, averaged=True))
    for path, value in flatten(expected.opt_state.average).items():
        np.testing.assert_array_equal(saved[path], value)
        assert np.abs(value - flatten(expected.params)[path]).max() > 0
