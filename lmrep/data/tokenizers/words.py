"""Full words, as in the language models of the Penn Treebank and WikiText (Mikolov et al. 2010; Merity et al. 2017).

Text is split at white space alone, since these corpora are distributed as words: "It 's <unk> ." has four. The most
frequent words of the training text are tokens, others are <unk>. Give other text to a subword tokenizer: here "end" and
"end." are two words, or to `words_text`, for which each punctuation mark is a word by itself ("end ."). With
`lowercase`, text is lower-cased and stripped of accents.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from lmrep.data.tokenizers.base import AddedToken, Encoding, TokenizerDef, Trained
from lmrep.data.tokenizers.library import BPE_SPECIALS as SPECIALS
from lmrep.data.tokenizers.library import LibraryTokenizer
from lmrep.data.tokenizers.published import TOKENIZER_JSON, PublishedFiles, check_value, five_specials, type_name

CLASSES = ("PreTrained",)  # tokenizer classes of other libraries with these rules


class Words(LibraryTokenizer):
    """A tokenizer of full words. The special tokens are among `tokens`; one of them is `unk`."""

    name = "words"
    rules = "words-1"
    default_specials = SPECIALS
    split = pre_tokenizers.WhitespaceSplit

    def __init__(self, tokens: Sequence[str], lowercase: bool = True, added: Sequence[AddedToken] = (),
                 specials: Mapping[str, str] = SPECIALS):
        self.lowercase = lowercase
        super().__init__(tokens, added, specials)
        self._unknown = self.ids[self.specials["unk"]]
        self._reserved = [self.ids[token] for token in self.specials.values()]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Tokenizes texts; the name of a special token in a text is an unknown word."""
        return [np.where(np.isin(ids, self._reserved), np.int32(self._unknown), ids)
                for ids in super().encode_batch(texts)]

    def encode(self, text: str, specials: bool = False) -> Encoding:
        encoding = super().encode(text, specials)
        if not specials:
            encoding.ids[np.isin(encoding.ids, self._reserved)] = self._unknown
            encoding.tokens[:] = [self.tokens[i] for i in encoding.ids]
        return encoding

    def decode(self, ids: Iterable[int]) -> str:
        """Joins the words by spaces."""
        return " ".join(self.tokens[i] for i in ids)

    def spaced_token(self, token: int) -> str:
        return f" {self.tokens[token]}"

    def library_model(self) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer(models.WordLevel(self.ids, unk_token=self.specials["unk"]))
        tokenizer.normalizer = _normalizer(self.lowercase)
        tokenizer.pre_tokenizer = self.split()
        return tokenizer

    def starts_word(self, token: str) -> bool:
        return True

    def identity(self) -> list:
        return [self.rules, self.lowercase, self.tokens, *self.renamed_specials()]

    def saved_config(self) -> dict:
        return {"tokenizer_class": "PreTrainedTokenizerFast"}


class TextWords(Words):
    """A tokenizer of full words and of punctuation marks, each of which is a word."""

    name = "words_text"
    rules = "words_text-1"
    split = pre_tokenizers.BertPreTokenizer


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=None,
                                      lowercase=lowercase)


def train(vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]], kind: type[Words] = Words) -> Words:
    """Makes the tokenizer of the special tokens, ids 0 to 4, and the most frequent words, by falling frequency."""
    normalizer, split = _normalizer(lowercase), kind.split()
    words = ([word for word, _ in split.pre_tokenize_str(normalizer.normalize_str(text))] for text in texts())
    return kind(most_frequent(words, SPECIALS, vocab_size), lowercase)


def most_frequent(texts: Iterable[Sequence[str]], specials: Mapping[str, str], size: int) -> list[str]:
    """Lists the special tokens, and the most frequent words of texts in the order of their frequency, `size` in all."""
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    words = sorted(counts.keys() - set(specials.values()), key=lambda word: (-counts[word], word))
    return [*specials.values(), *words[: size - len(specials)]]


def load(files: PublishedFiles, kind: type[Words] = Words) -> Words | None:
    """Loads a tokenizer.json with a vocabulary of words."""
    if files.model_type != "WordLevel":
        return None
    splits = type_name(files.tokenizer_json.get("pre_tokenizer")) == TextWords.split.__name__
    if splits != (kind is TextWords):
        return None
    files.check_component("normalizer", "BertNormalizer", clean_text=True, handle_chinese_chars=False,
                          strip_accents=None)
    files.check_component("pre_tokenizer", kind.split.__name__)
    tokens, specials = files.tokens(files.model["vocab"]), SPECIALS | five_specials(files.specials)
    files.check_specials(tokens, specials, "a vocabulary that was trained here")
    files.check_component("model", "WordLevel", unk_token=specials["unk"])
    lowercase = files.tokenizer_json["normalizer"].get("lowercase", True)
    check_value(files.directory / TOKENIZER_JSON, "lowercase", lowercase, True, False)
    files.check_config(CLASSES, do_lower_case=(None, lowercase))
    return kind(tokens, lowercase, files.added_tokens(specials), specials)


DEFINITION = TokenizerDef(train, load, Words.rules, Trained(SPECIALS, size_is_limit=True))
TEXT_DEFINITION = DEFINITION._replace(train=partial(train, kind=TextWords), load=partial(load, kind=TextWords),
                                      rules=TextWords.rules)
