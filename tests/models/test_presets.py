"""The published sizes, to the unit, by shape alone: no array is made."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.tokenizers import TOKENIZERS
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, PRESETS, awd_lstm, bilstm, encoder_decoder, seq2seq_lstm, transformer, transformer_xl
from lmrep.objectives import bidirectional, causal, masked, permutation, replaced_token, span_corruption
from lmrep.objectives.outputs import output_specs

# As published or, where papers round, as the shapes of the released checkpoints add up.
BERT = {  # layers, width, heads, feed-forward, vocabulary; embeddings, encoder, both, with the pooler, with all heads
    "bert_base": (12, 768, 12, 3072, 30522, 23_837_184, 85_054_464, 108_891_648, 109_482_240, 110_106_428),
    "bert_base_cased": (12, 768, 12, 3072, 28996, 22_665_216, 85_054_464, 107_719_680, 108_310_272, 108_932_934),
    "bert_large": (24, 1024, 16, 4096, 30522, 31_782_912, 302_309_376, 334_092_288, 335_141_888, 336_226_108),
    "bert_large_cased": (24, 1024, 16, 4096, 28996, 30_220_288, 302_309_376, 332_529_664, 333_579_264, 334_661_958),
    "bert_tiny": (2, 128, 2, 512, 30522, 3_972_864, 396_544, 4_369_408, 4_385_920, 4_433_468),
    "bert_mini": (4, 256, 4, 1024, 30522, 7_945_728, 3_159_040, 11_104_768, 11_170_560, 11_267_900),
    "bert_small": (4, 512, 8, 2048, 30522, 15_891_456, 12_609_536, 28_500_992, 28_763_648, 29_058_876),
    "bert_medium": (8, 512, 8, 2048, 30522, 15_891_456, 25_219_072, 41_110_528, 41_373_184, 41_668_412),
}
ROBERTA = {  # layers, width, heads, feed-forward, words; embeddings and encoder, with the masked-LM head
    "roberta_base": (12, 768, 12, 3072, 50265, 124_054_272, 124_696_665),
    "roberta_large": (24, 1024, 16, 4096, 50265, 354_309_120, 355_411_033),
}
DISTILBERT = {"distilbert_base": (6, 768, 12, 3072, 30522, 66_362_880, 66_985_530)}  # likewise
MODERNBERT = {  # likewise, as the transformers library counts its classes
    "modernbert_base": (22, 768, 12, 1152, 50368, 149_014_272, 149_655_232),
    "modernbert_large": (28, 1024, 16, 2624, 50368, 394_781_696, 395_881_664),
}
DEBERTA = {  # likewise; the papers round backbones to 44, 86 and 304 (v3), 710 and 1,300 million (v2)
    "deberta_v3_small": (6, 768, 12, 3072, 128_100, 141_304_320, 142_024_548),
    "deberta_v3_base": (12, 768, 12, 3072, 128_100, 183_831_552, 184_551_780),
    "deberta_v3_large": (24, 1024, 16, 4096, 128_100, 434_012_160, 435_191_908),
    "deberta_v2_xlarge": (24, 1536, 24, 6144, 128_100, 884_593_152, 887_085_156),
    "deberta_v2_xxlarge": (48, 1536, 24, 6144, 128_100, 1_564_549_632, 1_567_041_636),
}
GPT = {  # layers, width, heads, feed-forward, words; positions; parameters
    "gpt": (12, 768, 12, 3072, 40478, 512, 116_534_784),
    "gpt2": (12, 768, 12, 3072, 50257, 1024, 124_439_808),
    "gpt2_medium": (24, 1024, 16, 4096, 50257, 1024, 354_823_168),
    "gpt2_large": (36, 1280, 20, 5120, 50257, 1024, 774_030_080),
    "gpt2_xl": (48, 1600, 25, 6400, 50257, 1024, 1_557_611_200),
}
# tests/objectives counts these with their heads.
ELECTRA = {"electra_small", "electra_small_plus", "electra_base", "electra_large"}
SPANBERT = {"spanbert_base": "bert_base_cased", "spanbert_large": "bert_large_cased"}
ALBERT = {  # layers, width, heads, feed-forward, words; embeddings and encoder, with the pooler, with all heads
    "albert_base": (12, 768, 12, 3072, 30000, 11_092_992, 11_683_584, 11_813_810),
    "albert_large": (24, 1024, 16, 4096, 30000, 16_634_368, 17_683_968, 17_847_474),
    "albert_xlarge": (24, 2048, 16, 8192, 30000, 54_528_512, 58_724_864, 59_021_490),
    "albert_xxlarge": (12, 4096, 64, 16384, 30000, 205_814_272, 222_595_584, 223_158_450),
}


ELMO = {  # cell, width, highways; without and with the softmax, as in the paper's sizes
    "elmo_small": (1024, 128, 1, 13_593_312, 115_951_071), "elmo_medium": (2048, 256, 1, 28_027_744, 231_949_791),
    "elmo_original": (4096, 512, 2, 93_600_864, 500_651_487),
}
TRANSFORMER_XL = {  # layers, width, heads, feed-forward, words; clusters; without the output layer, and with it
    # As the shapes of the released scripts add up; the paper has 151 million (base) and 41 million (enwik8).
    "transformer_xl_wt103_base": (16, 410, 10, 2100, 267_735, (20_000, 40_000, 200_000), 1, 150_838_570, 151_107_538),
    "transformer_xl_wt103_large": (18, 1024, 16, 4096, 267_735, (20_000, 40_000, 200_000), 4, 283_851_120,
                                   285_170_506),
    "transformer_xl_enwik8": (12, 512, 8, 2048, 204, (), 1, 41_055_232, 41_055_436),
    "transformer_xl_lm1b": (18, 1024, 8, 4096, 793_471, (60_000, 100_000, 640_000), 4, 355_622_896, 357_812_082),
}
XLNET = {  # layers, width, heads, feed-forward, words; with the first vector of queries, with the softmax's bias
    "xlnet_base": (12, 768, 12, 3072, 32000, 116_718_336, 116_750_336),
    "xlnet_large": (24, 1024, 16, 4096, 32000, 360_268_800, 360_300_800),
}


AWD_LSTM = {  # words, whether outputs have biases, parameters; the paper rounds to 24 and 33 million
    "awd_lstm_ptb": (10_000, True, 24_221_600), "awd_lstm_wt2": (33_278, True, 33_556_078),
    "awd_lstm_ulmfit": (60_002, False, 44_212_400),
}
TRANSFORMER = {  # width, layers, heads, feed-forward, dropout; the paper rounds to 65 and 213 million
    "transformer_base": (512, 6, 8, 2048, 0.1, 63_045_632), "transformer_big": (1024, 6, 16, 4096, 0.3, 214_171_648),
}
T5 = {  # width, feed-forward, layers, heads, width of a head
    "t5_small": (512, 2048, 6, 8, 64, 60_506_624), "t5_base": (768, 3072, 12, 12, 64, 222_903_552),
    "t5_large": (1024, 4096, 24, 16, 64, 737_668_096), "t5_3b": (1024, 16384, 24, 32, 128, 2_851_598_336),
    "t5_11b": (1024, 65536, 24, 128, 128, 11_307_321_344),
}
T5_1_1 = {  # likewise, with the output table
    "t5_1_1_small": (512, 1024, 8, 6, 64, 76_961_152), "t5_1_1_base": (768, 2048, 12, 12, 64, 247_577_856),
    "t5_1_1_large": (1024, 2816, 24, 16, 64, 783_150_080), "t5_1_1_xl": (2048, 5120, 24, 32, 64, 2_849_757_184),
    "t5_1_1_xxl": (4096, 10240, 24, 64, 64, 11_135_332_352),
}


def counts(config, pair):
    """(embeddings, encoder, both, with the pooler if there is one, with all heads)."""
    model = transformer.build(config)
    vocabulary = Vocabulary(config.vocab, {"mask": 4}, np.ones(config.vocab, bool), np.zeros(config.vocab, int))
    objective = masked.build(masked.Config(sentence_pair=pair), model, vocabulary)
    numbers = {name: P.count(part) for name, part in model.specs.items()}
    embeddings = numbers["embedding"] + numbers["embedding_norm"]
    both = P.count(model.specs)
    pooler = P.count(objective.specs["objective"]["pair"]["pooler"]) if pair else 0
    return embeddings, both - embeddings, both, both + pooler, P.count(objective.specs)


def shape(c):
    return c.layers, c.width, c.heads, c.mlp, c.vocab


def test_every_preset_is_counted_here():
    assert set(PRESETS) == set(BERT) | set(ROBERTA) | set(GPT) | ELECTRA | set(SPANBERT) | set(ALBERT) | set(
        DISTILBERT) | set(ELMO) | set(TRANSFORMER_XL) | set(XLNET) | set(AWD_LSTM) | set(TRANSFORMER) | set(T5) | set(
            T5_1_1) | set(MODERNBERT) | set(DEBERTA) | {"neobert", "cove"}


def test_every_preset_names_its_network_and_tokenizer():
    for name, preset in PRESETS.items():
        assert isinstance(preset.config, MODELS[preset.model].config)
        assert name.startswith(preset.family)
        assert preset.tokenizer in TOKENIZERS
        lowercase = ("bert", "albert", "electra", "gpt", "distilbert", "neobert")
        assert preset.lowercase == (preset.family in lowercase and "cased" not in name)


@pytest.mark.parametrize("name", GPT)
def test_gpt(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    *expected, length, total = GPT[name]
    vocabulary = Vocabulary(config.vocab, {}, np.ones(config.vocab, bool), np.zeros(config.vocab, int))
    objective = causal.build(causal.Config(), transformer.build(config), vocabulary)
    assert shape(config) == tuple(expected) and config.max_length == length
    assert P.count(objective.specs) == encoder == pretraining == total
    assert (config.norm, config.norm_eps, config.activation) == ("post" if name == "gpt" else "pre", 1e-5, "gelu_tanh")
    assert config.table_dropout == (name == "gpt")


@pytest.mark.slow
def test_gpt_2_starts_with_a_narrow_residual_stream():
    small = replace(PRESETS["gpt2"].config, vocab=500, layers=8, width=64, heads=1, mlp=256)
    specs = P.flatten(transformer.specs(small))
    for path, expected in {"layers/attention/query/kernel": 0.02, "layers/attention/output/kernel": 0.02 / 4,
                           "layers/mlp/out/kernel": 0.02 / 4, "embedding/position": 0.01}.items():
        drawn = P.init({path: specs[path]}, jax.random.key(0))[path]
        assert np.std(drawn) == pytest.approx(expected, rel=0.05), path


@pytest.mark.parametrize("name", BERT)
def test_bert(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    assert shape(config) == BERT[name][:5]
    assert counts(config, pair=True) == BERT[name][5:]
    assert (encoder, pretraining) == (BERT[name][7], BERT[name][9])
    assert (config.max_length, config.token_types, config.position_offset, config.norm_eps) == (512, 2, 0, 1e-12)
    assert (config.norm, config.positions, config.activation) == ("post", "learned", "gelu_tanh")
    assert (config.dropout, config.attention_dropout, config.mlp_dropout) == (0.1, 0.1, 0)
    assert (config.init, config.init_stddev) == ("truncated_normal", 0.02)


@pytest.mark.parametrize("name", ROBERTA)
def test_roberta(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    assert shape(config) == ROBERTA[name][:5]
    _, _, both, _, full = counts(config, pair=False)
    assert (both, full) == ROBERTA[name][5:] == (encoder, pretraining)
    assert (config.max_length, config.token_types, config.position_offset, config.norm_eps) == (512, 0, 2, 1e-5)
    assert transformer.specs(config)["embedding"]["position"].shape[0] == 514
    assert (config.norm, config.positions, config.activation) == ("post", "learned", "gelu")
    assert (config.dropout, config.attention_dropout, config.mlp_dropout) == (0.1, 0.1, 0)
    assert (config.init, config.init_stddev) == ("normal", 0.02)


@pytest.mark.parametrize("name", DISTILBERT)
def test_distilbert(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    assert shape(config) == DISTILBERT[name][:5]
    _, _, both, _, full = counts(config, pair=False)
    assert (both, full) == DISTILBERT[name][5:] == (encoder, pretraining)
    assert config == replace(PRESETS["bert_base"].config, layers=6, token_types=0, activation="gelu", init="normal")


@pytest.mark.parametrize("name", MODERNBERT)
def test_modernbert(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    assert shape(config) == MODERNBERT[name][:5]
    _, _, both, _, full = counts(config, pair=False)
    assert (both, full) == MODERNBERT[name][5:] == (encoder, pretraining)
    assert [layer for layer, window in enumerate(config.windows) if not window] == [*range(0, config.layers, 3)]


@pytest.mark.parametrize("name", DEBERTA)
def test_deberta(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    assert shape(config) == DEBERTA[name][:5]
    _, _, both, _, full = counts(config, pair=False)
    assert (both, full) == DEBERTA[name][5:]
    if "v3" in name:
        vocabulary = Vocabulary(config.vocab, {"mask": 4}, np.ones(config.vocab, bool), np.zeros(config.vocab, int))
        full = P.count(replaced_token.build(
            replaced_token.Config(generator=1.0, generator_layers=config.layers // 2, tie="tokens"),
            transformer.build(replace(config, embedding_delta=True)), vocabulary).specs)
    assert (encoder, pretraining) == (both, full)


def test_neobert():
    """The released code's base model has as many parameters."""
    config, encoder, pretraining, *_ = PRESETS["neobert"]
    assert shape(config) == (28, 768, 12, 2048, 30522)
    layer = 4 * 768**2 + 3 * 768 * 2048 + 2 * 768
    assert encoder == 30522 * 768 + 28 * layer + 768
    assert P.count(transformer.build(config).specs) == encoder
    assert pretraining - encoder == 30522 * 768 + 30522  # table and bias


@pytest.mark.parametrize("name", ALBERT)
def test_albert(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    assert shape(config) == ALBERT[name][:5]
    assert counts(config, pair=True)[2:] == ALBERT[name][5:]
    assert (encoder, pretraining) == (ALBERT[name][5], ALBERT[name][7])
    rate = 0 if name == "albert_xxlarge" else 0.1
    bert = replace(PRESETS["bert_base"].config, vocab=30000, layers=config.layers, width=config.width,
                   heads=config.heads, mlp=config.mlp)
    assert config == replace(bert, embedding=128, share="all", dropout=rate, attention_dropout=rate)


@pytest.mark.parametrize("name", SPANBERT)
def test_spanbert_is_bert_cased_with_the_exact_gelu(name):
    config, encoder, *_ = PRESETS[name]
    bert = PRESETS[SPANBERT[name]]
    assert config == replace(bert.config, activation="gelu", init="normal") and encoder == bert.encoder


def test_specs_have_the_counts_of_their_shapes_and_run_at_full_size():
    """BERT-base is traced, not run."""
    import jax

    config = PRESETS["bert_base"].config
    model = transformer.build(config, Execution(dtype="bfloat16"))
    tokens = jax.ShapeDtypeStruct((2, 512), np.int32)
    inputs = transformer.Inputs(tokens=tokens)
    out = jax.eval_shape(lambda p, x: model.encode(p, x, None, layers=True), P.abstract(model.specs), inputs)
    assert out.hidden.shape == (2, 512, 768)
    assert (len(out.layers), *out.layers[0].shape) == (13, 2, 512, 768)
    assert P.count(model.specs) == sum(math.prod(x.shape) for x in jax.tree.leaves(P.abstract(model.specs)))


@pytest.mark.parametrize("name", ELMO)
def test_elmo_has_the_size_of_its_paper(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    model = bilstm.build(config)
    vocabulary = Vocabulary(config.vocab, {"bos": 0, "eos": 1}, None, np.zeros(config.vocab, int))
    objective = bidirectional.build(bidirectional.Config(), model, vocabulary)
    assert (config.cell, config.width, config.highways, encoder, pretraining) == ELMO[name]
    assert (P.count(model.specs), P.count(objective.specs)) == (encoder, pretraining)


@pytest.mark.parametrize("name", TRANSFORMER_XL)
def test_transformer_xl_has_the_size_of_its_scripts(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    *expected, cutoffs, div, without, total = TRANSFORMER_XL[name]
    model = transformer_xl.build(config)
    vocabulary = Vocabulary(config.vocab, {}, None, np.zeros(config.vocab, int))
    objective = causal.build(causal.Config(bias=True), model, vocabulary)
    assert (shape(config), config.cutoffs, config.div) == (tuple(expected), cutoffs, div)
    assert P.count(model.specs) == encoder == without
    assert P.count(objective.specs) == pretraining == total
    assert (config.norm, config.norm_eps, config.activation, config.untie) == ("post", 1e-5, "relu", False)


def test_the_parts_of_transformer_xl_large_add_up():
    specs = transformer_xl.specs(PRESETS["transformer_xl_wt103_large"].config)
    clusters = specs["embedding"]["clusters"].values()
    assert P.count(specs["layers"]) == 245_532_672
    assert sum(P.count(each["token"]) for each in clusters) == 36_923_760
    assert sum(P.count(each["project"]) for each in clusters) == 1_392_640


@pytest.mark.parametrize("name", AWD_LSTM)
def test_awd_lstm(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    words, bias, total = AWD_LSTM[name]
    model = awd_lstm.build(config)
    vocabulary = Vocabulary(config.vocab, {}, None, np.zeros(config.vocab, int))
    objective = causal.build(causal.Config(bias=bias), model, vocabulary)
    assert (config.vocab, pretraining) == (words, total)
    assert (P.count(model.specs), P.count(objective.specs)) == (encoder, pretraining)
    assert [P.count(layer) for layer in model.specs["layers"].values()] == [7_139_200, 10_589_200, 2_483_200]


@pytest.mark.parametrize("name", TRANSFORMER)
def test_transformer(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    assert (config.width, config.layers, config.heads, config.mlp, config.dropout, encoder) == TRANSFORMER[name]
    assert P.count(encoder_decoder.build(config).specs) == encoder == pretraining
    assert (config.norm, config.positions, config.tied, config.activation) == ("post", "sinusoidal", "all", "relu")


def test_cove():
    """By the shapes of the released code: LSTMs of PyTorch, which have two biases, and linear layers without one, but
    for that of the output layer."""
    def lstm(read, width):
        return 4 * width * (read + width + 2)

    config, encoder, pretraining, *_ = PRESETS["cove"]
    width, narrow, words = 600, 300, 50_000 + len(("<blank>", "<unk>", "<s>", "</s>"))
    read = 2 * (lstm(narrow, narrow) + lstm(width, narrow))
    written = lstm(narrow + width, width) + lstm(width, width)
    attention, tables, output = width * width + 2 * width * width, 2 * words * narrow, (width + 1) * words
    second_biases = 4 * (2 * 2 * narrow + 2 * width)
    assert read == 3_609_600
    assert read + written + attention + tables == encoder + second_biases
    assert encoder + output == pretraining + words
    model = seq2seq_lstm.build(config)
    assert (P.count(model.specs), P.count(output_specs(model))) == (encoder, pretraining - encoder)
    assert (config.attention, config.input_feeding, config.dropout, config.init_range) == ("general", True, 0.2, 0.1)


@pytest.mark.parametrize("name", [*T5, *T5_1_1])
def test_t5(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    vocabulary = Vocabulary(config.vocab, {"eos": 1}, None, np.zeros(config.vocab, int), sentinels=(99,))
    objective = span_corruption.build(span_corruption.Config(), encoder_decoder.build(config), vocabulary)
    shape = config.width, config.mlp, config.layers, config.heads, config.k, pretraining
    assert shape == (T5 | T5_1_1)[name] and config.vocab == 32128
    assert (P.count(objective.specs), P.count(objective.specs["encoder"])) == (pretraining, encoder)
    assert (config.gated, config.tied) == ((True, "embeddings") if name in T5_1_1 else (False, "all"))
    assert {config.dropout, config.attention_dropout, config.mlp_dropout} == {0.0 if name in T5_1_1 else 0.1}


@pytest.mark.parametrize("name", XLNET)
def test_xlnet(name):
    config, encoder, pretraining, *_ = PRESETS[name]
    model = transformer_xl.build(config)
    vocabulary = Vocabulary(config.vocab, {"mask": 6}, np.ones(config.vocab, bool), np.zeros(config.vocab, int))
    objective = permutation.build(permutation.Config(), model, vocabulary)
    assert (*shape(config), encoder, pretraining) == XLNET[name]
    assert (P.count(model.specs), P.count(objective.specs)) == (encoder, pretraining)
    assert (config.memory, config.carried(512), config.norm, config.norm_eps) == (384, 256, "post", 1e-12)
    assert (config.activation, config.segments, config.untie, config.causal) == ("gelu_tanh", True, True, False)
    assert (config.dropout, config.attention_dropout, config.init_stddev) == (0.1, 0.1, 0.02)
