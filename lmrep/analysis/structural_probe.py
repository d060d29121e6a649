"""The structural probe: how much of dependency trees can be read from the word vectors of each layer (Hewitt and
Manning, 2019).

A linear map of each layer is trained so that the squared distance of two mapped words approximates the number of edges
between them in the tree of their sentence. The vector of a word is the mean over its tokens, as in the paper. Unlike
there, dimensions are normalized, so that one learning rate suits all layers, and the rate falls linearly. Measured on
held-out sentences:

- UUAS: the fraction of edges between words that are not punctuation that the minimum spanning tree has too.
- DSpr.: Spearman's correlation of the distances from each word, itself included as in the authors' code, the mean over
  sentences of a length and then over the lengths from 5 to 50.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.analysis.layer_vectors import normalization, vectors
from lmrep.analysis.probe_base import ProbeDef, Splits
from lmrep.core.errors import UserError
from lmrep.core.messages import byte_size
from lmrep.core.params import Array, Tree
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples
from lmrep.experiment import build, data_sets
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment
from lmrep.experiment.record import Data
from lmrep.inference import evaluate_task
from lmrep.inference.encode import padded_length
from lmrep.metrics import CORRELATION, Metric, accuracy_metric
from lmrep.metrics.classification import mean_of, ratio
from lmrep.metrics.tasks import of_sums
from lmrep.models.base import Model
from lmrep.tasks.base import Result, figures

NAME = "dependency_trees"  # in results, where others have a task
UPOS = ("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ",
        "SYM", "VERB", "X")  # the parts of speech of Universal Dependencies
RANK = 128  # of the maps, at most
BATCH, EPOCHS, STEPS, RATE = 20, 20, 1000, 3e-3  # of training: sentences in a batch, at least so many steps; Adam
SHORTEST, LONGEST = 5, 50  # words of the sentences that DSpr. is measured on

log = logging.getLogger(__name__)


# Trees


def prepare(experiment: Experiment) -> Data:
    """Reads the sentences of CoNLL-U files for an experiment of tagging. Their records have `heads` beside `tags`, the
    parts of speech.

    Raises:
      UserError: the files cannot be read, are not CoNLL-U, or a sentence has no tree.
    """
    plain = dataclasses.replace(
        experiment, objective=experiment.objective | {"pieces": "mean", "labels": UPOS, "scheme": "none"})
    prepared = build.prepare_data(with_column(plain, "upos"), Path())
    records = {}
    for split, sentences in prepared.records.items():
        for record in sentences:
            if unknown := {*record.fields["tags"]} - {*UPOS}:
                raise UserError(f"{record.where}: {', '.join(sorted(unknown))} is no part of speech of Universal "
                                f"Dependencies, which tell punctuation from words; expected {', '.join(UPOS)}")
        limit = experiment.evaluation.examples if split == "validation" else None
        heads = data_sets.read_split(with_column(plain, "head"), split, limit)
        records[split] = [record._replace(fields={**record.fields, "heads": heads_of(other)})
                          for record, other in zip(sentences, heads, strict=True)]
    return dataclasses.replace(prepared, records=records)


def with_column(experiment: Experiment, column: str) -> Experiment:
    """Returns the experiment with the tags in a column of its CoNLL-U files."""
    columns = {**experiment.data.columns, "tags": column}
    return dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, format="conllu", columns=columns))


def heads_of(record: Record) -> list[int]:
    """Returns the numbers, from 1, of the words' heads in `tags`; 0: the root. Raises UserError if they are no tree."""
    heads = record.fields["tags"]
    for i, head in enumerate(heads):
        if not head.isdecimal() or int(head) > len(heads):
            raise UserError(f"{record.where_word(i)}: the head is {head!r}; expected 0, for the root, or the number of "
                            f"a word, up to {len(heads)}")
    numbers = [*map(int, heads)]
    if numbers.count(0) != 1 or not np.isfinite(tree_distances(numbers)).all():
        raise UserError(f"{record.where}: the heads {' '.join(heads)} are no tree; expected one root, with head 0, and "
                        "a path to it from every word")
    return numbers


def tree_distances(heads: Sequence[int]) -> np.ndarray:
    """Computes the numbers of edges between words by their `heads_of`, float64 [n, n]; inf: there is no path."""
    from scipy.sparse import csgraph

    edges, dependents = np.zeros((len(heads), len(heads))), np.flatnonzero(heads)
    edges[dependents, np.take(heads, dependents) - 1] = 1
    return csgraph.shortest_path(edges, directed=False, unweighted=True)


class Sentences(NamedTuple):
    """The words of sentences, one sentence after the other."""

    x: np.ndarray  # float32 [k, m, d], the vectors of m words in k layers
    offsets: np.ndarray  # int64 [n + 1], the first word of each of n sentences; last = m
    distances: list[np.ndarray]  # `tree_distances` of each
    is_word: list[np.ndarray]  # bool [words], whether a word is not punctuation


def encode(params: Tree, model: Model, c: Any, records: Sequence[Record], examples: Examples) -> Sentences:
    """Computes the word vectors of records of `prepare`, in all layers."""
    words, units = vectors(params, model, c, examples), examples.units
    sentence = units.example[words.unit]
    order = np.lexsort((units.columns["word"][units.offsets[words.unit] + words.position], sentence))
    offsets = np.concatenate([[0], np.cumsum([len(record.fields["heads"]) for record in records])])
    return Sentences(words.x[:, order], offsets, [tree_distances(record.fields["heads"]) for record in records],
                     [np.array(record.fields["tags"]) != "PUNCT" for record in records])


# The probe


def measure(experiment: Experiment, model: Model, params: Tree, splits: Splits) -> list[dict[str, Any]]:
    """Trains a map of each layer on the training sentences, with `splits` and `experiment` of `prepare`. Returns for
    each layer, the embeddings first, `metrics` and `intervals` (bootstrap 95 %) of `METRICS` on the validation
    sentences, and the metrics of a chain of each sentence's words, `chain_uuas` and `chain_dspr`."""
    c = experiments.resolve_stages(experiment)[0].objective
    train, held_out = (encode(params, model, c, *splits[split]) for split in ("train", "validation"))
    log.info("training structural probes on %d layers of width %d, on %s sentences (%s)", len(train.x),
             train.x.shape[-1], f"{len(train.distances):,}", byte_size(train.x.nbytes + held_out.x.nbytes))
    mapped = np.einsum("kmd,kdr->kmr", held_out.x, fit(train, experiment.seed))
    results = [score(held_out._replace(x=x)) for x in mapped]
    positions = np.concatenate([np.arange(n) for n in np.diff(held_out.offsets)])[:, None]
    chain = {f"chain_{name}": value for name, value in score(held_out._replace(x=positions)).metrics.items()}
    return [{"layer": layer, "metrics": evaluate_task.finite_or_text(result.metrics | chain),
             "intervals": evaluate_task.intervals(result)} for layer, result in enumerate(results)]


def fit(train: Sentences, seed: int = 0) -> np.ndarray:
    """Trains the maps of all layers with Adam on the mean over sentences of the absolute errors of squared distances,
    summed over pairs of words and divided by the square of the sentence's length. Returns float32 [k, d, r]."""
    k, _, d = train.x.shape
    mean, scale = normalization(train.x)
    x, lengths = (train.x - mean) * scale, np.diff(train.offsets)
    draw, sizes = np.random.default_rng(seed), np.array([padded_length(n, 8) for n in lengths.tolist()])
    per_epoch = sum(-(-count // BATCH) for count in np.unique(sizes, return_counts=True)[1])
    epochs = max(EPOCHS, -(-STEPS // per_epoch))
    optimizer = optax.adam(optax.linear_schedule(RATE, 0, epochs * per_epoch))

    def loss(b: Array, x: Array, index: Array, distance: Array, weight: Array) -> Array:
        mapped = jnp.einsum("kbnd,kdr->kbnr", x[:, index], b)
        return (jnp.abs(squared_distances(mapped) - distance) * weight).sum()  # layers do not mix in the gradient

    @jax.jit
    def step(b: Array, moments: Any, *batch: Array) -> tuple[Array, Any]:
        updates, moments = optimizer.update(jax.grad(loss)(b, *batch), moments)
        return optax.apply_updates(b, updates), moments

    x, b = jnp.asarray(x), jnp.asarray(draw.uniform(-0.05, 0.05, (k, d, min(RANK, d))), jnp.float32)
    moments = optimizer.init(b)
    for _ in range(epochs):
        order = draw.permutation(len(lengths))
        groups = [order[sizes[order] == size] for size in np.unique(sizes)]
        chosen = [group[i : i + BATCH] for group in groups for i in range(0, len(group), BATCH)]
        for i in draw.permutation(len(chosen)):
            b, moments = step(b, moments, x, *batch_of(train, chosen[i], int(sizes[chosen[i][0]])))
    return np.asarray(b) * scale.swapaxes(1, 2)


def batch_of(train: Sentences, chosen: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (the words of sentences, int32 [b, n], their distances and the weights of pairs, float32 [b, n, n])."""
    index = np.zeros((BATCH, size), np.int32)
    distance, weight = np.zeros((2, BATCH, size, size), np.float32)
    for row, sentence in enumerate(chosen):
        start, end = train.offsets[sentence], train.offsets[sentence + 1]
        n = end - start
        index[row, :n] = np.arange(start, end)
        distance[row, :n, :n] = train.distances[sentence]
        weight[row, :n, :n] = 1 / (n * n * len(chosen))
    return index, distance, weight


def squared_distances(x: Any) -> Any:
    """Computes the squared distances [..., n, n] of vectors [..., n, r]."""
    squares = (x * x).sum(-1)
    return squares[..., :, None] + squares[..., None, :] - 2 * x @ x.swapaxes(-1, -2)


# Scores


def score(mapped: Sentences) -> Result:
    """Compares the squared distances of mapped words, `x` float [m, r], with trees."""
    gold, predicted = [], []
    for i, (distance, is_word) in enumerate(zip(mapped.distances, mapped.is_word, strict=True)):
        found = squared_distances(mapped.x[mapped.offsets[i] : mapped.offsets[i + 1]].astype(np.float64))
        edges = {(a, b) for a, b in np.argwhere(np.triu(distance == 1)).tolist() if is_word[a] and is_word[b]}
        gold.append(len(edges))
        predicted.append((len(edges & spanning_tree(found, is_word)), len(is_word), row_correlation(found, distance)))
    return Result(figures(METRICS, gold, predicted, table=METRICS), [], gold, predicted, own_metrics=METRICS)


def spanning_tree(distances: np.ndarray, chosen: np.ndarray) -> set[tuple[int, int]]:
    """Returns the edges (a, b), a < b, of the minimum spanning tree of the chosen nodes, bool [n], by `distances`."""
    from scipy.sparse import csgraph

    nodes = np.flatnonzero(chosen)
    shifted = distances[np.ix_(nodes, nodes)] - distances.min() + 1  # SciPy takes 0 for no edge; the tree is the same
    edges = csgraph.minimum_spanning_tree(shifted).nonzero() if len(nodes) else ((), ())
    return {(min(a, b), max(a, b)) for a, b in zip(nodes[edges[0]].tolist(), nodes[edges[1]].tolist(), strict=True)}


def row_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Computes the mean over rows of Spearman's correlation of [n, n] and [n, n]; a constant row has 0."""
    from scipy.stats import rankdata

    a, b = (ranks - ranks.mean(1, keepdims=True) for ranks in (rankdata(a, axis=1), rankdata(b, axis=1)))
    return float(ratio((a * b).sum(1), np.sqrt((a * a).sum(1) * (b * b).sum(1))).mean())


def _edge_sums(gold: Sequence[int], predicted: Sequence[tuple[int, int, float]]) -> np.ndarray:
    """Returns float64 [n, 2]: the numbers of predicted edges of the tree, and of its edges."""
    return np.stack([np.array(predicted)[:, 0], np.array(gold, np.float64)], 1)


def _length_sums(gold: Sequence[int], predicted: Sequence[tuple[int, int, float]]) -> np.ndarray:
    """Returns float64 [n, 2 l], for l lengths: the correlation of a sentence in the column of its length, and 1."""
    _, length, value = np.array(predicted).T[..., None]
    has_length = length == np.arange(SHORTEST, LONGEST + 1)
    return np.concatenate([has_length * value, has_length], 1)


def _mean_over_lengths(sums: np.ndarray) -> np.ndarray:
    values, counts = np.split(sums, 2, -1)
    return ratio(ratio(values, counts).sum(-1), (counts > 0).sum(-1))


METRICS = {"uuas": of_sums(accuracy_metric("UUAS"), _edge_sums, mean_of),
           "dspr": of_sums(Metric("DSpr.", CORRELATION, True, ".4f"), _length_sums, _mean_over_lengths)}
SHOWN = {name: entry.metric for name, entry in METRICS.items()}


def describe(result: Mapping[str, Any], network: str) -> str:
    """Describes a result in a sentence."""
    sizes, metrics = result["examples"], result["layers"][0]["metrics"]
    chain = ", ".join(f"{metric.title} {format(float(metrics[f'chain_{name}']), metric.format)}"
                      for name, metric in SHOWN.items() if f"chain_{name}" in metrics)
    return (f"Structural probes on the layers of {network}: {sizes['train']:,} training and {sizes['validation']:,} "
            f"validation examples, with bootstrap 95 % intervals; UUAS without punctuation, DSpr. of sentences of "
            f"{SHORTEST} to {LONGEST} words; a chain of each sentence's words has {chain}")


DEFINITION = ProbeDef("structural probes", prepare, measure, lambda result: SHOWN, describe, best="uuas")
