"""The published sizes, as a table: what distinguishes one system from another is what stands here.

`PRESETS[name]` is the network and the exact number of its parameters: of the encoder with its embeddings, and
of the whole pretraining model with the heads that its paper trains. `tests/models/test_presets.py` counts them.
"""

from dataclasses import replace
from typing import NamedTuple

from lmrep.models.transformer import Config


class Preset(NamedTuple):
    """A published network."""

    config: Config
    encoder: int  # parameters of embeddings and layers
    pretraining: int  # those and the heads trained with them: pooler, masked LM and NSP for BERT; none for GPT
    model: str = "transformer"  # of `MODELS`


def _bert(layers: int, width: int, vocab: int = 30522) -> Config:
    """Devlin et al., 2019; the small sizes Turc et al., 2019. Heads are 64 wide, the feed-forward block 4 d."""
    return Config(vocab=vocab, layers=layers, width=width, heads=width // 64, mlp=4 * width)


def _roberta(layers: int, width: int) -> Config:
    """Liu et al., 2019: no token types, exact gelu, epsilon 1e-5, positions counted from row 2 of their table."""
    return replace(_bert(layers, width, vocab=50265), token_types=0, position_offset=2, norm_eps=1e-5,
                   activation="gelu", init="normal")


def _albert(layers: int, width: int, heads: int, dropout: float = 0.1) -> Config:
    """Lan et al., 2019: one layer's parameters for all, tables of 128 columns; dropout as in version 1 (2 has none)."""
    return replace(_bert(layers, width, vocab=30000), heads=heads, embedding=128, share="all", dropout=dropout,
                   attention_dropout=dropout)


def _spanbert(layers: int, width: int) -> Config:
    """Joshi et al., 2019: BERT, cased, with the exact gelu; one text a row, so that one token type is never seen."""
    return replace(_bert(layers, width, vocab=28996), activation="gelu", init="normal")


def _electra(layers: int, width: int, embedding: int = 0) -> Config:
    """Clark et al., 2020: BERT with the exact gelu; the small sizes with narrow tables."""
    return replace(_bert(layers, width), embedding=embedding, activation="gelu", project_init="glorot")


def _gpt() -> Config:
    """Radford et al., 2018: BERT's layer without norms on embeddings, read from left to right, 512 positions; dropout
    of the tables."""
    return replace(_bert(12, 768, vocab=40478), token_types=0, embedding_norm=False, norm_eps=1e-5, init="normal",
                   table_dropout=True)


def _gpt2(layers: int, width: int) -> Config:
    """Radford et al., 2019: norms before each block and at the end, 1,024 positions; what adds to the residual stream
    starts make_generator."""
    return replace(_bert(layers, width, vocab=50257), max_length=1024, token_types=0, embedding_norm=False, norm="pre",
                   norm_eps=1e-5, init="normal", position_stddev=0.01, residual_init="scaled")


PRESETS = {
    #                                 layers  width
    "bert_tiny":         Preset(_bert(     2,   128),           4_369_408,   4_433_468),
    "bert_mini":         Preset(_bert(     4,   256),          11_104_768,  11_267_900),
    "bert_small":        Preset(_bert(     4,   512),          28_500_992,  29_058_876),
    "bert_medium":       Preset(_bert(     8,   512),          41_110_528,  41_668_412),
    "bert_base":         Preset(_bert(    12,   768),         108_891_648, 110_106_428),
    "bert_base_cased":   Preset(_bert(    12,   768, 28996),  107_719_680, 108_932_934),
    "bert_large":        Preset(_bert(    24,  1024),         334_092_288, 336_226_108),
    "bert_large_cased":  Preset(_bert(    24,  1024, 28996),  332_529_664, 334_661_958),
    "roberta_base":      Preset(_roberta( 12,   768),         124_054_272, 124_696_665),
    "roberta_large":     Preset(_roberta( 24,  1024),         354_309_120, 355_411_033),
    #                              layers  width  heads
    "albert_base":       Preset(_albert(  12,   768,  12),        11_092_992,  11_813_810),
    "albert_large":      Preset(_albert(  24,  1024,  16),        16_634_368,  17_847_474),
    "albert_xlarge":     Preset(_albert(  24,  2048,  16),        54_528_512,  59_021_490),
    "albert_xxlarge":    Preset(_albert(  12,  4096,  64, 0.0),  205_814_272, 223_158_450),
    # pretraining counts the boundary head too, with 20 positions, and no pooler, which nothing trains
    "spanbert_base":     Preset(_spanbert(12,   768),         107_719_680, 110_301_480),
    "spanbert_large":    Preset(_spanbert(24,  1024),         332_529_664, 336_999_976),
    # pretraining counts the generator too: a quarter of the width, a third (base), all of it (small++, as released)
    "electra_small":     Preset(_electra( 12,   256, 128),     13_483_008,  14_196_219),
    "electra_small_plus": Preset(_electra(12,   256, 128),     13_483_008,  23_122_875),
    "electra_base":      Preset(_electra( 12,   768),         108_891_648, 119_386_427),
    "electra_large":     Preset(_electra( 24,  1024),         334_092_288, 354_655_291),
    "gpt":               Preset(_gpt(),                       116_534_784, 116_534_784),
    "gpt2":              Preset(_gpt2(    12,   768),         124_439_808, 124_439_808),
    "gpt2_medium":       Preset(_gpt2(    24,  1024),         354_823_168, 354_823_168),
    "gpt2_large":        Preset(_gpt2(    36,  1280),         774_030_080, 774_030_080),
    "gpt2_xl":           Preset(_gpt2(    48,  1600),       1_557_611_200, 1_557_611_200),
}  # fmt: skip
