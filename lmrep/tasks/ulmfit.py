"""The two blocks above the pooled vector of a text in ULMFiT (Howard and Ruder, 2018, section 3.3): batch
normalization, dropout, a dense layer, ReLU, batch normalization. The head adds the dropout and the output layer of the
second block."""

from dataclasses import dataclass

import jax

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.layers import batch_norm, dropout, linear, recurrent
from lmrep.tasks.base import TextNetwork


@dataclass(frozen=True)
class Config:
    """The defaults are those of the released code."""

    width: int = setting(50, "of the dense layer", at_least=1)
    dropout: float = setting(0.4, "dropout rate before the dense layer", at_least=0, below=1)


def specs(c: Config, d: int) -> Tree:
    """Declares the parameters of the blocks on vectors of width d; initial kernels are uniform, as in PyTorch."""
    return {"norm": batch_norm.specs(d), "dense_norm": batch_norm.specs(c.width),
            "dense": linear.specs(d, c.width, (None, None), recurrent.uniform(d**-0.5))}


def statistics(c: Config, d: int) -> Tree:
    """Returns the running statistics before the first batch."""
    return {"norm": batch_norm.statistics(d), "dense_norm": batch_norm.statistics(c.width)}


def apply(
    params: Tree, c: Config, x: Array, mask: Array, running: Tree, key: Array | None = None
) -> tuple[Array, Tree]:
    """Applies the blocks to x [..., d].

    Args:
      params, running: laid out as `specs` and `statistics`.
      c: the config.
      x: vectors of texts.
      mask: bool[...], the vectors that count in statistics.
      key: for dropout, and to normalize by the statistics of the batch; None for neither.

    Returns:
      (float [..., width], the running statistics after the batch).
    """
    after, training = {}, key is not None
    x, after["norm"] = batch_norm.apply(params["norm"], running["norm"], x, mask, training)
    x = jax.nn.relu(linear.apply(params["dense"], dropout.apply(key, x, c.dropout)))
    x, after["dense_norm"] = batch_norm.apply(params["dense_norm"], running["dense_norm"], x, mask, training)
    return x, after


DEFINITION = TextNetwork(
    specs, statistics, lambda c: c.width,
    lambda params, c, x, batch, running, key: apply(params, c, x, batch["unit"] >= 0, running, key), pooled=True,
    fields={"pooling": "concat", "dense": False, "dropout": 0.1}, initial=lambda width: recurrent.uniform(width**-0.5))
