"""Words by fastai's preprocessing, as in ULMFiT (Howard and Ruder, 2018).

Text is cleaned of HTML, and repetitions and capitals become tokens of their own; then spaCy's English tokenizer splits
it into words, as in fastai. spaCy comes with the extra `fastai`. `fastai_v1` is the preprocessing of fastai 1.0,
`fastai_paper` that of the paper's scripts (fastai 0.7 with imdb_scripts):

| text | fastai_v1 | fastai_paper |
| --- | --- | --- |
| Great movie, NOT bad | xxmaj great movie , xxup not bad | great movie , t_up not bad |
| noooooo | n xxrep 6 o | n tk_rep 6 o |
| no no no no no fun | xxwrep 5 no fun | tk_wrep 5 no fun |

In `fastai_v1`, a word in capitals has at least two letters; in `fastai_paper` three, and initial capitals are lost.

A vocabulary has the special tokens and the most frequent words that occur at least twice in the training text
(`min_freq` 2 of fastai 1.0, where it is a lower bound, and 1 in the scripts, where the frequency must exceed it). Words
of the same frequency are in the order of the text. fastai 1.0 adds `xxfake` until the size is a multiple of 8, which is
left out here. The token before each text, xxbos or xbos, ends the text before it here. The scripts write a line break
before xbos, and `xfld 1` after it; both are left out.
"""

import functools
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.json_text import InvalidJSON, loads
from lmrep.core.messages import install_hint
from lmrep.data.tokenizers.base import Encoding, Tokenizer, TokenizerDef, Trained
from lmrep.data.tokenizers.published import PublishedFiles, read_text

FILE = "itos.json"  # the list of tokens, as fastai's itos
PADDING = "xxfake"  # may occur several times in a vocabulary
MIN_COUNT = 2
Rule = tuple[re.Pattern, Callable[[re.Match], str]]


# Substitutions in the text


SPACES = re.compile(" {2,}"), lambda match: " "


def _clean_html(unknown: str, commas: bool) -> list[Rule]:
    """fastai's `fix_html` (1.0) and `fixup` (scripts)."""
    pairs = (("#39;", "'"), ("amp;", "&"), ("#146;", "'"), ("nbsp;", " "), ("#36;", "$"), ("\\n", "\n"), ("quot;", "'"),
             ("<br />", "\n"), ('\\"', '"'), ("<unk>", unknown), (" @.@ ", "."), (" @-@ ", "-"),
             *([(" @,@ ", ",")] * commas), ("\\", " \\ "))
    entity = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)")
    return [*((re.compile(re.escape(old)), lambda match, new=new: new) for old, new in pairs),
            (entity, lambda match: html.unescape(match[0])), SPACES]


def _repetitions(characters: str, words: str) -> list[Rule]:
    """A character, or a word with what separates it from the next one, four times in a row or more."""
    return [(re.compile(r"(\S)(\1{3,})"), lambda m: f" {characters} {len(m[2]) + 1} {m[1]} "),
            (re.compile(r"(\b\w+\W+)(\1{3,})"), lambda m: f" {words} {len(m[2].split()) + 1} {m[1]} ")]


def _apart(characters: str) -> Rule:
    return re.compile(f"([{characters}])"), lambda match: f" {match[1]} "


def _lower(match: re.Match) -> str:
    """The scripts' `do_caps`, of a run of letters or of other characters."""
    return f" t_up {match[0].lower()}" if match[0].isupper() and len(match[0]) > 2 else match[0].lower()


def _mark_capitals(word: str) -> tuple[str, ...]:
    """fastai's `replace_all_caps` and `deal_caps`, of a word."""
    if len(word) > 1 and word.isupper():
        return "xxup", word.lower()
    capital = len(word) > 1 and word[0].isupper() and word[1:].islower()
    return ("xxmaj", word.lower()) if capital else (word.lower(),)


def substitute(rules: Sequence[Rule], text: str) -> tuple[str, list[tuple[int, int]]]:
    """Applies substitutions in order. Returns the new text and, for each of its characters, the range [start, end) of
    characters of `text` that it comes from."""
    spans = [(i, i + 1) for i in range(len(text))]
    for pattern, replacement in rules:
        parts, new, last = [], [], 0
        for match in pattern.finditer(text):
            start, end = match.span()
            part = replacement(match)
            whole = [(spans[start][0], spans[end - 1][1])] * len(part)
            parts += text[last:start], part
            new += [*spans[last:start], *(spans[start:end] if len(part) == end - start else whole)]
            last = end
        text, spans = "".join([*parts, text[last:]]), [*new, *spans[last:]]
    return text, spans


# Tokenizers


@functools.cache
def _spacy() -> Callable[[str], Iterable]:
    """Returns spaCy's English tokenizer. Raises UserError if it is not installed."""
    try:
        import spacy  # an extra: nothing else needs it
    except ImportError:
        raise UserError("fastai's preprocessing splits text into words by spaCy, which is not installed: "
                        f"{install_hint('fastai')}") from None
    return spacy.blank("en").tokenizer


def _split(text: str) -> list[str]:
    """Splits a text into words, which leave out one space between two words alone. Other white space is a word of its
    own, after the first space of its run."""
    return [word.text for word in _spacy()(text)]


class FastaiV1(Tokenizer):
    """The preprocessing of fastai 1.0."""

    name = "fastai_v1"
    rules = "fastai_v1-1"
    keeps_spacing = False
    one_separator = True
    published = False
    roles = MappingProxyType({"unk": "xxunk", "pad": "xxpad", "eos": "xxbos"})
    reserved = ("xxeos", "xxfld", "xxmaj", "xxup", "xxrep", "xxwrep")
    before = (*_clean_html("xxunk", commas=True), *_repetitions("xxrep", "xxwrep"), _apart(r"/#\n"), SPACES)
    after = staticmethod(_mark_capitals)
    marks = MappingProxyType({"xxrep": "".join, "xxwrep": " ".join, "xxup": str.upper, "xxmaj": str.capitalize})

    def __init__(self, tokens: Sequence[str]):
        super().__init__(tokens, (), {role: token for role, token in self.roles.items() if token in set(tokens)})
        self._unknown = self.ids[self.roles["unk"]]
        # The name of a special token in a text is an unknown word.
        self._words = {token: i for token, i in self.ids.items() if token not in self.specials.values()}
        self._special = re.compile("|".join(map(re.escape, self.specials.values())))

    @classmethod
    def words(cls, text: str) -> list[str]:
        """Splits a text into tokens."""
        for pattern, replacement in cls.before:
            text = pattern.sub(replacement, text)
        return [token for word in _split(text.lstrip(" ")) for token in cls.after(word)]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        get, unknown = self._words.get, self._unknown
        return [np.array([get(token, unknown) for token in self.words(text)], np.int32) for text in texts]

    def encode(self, text: str, specials: bool = False) -> Encoding:
        try:
            text.encode("utf8")
        except UnicodeEncodeError:
            raise TypeError("the text has lone surrogates") from None
        tokens, last = [], 0
        for match in self._special.finditer(text) if specials else ():
            tokens += [*self._tokens(text, last, match.start()), (self.ids[match[0]], match.span())]
            last = match.end()
        tokens += self._tokens(text, last, len(text))
        ids = np.array([i for i, _ in tokens], np.int32)
        return Encoding(ids, [self.tokens[i] for i in ids], [span for _, span in tokens], list(range(len(tokens))))

    def _tokens(self, text: str, start: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yields (id, range of characters) of each token of a part of a text."""
        changed, spans = substitute(self.before, text[start:end])
        at = len(changed) - len(changed.lstrip(" "))
        for word in _split(changed[at:]):
            at = changed.index(word, at)
            span = spans[at][0] + start, spans[at + len(word) - 1][1] + start
            at += len(word)
            yield from ((self._words.get(token, self._unknown), span) for token in self.after(word))

    def decode(self, ids: Iterable[int]) -> str:
        """Joins the words by spaces, and applies what the tokens for repetitions and capitals say."""
        words, tokens = [], iter([self.tokens[i] for i in ids])
        for token in tokens:
            mark = self.marks.get(token)
            following = next(tokens, "") if mark else ""
            if following.isdecimal() and "rep" in token:
                words.append(mark([next(tokens, "")] * min(int(following), 1000)))
            elif mark and "rep" not in token:
                words.append(mark(following))
            else:
                words += filter(None, (token, following))
        return " ".join(words)

    def spaced_token(self, token: int) -> str:
        return f" {self.tokens[token]}"

    def starts_word(self, token: str) -> bool:
        return True

    def identity(self) -> list:
        return [self.rules, self.tokens]

    def saved_config(self) -> dict:
        return {"tokenizer_class": "FastaiTokenizer"}

    def save_vocabulary(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps(self.tokens, ensure_ascii=False, indent=0) + "\n", encoding="utf8")


class FastaiPaper(FastaiV1):
    """The preprocessing of the paper's scripts."""

    name = "fastai_paper"
    rules = "fastai_paper-1"
    lowercase = True
    roles = MappingProxyType({"unk": "_unk_", "pad": "_pad_", "eos": "xbos"})
    reserved = ()
    before = (*_clean_html("u_n", commas=False), *_repetitions("tk_rep", "tk_wrep"),
              (re.compile(r"\w+|\W+"), _lower), _apart("/#"), SPACES,
              (re.compile(r"<\s*br\s*/?>", re.IGNORECASE), lambda match: "\n"))
    after = staticmethod(lambda word: (word,))
    marks = MappingProxyType({"tk_rep": "".join, "tk_wrep": " ".join, "t_up": str.upper})


def train(cls: type[FastaiV1], vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> FastaiV1:
    """Makes the tokenizer of the special tokens, and of the most frequent words that occur at least MIN_COUNT times."""
    counts = Counter(token for text in texts() for token in cls.words(text))
    first = [*cls.roles.values(), *cls.reserved]
    words = [word for word, count in counts.most_common() if count >= MIN_COUNT and word not in first]
    return cls([*first, *words[: vocab_size - len(first)]])


def load(cls: type[FastaiV1], files: PublishedFiles) -> FastaiV1 | None:
    """Loads a directory with the list of tokens, as `save` writes it; None if it belongs to the other version."""
    if FILE not in files.names or files.vocabulary_file:
        return None
    files.check_config(("Fastai",))
    tokens = read_tokens(files.directory / FILE)
    return cls(tokens) if cls.roles["unk"] in tokens else None


def load_vocabulary(cls: type[FastaiV1], path: Path, lowercase: bool = False) -> FastaiV1:
    """Loads the list of tokens by id, fastai's `itos`, from a JSON file. Raises UserError if it is none."""
    tokens = read_tokens(path)
    if cls.roles["unk"] not in tokens:
        raise UserError(f"{path} has no {cls.roles['unk']}; expected a vocabulary of tokenizer.name={cls.name}")
    return cls(tokens)


def read_tokens(path: Path) -> list[str]:
    """Reads a JSON file with a list of different tokens. Raises UserError if it holds anything else, or neither
    version's unknown token."""
    expected = "a JSON list of tokens, fastai's itos"
    if path.suffix == ".pkl":
        raise UserError(f"{path} is a pickle, which can run any code when it is read; if you trust it, write it as "
                        f"JSON in Python: import json, pickle; json.dump(list(pickle.load(open({path.name!r}, 'rb'))), "
                        f"open({FILE!r}, 'w'))")
    try:
        tokens = loads(read_text(path, expected).encode())
    except InvalidJSON as error:
        raise UserError(f"{path} is not valid JSON: {error}; expected {expected}") from None
    if not (isinstance(tokens, list) and all(isinstance(token, str) and token for token in tokens)):
        raise UserError(f"{path} holds no list of texts; expected {expected}")
    if repeated := [token for token, count in Counter(tokens).items() if count > 1 and token != PADDING]:
        raise UserError(f"{path} has {repeated[0][:60]!r} twice; expected each token once")
    units = [cls.roles["unk"] for cls in (FastaiV1, FastaiPaper)]
    if not {*units} & {*tokens}:
        raise UserError(f"{path} has neither {' nor '.join(units)}; expected {expected}")
    return tokens


DEFINITIONS = {cls.name: TokenizerDef(
    partial(train, cls), partial(load, cls), cls.rules, Trained(dict(cls.roles), len(cls.reserved), size_is_limit=True),
    "keep", lowercase=cls.lowercase, load_vocabulary=partial(load_vocabulary, cls)) for cls in (FastaiV1, FastaiPaper)}
