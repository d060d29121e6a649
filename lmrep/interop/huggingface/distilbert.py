"""DistilBERT (Sanh et al., 2019): BERT without token types and pooler, under other names; relu in the heads of tasks.

`sinusoidal_pos_embds` decides how the position table starts, so it is read as a table like any other.
"""


from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import Family, Pretraining, Specials
from lmrep.interop.huggingface.config_json import ConfigTable, activation, key, rate, size
from lmrep.interop.huggingface.head_classes import SEQUENCE, HeadClass, task_class
from lmrep.interop.huggingface.tensors import linear, norm
from lmrep.tasks.heads import Head

KEYS = {
    "vocab_size": size(30522, "vocab"),
    "dim": size(768, "width", also=["hidden_size"]),
    "n_layers": size(6, "layers", also=["num_hidden_layers"]),
    "n_heads": size(12, "heads", also=["num_attention_heads"]),
    "hidden_dim": size(3072, "mlp"),
    "max_position_embeddings": size(512, "max_length"),
    "activation": activation("gelu"),
    "dropout": rate(0.1, "dropout"),
    "attention_dropout": rate(0.1, "attention_dropout"),
    "initializer_range": key(0.02, "init_stddev", above=0),
}

CONFIG = ConfigTable(KEYS, bert.FIXED | {"token_types": 0, "norm_eps": 1e-12}, {"init": "normal"})

TENSORS = {
    "embeddings.word_embeddings.weight": "encoder/embedding/token",
    "embeddings.position_embeddings.weight": "encoder/embedding/position",
    "embeddings.LayerNorm": norm("encoder/embedding_norm"),
    "transformer.layer.{l}.attention.q_lin": linear("encoder/layers/attention/query"),
    "transformer.layer.{l}.attention.k_lin": linear("encoder/layers/attention/key"),
    "transformer.layer.{l}.attention.v_lin": linear("encoder/layers/attention/value"),
    "transformer.layer.{l}.attention.out_lin": linear("encoder/layers/attention/output"),
    "transformer.layer.{l}.sa_layer_norm": norm("encoder/layers/attention_norm"),
    "transformer.layer.{l}.ffn.lin1": linear("encoder/layers/mlp/in"),
    "transformer.layer.{l}.ffn.lin2": linear("encoder/layers/mlp/out"),
    "transformer.layer.{l}.output_layer_norm": norm("encoder/layers/mlp_norm"),
    "vocab_transform": linear("objective/masked/transform"),
    "vocab_layer_norm": norm("objective/masked/norm"),
    "vocab_projector.bias": "objective/masked/bias",
    "vocab_projector.weight": "objective/masked/output",
}

ON_TEXT = {"dropout_keys": ["seq_classif_dropout"], "form": Head(activation="relu", dropout=0.2)}

FAMILY = Family(
    name="distilbert", prefix="distilbert", config_from=CONFIG.read, config_to=CONFIG.write, tensors=TENSORS,
    heads=(
        HeadClass("DistilBertModel"), HeadClass("DistilBertForMaskedLM", ("masked",)),
        task_class("DistilBertForSequenceClassification", SEQUENCE, "pre_classifier", "classifier", **ON_TEXT),
        task_class("DistilBertForTokenClassification", ["tagging"], "classifier", dropout_keys=["dropout"]),
        task_class("DistilBertForQuestionAnswering", ["span_extraction"], "qa_outputs", form=Head(dropout=0.0)),
        task_class("DistilBertForMultipleChoice", ["multiple_choice"], "pre_classifier", "classifier", **ON_TEXT)),
    specials=Specials(writes_ends=False), pretraining=Pretraining(preset="distilbert"))
