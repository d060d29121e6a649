"""Similarity of sentences without training: the cosine of the vectors of two sentences in each layer, compared with the
similarities that people gave (STS-B, Cer et al., 2017), as in Reimers and Gurevych, 2019, section 4.1.

The vector of a sentence is the mean of the vectors of its tokens, special ones included, as of `lmrep embed
--pool=mean`. Each sentence is read by itself.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.analysis.probe_base import ProbeDef, Splits
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data import tokenizers
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples
from lmrep.data.records.values import short
from lmrep.experiment import config as experiments
from lmrep.experiment import data_sets, task_data
from lmrep.experiment.config import Experiment
from lmrep.experiment.record import Data
from lmrep.inference import evaluate_task
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.models.base import Context, Model, model_inputs
from lmrep.models.layer_choice import outputs
from lmrep.tasks.base import Result, figures
from lmrep.tasks.regression import METRICS, number

log = logging.getLogger(__name__)


def prepare(experiment: Experiment) -> Data:
    """Reads the validation pairs of an experiment of regression, and tokenizes their distinct sentences in the order of
    `sentences`. Training data is not read.

    Raises:
      UserError: the data cannot be read, or is not pairs with numbers.
    """
    pairs = data_sets.read_split(experiment, "validation", experiment.evaluation.examples)
    for pair in pairs:
        if "text2" not in pair.fields or not np.isfinite(number(pair)):
            raise UserError(f"{pair.where} has {short(pair.fields)}; similarities need pairs of sentences, in columns "
                            "text and text2, with a number as label: --config.data.columns.text2=sentence2")
    tokenizer = tokenizers.from_vocab_file(experiment.tokenizer)
    model = experiments.build_model(experiment, tokenizer.size)
    texts = [Record({"text": text}, "", where) for text, where in sentences(pairs).items()]
    examples = task_data.tokenize_records(experiment, model, tokenizer, texts, "validation sentences")
    best = experiment.checkpoint.best if experiment.checkpoint.best in METRICS else METRICS[0]
    experiment = dataclasses.replace(experiment, checkpoint=dataclasses.replace(experiment.checkpoint, best=best))
    return Data(experiment, tokenizer, {"validation": examples}, {"validation": pairs})


def sentences(pairs: list[Record]) -> dict[str, str]:
    """Returns the distinct sentences of pairs, with the record that each is first in."""
    where: dict[str, str] = {}
    for pair in pairs:
        for name in ("text", "text2"):
            where.setdefault(pair.fields[name], pair.where)
    return where


def measure(experiment: Experiment, model: Model, params: Tree, splits: Splits) -> list[dict[str, Any]]:
    """Compares cosines with the labels of pairs, in every layer.

    Args:
      experiment: of regression.
      params: of the encoder.
      splits: "validation": the pairs, and their sentences as `prepare` tokenizes them.

    Returns:
      For each layer, the embeddings first, `metrics` and `intervals` (bootstrap 95 %) of Pearson's and Spearman's
      correlation.
    """
    pairs, examples = splits["validation"]
    index = {text: i for i, text in enumerate(sentences(pairs))}
    first, second = ([index[pair.fields[name]] for pair in pairs] for name in ("text", "text2"))
    gold = [number(pair) for pair in pairs]
    x = mean_vectors(params, model, experiments.resolve_stages(experiment)[0].objective.context, examples)
    log.info("comparing %s pairs in %d layers of width %d", f"{len(pairs):,}", len(x), x.shape[-1])
    results = []
    for layer in x:
        similarity = cosine(layer[first], layer[second]).tolist()
        results.append(Result(figures(METRICS, gold, similarity), [], gold, similarity))
    return [{"layer": layer, "metrics": evaluate_task.finite_or_text(result.metrics),
             "intervals": evaluate_task.intervals(result)} for layer, result in enumerate(results)]


def mean_vectors(
    params: Tree, model: Model, context: str, examples: Examples,
    chosen: Callable[[Mapping[str, Array]], Array] = lambda batch: batch["segment_ids"] > 0,
) -> np.ndarray:
    """Computes for each text the mean of the vectors of its tokens, or of those `chosen`, (batch) -> bool[b, t], as
    float32 [k, n, d], for k layers and n texts; of a text that is read in windows, the mean over the windows. Vectors
    of narrower layers end with zeros."""
    @jax.jit
    def encode(params: Tree, batch: dict[str, Array]) -> Array:
        layers = outputs(model.encode(params, model_inputs(model, batch, conditions_on=Context(context)), layers=True))
        width = max(x.shape[-1] for x in layers)
        counted = chosen(batch).astype(jnp.float32)
        means = [jnp.einsum("btd,bt->bd", x, counted) / jnp.maximum(counted.sum(1), 1)[:, None] for x in layers]
        return jnp.stack([jnp.pad(x, ((0, 0), (0, width - x.shape[-1]))) for x in means])

    example, parts, units = examples.units.example, [], []
    for batch in evaluate_task.batches(examples):
        unit = batch["unit"][:, 0]
        parts.append(np.asarray(encode(params, batch))[:, unit >= 0])
        units.append(unit[unit >= 0])
    x = np.concatenate(parts, 1)[:, np.argsort(np.concatenate(units))]
    sums = np.add.reduceat(x, np.flatnonzero(np.diff(example, prepend=-1)), 1)
    return sums / np.bincount(example).astype(np.float32)[:, None]


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Computes the cosines of vectors [n, d] and [n, d], float64 [n]; 0 for a vector of zeros."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    norms = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return (a * b).sum(-1) / np.where(norms > 0, norms, 1)


def describe(result: Mapping[str, Any], network: str) -> str:
    """Describes a result in a sentence."""
    return (f"Cosine similarities of sentence vectors (the mean over all tokens, special ones included) in the layers "
            f"of {network}, computed without training: correlations with the labels of "
            f"{result['examples']['validation']:,} pairs, with bootstrap 95 % intervals")


DEFINITION = ProbeDef(
    "cosine similarities", prepare, measure, lambda result: {name: TASK_METRICS[name].metric for name in METRICS},
    describe, splits=("validation",), trained=False)
