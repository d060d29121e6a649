"""Linear probes: how much of a task's labels can be read from each layer of a network by a linear classifier (Alain and
Bengio, 2016; Tenney et al., 2019; for ELMo, Peters et al., 2018, section 5.3).

The network is not changed. Its vectors are computed once for all layers, and the classifiers of all layers are trained
together. Where the same classifiers on a network of random parameters come close, the figure says little about what the
network has learned (Zhang and Bowman, 2018).

With the data of regression, nothing is trained: cosines of sentence vectors are compared with the labels
(`lmrep.analysis.similarity`), and with pairs of words in context, those of the words' vectors
(`lmrep.analysis.word_similarity`). Of dependency trees, distances are predicted (`lmrep.analysis.structural_probe`),
and of spans and pairs of spans, labels (`lmrep.analysis.edge_probe`).
"""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.analysis import edge_probe, similarity, structural_probe, word_similarity
from lmrep.analysis.layer_vectors import Vectors, normalization, vectors
from lmrep.analysis.probe_base import Columns, ProbeDef, Result, Splits
from lmrep.config import json_files
from lmrep.config.json_files import Count, Measured
from lmrep.config.record import convert
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.core.files import write_json
from lmrep.core.messages import byte_size
from lmrep.core.params import Array, Tree
from lmrep.data import records
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples
from lmrep.experiment import build, resolve
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment
from lmrep.experiment.record import Data
from lmrep.experiment.task_data import tokenize_records
from lmrep.inference.evaluate_task import finite_or_text, intervals
from lmrep.interop import checkpoint_config, init_from
from lmrep.models.base import Model
from lmrep.tasks import TASKS
from lmrep.tasks.base import Outputs

FILE = "probes.json"  # of the workdir
BATCH, EPOCHS, STEPS, RATE = 512, 20, 1000, 3e-3  # of the classifiers' training; at least so many steps

log = logging.getLogger(__name__)


class LayerRecord(TypedDict):
    """The scores of the classifier on one layer."""

    metrics: dict[str, Measured]
    intervals: dict[str, tuple[Measured, Measured]]


class Sizes(TypedDict):
    """The numbers of examples."""

    train: Count
    validation: Count


class ProbeRecord(TypedDict):
    """A result of `probe`, as probes.json has it."""

    name: str
    task: str
    source: str
    best: str
    examples: Sizes
    layers: list[LayerRecord]
    untrained: NotRequired[list[LayerRecord]]
    step: NotRequired[Count]  # of the run's checkpoint; not of a published directory
    pooling: NotRequired[str]  # of the vectors of a text, where it is not that at a position


class ProbesFile(TypedDict):
    """The content of probes.json. `read` checks each result by itself."""

    probes: list[Any]


def probe(
    config: Any, source: str | os.PathLike, examples: int = 0, untrained: bool = False, step: int | None = None,
    trees: bool = False, edges: str = "", mdl: bool = False,
) -> dict[str, Any]:
    """Trains a classifier on each layer of a network, or compares similarities of sentences or words in each layer.

    Args:
      config: an experiment config of tagging or classification, of regression on pairs of sentences, or of words in
        context. Network and tokenizer are taken from `source`.
      source: a workdir or a published directory.
      examples: number of training examples, evenly spaced; 0: all. Similarities take none.
      untrained: also probe a network with the same config and random parameters.
      step: of the checkpoint of the run; None for the default one.
      trees: train structural probes on the dependency trees of the config's CoNLL-U files, in place of classifiers.
      edges: train edge probes on the `tags`, `arcs` or `targets` of the config's files, in place of classifiers.
      mdl: also compute description lengths of the labels under edge probes.

    Returns:
      The fields of `ProbeRecord`. `layers` and, if measured, `untrained` have `metrics` and `intervals` (bootstrap
      95 %) for each layer, the embeddings first; of edge probes, the learned sum of all layers is last.

    Raises:
      UserError: the task is another one, or has no validation data; the checkpoint is incomplete or of another
        network.
    """
    experiment, checkpoint = _load_source(config, source, step)
    if (trees or edges) and experiment.objective["name"] != "tagging":
        raise UserError(f"--{'trees' if trees else 'edges'} needs a config file of tagging, for trees and arcs with "
                        "CoNLL-U files: --config=experiments/tasks/ud_pos.py:data=UD_English-EWT")
    if (trees and edges) or (mdl and not edges):
        raise UserError("--trees and --edges are given, which train different probes; leave one out" if trees and edges
                        else "--mdl is given without --edges; give --edges too, for the probes that it measures")
    kind = structural_probe.NAME if trees else edge_probe.NAMES[edges] if edges else experiment.objective["name"]
    definition, options = PROBES[kind], {"mdl": True} if mdl else {}
    if examples and not definition.trained:
        raise UserError(f"--examples is {examples}, the number of training examples, and similarities are computed "
                        "without training; leave it out")
    prepared = definition.prepare(experiment, **options)
    experiment = prepared.experiment
    model = experiments.build_model(experiment, prepared.tokenizer.size)
    specs = {"encoder": model.specs}
    match = init_from.match(specs, checkpoint, prepared.tokenizer.tokens)
    init_from.check_network(experiments.model_config(experiment.model), checkpoint)
    if match.missing:
        raise UserError(f"{checkpoint.name} lacks {', '.join(match.missing[:4])}; give a complete checkpoint")
    splits = {split: _examples(prepared, model, split, examples) for split in definition.splits}
    random = P.init(specs, jax.random.key(experiment.seed))
    trained = P.map_paths(lambda path, _: jnp.asarray(match.values[path]), random)
    results = {"layers": definition.measure(experiment, model, trained["encoder"], splits, **options)}
    if kind == "classification" and experiment.objective["pooling"] != "position":
        results["pooling"] = experiment.objective["pooling"]
    if untrained:
        results["untrained"] = definition.measure(experiment, model, random["encoder"], splits, **options)
    return {"name": experiment.name, "task": kind, "source": checkpoint.name,
            "best": definition.best or experiment.checkpoint.best,
            "data": {split: getattr(experiment.data, split) for split in splits},
            "examples": {"train": 0, **{split: len(labelled) for split, (labelled, _) in splits.items()}},
            "seed": experiment.seed, **({} if checkpoint.step is None else {"step": checkpoint.step}), **results}


def _load_source(
    config: Any, source: str | os.PathLike, step: int | None,
) -> tuple[Experiment, init_from.SourceCheckpoint]:
    """Loads the checkpoint `source`, a run at `step`. Returns the experiment with its network and tokenizer, and the
    checkpoint."""
    if config.objective.name not in PROBES:
        raise UserError(f"the objective is {config.objective.name}; give the config file of a task: of tagging or "
                        "classification, for classifiers, or of regression or word_in_context, for similarities of "
                        "sentences or words, as --config=experiments/tasks/ud_pos.py:data=UD_English-EWT")
    pooling = config.objective.get("pooling")
    config = resolve.with_checkpoint(config, checkpoint_config.facts(source, config.objective.name), new_head=True)
    if 0 < config.model.get("max_length", 0) < config.length:
        config.length = config.model.max_length
    config.head, config.format.packed, config.objective.network, config.data.test = "new", False, "linear", ""
    if config.objective.name == "classification":
        if pooling == "attention":
            raise UserError("config.objective.pooling is attention, which has weights of its own, and a probe trains a "
                            "linear classifier alone; set it to position, mean, max or concat")
        if pooling != "position" or config.objective.pooling == "attention":  # the latter is of the run's head
            config.objective.pooling = pooling
    experiment = experiments.parse(config)
    if not experiment.data.validation:
        raise UserError("data.validation is empty, and probes are measured on it; give validation examples: "
                        "--config.data.validation=dev.tsv")
    return experiment, init_from.load(source, step)


def _examples(prepared: Data, model: Model, split: str, count: int) -> tuple[list[Record], Examples]:
    """Returns the records of a split and their examples; of training records at most `count`, where it is not 0."""
    labelled = prepared.records[split]
    if split == "validation" or not 0 < count < len(labelled):
        return labelled, prepared.splits[split]
    labelled = records.spread(labelled, count)
    return labelled, tokenize_records(prepared.experiment, model, prepared.tokenizer, labelled, split)


def _probe_layers(experiment: Experiment, model: Model, params: Tree, splits: Splits) -> list[dict[str, Any]]:
    """Trains a classifier on each layer. Returns the metrics of all layers on the validation examples."""
    c = experiments.resolve_stages(experiment)[0].objective
    task = TASKS[experiment.objective["name"]]
    train, held_out = (vectors(params, model, c, examples) for _, examples in splits.values())
    log.info("probing %d layers of width %d on %s training and %s validation vectors (%s)", len(train.x),
             train.x.shape[-1], f"{len(train.y):,}", f"{len(held_out.y):,}",
             byte_size(train.x.nbytes + held_out.x.nbytes))
    predict = fit(train.x, train.y, len(c.labels), experiment.seed)
    validation, examples = splits["validation"]
    results = [task.score(c, validation, examples.units, _outputs(held_out, log_probabilities, examples))
               for log_probabilities in predict(held_out.x)]
    return [{"layer": layer, "metrics": finite_or_text(result.metrics), "intervals": intervals(result)}
            for layer, result in enumerate(results)]


def _outputs(vectors: Vectors, log_probabilities: np.ndarray, examples: Examples) -> Outputs:
    """Arranges log-probabilities [m, classes] as a task scores them: by unit, or by token of each unit."""
    classes, units = log_probabilities.shape[-1], examples.units
    if "word" not in units.columns:
        arrays = np.zeros((len(units.example), classes), np.float32)
        arrays[vectors.unit] = log_probabilities
        return {"log_probabilities": list(arrays)}
    tokens = np.zeros((len(units.tokens), classes), np.float32)
    tokens[units.offsets[vectors.unit] + vectors.position] = log_probabilities
    return {"log_probabilities": np.split(tokens, units.offsets[1:-1])}


def fit(x: np.ndarray, y: np.ndarray, classes: int, seed: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    """Trains a softmax classifier on each layer with Adam.

    Every dimension is first normalized by its mean and standard deviation in the training vectors, so that layers of
    different scales train alike.

    Args:
      x: training vectors of k layers, float32 [k, m, d].
      y: labels, int [m].
      classes: number of classes.

    Returns:
      The function x float32 [k, n, d] -> log-probabilities float32 [k, n, classes].
    """
    k, m, d = x.shape
    mean, scale = normalization(x)
    batch_size = min(BATCH, m)
    epochs = max(EPOCHS, -(-STEPS // (m // batch_size)))
    steps = epochs * (m // batch_size)
    optimizer = optax.adam(optax.linear_schedule(RATE, 0, steps))

    def logits(params: Tree, x: Array) -> Array:
        return jnp.einsum("knd,kdc->knc", (x - mean) * scale, params["kernel"]) + params["bias"]

    def loss(params: Tree, x: Array, y: Array) -> Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, x), jnp.broadcast_to(y, (k, len(y))))
        return losses.mean(1).sum()  # so that the gradients of the classifiers do not mix

    @jax.jit
    def train(x: Array, y: Array) -> Tree:
        def step(state: tuple[Tree, Any], batch: Array) -> tuple[tuple[Tree, Any], None]:
            params, moments = state
            updates, moments = optimizer.update(jax.grad(loss)(params, x[:, batch], y[batch]), moments)
            return (optax.apply_updates(params, updates), moments), None

        params = {"kernel": jnp.zeros((k, d, classes)), "bias": jnp.zeros((k, 1, classes))}
        return jax.lax.scan(step, (params, optimizer.init(params)), order)[0][0]

    draw = np.random.default_rng(seed)
    order = np.concatenate([draw.permutation(m)[: m // batch_size * batch_size].reshape(-1, batch_size)
                            for _ in range(epochs)])
    params = train(x, y)
    predict = jax.jit(lambda x: jax.nn.log_softmax(logits(params, x)))
    return lambda x: np.concatenate([np.asarray(predict(x[:, i : i + 8192])) for i in range(0, x.shape[1], 8192)], 1)


def _shown(result: Result) -> Columns:
    """Returns the metric that selects checkpoints; {} for a task or a metric that there is not."""
    known, name = TASKS[result["task"]].objective.metrics if result["task"] in TASKS else {}, result["best"]
    return {name: known[name]} if name in known else {}


def _describe(result: Result, network: str) -> str:
    """Describes a result in a sentence, with the score of the most frequent class."""
    sizes, metrics, metric = result["examples"], result["layers"][0]["metrics"], _shown(result)[result["best"]]
    baseline = (f"; always the most frequent class: {float(metrics[metric.baseline]):.2%}"
                if metric.baseline in metrics else "")
    pooling = f", {result['pooling']} pooling" if "pooling" in result else ""
    return (f"Linear classifiers on the layers of {network}{pooling}: {sizes['train']:,} training and "
            f"{sizes['validation']:,} validation examples, with bootstrap 95 % intervals{baseline}")


CLASSIFIERS = ProbeDef("linear classifiers", lambda experiment: build.prepare_data(experiment, Path()), _probe_layers,
                       _shown, _describe)
# task, or name of a probe of other labels than a task's -> row
PROBES: Mapping[str, ProbeDef] = {
    "tagging": CLASSIFIERS, "classification": CLASSIFIERS, "regression": similarity.DEFINITION,
    "word_in_context": word_similarity.DEFINITION, structural_probe.NAME: structural_probe.DEFINITION,
    **edge_probe.DEFINITIONS}


# Results


def _definition(result: Result) -> ProbeDef:
    return PROBES.get(result["task"], CLASSIFIERS)


def shown(result: Result) -> Columns:
    """Returns the metrics that are shown of a result, by name. {} for a task or a metric that there is not."""
    return _definition(result).shown(result)


def method(result: Result) -> str:
    """Names what was measured on the layers."""
    return _definition(result).method + (f", {result['pooling']} pooling" if "pooling" in result else "")


def table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Returns (headings, rows of cells): for each layer the metrics of `shown`, their intervals and, where they were
    measured, the scores of an untrained network."""
    return _definition(result).table(result, shown(result))


def describe(result: Result) -> str:
    """Describes in a sentence what was measured."""
    return _definition(result).describe(result, f"{result['source']}, {result['name']}")


def store(result: Mapping[str, Any], path: Path) -> None:
    """Adds a result to a JSON file. It replaces an earlier one of the same task, pooling and checkpoint, and for
    targets of edge probes of the same files; damaged results stay. Raises UserError if the file itself is damaged."""
    names = ("name", "task", "source", "pooling", *(["data"] if result["task"] == edge_probe.NAMES["targets"] else []))

    def is_replaced(other: Any) -> bool:
        return isinstance(other, dict) and all(other.get(name) == result.get(name) for name in names)

    write_json(path, {"probes": [*(other for other in stored(path) if not is_replaced(other)), result]})


def stored(path: Path) -> list[Any]:
    """Reads probes.json without checking its results; [] where there is no file. Raises UserError if it is damaged."""
    return (json_files.read(ProbesFile, path) or {"probes": []})["probes"]


def read(path: Path, notes: list[str] | None = None) -> list[ProbeRecord]:
    """Reads the intact results in probes.json; [] where there is no file. Adds to `notes` what is damaged."""
    intact, damaged = [], []
    try:
        for number, record in enumerate(stored(path)):
            try:
                intact.append(convert(Annotated[ProbeRecord, _mismatch], record, f"probes.{number}"))
            except UserError as error:
                damaged.append(f"{path.name}: {error}; it is left out.")
    except UserError as error:
        damaged.append(f"{error}.")
    if notes is not None:
        notes += damaged
    return intact


def _mismatch(result: ProbeRecord) -> str:
    """Says what was expected where the fields of a record do not match each other; "" where they do."""
    if result["best"] not in shown(result):
        return "a task and one of its metrics as 'best'"
    layers, untrained = result["layers"], result.get("untrained", [])
    if not layers or len(untrained) not in (0, len(layers)):
        return "layers, and as many of the untrained network"
    lacking = [name for name in shown(result) if not all(name in layer["metrics"] for layer in (*layers, *untrained))]
    return f"{', '.join(lacking)} for every layer" if lacking else ""
