"""T5 (Raffel et al., 2019) and T5 1.1, which has a gated feed-forward block and an output layer of its own.

`feed_forward_proj` decides whether the block is gated. The tensors decide whether the output layer is the token table:
files of T5 1.1 have `tie_word_embeddings` false or, written by version 5 of the library, true with
`scale_decoder_outputs` false. Tables of the encoder and the decoder, which some files repeat, are the token table.
Files with only the encoder (`T5EncoderModel`, `T5ForTokenClassification`) give a network without parameters of its
decoder. `T5Model`, which has both stacks, is read as the language model whose output layer is the token table. The
heads of `T5ForSequenceClassification` and `T5ForQuestionAnswering` are on the decoder, which reads the same text as the
encoder. The head for sequences reads the decoder's vector of the last </s>, which ends each text.

mT5 (Xue et al., 2021) is T5 1.1 with other defaults, and does not scale the input of its tied output layer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lmrep.core.errors import UserError
from lmrep.interop.huggingface.base import Family, Names, Pretraining
from lmrep.interop.huggingface.config_json import ACTIVATIONS, MAX_SIZE, ConfigTable, activation, key, rate, size
from lmrep.interop.huggingface.head_classes import SEQUENCE, HeadClass, task_class
from lmrep.interop.huggingface.tensors import Tensor
from lmrep.models import encoder_decoder, encoder_decoder_layers
from lmrep.tasks.heads import Head

TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # all are the token table
OUTPUT = "lm_head.weight"
GATED = "gated-"
FEED_FORWARD = {**ACTIVATIONS, **{GATED + name: ours for name, ours in ACTIVATIONS.items()},
                GATED + "gelu": "gelu_tanh"}
FEED_FORWARD_NAMES = {  # (gated, our activation) -> the name that is written
    **{(name.startswith(GATED), ours): name for name, ours in reversed(FEED_FORWARD.items())},
    (True, "gelu_tanh"): GATED + "gelu", (True, "gelu"): GATED + "gelu_python"}


KEYS = {
    "vocab_size": size(32128, "vocab"),
    "d_model": size(512, "width"),
    "d_kv": size(64, "head_width"),
    "d_ff": size(2048, "mlp"),
    "num_layers": size(6, "layers"),
    "num_decoder_layers": size(None),  # null: num_layers
    "num_heads": size(8, "heads"),
    "relative_attention_num_buckets": key(32, "buckets", at_least=4, at_most=MAX_SIZE),
    "relative_attention_max_distance": key(128, "max_distance", at_least=2, at_most=MAX_SIZE),
    "dropout_rate": rate(0.1, "dropout"),
    "layer_norm_epsilon": key(1e-6, "norm_eps", above=0),
    "feed_forward_proj": activation("relu", FEED_FORWARD),
    "tie_word_embeddings": key(True),
    # whether the input of a tied output layer is divided by the square root of d_model; null: if tied
    "scale_decoder_outputs": key(None, type_=bool | None),
    "is_encoder_decoder": key(True),  # not used: the tensors decide
}

MT5_KEYS = KEYS | {
    "vocab_size": size(250112, "vocab"),
    "d_ff": size(1024, "mlp"),
    "num_layers": size(8, "layers"),
    "num_heads": size(6, "heads"),
    "feed_forward_proj": activation("gated-gelu", FEED_FORWARD),
}

CONFIG = ConfigTable(
    KEYS, {"positions": "relative", "norm": "pre", "rms_norm": True, "mlp_bias": False, "attention_bias": False,
           "scaled_attention": False, "scaled_embedding": False}, network="encoder_decoder")


def config_from(config_json: Mapping[str, Any], path: str, tensors: Mapping[str, np.ndarray] | None = None,
                table: ConfigTable = CONFIG, scaled: bool | None = None) -> encoder_decoder.Config:
    """Converts config.json to our config by a table of keys, as `Family.config_from`. `scaled` overrides
    `scale_decoder_outputs` unless it is None."""
    keys = table.values(config_json, path)
    if scaled is None:
        scaled = keys.tie_word_embeddings if keys.scale_decoder_outputs is None else keys.scale_decoder_outputs
    config = table.config(
        keys, path, decoder_layers=keys.num_decoder_layers or keys.num_layers, scaled_output=scaled,
        gated=keys.feed_forward_proj.startswith(GATED), tied="all" if scaled else "embeddings",
        attention_dropout=keys.dropout_rate, mlp_dropout=keys.dropout_rate)
    if tensors is None:
        return config
    tables = [tensors[name] for name in (*TABLES, OUTPUT) if name in tensors]
    tied = OUTPUT not in tensors or all(np.array_equal(table, tables[0], equal_nan=True) for table in tables)
    if scaled and not tied:
        raise UserError(f"its {OUTPUT} is not the token table, and by its config.json the input of that layer is "
                        "divided by the root of d_model, which our network does with tied tables alone; if it is not, "
                        'as in T5 1.1, set "tie_word_embeddings" to false')
    return replace(config, tied="all" if tied else "embeddings")


def config_to(c: encoder_decoder.Config) -> dict[str, Any]:
    """Converts our config to the keys of config.json, as `Family.config_to`."""
    wrong = [name for name, known in (("tied", ("all", "embeddings")), ("stacks", ("both", "encoder")))
             if getattr(c, name) not in known]
    return CONFIG.write(c, wrong) | {
        "d_kv": c.k, "num_decoder_layers": c.decoder_layers or c.layers,
        "feed_forward_proj": FEED_FORWARD_NAMES[c.gated, c.activation], "tie_word_embeddings": c.tied == "all",
        "scale_decoder_outputs": c.tied == "all" and c.scaled_output,
        "is_encoder_decoder": True, "decoder_start_token_id": encoder_decoder_layers.START}


def stack(name: str, *blocks: tuple[str, str]) -> Names:
    """Returns the names of a stack, "encoder" or "decoder". `blocks` are (our name, published name), in order."""
    def tensor(path: str, transposed: bool = False) -> Tensor:
        return Tensor((f"encoder/{name}/{path}",), transposed, optional=name == "decoder")

    names = {f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight": tensor("relative/table"),
             f"{name}.final_layer_norm.weight": tensor("final_norm/scale")}
    for i, (ours, published) in enumerate(blocks):
        layer = f"{name}.block.{{l}}.layer.{i}"
        parts = {"wi": "in", "wi_0": "gate", "wi_1": "up", "wo": "out"} if ours == "mlp" else {
            "q": "query", "k": "key", "v": "value", "o": "output"}
        names |= {f"{layer}.{published}.{part}.weight": tensor(f"layers/{ours}/{path}/kernel", True)
                  for part, path in parts.items()}
        names[f"{layer}.layer_norm.weight"] = tensor(f"layers/{ours}_norm/scale")
    return names


ATTENTION, MLP = ("attention", "SelfAttention"), ("mlp", "DenseReluDense")
TENSORS = {
    TABLES[0]: Tensor(("encoder/embedding/token",), also=TABLES[1:]),
    **stack("encoder", ATTENTION, MLP),
    **stack("decoder", ATTENTION, ("cross_attention", "EncDecAttention"), MLP),
    OUTPUT: "objective/span_corruption/output",
}

SAME_TEXT = {"network": {"stacks": encoder_decoder_layers.SAME_TEXT},
             "requires": {"decoder_start_token_id": encoder_decoder_layers.START}}


def classes(start: str) -> tuple[HeadClass, ...]:
    """Makes the classes whose names begin with `start`."""
    no_dropout, keys = Head(dropout=0.0), ["classifier_dropout"]
    return (
        HeadClass(f"{start}ForConditionalGeneration", ("span_corruption",), prefixed=False),
        HeadClass(f"{start}EncoderModel"), HeadClass(f"{start}Model", ("span_corruption",)),
        task_class(f"{start}ForSequenceClassification", SEQUENCE, "classification_head.dense",
                   "classification_head.out_proj", form=no_dropout, dropout_keys=keys, drops_input=True, end=1,
                   **SAME_TEXT),
        task_class(f"{start}ForTokenClassification", ["tagging"], "classifier", form=no_dropout, dropout_keys=keys,
                   network={"stacks": "encoder"}),
        task_class(f"{start}ForQuestionAnswering", ["span_extraction"], "qa_outputs", form=no_dropout, prefixed=False,
                   **SAME_TEXT))


FAMILY = Family(
    name="t5", prefix="transformer", config_from=config_from, config_to=config_to, tensors=TENSORS,
    heads=classes("T5"),
    pretraining=Pretraining(
        objective="span_corruption", optimizer="adafactor", preset="t5",
        without_head="it has no decoder, so `lmrep predict` cannot fill spans; a run with init= that generates "
                     "initializes one, and others need none"))

MT5_CONFIG = replace(CONFIG, keys=MT5_KEYS)
MT5 = replace(
    FAMILY, name="mt5", config_to=None, heads=classes("MT5"),
    config_from=lambda config_json, path, tensors=None: config_from(config_json, path, tensors, MT5_CONFIG, False))
