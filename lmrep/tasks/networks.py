"""The networks of tasks, between the vectors of tokens and the output layer.

The vectors come from `config.model`, which is trained, a frozen encoder (`features`), word vectors and characters, side
by side. Bidirectional LSTM layers may read them, with one time step for each token, or in taggers for each word. A text
is then represented by one vector, as `pooling` says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import attention_pooling, dropout, recurrent, scalar_mix
from lmrep.metrics import Metric
from lmrep.models.base import Context, Model, check_context, model_inputs
from lmrep.models.chunks import Chunks
from lmrep.objectives.base import (
    Batch,
    Capability,
    Carry,
    FrozenPart,
    FrozenParts,
    Metrics,
    Objective,
    ObjectiveDef,
)
from lmrep.objectives.outputs import normalize_weights, sums
from lmrep.objectives.teaching import TEACHER
from lmrep.objectives.uses import NetworkUse, Uses
from lmrep.tasks import auxiliary, bcn, distillation, documents, frozen_features, heads, noise, ulmfit, word_features
from lmrep.tasks.base import TextNetwork
from lmrep.tasks.ulmfit import Config as Ulmfit

TEXT_NETWORKS = {"ulmfit": ulmfit.DEFINITION, "bcn": bcn.DEFINITION}
# network -> the fields of a task's config that go with it
FIELDS = {"nearest": {"features": {"layers": "last"}}} | {name: row.fields for name, row in TEXT_NETWORKS.items()}


@dataclass(frozen=True)
class BiLstm:
    """Bidirectional LSTM layers."""

    width: int = setting(200, "of each direction", at_least=1)
    layers: int = setting(1, "number of layers", at_least=1, at_most=9)
    dropout: float = setting(0.5, "dropout rate on the input of each layer and on the output", at_least=0, below=1)


@dataclass(frozen=True)
class TaskConfig:
    """The base of the config of a task on the vectors of tokens (`token_vectors`): further inputs, the network and a
    teacher. Such a config also needs the field `context` of `heads.Head`."""

    # the fields of `TASK_HEADS` that published systems set for this task, too
    published: ClassVar[tuple[str, ...]] = tuple(heads.Head.__dataclass_fields__)

    words: word_features.WordVectors = setting(word_features.WordVectors(), "word vectors beside the encoder's")
    characters: word_features.Characters = setting(word_features.Characters(), "character features beside them")
    network: str = setting("linear", "between the encoder and the head: linear: none; bilstm: bidirectional LSTM "
                           "layers", choices=("linear", "bilstm"))
    bilstm: BiLstm = setting(BiLstm(), "the LSTM layers")
    features: frozen_features.Config = setting(frozen_features.Config(), "the vectors of a frozen encoder")
    teacher: distillation.Config = setting(distillation.Config(), "a teacher beside the labels")


@dataclass(frozen=True)
class TextConfig(TaskConfig, heads.Head):
    """The base of the config of a task on one vector of each text (`unit_vectors`): a head, pooling, and a language
    model of the texts. In config files it enables `features=`, `vectors=`, `network=` and `model=none`."""

    network: str = setting("linear", "between the encoder and the head: linear: none; bilstm: bidirectional LSTM "
                           "layers; ulmfit: the blocks of ULMFiT's classifier", choices=("linear", "bilstm", *(
                               name for name, row in TEXT_NETWORKS.items() if row.pooled)))
    ulmfit: Ulmfit = setting(Ulmfit(), "the blocks of ULMFiT's classifier")
    pooling: str = setting("position", "the vector that stands for a text: that at the first position, or at the last "
                           "where the network reads from left to right; the mean or the maximum over its tokens; the "
                           "three side by side (concat); or a sum with learned weights (attention)",
                           choices=("position", "mean", "max", "concat", "attention"))
    chunks: Chunks = setting(Chunks(), "how a recurrent network reads long texts")
    word_dropout: float = setting(0.0, "lstm, awd_lstm: rate at which words read as 0 in training", at_least=0, below=1)
    auxiliary_loss: str = setting("language_model", "the loss that auxiliary weighs: that of a language model, or of a "
                                  "sequence autoencoder of each row", choices=tuple(auxiliary.LOSSES))
    auxiliary: float = setting(0.0, "context left: weight of auxiliary_loss of the texts (GPT: 0.5)", at_least=0)


class Network(NamedTuple):
    """The network of a task, with its inputs and its teacher."""

    c: Any  # the task's config
    model: Model  # the encoder that is trained
    name: str  # the task's; parameters lie under objective/NAME
    features: FrozenPart | None = None  # the frozen encoder, if there is one
    words: FrozenPart | None = None  # the word vectors, if there are any
    teacher: FrozenPart | None = None  # the teacher, if there is one


def inputs(c: TaskConfig) -> tuple[str, ...]:
    """Names the frozen parts whose vectors a task reads."""
    settings = {frozen_features.NAME: c.features.layers, word_features.NAME: c.words.lookup}
    return tuple(name for name, value in settings.items() if value)


def bind(c: Any, model: Model, name: str, frozen: FrozenParts) -> Network:
    """Builds the network of task `name` with the config `c`.

    Raises:
      UserError: the network reads texts in another way; a frozen part is missing, or is of the wrong type; fields of
        the config contradict each other; there is nothing to read.
    """
    check_context(model, c.context, "this task")
    model = noise.with_word_dropout(model, getattr(c, "word_dropout", 0.0))
    for part in inputs(c):
        if part not in frozen:
            raise UserError(f"config.frozen lacks {part!r}, which config.objective.{part} reads")
        if (frozen[part].model is None) != (part == word_features.NAME):
            raise UserError(f"config.frozen.{part} is {frozen[part].source}; expected "
                            + ("a text file of word vectors" if part == word_features.NAME else
                               "a run or a published directory, whose vectors are the features"))
    read, teacher = {part: frozen[part] for part in inputs(c)}, distillation.teacher(name, c, frozen)
    if teacher and word_features.fields(teacher.config):
        raise UserError(f"config.frozen.teacher ({teacher.source}) reads word vectors or characters, which this run's "
                        "batches lack; give another teacher")
    net = Network(c, model, name, read.get(frozen_features.NAME), read.get(word_features.NAME), teacher)
    if net.features and c.features.placement == "between" and not (has_bilstm(c) and c.bilstm.layers > 1):
        why = f"bilstm.layers is {c.bilstm.layers}" if has_bilstm(c) else f"network is {c.network}"
        raise UserError(f"config.objective.features.placement is between, which is between two LSTM layers, and "
                        f"config.objective.{why}; set network to bilstm and bilstm.layers to 2 or more, or choose "
                        "another placement")
    row = TEXT_NETWORKS.get(c.network)
    for field, value, expected in (("pooling", getattr(c, "pooling", ""), "position"),
                                   ("features.placement", c.features.placement, "input")):
        if row and not row.pooled and value != expected:
            raise UserError(f"config.objective.{field} is {value}, and network {c.network} reads all vectors at its "
                            f"input and pools them in its own way; set it to {expected}, or choose another network")
    of_tokens = has_bilstm(c) or (row and not row.pooled)
    documents.check(c, model, [*inputs(c), *word_features.fields(c), *[f"network={c.network}"] * bool(of_tokens)])
    if not (output_width(net) if c.network == "linear" else input_width(net)):
        raise UserError("config.model.name is none, and the task has nothing else to read at its input; put the "
                        "vectors of a frozen encoder there (features=runs/bert after the colon, and "
                        "config.objective.features.placement), word vectors (vectors=FILE) or characters "
                        "(config.objective.characters.filters), or choose a network")
    return net


def is_head_alone(c: Any) -> bool:
    """Tells whether a task has an encoder that is trained, a head on its vectors or their pool, and nothing else."""
    if not hasattr(c, "network"):
        return True
    alone = c.network == "linear" and not inputs(c)
    return alone and not word_features.fields(c) and not getattr(c, "start_of_text", False)


def has_bilstm(c: TaskConfig) -> bool:
    """Tells whether a task has LSTM layers."""
    return c.network.startswith("bilstm")


def input_width(net: Network) -> int:
    """Returns the width of the vectors that the network reads."""
    return net.model.width + word_features.width(net.c, net.words) + _features_width(net, "input")


def _features_width(net: Network, position: str) -> int:
    """Returns the width of the frozen encoder's vectors at a position; 0 if there are none."""
    if net.features is None or position not in frozen_features.POSITIONS[net.c.features.placement]:
        return 0
    return frozen_features.width(net.c.features, net.features)


def output_width(net: Network) -> int:
    """Returns the width of the vectors that the head reads."""
    row = TEXT_NETWORKS.get(net.c.network)
    return row.output_width(getattr(net.c, net.c.network)) if row else pooled_width(net)


def pooled_width(net: Network) -> int:
    """Returns the width of the pooled vectors of texts, or of the vectors of tokens where they are not pooled."""
    c = net.c
    width = (2 * c.bilstm.width if has_bilstm(c) else input_width(net)) + _features_width(net, "output")
    return 3 * width if getattr(c, "pooling", "") == "concat" else width


def _width_read(row: TextNetwork, net: Network) -> int:
    return pooled_width(net) if row.pooled else input_width(net)


def specs(net: Network) -> Tree:
    """Declares the parameters of a network; {} for none."""
    c, tree = net.c, {}
    if has_bilstm(c):
        tree["bilstm"] = recurrent.bidirectional_specs(input_width(net), c.bilstm.width, c.bilstm.layers,
                                                       _features_width(net, "between"))
    if row := TEXT_NETWORKS.get(c.network):
        tree[c.network] = row.specs(getattr(c, c.network), _width_read(row, net))
    if getattr(c, "pooling", "") == "attention":
        width = pooled_width(net)
        tree["pooling"] = attention_pooling.specs(width, width, net.model.head_style.init)
    if net.features and (mixes := frozen_features.specs(c.features, net.features)):
        tree["mix"] = mixes
    return tree | word_features.specs(c, net.words)


def objective(
    net: Network, outputs: int, known: Callable[[Batch], Array], loss: Callable[..., Any],
    predict: Callable[..., Any], *, vectors: int = 1, head: heads.Head | None = None
) -> Objective:
    """Builds the objective of a task, with the parameters of the encoder, of the network above it, and of a head. Its
    `prepare` adds `weights` float32 [...], which add to 1 over what has a target.

    Args:
      net: the result of `bind`.
      outputs: the number of outputs of the head.
      known: batch -> bool[...], the units, words or examples that have a target; columns are -1 where there is none.
      loss: `Objective.loss` with a further argument `net`, without the loss of the language model.
      predict: `Objective.predict` with a further argument `net`.
      vectors: the number of vectors that the head reads side by side.
      head: its config; None: `net.c`.
    """
    c, network, frozen = net.c, specs(net), (net.features, None if net.c.words.trained else net.words, net.teacher)
    width = vectors * output_width(net)
    row = TEXT_NETWORKS.get(c.network)
    init = row.initial(width) if row and row.initial else None
    head_specs = heads.specs(net.model, outputs, head or c, width, init)
    penalty = None
    if c.features.l2 and "mix" in network:
        def penalty(params: Tree) -> Array:
            return sum(scalar_mix.penalty(mix, c.features.l2) for mix in network_params(params, net)["mix"].values())
    built = Objective(
        name=net.name,
        specs={"encoder": net.model.specs, "objective": {net.name: head_specs | (
            {"network": network} if network else {})}},
        prepare=lambda keys, batch: batch | {"weights": normalize_weights(known(batch))},
        loss=partial(loss, net=net), predict=partial(predict, net=net),
        frozen={part.name: part.specs for part in frozen if part is not None}, penalty=penalty,
        carry=lambda batch_size: Carry(
            shared=row.statistics(getattr(c, c.network), _width_read(row, net)) if row else ()),
        uses=Uses(Context(c.context), networks=(NetworkUse(net.model.sizes),)))
    return auxiliary.with_language_model(built, c, net.model) if getattr(c, "auxiliary", 0) else built


def builder(
    name: str, outputs: Callable[[Any], int], known: Callable[[Batch], Array], loss: Callable[..., Any],
    predict: Callable[..., Any], *, vectors: int = 1
) -> Callable[..., Objective]:
    """Returns `ObjectiveDef.build` of task `name`, which calls `objective` with `outputs(config)` outputs. The other
    arguments are those of `objective`."""
    def build(c: Any, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = MappingProxyType({})) -> Objective:
        return objective(bind(c, model, name, frozen), outputs(c), known, loss, predict, vectors=vectors)

    return build


def definition(
    config: type, build: Callable[..., Objective], metrics: Mapping[str, Metric],
    capabilities: tuple[Capability, ...], *, check: Callable[[Any], None] = lambda c: None, teachable: bool = False,
    compares: bool = False,
) -> ObjectiveDef:
    """Returns the row of the objective of a task whose config inherits `TaskConfig`.

    Args:
      config, build, metrics, capabilities, check, compares: fields of `ObjectiveDef`.
      teachable: whether the loss may follow a teacher (`cross_entropy`).
    """
    def check_config(c: Any) -> None:
        if c.teacher.alpha_ce and not teachable:
            raise UserError(f"config.objective.teacher.alpha_ce is {c.teacher.alpha_ce:g}, and this task predicts no "
                            "single distribution that could be learned from a teacher; set it to 0")
        check(c)

    added = {**(auxiliary.METRICS if "auxiliary" in config.__dataclass_fields__ else {}),
             **(distillation.METRICS if teachable else {})}
    return ObjectiveDef(
        config, build, {**added, **metrics}, check=check_config, conditions_on=lambda c: Context(c.context),
        parts=lambda c: (*inputs(c), *[TEACHER] * bool(c.teacher.alpha_ce)), teachers=(TEACHER,) if teachable else (),
        capabilities=capabilities, compares=compares)


def network_params(params: Tree, net: Network) -> Tree:
    """Returns the parameters of the network; {} for none."""
    return params["objective"][net.name].get("network", {})


def token_vectors(
    params: Tree, batch: Batch, net: Network, key: Array | None = None,
    words: tuple[Callable[[Array], Array], Array] | None = None,
) -> Array:
    """Computes the vectors [b, t, d] of tokens that the head reads.

    Args:
      params: the arguments of `Objective.loss`.
      batch: of the axes [b, t].
      net: the network.
      key: for dropout, None for none.
      words: (a function from vectors of tokens to vectors of words, [b, t, d] -> [b, t, d]; the tokens that have them,
        bool[b, t]). The LSTM layers read these tokens alone. None: they read all tokens.
    """
    c, weights, real = net.c, network_params(params, net), batch["segment_ids"] > 0
    combine, read = words or (lambda x: x, real)
    keys = prng.split(None if key is None else jax.random.fold_in(key, 1), 5)
    encoder = params.get("encoder", {})  # a loaded run of the network "none" has none
    x = net.model.encode(encoder, model_inputs(net.model, batch, conditions_on=Context(c.context)), key).hidden
    layers = net.features and frozen_features.encode(
        c.features, net.features, params["frozen"][net.features.name]["encoder"], batch)

    def features_at(position: str, key: Array | None) -> list[Array]:
        """Computes the features at a position, in a list; [] if there are none."""
        if not _features_width(net, position):
            return []
        vectors = frozen_features.apply(c.features, weights.get("mix", {}), position, layers, real, key)
        return [combine(vectors.astype(x.dtype))]

    of_words = [vectors.astype(x.dtype) for vectors in word_features.apply(
        c, weights, params.get("frozen", {}).get(word_features.NAME), batch, keys[4])]
    x = jnp.concatenate([combine(x), *of_words, *features_at("input", keys[0])], -1)
    if has_bilstm(c):
        x = recurrent.bidirectional(weights["bilstm"], x, jnp.where(read, batch["segment_ids"], 0), keys[1],
                                    c.bilstm.dropout, next(iter(features_at("between", keys[0])), None))
        x = dropout.apply(keys[2], x, c.bilstm.dropout)
    return jnp.concatenate([x, *features_at("output", keys[3])], -1)


def unit_vectors(
    params: Tree, batch: Batch, net: Network, key: Array | None = None, carry: Carry | None = None
) -> tuple[Array, Carry | None]:
    """Computes the vector [b, n, d] of each unit that the head reads, and the carry after the batch.

    Args:
      params, net, key: as in `token_vectors`.
      batch: of the axes [b, t], or [b, k, t] for grouped units.
      carry: in training, with the running statistics of the network; None: they are in `params`.

    Raises:
      UserError: the running statistics of the network are missing.
    """
    c = net.c
    row = TEXT_NETWORKS.get(c.network)
    if row is None:
        return text_vectors(params, batch, net, key), carry
    shared = params.get("shared") if carry is None else carry.shared
    if shared is None:
        raise UserError(f"the running statistics of network {c.network} are missing: an average of checkpoints and a "
                        "teacher have none; use a checkpoint of the run itself")
    keys, weights = prng.split(key, 2), network_params(params, net)[c.network]
    x = (text_vectors if row.pooled else token_vectors)(params, batch, net, keys[0])
    y, shared = row.apply(weights, getattr(c, c.network), x, batch, shared, keys[1])
    return y, carry and carry._replace(shared=shared)


def text_vectors(params: Tree, batch: Batch, net: Network, key: Array | None = None) -> Array:
    """Computes the vector [b, n, d] that `pooling` makes of each unit; the arguments are those of `unit_vectors`."""
    c, model, flat = net.c, net.model, heads.ungrouped(batch)
    chunked = documents.is_chunked(c)
    if not chunked and not (is_head_alone(c) and getattr(c, "pooling", "position") == "position"):
        x = token_vectors(params, flat, net, key)
        return documents.pool(c, model, network_params(params, net).get("pooling", {}), x, batch)
    inputs = model_inputs(model, flat, conditions_on=Context(c.context))
    at = heads.positions(batch, model, c)  # the last layer is computed at these positions alone
    if chunked:
        y = documents.read(c, model, params["encoder"], inputs, at.size, key)
    else:
        y = model.encode(params["encoder"], inputs, key, at=at.reshape(len(flat["tokens"]), -1)).hidden
    return y.reshape(*at.shape, -1)


def outputs(
    params: Tree, batch: Batch, net: Network, key: Array | None = None, carry: Carry | None = None
) -> tuple[Array, Carry | None]:
    """Computes the outputs float32 [b, n, outputs] of the head on `unit_vectors`, and the carry after the batch."""
    keys = prng.split(key, 2)
    x, carry = unit_vectors(params, batch, net, keys[0], carry)
    return heads.apply(params["objective"][net.name], x, net.c, net.model, keys[1]), carry


def cross_entropy(
    params: Tree, batch: Batch, net: Network, y: Array, target: Array, read: tuple[str, str], metric: str = "accuracy"
) -> tuple[Array, Metrics]:
    """Computes the mean cross-entropy of classes, with the divergence from a teacher, and their metrics.

    Args:
      params, net: as in `token_vectors`.
      batch: prepared, with `weights` float32 [...], which add to 1.
      y: float32 [..., classes], logits.
      target: i32[...], the right class; anything where the weight is 0.
      read: the keys of the log probabilities in the result of `predict`: ("units", name).
      metric: the name of the metric that counts right classes.
    """
    weights, nll = batch["weights"], optax.softmax_cross_entropy_with_integer_labels(y, jnp.maximum(target, 0))
    labelled = (nll * weights).sum(), sums(weights > 0, **{metric: y.argmax(-1) == target})
    return distillation.add(net.c.teacher, net.teacher, params, batch, labelled, y, weights,
                            lambda predicted: predicted[read[0]][read[1]])
