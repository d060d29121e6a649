"""The contract of a task: labelled examples, a head on a network, and metrics of its predictions."""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lmrep.config.record import setting
from lmrep.core.components import row
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data.formats.base import TEXT_FIELDS, Field, FormatDef, single_text, truncate_pair
from lmrep.data.records import TARGETS, TEXTS, Record
from lmrep.data.records.encoding import EncodedUnit, InputLayout, Units, assemble, collect, windows
from lmrep.data.tokenizers import Tokenizer
from lmrep.metrics.tasks import TASK_METRICS, TaskMetric
from lmrep.objectives.base import ObjectiveDef


@dataclass(frozen=True)
class Format:
    """Settings of the sequences that labelled examples become."""

    long: str = setting("auto", "what is done with texts longer than config.length. auto, in every config file: "
                        "truncate, as published code does, but windows for tagging and span_extraction, where each "
                        "word or answer counts. refuse: stop, with file and line. truncate: cut their end, of a pair "
                        "that of the longer text first. windows: read them in overlapping parts (of a pair the longer "
                        "text; the other one keeps at most half of the length)",
                        choices=("auto", "refuse", "truncate", "windows"))
    stride: int = setting(128, "tokens between the starts of two windows", at_least=1)
    packed: bool = setting(False, "several examples in a sequence of config.length tokens, which do not attend to each "
                           "other; batch_size counts sequences")
    batch_tokens: int = setting(0, "tokens of a training batch at most, padding included: sequences are batched with "
                                "others of the same padded length, and batches of long ones have fewer of them than "
                                "batch_size; 0: no limit", at_least=0)
    both_orders: bool = setting(False, "train on each pair of texts in both orders, where the order has no meaning "
                                "(ELECTRA on MRPC and STS-B)")


def resolve_long(form: Format, fields: Collection[str]) -> Format:
    """Replaces `long=auto` by what suits a task that reads these fields of records: windows for words and contexts,
    whose tags and answers must not be cut off, and truncate for other texts."""
    if form.long != "auto":
        return form
    return replace(form, long="windows" if {"words", "context"} & {*fields} else "truncate")


Outputs = dict[str, list[np.ndarray]]  # of a network for a split: name -> an array for each unit, in their order

FORMAT = FormatDef(Format, "examples-1", single_text, None, fields=lambda c: (*TEXT_FIELDS, "unit", "first", "last"),
                   packed=lambda c: c.packed)


class Result(NamedTuple):
    """Predictions for examples, and their metrics.

    Attributes:
      metrics: name -> value; {} if the examples have no targets.
      predictions: for each example, the fields that `predict` shows, as JSON.
      gold, predicted: for each example, in order, the values that the metrics compare, for intervals.
      options: metric -> its keyword arguments.
      own_metrics: metrics by name that `TASK_METRICS` lacks, for their intervals.
      sources: source of a mixture -> the result of its examples.
    """

    metrics: dict[str, float]
    predictions: list[dict[str, Any]]
    gold: list = []  # noqa: RUF012
    predicted: list = []  # noqa: RUF012
    options: dict[str, dict[str, Any]] = {}  # noqa: RUF012
    own_metrics: Mapping[str, TaskMetric] = {}
    sources: Mapping[str, "Result"] = {}


class Comparison(NamedTuple):
    """The prediction for an example beside its target, for reports.

    Attributes:
      gold, predicted: texts for people.
      loss: how wrong the prediction is; larger is worse.
      classes: (gold, predicted) classes, which a confusion table counts.
    """

    gold: str
    predicted: str
    loss: float
    classes: Sequence[tuple[str, str]] = ()


def compare(config: Any, record: Record, prediction: Mapping[str, Any]) -> Comparison:
    """Compares the target of a record, "" if it has none, with the first field of its prediction. The loss is the
    negative logarithm of the target's probability if the prediction has `probabilities`, else whether they differ."""
    gold = str(next((record.fields[name] for name in TARGETS if name in record.fields), ""))
    predicted, probabilities = str(next(iter(prediction.values()))), prediction.get("probabilities")
    if isinstance(probabilities, Sequence) and gold.isdecimal() and int(gold) < len(probabilities):
        probabilities = {str(i): p for i, p in enumerate(probabilities)}
    if isinstance(probabilities, Mapping) and {gold, predicted} <= probabilities.keys():
        return Comparison(f"{gold} ({probabilities[gold]:.1%})", f"{predicted} ({probabilities[predicted]:.1%})",
                          -math.log(max(probabilities[gold], sys.float_info.min)), [(gold, predicted)])
    return Comparison(gold, predicted, float(gold not in ("", predicted)))


class TextEncoder(NamedTuple):
    """Tokenizes the texts of examples."""

    tokenizer: Tokenizer  # the network's
    layout: InputLayout  # the special tokens around texts
    length: int  # the most tokens of a unit
    format: Format  # how longer texts are read
    # distinct word -> its number, filled by `words`, for tasks that read word vectors or characters; None for others
    distinct: dict[str, int] | None = None

    def units(self, records: Sequence[Record], columns: Mapping[str, Sequence] = {}) -> tuple[Units, int]:
        """Encodes the `text` of records, and `text2` of those that have it.

        Args:
          records: any number.
          columns: name -> a value, or an array, for each record.

        Returns:
          (a unit for each text or pair, several if it is read in windows; the number of texts longer than `length`).

        Raises:
          UserError: as `texts`.
        """
        units, owners, long = self.texts(
            [record.fields["text"] for record in records], [record.fields.get("text2") for record in records],
            [record.where for record in records])
        columns = {name: np.asarray(values)[owners] for name, values in columns.items()}
        return self.collect(units, owners, columns), len(long)

    def collect(self, parts: Sequence[EncodedUnit], example: Sequence[int], columns: Mapping[str, Sequence] = {},
                token_columns: Mapping[str, Sequence[np.ndarray]] = {}) -> Units:
        """Collects units as `lmrep.data.records.encoding.collect`, with the words of tokens if the task reads them."""
        return collect(parts, example, columns, token_columns, self.distinct)

    def texts(
        self, texts: Sequence[str], seconds: Sequence[str | None], names: Sequence[str]
    ) -> tuple[list[EncodedUnit], list[int], list[int]]:
        """Encodes texts and pairs of texts.

        Args:
          texts: any number.
          seconds: the second text of each pair; None for single texts.
          names: what messages call the texts.

        Returns:
          (units, the number of each unit's text, the numbers of the texts that were longer than `length`).

        Raises:
          UserError: a text is not Unicode, or longer than `length` and `format.long` is "refuse".
        """
        first = self.ids(texts, names)
        paired = [i for i, second in enumerate(seconds) if second is not None]
        others = dict(zip(paired, self.ids([seconds[i] for i in paired], [names[i] for i in paired]), strict=True))
        units, owners, long = [], [], []
        for i, a in enumerate(first):
            b = others.get(i)
            capacity = self.length - self.layout.special(b is not None)
            size = len(a) + (0 if b is None else len(b))
            if capacity < 2 and b is not None:
                raise UserError(f"{names[i]} is a pair of texts, and config.length is {self.length}, "
                                f"{self.length - capacity} of which are special tokens; raise it")
            if size <= capacity:
                spans = [(slice(None), slice(None))]
            else:
                long.append(i)
                spans = self._shortened(len(a), None if b is None else len(b), capacity, names[i], size)
            words = self.distinct is not None and [self.words(text) for text in (texts[i], seconds[i] or "")]
            units += [assemble(self.layout, a[first_part], None if b is None else b[second_part],
                               [words[0][first_part], words[1][second_part]] if words else None)
                      for first_part, second_part in spans]
            owners += [i] * len(spans)
        return units, owners, long

    def ids(self, texts: Sequence[str], names: Sequence[str], words: bool = False) -> list[np.ndarray]:
        """Returns the int32 ids of texts, or of single words of texts, without special tokens."""
        try:
            return (self.tokenizer.encode_words if words else self.tokenizer.encode_batch)(list(texts))
        except (TypeError, UnicodeEncodeError):  # lone surrogates
            for text, name in zip(texts, names, strict=True):
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise UserError(f"{name} is not Unicode text; convert it") from None
            raise

    def words(self, text: str) -> np.ndarray:
        """Returns the number of each token's word, int32 [t], and adds new words to `distinct`. The tokenizer splits a
        text into these words before subword tokenization."""
        encoding, ranges = self.tokenizer.encode(text), {}
        for word, (start, end) in zip(encoding.words, encoding.offsets, strict=True):
            first, last = ranges.get(word, (start, end))
            ranges[word] = min(first, start), max(last, end)
        numbers = {word: self.distinct.setdefault(text[start:end].strip(), len(self.distinct))
                   for word, (start, end) in ranges.items()}
        return np.array([numbers[word] for word in encoding.words], np.int32)

    def _shortened(
        self, a: int, b: int | None, capacity: int, name: str, size: int
    ) -> list[tuple[slice, slice]]:
        """Returns for each unit the slices of a text of `a` tokens, and of the second text of `b` tokens in a pair."""
        if self.format.long == "refuse":
            raise self.too_long(name, size + self.length - capacity)
        if self.format.long == "truncate":
            sizes = (capacity, 0) if b is None else truncate_pair(a, b, capacity)
            return [(slice(sizes[0]), slice(sizes[1]))]
        if b is None:
            return [(part, slice(0)) for part in self._windows(a, capacity)]
        # Windows of the longer text; the other one keeps at most half of the unit.
        if a > b:
            shorter = min(b, max(capacity // 2, capacity - a))
            return [(part, slice(shorter)) for part in self._windows(a, capacity - shorter)]
        shorter = min(a, max(capacity // 2, capacity - b))
        return [(slice(shorter), part) for part in self._windows(b, capacity - shorter)]

    def too_long(self, name: str, size: int) -> UserError:
        """Returns the error for a text or pair of `size` tokens, with special ones, if `format.long` is "refuse"."""
        return UserError(f"{name} has {size:,} tokens, and config.length is {self.length:,}; raise it (as far as the "
                         "network has positions), or set --config.format.long to truncate or windows")

    def _windows(self, size: int, capacity: int) -> list[slice]:
        return [slice(*window) for window in windows(size, capacity, min(self.format.stride, capacity))]


class Reads(NamedTuple):
    """The fields of records that a task reads."""

    fields: tuple[str, ...]  # its input
    targets: tuple[str, ...]  # what it predicts; training and validation data must have these fields
    optional: tuple[str, ...] = ()  # further fields of the input, which records may lack
    # the fields whose texts a tokenizer is trained on; (): all fields of the input, and targets that are texts
    texts: tuple[str, ...] = ()
    # whether the network reads all units of an example together (choices); `encode` then gives every example of a split
    # the same number of them
    grouped: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Returns all fields of the input."""
        return self.fields + self.optional


class Templates(NamedTuple):
    """Functions of a task whose config decides which fields of records it reads, and which can therefore be trained on
    a mixture of data sets (`lmrep.tasks.text_to_text`). The defaults suit every other task."""

    # config -> (fields of the input, targets) that records have in files; None: those of `TaskDef.reads`
    reads: Callable[[Any], tuple[tuple[str, ...], tuple[str, ...]] | None] = lambda config: None
    # (config, record as it was read) -> the record with the fields of `TaskDef.reads`
    convert: Callable[[Any, Record], Record] = lambda config, record: record
    # (config, record) -> the texts that a tokenizer is trained on; None: those of `TaskDef.reads`
    texts: Callable[[Any, Record], Iterable[str]] | None = None
    # config -> for data without targets, a function (records, TextEncoder) -> records with targets; None for other data
    unlabelled: Callable[[Any], Callable[[Sequence[Record], TextEncoder], list[Record]] | None] = lambda config: None
    # the fields of the config that may differ between the data sets of a mixture (`config.sources`); (): the task
    # cannot be trained on a mixture
    source_fields: tuple[str, ...] = ()


@row
class TaskDef(NamedTuple):
    """A row of `TASKS`: a task that networks are fine-tuned for, as a choice of an experiment config.

    The objective's `loss` reads the batches of `lmrep.data.records.examples.Examples`. Its `predict` is
    (params, batch) -> {"units": {name: [b, n, ...]}, "tokens": {name: [b, t, ...]}}, values for each unit and for each
    position; either may be absent. A field of the config that is None and has the name of a metric, such as a
    threshold, is tuned: a loaded run has the value that validation measured for its checkpoint, or 0."""

    objective: ObjectiveDef  # config, head, loss and metrics
    reads: Reads  # the fields of records that are its input and its targets
    # (config, records, TextEncoder) -> (Units, number of texts that were too long for one unit)
    encode: Callable[[Any, Sequence[Record], TextEncoder], tuple[Units, int]]
    score: Callable[[Any, Sequence[Record], Units, Outputs], Result]  # (config, records, units, outputs) -> Result
    best: str  # the metric by which checkpoints are compared; "": the first of the resolved config's `metrics`
    # config -> the fields of a batch beside those of `FORMAT`: the columns of the units that `encode` returns
    columns: Callable[[Any], Mapping[str, Field]] = lambda config: {}
    # (config, training records) -> config with the fields that the training data decides, such as `labels`; without
    # records, the fields that the labels decide
    resolve: Callable[[Any, Sequence[Record]], Any] = lambda config, records: config
    # (config, record) -> None; raises UserError, with the record's `where`, for a record that does not fit
    check: Callable[[Any, Record], None] = lambda config, record: None
    # (config, records, result) -> {file name: text}, predictions as a benchmark takes them; the name of a single file
    # begins with "predictions"
    submission: Callable[[Any, Sequence[Record], Result], dict[str, str]] | None = None
    # (config, record with targets, its prediction) -> Comparison, for reports
    compare: Callable[[Any, Record, Mapping[str, Any]], Comparison] = compare
    # path of a parameter -> path in a pretraining head that it starts from, if the source checkpoint has it
    initial: Mapping[str, str] = {}
    templates: Templates = Templates()  # for a task whose config decides which fields it reads

    def needed(self, config: Any) -> tuple[str, ...]:
        """Returns the fields that records must have; a test file may lack the targets."""
        fields, targets = self.templates.reads(config) or (self.reads.fields, self.reads.targets)
        return (*fields, *targets)

    def texts(self, config: Any, record: Record) -> list[str]:
        """Returns the texts of a record that a tokenizer is trained on."""
        if self.templates.texts:
            return [*self.templates.texts(config, record)]
        names = self.reads.texts or self.reads.inputs + tuple(name for name in self.reads.targets if name in TEXTS)
        values = filter(None, (record.fields.get(name) for name in names))
        return [value if isinstance(value, str) else " ".join(map(str, value)) for value in values]


class TextNetwork(NamedTuple):
    """A row of `lmrep.tasks.networks.TEXT_NETWORKS`: a network that makes the vector of each text which the head reads,
    and has running statistics. Its config `c` is the field of the task's config that has its name."""

    specs: Callable[[Any, int], Tree]  # (c, width of its input) -> its parameters
    statistics: Callable[[Any, int], Tree]  # (c, width of its input) -> its running statistics before the first batch
    output_width: Callable[[Any], int]  # c -> the width of its vectors
    # (params, c, x, batch, running, key or None) -> (vectors [b, n, `output_width`], statistics after the batch)
    apply: Callable[[Tree, Any, Array, Mapping[str, Array], Tree, Array | None], tuple[Array, Tree]]
    pooled: bool  # whether x is the pooled vector of each text, [b, n, d]; otherwise of each token, [b, t, d]
    fields: Mapping[str, Any]  # the fields of the task's config that go with it
    initial: Callable[[int], Callable] | None = None  # width -> initializer of the head; None: the encoder's


def collate(outputs: Iterable[dict[str, Any]], units: Units) -> Outputs:
    """Collects the outputs for each unit from outputs for batches in any order.

    Args:
      outputs: for each batch, `unit`, `first` and `last` [b, n] of `Examples.gather`, and the results of `predict`:
        `units`, {name: [b, n, ...]}, and `tokens`, {name: [b, t, ...] or [b, k, t, ...]}.
      units: of the split.
    """
    arrays: Outputs = {}
    for batch in outputs:
        for i, j in zip(*np.nonzero(batch["unit"] >= 0), strict=True):
            unit = batch["unit"][i, j]
            values = {name: array[i, j] for name, array in batch.get("units", {}).items()}
            span = slice(batch["first"][i, j], batch["last"][i, j] + 1)
            values |= {name: array[i, span] for name, array in batch.get("tokens", {}).items()}
            for name, value in values.items():
                arrays.setdefault(name, [None] * len(units.example))[unit] = value
    return arrays


def glue_submission(records: Sequence[Record], values: Sequence[str]) -> dict[str, str]:
    """Makes the file that GLUE's server takes: a header line, then index and prediction between tabs."""
    lines = [f"{record.id}\t{value}" for record, value in zip(records, values, strict=True)]
    return {"predictions.tsv": "\n".join(["index\tprediction", *lines]) + "\n"}


def figures(
    names: Iterable[str], gold: Sequence, predicted: Sequence, options: Mapping[str, dict[str, Any]] = {},
    table: Mapping[str, TaskMetric] = TASK_METRICS,
) -> dict[str, float]:
    """Computes the metrics `names` of `table`, from all examples together."""
    return {name: table[name].function(gold, predicted, **options.get(name, {})) for name in names}


def mean_by_example(values: np.ndarray, example: np.ndarray, count: int) -> np.ndarray:
    """Computes the mean over the units of each example: values [u, ...], `example` [u] -> [count, ...]."""
    sums = np.zeros((count, *values.shape[1:]))
    np.add.at(sums, example, values)
    return sums / np.bincount(example, minlength=count).reshape(-1, *[1] * (values.ndim - 1))
