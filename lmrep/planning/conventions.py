"""Training compute by two published formulas, from the sizes of a network.

Use them to compare with published figures; `flops.of_train_step` counts what a step really computes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands import this module, and do not wait for JAX
    from lmrep.models.sizes import Sizes, TransformerSizes

# Operations per element, as ELECTRA's script states them.
DROPOUT = 4  # a random number, a comparison, the mask, the correction
LAYER_NORM = 5  # mean; variance, by square and sum; scale; bias
GELU = 8
SOFTMAX = 5  # maximum, difference, exponential, sum, quotient
MASKED_FRACTION = 0.15625  # of positions that a masked language model predicts: 20 of 128


def electra_script(sizes: "TransformerSizes", length: int, predicts: str, fraction: float = MASKED_FRACTION) -> float:
    """Counts the operations of training a network on one sequence like `flops_computation.py` of
    google-research/electra (Clark et al., 2020): every operation of the forward pass, twice, since the script takes the
    backward pass to cost as much. An embedding lookup counts as the product with a one-hot vector.

    The layer norm after the attention counts `LAYER_NORM` operations a token, where `LAYER_NORM` times the width would
    be right. This is an error of the published script, kept so that figures are comparable.

    Args:
      sizes: of the network.
      length: number of tokens in the sequence.
      predicts: "masked", "tokens" or "binary", as in `NetworkUse.predicts`.
      fraction: fraction of the positions whose token is predicted, for "masked".

    Raises:
      ValueError: `predicts` has another value.
    """
    if predicts not in ("masked", "tokens", "binary"):
        raise ValueError(f"predicts is {predicts!r}, which ELECTRA's script does not count")
    d, e = sizes.width, sizes.embedding
    token = sizes.layers * _layer(sizes, length)
    token += 2 * e * sizes.vocab + 2 * e * (length + 2) + 2 * e + (LAYER_NORM + DROPOUT) * e  # the embeddings
    if e != d:
        token += 2 * d * e + d
    if predicts == "binary":
        token += 2 * d * d + d + GELU * d + 2 * d
    else:
        output = 2 * d * e + e + (GELU + LAYER_NORM) * e + 2 * e * sizes.vocab + (SOFTMAX + 2) * sizes.vocab
        token += (fraction if predicts == "masked" else 1.0) * output
    return 2 * length * token


def _layer(sizes: "TransformerSizes", length: int) -> int:
    """Returns the operations of one layer's forward pass for one token."""
    d, f, scores = sizes.width, sizes.mlp, length * sizes.heads
    attention = (
        3 * (2 * d * d + d)  # queries, keys, values
        + 2 * d * length + (1 + SOFTMAX + DROPOUT) * scores  # products of queries and keys: scaled, softmax, dropout
        + 2 * d * length  # the mean of the values
        + 2 * d * d + d + (DROPOUT + 1) * d  # the output: bias, dropout, residual sum
        + LAYER_NORM)  # not times d: see `electra_script`
    mlp = 2 * d * f + (1 + GELU) * f + 2 * d * f + d + (DROPOUT + 1) * d + LAYER_NORM * d
    return attention + mlp


def six_n(matrices: int, attention: int, length: int) -> int:
    """Returns the operations of training on one token: 6 N + 12 l d t (Kaplan et al., 2020; Chowdhery et al., 2022,
    appendix B).

    Each weight of the N takes a multiplication and an addition in the forward pass and four in the backward pass; the
    scores of the attention and the means of its values take 12 for each of t positions, causal or not.

    Args:
      matrices: N, as in `Sizes.matrices`: without embedding tables, output layer and heads.
      attention: l d, as in `Sizes.attention`.
      length: t, number of tokens in the sequence.
    """
    return 6 * matrices + 12 * attention * length


def six_n_of_text(sizes: "Sizes", length: int, source_length: int = 0) -> int:
    """Returns the operations of training on a text of `length` tokens by `six_n`. A network that reads a source also
    reads `source_length` tokens of it."""
    text = length * six_n(sizes.matrices, sizes.attention, length)
    if sizes.source is None:
        return text
    source = source_length * six_n(sizes.source.matrices, sizes.source.attention, source_length)
    return text + source + 12 * sizes.source.cross * length * source_length
