"""BERT (Devlin et al., 2019)."""

from collections.abc import Mapping
from dataclasses import replace

from lmrep.interop.huggingface.base import Family, Pretraining, Specials
from lmrep.interop.huggingface.config_json import ORIGINAL_LAYERS, ConfigTable, activation, key, only, rate, size
from lmrep.interop.huggingface.head_classes import HeadClass, encoder_classes
from lmrep.interop.huggingface.tensors import Tensor, linear, norm, rows

KEYS = {
    "vocab_size": size(30522, "vocab"),
    "hidden_size": size(768, "width"),
    "num_hidden_layers": size(12, "layers"),
    "num_attention_heads": size(12, "heads"),
    "intermediate_size": size(3072, "mlp"),
    "max_position_embeddings": size(512, "max_length"),
    "type_vocab_size": size(2, "token_types"),
    "hidden_act": activation("gelu"),
    "layer_norm_eps": key(1e-12, "norm_eps", above=0),
    "hidden_dropout_prob": rate(0.1, "dropout"),
    "attention_probs_dropout_prob": rate(0.1, "attention_dropout"),
    "initializer_range": key(0.02, "init_stddev", above=0),
    "position_embedding_type": only("absolute"),
    "is_decoder": key(False),
    "add_cross_attention": only(False),
}

GELU = {"hidden_act": "gelu"}  # in heads of RoBERTa and ELECTRA, whatever config.json says
FIXED = {"positions": "learned", "norm": "post", "share": "none", "embedding_norm": True, "scaled_attention": True,
         "attention_by_layer": False, **ORIGINAL_LAYERS}
CONFIG = ConfigTable(KEYS, FIXED, {"init": "truncated_normal"})

EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "encoder/embedding/token",
    "embeddings.position_embeddings.weight": "encoder/embedding/position",
    "embeddings.token_type_embeddings.weight": "encoder/embedding/token_type",
    "embeddings.LayerNorm": norm("encoder/embedding_norm"),
}
LAYERS = {
    "encoder.layer.{l}.attention.self.query": linear("encoder/layers/attention/query"),
    "encoder.layer.{l}.attention.self.key": linear("encoder/layers/attention/key"),
    "encoder.layer.{l}.attention.self.value": linear("encoder/layers/attention/value"),
    "encoder.layer.{l}.attention.output.dense": linear("encoder/layers/attention/output"),
    "encoder.layer.{l}.attention.output.LayerNorm": norm("encoder/layers/attention_norm"),
    "encoder.layer.{l}.intermediate.dense": linear("encoder/layers/mlp/in"),
    "encoder.layer.{l}.output.dense": linear("encoder/layers/mlp/out"),
    "encoder.layer.{l}.output.LayerNorm": norm("encoder/layers/mlp_norm"),
}

TENSORS = {
    **EMBEDDINGS, **LAYERS,
    "pooler.dense": linear("objective/pair/pooler"),
    "cls.predictions.transform.dense": linear("objective/masked/transform"),
    "cls.predictions.transform.LayerNorm": norm("objective/masked/norm"),
    "cls.predictions.bias": Tensor(("objective/masked/bias",), also=("cls.predictions.decoder.bias",)),
    "cls.predictions.decoder.weight": "objective/masked/output",
    "cls.seq_relationship": linear("objective/pair/classifier"),
}

FAMILY = Family(
    name="bert", prefix="bert", config_from=CONFIG.read, config_to=CONFIG.write, tensors=TENSORS,
    heads=(HeadClass("BertModel"), HeadClass("BertForMaskedLM", ("masked",)),
           HeadClass("BertForPreTraining", ("masked", "pair")), HeadClass("BertForNextSentencePrediction", ("pair",)),
           *encoder_classes("Bert", ("bert.pooler.dense", "classifier"), ("bert.pooler.dense", "classifier"))),
    specials=Specials(writes_ends=False), pretraining=Pretraining(preset="bert"))


def decoder(family: Family, name: str, always: Mapping[str, str] = {}) -> Family:
    """Makes the family of left-to-right networks (`is_decoder`) with the layout of `family`.

    Args:
      name: its class with a language model's head.
      always: as `HeadClass.always`.
    """
    tensors = {name: tensor._replace(paths=tuple(path.replace("/masked/", "/causal/") for path in tensor.paths),
                                     also=tuple(also)) for (name, *also), tensor in rows(family.tensors)}
    return replace(
        family, name=f"{family.name} decoder", tensors=tensors,
        config_to=family.config_to and (lambda config: {**family.config_to(config), "is_decoder": True}),
        heads=(HeadClass(name, ("causal",), always), family.class_of(())),
        pretraining=family.pretraining._replace(
            objective="causal", fields={"head": "transform"},
            without_head="it has no output layer, so `lmrep predict` cannot continue texts; a run with init= "
                         "initializes one"))


DECODER = decoder(FAMILY, "BertLMHeadModel")
