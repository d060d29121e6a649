"""What a run that was trained for a task can be asked: the capability of every task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data.records import FIELDS, Record, values
from lmrep.objectives.base import Names


@dataclass(frozen=True)
class NoOptions:
    """A prediction of a task has no options."""


@dataclass(frozen=True)
class OfSource:
    """Options of a prediction by a run that may have been trained on a mixture."""

    source: str = setting("", "of a mixture of data sets, that whose template a text is put into; by default the text "
                          "is read as it is, with its prefix")
    first: int = setting(0, "the number of the first text; draws depend on a text's number", at_least=0,
                         at_most=2**31 - 1)


class Predict:
    """Predicts what a task predicts for new examples.

    An example is a dict of the fields of `lmrep.data.records.FIELDS` that the task reads, or what `from_text` makes of
    a text, or of a tuple of texts.

    Args:
      name: of the capability, "classify".
      summary: what it does, "classifies texts".
      fields: that an example must have.
      optional: that it may have.
      show: prediction -> text for people.
      from_text: a text, or a tuple of texts -> fields; by default they are the fields in order.
    """

    example = ""
    types = (str, tuple, list, dict)
    options, sample_options = NoOptions, NoOptions()

    def __init__(
        self, name: str, summary: str, fields: Sequence[str], show: Callable[[dict], str],
        optional: Sequence[str] = (), from_text: Callable[[tuple[str, ...]], Mapping[str, Any]] | None = None,
    ):
        self.name, self.summary, self._fields, self._optional, self._show = name, summary, fields, optional, show
        self._from_text = from_text or self._in_order

    def accepts(self, text: Any) -> bool:
        """Always: a run of a task does nothing else."""
        return True

    def check(self, texts: Sequence[Any], tokenizer: Any, max_length: int, names: Names = None) -> None:
        """Raises UserError for an example without a field that the task needs."""
        self.records(texts, names)

    def records(self, examples: Sequence[Any], names: Names = None) -> list[Record]:
        """Examples as records; messages call them `names`. Raises UserError as `check`."""
        found = []
        for i, example in enumerate(examples):
            where = (names[i] if names else None) or (repr(example)[:60] if isinstance(example, str)
                                                      else f"example {i}")
            if isinstance(example, str | tuple | list):
                texts = (example,) if isinstance(example, str) else tuple(example)
                try:
                    example = self._from_text(texts)
                except ValueError as error:
                    raise UserError(f"{where} has {len(texts)} texts; expected {error}") from None
            if not isinstance(example, Mapping):
                raise UserError(f"{where} is {example!r}; expected a text, a tuple of texts, or a dict with the fields "
                                f"{', '.join(self._fields)}")
            if missing := [name for name in self._fields if example.get(name) is None]:
                raise UserError(f"{where} has no {missing[0]!r} ({FIELDS[missing[0]]}); it has "
                                f"{', '.join(example) or 'nothing'}: give it")
            record = Record({}, str(example.get("id", i)), where)
            for name in (*self._fields, *self._optional):
                if example.get(name) is not None:
                    record.fields[name] = self._converted(name, example[name], where)
            found.append(record)
        return found

    def _in_order(self, texts: tuple[str, ...]) -> dict[str, str]:
        """Texts as the fields, in order. Raises ValueError where there are too many."""
        names = (*self._fields, *self._optional)
        if len(texts) > len(names):
            raise ValueError(f"at most {len(names)}: {', '.join(names)}")
        return dict(zip(names, texts, strict=False))

    @staticmethod
    def _converted(name: str, value: Any, where: str) -> Any:
        try:
            value = values.convert(name, list(value) if isinstance(value, tuple) else value)
        except ValueError as error:
            raise UserError(f"{where}: {name!r} is {repr(value)[:60]}; expected {error}") from None
        parts = [value] if isinstance(value, str) else value
        if not parts or not all(part.strip() for part in parts if isinstance(part, str)):
            raise UserError(f"{where}: {name!r} is {repr(value)[:60]}; expected text that is not empty")
        return value

    def predict(self, run: Any, texts: Sequence[Any], options: NoOptions, names: Names) -> list[dict[str, Any]]:
        """For each example, the prediction as `TaskDef.score` gives it."""
        return run.score_records(self.records(texts, names)).predictions

    def to_json(self, prediction: dict[str, Any]) -> dict[str, Any]:
        """The prediction's fields."""
        return prediction

    def to_text(self, text: Any, prediction: dict[str, Any], tokenizer: Any) -> str:
        """The prediction, and the example after it."""
        parts = [text] if isinstance(text, str) else text.values() if isinstance(text, Mapping) else text
        return "\t".join([self._show(prediction), *map(str, parts)])


class PredictOfSource(Predict):
    """As `Predict`, of a task that a run may have learned on several data sets: those of `config.sources`. An example
    may name its data set in the field `source`."""

    options, sample_options = OfSource, OfSource()

    def predict(self, run: Any, texts: Sequence[Any], options: OfSource, names: Names) -> list[dict[str, Any]]:
        """As `Predict.predict`. Raises UserError where the run has no such source."""
        own = [text.get("source", options.source) if isinstance(text, Mapping) else options.source for text in texts]
        found = [record._replace(source=source)
                 for record, source in zip(self.records(texts, names), own, strict=True)]
        return run.score_records(found, first=options.first).predictions
