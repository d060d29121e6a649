"""Encodes the records of a task as examples: its tokens, the special tokens around them, windows and packing."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from lmrep.core.errors import UserError
from lmrep.core.files import digest
from lmrep.data.records import Record, fingerprint
from lmrep.data.records.encoding import InputLayout, input_layout
from lmrep.data.records.examples import Examples, arrange, sizes
from lmrep.data.tokenizers import Tokenizer
from lmrep.models.base import Model
from lmrep.tasks import word_features
from lmrep.tasks.base import Format, TaskDef, TextEncoder, resolve_long

log = logging.getLogger(__name__)


def layout_of(model: Model, tokenizer: Tokenizer, context: str, end_of_text: bool = True) -> InputLayout:
    """Returns the special tokens that a network and its tokenizer put around texts and pairs of texts."""
    one_separator = "token_type_ids" in model.inputs or tokenizer.one_separator
    return input_layout(tokenizer.vocabulary, context, one_separator, end_of_text,
                        cls_last=model.head_style.pooling == "last")


def text_encoder(
    task: TaskDef, config: Any, form: Format, length: int, model: Model, tokenizer: Tokenizer
) -> TextEncoder:
    """Returns the encoder of a task's texts, to at most `length` tokens, for a network and its tokenizer."""
    context = task.objective.conditions_on(config)
    layout = layout_of(model, tokenizer, context, getattr(config, "end_of_text", True))
    if getattr(config, "start_of_text", False) and context == "left":
        layout = layout._replace(lead=layout.lead or layout_of(model, tokenizer, context).tail)
    return TextEncoder(tokenizer, layout, length, resolve_long(form, task.reads.fields),
                       {} if word_features.fields(config) else None)


def encode(
    task: TaskDef, name: str, config: Any, encoder: TextEncoder, records: Sequence[Record], split: str, training: bool
) -> Examples:
    """Encodes records as examples. Only training examples get batches of at most `batch_tokens`, and only they are
    packed if the task generates texts.

    Args:
      task, name, config: the row of `TASKS`, its name and its config.
      encoder: of `text_encoder`.
      records: at least one.
      split: its name, for logs.
      training: whether the examples are trained on.

    Raises:
      UserError: a text is too long, or not Unicode; the examples cannot be packed.
    """
    form, length = encoder.format, encoder.length
    units, long = task.encode(config, records, encoder)
    if long:
        level, done = ((logging.WARNING, "truncated") if form.long == "truncate" else
                       (logging.INFO, "split into windows"))
        log.log(level, "%s: %s of %s examples are longer than %s tokens and were %s", split, f"{long:,}",
                f"{len(records):,}", length, done)
    if task.reads.grouped and form.packed:
        raise UserError("config.format.packed is True, and this task reads several texts of an example together; set "
                        "it to False")
    if form.packed and sizes(units).max() > length:
        raise UserError(f"an example has {sizes(units).max():,} tokens, and packed sequences {length:,} "
                        "(config.length); raise it")
    changed = {name: value for name, value in _changed(form).items() if (name, value) != ("long", "refuse")}
    content = digest([encoder.tokenizer.fingerprint, name, _changed(config), changed, length, encoder.layout,
                      fingerprint(records)])
    # Outside training, texts are generated, which takes one source text a sequence.
    packed = form.packed and (units.source is None or training)
    group = len(units.example) // len(records) if task.reads.grouped else 0
    return arrange(units, encoder.tokenizer.vocabulary, encoder.layout.pad, content, length if packed else 0, group,
                   form.batch_tokens if training else 0)


def _changed(config: Any) -> dict[str, Any]:
    """Returns the fields that differ from their defaults, so that adding a field does not change fingerprints."""
    defaults = dataclasses.asdict(type(config)())
    return {name: value for name, value in dataclasses.asdict(config).items() if value != defaults[name]}
