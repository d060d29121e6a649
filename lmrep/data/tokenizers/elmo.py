"""Words with their characters, as ELMo reads them (Peters et al. 2018), cased.

`elmo` splits text at white space, since corpora such as the One Billion Word Benchmark are distributed as words.
`elmo_text` is for other text: punctuation marks and contractions are words too, about as in the Penn Treebank
("They do n't ."), with a few rules for English in place of the benchmark's scripts.

A network reads the characters of every word, and predicts the words of a vocabulary, the most frequent ones of the
training text; others are <UNK> there. Words are sorted by falling frequency, as the sampled softmax expects, after
<S>, </S> and <UNK>. The vocabulary is a text file with one word per line, as the released one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data import characters
from lmrep.data.tokenizers.base import CONFIG, Encoding, Tokenizer, TokenizerDef, Trained
from lmrep.data.tokenizers.published import PublishedFiles, check_value, read_tokens
from lmrep.data.tokenizers.words import most_frequent

SPECIALS = {"bos": "<S>", "eos": "</S>", "unk": "<UNK>"}
VOCABULARY = "vocabulary.txt"
CLASS = "ElmoTokenizer"
IGNORED = "!!!MAXTERMID"  # a line of the released vocabulary that has no id
WORD = re.compile(r"\S+")
TREEBANK_WORD = re.compile(r"""
    (?:mr|mrs|ms|dr|prof|gen|gov|sen|rep|lt|col|capt|st)\.(?=\s)
  | (?:[^\W\d_]\.){2,}               # U.S., e.g.
  | \d+(?:[.,:/]\d+)+                # 1,000.5, 10:30
  | \w+?(?=n['’]t\b) | n['’]t\b      # do n't
  | ['’](?:s|m|d|ll|re|ve)\b          # it 's
  | \w+(?:-\w+)*
  | \.{2,} | -{2,}
  | \S
""", re.VERBOSE | re.IGNORECASE)


class Elmo(Tokenizer):
    """A tokenizer of words with characters. The special tokens are among `tokens`."""

    name = "elmo"
    rules = "elmo-1"
    one_separator = True
    published = False
    _split = staticmethod(str.split)
    _pattern = _pattern_of_specials = WORD

    def __init__(self, tokens: Sequence[str]):
        super().__init__(tokens, (), SPECIALS)
        bos, eos, self._unknown = (self.ids[token] for token in SPECIALS.values())
        self.word_characters = characters.WordCharacters(
            self.tokens, {bos: characters.BEGIN_SENTENCE, eos: characters.END_SENTENCE}, self._unknown)
        # The name of a special token in a text is an unknown word.
        self._words = {word: i for word, i in self.ids.items() if word not in SPECIALS.values()}

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._encode(self._split(text), self._words) for text in texts]

    def encode_words(self, words: Sequence[str]) -> list[np.ndarray]:
        """Makes one token of each word, whatever it is."""
        return list(self._encode(words, self._words).reshape(-1, 1))

    def encode_known(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[str]]:
        get, unknown = self._words.get, self._unknown
        words = list(map(self._split, texts))
        ids = [np.array([get(word, unknown) for word in text_words], np.int32) for text_words in words]
        return ids, [word for text_words in words for word in text_words if word not in self._words]

    def _encode(self, words: Sequence[str], known: Mapping[str, int]) -> np.ndarray:
        ids = np.array([known.get(word, -1) for word in words], np.int32)
        others = np.flatnonzero(ids < 0)
        ids[others] = self.word_characters.number([words[i] for i in others])
        return ids

    def characters(self, words: Sequence[str]) -> np.ndarray:
        ids = characters.of_words(words)
        for role, character in (("bos", characters.BEGIN_SENTENCE), ("eos", characters.END_SENTENCE)):
            ids[[i for i, word in enumerate(words) if word == SPECIALS[role]]] = characters.mark(character)
        return ids.astype(np.int32)

    def encode(self, text: str, specials: bool = False) -> Encoding:
        matches = list((self._pattern_of_specials if specials else self._pattern).finditer(text))
        words = [match[0] for match in matches]
        ids = self._encode(words, self.ids if specials else self._words)
        return Encoding(ids, words, [match.span() for match in matches], list(range(len(words))))

    def id_to_token(self, token: int) -> str:
        return self.tokens[token] if token < self.size else self.word_characters.word(token)

    def decode(self, ids: Iterable[int]) -> str:
        """Joins the words by spaces."""
        return " ".join(map(self.id_to_token, ids))

    def spaced_token(self, token: int) -> str:
        return f" {self.id_to_token(token)}"

    def starts_word(self, token: str) -> bool:
        return True

    def identity(self) -> list:
        return [self.rules, self.tokens]

    def saved_config(self) -> dict:
        return {"tokenizer_class": CLASS, "name": self.name}

    def save_vocabulary(self, directory: Path) -> None:
        (directory / VOCABULARY).write_text("".join(f"{token}\n" for token in self.tokens), encoding="utf8")


class ElmoText(Elmo):
    """A tokenizer of words with characters for text whose punctuation marks are not separated from words."""

    name = "elmo_text"
    rules = "elmo_text-1"
    _split = staticmethod(TREEBANK_WORD.findall)
    _pattern = TREEBANK_WORD
    _pattern_of_specials = re.compile(rf"(?-i:{'|'.join(SPECIALS.values())})|{TREEBANK_WORD.pattern}",
                                      TREEBANK_WORD.flags)


def train(cls: type[Elmo], vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> Elmo:
    """Makes the tokenizer of the special tokens, ids 0 to 2, and the most frequent words, by falling frequency."""
    return cls(most_frequent(map(cls._split, texts()), SPECIALS, vocab_size))


def load(files: PublishedFiles) -> Elmo | None:
    """Loads a directory that `save` wrote."""
    if VOCABULARY not in files.names or files.vocabulary_file:
        return None
    files.check_config(("Elmo",))
    name = files.config.get("name", Elmo.name)
    check_value(files.directory / CONFIG, "name", name, Elmo.name, ElmoText.name)
    return load_vocabulary(ElmoText if name == ElmoText.name else Elmo, files.directory / VOCABULARY)


def load_vocabulary(cls: type[Elmo], path: Path, lowercase: bool = False, needs_unknown: bool = True) -> Elmo:
    """Loads a vocabulary of one word per line, sorted by falling frequency, with <S>, </S> and <UNK>. Unless
    `needs_unknown`, a missing <UNK> is added: only the prediction of words needs it."""
    lines: dict[str, int] = {}
    for number, word in enumerate(read_tokens(path, "a vocabulary with one word per line"), 1):
        if " " in word or "\t" in word:
            raise UserError(f"{path}, line {number} is {word[:60]!r}; expected one word")
        if word in lines:
            raise UserError(f"{path}: {word[:60]!r} is on lines {lines[word]} and {number}; expected each word once")
        lines[word] = number
    lines.pop(IGNORED, None)
    if not needs_unknown:
        lines.setdefault(SPECIALS["unk"], 0)
    if missing := [token for token in SPECIALS.values() if token not in lines]:
        raise UserError(f"{path} has no {' and no '.join(missing)}; expected {' '.join(SPECIALS.values())}, then words "
                        "in the order of their frequency, one per line")
    return cls(list(lines))


DEFINITION, TEXT_DEFINITION = (TokenizerDef(
    partial(train, kind), load, kind.rules, Trained(SPECIALS, size_is_limit=True), lowercase=False,
    load_vocabulary=partial(load_vocabulary, kind), characters=characters.LENGTH) for kind in (Elmo, ElmoText))
