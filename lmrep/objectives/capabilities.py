"""Uses of trained models: filling masks, continuing texts, detecting replaced tokens.

Each class is a `Capability`; a row of `OBJECTIVES` names those of its objective.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data import prompts
from lmrep.data.tokenizers import Tokenizer
from lmrep.models.decoding import Sampling
from lmrep.objectives.base import Capability, Names, NoOptions

LINE_BREAK = re.compile(r"\s*[\n\r]\s*")
MASK = re.compile(r"\[MASK\]|<mask>")
SENTINEL = re.compile(r"<extra_id_\d+>")
LINE_WIDTH = 100  # columns of a printed line of tokens
# A word, with the apostrophes and hyphens in it; a character, in the scripts that put no space between words.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+(?:['\u2019-]+[^\W_]+)*")
SHORTEST_WORD = 4  # letters of a word that is masked or replaced in a prompt
PROMPT_WORDS = 6  # words of a prompt that is continued


@dataclass(frozen=True)
class FillMaskOptions:
    """Options of `FillMask`."""

    k: int = setting(5, "most probable tokens to give for each mask", at_least=1, at_most=10**5)


class FillMask(Capability):
    """Fills in masked tokens.

    A prediction is a list for each mask of a text, of (token, probability), the most probable first.

    Args:
      head: the name of the parameters, under `objective/`, that predict tokens.
      description: what messages call that head.
    """

    name = "fill_mask"
    summary = "fills in masked words"
    example = "The [MASK] of a list is an integer."
    options, sample_options = FillMaskOptions, FillMaskOptions(k=3)

    def __init__(self, head: str = "masked", description: str = "masked-LM head"):
        self._head, self._description = head, description

    def accepts(self, text: str) -> bool:
        """Tells whether the text has a mask, as any tokenizer writes it."""
        return MASK.search(text) is not None

    def prompt_from(self, sentence: str, mask: str, others: Sequence[str]) -> str | None:
        """Masks one word of the sentence, preferably one that the other sentences have too."""
        words = content_words(sentence)
        if not mask or not words:
            return None
        known = {match[0] for other in others for match in content_words(other)}
        word = _middle([match for match in words if match[0] in known] or words)
        return f"{sentence[: word.start()]}{mask}{sentence[word.end():]}"

    def check(self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int, names: Names = None) -> None:
        """Raises UserError for a text without a mask, or longer than the model."""
        prompts.tokenize_masked(texts, tokenizer, max_length, names)

    def predict(
        self, run: Any, texts: Sequence[str], options: FillMaskOptions, names: Names
    ) -> list[list[list[tuple[str, float]]]]:
        """Finds for each text and each mask in it the `k` most probable tokens with their probabilities."""
        run.require_head((self._head,), self._description)
        special, max_length = run.tokenizer.vocabulary.specials, run.model.max_length
        prompt_ids = prompts.tokenize_masked(texts, run.tokenizer, max_length, names, run.special_tokens)
        arrays = _predicted(
            run, prompt_ids, lambda some: prompts.mask_batch(some, special["pad"], special["mask"], max_length),
            k=min(options.k, run.tokenizer.size))
        return [[[(run.tokenizer.id_to_token(int(w)), float(p)) for w, p in zip(words, probabilities, strict=True)]
                 for words, probabilities, _ in zip(text["words"], text["probabilities"],
                                                    np.flatnonzero(ids == special["mask"]), strict=False)]
                for text, ids in zip(arrays, prompt_ids, strict=True)]

    def to_json(self, prediction: list[list[tuple[str, float]]]) -> dict[str, Any]:
        """Returns {"masks": [[{"word": ..., "probability": ...}, ...], ...]}."""
        return {"masks": [[{"word": word, "probability": rounded(p)} for word, p in mask] for mask in prediction]}

    def to_text(self, text: str, prediction: list[list[tuple[str, float]]], tokenizer: Tokenizer) -> str:
        """Shows the text, and under it the tokens for each mask."""
        lines, mask = [text], "[MASK]" if "[MASK]" in text else tokenizer.mask_token
        for number, candidates in enumerate(prediction, 1):
            lines.append(f"  {mask} {number}" if len(prediction) > 1 else f"  {mask}")
            lines += [f"    {probability:6.1%}  {word}" for word, probability in candidates]
        return "\n".join(lines)


@dataclass(frozen=True)
class GenerateOptions(Sampling):
    """Options of `GenerateText`."""

    tokens: int = setting(50, "the most tokens to generate", at_least=1, at_most=2**20)
    samples: int = setting(1, "continuations of each text", at_least=1, at_most=2**16)
    seed: int = setting(0, "the same seed gives the same continuations", at_least=0, at_most=2**32 - 1)
    first: int = setting(0, "the number of the first text; draws depend on a text's number", at_least=0,
                         at_most=2**31 - 1)


class GenerateText(Capability):
    """Continues texts. A prediction is a list of continuations."""

    name = "generate_text"
    summary = "continues texts"
    example = "The value of"
    options, sample_options = GenerateOptions, GenerateOptions(tokens=20)

    def accepts(self, text: str) -> bool:
        """Tells whether the text has no mask, which nothing would fill."""
        return MASK.search(text) is None

    def prompt_from(self, sentence: str, mask: str, others: Sequence[str]) -> str | None:
        """Takes the first words of the sentence; None if it has too few."""
        words = list(WORD.finditer(sentence))
        if len(words) <= PROMPT_WORDS:
            return None
        return sentence[words[0].start() : words[PROMPT_WORDS - 1].end()]

    def check(self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int, names: Names = None) -> None:
        """Raises UserError for a text with a mask."""
        for text, name in zip(texts, names or [None] * len(texts), strict=True):
            if "[MASK]" in text or tokenizer.specials.get("mask", "[MASK]") in text:
                raise UserError(f"{f'{name}: ' if name else ''}{text[:60]!r} has a mask, and a model trained to "
                                "predict the next token continues texts from their end; give a text up to where it "
                                "should continue")

    def predict(self, run: Any, texts: Sequence[str], options: GenerateOptions, names: Names) -> list[list[str]]:
        """Generates for each text `options.samples` continuations of up to `options.tokens` tokens, fewer where the
        document ends before. With a backward tokenizer, they are what precedes the text."""
        self.check(texts, run.tokenizer, run.model.max_length, names)
        order = -1 if run.tokenizer.backward else 1
        predictions = []
        for number, (text, name) in enumerate(zip(texts, names or [None] * len(texts), strict=True), options.first):
            prompt = run.prompt(text, name)
            before = run.tokenizer.decode(prompt)
            predictions.append([
                prompts.continuation(before[::order], run.tokenizer.decode([*prompt, *tokens])[::order])[::order]
                for tokens in run.generate_tokens(prompt, options, number, name or repr(text[:60]))])
        return predictions

    def to_json(self, prediction: list[str]) -> dict[str, Any]:
        """Returns {"continuations": [...]}."""
        return {"continuations": prediction}

    def to_text(self, text: str, prediction: list[str], tokenizer: Tokenizer) -> str:
        """Shows a line for each continuation, with spaces for its line breaks."""
        lines = [LINE_BREAK.sub(" ", more) for more in prediction]
        return "\n".join(f"{more}| {text}" if tokenizer.backward else f"{text} |{more}" for more in lines)


@dataclass(frozen=True)
class WriteOptions:
    """Options of `FillSpans` and `Reconstruct`."""

    tokens: int = setting(50, "the most tokens to write for a text, with sentinels and other special tokens",
                          at_least=1, at_most=2**20)


class FillSpans(Capability):
    """Fills in spans of any length, of models that were trained to replace spans by sentinels. A prediction is the text
    for each sentinel of the prompt, in order: {"<extra_id_0>": ..., ...}, always the most probable next token."""

    name = "fill_spans"
    summary = "fills in spans"
    example = "The <extra_id_0> of a list is an <extra_id_1>."
    options, sample_options = WriteOptions, WriteOptions(tokens=20)

    def accepts(self, text: str) -> bool:
        """Tells whether the text has a sentinel."""
        return SENTINEL.search(text) is not None

    def prompt_from(self, sentence: str, mask: str, others: Sequence[str]) -> str | None:
        """Replaces one word of the sentence by a sentinel."""
        if not (words := content_words(sentence)):
            return None
        word = _middle(words)
        return f"{sentence[: word.start()]}<extra_id_0>{sentence[word.end():]}"

    def check(self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int, names: Names = None) -> None:
        """Raises UserError for a text without a sentinel, or longer than the model."""
        for text, name in zip(texts, names or [None] * len(texts), strict=True):
            if not self.accepts(text):
                raise UserError(f"{f'{name}: ' if name else ''}there is no sentinel in {text[:60]!r}; write "
                                "<extra_id_0>, <extra_id_1> and so on for the spans to fill in")
        prompts.tokenize_prompts(texts, tokenizer, max_length, names)

    def predict(self, run: Any, texts: Sequence[str], options: WriteOptions, names: Names) -> list[dict[str, str]]:
        """Generates for each text the text of each of its sentinels; "" where none was generated."""
        run.require_network()
        self.check(texts, run.tokenizer, run.model.max_length, names)
        special, max_length = run.tokenizer.vocabulary.specials, run.model.max_length
        tokenized = prompts.tokenize_prompts(texts, run.tokenizer, max_length, names, ([], [special["eos"]]))
        arrays = _predicted(run, [prompt.ids for prompt in tokenized],
                            lambda some: prompts.pad_batch(some, special["pad"], max_length), k=options.tokens)
        spans = [split_spans(target["generated"].tolist(), run.tokenizer) for target in arrays]
        return [{name: generated.get(name, "") for name in dict.fromkeys(SENTINEL.findall(text))}
                for text, generated in zip(texts, spans, strict=True)]

    def to_json(self, prediction: dict[str, str]) -> dict[str, Any]:
        """Returns {"spans": {"<extra_id_0>": ..., ...}}."""
        return {"spans": prediction}

    def to_text(self, text: str, prediction: dict[str, str], tokenizer: Tokenizer) -> str:
        """Shows the text, and under it the text for each sentinel, or that it is none."""
        width = max(map(len, prediction))
        return "\n".join([text, *(f"  {name:{width}}  {LINE_BREAK.sub(' ', span) or '(nothing)'}"
                                  for name, span in prediction.items())])


class Reconstruct(Capability):
    """Reads texts and writes them again. A prediction is a text, always the most probable next token."""

    name = "reconstruct"
    summary = "reads texts and writes them again"
    example = "The value of a list is an object."
    options, sample_options = WriteOptions, WriteOptions(tokens=20)

    def accepts(self, text: str) -> bool:
        """Tells whether the text has no mask, which nothing would fill."""
        return MASK.search(text) is None

    def prompt_from(self, sentence: str, mask: str, others: Sequence[str]) -> str | None:
        """Takes the sentence."""
        return sentence

    def predict(self, run: Any, texts: Sequence[str], options: WriteOptions, names: Names) -> list[str]:
        """Writes each text again, up to its end."""
        run.require_network()
        special = run.tokenizer.vocabulary.specials
        tokenized = prompts.tokenize_prompts(texts, run.tokenizer, run.model.max_length, names, run.special_tokens)
        end = tokenized[0].ids[-1]
        arrays = _predicted(run, [text.ids for text in tokenized], lambda some: prompts.pad_batch(
            some, special.get("pad", end), run.model.max_length), k=options.tokens)
        written = (itertools.takewhile(lambda token: token != end, each["generated"].tolist()) for each in arrays)
        return [run.tokenizer.decode([token for token in tokens if token not in special.values()]).strip()
                for tokens in written]

    def to_json(self, prediction: str) -> dict[str, Any]:
        """Returns {"reconstruction": ...}."""
        return {"reconstruction": prediction}

    def to_text(self, text: str, prediction: str, tokenizer: Tokenizer) -> str:
        """Shows the text, and what was written."""
        return f"{text} => {LINE_BREAK.sub(' ', prediction)}"


def split_spans(tokens: Sequence[int], tokenizer: Tokenizer) -> dict[str, str]:
    """Makes {sentinel: the text of the tokens after it, up to the next one}, before the end of the text. A sentinel
    that is generated twice keeps its first text."""
    vocabulary, spans = tokenizer.vocabulary, {}
    sentinels, ends = set(vocabulary.sentinels), {vocabulary.specials["eos"], vocabulary.specials["pad"]}
    parts: list[tuple[int, list[int]]] = []
    for token in itertools.takewhile(lambda token: token not in ends, tokens):
        if token in sentinels:
            parts.append((token, []))
        elif parts:
            parts[-1][1].append(token)
    for sentinel, ids in parts:
        spans.setdefault(tokenizer.tokens[sentinel], tokenizer.decode(ids).strip())
    return spans


class ReplacedToken(NamedTuple):
    """The probability that a token of a text was replaced. The token is `word`, the characters [start, end). Tokens
    that are bytes of one character have the same range; a token of white space has an empty one."""

    word: str
    start: int
    end: int
    probability: float


class DetectReplaced(Capability):
    """Finds the tokens of a text that were replaced. A prediction is a `ReplacedToken` for each token."""

    name = "detect_replaced"
    summary = "finds replaced tokens"
    example = "The length of a list is an elephant."

    def prompt_from(self, sentence: str, mask: str, others: Sequence[str]) -> str | None:
        """Replaces one word of the sentence by a word of another sentence."""
        if not (words := content_words(sentence)):
            return None
        word, present = _middle(words), {match[0].lower() for match in WORD.finditer(sentence)}
        new = next((match[0] for other in others for match in content_words(other)
                    if match[0].islower() == word[0].islower() and match[0].lower() not in present), None)
        return new and f"{sentence[: word.start()]}{new}{sentence[word.end():]}"

    def predict(
        self, run: Any, texts: Sequence[str], options: NoOptions, names: Names
    ) -> list[list[ReplacedToken]]:
        """Makes for each text a `ReplacedToken` for each of its tokens, in their order."""
        run.require_head(("discriminator", "masked"), "discriminator head")
        pad, max_length = run.tokenizer.vocabulary.specials["pad"], run.model.max_length
        tokenized = prompts.tokenize_prompts(texts, run.tokenizer, max_length, names, run.special_tokens)
        arrays = _predicted(run, [prompt.ids for prompt in tokenized],
                            lambda some: prompts.pad_batch(some, pad, max_length))
        return [[ReplacedToken(text[start:end], start, end, float(p)) for p, (start, end), word in zip(
                    array["replaced"], prompt.offsets, prompt.words, strict=False) if word is not None]  # no padding
                for text, prompt, array in zip(texts, tokenized, arrays, strict=True)]

    def to_json(self, prediction: list[ReplacedToken]) -> dict[str, Any]:
        """Returns {"replaced": [{"word": ..., "start": ..., "end": ..., "probability": ...}, ...]}."""
        return {"replaced": [token._asdict() | {"probability": rounded(token.probability)} for token in prediction]}

    def to_text(self, text: str, prediction: list[ReplacedToken], tokenizer: Tokenizer) -> str:
        """Shows the marked text, and under it each token above its probability."""
        lines, above, below = [mark_replaced(text, prediction)], "", ""
        for token in prediction:
            word = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in token.word)
            columns = sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
                          for c in word)
            percent, width = f"{token.probability:.0%}", max(4, columns)
            if above and len(below) + width > LINE_WIDTH:
                lines, above, below = [*lines, above, below], "", ""
            if word:
                above, below = f"{above}  {' ' * (width - columns)}{word}", f"{below}  {percent:>{width}}"
        return "\n".join([*lines, above, below] if above else lines)


def _predicted(
    run: Any, sequences: Sequence[np.ndarray], make_batch: Callable, **options: int
) -> list[dict[str, np.ndarray]]:
    """Predicts the arrays of each sequence, in batches of similar lengths."""
    predicted: list = [None] * len(sequences)
    for members in prompts.group_by_length(sequences):
        arrays = run.predict_batch(make_batch([sequences[i] for i in members]), **options)
        for row, i in enumerate(members):
            predicted[i] = {name: values[row] for name, values in arrays.items()}
    return predicted


def mark_replaced(text: str, tokens: Sequence[ReplacedToken]) -> str:
    """Puts asterisks around what is more likely replaced than not."""
    spans: list[tuple[int, int]] = []
    for _, start, end, probability in tokens:
        if probability > 0.5 and start < end:
            joined = spans.pop() if spans and start <= spans[-1][1] else (start, end)  # one pair around a whole word
            spans.append((joined[0], max(joined[1], end)))
    for start, end in reversed(spans):
        text = f"{text[:start]}*{text[start:end]}*{text[end:]}"
    return text


def content_words(sentence: str) -> list[re.Match]:
    """Finds words of at least `SHORTEST_WORD` letters, or characters of scripts without spaces between words."""
    return [match for match in WORD.finditer(sentence)
            if match[0].isalpha() and (len(match[0]) >= SHORTEST_WORD or match[0] >= "\u3040")]


def _middle(words: Sequence[re.Match]) -> re.Match:
    return words[len(words) // 2]


def rounded(probability: float) -> float:
    """Rounds to six significant digits."""
    return float(f"{probability:.6g}")
