"""What a published config.json says of a network, and ours: one table a family, read in both directions.

A `Family` has the record of the keys that we read, whose defaults are what the reference takes for a key that is
missing; which of them mean the same as a field of ours; and what is the same in each of its networks.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from lmrep.config.record import read, setting
from lmrep.core.errors import UserError
from lmrep.models import transformer

MOST = 2**24  # of any size in a config

# Their names of activations and ours; the first of ours is written.
ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
               "gelu_fast": "gelu_tanh", "relu": "relu", "tanh": "tanh"}
# Other names that GPT's and GPT-2's keys go by.
GPT_KEYS = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions"}
GPT_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu"}  # GPT's gelu is the tanh form by its short name


def _size(default: int | None, help: str) -> Any:
    return setting(default, help, at_least=1, at_most=MOST)


def _share(default: float, help: str) -> Any:
    return setting(default, help, at_least=0, below=1)


@dataclass(frozen=True)
class Bert:
    """BERT's keys."""

    vocab_size: int = _size(30522, "rows of the token table")
    hidden_size: int = _size(768, "d")
    num_hidden_layers: int = _size(12, "l")
    num_attention_heads: int = _size(12, "h")
    intermediate_size: int = _size(3072, "f")
    max_position_embeddings: int = _size(512, "rows of the position table")
    type_vocab_size: int = _size(2, "rows of the token-type table")
    hidden_act: str = setting("gelu", "activation", choices=tuple(ACTIVATIONS))
    layer_norm_eps: float = setting(1e-12, "epsilon of layer norm", above=0)
    hidden_dropout_prob: float = _share(0.1, "dropout")
    attention_probs_dropout_prob: float = _share(0.1, "dropout of attention")
    initializer_range: float = setting(0.02, "standard deviation of initial weights", above=0)
    pad_token_id: int | None = setting(None, "padding's id", at_least=0, at_most=MOST)
    position_embedding_type: str = setting("absolute", "of positions", choices=("absolute",))
    is_decoder: bool = setting(False, "causal", choices=(False,))
    add_cross_attention: bool = setting(False, "with a second input", choices=(False,))


@dataclass(frozen=True)
class Electra(Bert):
    """ELECTRA's, of the generator or of the discriminator."""

    embedding_size: int = _size(128, "width of the tables")
    hidden_size: int = _size(256, "d")
    num_attention_heads: int = _size(4, "h")
    intermediate_size: int = _size(1024, "f")


@dataclass(frozen=True)
class Albert(Bert):
    """ALBERT's."""

    vocab_size: int = _size(30000, "rows of the token table")
    embedding_size: int = _size(128, "width of the tables")
    hidden_size: int = _size(4096, "d")
    num_attention_heads: int = _size(64, "h")
    intermediate_size: int = _size(16384, "f")
    hidden_act: str = setting("gelu_new", "activation", choices=tuple(ACTIVATIONS))
    hidden_dropout_prob: float = _share(0.0, "dropout")
    attention_probs_dropout_prob: float = _share(0.0, "dropout of attention")
    num_hidden_groups: int = setting(1, "how many layers differ", choices=(1,))
    inner_group_num: int = setting(1, "layers in a layer", choices=(1,))


@dataclass(frozen=True)
class Decoder:
    """The keys of GPT and GPT-2."""

    vocab_size: int = _size(50257, "rows of the token table")
    n_embd: int = _size(768, "d")
    n_layer: int = _size(12, "l")
    n_head: int = _size(12, "h")
    n_positions: int = _size(1024, "rows of the position table")
    layer_norm_epsilon: float = setting(1e-5, "epsilon of layer norm", above=0)
    resid_pdrop: float = _share(0.1, "dropout")
    embd_pdrop: float = _share(0.1, "that of embeddings; ours is the one above")
    attn_pdrop: float = _share(0.1, "dropout of attention")
    initializer_range: float = setting(0.02, "standard deviation of initial weights", above=0)
    pad_token_id: int | None = setting(None, "padding's id", at_least=0, at_most=MOST)


@dataclass(frozen=True)
class Gpt(Decoder):
    """GPT's."""

    vocab_size: int = _size(40478, "rows of the token table")
    n_positions: int = _size(512, "rows of the position table")
    afn: str = setting("gelu", "activation", choices=tuple(GPT_ACTIVATIONS))


@dataclass(frozen=True)
class Gpt2(Decoder):
    """GPT-2's."""

    n_inner: int | None = _size(None, "f; 4 d where it is not said")
    activation_function: str = setting("gelu_new", "activation", choices=tuple(ACTIVATIONS))
    scale_attn_weights: bool = setting(True, "attention is over the root of the heads' width", choices=(True,))
    scale_attn_by_inverse_layer_idx: bool = setting(False, "and over the layer's number", choices=(False,))
    add_cross_attention: bool = setting(False, "with a second input", choices=(False,))


class Family(NamedTuple):
    """How the config.json of one family and our config of a network say the same."""

    record: type
    fields: dict[str, str]  # their key: our field
    fixed: dict[str, Any]  # our fields that all its networks have so, and that change what they compute
    initial: dict[str, str | float]  # our fields that say how its weights start, and where it drops
    pad: int | None = 0  # padding's id, unless the config says another
    rows: str = "max_position_embeddings"  # their key of the rows of the position table
    activation: str = "hidden_act"  # their key
    activations: dict[str, str] = ACTIVATIONS
    ends: bool = True  # whether the ids of what begins and ends a text stand there
    after_padding: bool = False  # whether positions are counted from the row after padding's
    projects: bool = False  # whether there is a map from the tables on even where they are as wide as the network
    head_activation: str = ""  # of the masked-LM head, where it is not the network's
    also: Mapping[str, str] = MappingProxyType({})  # other names that keys go by: the key


BERT_FIELDS = {
    "vocab_size": "vocab", "hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "intermediate_size": "mlp", "type_vocab_size": "token_types", "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_stddev",
}  # fmt: skip
NARROW_FIELDS = BERT_FIELDS | {"embedding_size": "embedding"}
GPT_FIELDS = {
    "vocab_size": "vocab", "n_embd": "width", "n_layer": "layers", "n_head": "heads", "layer_norm_epsilon": "norm_eps",
    "embd_pdrop": "dropout", "resid_pdrop": "dropout", "attn_pdrop": "attention_dropout",
    "initializer_range": "init_stddev",
}  # fmt: skip
ENCODER = {"positions": "learned", "norm": "post", "share": "none", "embedding_norm": True}
DECODER = ENCODER | {"embedding_norm": False, "token_types": 0}

FAMILIES = {
    "bert": Family(Bert, BERT_FIELDS, ENCODER, {"init": "truncated_normal"}, ends=False),
    "roberta": Family(Bert, BERT_FIELDS, ENCODER, {"init": "normal"}, 1, after_padding=True,
                      head_activation="gelu"),
    "electra": Family(Electra, NARROW_FIELDS, ENCODER, {"init": "truncated_normal", "project_init": "glorot"},
                      ends=False, head_activation="gelu"),
    "albert": Family(Albert, NARROW_FIELDS, ENCODER | {"share": "all"}, {"init": "truncated_normal"},
                     projects=True),
    "openai-gpt": Family(Gpt, GPT_FIELDS, DECODER, {"init": "normal", "table_dropout": True}, None,
                         "n_positions", "afn", GPT_ACTIVATIONS, also=GPT_KEYS),
    "gpt2": Family(Gpt2, GPT_FIELDS | {"n_inner": "mlp"}, DECODER | {"norm": "pre"},
                   {"init": "normal", "position_stddev": 0.01, "residual_init": "scaled"}, None, "n_positions",
                   "activation_function", also=GPT_KEYS),
}


def network(kind: str, settings: Mapping[str, Any], where: str) -> transformer.Config:
    """Our config of the network that a config.json describes, one of `FAMILIES[kind]`; `where` is the file, for
    messages.

    Raises:
      UserError: a value is out of range, or of a network that ours cannot be.
    """
    family = FAMILIES[kind]
    fields = [field.name for field in dataclasses.fields(family.record)]
    also = {key: settings[other] for other, key in family.also.items() if settings.get(other) is not None}
    known = also | {key: settings[key] for key in fields if settings.get(key) is not None}
    if endless := [key for key, value in known.items() if len(str(value)) > 100]:
        raise UserError(f"{where} has a value of more than 100 characters at {endless[0]}; fetch it again")
    if unlike := [other for other, key in family.also.items() if key in also and also[key] != known[key]]:
        key = family.also[unlike[0]]
        raise UserError(f"{where} has {key} {known[key]} and {unlike[0]} {str(also[key])[:80]}, which mean the same; "
                        "delete the one that is wrong")
    theirs = vars(read(family.record, known, where))
    offset = padding(kind, settings) + 1 if family.after_padding else 0
    if theirs[family.rows] <= offset:
        raise UserError(f"{where} has {theirs[family.rows]} position rows, of which padding takes {offset}")
    values = {ours: theirs[key] for key, ours in family.fields.items()}
    width, heads = values["width"], values["heads"]
    if width % heads:
        key = next(key for key, ours in family.fields.items() if ours == "width")
        raise UserError(f"{where} has {key} {width}, which its {heads} heads do not divide")
    if values.get("embedding") == width:
        if family.projects:
            raise UserError(f"{where} has embedding_size {width}, which is its hidden_size; {kind} has a map between "
                            "them all the same, and a network of ours has none")
        values["embedding"] = 0
    return transformer.Config(**family.fixed | family.initial | values | {
        "mlp": values.get("mlp") or 4 * width, "activation": family.activations[theirs[family.activation]],
        "position_offset": offset, "max_length": theirs[family.rows] - offset})


def padding(kind: str, settings: Mapping[str, Any]) -> int | None:
    """Padding's id, where there is one."""
    found = settings.get("pad_token_id")
    return FAMILIES[kind].pad if found is None else found


def misfits(kind: str, config: transformer.Config, pad: int | None, masked: bool) -> list[str]:
    """By what a network of ours is none of `FAMILIES[kind]`: "field=value" each.

    Args:
      kind: the family.
      config: of the network.
      pad: padding's id, or None for the family's.
      masked: whether it has a masked-LM head.
    """
    family, ours = FAMILIES[kind], FAMILIES[kind].fields.values()
    wrong = [field for field, value in family.fixed.items() if getattr(config, field) != value]
    narrow = config.table_width != config.width
    if (narrow and "embedding" not in ours) or (family.projects and not narrow):
        wrong.append("embedding")
    if "mlp" not in ours and config.mlp != 4 * config.width:
        wrong.append("mlp")
    if config.activation not in family.activations.values() or (
            masked and family.head_activation not in ("", config.activation)):
        wrong.append("activation")
    if family.after_padding and config.position_offset != (family.pad if pad is None else pad) + 1:
        wrong.append("position_offset")
    return [f"{field}={getattr(config, field)}" for field in wrong]


def described(kind: str, config: transformer.Config, specials: Mapping[str, int]) -> dict[str, Any]:
    """The config.json of a network of `FAMILIES[kind]`, but for its class; `specials` are the tokenizer's."""
    family = FAMILIES[kind]
    values = {theirs: getattr(config, ours) for theirs, ours in family.fields.items()}
    if "embedding_size" in values:
        values["embedding_size"] = config.table_width
    around = {"bos_token_id": specials.get("bos", specials.get("cls")),
              "eos_token_id": specials.get("eos", specials.get("sep"))}
    return {
        "model_type": kind, **values,
        family.activation: next(theirs for theirs, ours in family.activations.items() if ours == config.activation),
        family.rows: config.max_length + config.position_offset,
        "pad_token_id": specials.get("pad", family.pad), **(around if family.ends else {}),
        "tie_word_embeddings": True, "dtype": "float32",
    }
