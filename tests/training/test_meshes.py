"""The whole of BERT, masked LM and next-sentence prediction, is the same training on every mesh, and the partitioner
has nothing to complain of on any that ships."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding, PartitionSpec

from lmrep import assembly
from lmrep import experiment as experiments
from lmrep.core.sharding import batch_sharding, make_mesh, replicated, use
from lmrep.data.prepare import prepare
from lmrep.training import state as states
from lmrep.training.checkpoints import Checkpoints
from lmrep.training.logging import MetricsLog
from lmrep.training.loop import CheckpointConfig, Trainer
from lmrep.training.step import evaluation_step, train_step
from tests import small

STEPS = 10
DROPOUT = {"model.dropout": 0.1, "model.attention_dropout": 0.1, "model.mlp_dropout": 0.1}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus in `texts`."""
    home = tmp_path_factory.mktemp("meshes")
    small.corpus(home / "texts")
    return home


@pytest.fixture
def fresh():
    """Compiles anew all that the test compiles: a program that comes out of the cache says nothing."""
    former = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", former)
    compilation_cache.reset_cache()


def stages(home, **fields):
    """The small experiment on segment pairs, with some of its fields changed."""
    config = small.config(home / "texts", format="segment_pair")
    config.steps, config.objective.sentence_pair, config.data.validation = STEPS, True, 0
    config.update_from_flattened_dict(fields)
    experiment = experiments.parse(config)
    return assembly.stages(experiment, prepare(experiment.data, experiment.tokenizer, home / "data"), home / "data")


def losses(home, workdir, sizes=(1, 1, 1), **fields):
    """The loss of each step of a run on a mesh of these sizes."""
    workdir.mkdir()
    checkpoints, metrics = Checkpoints(workdir / "checkpoints"), MetricsLog(workdir)
    metrics.resume(None)
    try:
        Trainer(stages(home, **fields), make_mesh(*sizes), 0, checkpoints, metrics=metrics, log_every=1,
                checkpoint=CheckpointConfig(every=STEPS)).run()
    finally:
        metrics.close()
        checkpoints.close()
    return small.losses(workdir)


@pytest.fixture(scope="module")
def alone(home):
    """The losses on one device."""
    found = losses(home, home / "alone")
    assert len(found) == STEPS and found[-1] < found[0] - 0.2  # it learns, so that a wrong gradient would show
    return found


@pytest.mark.parametrize(("sizes", "microbatches"), [
    ((1, 1, 1), 2), ((8, 1, 1), 1), ((8, 1, 1), 2), ((1, 8, 1), 1), ((1, 8, 1), 2), ((1, 1, 4), 1), ((1, 1, 4), 2),
    ((2, 2, 2), 1), ((2, 2, 2), 2)])
def test_every_mesh_gives_the_losses_of_one_device(home, alone, tmp_path, sizes, microbatches):
    found = losses(home, tmp_path / "run", sizes, microbatches=microbatches)
    np.testing.assert_allclose(found, alone, rtol=1e-5)


def test_dropout_does_not_depend_on_the_mesh(home, alone, tmp_path):
    one = losses(home, tmp_path / "one", **DROPOUT)
    np.testing.assert_allclose(losses(home, tmp_path / "eight", (2, 2, 2), **DROPOUT), one, rtol=1e-5)
    assert np.abs(np.array(one) - alone).max() > 1e-2  # there was dropout


SHIPPED = [(8, 1, 1), (1, 8, 1), (1, 1, 4), (2, 2, 2)]
NETWORKS = {
    "scanned": {"execution.remat": "dots", "model.embedding": 16, "model.vocab": 203, **DROPOUT},
    "unrolled": {"execution.scan": False, "execution.remat": "full", "model.vocab": 208, "microbatches": 2},
}


def programs(stage, mesh):
    """Compiles all that a run on this mesh does: the first state, the step, the evaluation."""
    rows = stage.batch_size
    shape = partial(jax.ShapeDtypeStruct, dtype=np.int32, sharding=batch_sharding(mesh))
    host = next(stage.batches(np.arange(rows), 0, 1))
    batch = {name: shape(values.shape) for name, values in host.items()}
    with use(mesh):
        layout = states.layout(stage.objective, stage.optimizer, rows, mesh)
        state = states.abstract(stage.objective, stage.optimizer, rows, mesh)
        create = partial(states.create, stage.objective, stage.optimizer, rows)
        step = partial(train_step, objective=stage.objective, optimizer=stage.optimizer, seed=0,
                       microbatches=stage.microbatches)
        jax.jit(create, static_argnums=0, out_shardings=layout).lower(0).compile()
        jax.jit(step, donate_argnums=0, out_shardings=(layout, replicated(mesh))).lower(state, batch).compile()
        evaluate = partial(evaluation_step, objective=stage.objective, seed=0)
        jax.jit(evaluate).lower(state.params, batch, state.carry).compile()


def complaints(capfd):
    """What the partitioner wrote of tensors that it replicates, in whatever spelling."""
    return re.findall(r".*rematerial.*", capfd.readouterr().err, re.IGNORECASE)


@pytest.mark.parametrize("sizes", SHIPPED, ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_no_tensor_is_replicated_against_our_will(home, fresh, capfd, network, sizes):
    [stage] = stages(home, **NETWORKS[network])
    capfd.readouterr()
    programs(stage, make_mesh(*sizes))
    assert not complaints(capfd)


def test_a_replicated_tensor_would_be_seen(fresh, capfd):
    """A table cut along its width, looked up for rows that are cut: what the layout of ours avoids."""
    mesh = make_mesh(2, 2, 2)

    def cut(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def look_up(table, tokens):
        rows = jnp.take(table, tokens, axis=0)
        return jax.lax.with_sharding_constraint(rows, cut(("data", "fsdp"), None, None)).sum()

    table = jax.ShapeDtypeStruct((64, 32), np.float32, sharding=cut(None, ("tensor", "fsdp")))
    tokens = jax.ShapeDtypeStruct((16, 8), np.int32, sharding=cut(("data", "fsdp")))
    jax.jit(look_up).lower(table, tokens).compile()
    assert complaints(capfd)
