"""Capabilities of runs that were trained for a task: predictions for new examples."""

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
from lmrep.objectives.base import Capability, Names, NoOptions
from lmrep.tasks import text_templates, words


class Predict(Capability):
    """Makes the predictions of a task for new examples.

    An example is a dict of the fields of `lmrep.data.records.FIELDS` that the task reads, or a text, or a tuple of
    texts: the fields in order (`text_templates.from_texts`).

    Args:
      name: the capability's name, "classify".
      summary: what it does, "classifies texts".
      fields: the fields that an example must have.
      optional: the fields that it may have.
      show: prediction -> text for people.
      tabs: whether a single text is split at its tabs.
    """

    types = (str, tuple, list, dict)

    def __init__(
        self, name: str, summary: str, fields: Sequence[str], show: Callable[[dict], str],
        optional: Sequence[str] = (), tabs: bool = False,
    ):
        self.name, self.summary, self._fields, self._optional, self._show = name, summary, fields, optional, show
        self._tabs = tabs

    def check(self, texts: Sequence[Any], tokenizer: Any, max_length: int, names: Names = None) -> None:
        """Raises UserError for an example that lacks a field, or has one of a wrong type or without text."""
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
        return self._named((*self._fields, *self._optional), example, where)

    def _named(self, names: Sequence[str], example: Any, where: str) -> Any:
        """Assigns the texts of an example to the fields `names`; returns an example that is no text as it is."""
        if not isinstance(example, str | tuple | list):
            return example
        texts = [example] if isinstance(example, str) else example
        if self._tabs and len(texts) == 1:
            texts = texts[0].split("\t", -1 if "choices" in names else len(names) - 1)
        try:
            return text_templates.from_texts(names, texts)
        except ValueError as error:
            raise UserError(f"{where} has {len(texts)} texts; expected {error}") from None

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
        """Predicts for each example. Returns the predictions of `TaskDef.score`."""
        return run.score_records(self.records(texts, names)).predictions

    def to_json(self, prediction: dict[str, Any]) -> dict[str, Any]:
        """Returns the prediction's fields."""
        return prediction

    def to_text(self, text: Any, prediction: dict[str, Any], tokenizer: Any) -> str:
        """Shows the prediction, and after it the example, with tabs between them."""
        parts = [text] if isinstance(text, str) else text.values() if isinstance(text, Mapping) else text
        return "\t".join([self._show(prediction), *map(str, parts)])


@dataclass(frozen=True)
class TagOptions:
    """Options of `Tag`."""

    pretokenized: bool = setting(False, "of a tagger: white space alone separates the words of a text")
    entities: bool = setting(False, "of a tagger: the entities alone, without the tag of each word")


class Tag(Predict):
    """Tags sentences: texts, lists of words, or dicts with `text` or `words`.

    `words.spans` splits a text into words. The prediction for a text has its `words` too, and for each of its
    `entities` the characters [start, end) as `start` and `end`.

    For people, a line is a word and its tag, with a space between them, and a blank line ends a sentence, as in the
    files of CoNLL-2003 and for `conlleval`. With `entities`, a line is a type, start, end and the text, with tabs.
    """

    options, sample_options = TagOptions, TagOptions()

    def _to_fields(self, example: Any, where: str) -> Any:
        """Returns the fields of an example, with the words of a text that are separated by white space."""
        return _with_words(example, (text := _text(example)) and text.split())

    def predict(self, run: Any, texts: Sequence[Any], options: TagOptions, names: Names) -> list[dict[str, Any]]:
        """Predicts as `Predict.predict`, and adds `words` and the characters of entities for texts."""
        split = words.white_space_spans if options.pretokenized else partial(words.spans, tokenizer=run.tokenizer)
        spans = [None if (text := _text(example)) is None else [*split(text)] for example in texts]
        examples = [example if word_spans is None else
                    _with_words(example, [_text(example)[slice(*span)] for span in word_spans])
                    for example, word_spans in zip(texts, spans, strict=True)]
        predictions = [prediction if word_spans is None else _with_spans(prediction, _text(example), word_spans)
                       for prediction, example, word_spans in zip(
                           super().predict(run, examples, options, names), texts, spans, strict=True)]
        if not options.entities:
            return predictions
        if predictions and "entities" not in predictions[0]:
            raise UserError(f"{run.directory} was trained on plain tags, which mark no entities; leave entities out")
        return [{"entities": prediction["entities"]} for prediction in predictions]

    def to_text(self, text: Any, prediction: dict[str, Any], tokenizer: Any) -> str:
        """Shows a line for each word and its tag, or for each entity."""
        if "tags" not in prediction:
            return "".join("\t".join(map(str, [
                entity["type"], entity.get("start", entity["words"][0]), entity.get("end", entity["words"][1]),
                entity["text"]])) + "\n" for entity in prediction["entities"])
        sentence = prediction.get("words") or (text["words"] if isinstance(text, Mapping) else text)
        return "".join(f"{word} {tag}\n" for word, tag in zip(sentence, prediction["tags"], strict=True))


def _text(example: Any) -> str | None:
    """Returns the text of an example; None if it has words."""
    text = example.get("text") if isinstance(example, Mapping) and "words" not in example else example
    return text if isinstance(text, str) else None


def _with_words(example: Any, sentence: Sequence[str] | None) -> Any:
    if sentence is None:
        return example if isinstance(example, Mapping) else {"words": example}
    return {**example, "words": sentence} if isinstance(example, Mapping) else {"words": sentence}


def _with_spans(prediction: dict[str, Any], text: str, spans: Sequence[words.Span]) -> dict[str, Any]:
    """Adds the words of a text, and the characters of its entities, to a prediction; `spans` are those of the words."""
    fields = prediction | {"words": [text[start:end] for start, end in spans]}
    if "entities" in prediction:
        fields["entities"] = [
            entity | {"text": text[start:end], "start": start, "end": end} for entity in prediction["entities"]
            for start, end in [(spans[entity["words"][0]][0], spans[entity["words"][1] - 1][1])]]
    return fields


class PredictWord(Predict):
    """Makes predictions for target words. An example is a dict, a JSON object as a text, or the cells of a line of a
    file, as a tuple or as a text with tabs between them.

    Args:
      parse: cells -> fields; raises ValueError with the end of a message about the example.
      renamed: dict -> fields under the names of `lmrep.data.records.FIELDS`.
      **others: arguments of `Predict`.
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
class SourceOptions:
    """Options of predictions by a run that may have been trained on a mixture of data sets."""

    source: str = setting("", "of a mixture of data sets, that whose template a text is put into; by default the text "
                          "is read as it is, with its prefix")
    first: int = setting(0, "the number of the first text; draws depend on a text's number", at_least=0,
                         at_most=2**31 - 1)


class GenerateTarget(Predict):
    """Generates a text, or draws several, from a text. Options that are None come from `config.search`. The texts of an
    example that is no dict are the fields of the template, in order. For a mixture of data sets, the field `source` of
    an example, or `options.source`, chooses the template; without either it is "{text}"."""

    options = optional(decoding.Search, "GenerateTargetOptions", SourceOptions)
    sample_options = options()

    def predict(self, run: Any, texts: Sequence[Any], options: Any, names: Names) -> list[dict[str, Any]]:
        """Predicts as `Predict.predict`. Raises UserError if options do not fit each other, an example lacks a field of
        the template, or the run has no such source."""
        search = {field.name: value for field in fields(decoding.Search)
                  if (value := getattr(options, field.name)) is not None}
        if "beams" not in search and search.get("temperature"):
            search["beams"] = 1
        sources = [text.get("source", options.source) if isinstance(text, Mapping) else options.source
                   for text in texts]
        examples = [self._template_fields(run.task_config(source).template, text, name or f"example {i}") for i, (
            text, source, name) in enumerate(zip(texts, sources, names or [None] * len(texts), strict=True))]
        if search:
            run = run.with_objective(search=search)
        records = [record._replace(source=source)
                   for record, source in zip(self.records(examples, names), sources, strict=True)]
        return run.score_records(records, first=options.first).predictions

    def _template_fields(self, template: str, example: Any, name: str) -> Mapping[str, Any]:
        names = [field for field in text_templates.fields(template) if field in text_templates.INPUTS]
        example = self._named(names, example, name)
        text_templates.require(template, example, name, "config.objective.template")
        return example

    def to_json(self, prediction: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the prediction's fields, with its text as `generated`: an example may have a field `text`."""
        return {"generated" if name == "text" else name: value for name, value in prediction.items()}

    def to_text(self, text: Any, prediction: Mapping[str, Any], tokenizer: Tokenizer) -> str:
        """Shows a line for each text that was drawn, and after it the example."""
        return "\n".join(super(GenerateTarget, self).to_text(text, {"text": generated}, tokenizer)
                         for generated in prediction.get("texts", (prediction["text"],)))
