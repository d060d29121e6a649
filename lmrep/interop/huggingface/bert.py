"""BERT (Devlin et al., 2019), and the tables that its successors share."""

from dataclasses import dataclass, replace

from lmrep.config.record import setting
from lmrep.interop.huggingface import base
from lmrep.interop.huggingface.base import (
    ACTIVATIONS,
    MAX_SIZE,
    POSITION,
    TOKEN,
    TOKEN_TYPE,
    Family,
    Names,
    linear,
    masked_head,
    norm,
    probability,
    size,
)
from lmrep.interop.huggingface.task_classes import encoder_classes
from lmrep.objectives.masked import RULES


@dataclass(frozen=True)
class ConfigJson:
    """BERT's keys."""

    vocab_size: int = size(30522, "rows of the token table")
    hidden_size: int = size(768, "d")
    num_hidden_layers: int = size(12, "l")
    num_attention_heads: int = size(12, "h")
    intermediate_size: int = size(3072, "f")
    max_position_embeddings: int = size(512, "rows of the position table")
    type_vocab_size: int = size(2, "rows of the token-type table")
    hidden_act: str = setting("gelu", "activation", choices=tuple(ACTIVATIONS))
    layer_norm_eps: float = setting(1e-12, "epsilon of layer norm", above=0)
    hidden_dropout_prob: float = probability(0.1, "dropout")
    attention_probs_dropout_prob: float = probability(0.1, "dropout on attention probabilities")
    initializer_range: float = setting(0.02, "standard deviation of initial weights", above=0)
    pad_token_id: int | None = setting(None, "id of padding", at_least=0, at_most=MAX_SIZE)
    position_embedding_type: str = setting("absolute", "position embeddings", choices=("absolute",))
    is_decoder: bool = setting(False, "whether it is causal", choices=(False,))
    add_cross_attention: bool = setting(False, "whether it attends to a second input", choices=(False,))


FIELDS = {
    "vocab_size": "vocab", "hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "intermediate_size": "mlp", "type_vocab_size": "token_types", "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_stddev",
}  # fmt: skip
ARCHITECTURE = {"positions": "learned", "norm": "post", "share": "none", "embedding_norm": True,
                "scaled_attention": True, "attention_by_layer": False}

EMBEDDINGS: Names = {
    TOKEN: ("embeddings.word_embeddings.weight",),
    (POSITION,): ("embeddings.position_embeddings.weight",),
    (TOKEN_TYPE,): ("embeddings.token_type_embeddings.weight",),
    **norm("encoder/embedding_norm", "embeddings.LayerNorm"),
}


def layers(attention_norm: str = "attention.output.LayerNorm", mlp_norm: str = "output.LayerNorm") -> Names:
    """The layers, by the names of their norms."""
    qkv = [f"attention.self.{each}" for each in ("query", "key", "value")]
    return base.layers("encoder.layer.{l}.", qkv, "attention.output.dense", attention_norm, "intermediate.dense",
                       "output.dense", mlp_norm)


BASE: Names = {**EMBEDDINGS, **layers(), **linear("objective/pair/pooler", "pooler.dense")}

FAMILY = Family(
    name="bert", preset_family="bert", prefix="bert",
    classes={(): "BertModel", ("masked",): "BertForMaskedLM", ("masked", "pair"): "BertForPreTraining",
             ("pair",): "BertForNextSentencePrediction"},
    base=BASE,
    heads={
        **masked_head("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
                      "cls.predictions.decoder.weight", "cls.predictions.bias", "cls.predictions.decoder.bias"),
        **linear("objective/pair/classifier", "cls.seq_relationship"),
    },
    tasks=encoder_classes("Bert", ("bert.pooler.dense", "classifier"), ("bert.pooler.dense", "classifier")),
    record=ConfigJson, fields=FIELDS, architecture=ARCHITECTURE, initialization={"init": "truncated_normal"},
    writes_bos_eos=False, objective_fields=RULES["bert"], optimizer="bert")


def decoder(family: Family, name: str) -> Family:
    """The networks of a family read from left to right, by the name of the class with a language model's head."""

    @dataclass(frozen=True)
    class DecoderJson(family.record):
        """Its keys."""

        is_decoder: bool = setting(True, "whether it is causal", choices=(True,))

    return replace(
        family, name=f"{family.name}-decoder", decoder_of=family.name, causal=True,
        classes={("causal",): name, (): family.classes[()]},
        heads={tuple(path.replace("/masked/", "/causal/") for path in paths): names
               for paths, names in family.heads.items() if paths[0].startswith("objective/masked/")},
        tasks={}, record=DecoderJson, to_json=lambda config: {"is_decoder": True},
        objective="causal", objective_fields={"head": "transform"},
        without_lm_head="it has no output layer, so `lmrep predict` cannot continue texts; a run with init= "
                        "initializes one")


DECODER = decoder(FAMILY, "BertLMHeadModel")
