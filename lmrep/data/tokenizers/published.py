"""Published tokenizer directories: their files, and checks that they split text by the rules of this package.

    spiece.model, spm.model                  SentencePiece: ALBERT, XLNet, T5; DeBERTa (`spiece_files.py`)
    vocab.txt                                WordPiece: BERT
    vocab.json, merges.txt                   byte-level BPE: RoBERTa, GPT-2; with "</w>", BPE: GPT
    encoder.json, vocab.bpe                  byte-level BPE: GPT-2, by its own names
    encoder_bpe_40000.json, vocab_40000.bpe  BPE: GPT, by its own names
    dict.txt beside GPT-2's files            RoBERTa of fairseq: GPT-2's tokens in the order of dict.txt
    tokenizer.json                           any of these without the files above, and words; a unigram model instead of
                                             spiece.model, also of CamemBERT and XLM-RoBERTa (`unigram.py`)
    vocabulary.txt                           words with characters: ELMo (`elmo.py`)
    itos.json                                words: fastai's ULMFiT (`fastai.py`)

tokenizer.json and tokenizer_config.json beside a vocabulary give its options and added tokens; the latter and
special_tokens_map.json name the special tokens. Settings by which text would be split differently are refused by name,
with two exceptions: without a tokenizer.json that says otherwise, <mask> absorbs the space before it, as in RoBERTa's
own code, and words of up to 100 characters are split by a WordPiece vocabulary, as in other libraries. Malformed files
raise UserError.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmrep.core.errors import UserError
from lmrep.core.input_files import HEAD, check_head
from lmrep.core.json_text import json_object
from lmrep.data.tokenizers.base import CONFIG, AddedToken

TOKENIZER_JSON = "tokenizer.json"
SENTENCEPIECE_MODELS = ("spiece.model", "tokenizer.model", "spm.model")
FAIRSEQ_MODEL = "sentencepiece.bpe.model"  # its ids are in tokenizer.json alone
VOCABULARIES = ("encoder.json", "encoder_bpe_40000.json")  # of BPE, beside vocab.json
MERGES = ("merges.txt", "vocab.bpe", "vocab_40000.bpe")
FIVE_ROLES = ("pad", "unk", "cls", "sep", "mask")  # of BERT and RoBERTa
ANY_CLASS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that say nothing about the rules
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
MAX_BYTES = 256 * 10**6  # of a tokenizer's file
ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos", "eod")


@dataclass(frozen=True)
class PublishedFiles:
    """The files of a tokenizer's directory."""

    directory: Path
    names: frozenset[str]  # of all files there
    vocab: str  # the name of the vocabulary, if it differs from those listed above
    tokenizer_json: dict[str, Any]  # the content of tokenizer.json; {} if absent
    config: dict[str, Any]  # the content of tokenizer_config.json; {} if absent
    specials: dict[str, str]  # role -> text of the special tokens that the files name

    @classmethod
    def read(cls, directory: Path, vocab: str) -> "PublishedFiles":
        """Reads a directory. Raises UserError if a JSON file is malformed."""
        names = frozenset(path.name for path in directory.iterdir()) if directory.is_dir() else frozenset()
        content = read_json(directory / TOKENIZER_JSON) if TOKENIZER_JSON in names else {}
        config = read_json(directory / CONFIG) if CONFIG in names else {}
        return cls(directory, names, vocab, _with_model_type(content), config, special_tokens(directory, config))

    @functools.cached_property
    def vocabulary_file(self) -> str:
        """The name of the file that holds the vocabulary: the first that exists, in the order of the table above; "" if
        none does."""
        models = [name for name in (self.vocab, *SENTENCEPIECE_MODELS) if name.endswith(".model")]
        order = (*models, "vocab.txt", self.vocab, *VOCABULARIES, TOKENIZER_JSON, FAIRSEQ_MODEL)
        return next((name for name in order if name in self.names), "")

    @property
    def vocabulary_path(self) -> Path:
        return self.directory / self.vocabulary_file

    @property
    def model(self) -> dict[str, Any]:
        """The model of tokenizer.json; {} if there is none."""
        model = self.tokenizer_json.get("model")
        return model if isinstance(model, dict) else {}

    @property
    def model_type(self) -> str:
        """The type of the model, if tokenizer.json holds the vocabulary; otherwise ""."""
        used = self.vocabulary_file == TOKENIZER_JSON and isinstance(self.model.get("vocab"), dict)
        return type_name(self.model) if used else ""

    @functools.cached_property
    def bpe(self) -> dict[str, int] | None:
        """The ids of a BPE vocabulary; None if the directory has none."""
        if self.model_type == "BPE" and isinstance(self.model.get("merges"), list):
            return self.model["vocab"]
        name = self.vocabulary_file
        if name in ("", "vocab.txt", TOKENIZER_JSON) or name.endswith(".model"):
            return None
        return read_json(self.vocabulary_path)

    def merges(self, tokens: Sequence[str]) -> list[tuple[str, str]]:
        """Reads the merges of a BPE vocabulary. Raises UserError if one is malformed or has other tokens."""
        path, merges, known, pairs = self.vocabulary_path, self.model.get("merges"), set(tokens), []
        if path.name != TOKENIZER_JSON:
            path = self.directory / next((name for name in MERGES if name in self.names), MERGES[0])
            merges = read_lines(path, "the merges of the vocabulary")
        for number, merge in enumerate(merges, 1):
            if number == 1 and isinstance(merge, str) and merge.startswith("#version"):
                continue
            pair = merge.split(" ") if isinstance(merge, str) else merge
            if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(token, str) for token in pair)
                    and all(pair) and not re.search("[ \r\n]", "".join(pair))):
                raise UserError(f"{path}, merge {number} is {str(merge)[:60]!r}; expected two tokens")
            if missing := [token for token in (*pair, "".join(pair)) if token not in known]:
                raise UserError(f"{path}, merge {number}: {missing[0][:60]!r} is not in the vocabulary; expected the "
                                "merges that belong to it")
            pairs.append(tuple(pair))
        return pairs

    def tokens(self, ids: dict) -> list[str]:
        """Lists the tokens of a vocabulary token -> id, and those that tokenizer.json adds to it, by id. Raises
        UserError if tokenizer.json gives one another id."""
        other, ids = self.model.get("vocab"), dict(ids)
        different = [token for token, i in other.items() if ids.get(token, i) != i] if isinstance(other, dict) else []
        if different:
            raise UserError(f"{self.vocabulary_path} and {TOKENIZER_JSON} beside it give {str(different[0])[:60]!r} "
                            "different ids; keep the one that is the model's")
        for entry in self.added_entries():
            content, i = entry["content"], entry.get("id")
            if ids.setdefault(content, i) != i:
                raise UserError(f"{self.directory / TOKENIZER_JSON} adds {content[:60]!r} as id {str(i)[:40]}, which "
                                f"has id {ids[content]}; expected one id for each token")
        return in_order(self.vocabulary_path, ids)

    def added_tokens(self, specials: Mapping[str, str]) -> list[AddedToken]:
        """Lists the tokens that tokenizer.json adds, without `specials`."""
        options = [name for name in AddedToken.__dataclass_fields__ if name != "content"]
        return [AddedToken(entry["content"], **{name: bool(entry.get(name, name == "normalized")) for name in options})
                for entry in self.added_entries() if entry["content"] not in specials.values()]

    def added_entries(self) -> list[dict]:
        """Lists the added_tokens of tokenizer.json. Raises UserError if one is malformed."""
        entries = self.tokenizer_json.get("added_tokens") or []
        entries = entries if isinstance(entries, list) else [entries]
        for entry in entries:
            if not (isinstance(entry, dict) and isinstance(entry.get("content"), str) and entry["content"]):
                raise UserError(f"{self.directory / TOKENIZER_JSON}: {str(entry)[:60]} among its added_tokens; "
                                "expected objects with content and id")
        return entries

    # Checks for settings that would split text differently

    def check_component(self, name: str, expected: str, **fields: Any) -> None:
        """Raises UserError if there is a tokenizer.json and its component `name` is not of the expected type, or has
        other values of `fields`."""
        if not self.tokenizer_json:
            return
        path, component = self.directory / TOKENIZER_JSON, self.tokenizer_json.get(name)
        if type_name(component) != expected:
            raise UserError(f"{path}: its {name} is {type_name(component)}, which would split text differently; "
                            f"expected {expected}")
        for field, value in fields.items():
            if component.get(field, value) != value:
                raise UserError(f"{path}: {field} of its {name} is {str(component[field])[:60]}, which would split "
                                f"text differently; expected {value}")

    def check_bert_words(self, **fields: Any) -> bool:
        """Tells whether text is lower-cased, which it is without a tokenizer.json. Raises UserError if there is one
        that does not clean and split text as BERT's code, or whose normalizer has other values of `fields`."""
        self.check_component("normalizer", "BertNormalizer", clean_text=True, handle_chinese_chars=True, **fields)
        self.check_component("pre_tokenizer", "BertPreTokenizer")
        normalizer = self.tokenizer_json.get("normalizer", {})
        lowercase = normalizer.get("lowercase", True)
        check_value(self.directory / TOKENIZER_JSON, "lowercase", lowercase, True, False)
        check_value(self.directory / TOKENIZER_JSON, "strip_accents", normalizer.get("strip_accents"), None, lowercase)
        return lowercase

    def check_plain_bpe(self, *fields: str) -> None:
        """Raises UserError if there is a tokenizer.json whose model is not BPE, or sets one of `fields` or of the
        options of BPE."""
        self.check_component("model", "BPE")
        for name in ("dropout", *fields, "fuse_unk", "byte_fallback", "ignore_merges"):
            if self.model.get(name):
                raise UserError(f"{self.directory / TOKENIZER_JSON}: its model's {name} is "
                                f"{repr(self.model[name])[:60]}, which would split text differently; expected none")

    def check_config(self, classes: Sequence[str], **settings: tuple) -> None:
        """Raises UserError if tokenizer_config.json names a class of other libraries with other rules, or if a setting
        has none of the listed values."""
        path, name = self.directory / CONFIG, self.config.get("tokenizer_class")
        known = [f"{stem}Tokenizer{end}" for stem in classes for end in ("", "Fast")]
        if name not in (None, *known, *ANY_CLASS):
            raise UserError(f"{path}: its tokenizer_class is {str(name)[:60]}, which would split text differently; "
                            f"expected {known[0]}")
        for setting, expected in settings.items():
            check_value(path, setting, self.config.get(setting), *expected)

    def check_specials(self, tokens: Sequence[str], specials: Mapping[str, str], expected: str) -> None:
        """Raises UserError if one of `specials` is not in `tokens`; `expected` names the vocabulary in the message."""
        missing = [token for token in specials.values() if token not in set(tokens)]
        if missing:
            raise UserError(f"{self.vocabulary_path}: {', '.join(missing)} is not among its {len(tokens):,} tokens; "
                            f"expected {expected}, with {' '.join(specials.values())!r}")  # GPT's has a line break


def _with_model_type(content: dict) -> dict:
    """Adds to the content of tokenizer.json the type of its model, which old versions of the library left out."""
    model = content.get("model")
    if not isinstance(model, dict) or "type" in model:
        return content
    marks = {"merges": "BPE", "max_input_chars_per_word": "WordPiece", "unk_id": "Unigram"}
    name = next((name for mark, name in marks.items() if mark in model), "without a type")
    return content | {"model": {"type": name, **model}}


def type_name(component: Any) -> str:
    """Names the type of a component of tokenizer.json, for messages."""
    if not isinstance(component, dict):
        return "none" if component is None else "not an object"
    return str(component.get("type", "without a type"))[:60]


def check_value(path: Path | str, name: str, value: Any, *expected: Any) -> None:
    """Raises UserError if a setting, which would split text differently, is none of `expected`."""
    if not any(value is option or (value == option and isinstance(value, str)) for option in expected):
        raise UserError(f"{path}: its {name} is {str(value)[:60]}, which would split text differently; expected "
                        f"{' or '.join(map(str, expected))}")


def five_specials(specials: Mapping[str, str]) -> dict[str, str]:
    """Selects the special tokens of BERT's and RoBERTa's roles. Their files name [CLS] and [SEP] bos and eos, too."""
    return {role: token for role, token in specials.items() if role in FIVE_ROLES}


def in_order(path: Path, ids: dict) -> list[str]:
    """Lists the tokens of a vocabulary token -> id by id. Raises UserError if the ids are not 0 to n - 1."""
    tokens: list[str | None] = [None] * len(ids)
    for token, i in ids.items():
        if type(i) is not int or not 0 <= i < len(ids) or tokens[i] is not None:
            raise UserError(f"{path}: {token[:60]!r} has id {str(i)[:40]}; expected each id from 0 to {len(ids) - 1:,} "
                            "once")
        tokens[i] = token
    return tokens


def refuse_capitals(path: str | Path, tokens: Sequence[str], specials: Iterable[str], fix: str) -> None:
    """Raises UserError if many tokens of a vocabulary for lower-cased text have capitals."""
    specials = set(specials)
    cased = sum(token != token.lower() for token in tokens if token not in specials)
    if cased > max(2, len(tokens) // 20):  # small vocabularies may have a few
        raise UserError(f"{path}: {cased:,} of {len(tokens):,} tokens have capitals, which never occur in lower-cased "
                        f"text; {fix}")


# Reading files. Unreadable, oversized or malformed ones raise UserError.


def read_bytes(path: str | Path, expected: str) -> bytes:
    """Reads the content of a file. Raises UserError if it cannot be read or has more than MAX_BYTES; `expected` says in
    the message what the file should be."""
    path = Path(path)
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size <= MAX_BYTES):
            raise UserError(f"{path} is not a file of at most {MAX_BYTES // 10**6} MB; expected {expected}")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the vocabulary {path}: {error.strerror}") from error
    check_head(content[:HEAD], str(path))
    return content


def read_text(path: str | Path, expected: str) -> str:
    """Reads a UTF-8 file, with \\n for \\r\\n. Raises UserError as `read_bytes`, and for other encodings."""
    try:
        text = read_bytes(path, expected).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; expected {expected}") from error
    return text.replace("\r\n", "\n")


def read_lines(path: str | Path, expected: str = "text with one entry per line") -> list[str]:
    """Reads the lines of a file, which end at \\n and \\r\\n alone: vocabularies have other line breaks among their
    tokens, such as U+2028 and U+0085. Raises UserError as `read_text`, and for an empty file."""
    lines = read_text(path, expected).split("\n")
    lines = lines[: len(lines) - (lines[-1] == "")]
    if not lines:
        raise UserError(f"{path} is empty; expected {expected}")
    return lines


def read_tokens(path: str | Path, expected: str) -> list[str]:
    """Reads the lines of a vocabulary, without white space around a token. Keeps one that is white space as it is.
    Raises UserError as `read_lines`, and for a line that is empty or has spaces alone, with its number."""
    lines = read_lines(path, expected)
    if blank := [number for number, line in enumerate(lines, 1) if not line.strip(" \t")]:
        raise UserError(f"{path}, line {blank[0]} is empty; expected {expected}")
    return [line.strip() or line for line in lines]


def read_json(path: str | Path) -> dict[str, Any]:
    """Reads the JSON object of a file. Raises UserError as `read_text`, and if it holds anything else."""
    return json_object(read_text(path, "JSON"), str(path))


def special_tokens(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Reads role -> text of the special tokens that tokenizer_config.json (`config`) and special_tokens_map.json name.
    Raises UserError if the two disagree or a name is not text."""
    other = directory / SPECIAL_TOKENS_MAP
    specials: dict[str, str] = {}
    for path, content in ((directory / CONFIG, config), (other, read_json(other) if other.exists() else {})):
        for role in ROLES:
            entry = content.get(f"{role}_token")
            if entry is None:
                continue
            text = entry.get("content") if isinstance(entry, dict) else entry
            if not (isinstance(text, str) and 0 < len(text) <= 100):
                raise UserError(f"{path}: {role}_token is {str(entry)[:60]}; expected the text of a token")
            if specials.setdefault(role, text) != text:
                raise UserError(f"{role}_token is {specials[role][:60]!r} in {directory / CONFIG} and {text[:60]!r} in "
                                f"{SPECIAL_TOKENS_MAP}; correct the file that does not match the model")
    return specials
