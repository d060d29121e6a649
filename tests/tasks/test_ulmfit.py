"""The classifier of ULMFiT: texts in chunks, concat pooling, and blocks with running statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.core.params import init
from lmrep.experiment import config as experiments
from lmrep.experiment.task_data import prepare_examples
from lmrep.layers import batch_norm
from lmrep.models.awd_lstm import DROPOUT
from lmrep.models.chunks import Chunks
from lmrep.objectives.base import Keys
from lmrep.objectives.outputs import with_network_losses
from lmrep.tasks import networks, ulmfit
from tests.cases import slow_after
from tests.reference import random_params
from tests.tasks import examples, tiny
from tests.tasks.tiny import Tiny

RECORDS = [{"text": "cat dog bird fish cat", "label": "a"}, {"text": "fish", "label": "b"},
           {"text": "dog dog stone", "label": "a"}]
BLOCKS = {"network": "ulmfit", **networks.FIELDS["ulmfit"], "ulmfit": ulmfit.Config(width=5)}


def made(model="awd_lstm", form=None, sizes=None, **fields):
    sizes = {"layers": 2, "embedding": 8, **dict.fromkeys(DROPOUT, 0.0), **(sizes or {})}
    return Tiny("classification", RECORDS, model, form=form, sizes=sizes, context="left", **fields)


def batch_of(task):
    store = task.examples()
    return store.gather(np.arange(3), store.batch_length(np.arange(3)))


@pytest.mark.parametrize(("model", "pooling"), slow_after(1, [
    ("awd_lstm", "concat"), ("awd_lstm", "position"), ("lstm", "max"), ("lstm", "mean")]))
def test_texts_in_chunks_have_the_predictions_of_texts_read_at_once(model, pooling):
    whole, chunked = (made(model, pooling=pooling, chunks=Chunks(size)).outputs for size in (0, 3))
    found, expected = (outputs(made(model, pooling=pooling).examples())["log_probabilities"]
                       for outputs in (chunked, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_packed_texts_are_not_read_in_chunks():
    task = made(form={"packed": True}, chunks=Chunks(3))
    with pytest.raises(UserError, match=r"chunks\.size is 3, and config\.format\.packed"):
        task.outputs(task.examples())


def test_the_blocks_are_their_formulas():
    c, d = ulmfit.Config(width=4, dropout=0.0), 6
    params, x = random_params(ulmfit.specs(c, d), 1), np.random.default_rng(0).normal(size=(5, 1, d))
    y, after = jax.jit(ulmfit.apply, static_argnums=1)(params, c, jnp.asarray(x, jnp.float32), np.ones((5, 1), bool),
                                                       ulmfit.statistics(c, d), jax.random.key(0))

    def normalized(x, part):
        x = (x - x.mean(0)) / np.sqrt(x.var(0) + batch_norm.EPSILON)
        return x * params[part]["scale"] + params[part]["bias"]

    dense = normalized(x, "norm") @ params["dense"]["kernel"] + params["dense"]["bias"]
    np.testing.assert_allclose(y, normalized(np.maximum(dense, 0), "dense_norm"), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(after["norm"]["mean"], 0.1 * x.mean((0, 1)), rtol=1e-4, atol=1e-6)


def test_initial_kernels_of_blocks_and_output_layer_have_pytorchs_range():
    head = init(made(**BLOCKS).objective.specs, jax.random.key(0))["objective"]["classification"]
    for kernel in (head["network"]["ulmfit"]["dense"]["kernel"], head["out"]["kernel"]):
        limit = kernel.shape[0] ** -0.5
        assert 0.8 * limit < np.abs(kernel).max() < limit


@pytest.mark.slow
def test_texts_in_chunks_have_the_same_gradient_in_microbatches_on_a_mesh(monkeypatch):
    monkeypatch.setitem(examples.CASES, "chunks", ("classification", "awd_lstm", {
        "pooling": "concat", "context": "left", "chunks": Chunks(3, kept=5), "sizes": {
            "embedding": 8, **dict.fromkeys(DROPOUT, 0.0)}}))
    whole, split = (examples.step("chunks", False, *layout) for layout in (((1, 1, 1), 1), ((2, 2, 2), 2)))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), split[0], whole[0])
    np.testing.assert_allclose(split[1]["loss"], whole[1]["loss"], rtol=1e-5)


@pytest.mark.slow
def test_training_moves_the_statistics_and_predictions_read_them():
    task = made(**BLOCKS, chunks=Chunks(3))
    batch, initial = batch_of(task), task.objective.carry(1)
    _, (_, after) = jax.jit(task.objective.loss)(
        task.params, task.objective.prepare(Keys(None, None), batch), jax.random.key(0), initial)
    assert jax.tree.structure(after) == jax.tree.structure(initial)
    found = [task.predict(task.params | {"shared": each.shared}, batch)["units"]["log_probabilities"]
             for each in (initial, after)]
    assert not np.allclose(*found)
    with pytest.raises(UserError, match="running statistics of network ulmfit"):
        task.predict(task.params, batch)


@pytest.mark.slow
def test_the_penalties_of_the_network_are_in_the_loss_once():
    """Without dropout, they are those of texts that are read at once."""
    task = made(pooling="mean", chunks=Chunks(3, "start"))
    batch = task.objective.prepare(Keys(None, None), batch_of(task))
    vocabulary = task.tokenizer.vocabulary

    def loss(chunked):
        c = task.config if chunked else made(pooling="mean").config
        objective = with_network_losses(lambda model: task.task.objective.build(c, model, vocabulary), task.model, 1)
        return jax.jit(objective.loss)(task.params, batch, jax.random.key(0), objective.carry(3))

    (total, (metrics, _)), (whole, (expected, _)) = map(loss, (True, False))
    for name in ("network_ar", "network_tar"):
        np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-5)
    plain = [value - sum(weight * each[f"network_{name}"][0] / each[f"network_{name}"][1] for name, weight in
                         (("ar", 2.0), ("tar", 1.0))) for value, each in ((total, metrics), (whole, expected))]
    np.testing.assert_allclose(*plain, rtol=1e-4)


def test_texts_begin_with_the_token_that_ends_documents(tmp_path):
    train = tiny.write(tmp_path / "train.jsonl", RECORDS)
    c = tiny.config("classification", train, None, "mesh=1x1x1,model=awd_lstm", objective__start_of_text=True,
                    objective__end_of_text=False, tokenizer__name="fastai_v1")
    prepared = prepare_examples(experiments.parse(c), experiments.parse(c).tokenizer)
    found, tokenizer = prepared.splits["train"].units, prepared.tokenizer
    for i, record in enumerate(RECORDS):
        ids = found.tokens[found.offsets[i] : found.offsets[i + 1]]
        assert tokenizer.id_to_token(int(ids[0])) == "xxbos"
        np.testing.assert_array_equal(ids[1:], tokenizer.encode_batch([record["text"]])[0])
