"""BERT with masked LM and next-sentence prediction trains identically on every mesh, without warnings of the
partitioner on the meshes of the experiment files."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lmrep.core.sharding import make_mesh
from lmrep.data.store.prepare import prepare
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.layers import chunked_attention
from lmrep.training.config import LogConfig, TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from tests import small

pytestmark = pytest.mark.usefixtures("no_compilation_cache")
STEPS = 10
NETWORKS = {
    "scanned": {"model.vocab": 208, "execution.scan": True, "execution.remat": "dots", "model.dropout": 0.1,
                "model.attention_dropout": 0.1, "model.mlp_dropout": 0.1},
    # Factorised embeddings, and a vocabulary that no tensor axis divides.
    "unrolled": {"model.vocab": 203, "model.embedding": 16, "execution.scan": False, "execution.remat": "full"},
}
CHUNKED = {f"{name} chunked": fields | {"execution.attention": "chunked"} for name, fields in NETWORKS.items()}


@pytest.fixture(scope="module")
def module_monkeypatch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def losses(tmp_path_factory, module_monkeypatch):
    """(network, mesh, microbatches) -> the loss of each step; every run trains once."""
    module_monkeypatch.setattr(chunked_attention, "block_size", lambda *_: 8)  # four blocks of a sequence
    home = tmp_path_factory.mktemp("meshes")
    small.corpus(home / "texts")

    @functools.cache
    def train(network, sizes, microbatches):
        config = small.config(home / "texts", format="segment_pair")
        config.steps, config.objective.sentence_pair, config.data.validation = STEPS, True, 0
        config.update_from_flattened_dict((NETWORKS | CHUNKED)[network] | {"microbatches": microbatches})
        experiment = experiments.parse(config)
        prepared = prepare(experiment.data, experiment.tokenizer, home / "data")
        lines, checkpoints = [], SimpleNamespace(save=lambda *_: None, wait=lambda: None)
        log = SimpleNamespace(write=lambda step, split, values: lines.append(values["loss"]),
                              timing=lambda *_: None, flush=lambda: None, keep_faults=lambda number: None)
        stages, config = build.stages(experiment, prepared, home / "data"), TrainerConfig(log=LogConfig(every=1))
        Trainer(stages, make_mesh(*sizes), 0, RunOutputs(checkpoints, log), config).run()
        return np.array(lines)

    return train


def warnings(capfd):
    """Warnings of the partitioner about tensors that it replicates."""
    return re.findall(r".*rematerial.*", capfd.readouterr().err, re.IGNORECASE)


@pytest.mark.parametrize(("network", "microbatches", "sizes"), [
    ("scanned", 1, (8, 1, 1)), ("scanned", 1, (2, 2, 2)), ("unrolled", 2, (1, 8, 1)), ("unrolled", 2, (1, 1, 4))])
def test_every_mesh_gives_the_losses_of_one_device(losses, capfd, network, microbatches, sizes):
    """With the same dropout, too."""
    expected = losses(network, (1, 1, 1), 1)
    assert len(expected) == STEPS and expected[-1] < expected[0] - 0.2  # it learns, so that wrong gradients would show
    np.testing.assert_allclose(losses(network, sizes, microbatches), expected, rtol=1e-5)
    assert not warnings(capfd)


@pytest.mark.parametrize(("network", "microbatches", "sizes"), [
    ("scanned", 1, (2, 2, 2)), ("unrolled", 2, (1, 1, 4))])
def test_chunked_attention_gives_the_losses_of_dense_attention(losses, capfd, network, microbatches, sizes):
    """With the same dropout, too."""
    expected = losses(network, (1, 1, 1), 1)
    np.testing.assert_allclose(losses(f"{network} chunked", sizes, microbatches), expected, rtol=1e-5)
    assert not warnings(capfd)


def test_a_replicated_tensor_gives_a_warning(capfd):
    """A table that is sharded along its width, looked up for a sharded batch, which our layout avoids."""
    mesh = make_mesh(2, 2, 2)

    def sharding(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def look_up(table, tokens):
        return jax.lax.with_sharding_constraint(jnp.take(table, tokens, axis=0), sharding(("data", "fsdp"))) * 2

    table = jax.ShapeDtypeStruct((64, 32), np.float32, sharding=sharding(None, "fsdp"))
    tokens = jax.ShapeDtypeStruct((16, 8), np.int32, sharding=sharding(("data", "fsdp")))
    jax.jit(look_up).lower(table, tokens).compile()
    assert warnings(capfd)
