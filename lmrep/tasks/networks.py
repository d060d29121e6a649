"""The networks of tasks: what is between the vectors of tokens and the output layer.

The vectors are those of `config.model`, which is trained, beside those of a frozen encoder (`features`), word vectors
and characters. A network of bidirectional LSTM layers reads them, with one time step for each token, or in taggers for
each word. A text is then represented by one vector, as `pooling` says.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.layers import attention_pooling, dropout, recurrent
from lmrep.models.base import Context, Model, model_inputs
from lmrep.objectives.base import Batch, Carry, FrozenPart, FrozenParts
from lmrep.tasks import bcn, distillation, frozen_features, heads, word_features

log = logging.getLogger(__name__)

BCN = "bcn"
FIELDS = {BCN: {"pooling": "position", "dense": False, "dropout": 0.0},  # of a task, that go with its network
          "nearest": {"features": {"layers": "last"}}}
POOLINGS = ("position", "mean", "max", "attention")


@dataclass(frozen=True)
class BiLstm:
    """Bidirectional LSTM layers."""

    width: int = setting(200, "of each direction", at_least=1)
    layers: int = setting(1, "number of layers", at_least=1, at_most=9)
    dropout: float = setting(0.5, "dropout rate on the input of each layer and on the output", at_least=0, below=1)


@dataclass(frozen=True)
class Config(word_features.Config):
    """The network of a task, and what it reads beside the encoder that is trained."""

    network: str = setting("linear", "between the encoder and the head: linear: none; bilstm: bidirectional LSTM "
                           "layers", choices=("linear", "bilstm"))
    bilstm: BiLstm = setting(BiLstm(), "the LSTM layers")
    features: frozen_features.Config = setting(frozen_features.Config(), "the vectors of a frozen encoder")
    teacher: distillation.Config = setting(distillation.Config(), "a teacher beside the labels")


@dataclass(frozen=True)
class TextConfig(Config, heads.Head):
    """A head on one vector of a text, and the network below it."""

    pooling: str = setting("position", "the vector that stands for a text: that at the first position, or at the last "
                           "where the network reads from left to right; the mean or the maximum over its tokens; or a "
                           "sum with learned weights (attention)", choices=POOLINGS)


class Network(NamedTuple):
    """The network of a task, with what it reads.

    Attributes:
      c: its config; with `context`, as `heads.Head` has it.
      model: the encoder that is trained.
      name: of the task; parameters lie under objective/NAME.
      features: the frozen encoder; None where there is none.
      words: the word vectors; None where there are none.
      teacher: None where there is none.
    """

    c: Config
    model: Model
    name: str
    features: FrozenPart | None = None
    words: FrozenPart | None = None
    teacher: FrozenPart | None = None


def _check_bcn(c: Any) -> None:
    for field, value, expected in (("pooling", c.pooling, "position"),
                                   ("features.placement", c.features.placement, "input")):
        if value != expected:
            raise UserError(f"config.objective.{field} is {value}, and network {BCN} reads all vectors at its input "
                            f"and pools them in its own way; set it to {expected}, or choose another network")


def parts(c: Config) -> tuple[str, ...]:
    """The frozen parts that a task reads, with its teacher."""
    return (*inputs(c), *distillation.parts(c.teacher))


def inputs(c: Config) -> tuple[str, ...]:
    """The frozen parts whose vectors a task reads."""
    return (*[frozen_features.NAME][: bool(c.features.layers)], *[word_features.NAME][: bool(c.words.lookup)])


def bind(c: Config, model: Model, name: str, frozen: FrozenParts) -> Network:
    """The network of task `name`.

    Raises:
      UserError: a frozen part is missing, or is of the wrong type; there is nothing to read.
    """
    for part in inputs(c):
        if part not in frozen:
            raise UserError(f"config.frozen lacks {part!r}, which config.objective.{part} reads")
        if (frozen[part].model is None) != (part == word_features.NAME):
            raise UserError(f"config.frozen.{part} is {frozen[part].source}; expected "
                            + ("a text file of word vectors" if part == word_features.NAME else
                               "a run or a published directory, whose vectors are the features"))
    own, teacher = {part: frozen[part] for part in inputs(c)}, distillation.teacher(name, c, frozen)
    if teacher and word_features.fields(teacher.config):
        raise UserError(f"config.frozen.teacher ({teacher.source}) reads word vectors or characters, which this run's "
                        "batches lack; give another teacher")
    net = Network(c, model, name, own.get(frozen_features.NAME), own.get(word_features.NAME), teacher)
    if net.features and c.features.placement == "between" and not (has_bilstm(c) and c.bilstm.layers > 1):
        found = f"bilstm.layers is {c.bilstm.layers}" if has_bilstm(c) else f"network is {c.network}"
        raise UserError(f"config.objective.features.placement is between, which is between two LSTM layers, and "
                        f"config.objective.{found}; set network to bilstm and bilstm.layers to 2 or more, or choose "
                        "another placement")
    if c.network == BCN:
        _check_bcn(c)
    if not (output_width(net) if c.network == "linear" else input_width(net)):
        raise UserError("config.model.name is none, and the task has nothing else to read at its input; put the "
                        "vectors of a frozen encoder there (features=runs/bert after the colon, and "
                        "config.objective.features.placement), word vectors (vectors=FILE) or characters "
                        "(config.objective.characters.filters), or choose a network")
    return net


def carry(net: Network) -> Callable[[int], Carry]:
    """`Objective.carry`: the running statistics of the network, if it has any."""
    return lambda batch_size: Carry(shared=bcn.statistics(net.c.bcn)) if net.c.network == BCN else Carry()


def is_head_alone(c: Any) -> bool:
    """Whether the config of a task has an encoder that is trained, a head, and nothing else."""
    if not isinstance(c, Config):
        return True
    pooling = getattr(c, "pooling", "position")
    return c.network == "linear" and pooling == "position" and not inputs(c) and not word_features.fields(c)


def has_bilstm(c: Config) -> bool:
    """Whether there are LSTM layers."""
    return c.network.startswith("bilstm")


def input_width(net: Network) -> int:
    """The width of the vectors that the network reads."""
    return net.model.width + word_features.width(net.c, net.words) + _features_width(net, "input")


def _has_features(net: Network, place: str) -> bool:
    return net.features is not None and place in frozen_features.PLACES[net.c.features.placement]


def _features_width(net: Network, place: str) -> int:
    return frozen_features.width(net.c.features, net.features) if _has_features(net, place) else 0


def output_width(net: Network) -> int:
    """The width of the vectors that the head reads."""
    c = net.c
    if c.network == BCN:
        return bcn.output_width(c.bcn)
    return (2 * c.bilstm.width if has_bilstm(c) else input_width(net)) + _features_width(net, "output")


def specs(net: Network) -> Tree:
    """The parameters of a network; {} for none."""
    c, found = net.c, {}
    if has_bilstm(c):
        found["bilstm"] = recurrent.bidirectional_specs(input_width(net), c.bilstm.width, c.bilstm.layers,
                                                        _features_width(net, "between"))
    if c.network == BCN:
        found["bcn"] = bcn.specs(c.bcn, input_width(net))
    if getattr(c, "pooling", "") == "attention":
        width = output_width(net)
        found["pooling"] = attention_pooling.specs(width, width, net.model.head_style.init)
    if net.features and (mixes := frozen_features.specs(c.features, net.features)):
        found["mix"] = mixes
    return found | word_features.specs(c, net.words)


def task_specs(net: Network, c: heads.Head, outputs: int, vectors: int = 1) -> Tree:
    """The parameters of a task: those of the encoder, of a head with that many outputs on so many vectors side by side,
    and under `network` those between them."""
    head, network = heads.specs(net.model, outputs, c, vectors * output_width(net)), specs(net)
    return {"encoder": net.model.specs, "objective": {net.name: head | ({"network": network} if network else {})}}


def frozen_specs(net: Network) -> Tree:
    """The frozen parameters (`Objective.frozen`)."""
    read = (net.features, None if net.c.words.trained else net.words, net.teacher)
    return {part.name: part.specs for part in read if part is not None}


def penalty(net: Network) -> Callable[[Tree], Array] | None:
    """What the network adds to the loss once a step; None for nothing."""
    if not net.features or not net.c.features.l2 or not frozen_features.specs(net.c.features, net.features):
        return None
    return lambda params: frozen_features.penalty(net.c.features, own_params(params, net)["mix"])


def mixes(params: Tree, c: Any, name: str, frozen: FrozenParts) -> list[dict[str, Any]]:
    """What the mixes of frozen layers have learned, as `frozen_features.mixed`, for the parameters and the config of
    task `name`; [] for a task without any."""
    own = params.get("objective", {}).get(name, {}).get("network", {}).get("mix")
    return frozen_features.mixed(c.features, frozen[frozen_features.NAME], own) if own else []


def own_params(params: Tree, net: Network) -> Tree:
    """The network's own parameters; {} for none."""
    return params["objective"][net.name].get("network", {})


def token_vectors(
    params: Tree, batch: Batch, net: Network, key: Array | None = None,
    words: tuple[Callable[[Array], Array], Array] | None = None,
) -> Array:
    """The vectors [b, t, d] of tokens that the head reads.

    Args:
      params: as `Objective.loss` takes them.
      batch: has the axes [b, t].
      net: the network.
      key: for dropout, None for none.
      words: (x [b, t, d] -> [b, t, d], bool[b, t]): makes vectors of words of those of tokens, and the tokens at which
        they are; the LSTM layers read these alone. None: all tokens are read.
    """
    c, own, real = net.c, own_params(params, net), batch["segment_ids"] > 0
    combine, read = words or (lambda x: x, real)
    keys = prng.split(None if key is None else jax.random.fold_in(key, 1), 5)
    encoder = params.get("encoder", {})  # a loaded run of the network "none" has none
    x = net.model.encode(encoder, model_inputs(net.model, batch, conditions_on=Context(c.context)), key).hidden
    layers = net.features and frozen_features.encode(
        c.features, net.features, params["frozen"][net.features.name]["encoder"], batch)

    def placed(place: str, key: Array | None) -> list[Array]:
        """The features, where they belong there."""
        if not _has_features(net, place):
            return []
        found = frozen_features.apply(c.features, own.get("mix", {}), place, layers, real, key)
        return [combine(found.astype(x.dtype))]

    others = [each.astype(x.dtype) for each in word_features.apply(
        c, own, params.get("frozen", {}).get(word_features.NAME), batch, keys[4])]
    x = _joined([combine(x), *others, *placed("input", keys[0])])
    if has_bilstm(c):
        x = recurrent.bidirectional(own["bilstm"], x, jnp.where(read, batch["segment_ids"], 0), keys[1],
                                    c.bilstm.dropout, next(iter(placed("between", keys[0])), None))
        x = dropout.apply(keys[2], x, c.bilstm.dropout)
    return _joined([x, *placed("output", keys[3])])


def _joined(x: Sequence[Array]) -> Array:
    return x[0] if len(x) == 1 else jnp.concatenate(x, -1)


def pooled_in_training(
    params: Tree, batch: Batch, net: Network, key: Array | None = None, shared: Tree = None
) -> tuple[Array, Tree]:
    """The vector [b, n, d] of each unit, and the running statistics after the batch; `shared` are those before it, by
    default params["shared"].

    Raises:
      UserError: the network has running statistics, and there are none.
    """
    if net.c.network != BCN:
        return pooled(params, batch, net, key), shared
    shared = params.get("shared") if shared is None else shared
    if shared is None:
        raise UserError(f"the running statistics of network {BCN} are missing: an average of checkpoints and a teacher "
                        "have none; use a checkpoint of the run itself")
    keys = prng.split(key, 2)
    x = token_vectors(params, batch, net, keys[0])
    texts = bcn.Texts(batch["segment_ids"], batch["token_type_ids"] == 1, batch["unit"] >= 0)
    return bcn.apply(own_params(params, net)["bcn"], net.c.bcn, x, texts, shared, keys[1])


def pooled(params: Tree, batch: Batch, net: Network, key: Array | None = None) -> Array:
    """The vector [b, n, d] of each unit; arguments as in `token_vectors`, but for grouped units too."""
    c, model = net.c, net.model
    if is_head_alone(c):
        return heads.pooled(params, batch, model, c, key)  # the last layer is computed at these positions alone
    return pool(params, token_vectors(params, heads.ungrouped(batch), net, key), batch, net)


def pool(params: Tree, x: Array, batch: Batch, net: Network) -> Array:
    """The vector [b, n, d] of each unit, of the vectors x of its tokens; [b, t, d], or [b * k, t, d] of grouped
    units."""
    c, shape = net.c, batch["first"].shape
    if c.pooling == "position":
        y = jnp.take_along_axis(x, heads.positions(batch, net.model, c).reshape(len(x), -1)[..., None], axis=1)
        return y.reshape(*shape, -1)
    mask = unit_tokens(heads.ungrouped(batch), 1 if len(x) != shape[0] else shape[1])
    if c.pooling == "attention":
        y = attention_pooling.apply(own_params(params, net)["pooling"], x, mask)
    elif c.pooling == "mean":
        y = mean(x, mask)
    else:
        each = jnp.broadcast_to(x[:, None], (*mask.shape, x.shape[-1]))
        y = bcn.largest(each, jnp.where(mask[..., None], each, -jnp.inf), 2)
        y = jnp.where(mask.any(-1)[..., None], y, 0)
    return y.reshape(*shape, -1)


def unit_tokens(batch: Batch, slots: int) -> Array:
    """bool [b, slots, t], the tokens of each unit of a batch [b, t]."""
    return batch["segment_ids"][:, None] == jnp.arange(1, slots + 1)[:, None]


def mean(x: Array, mask: Array) -> Array:
    """The means [b, n, d] of x [b, t, d] where the mask, bool [b, n, t], is set; 0 where it is set nowhere."""
    total = jnp.einsum("bnt,btd->bnd", mask.astype(x.dtype), x, preferred_element_type=jnp.float32)
    return (total / jnp.maximum(mask.sum(-1, keepdims=True), 1)).astype(x.dtype)
