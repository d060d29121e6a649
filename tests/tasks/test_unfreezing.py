"""`config.unfreezing`: the stages of each way, their rates, and that a stage changes its own parameters alone."""

import shutil

import jax
import numpy as np
import pytest

import lmrep
from lmrep import optimizers
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.core.sharding import make_mesh
from lmrep.experiment import config as experiments
from lmrep.experiment import inspection, shapes
from lmrep.layers import batch_norm
from lmrep.optimizers.parameters import matches
from tests import runs
from tests.cases import slow_after
from tests.tasks import tiny

HEAD, TABLE, FIRST, SECOND = "objective", "encoder/embedding", "encoder/layers/0", "encoder/layers/1"
ALL = {HEAD, TABLE, FIRST, SECOND}
# unfreezing -> the parts that each stage trains, of a network of two layers
TRAINED = {
    "last": [{HEAD}],
    "gradual": [{HEAD}, {HEAD, SECOND}, {HEAD, SECOND, FIRST}, ALL],
    "gradual_released": [{HEAD}, {HEAD, SECOND}, ALL],
    "chain_thaw": [{HEAD}, {TABLE}, {FIRST}, {SECOND}, ALL],
}


def config(way, **fields):
    home = runs.folder("classification")
    return tiny.config("classification", home / "train.jsonl", home / "dev.jsonl",
                       "mesh=1x1x1,model=awd_lstm,network=ulmfit", **{
        "model__layers": 2, "model__embedding": 8, "objective__chunks__size": 4, "unfreezing": way, "epochs": 5.0,
        "batch_size": 64, "checkpoint__every": 1, "checkpoint__keep": 99, **fields})


def part_of(path):
    return next(part for part in ALL if path.startswith(part))


def stages(way, **fields):
    return experiments.resolve_stages(experiments.parse(config(way, **fields)))


@pytest.mark.parametrize("way", TRAINED)
def test_each_stage_has_multiplier_0_for_what_it_does_not_train(way):
    experiment = experiments.parse(config(way))
    specs = {"encoder": experiments.build_model(experiment).specs, "objective": {"classification": {
        "out": {"bias": experiments.build_model(experiment).specs["layers"]["0"]["input"]["bias"]}}}}
    found = [{part_of(path) for path, factor in optimizers.rate_factors(stage.optimizer, specs).items() if factor}
             for stage in stages(way)]
    assert found == TRAINED[way]
    assert [stage.start is None for stage in stages(way)] == [True] + [False] * (len(found) - 1)


def test_gradual_stages_are_epochs_and_the_last_has_the_rest():
    assert [stage.steps for stage in stages("gradual", steps=100)] == [20, 20, 20, 40]  # of 5 epochs
    assert [stage.steps for stage in stages("gradual", steps=100, epochs=2.0)] == [25] * 4
    assert [stage.steps for stage in stages("chain_thaw", steps=100)] == [20] * 5


def test_rates_of_chain_thaw_and_schedules_of_the_released_code():
    assert [stage.optimizer.learning_rate for stage in stages("chain_thaw")] == pytest.approx([1e-2] + 4 * [1e-3])
    released = stages("gradual_released", **{"optimizer__schedule": {"name": "slanted_triangular",
                                                                     "cut_fraction": 1 / 8}})
    assert [stage.optimizer.schedule.cut_fraction for stage in released] == [1 / 3, 1 / 3, 1 / 8]


def test_discriminative_rates_are_a_factor_of_2_6_apart():
    c = config("full", model__layers=3, optimizer__layer_decay=1 / 2.6, optimizer__layer_decay_of="groups")
    experiment = experiments.parse(c)
    specs = {"encoder": experiments.build_model(experiment).specs}
    specs["objective"] = specs["encoder"]["embedding"]
    factors = optimizers.rate_factors(experiment.optimizer, specs)
    for i, pattern in enumerate(["objective/*", "*/layers/2/*", "*/layers/1/*", "*/layers/0/*", "encoder/embedding/*"]):
        for path, mask in matches([pattern], specs).items():
            if mask:
                np.testing.assert_allclose(factors[path], 2.6**-i, rtol=1e-6)


def test_explicit_stages_of_a_task_are_refused():
    with pytest.raises(UserError, match=r"config\.unfreezing"):
        experiments.parse(config("full", stages=({"fraction": 0.5}, {"fraction": 0.5})))


def test_inspection_lists_the_rates_of_each_stage(tmp_path):
    text = inspection.report(experiments.parse(config("gradual", optimizer__layer_decay=0.5)), tmp_path, examples=0)
    lines = {line.split("  ")[1].strip(): line.split()[-4:] for line in text.splitlines() if line.startswith("  ")}
    assert lines["objective/*"] == ["0.01"] * 4
    assert lines["encoder/layers/1/*"] == ["-", "0.0025", "0.0025", "0.0025"]
    assert lines["encoder/embedding/*"] == ["-", "-", "-", "0.000625"]


def test_no_gradient_is_computed_for_what_a_stage_does_not_train():
    """The gradient of the head alone has less than half of the matrix products."""
    experiment = experiments.parse(config("gradual", model__width=64, model__embedding=32, objective__dropout=0.0))
    stages, mesh = shapes.without_data(experiment, tiny.tokenizer().vocabulary, make_mesh(1, 1, 1)), make_mesh(1, 1, 1)
    products = []
    for one in (stages[0], stages[-1]):
        params, batch, objective = one.state.params, shapes.batch(one, mesh), one.stage.objective

        def loss(params, batch, objective=objective):
            prepared = objective.prepare(None, batch)
            return objective.loss(params, prepared, jax.random.key(0), objective.carry(len(batch["example"])))[0]

        gradient = jax.jit(jax.grad(loss)).lower(params, batch)
        products.append(gradient.as_text().count("dot_general"))
    assert 0 < products[0] < products[1] / 2


@pytest.mark.parametrize("way", slow_after(0, ["gradual", "chain_thaw"]))
def test_a_stage_changes_its_own_parameters_and_a_resumed_run_ends_as_an_uninterrupted_one(way, tmp_path):
    """Running statistics continue from stage to stage."""
    workdir = tmp_path / "run"
    lmrep.train(config(way), workdir)
    steps = [0, *np.cumsum([stage.steps for stage in stages(way, steps=10)])]

    def state(step):
        return {path: np.asarray(value) for path, value in flatten(lmrep.load(workdir, int(step)).params).items()}

    found = [state(step) for step in steps[1:]]
    for before, after, start, trained in zip(found[:-1], found[1:], steps[1:-1], TRAINED[way][1:], strict=True):
        changed = {path for path, value in after.items() if not np.array_equal(value, before[path])}
        statistics = {path for path in after if path.startswith("shared")}
        assert statistics and statistics <= changed
        assert {part_of(path) for path in changed - statistics} == trained
        first = state(start + 1)
        for path in statistics:
            if path.endswith("mean"):  # what a batch adds has mostly the same signs; from 0, they would be the others
                added = first[path] - batch_norm.KEPT * before[path]
                assert (np.sign(added) == np.sign(before[path])).mean() > 0.8
    for checkpoint in (workdir / "checkpoints").glob("[0-9]*"):
        if int(checkpoint.name) > steps[-2]:  # the run continues where the last stage begins
            shutil.rmtree(checkpoint)
    lmrep.train(config(way), workdir)
    for path, value in state(steps[-1]).items():
        np.testing.assert_array_equal(value, found[-1][path], err_msg=path)
