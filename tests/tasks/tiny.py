"""Small experiments of tasks: files of short texts, and a network of one layer of width 16."""

import functools
import json
import random
from pathlib import Path

import jax
import numpy as np

from lmrep.core.params import unflatten
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import tokenizers
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units, input_layout
from lmrep.data.records.examples import Examples, arrange
from lmrep.experiment.fine_tuning import compose_task
from lmrep.inference import evaluate_task
from lmrep.layers.stack import Execution
from lmrep.models import MODELS
from lmrep.objectives.base import Carry, Keys
from lmrep.tasks import TASKS, word_features
from lmrep.tasks.base import FORMAT, Outputs, TextEncoder, collate
from tests import started
from tests.reference import random_params

WORDS = ("cat", "dog", "bird", "fish", "horse", "mouse", "tree", "stone")
NETWORK = {"layers": 1, "width": 16, "heads": 2, "mlp": 32, "max_length": 32, "dropout": 0.0, "attention_dropout": 0.0}


@functools.cache
def tokenizer():
    """Of one token for each word."""
    return tokenizers.train(tokenizers.Config(vocab_size=100), lambda: iter([" ".join((*WORDS, "good", "bad"))] * 20))


def sentence(draw: random.Random, length: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(length))


def write(path: Path, records: list[dict]) -> Path:
    """Writes records as JSON Lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def as_records(examples: list[dict]) -> list[Record]:
    return [Record(fields, str(i), f"train.jsonl, line {i + 1}") for i, fields in enumerate(examples)]


def config(task: str, train: Path, validation: Path | None = None, argument: str = "mesh=1x1x1", **fields):
    """The config of a task with a tiny network; `fields` are dotted paths with __ for dots."""
    c = compose_task("size=tiny," + argument, task, base="encoder_decoder" if task == "text_to_text" else "bert_base")
    if c.init:
        c = started.from_checkpoint(c, c.init)
    else:
        c.model.update({name: value for name, value in NETWORK.items() if name in c.model})
        c.tokenizer.vocab_size = 100
    c.length, c.batch_size, c.epochs = 32, 16, 2.0
    c.data.train, c.data.validation = str(train), str(validation or "")
    c.log.update({"every": 1, "tensorboard": False, "report": False})
    c.optimizer.learning_rate = 1e-2
    c.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return c


class Tiny:
    """A task on a network with random parameters, without any run.

    Args:
      task: a name in `TASKS`.
      records: examples, as dicts of fields.
      model: a name in `MODELS`.
      form: fields of the format.
      sizes: fields of the network.
      frozen: the frozen parts that the task reads.
      **fields: of the task's config.
    """

    def __init__(self, task, records, model="transformer", length=32, form=None, sizes=None, frozen=None, **fields):
        self.task, self.length, self.frozen = TASKS[task], length, frozen or {}
        self.records = as_records(records)
        if "dropout" in self.task.objective.config.__dataclass_fields__:
            fields.setdefault("dropout", 0.0)
        self.config = self.task.resolve(self.task.objective.config(**fields), self.records)
        self.form = FORMAT.config(**(form or {}))
        self.tokenizer = tokenizer()
        definition = MODELS[model]
        own = {name: value for name, value in {**definition.tiny, **NETWORK, **(sizes or {})}.items()
               if name in definition.config.__dataclass_fields__}
        vocabulary: Vocabulary = self.tokenizer.vocabulary
        self.model = definition.build(definition.config(**own | {"vocab": self.tokenizer.size}), Execution(), "tiny")
        self.objective = self.task.objective.build(self.config, self.model, vocabulary, self.frozen)
        self.params = random_params(self.objective.specs, seed=1)
        if self.objective.frozen:
            self.params["frozen"] = {name: unflatten(self.frozen[name].values) for name in self.objective.frozen}
        self.predict = jax.jit(self.objective.predict)
        self._loss = jax.jit(jax.value_and_grad(self.objective.loss, has_aux=True))
        context = self.task.objective.conditions_on(self.config)
        self.layout = input_layout(vocabulary, context, "token_type_ids" in self.model.inputs)

    def encode(self, records=None) -> tuple[Units, int]:
        encoder = TextEncoder(self.tokenizer, self.layout, self.length, self.form,
                              {} if word_features.fields(self.config) else None)
        return self.task.encode(self.config, self.records if records is None else records, encoder)

    def examples(self, records=None) -> Examples:
        records = self.records if records is None else records
        units = word_features.columns(self.config, self.encode(records)[0], self.frozen)
        group = len(units.example) // len(records) if self.task.reads.grouped else 0
        return arrange(units, self.tokenizer.vocabulary, self.layout.pad, "", self.length if self.form.packed else 0,
                       group)

    def loss(self, batch, params=None):
        """(the loss, the gradient), without dropout."""
        batch = self.objective.prepare(Keys(None, None), batch)
        (value, _), gradient = self._loss(params or self.params, batch, None, Carry())
        return float(value), gradient

    def outputs(self, examples, batch_size=0) -> Outputs:
        """Predictions of all units, in batches of `batch_size` or as runs make them."""
        if batch_size:
            numbers = np.arange(-(-examples.examples // batch_size) * batch_size)
            chosen = np.where(numbers < examples.examples, numbers, -1).reshape(-1, batch_size)
            batches = [examples.gather(each, examples.batch_length(each)) for each in chosen]
        else:
            batches = evaluate_task.batches(examples)
        return collate([{**jax.device_get(self.predict(self.params, batch)), **{
            name: batch[name] for name in ("unit", "first", "last")}} for batch in batches], examples.units)

    def score(self, examples=None, batch_size=0):
        examples = examples or self.examples()
        return self.task.score(self.config, self.records, examples.units, self.outputs(examples, batch_size))
