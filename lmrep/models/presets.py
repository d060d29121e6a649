"""The published networks as a table: what distinguishes one system from another is stated here.

`PRESETS[name]` has the network's config, the exact number of its parameters (of the encoder with its embeddings, and of
the full pretraining model with the heads that its paper trains), and the tokenizer that its paper uses.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lmrep.models import awd_lstm, bilstm, encoder_decoder, seq2seq_lstm, transformer_xl
from lmrep.models.transformer import Config


class Preset(NamedTuple):
    """A published network."""

    # the network's config, of the class of `MODELS[model]`
    config: (Config | awd_lstm.Config | bilstm.Config | transformer_xl.Config | encoder_decoder.Config
             | seq2seq_lstm.Config)
    encoder: int  # number of parameters of embeddings and layers
    # number of parameters with the heads that are trained with them: pooler, masked LM and NSP for BERT; none for GPT
    pretraining: int
    family: str  # the system that it belongs to, "bert"
    tokenizer: str  # name of its tokenizer in `lmrep.data.tokenizers`
    lowercase: bool  # whether that tokenizer lower-cases
    model: str = "transformer"  # name of the network in `MODELS`


def _encoder(
    family: str, layers: int, width: int, encoder: int, pretraining: int, vocab: int = 30522,
    tokenizer: str = "wordpiece", lowercase: bool = True, **fields: Any,
) -> Preset:
    """A network with BERT's sizes (Devlin et al., 2019: heads of width 64, a feed-forward block of width 4 d), and
    other values of these `fields`."""
    config = Config(vocab=vocab, layers=layers, width=width, heads=width // 64, mlp=4 * width)
    return Preset(replace(config, **fields), encoder, pretraining, family, tokenizer, lowercase)


_exact = partial(_encoder, activation="gelu", init="normal")  # with exact gelu
# The small sizes are from Turc et al. (2019).
_bert, _bert_cased = partial(_encoder, "bert"), partial(_encoder, "bert", vocab=28996, lowercase=False)
# Sanh et al. (2019): BERT without token types; no pooler.
_distilbert = partial(_exact, "distilbert", token_types=0)
# Liu et al. (2019): no token types, positions from row 2 of the table on.
_roberta = partial(_exact, "roberta", vocab=50265, tokenizer="byte_level_bpe", lowercase=False, token_types=0,
                   position_offset=2, norm_eps=1e-5)
# Joshi et al. (2019): cased; single texts, so that the second token type is unused.
_spanbert = partial(_exact, "spanbert", vocab=28996, lowercase=False)
# Clark et al. (2020): the small sizes have narrow tables.
_electra = partial(_encoder, "electra", activation="gelu", project_init="glorot")
# Lan et al. (2019): all layers share their parameters; dropout as in version 1 (version 2 has none).
_albert = partial(_encoder, "albert", vocab=30000, tokenizer="sentencepiece_unigram", embedding=128, share="all")
# Radford et al. (2018): BERT's layers without a norm on the embeddings, 512 positions, dropout on the tables.
_gpt = partial(_encoder, "gpt", 12, 768, vocab=40478, tokenizer="bpe", token_types=0, embedding_norm=False,
               norm_eps=1e-5, init="normal", table_dropout=True)
# Radford et al. (2019): norms before each block and after the last, 1,024 positions; projections that add to the
# residual stream start smaller.
_gpt2 = partial(_encoder, "gpt2", vocab=50257, tokenizer="byte_level_bpe", lowercase=False, max_length=1024,
                token_types=0, embedding_norm=False, norm="pre", norm_eps=1e-5, init="normal", position_stddev=0.01,
                residual_init="scaled")


def _modernbert(layers: int, width: int, mlp: int, encoder: int, pretraining: int) -> Preset:
    """Warner et al. (2024): rotary positions, gated blocks, no biases but that of the output layer, no dropout, global
    attention in every third layer."""
    config = Config(
        vocab=50368, layers=layers, width=width, heads=width // 64, mlp=mlp, max_length=8192, positions="rotary",
        rotary_base=160_000.0, local_base=10_000.0, window=64, token_types=0, norm="pre",
        norm_kind="layer_without_bias", first_norm=False, norm_eps=1e-5, bias=False, gated=True, activation="gelu",
        dropout=0.0, attention_dropout=0.0, residual_init="scaled")
    return Preset(config, encoder, pretraining, "modernbert", "byte_level_bpe", False)


def _neobert(layers: int, width: int, mlp: int, encoder: int, pretraining: int) -> Preset:
    """Le Breton et al. (2025): rotary positions, RMS norm, SwiGLU and no biases, and an output table of its own. The
    released code draws initial weights between -0.02 and 0.02, evenly; here, normally with the same deviation."""
    config = Config(
        layers=layers, width=width, heads=width // 64, mlp=mlp, max_length=4096, positions="rotary", token_types=0,
        embedding_norm=False, norm="pre", norm_kind="rms", norm_eps=1e-5, bias=False, gated=True, activation="silu",
        tied=False, dropout=0.0, attention_dropout=0.0, init="normal", init_stddev=0.0115)
    return Preset(config, encoder, pretraining, "neobert", "wordpiece", True)


def _deberta(layers: int, width: int, encoder: int, pretraining: int, convolution: int = 0) -> Preset:
    """He et al. (2021, 2023): relative positions in 256 buckets to each side, apart from content; no others."""
    config = Config(
        vocab=128_100, layers=layers, width=width, heads=width // 64, mlp=4 * width, positions="disentangled",
        convolution=convolution, token_types=0, norm_eps=1e-7, activation="gelu", init="normal")
    return Preset(config, encoder, pretraining, "deberta", "sentencepiece_unigram", False)


def _elmo(cell: int, width: int, highways: int, encoder: int, pretraining: int) -> Preset:
    """Peters et al. (2018): two layers in each direction over 2,048 filters of characters."""
    config = bilstm.Config(vocab=793_471, cell=cell, width=width, highways=highways)
    return Preset(config, encoder, pretraining, "elmo", "elmo", False, "bilstm")


def _transformer_xl(
    layers: int, width: int, heads: int, mlp: int, memory: int, encoder: int, pretraining: int,
    tokenizer: str = "words", **options: Any,
) -> Preset:
    """Dai et al. (2019), with the sizes and the memory of the released scripts for training."""
    config = transformer_xl.Config(layers=layers, width=width, heads=heads, mlp=mlp, memory=memory, **options)
    return Preset(config, encoder, pretraining, "transformer_xl", tokenizer, False, "transformer_xl")


_WT103 = {"vocab": 267_735, "cutoffs": (20_000, 40_000, 200_000), "tied_projections": "tails"}
_WT103_LARGE = _WT103 | {"div": 4, "dropout": 0.2, "attention_dropout": 0.2}
_ENWIK8 = {"vocab": 204, "tokenizer": "bytes"}
_LM1B = {"vocab": 793_471, "cutoffs": (60_000, 100_000, 640_000), "tied_projections": "none", "div": 4, "dropout": 0.0}


def _xlnet(layers: int, width: int, encoder: int, pretraining: int) -> Preset:
    """Yang et al. (2019): BERT's sizes with relative positions and segments, and a memory of 384 positions."""
    config = transformer_xl.Config(
        vocab=32000, layers=layers, width=width, heads=width // 64, mlp=4 * width, causal=False, memory=384, reuse=-1,
        segments=True, untie=True, scale_embedding=False, norm_eps=1e-12, activation="gelu_tanh", attention_dropout=0.1,
        scale_stddev=0.0)
    return Preset(config, encoder, pretraining, "xlnet", "sentencepiece_xlnet", False, "transformer_xl")


def _cove(vocab: int, encoder: int, pretraining: int) -> Preset:
    """McCann et al. (2017): two bidirectional layers over word vectors, and the decoder of OpenNMT-py."""
    return Preset(seq2seq_lstm.Config(vocab=vocab), encoder, pretraining, "cove", "words", False, "seq2seq_lstm")


def _awd_lstm(vocab: int, encoder: int, pretraining: int, **options: Any) -> Preset:
    """Merity et al. (2018), with the dropout of the released commands, and Howard and Ruder (2018)."""
    config = awd_lstm.Config(vocab=vocab, **options)
    return Preset(config, encoder, pretraining, "awd_lstm", "words", False, "awd_lstm")


# The language model of fastai 0.7, whose output layer has no biases, and whose penalty is on outputs before dropout.
_ULMFIT = {"dropout": 0.1, "hidden_dropout": 0.15, "input_dropout": 0.25, "embedding_dropout": 0.02,
           "weight_dropout": 0.2, "ar_of": "raw"}


def _transformer(width: int, heads: int, parameters: int, dropout: float) -> Preset:
    """Vaswani et al. (2017): six layers in each stack, one table, norms after residual sums, no biases in the
    attention. Initial values are those of the released code, and so is dropout, on residual sums and embeddings."""
    config = encoder_decoder.Config(
        vocab=37000, width=width, layers=6, heads=heads, mlp=4 * width, max_length=1024, positions="sinusoidal",
        norm="post", rms_norm=False, mlp_bias=True, scaled_attention=True, scaled_embedding=True, scaled_output=False,
        dropout=dropout, attention_dropout=0.0, mlp_dropout=0.0, shared_dropout=False, init="uniform",
        embedding_stddev=0.0)
    return Preset(config, parameters, parameters, "transformer", "sentencepiece_bpe", False, "encoder_decoder")


def _t5(width: int, layers: int, heads: int, k: int, mlp: int, parameters: int) -> Preset:
    """Raffel et al. (2019)."""
    config = encoder_decoder.Config(width=width, layers=layers, heads=heads, head_width=k, mlp=mlp)
    return Preset(config, parameters, parameters, "t5", "sentencepiece_t5", False, "encoder_decoder")


def _t5_1_1(width: int, layers: int, heads: int, mlp: int, encoder: int, pretraining: int) -> Preset:
    """T5 1.1: a gated feed-forward block, an output table of its own, no dropout while it is pretrained."""
    config = encoder_decoder.Config(
        width=width, layers=layers, heads=heads, head_width=64, mlp=mlp, gated=True, activation="gelu_tanh",
        tied="embeddings", dropout=0.0, attention_dropout=0.0, mlp_dropout=0.0)
    return Preset(config, encoder, pretraining, "t5", "sentencepiece_t5", False, "encoder_decoder")


PRESETS = {
    #                          layers  width      encoder  pretraining
    "bert_tiny":         _bert(     2,   128,   4_369_408,   4_433_468),
    "bert_mini":         _bert(     4,   256,  11_104_768,  11_267_900),
    "bert_small":        _bert(     4,   512,  28_500_992,  29_058_876),
    "bert_medium":       _bert(     8,   512,  41_110_528,  41_668_412),
    "bert_base":         _bert(    12,   768, 108_891_648, 110_106_428),
    "bert_base_cased":   _bert_cased(12, 768, 107_719_680, 108_932_934),
    "bert_large":        _bert(    24,  1024, 334_092_288, 336_226_108),
    "bert_large_cased":  _bert_cased(24, 1024, 332_529_664, 334_661_958),
    "distilbert_base":   _distilbert(6,  768,  66_362_880,  66_985_530),
    "roberta_base":      _roberta( 12,   768, 124_054_272, 124_696_665),
    "roberta_large":     _roberta( 24,  1024, 354_309_120, 355_411_033),
    "albert_base":       _albert(  12,   768, 11_092_992, 11_813_810, heads=12),
    "albert_large":      _albert(  24,  1024, 16_634_368, 17_847_474, heads=16),
    "albert_xlarge":     _albert(  24,  2048, 54_528_512, 59_021_490, heads=16),
    "albert_xxlarge":    _albert(  12,  4096, 205_814_272, 223_158_450, heads=64, dropout=0.0, attention_dropout=0.0),
    # pretraining counts the boundary head, with 20 positions, and not the pooler, which is not trained
    "spanbert_base":     _spanbert(12,   768, 107_719_680, 110_301_480),
    "spanbert_large":    _spanbert(24,  1024, 332_529_664, 336_999_976),
    # pretraining counts the generator: a quarter of the width, a third (base), all of it (small++, as released)
    "electra_small":     _electra( 12,   256,  13_483_008,  14_196_219, embedding=128),
    "electra_small_plus": _electra(12,   256,  13_483_008,  23_122_875, embedding=128),
    "electra_base":      _electra( 12,   768, 108_891_648, 119_386_427),
    "electra_large":     _electra( 24,  1024, 334_092_288, 354_655_291),
    # pretraining counts the generator, with half the layers, and its separate table (v3), the masked-LM head (v2)
    "deberta_v3_small":   _deberta(6,   768,   141_304_320,   262_656_613),
    "deberta_v3_base":    _deberta(12,  768,   183_831_552,   326_447_461),
    "deberta_v3_large":   _deberta(24, 1024,   434_012_160,   719_100_005),
    "deberta_v2_xlarge":  _deberta(24, 1536,   884_593_152,   887_085_156, convolution=3),
    "deberta_v2_xxlarge": _deberta(48, 1536, 1_564_549_632, 1_567_041_636, convolution=3),
    "modernbert_base":  _modernbert(22,  768, 1152, 149_014_272, 149_655_232),
    "modernbert_large": _modernbert(28, 1024, 2624, 394_781_696, 395_881_664),
    "neobert":              _neobert(28, 768, 2048, 221_665_536, 245_136_954),
    #                          cell  width  highways
    "elmo_small":        _elmo(  1024,  128,   1,  13_593_312, 115_951_071),
    "elmo_medium":       _elmo(  2048,  256,   1,  28_027_744, 231_949_791),
    "elmo_original":     _elmo(  4096,  512,   2,  93_600_864, 500_651_487),
    # encoder counts the first vector of the query stream, pretraining the bias of the softmax
    "xlnet_base":       _xlnet(   12,   768, 116_718_336, 116_750_336),
    "xlnet_large":      _xlnet(   24,  1024, 360_268_800, 360_300_800),
    "gpt":               _gpt(116_534_784, 116_534_784),
    "gpt2":              _gpt2(    12,   768,   124_439_808, 124_439_808),
    "gpt2_medium":       _gpt2(    24,  1024,   354_823_168, 354_823_168),
    "gpt2_large":        _gpt2(    36,  1280,   774_030_080, 774_030_080),
    "gpt2_xl":           _gpt2(    48,  1600, 1_557_611_200, 1_557_611_200),
    # pretraining counts the output layer: biases, classes of the clusters, projections that are not tied
    #                                      layers  width heads  mlp  memory
    "transformer_xl_wt103_base":  _transformer_xl(16,  410, 10, 2100, 150, 150_838_570, 151_107_538, **_WT103),
    "transformer_xl_wt103_large": _transformer_xl(18, 1024, 16, 4096, 384, 283_851_120, 285_170_506, **_WT103_LARGE),
    "transformer_xl_enwik8":      _transformer_xl(12,  512,  8, 2048, 512,  41_055_232,  41_055_436, **_ENWIK8),
    "transformer_xl_lm1b":        _transformer_xl(18, 1024,  8, 4096,  32, 355_622_896, 357_812_082, **_LM1B),
    # The vocabulary follows the released commands for WMT 2017 (salesforce/cove), which leave it at OpenNMT-py's
    # default: the 50,000 most frequent words of a language, lower-cased beforehand, and four special ones. Gates have
    # two biases there and one here; pretraining counts the output table, without the bias that it has there.
    "cove":              _cove( 50_004, 41_172_000, 71_174_400),
    # pretraining counts the biases of the output layer
    #                           vocab     encoder  pretraining
    "awd_lstm_ptb":   _awd_lstm(10_000, 24_211_600, 24_221_600),
    "awd_lstm_wt2":   _awd_lstm(33_278, 33_522_800, 33_556_078, hidden_dropout=0.2, input_dropout=0.65),
    "awd_lstm_ulmfit": _awd_lstm(60_002, 44_212_400, 44_212_400, **_ULMFIT),
    #                         width  heads    parameters  dropout
    "transformer_base":  _transformer(  512,  8,  63_045_632, 0.1),
    "transformer_big":   _transformer( 1024, 16, 214_171_648, 0.3),
    #                          width layers heads  k   mlp      parameters
    "t5_small":               _t5( 512,  6,   8,  64,  2048,     60_506_624),
    "t5_base":                _t5( 768, 12,  12,  64,  3072,    222_903_552),
    "t5_large":               _t5(1024, 24,  16,  64,  4096,    737_668_096),
    "t5_3b":                  _t5(1024, 24,  32, 128, 16384,  2_851_598_336),
    "t5_11b":                 _t5(1024, 24, 128, 128, 65536, 11_307_321_344),
    # pretraining counts the output table
    "t5_1_1_small":       _t5_1_1( 512,  8,   6,       1024,     60_511_616,     76_961_152),
    "t5_1_1_base":        _t5_1_1( 768, 12,  12,       2048,    222_903_552,    247_577_856),
    "t5_1_1_large":       _t5_1_1(1024, 24,  16,       2816,    750_251_008,    783_150_080),
    "t5_1_1_xl":          _t5_1_1(2048, 24,  32,       5120,  2_783_959_040,  2_849_757_184),
    "t5_1_1_xxl":         _t5_1_1(4096, 24,  64,      10240, 11_003_736_064, 11_135_332_352),
}  # fmt: skip

# family -> the fields of a task's head (`lmrep.tasks.heads.Head`) that its published systems set to other values than
# BERT's
TASK_HEADS: Mapping[str, Mapping[str, Any]] = {
    "roberta": {"input_dropout": 0.1},
    "electra": {"input_dropout": 0.1, "activation": "gelu"},
    "distilbert": {"activation": "relu", "dropout": 0.2},
    "deberta": {"activation": "gelu"},
    "modernbert": {"activation": "gelu", "dense": True, "norm": True, "dropout": 0.0},
    "gpt": {"context": "left", "dense": False},
    "gpt2": {"context": "left", "dense": False, "dropout": 0.0, "bias": False, "end_of_text": False},
}
