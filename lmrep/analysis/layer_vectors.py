"""The vectors of labelled words or texts in every layer of a network, which probes are trained on."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array, Tree
from lmrep.data.records.examples import Examples
from lmrep.inference import evaluate_task
from lmrep.models.base import Context, Model, model_inputs
from lmrep.models.layer_choice import outputs
from lmrep.tasks import documents, words

EPS = 1e-6  # of a standard deviation


class Vectors(NamedTuple):
    """The vectors and labels of a split, which classifiers are trained or evaluated on."""

    x: np.ndarray  # float32 [k, m, d], k layers and m words or texts; vectors of narrower layers end with zeros
    y: np.ndarray  # int32 [m], labels; of `every_token`, the number of the word in its sentence
    unit: np.ndarray  # int64 [m], the unit of each word or text
    position: np.ndarray  # int64 [m], the token of the unit; 0 for texts


def vectors(params: Tree, model: Model, c: Any, examples: Examples, every_token: bool = False) -> Vectors:
    """Computes the vectors of all layers for the labelled words or texts.

    Args:
      params: of the encoder.
      c: the task's config. A word has the vector of its first or last token or their mean (`pieces`), a text that of
        `pooling`, which is not "attention".
      examples: the examples of a split, not packed.
      every_token: of tagging, give all tokens of words in place of a vector for each word; in windows of a long
        sentence, those of the window that has the word's tag.
    """
    tagging = "tag" in examples.units.columns
    name = "word" if every_token else "tag" if tagging else "label"

    @jax.jit
    def encode(params: Tree, batch: dict[str, Array]) -> Array:
        inputs = model_inputs(model, batch, conditions_on=Context(c.context))
        layers = outputs(model.encode(params, inputs, layers=True))
        if tagging and c.pieces == "mean" and not every_token:
            layers = [words.word_means(x, batch["word"], batch["segment_ids"]) for x in layers]
        if not tagging:
            layers = [documents.pool(c, model, {}, x, batch) for x in layers]
        width = max(x.shape[-1] for x in layers)
        return jnp.stack([jnp.pad(x, ((0, 0), (0, 0), (0, width - x.shape[-1]))) for x in layers])

    parts = []
    for batch in evaluate_task.batches(examples):
        labels = batch[name]
        row, column = np.nonzero(labels >= 0)
        x = np.asarray(encode(params, batch))[:, row, column]
        parts.append((x, labels[row, column], batch["unit"][row, 0], column - tagging * batch["first"][row, 0]))
    x, *columns = zip(*parts, strict=True)
    return Vectors(np.concatenate(x, 1), *map(np.concatenate, columns))


def normalization(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (mean, scale), float32 [k, 1, d] each, with which (x - mean) * scale has the mean 0 and the variance 1 in
    every dimension of x [k, m, d]; the scale of a constant dimension is 0."""
    mean, scale = x.mean(1, keepdims=True), 1 / np.maximum(x.std(1, keepdims=True), EPS)
    return mean, np.where(scale >= 1 / EPS, 0, scale).astype(np.float32)  # a constant dimension says nothing
