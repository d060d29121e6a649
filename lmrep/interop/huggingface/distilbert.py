"""DistilBERT (Sanh et al., 2019): BERT without token types and pooler, under other names; relu in the heads of tasks.

`sinusoidal_pos_embds` decides how the position table starts, so it is read as a table like any other.
"""

from dataclasses import dataclass, replace

from lmrep.config.record import setting
from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import (
    ACTIVATIONS,
    MAX_SIZE,
    POSITION,
    TOKEN,
    Family,
    Names,
    layers,
    masked_head,
    norm,
    probability,
    size,
)
from lmrep.interop.huggingface.task_classes import TaskClass, encoder_classes
from lmrep.objectives.masked import RULES


@dataclass(frozen=True)
class ConfigJson:
    """DistilBERT's keys."""

    vocab_size: int = size(30522, "rows of the token table")
    dim: int = size(768, "d")
    n_layers: int = size(6, "l")
    n_heads: int = size(12, "h")
    hidden_dim: int = size(3072, "f")
    max_position_embeddings: int = size(512, "rows of the position table")
    activation: str = setting("gelu", "activation", choices=tuple(ACTIVATIONS))
    dropout: float = probability(0.1, "dropout")
    attention_dropout: float = probability(0.1, "dropout on attention probabilities")
    initializer_range: float = setting(0.02, "standard deviation of initial weights", above=0)
    pad_token_id: int | None = setting(None, "id of padding", at_least=0, at_most=MAX_SIZE)


FIELDS = {
    "vocab_size": "vocab", "dim": "width", "n_layers": "layers", "n_heads": "heads", "hidden_dim": "mlp",
    "dropout": "dropout", "attention_dropout": "attention_dropout", "initializer_range": "init_stddev",
}  # fmt: skip

BASE: Names = {
    TOKEN: ("embeddings.word_embeddings.weight",),
    (POSITION,): ("embeddings.position_embeddings.weight",),
    **norm("encoder/embedding_norm", "embeddings.LayerNorm"),
    **layers("transformer.layer.{l}.", ("attention.q_lin", "attention.k_lin", "attention.v_lin"), "attention.out_lin",
             "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
}


def task_classes() -> dict[str, TaskClass]:
    """The classes of tasks. Heads on one vector have a dropout rate of their own, 0.2 by default."""
    head = ("pre_classifier", "classifier")
    found = encoder_classes("DistilBert", head, head, activation="relu", keys=("seq_classif_dropout",))
    return {name: replace(each, dropout_keys=("dropout",)) if name == "tagging"
            else replace(each, head=replace(each.head, dropout=0.2)) if each.dense else each
            for name, each in found.items()}


FAMILY = Family(
    name="distilbert", preset_family="distilbert", prefix="distilbert",
    classes={(): "DistilBertModel", ("masked",): "DistilBertForMaskedLM"},
    base=BASE, tasks=task_classes(),
    heads=masked_head("vocab_transform", "vocab_layer_norm", "vocab_projector.weight", "vocab_projector.bias"),
    record=ConfigJson, fields=FIELDS, architecture=bert.ARCHITECTURE | {"token_types": 0, "norm_eps": 1e-12},
    initialization={"init": "normal"}, activation_key="activation",
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    writes_bos_eos=False, objective_fields=RULES["bert"])
