"""WordPiece as in BERT (Devlin et al. 2019, and its published code).

Text is cleaned: control characters are removed, white space becomes spaces, CJK characters are surrounded by spaces,
and, if `lowercase`, text is lower-cased and stripped of accents. It is split into words at white space and around each
punctuation character. Each word is split greedily, from the left, into the longest tokens of the vocabulary; those that
continue a word begin with "##". Words that cannot be split so, or have more than `max_word_length` characters, are
[UNK].

The library that implements this differs from BERT's code for private-use characters, which it removes, and for a few
hundred rare ones (punctuation newer than its Unicode tables, the first characters of CJK extension E).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import published
from lmrep.data.tokenizers.base import CONFIG, AddedToken, TokenizerDef, Trained
from lmrep.data.tokenizers.library import LibraryTokenizer
from lmrep.data.tokenizers.published import TOKENIZER_JSON, PublishedFiles, read_tokens

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
MAX_WORD_LENGTH = 200  # characters, in BERT's code and for vocabularies that are trained here
PUBLISHED_MAX_WORD_LENGTH = 100  # in other libraries, hence for published vocabularies without a tokenizer.json
COVERAGE = 0.9999  # fraction of the corpus's characters that become tokens; words with rarer characters are [UNK]
MAX_BLANK_LINES = 100
CLASSES = ("Bert", "Electra", "DistilBert")  # tokenizer classes of other libraries with these rules


class WordPiece(LibraryTokenizer):
    """BERT's tokenizer. Words of more than `max_word_length` characters are [UNK]. `specials` names all five special
    tokens, which are among `tokens`."""

    name = "wordpiece"
    rules = "bert-1"
    default_specials = SPECIALS
    one_separator = True
    keeps_spacing = False
    notation = "A token that begins with ## continues the word before it."

    def __init__(self, tokens: Sequence[str], lowercase: bool = True, max_word_length: int = MAX_WORD_LENGTH,
                 added: Sequence[AddedToken] = (), specials: Mapping[str, str] = SPECIALS):
        self.lowercase, self.max_word_length = lowercase, max_word_length
        super().__init__(tokens, added, specials)

    def decode(self, ids: Iterable[int]) -> str:
        """Joins tokens to words, attaches punctuation and keeps special tokens. Does not restore case, accents and
        spacing, which tokenization discards."""
        return attach_punctuation(" ".join(self.tokens[i] for i in ids).replace(" ##", ""))

    def spaced_token(self, token: int) -> str:
        """Returns the token of an id, with a space before it if it starts a word."""
        text = self.tokens[token]
        return text[2:] if text.startswith("##") and len(text) > 2 else f" {text}"

    def library_model(self) -> tokenizers.Tokenizer:
        return _library_tokenizer(self.ids, self.lowercase, self.max_word_length, self.specials["unk"])

    def template(self) -> processors.PostProcessor:
        return processors.BertProcessing(*((self.specials[role], self.ids[self.specials[role]])
                                           for role in ("sep", "cls")))

    def starts_word(self, token: str) -> bool:
        return token in self.atomic or not token.startswith("##")

    def identity(self) -> list:
        return [self.rules, self.lowercase, self.max_word_length, self.tokens, *self.renamed_specials()]

    def saved_config(self) -> dict:
        return {"tokenizer_class": "BertTokenizer", "do_lower_case": self.lowercase, "strip_accents": None,
                "tokenize_chinese_chars": True}

    def save_vocabulary(self, directory: Path) -> None:
        (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in self.tokens), encoding="utf8")


ATTACHED = [(re.compile(pattern), replacement) for pattern, replacement in (
    (r" ([.,;:!?%)\]}’”])(?=\W|$)", r"\1"),
    (r"(?<!\w)([(\[{‘“$]) (?!(?:PAD|UNK|CLS|SEP|MASK)\])", r"\1"),
    (r"(\w) (['’]) (s|t|d|m|re|ve|ll)\b", r"\1\2\3"),
    (r"(\w) ([-‐_/]) (?=\w)", r"\1\2"),
)]


def attach_punctuation(text: str) -> str:
    """Attaches punctuation, which spaces separate from words, to words as people write it."""
    for pattern, replacement in ATTACHED:
        text = pattern.sub(replacement, text)
    return text


# Training


def train(vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> WordPiece:
    """Trains WordPiece. The special tokens are ids 0 to 4.

    The library numbers characters in the order of a hash map with a random seed, and that order decides between equally
    frequent merges. Each character, with and without "##", therefore gets its id before training, so that the same text
    gives the same vocabulary in every process.
    """
    tokenizer = _library_tokenizer({}, lowercase)
    alphabet = frequent_characters(tokenizer, texts(), vocab_size)
    # Punctuation and CJK characters do not occur within a word.
    split, normalize = tokenizer.pre_tokenizer.pre_tokenize_str, tokenizer.normalizer.normalize_str
    continuing = ["##" + c for c in alphabet if len(split(normalize("a" + c))) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, continuing_subword_prefix="##",
        special_tokens=[*SPECIALS.values(), *alphabet, *continuing], initial_alphabet=alphabet,
        limit_alphabet=len(alphabet))
    tokenizer.train_from_iterator(texts(), trainer)
    ids = tokenizer.get_vocab()
    return WordPiece(sorted(ids, key=ids.__getitem__), lowercase)


def frequent_characters(tokenizer: tokenizers.Tokenizer, texts: Iterable[str], vocab_size: int) -> list[str]:
    """Returns the most frequent characters of the normalized text, sorted: as many as cover COVERAGE of it, but at most
    a third of the vocabulary."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    ranked = sorted(((n, c) for c, n in counts.items() if not c.isspace()), key=lambda pair: (-pair[0], pair[1]))
    covered = np.cumsum([0] + [n for n, _ in ranked])
    needed = int(np.searchsorted(covered, COVERAGE * covered[-1]))
    return sorted(c for _, c in ranked[: min(needed, (vocab_size - len(SPECIALS)) // 3)])


def _library_tokenizer(ids: dict[str, int], lowercase: bool, max_word_length: int = MAX_WORD_LENGTH,
                       unknown: str = SPECIALS["unk"]) -> tokenizers.Tokenizer:
    model = models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=max_word_length)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return with_bert_words(tokenizer, lowercase)


def with_bert_words(tokenizer: tokenizers.Tokenizer, lowercase: bool) -> tokenizers.Tokenizer:
    """Sets a tokenizer to clean text and split it into words as BERT's code."""
    tokenizer.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None,
                                                      lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


# Published files


def read_vocabulary(path: str | Path, specials: Mapping[str, str] = SPECIALS) -> list[str]:
    """Reads the tokens of a vocab.txt, id i on line i + 1. Raises UserError, with the line number, if it is malformed
    or lacks one of `specials`."""
    tokens = read_tokens(path, "a vocab.txt with one token per line")
    line_of: dict[str, int] = {}
    for number, token in enumerate(tokens, 1):
        if token in line_of:
            raise UserError(f"{path}, line {number}: {token[:60]!r} is on line {line_of[token]} already; expected each "
                            "token once")
        line_of[token] = number
    missing = [token for token in specials.values() if token not in line_of]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} on none of its {len(tokens):,} lines; expected BERT's vocab.txt "
                        f"with {' '.join(specials.values())}")
    return tokens


def load(files: PublishedFiles) -> WordPiece | None:
    """Loads vocab.txt, or a tokenizer.json alone. Without files that say so, text is lower-cased, as in other
    libraries."""
    path, specials = files.vocabulary_path, SPECIALS | published.five_specials(files.specials)
    if files.vocabulary_file == "vocab.txt":
        ids = {token: i for i, token in enumerate(read_vocabulary(path, specials))}
    elif files.model_type == "WordPiece":
        ids = _with_blank_lines(files.model["vocab"])
    else:
        return None
    lowercase, max_word_length = _options(files, specials)
    tokens = files.tokens(ids)
    files.check_specials(tokens, specials, "BERT's")
    malformed = [token for token in tokens if not token.strip(" \t") or token != (token.strip() or token)
                 or re.search("[\r\n]", token)]
    if malformed:
        raise UserError(f"{path}: the token {malformed[0][:60]!r} is empty, begins or ends with white space, or "
                        "has several lines; expected none of these")
    if not files.tokenizer_json and "do_lower_case" not in files.config:  # no file says whether it is cased
        published.refuse_capitals(path, tokens, specials.values(), 'for a cased vocabulary, add a '
                                  'tokenizer_config.json with "do_lower_case": false')
    return WordPiece(tokens, lowercase, max_word_length, files.added_tokens(specials), specials)


def _with_blank_lines(vocab: dict[str, int]) -> dict[str, int]:
    """Adds to the ids of a tokenizer.json names for the lines of its vocab.txt that are white space, as in the Chinese
    BERT: other libraries make one token of all of them, so that ids are missing. No text has such a token."""
    known = {token: i for token, i in vocab.items() if token.strip()}
    if not all(type(i) is int and 0 <= i < len(known) + MAX_BLANK_LINES for i in vocab.values()):
        return vocab
    blank = sorted(set(range(max(vocab.values(), default=-1) + 1)) - set(known.values()))
    return known | {f"[line {i + 1}]": i for i in blank}


def _options(files: PublishedFiles, specials: Mapping[str, str]) -> tuple[bool, int]:
    """Returns (lowercase, max_word_length) from the two JSON files. Raises UserError for other rules."""
    lowercase = files.check_bert_words()
    files.check_component("model", "WordPiece", continuing_subword_prefix="##", unk_token=specials["unk"])
    max_word_length = files.model.get("max_input_chars_per_word", PUBLISHED_MAX_WORD_LENGTH)
    if type(max_word_length) is not int or not 0 < max_word_length < 2**31:
        raise UserError(f"{files.directory / TOKENIZER_JSON}: max_input_chars_per_word is {max_word_length!r}; "
                        "expected a number of characters")
    lowercase = files.config.get("do_lower_case", lowercase)
    files.check_config(CLASSES, strip_accents=(None, lowercase), tokenize_chinese_chars=(None, True),
                       do_basic_tokenize=(None, True))
    published.check_value(files.directory / CONFIG, "do_lower_case", lowercase, True, False)
    return lowercase, max_word_length


DEFINITION = TokenizerDef(
    train, load, WordPiece.rules, Trained(SPECIALS), load_vocabulary=lambda path, lowercase: WordPiece(
        read_vocabulary(path), lowercase, PUBLISHED_MAX_WORD_LENGTH))  # a vocab.txt alone
