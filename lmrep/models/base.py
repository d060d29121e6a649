"""The contract between a network and everything that uses it: objectives, the trainer, inference, conversion."""

import functools
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp

from lmrep.core.components import row, type_of
from lmrep.core.errors import Broken, UserError
from lmrep.core.params import Array, Initializer, Tree, normal
from lmrep.layers.attention import AttentionMask
from lmrep.layers.attention_backends import Needs
from lmrep.models.sizes import Sizes

DIRECTIONS = ("forward", "backward")
MAX_CHARACTERS = 50  # of a word, with the marks of its begin and end


class Context(StrEnum):
    """What the output of a network at a position is conditioned on. `meaning` says it in messages."""

    LEFT = "left", "only the tokens before a position"
    BOTH = "both", "the tokens on both sides of a position"
    MASKED = "masked", "the tokens that a mask allows"  # of `model_inputs(mask=)`
    ORDER = "order", "the tokens before a position in a given order"  # of `Inputs.factorization`
    # All of `Inputs.source` too; without a source, `encode` reads `tokens` from both sides, as its encoder.
    SOURCE = "source", "the tokens before a position and a source text"
    # The first half of the output reads the tokens before a position, the second those after it (`Output.directions`).
    EACH_SIDE = "each_side", "the tokens before a position and, apart from them, those after it"

    def __new__(cls, value: str, meaning: str) -> "Context":
        """Returns a member that equals its name in configs."""
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member


class Factorization(NamedTuple):
    """The order in which the tokens of a text are predicted (Yang et al., 2019).

    Position i may be conditioned on position j where `revealed[j] < sees[i]`, and its content stream on i itself. A
    predicted token has sees[i] == revealed[i], its rank in the order. Given tokens have a smaller `revealed` than all
    predicted ones, and a `sees` that is larger by one, so that they do not depend on what is predicted.
    """

    revealed: Array  # i32[b, t]
    sees: Array  # i32[b, t]


class Inputs(NamedTuple):
    """The inputs of networks. A network takes the fields named by its `Model.inputs` and refuses the others."""

    tokens: Array  # i32[b, t]
    token_type_ids: Array | None = None  # i32[b, t], BERT's segments A and B
    positions: Array | None = None  # i32[b, t]; by default 0, 1, 2, ...
    attention_mask: AttentionMask | None = None  # by default every position attends to every other
    carry: Tree = None  # recurrent state or memory; by default the initial one
    # [l, h], or [l, b, t, h] for each token: factors of the context vector of each attention head, before the output
    # projection; by default 1. (The same as factors of attention probabilities after dropout.)
    gates: Array | None = None
    characters: Array | None = None  # i32[b, t, c], the characters of each token, 0 after them and at padding
    # Another text for the backward direction, in the order in which it is read; by default it reads the same text. The
    # backward half of outputs and states is then at the positions of that text.
    backward: "Inputs | None" = None
    # Runs two streams: `hidden` is the query stream's at the positions `at`, which does not read the token at its
    # position.
    factorization: Factorization | None = None
    # The text that an encoder reads, with `tokens` and, where needed, `positions` and `attention_mask`; the decoder
    # reads the other fields. Segments of the same number belong together.
    source: "Inputs | None" = None
    # changes the vectors [b, t, e] that the network looked up for `tokens`, after its dropout on them
    vectors: Callable[[Array], Array] | None = None
    reversed: Array | None = None  # i32[b], 1 where the example has the tokens of the text in reverse order


class Encoded(NamedTuple):
    """The outputs of a network."""

    hidden: Array  # [b, t, d], the last layer's output; [b, m, d] at m chosen positions
    layers: tuple[Array, ...] | None = None  # outputs of the embedding and of each layer, [b, t, its width]
    attention: Array | None = None  # [l, b, h, t, s], probabilities of self-attention
    carry: Tree = None  # the state after the last token
    cross_attention: Array | None = None  # [l, b, h, t, s], probabilities of attention to the tokens of `Inputs.source`
    source_attention: Array | None = None  # [l, b, h, s, s], of self-attention in the encoder that reads them
    losses: Mapping[str, "NetworkLoss"] = {}  # which every objective adds to its loss in training


class NetworkLoss(NamedTuple):
    """A term that a network adds to the training loss, such as a penalty on its states or the balance of experts: the
    mean sum / count over a microbatch, times a weight."""

    sum: Array  # float32[]
    count: Array | int  # []
    weight: float


class OutputLayer(NamedTuple):
    """How the outputs of a network become probabilities of tokens, as pure functions.

    They take the network's parameters and the parameters of the head, which belong to the objective: `specs`, and
    `bias` [v] where the objective gives each token a bias."""

    specs: Tree  # tree of `ParamSpec`
    # (params, head, x [b, t, e], targets i32[b, t], weights float32 [b, t], key=None) -> (the weighted sum, nll [b, t],
    # correct bool[b, t]), as `lm_head.chunked_cross_entropy`. `key` is `encode`'s.
    cross_entropy: Callable[..., tuple[Array, Array, Array]]
    log_probabilities: Callable[..., Array]  # (params, head, x [b, m, e], targets i32[b, m]) -> float32 [b, m]
    # (params, head, x [b, t, e]) -> float32 [b, t, v], whose softmax are the probabilities
    logits: Callable[..., Array]


class Output(NamedTuple):
    """How a softmax reads the vectors [b, t, d] of `Encoded.hidden`."""

    width: int  # e, the columns of the output table
    # (params, key=None) -> [v, e], the table that a tied softmax uses (Press and Wolf, 2017), with the dropout that
    # `encode` with this key applies to it. None: not tied, an objective has a table [v, e] of its own.
    table: Callable[..., Array] | None = None
    # in place of a table, for networks whose softmax is not over one. Objectives that need a table refuse such a
    # network (`objectives.outputs`).
    layer: OutputLayer | None = None
    # 2 where the first half of a vector is conditioned on the left context, the second on the right one
    directions: int = 1
    # in place of `Model.encode`, without `layers` and `attention`: gives the vectors that masked tokens are predicted
    # from (DeBERTa's enhanced mask decoder)
    encode_masked: Callable[..., Encoded] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The directions by name."""
        return DIRECTIONS[: self.directions]


class State(NamedTuple):
    """What a network remembers of the tokens before those that it reads: from batch to batch, and in generation."""

    # batch_size -> the initial recurrent state or memory, leaves [b, ...]. None: the network has none.
    carry: Callable[[int], Tree] | None = None
    # length of an example -> the number of its first tokens whose states the carry holds; by default all
    carried: Callable[[int], int] = lambda length: length
    # (params, batch_size, max_length, source=None) -> the cache before the first token, for generation. `source` are
    # the `Inputs` of the texts that the outputs are conditioned on, for networks that read them; where `batch_size` is
    # a multiple of their number, each is that of consecutive examples. None: not supported.
    cache: Callable[..., Tree] | None = None
    # (params, tokens i32[b, t], cache, length=None) -> (hidden [b, t, d], the cache after them). `length` i32[] is the
    # number of the t tokens that are not padding, None for all. With `query` (a network with `Context.ORDER`), `hidden`
    # is the query stream at the position after each token.
    decode: Callable[..., tuple[Array, Tree]] | None = None
    # (params, Inputs, key=None, *, chunks) -> Encoded with `hidden` [b, 3, d], vectors of a text that is read in chunks
    # (`lmrep.models.chunks.read`). None: not supported.
    read: Callable[..., Encoded] | None = None


class Heads(NamedTuple):
    """The attention heads of a network, for gates, pruning and reports."""

    number: int = 0  # h of `Inputs.gates`; 0 for a network that takes none
    # () -> the numbers of the heads that each layer has, out of 0 to h - 1. Gates of others have no effect.
    kept: Callable[[], tuple[tuple[int, ...], ...]] = tuple
    # the types of attention whose probabilities `encode` returns: "self" (`Encoded.attention`, and `source_attention`
    # where a source is read), "cross" (`Encoded.cross_attention`). Empty: none.
    attention: frozenset[str] = frozenset()


class HeadStyle(NamedTuple):
    """How the heads of objectives and tasks are made, so that they fit the network."""

    activation: str = "gelu"  # a name in `mlp.ACTIVATIONS`
    eps: float = 1e-12  # epsilon of layer norm
    init: Initializer = normal()  # of kernels
    # the vector of a whole text: that of its "first" or "last" position, or the "mean" over all, for networks without a
    # position of that use; where one vector is needed, "mean" networks use the last
    pooling: str = "first"
    norm: str = "layer"  # of the masked-LM head, a name in `norm.NORMS`
    bias: bool = True  # of the masked-LM head's dense layer


class Model(NamedTuple):
    """A network with its config bound, as pure functions."""

    name: str  # for messages
    specs: Tree  # tree of `ParamSpec`
    # (params, Inputs, key=None, *, at=None, layers=False, attention=False) -> Encoded. `key` is for dropout, None for
    # none; `at` i32[b, m] are the positions at which `hidden` is computed, by default all; `layers` selects this field
    # of `Encoded`, and `attention` those of `Heads.attention`. Padding has no defined probabilities.
    encode: Callable[..., Encoded]
    width: int  # d, of `Encoded.hidden`
    vocab_size: int  # v
    max_length: int  # tokens of a sequence at most; 0 for any
    inputs: frozenset[str]  # the names of the fields of `Inputs` that it takes
    conditions_on: frozenset[Context]  # the contexts that an objective can choose from
    output: Output  # how its vectors become tokens
    state: State = State()  # what it remembers
    heads: Heads = Heads()  # its attention heads
    head_style: HeadStyle = HeadStyle()  # for the heads of objectives
    # (fraction of the width, number of layers or 0 for the same) -> a smaller network with tables of the same width,
    # for ELECTRA. None: not supported.
    make_generator: Callable[..., "Model"] | None = None
    sizes: Sizes | None = None  # for published formulas of compute. None: they do not apply.


@row
class ModelDef(NamedTuple):
    """A row of `MODELS`: a network as a choice of an experiment config."""

    config: type  # a frozen record with the fields `vocab` (0: the tokenizer's size) and `max_length` (0: any)
    build: Callable[..., Model]  # (config, execution, name) -> Model
    tiny: Mapping[str, Any]  # the fields of a network that two cores train within minutes
    # config -> None; raises UserError where its fields do not fit each other
    check: Callable[[Any], None] = lambda config: None
    # fields that a run may not change when it starts from another's parameters (`init=`), since every parameter would
    # mean something else
    architecture_fields: tuple[str, ...] = ()
    # fields that such a run keeps, since they are not part of what was learned
    dropout_fields: tuple[str, ...] = ("dropout",)
    # fields that may differ when a trained network is evaluated, as the length of its memory
    evaluation_fields: tuple[str, ...] = ()
    # of its config, the field that says how much of an example the carry holds: 0 for all of it, -1 for the first half,
    # where the examples of a format start so far apart
    carried_field: str = ""
    # config -> what its attention has to honour in training, as far as the network decides that; None: it has none that
    # is chosen by `execution.attention`, and its sequences cannot be sharded
    attention: Callable[[Any], Needs | None] = lambda config: None
    # of an encoder-decoder, the fields of the config that leave its encoder alone, with `Context.BOTH` and the same
    # paths; tasks that are not conditioned on a source are trained on it
    encoder: Mapping[str, Any] = MappingProxyType({})


def model_inputs(
    model: Model, batch: Mapping[str, Array], *, tokens: Array | None = None, conditions_on: Context = Context.BOTH,
    segment_ids: Array | None = None, positions: bool = True, carry: Tree = None, mask: Array | None = None,
) -> Inputs:
    """Makes the inputs of `model` for a batch.

    Args:
      model: the network.
      batch: has `tokens` and `segment_ids` i32[b, t], and may have `positions`, `token_type_ids`, `characters`,
        `reversed`; `backward`, a batch of another text for the backward direction; `source`, with `tokens`,
        `segment_ids` and perhaps `positions` i32[b, s], for an encoder.
      tokens: i32[b, t], in place of the batch's.
      conditions_on: LEFT and, where the batch has a source, SOURCE make a causal mask.
      segment_ids: i32[b, t], in place of the batch's; 0 is padding.
      positions: whether to number positions as the batch does, from 0 in each packed segment.
      carry: recurrent state or memory to continue from.
      mask: bool[b, t, t], True where a position may attend to another, if `conditions_on` lets it too; for networks
        with `Context.MASKED`.

    Raises:
      Broken: tokens are no integers, or segment_ids have another shape.
      UserError: the network cannot be conditioned on that context or a mask, takes no mask to keep padding out, or is
        given a carry or a source and has no use for it. (Formats whose packed segments it would mix up are refused with
        the config.)
    """
    check_context(model, conditions_on, "this batch")
    if mask is not None:
        check_context(model, Context.MASKED, "this batch")
    segment_ids = batch["segment_ids"] if segment_ids is None else segment_ids
    with_source = "source" in batch
    if with_source and conditions_on != Context.SOURCE:
        raise UserError(f"this batch has a second text, and the network {model.name!r} reads one; choose "
                        "model=encoder_decoder")
    fields = {"tokens": batch["tokens"] if tokens is None else tokens}
    if fields["tokens"].shape != segment_ids.shape or not jnp.issubdtype(fields["tokens"].dtype, jnp.integer):
        raise Broken(f"it gives the network tokens as {type_of(fields['tokens'])}; expected integers of the shape of "
                     f"segment_ids, {list(segment_ids.shape)}")
    if "characters" in model.inputs and tokens is not None:
        raise UserError(f"the network {model.name!r} reads the characters of words, and has none of words that replace "
                        "others; choose an objective that leaves the text as it is, as bidirectional")
    if "attention_mask" in model.inputs:
        causal = conditions_on == Context.LEFT or with_source
        fields["attention_mask"] = AttentionMask(segment_ids, causal, mask)
    elif conditions_on != Context.LEFT:  # padding follows the tokens, and does not affect left contexts
        raise UserError(f"the network {model.name!r} takes no attention mask and would treat padding as text; choose "
                        "an objective that is conditioned on the left context, or another network")
    if carry is not None and "carry" not in model.inputs:
        raise UserError(f"the network {model.name!r} has no state to carry from batch to batch")
    optional = {"positions": batch.get("positions") if positions else None,
                "token_type_ids": batch.get("token_type_ids"), "carry": carry, "characters": batch.get("characters"),
                "reversed": batch.get("reversed")}
    if "backward" in batch and "backward" in model.inputs:
        optional["backward"] = model_inputs(model, batch["backward"], conditions_on=conditions_on)
    if with_source:
        source = batch["source"]
        numbers = source.get("positions") if positions and "positions" in model.inputs else None
        optional["source"] = Inputs(source["tokens"], positions=numbers,
                                    attention_mask=AttentionMask(source["segment_ids"]))
    fields |= {name: value for name, value in optional.items() if name in model.inputs}
    return Inputs(**fields)


def with_vectors(
    model: Model, change: Callable[[Array | None], Callable[[Array], Array] | None], subject: str
) -> Model:
    """Returns `model`, which changes the vectors of tokens by `change(key)`, and then by `Inputs.vectors`; `key` is the
    one of `encode`, and a change of None changes nothing. Raises UserError, which starts with `subject`, if the network
    lets nothing change them."""
    if "vectors" not in model.inputs:
        raise UserError(f"{subject} changes the vectors of tokens, which the network {model.name!r} does not allow; "
                        "choose lstm or awd_lstm")

    def encode(params: Tree, inputs: Inputs, key: Array | None = None, **options: Any) -> Encoded:
        functions = [f for f in (change(key), inputs.vectors) if f is not None]
        composed = (lambda x: functools.reduce(lambda y, f: f(y), functions, x)) if functions else None
        return model.encode(params, inputs._replace(vectors=composed), key, **options)

    return model._replace(encode=encode)


def with_gates(model: Model, gates: Array) -> Model:
    """Returns `model` with `Inputs.gates`, [l, h] or [l, n, h] for each of the n tokens of an input. Another network
    that is made from it (`make_generator`) has none. Raises UserError if the network takes no gates."""
    check_heads(model, f"the network {model.name!r}")

    def encode(params: Tree, inputs: Inputs, key: Array | None = None, **options: Any) -> Encoded:
        by_token = gates if gates.ndim == 2 else gates.reshape(len(gates), *inputs.tokens.shape, -1)
        return model.encode(params, inputs._replace(gates=by_token), key, **options)

    return model._replace(encode=encode)


def token_table(params: Tree, key: Array | None = None) -> Array:
    """Returns the token table [v, e] of a network, without dropout, for a tied softmax."""
    return params["embedding"]["token"]


def check_heads(model: Model, subject: str) -> None:
    """Raises UserError where the heads of `model` cannot be gated; messages start with `subject`."""
    if not model.heads.number:
        reason = "takes no gates on its attention heads" if model.heads.attention else "has no attention heads"
        raise UserError(f"{subject} {reason}; choose a run of model.name=transformer, such as BERT's or GPT's")


def check_context(model: Model, context: str, subject: str) -> None:
    """Raises UserError where `model` cannot be conditioned on `context`; messages start with `subject`."""
    if context not in model.conditions_on:
        possible = (f"{name} ({Context(name).meaning})" for name in sorted(model.conditions_on))
        raise UserError(f"{subject} conditions on {Context(context).meaning}, and the network {model.name!r} can "
                        f"be conditioned on: {', '.join(possible)}; choose another objective or network")


def check_inputs(inputs: Inputs, supported: frozenset[str], max_length: int = 0) -> None:
    """Raises ValueError where `inputs` has a field that a network does not take, or more than `max_length` tokens, 0
    for any number."""
    if 0 < max_length < inputs.tokens.shape[1]:
        raise ValueError(f"got {inputs.tokens.shape[1]} tokens; the model takes {max_length} at most")
    if extra := [name for name, value in inputs._asdict().items() if value is not None and name not in supported]:
        raise ValueError(f"this network takes {', '.join(sorted(supported))}; got {', '.join(extra)} too")
