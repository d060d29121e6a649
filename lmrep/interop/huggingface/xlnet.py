"""XLNet (Yang et al., 2019). Its files have projections [d, h, k], and one vector, `mask_emb`, for the query stream.

Each layer has separate biases in these files, whatever `untie_r` says. `gelu` is the exact form, as in the library. The
code that trained the released weights has the tanh form: set `--config.model.activation=gelu_tanh` in a run that starts
from them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from lmrep.core.errors import UserError
from lmrep.interop.huggingface.base import Family, Pretraining, Specials
from lmrep.interop.huggingface.config_json import MAX_SIZE, ConfigTable, activation, key, only, rate, size
from lmrep.interop.huggingface.head_classes import SEQUENCE, HeadClass, task_class
from lmrep.interop.huggingface.tensors import Tensor, linear, norm
from lmrep.models import transformer_xl
from lmrep.tasks.heads import Head

KEYS = {
    "vocab_size": size(32000, "vocab", also=["n_token"]),
    "d_model": size(1024, "width", also=["hidden_size"]),
    "n_layer": size(24, "layers", also=["num_hidden_layers"]),
    "n_head": size(16, "heads", also=["num_attention_heads"]),
    "d_inner": size(4096, "mlp"),
    "ff_activation": activation("gelu"),
    "layer_norm_eps": key(1e-12, "norm_eps", above=0),
    "dropout": rate(0.1, "dropout"),  # also on attention probabilities
    "initializer_range": key(0.02, "init_stddev", above=0),
    "d_head": size(None),  # d / h where it is null
    "mem_len": size(None, at_least=0),  # positions of the memory
    "reuse_len": size(None, at_least=0),  # tokens of an example that are remembered
    "clamp_len": key(-1, at_least=-1, at_most=MAX_SIZE),  # the largest distance; -1: any
    "attn_type": only("bi"),
    "same_length": only(False),
    "bi_data": only(False),  # whether half of each batch reads backwards
}

CONFIG = ConfigTable(
    KEYS, {"causal": False, "segments": True, "untie": True, "scale_embedding": False, "norm": "post",
           "same_length": False, "cutoffs": ()}, {"scale_stddev": 0.0}, "transformer_xl")


def config_from(config_json: Mapping[str, Any], path: str, tensors: Mapping | None = None) -> transformer_xl.Config:
    """Converts config.json to our config, as `Family.config_from`."""
    keys = CONFIG.values(config_json, path)
    if keys.d_head not in (None, keys.d_model // keys.n_head):
        raise UserError(f"config.json has d_head {keys.d_head}; expected d_model / n_head, "
                        f"{keys.d_model // keys.n_head}, as in our network")
    return CONFIG.config(keys, path, memory=keys.mem_len or 0, reuse=keys.reuse_len or 0, clamp=max(0, keys.clamp_len),
                         attention_dropout=keys.dropout)


def config_to(c: transformer_xl.Config) -> dict[str, Any]:
    """Converts our config to the keys of config.json, as `Family.config_to`."""
    return CONFIG.write(c) | {
        "mem_len": c.memory or None, "reuse_len": max(0, c.reuse) or None, "clamp_len": c.clamp or -1,
        "attn_type": "bi", "d_head": c.head_width, "untie_r": True}


kernel = partial(Tensor, shape=("width", "heads", "head_width"))
TENSORS = {
    "word_embedding.weight": "encoder/embedding/token",
    "mask_emb": Tensor(("encoder/query",), shape=(1, 1, "width")),
    "layer.{l}.rel_attn.q": kernel(("encoder/layers/attention/query/kernel",)),
    "layer.{l}.rel_attn.k": kernel(("encoder/layers/attention/key/kernel",)),
    "layer.{l}.rel_attn.v": kernel(("encoder/layers/attention/value/kernel",)),
    "layer.{l}.rel_attn.r": kernel(("encoder/layers/attention/position/kernel",)),
    "layer.{l}.rel_attn.o": kernel(("encoder/layers/attention/output/kernel",), transposed=True),
    "layer.{l}.rel_attn.r_w_bias": "encoder/layers/attention/content_bias",
    "layer.{l}.rel_attn.r_r_bias": "encoder/layers/attention/position_bias",
    "layer.{l}.rel_attn.r_s_bias": "encoder/layers/attention/segment_bias",
    "layer.{l}.rel_attn.seg_embed": "encoder/layers/attention/segment",
    "layer.{l}.rel_attn.layer_norm": norm("encoder/layers/attention_norm"),
    "layer.{l}.ff.layer_1": linear("encoder/layers/mlp/in"),
    "layer.{l}.ff.layer_2": linear("encoder/layers/mlp/out"),
    "layer.{l}.ff.layer_norm": norm("encoder/layers/mlp_norm"),
    "lm_loss.bias": "objective/permutation/bias",
    "lm_loss.weight": "objective/permutation/output",
}

# Heads on a text read its last position, so that padding precedes the tokens.
SUMMARY = {"dropout_keys": ["summary_last_dropout"], "requires": {
    "summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh", "summary_proj_to_labels": False}}
BY_TOKEN = Head(dense=False, dropout=0.0)
CONDITIONED_ENDS = {
    "start_logits.dense": linear("start"),
    "end_logits.dense_0": linear("end/dense"),
    "end_logits.dense_1": linear("end/out"),
    "answer_class.dense_0": linear("answer/dense"),
    "answer_class.dense_1": linear("answer/out", bias=False),
    "end_logits.LayerNorm": norm("end/norm"),
}

FAMILY = Family(
    name="xlnet", prefix="transformer", config_from=config_from, config_to=config_to, tensors=TENSORS,
    heads=(
        HeadClass("XLNetModel"), HeadClass("XLNetLMHeadModel", ("permutation",)),
        task_class("XLNetForSequenceClassification", SEQUENCE, "sequence_summary.summary", "logits_proj", **SUMMARY),
        task_class("XLNetForTokenClassification", ["tagging"], "classifier", form=BY_TOKEN),
        task_class("XLNetForQuestionAnsweringSimple", ["span_extraction"], "qa_outputs", form=BY_TOKEN),
        task_class("XLNetForMultipleChoice", ["multiple_choice"], "sequence_summary.summary", "logits_proj", **SUMMARY),
        HeadClass("XLNetForQuestionAnswering", ("conditioned_ends",), tensors=CONDITIONED_ENDS, form=BY_TOKEN,
                  sizes={"end_n_top": "beams", "start_n_top": "beams"})),
    specials=Specials(pad=5, pads_left=True),
    pretraining=Pretraining(objective="permutation", preset="xlnet",
                            without_head="it has no bias of a language model; a run with init= initializes one"))
