"""BERT with masked LM and next-sentence prediction, GPT-2 and ELECTRA train identically on every mesh, without warnings
of the partitioner. (Steps of every objective: `objectives/test_properties.py`.)"""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lmrep.core import sharding
from lmrep.core.sharding import make_mesh
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.layers import chunked_attention, lm_head
from lmrep.training.config import LogConfig, TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from tests import small

pytestmark = pytest.mark.usefixtures("no_compilation_cache")
STEPS = 10
PAIRS = {"format": "segment_pair"}
NETWORKS = {  # the arguments of `small.config`, and fields
    "scanned": (PAIRS, {"objective.sentence_pair": True, "model.vocab": 208, "execution.scan": True,
                        "execution.remat": "dots", "model.dropout": 0.1, "model.attention_dropout": 0.1,
                        "model.mlp_dropout": 0.1}),
    # Factorised embeddings, and a vocabulary that no tensor axis divides.
    "unrolled": (PAIRS, {"objective.sentence_pair": True, "model.vocab": 203, "model.embedding": 16,
                         "execution.scan": False, "execution.remat": "full"}),
    "gpt2": ({"objective": "causal"}, {"model.vocab": 208, "model.norm": "pre", "model.embedding_norm": False,
                                       "model.token_types": 0}),
    "electra": ({"objective": "replaced_token"}, {"model.vocab": 208}),
}
CHUNKED = {f"{name} chunked": (choices, fields | {"execution.attention": "chunked"})
           for name, (choices, fields) in NETWORKS.items()}


@pytest.fixture(scope="module")
def module_monkeypatch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def losses(tmp_path_factory, module_monkeypatch):
    """(network, mesh, microbatches) -> the loss of each step; every run trains once."""
    module_monkeypatch.setattr(chunked_attention, "block_size", lambda *_: 8)  # four blocks of a sequence
    module_monkeypatch.setattr(lm_head, "CHUNK_LOGITS", 2**14)  # six chunks of a batch, or eight
    home = tmp_path_factory.mktemp("meshes")
    small.corpus(home / "texts")

    @functools.cache
    def train(network, sizes, microbatches):
        choices, fields = (NETWORKS | CHUNKED)[network]
        config = small.config(home / "texts", **choices)
        config.steps, config.data.validation = STEPS, 0
        config.update_from_flattened_dict(fields | {"microbatches": microbatches})
        experiment = experiments.parse(config)
        data = build.prepare_data(experiment, home / "data")
        lines, checkpoints = [], SimpleNamespace(save=lambda *_: None, wait=lambda: None, check=lambda: None)
        log = SimpleNamespace(write=lambda step, split, values: lines.append(values["loss"]),
                              timing=lambda *_: None, flush=lambda: None, keep_faults=lambda number: None)
        stages, config = build.stages(data, home / "data"), TrainerConfig(log=LogConfig(every=1))
        Trainer(stages, make_mesh(*sizes), 0, RunOutputs(checkpoints, log), config).run()
        return np.array(lines)

    return train


def warnings(capfd):
    """Warnings of the partitioner about tensors that it replicates."""
    return re.findall(r".*rematerial.*", capfd.readouterr().err, re.IGNORECASE)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "microbatches", "sizes"), [
    ("scanned", 1, (2, 2, 2)), ("unrolled", 2, (1, 2, 1, 4)), ("electra", 1, (1, 2, 1, 4))])
def test_every_mesh_gives_the_losses_of_one_device(losses, capfd, network, microbatches, sizes):
    """With the same dropout, too."""
    expected = losses(network, (1, 1, 1), 1)
    assert len(expected) == STEPS and expected[-1] < expected[0] - 0.2  # it learns, so that wrong gradients would show
    np.testing.assert_allclose(losses(network, sizes, microbatches), expected, rtol=1e-5)
    assert not warnings(capfd)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "microbatches", "sizes"), [
    ("scanned", 1, (1, 2, 2, 2)), ("gpt2", 2, (2, 1, 1, 4))])
def test_chunked_attention_gives_the_losses_of_dense_attention(losses, capfd, network, microbatches, sizes):
    """With the same dropout, too."""
    expected = losses(network, (1, 1, 1), 1)
    np.testing.assert_allclose(losses(f"{network} chunked", sizes, microbatches), expected, rtol=1e-5)
    assert not warnings(capfd)


@pytest.mark.slow
def test_two_slices_give_the_losses_of_one_device(losses, capfd, monkeypatch):
    """Slices that are joined along `data`, each with an fsdp axis."""
    monkeypatch.setattr(sharding, "slice_of", lambda device: device.id % 2)
    np.testing.assert_allclose(losses("unrolled", (2, 4, 1), 1), losses("unrolled", (1, 1, 1), 1), rtol=1e-5)
    assert not warnings(capfd)


def test_a_replicated_tensor_gives_a_warning(capfd):
    """A table that is sharded along its width, looked up for a sharded batch, which our layout avoids."""
    mesh = make_mesh(2, 2, 2)

    def layout(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def look_up(table, tokens):
        return jax.lax.with_sharding_constraint(jnp.take(table, tokens, axis=0), layout(("data", "fsdp"))) * 2

    table = jax.ShapeDtypeStruct((64, 32), np.float32, sharding=layout(None, "fsdp"))
    tokens = jax.ShapeDtypeStruct((16, 8), np.int32, sharding=layout(("data", "fsdp")))
    jax.jit(look_up).lower(table, tokens).compile()
    assert warnings(capfd)
