"""T5 (Raffel et al., 2019) and T5 1.1, which has a gated feed-forward block and an output layer of its own.

`feed_forward_proj` says whether the block is gated. The tensors say whether the output layer is the token table: files
of T5 1.1 have `tie_word_embeddings` false or, written by version 5 of the library, true with `scale_decoder_outputs`
false. Tables of the encoder and the decoder, which some files repeat, are the token table. Files of the encoder alone
(`T5EncoderModel`, `T5ForTokenClassification`) give a network without parameters of its decoder. `T5Model`, which has
both stacks, is read as the language model whose output layer is the token table. The heads of
`T5ForSequenceClassification` and `T5ForQuestionAnswering` are on the decoder, which reads the text of the encoder: for
classes its vector of the last </s>, which ends each text.

mT5 (Xue et al., 2021) is T5 1.1 with other defaults, and its tied output layer is not divided.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.interop.huggingface.base import ACTIVATIONS, MAX_SIZE, TOKEN, Family, Names, probability, size
from lmrep.interop.huggingface.task_classes import SEQUENCE, TaskClass
from lmrep.models import encoder_decoder, encoder_decoder_layers
from lmrep.tasks import TASKS
from lmrep.tasks.heads import Head

NAMES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # of the token table
OUTPUT = "lm_head.weight"
GATED = "gated-"
FEED_FORWARD = {**ACTIVATIONS, **{GATED + name: own for name, own in ACTIVATIONS.items()}, GATED + "gelu": "gelu_tanh"}
FEED_FORWARD_NAMES = {  # (gated, our activation) -> the name that is written
    **{(name.startswith(GATED), own): name for name, own in reversed(FEED_FORWARD.items())},
    (True, "gelu_tanh"): GATED + "gelu", (True, "gelu"): GATED + "gelu_python"}


@dataclass(frozen=True)
class ConfigJson:
    """T5's keys."""

    vocab_size: int = size(32128, "rows of the token table")
    d_model: int = size(512, "d")
    d_kv: int = size(64, "k")
    d_ff: int = size(2048, "f")
    num_layers: int = size(6, "layers of the encoder")
    num_decoder_layers: int | None = size(None, "layers of the decoder; as many where it is null")
    num_heads: int = size(8, "h")
    relative_attention_num_buckets: int = setting(32, "buckets of distances", at_least=4, at_most=MAX_SIZE)
    relative_attention_max_distance: int = setting(128, "distance of the last bucket", at_least=2, at_most=MAX_SIZE)
    dropout_rate: float = probability(0.1, "dropout")
    layer_norm_epsilon: float = setting(1e-6, "epsilon of RMS norm", above=0)
    feed_forward_proj: str = setting("relu", "activation, and whether the block is gated", choices=tuple(FEED_FORWARD))
    tie_word_embeddings: bool = setting(True, "whether the output layer is the token table")
    scale_decoder_outputs: bool | None = setting(None, "whether a tied output layer is divided by the root of d; "
                                                 "null: as tie_word_embeddings")
    is_encoder_decoder: bool = setting(True, "whether it has both stacks, which the tensors say")


@dataclass(frozen=True)
class Mt5Json(ConfigJson):
    """mT5's keys."""

    vocab_size: int = size(250112, "rows of the token table")
    d_ff: int = size(1024, "f")
    num_layers: int = size(8, "layers of the encoder")
    num_heads: int = size(6, "h")
    feed_forward_proj: str = setting("gated-gelu", "activation, and whether the block is gated",
                                     choices=tuple(FEED_FORWARD))


FIELDS = {
    "vocab_size": "vocab", "d_model": "width", "d_kv": "head_width", "d_ff": "mlp", "num_layers": "layers",
    "num_heads": "heads", "relative_attention_num_buckets": "buckets",
    "relative_attention_max_distance": "max_distance", "dropout_rate": "dropout", "layer_norm_epsilon": "norm_eps",
}  # fmt: skip


def from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that no key has by itself. `refine` knows more."""
    scaled = values["scale_decoder_outputs"]
    scaled = values["tie_word_embeddings"] if scaled is None else scaled
    return {"decoder_layers": values["num_decoder_layers"] or values["num_layers"],
            "gated": values["feed_forward_proj"].startswith(GATED),
            "tied": "all" if scaled else "embeddings", "scaled_output": scaled, "stacks": "both",
            **dict.fromkeys(("attention_dropout", "mlp_dropout"), values["dropout_rate"])}


def refine(c: encoder_decoder.Config, tensors: Mapping[str, np.ndarray]) -> encoder_decoder.Config:
    """The config, given the tensors too. Raises UserError for an output layer of its own that is divided."""
    tables = [tensors[name] for name in (*NAMES, OUTPUT) if name in tensors]
    tied = OUTPUT not in tensors or all(np.array_equal(each, tables[0], equal_nan=True) for each in tables)
    if c.scaled_output and not tied:
        raise UserError(f"its {OUTPUT} is not the token table, and by its config.json the input of that layer is "
                        "divided by the root of d_model, which our network does with tied tables alone; if it is not, "
                        'as in T5 1.1, set "tie_word_embeddings" to false')
    return replace(c, tied="all" if tied else "embeddings")


def to_json(c: encoder_decoder.Config) -> dict[str, Any]:
    """The keys for these fields, and those that follow from others."""
    return {"d_kv": c.k, "num_decoder_layers": c.decoder_layers or c.layers,
            "feed_forward_proj": FEED_FORWARD_NAMES[c.gated, c.activation], "tie_word_embeddings": c.tied == "all",
            "scale_decoder_outputs": c.tied == "all" and c.scaled_output,
            "is_encoder_decoder": True, "decoder_start_token_id": encoder_decoder_layers.START}


def stack(name: str, blocks: Mapping[str, str]) -> Names:
    """The tensors of a stack; `blocks` are the names of its blocks, in their order."""
    own, theirs = f"encoder/{name}/", f"{name}.block.{{l}}.layer."
    names: Names = {
        (f"{own}relative/table",): (f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
        (f"{own}final_norm/scale",): (f"{name}.final_layer_norm.weight",)}
    for i, (block, published) in enumerate(blocks.items()):
        parts = {"in": "wi", "gate": "wi_0", "up": "wi_1", "out": "wo"} if block == "mlp" else {
            "query": "q", "key": "k", "value": "v", "output": "o"}
        names |= {(f"{own}layers/{block}/{part}/kernel",): (f"{theirs}{i}.{published}.{each}.weight",)
                  for part, each in parts.items()}
        names[f"{own}layers/{block}_norm/scale",] = (f"{theirs}{i}.layer_norm.weight",)
    return names


SAME_TEXT = {"network": {"stacks": encoder_decoder_layers.SAME_TEXT},
             "requires": {"decoder_start_token_id": encoder_decoder_layers.START}}


def task_classes(start: str) -> dict[str, TaskClass]:
    """The classes of tasks, by the start of their names."""
    by_token, keys = Head(dense=False, dropout=0.0), ("classifier_dropout",)
    by_text = TaskClass(f"{start}ForSequenceClassification", "classification_head.dense",
                        "classification_head.out_proj", Head(dropout=0.0), keys, drops_input=True, end=1, **SAME_TEXT)
    found = {
        **dict.fromkeys(SEQUENCE, by_text),
        "tagging": TaskClass(f"{start}ForTokenClassification", "", "classifier", by_token, keys,
                             network={"stacks": "encoder"}),
        "span_extraction": TaskClass(f"{start}ForQuestionAnswering", "", "qa_outputs", by_token, prefixed=False,
                                     **SAME_TEXT),
    }
    return {name: each for name, each in found.items() if name in TASKS}


FAMILY = Family(
    name="t5", preset_family="t5", prefix="transformer", network_name="encoder_decoder",
    classes={("span_corruption",): "T5ForConditionalGeneration", (): "T5EncoderModel", ("decoder",): "T5Model"},
    plain_head="span_corruption", optional="encoder/decoder/",
    tasks=task_classes("T5"),
    without_lm_head="it has no decoder, so `lmrep predict` cannot fill spans; a run with init= that generates "
                    "initializes one, and others need none",
    base={
        TOKEN: NAMES,
        **stack("encoder", {"attention": "SelfAttention", "mlp": "DenseReluDense"}),
        **stack("decoder", {"attention": "SelfAttention", "cross_attention": "EncDecAttention",
                            "mlp": "DenseReluDense"}),
    },
    heads={("objective/span_corruption/output",): (OUTPUT,)},
    record=ConfigJson, fields=FIELDS, from_json=from_json, to_json=to_json, refine=refine,
    depth=lambda config, path: config.depth[path.split("/")[1]],
    architecture={"positions": "relative", "norm": "pre", "rms_norm": True, "mlp_bias": False, "attention_bias": False,
                  "scaled_attention": False, "scaled_embedding": False, "scaled_output": (True, False),
                  "tied": ("all", "embeddings"), "stacks": ("both", "encoder")},
    initialization={}, positions_key="", activation_key="feed_forward_proj", activations=FEED_FORWARD,
    objective="span_corruption", optimizer="adafactor")

MT5 = replace(
    FAMILY, name="mt5", variant_of="t5", tasks=task_classes("MT5"), record=Mt5Json,
    classes={heads: f"M{name}" for heads, name in FAMILY.classes.items()},
    from_json=lambda values: from_json({**values, "scale_decoder_outputs": False}),
    architecture=FAMILY.architecture | {"scaled_output": False})
