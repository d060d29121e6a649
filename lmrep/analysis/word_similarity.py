"""Similarity of a word in two contexts without training: the cosine of its vectors in each layer, and whether it is
above a threshold, which training pairs choose (WiC, Pilehvar and Camacho-Collados, 2019).

The vector of a word is the mean of the vectors of its tokens. Each context is read by itself.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmrep.analysis.probe_base import ProbeDef, Splits
from lmrep.analysis.similarity import cosine, mean_vectors
from lmrep.core.errors import UserError
from lmrep.core.params import Tree
from lmrep.data import tokenizers
from lmrep.data.records import Record
from lmrep.data.records.values import SPANS, short
from lmrep.experiment import config as experiments
from lmrep.experiment import data_sets, task_data
from lmrep.experiment.config import Experiment
from lmrep.experiment.record import Data
from lmrep.inference import evaluate_task
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.models.base import Model
from lmrep.tasks.base import Result, figures
from lmrep.tasks.target_words import COLUMN

log = logging.getLogger(__name__)

SHOWN = {"accuracy": TASK_METRICS["accuracy"].metric}
LABELS = {"T": True, "true": True, "F": False, "false": False}  # whether the word has one meaning in both contexts


def prepare(experiment: Experiment) -> Data:
    """Reads the training and validation pairs of an experiment of words in context, and tokenizes their contexts, those
    of a pair one after the other.

    Raises:
      UserError: the data cannot be read, or has other labels than those of WiC and SuperGLUE.
    """
    sizes = {"train": 0, "validation": experiment.evaluation.examples}
    pairs = {split: data_sets.read_split(experiment, split, size) for split, size in sizes.items()}
    for pair in (*pairs["train"], *pairs["validation"]):
        if pair.fields["label"] not in LABELS:
            raise UserError(f"{pair.where} has the label {short(pair.fields['label'])}; expected T or true for a word "
                            "with one meaning in both contexts, F or false for others")
    tokenizer = tokenizers.from_vocab_file(experiment.tokenizer)
    model = experiments.build_model(experiment, tokenizer.size)
    examples = {split: task_data.tokenize_records(experiment, model, tokenizer, _contexts(records), f"{split} contexts")
                for split, records in pairs.items()}
    return Data(experiment, tokenizer, examples, pairs)


def _contexts(pairs: Sequence[Record]) -> list[Record]:
    return [Record({"text": pair.fields[text], "span": pair.fields[span]}, "", pair.where)
            for pair in pairs for span, text in SPANS.items()]


def measure(experiment: Experiment, model: Model, params: Tree, splits: Splits) -> list[dict[str, Any]]:
    """Classifies pairs by their cosines, in every layer.

    Args:
      experiment: of words in context.
      params: of the encoder.
      splits: "train" and "validation": the pairs, and their contexts as `prepare` tokenizes them.

    Returns:
      For each layer, the embeddings first, the `threshold`, which has the best accuracy on the training pairs, and
      `metrics` and `intervals` (bootstrap 95 %) of the accuracy on the validation pairs, with that of the most frequent
      label.
    """
    context = experiments.resolve_stages(experiment)[0].objective.context
    cosines, labels = {}, {}
    for split, (pairs, examples) in splits.items():
        x = mean_vectors(params, model, context, examples, lambda batch: batch[COLUMN] == 1)
        cosines[split] = np.stack([cosine(layer[::2], layer[1::2]) for layer in x])
        labels[split] = np.array([LABELS[pair.fields["label"]] for pair in pairs])
    log.info("comparing %s and %s pairs in %d layers", *(f"{len(gold):,}" for gold in labels.values()), len(x))
    results, gold = [], labels["validation"]
    for layer, (training, held_out) in enumerate(zip(*cosines.values(), strict=True)):
        threshold = best_threshold(training, labels["train"])
        predicted = (held_out > threshold).tolist()
        result = Result(figures(SHOWN, gold.tolist(), predicted), [], gold.tolist(), predicted)
        results.append({"layer": layer, "threshold": threshold,
                        "metrics": result.metrics | {"majority_accuracy": float(max(gold.mean(), 1 - gold.mean()))},
                        "intervals": evaluate_task.intervals(result)})
    return results


def best_threshold(values: np.ndarray, labels: np.ndarray) -> float:
    """Returns the threshold above which most `labels` bool[n] of `values` [n] are true, and below which most are false:
    half-way between two values, the lowest if several are equally good; or below or above all values by 1."""
    order = np.argsort(values)
    values, labels = values[order], labels[order]
    cuts = np.concatenate([[values[0] - 1], (values[:-1] + values[1:]) / 2, [values[-1] + 1]])
    right = np.concatenate([[0], np.cumsum(~labels)]) + np.concatenate([np.cumsum(labels[::-1])[::-1], [0]])
    separates = np.concatenate([[True], values[:-1] < values[1:], [True]])
    return float(cuts[np.argmax(np.where(separates, right, -1))])


def describe(result: Mapping[str, Any], network: str) -> str:
    """Describes a result in a sentence."""
    sizes = result["examples"]
    return (f"Cosine similarities of a word in two contexts (the mean over its tokens) in the layers of {network}: "
            f"accuracy on {sizes['validation']:,} pairs of the threshold that is best on {sizes['train']:,} training "
            "pairs, with bootstrap 95 % intervals; always the most frequent label: "
            f"{float(result['layers'][0]['metrics']['majority_accuracy']):.2%}")


DEFINITION = ProbeDef(
    "cosine similarities of words", prepare, measure, lambda result: SHOWN, describe, best="accuracy", trained=False)
