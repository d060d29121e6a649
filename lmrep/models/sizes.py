"""The numbers of networks by which published formulas count floating-point operations."""

from typing import NamedTuple


class TransformerSizes(NamedTuple):
    """The numbers of a Transformer by which ELECTRA's script counts floating-point operations."""

    layers: int
    width: int
    heads: int
    mlp: int
    embedding: int  # width of the tables
    vocab: int


class SourceSizes(NamedTuple):
    """The numbers of `Sizes` for the source of a network that reads one."""

    matrices: int  # elements of the matrices that the vector of a token of the source is multiplied by
    attention: int = 0  # the width of the attention among the tokens of the source, summed over layers
    cross: int = 0  # the width of the attention of the text to the source, summed over layers


class Sizes(NamedTuple):
    """The numbers of a network."""

    # elements of all matrices that a token's vector is multiplied by. Matrices that layers share count once a layer;
    # embedding tables do not count.
    matrices: int
    attention: int = 0  # the width of the attention, summed over the layers that attend to the full sequence; 0 without
    transformer: TransformerSizes | None = None  # None for networks other than BERT's Transformer
    source: SourceSizes | None = None  # what the tokens of a source cost, in networks that read one
