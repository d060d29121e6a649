"""Tokenizers implemented with the `tokenizers` library, which runs in threads of its own."""

import functools
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

import numpy as np
import tokenizers

from lmrep.data.tokenizers.base import CONFIG, AddedToken, Encoding, Tokenizer

MARKS = ("Mn", "Mc", "Me", "Cf")  # Unicode categories: combining marks and invisible format characters
BPE_SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}  # RoBERTa's


def with_removed_marks(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the offsets of a text's tokens, extended over marks after them that no token has. A normalizer removes
    accents and variation selectors such as U+FE0F, which belong to the character before them."""
    if text.isascii():
        return list(offsets)
    extended, limit = [], len(text)
    for start, end in reversed(offsets):
        stop = end
        while start < end and stop < limit and unicodedata.category(text[stop]) in MARKS:
            stop += 1
        extended.append((start, stop))
        limit = min(limit, start)
    return extended[::-1]


def remove_end_of_text(directory: Path, start: Sequence[str]) -> None:
    """Changes the saved files of a tokenizer: other libraries then add the tokens `start` before a text and none after
    it, in place of BERT's or RoBERTa's special tokens. A left-to-right model does not continue an ended text."""
    path, config = directory / "tokenizer.json", directory / CONFIG
    content = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
    surround = content.get("post_processor") or {}
    if surround.get("type") not in ("BertProcessing", "RobertaProcessing"):
        return
    sep, library = surround["sep"][0], tokenizers.Tokenizer.from_str(json.dumps(content))
    between = [sep] * (2 if surround["type"] == "RobertaProcessing" else 1)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=[*start, "$A"], pair=[*start, "$A", *between, "$B"],
        special_tokens=[(token, library.token_to_id(token)) for token in {*start, sep}])
    path.write_text(library.to_str(pretty=True), encoding="utf8")
    # Classes of a paper's tokenizer have its post-processor, whatever tokenizer.json has.
    settings = json.loads(config.read_text(encoding="utf8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf8")


def start_of_text(directory: Path) -> list[str] | None:
    """Returns the tokens that the tokenizer.json in a directory puts before a text, by a template with none after it,
    as `remove_end_of_text` writes it; None if it has no such template."""
    try:
        content = json.loads((directory / "tokenizer.json").read_text(encoding="utf8"))
        *before, text = content["post_processor"]["single"]
        return [str(part["SpecialToken"]["id"]) for part in before] if "Sequence" in text else None
    except (OSError, KeyError, TypeError, ValueError):  # no such file, or another form
        return None


class LibraryTokenizer(Tokenizer):
    """A wrapper of two tokenizers of the library with the same vocabulary; only the second matches special tokens."""

    rules: str  # names the implementation in fingerprints
    default_specials: Mapping[str, str]  # role -> text of the special tokens, unless published files name others

    def __init__(self, tokens: Sequence[str], added: Sequence[AddedToken], specials: Mapping[str, str]):
        super().__init__(tokens, added, specials)
        self._plain = self.build(match_specials=False)  # at once: it raises for a damaged vocabulary

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode(self, text: str, specials: bool = False) -> Encoding:
        encoder = self._with_specials if specials else self._plain
        encoding = encoder.encode(text, add_special_tokens=False)
        return Encoding(np.array(encoding.ids, np.int32), [self.id_to_token(i) for i in encoding.ids],
                        with_removed_marks(text, encoding.offsets), encoding.word_ids)

    def save(self, directory: str | Path) -> None:
        super().save(directory)
        (Path(directory) / "tokenizer.json").write_text(self.tokenizer_json(), encoding="utf8")

    def tokenizer_json(self) -> str:
        """Returns the content of tokenizer.json."""
        return self._with_specials.to_str(pretty=True)

    def renamed_specials(self) -> list:
        """Returns the special tokens as a part of `identity`; an empty list if they are the default ones."""
        return [] if self.specials == self.default_specials else [sorted(self.specials.items())]

    # To be defined by subclasses

    def library_model(self) -> tokenizers.Tokenizer:
        """Makes the library's tokenizer, without special and added tokens."""
        raise NotImplementedError

    def special_token(self, role: str) -> tokenizers.AddedToken:
        """Describes how a special token is matched in a text."""
        return tokenizers.AddedToken(self.specials[role], special=True, normalized=False)

    def template(self) -> tokenizers.processors.PostProcessor | None:
        """Returns the post-processor of tokenizer.json by which other libraries add special tokens around a text."""
        return None

    # The two tokenizers of the library

    @functools.cached_property
    def _with_specials(self) -> tokenizers.Tokenizer:
        return self.build(match_specials=True)

    def build(self, match_specials: bool) -> tokenizers.Tokenizer:
        """Makes a tokenizer of the library, which matches special tokens or not."""
        tokenizer = self.library_model()
        if match_specials:
            by_text = {self.specials[role]: self.special_token(role) for role in self.specials}
            tokenizer.add_special_tokens(list(by_text.values()))
            if template := self.template():
                tokenizer.post_processor = template
        for token in self.added:
            if match_specials or not token.special:
                tokenizer.add_tokens([tokenizers.AddedToken(**asdict(token))])
        return tokenizer


class BpeTokenizer(LibraryTokenizer):
    """Byte pair encoding (Sennrich et al. 2016). `merges` are pairs of tokens in the order in which they are merged;
    the two together are a token."""

    default_specials = BPE_SPECIALS

    def __init__(self, tokens: Sequence[str], merges: Iterable[tuple[str, str]], added: Sequence[AddedToken] = (),
                 specials: Mapping[str, str] = BPE_SPECIALS):
        self.merges = [tuple(merge) for merge in merges]
        super().__init__(tokens, added, specials)

    @classmethod
    def train(cls, tokenizer: tokenizers.Tokenizer, texts: Iterable[str], vocab_size: int, **options) -> Self:
        """Trains a tokenizer of the library. The ids of the special tokens come first; `options` are the trainer's."""
        tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size, min_frequency=2, show_progress=False, **options))
        model = json.loads(tokenizer.to_str())["model"]
        return cls(sorted(model["vocab"], key=model["vocab"].__getitem__), model["merges"])

    def identity(self) -> list:
        return [self.rules, self.tokens, self.merges, *self.renamed_specials()]

    def save_vocabulary(self, directory: Path) -> None:
        (directory / "vocab.json").write_text(json.dumps(self.ids, ensure_ascii=False), encoding="utf8")
        lines = ["#version: 0.2", *(" ".join(merge) for merge in self.merges)]
        (directory / "merges.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
