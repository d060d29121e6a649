"""Tags of new sentences: texts become words, and tagged words become entities with their places in the text."""

import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.data.tokenizers import Tokenizer
from lmrep.objectives.base import Names
from lmrep.tasks.capability import Predict

Span = tuple[int, int]


@dataclass(frozen=True)
class Options:
    """Options of `Tag`."""

    pretokenized: bool = setting(False, "of a tagger: white space alone separates the words of a text")
    entities: bool = setting(False, "of a tagger: the entities alone, without the tag of each word")


class Tag(Predict):
    """Tags sentences: texts, lists of words, or dicts with `text` or `words`.

    A text is split into words as `spans` says. Its prediction has the `words` too, and each of the `entities` its first
    character and the one after its last, `start` and `end`.

    For people a line is a word and its tag, with a space between them, and a blank line ends a sentence, as in the
    files of CoNLL-2003 and for `conlleval`; of entities alone, a line is a type, two places and the text, with tabs.
    """

    options, sample_options = Options, Options()

    def records(self, examples: Sequence[Any], names: Names = None) -> list[Record]:
        """Examples as records, whose words are separated by white space. Raises UserError for one without words, or
        with others than strings."""
        names = [(names[i] if names else None) or (repr(example)[:60] if isinstance(example, str) else None)
                 for i, example in enumerate(examples)]
        return super().records([_with_words(example, (text := _text(example)) and text.split())
                                for example in examples], names)

    def predict(self, run: Any, texts: Sequence[Any], options: Options, names: Names) -> list[dict[str, Any]]:
        """For each example the prediction of `tagging.score`, with `words` and the places of entities for texts."""
        places: list[list[Span] | None] = [
            None if (text := _text(example)) is None else
            [*white_space_spans(text)] if options.pretokenized else spans(text, run.tokenizer) for example in texts]
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
        words = prediction.get("words") or (text["words"] if isinstance(text, Mapping) else text)
        return "".join(f"{word} {tag}\n" for word, tag in zip(words, prediction["tags"], strict=True))


def _text(example: Any) -> str | None:
    """The text of an example; None where it has words."""
    text = example.get("text") if isinstance(example, Mapping) and "words" not in example else example
    return text if isinstance(text, str) else None


def _with_words(example: Any, words: Sequence[str] | None) -> Any:
    if words is None:
        return example if isinstance(example, Mapping) else {"words": example}
    return {**example, "words": words} if isinstance(example, Mapping) else {"words": words}


def _placed(prediction: dict[str, Any], text: str, places: Sequence[Span]) -> dict[str, Any]:
    """A prediction for the words of a text, with the places of its entities in the text."""
    found = prediction | {"words": [text[start:end] for start, end in places]}
    if "entities" in prediction:
        found["entities"] = [
            each | {"text": text[start:end], "start": start, "end": end} for each in prediction["entities"]
            for start, end in [(places[each["words"][0]][0], places[each["words"][1] - 1][1])]]
    return found


def spans(text: str, tokenizer: Tokenizer) -> list[Span]:
    """The characters [start, end) of each word of a text: what white space separates, split where the tokenizer splits
    words, such as at punctuation; and punctuation at the ends of a word that the tokenizer leaves whole."""
    encoding = tokenizer.encode(text)
    starts = {span[0] for (before, word), span in zip(
        itertools.pairwise([None, *encoding.words]), encoding.offsets, strict=True) if word != before}
    found: list[Span] = []
    for start, end in white_space_spans(text):
        cuts = [start, *sorted(cut for cut in starts if start < cut < end), end]
        for first, last in itertools.pairwise(cuts):
            found += _without_edges(text, first, last)
    return found


def white_space_spans(text: str) -> Iterator[Span]:
    """The characters [start, end) of what white space separates."""
    return (match.span() for match in re.finditer(r"\S+", text))


def _without_edges(text: str, start: int, end: int) -> list[Span]:
    """A word, without the punctuation marks at its ends, which are words of their own; one without letters and digits
    stays whole."""
    inner = [i for i in range(start, end) if not unicodedata.category(text[i]).startswith("P")]
    if not any(text[i].isalnum() for i in inner):
        return [(start, end)]
    first, last = inner[0], inner[-1] + 1
    return [*((i, i + 1) for i in range(start, first)), (first, last), *((i, i + 1) for i in range(last, end))]
