"""What a run that was trained for a task can be asked: the capabilities of tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from lmrep.config.record import optional, setting
from lmrep.core.errors import UserError
from lmrep.core.json_text import json_object
from lmrep.data.records import FIELDS, Record, values
from lmrep.data.tokenizers import Tokenizer
from lmrep.models import decoding
from lmrep.objectives.base import Names
from lmrep.tasks import text_templates, words


@dataclass(frozen=True)
class NoOptions:
    """A prediction of a task has no options."""


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
        """Makes records of examples; messages call them `names`. Raises UserError as `check`."""
        records = []
        for i, example in enumerate(examples):
            where = (names[i] if names else None) or (repr(example)[:60] if isinstance(example, str)
                                                      else f"example {i}")
            example = self._to_fields(example, where)
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
            records.append(record)
        return records

    def _to_fields(self, example: Any, where: str) -> Any:
        """Returns the fields of an example that is a text, or several texts; others as they are."""
        if not isinstance(example, str | tuple | list):
            return example
        texts = (example,) if isinstance(example, str) else tuple(example)
        try:
            return self._from_text(texts)
        except ValueError as error:
            raise UserError(f"{where} has {len(texts)} texts; expected {error}") from None

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


@dataclass(frozen=True)
class TagOptions:
    """Options of `Tag`."""

    pretokenized: bool = setting(False, "of a tagger: white space alone separates the words of a text")
    entities: bool = setting(False, "of a tagger: the entities alone, without the tag of each word")


class Tag(Predict):
    """Tags sentences: texts, lists of words, or dicts with `text` or `words`.

    A text is split into words as `words.spans` says. Its prediction has the `words` too, and each of the `entities` its
    first character and the one after its last, `start` and `end`.

    For people a line is a word and its tag, with a space between them, and a blank line ends a sentence, as in the
    files of CoNLL-2003 and for `conlleval`; of entities alone, a line is a type, two places and the text, with tabs.
    """

    options, sample_options = TagOptions, TagOptions()

    def _to_fields(self, example: Any, where: str) -> Any:
        """Returns the fields of an example, with the words of a text that are separated by white space."""
        return _with_words(example, (text := _text(example)) and text.split())

    def predict(self, run: Any, texts: Sequence[Any], options: TagOptions, names: Names) -> list[dict[str, Any]]:
        """For each example the prediction of `tagging.score`, with `words` and the places of entities for texts."""
        split = words.white_space_spans if options.pretokenized else partial(words.spans, tokenizer=run.tokenizer)
        places = [None if (text := _text(example)) is None else [*split(text)] for example in texts]
        examples = [example if own is None else _with_words(example, [_text(example)[slice(*span)] for span in own])
                    for example, own in zip(texts, places, strict=True)]
        predictions = [prediction if own is None else _placed(prediction, _text(example), own) for
                       prediction, example, own in zip(super().predict(run, examples, options, names), texts, places,
                                                       strict=True)]
        if not options.entities:
            return predictions
        if predictions and "entities" not in predictions[0]:
            raise UserError(f"{run.directory} was trained on plain tags, which mark no entities; leave entities out")
        return [{"entities": prediction["entities"]} for prediction in predictions]

    def to_text(self, text: Any, prediction: dict[str, Any], tokenizer: Any) -> str:
        """A line for each word, or entity, and a blank one."""
        if "tags" not in prediction:
            return "".join("\t".join(map(str, [each["type"], each.get("start", each["words"][0]), each.get(
                "end", each["words"][1]), each["text"]])) + "\n" for each in prediction["entities"])
        own = prediction.get("words") or (text["words"] if isinstance(text, Mapping) else text)
        return "".join(f"{word} {tag}\n" for word, tag in zip(own, prediction["tags"], strict=True))


def _text(example: Any) -> str | None:
    """The text of an example; None where it has words."""
    text = example.get("text") if isinstance(example, Mapping) and "words" not in example else example
    return text if isinstance(text, str) else None


def _with_words(example: Any, own: Sequence[str] | None) -> Any:
    if own is None:
        return example if isinstance(example, Mapping) else {"words": example}
    return {**example, "words": own} if isinstance(example, Mapping) else {"words": own}


def _placed(prediction: dict[str, Any], text: str, places: Sequence[words.Span]) -> dict[str, Any]:
    """A prediction for the words of a text, with the places of its entities in the text."""
    found = prediction | {"words": [text[start:end] for start, end in places]}
    if "entities" in prediction:
        found["entities"] = [
            each | {"text": text[start:end], "start": start, "end": end} for each in prediction["entities"]
            for start, end in [(places[each["words"][0]][0], places[each["words"][1] - 1][1])]]
    return found


class PredictWord(Predict):
    """As `Predict`, for target words. An example is a dict, a JSON object as a text, or the cells of a line of a file,
    as a tuple or as a text with tabs between them.

    Args:
      parse: cells -> fields; raises ValueError with what is wrong, to follow a name.
      renamed: dict -> fields under our names.
      **others: as of `Predict`.
    """

    def __init__(self, *args: Any, parse: Callable[[Sequence[str]], Mapping[str, Any]],
                 renamed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict, **others: Any):
        super().__init__(*args, **others)
        self._parse, self._renamed = parse, renamed

    def records(self, examples: Sequence[Any], names: Names = None) -> list[Record]:
        """Makes records of examples. Raises UserError as `check`, and if a word is not in its text."""
        records = super().records(examples, names)
        for record in records:
            if error := values.check(record, "test"):
                raise error
        return records

    def _to_fields(self, example: Any, where: str) -> Any:
        if isinstance(example, str) and example.lstrip().startswith("{"):
            example = json_object(example, where)
        if isinstance(example, Mapping):
            return self._renamed(example)
        try:
            return self._parse(example.split("\t") if isinstance(example, str) else example)
        except ValueError as error:
            raise UserError(f"{where} {error}") from None


@dataclass(frozen=True)
class OfSource:
    """Options of a prediction by a run that may have been trained on a mixture."""

    source: str = setting("", "of a mixture of data sets, that whose template a text is put into; by default the text "
                          "is read as it is, with its prefix")
    first: int = setting(0, "the number of the first text; draws depend on a text's number", at_least=0,
                         at_most=2**31 - 1)


class GenerateTarget(Predict):
    """Generates a text, or draws several, from a text. Options that are not given come from `config.search`. An
    example that is a text, or a tuple of texts, has the fields of the template in their order. Of a mixture of data
    sets the template is that of the field `source` of an example, or of `options.source`, or else "{text}"."""

    options = optional(decoding.Search, "GenerateTargetOptions", OfSource)
    sample_options = options()

    def predict(self, run: Any, texts: Sequence[Any], options: Any, names: Names) -> list[dict[str, Any]]:
        """As `Predict.predict`. Raises UserError for options that do not fit each other, for an example without a field
        of the template, and where the run has no such source."""
        given = {field.name: value for field in fields(decoding.Search)
                 if (value := getattr(options, field.name)) is not None}
        if "beams" not in given and given.get("temperature"):
            given["beams"] = 1
        sources = [text.get("source", options.source) if isinstance(text, Mapping) else options.source
                   for text in texts]
        examples = [self._example(run.task_config(source).template, text, name or f"example {i}") for i, (
            text, source, name) in enumerate(zip(texts, sources, names or [None] * len(texts), strict=True))]
        if given:
            run = run.with_objective(search=given)
        records = [record._replace(source=source)
                   for record, source in zip(self.records(examples, names), sources, strict=True)]
        return run.score_records(records, first=options.first).predictions

    @staticmethod
    def _example(template: str, text: Any, name: str) -> Any:
        if isinstance(text, Mapping):
            found = text
        else:
            texts = (text,) if isinstance(text, str) else tuple(text)
            try:
                found = text_templates.from_texts(template, texts)
            except ValueError as error:
                raise UserError(f"{name} has {len(texts)} texts; expected {error}") from None
        text_templates.require(template, found, name, "config.objective.template")
        return found

    def to_json(self, prediction: Mapping[str, Any]) -> dict[str, Any]:
        """The prediction's fields, its text as `generated`: an example may have the field `text`, too."""
        return {"generated" if name == "text" else name: value for name, value in prediction.items()}

    def to_text(self, text: Any, prediction: Mapping[str, Any], tokenizer: Tokenizer) -> str:
        """As `Predict.to_text`, a line for each text that was drawn."""
        return "\n".join(super(GenerateTarget, self).to_text(text, {"text": own}, tokenizer)
                         for own in prediction.get("texts", (prediction["text"],)))
