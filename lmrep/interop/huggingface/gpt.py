"""GPT (Radford et al., 2018), and the parts that GPT-2 shares. Its files have kernels [in, out], and one kernel for
query, key and value."""

from dataclasses import replace
from functools import partial

from lmrep.interop.huggingface.base import Family, Pretraining, Specials
from lmrep.interop.huggingface.config_json import ORIGINAL_LAYERS, ConfigTable, activation, key, rate, size
from lmrep.interop.huggingface.head_classes import SEQUENCE, HeadClass, task_class
from lmrep.interop.huggingface.tensors import linear, norm
from lmrep.tasks.heads import Head

DECODER_KEYS = {
    "vocab_size": size(50257, "vocab"),
    "n_embd": size(768, "width", also=["hidden_size"]),
    "n_layer": size(12, "layers", also=["num_hidden_layers"]),
    "n_head": size(12, "heads", also=["num_attention_heads"]),
    "n_positions": size(1024, "max_length", also=["max_position_embeddings"]),
    "layer_norm_epsilon": key(1e-5, "norm_eps", above=0),
    "embd_pdrop": rate(0.1, "dropout"),  # our network has one dropout for both; the latter counts
    "resid_pdrop": rate(0.1, "dropout"),
    "attn_pdrop": rate(0.1, "attention_dropout"),
    "initializer_range": key(0.02, "init_stddev", above=0),
}

KEYS = DECODER_KEYS | {
    "vocab_size": size(40478, "vocab"),
    "n_positions": size(512, "max_length", also=["max_position_embeddings"]),
    "afn": activation("gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
}

FIXED = {"positions": "learned", "norm": "post", "share": "none", "embedding_norm": False, "token_types": 0,
         **ORIGINAL_LAYERS}
CONFIG = ConfigTable(KEYS, FIXED | {"scaled_attention": True, "attention_by_layer": False},
                     {"init": "normal", "table_dropout": True})

conv1d = partial(linear, transposed=False)
QKV = ("encoder/layers/attention/query", "encoder/layers/attention/key", "encoder/layers/attention/value")
LAYERS = {
    "h.{l}.attn.c_attn": conv1d(*QKV),
    "h.{l}.attn.c_proj": conv1d("encoder/layers/attention/output"),
    "h.{l}.ln_1": norm("encoder/layers/attention_norm"),
    "h.{l}.mlp.c_fc": conv1d("encoder/layers/mlp/in"),
    "h.{l}.mlp.c_proj": conv1d("encoder/layers/mlp/out"),
    "h.{l}.ln_2": norm("encoder/layers/mlp_norm"),
}
# Heads of tasks read the vector of the last token, and have no dense layer.
HEAD = Head(context="left", dropout=0.0, end_of_text=False)

TENSORS = {"tokens_embed.weight": "encoder/embedding/token", "positions_embed.weight": "encoder/embedding/position",
           **LAYERS, "lm_head.weight": "objective/causal/output"}

FAMILY = Family(
    name="openai-gpt", prefix="transformer", config_from=CONFIG.read, config_to=CONFIG.write, tensors=TENSORS,
    heads=(HeadClass("OpenAIGPTLMHeadModel", ("causal",)), HeadClass("OpenAIGPTModel"),
           HeadClass("OpenAIGPTDoubleHeadsModel", ("causal",)),  # read without its other head
           task_class("OpenAIGPTForSequenceClassification", SEQUENCE, "score", form=replace(HEAD, bias=False))),
    specials=Specials(pad=None),
    pretraining=Pretraining(
        objective="causal", preset="gpt",
        without_head="its class has no output layer: `lmrep predict` continues texts by its token table, as the class "
                     "with a language model's head does"))
