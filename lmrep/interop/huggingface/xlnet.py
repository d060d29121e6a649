"""XLNet (Yang et al., 2019). Its projections are [d, h, k], and what is between query and content stream is one vector.

Each layer has its own biases in these files, whatever `untie_r` says. `gelu` is the exact form here, as in the library.
The code that trained the released weights has the tanh form: `--config.model.activation=gelu_tanh` in a run that starts
from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.interop.huggingface.base import (
    ACTIVATIONS,
    MAX_SIZE,
    TOKEN,
    Family,
    Layout,
    Names,
    linear,
    norm,
    probability,
    size,
)
from lmrep.interop.huggingface.task_classes import TaskClass, encoder_classes
from lmrep.models import transformer_xl
from lmrep.tasks.heads import Head


@dataclass(frozen=True)
class ConfigJson:
    """XLNet's keys."""

    vocab_size: int = size(32000, "rows of the token table")
    d_model: int = size(1024, "d")
    n_layer: int = size(24, "l")
    n_head: int = size(16, "h")
    d_inner: int = size(4096, "f")
    ff_activation: str = setting("gelu", "activation", choices=tuple(ACTIVATIONS))
    layer_norm_eps: float = setting(1e-12, "epsilon of layer norm", above=0)
    dropout: float = probability(0.1, "dropout, also on attention probabilities")
    initializer_range: float = setting(0.02, "standard deviation of initial weights", above=0)
    d_head: int | None = size(None, "k; d / h where it is null")
    mem_len: int | None = setting(None, "positions of the memory; null: none", at_least=0, at_most=MAX_SIZE)
    reuse_len: int | None = setting(None, "tokens of an example that are remembered", at_least=0, at_most=MAX_SIZE)
    clamp_len: int = setting(-1, "the largest distance", at_least=-1, at_most=MAX_SIZE)
    attn_type: str = setting("bi", "what tokens attend to", choices=("bi",))
    same_length: bool = setting(False, "whether each position attends to the same number", choices=(False,))
    bi_data: bool = setting(False, "whether half of each batch reads backwards", choices=(False,))


FIELDS = {
    "vocab_size": "vocab", "d_model": "width", "n_layer": "layers", "n_head": "heads", "d_inner": "mlp",
    "layer_norm_eps": "norm_eps", "dropout": "dropout", "initializer_range": "init_stddev",
}  # fmt: skip
ATTENTION = "encoder/layers/attention/"
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "position": "r", "output": "o"}
BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "segment_bias": "r_s_bias", "segment": "seg_embed"}

CONDITIONED_ENDS = {
    "start": "start_logits.dense", "end/dense": "end_logits.dense_0", "end/out": "end_logits.dense_1",
    "answer/dense": "answer_class.dense_0", "answer/out": "answer_class.dense_1"}

BASE: Names = {
    TOKEN: ("word_embedding.weight",),
    ("encoder/query",): ("mask_emb",),
    **{(f"{ATTENTION}{own}/kernel",): (f"layer.{{l}}.rel_attn.{theirs}",) for own, theirs in PROJECTIONS.items()},
    **{(ATTENTION + own,): (f"layer.{{l}}.rel_attn.{theirs}",) for own, theirs in BIASES.items()},
    **norm("encoder/layers/attention_norm", "layer.{l}.rel_attn.layer_norm"),
    **linear("encoder/layers/mlp/in", "layer.{l}.ff.layer_1"),
    **linear("encoder/layers/mlp/out", "layer.{l}.ff.layer_2"),
    **norm("encoder/layers/mlp_norm", "layer.{l}.ff.layer_norm"),
}


def layouts(c: transformer_xl.Config) -> dict[str, Layout]:
    """Of the parameters that files hold in another shape."""
    kernel = (c.width, c.heads, c.head_width)
    return {"encoder/query": Layout((1, 1, c.width)),
            **{f"{ATTENTION}{own}/kernel": Layout(kernel, transposed=own == "output") for own in PROJECTIONS}}


def from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of `None` and -1, which mean none, of the dropout that is one for both, and of what it has none of.

    Raises:
      UserError: heads do not divide the width.
    """
    d, h, k = (values[key] for key in ("d_model", "n_head", "d_head"))
    if k not in (None, d // h):
        raise UserError(f"config.json has d_head {k}; expected d_model / n_head, {d // h}, as in our network")
    return {"memory": values["mem_len"] or 0, "reuse": values["reuse_len"] or 0, "clamp": max(0, values["clamp_len"]),
            "attention_dropout": values["dropout"], "cutoffs": ()}


def to_json(c: transformer_xl.Config) -> dict[str, Any]:
    """The keys for these fields, and those that follow from others."""
    return {"mem_len": c.memory or None, "reuse_len": max(0, c.reuse) or None, "clamp_len": c.clamp or -1,
            "attn_type": "bi", "d_head": c.head_width, "untie_r": True}


def task_classes() -> dict[str, TaskClass]:
    """The classes of tasks. Their summary reads the last position, so that padding precedes the tokens."""
    head = ("sequence_summary.summary", "logits_proj")
    summary = {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh",
               "summary_proj_to_labels": False}
    by_token = {"head": Head(dense=False, dropout=0.0), "dropout_keys": ()}
    found = encoder_classes("XLNet", head, head, keys=("summary_last_dropout",))
    found = {name: replace(each, requires=summary) if each.dense else replace(each, **by_token)
             for name, each in found.items()}
    found["span_extraction"] = replace(found["span_extraction"], name="XLNetForQuestionAnsweringSimple")
    tensors = {f"{own}/{ours}": f"{name}.{theirs}" for own, name in CONDITIONED_ENDS.items()
               for ours, theirs in (("kernel", "weight"), ("bias", "bias")) if (own, ours) != ("answer/out", "bias")}
    found["conditioned_ends"] = replace(
        found["span_extraction"], name="XLNetForQuestionAnswering",
        sizes={"end_n_top": "beams", "start_n_top": "beams"}, tensors=tensors | {
            "end/norm/scale": "end_logits.LayerNorm.weight", "end/norm/bias": "end_logits.LayerNorm.bias"})
    return found


FAMILY = Family(
    name="xlnet", preset_family="xlnet", prefix="transformer", network_name="transformer_xl",
    classes={(): "XLNetModel", ("permutation",): "XLNetLMHeadModel"},
    base=BASE, tasks=task_classes(),
    heads={("objective/permutation/bias",): ("lm_loss.bias",), ("objective/permutation/output",): ("lm_loss.weight",)},
    record=ConfigJson, fields=FIELDS, from_json=from_json, to_json=to_json, layouts=layouts,
    architecture={"causal": False, "segments": True, "untie": True, "scale_embedding": False, "norm": "post",
                  "same_length": False, "cutoffs": ((),)},
    initialization={"scale_stddev": 0.0}, pad=5, pads_left=True, positions_key="", activation_key="ff_activation",
    aliases={"hidden_size": "d_model", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
             "n_token": "vocab_size"},
    objective="permutation",
    without_lm_head="it has no bias of a language model; a run with init= initializes one")
