"""Unigram models of pieces (Kudo 2018) that a tokenizer.json holds, without the spiece.model that it was made from.

T5, ALBERT and XLNet directories that version 5 of transformers saves have only this file. It also holds the rules that
are applied to a text, and the `tokenizers` library applies them, so that texts get the ids that they get there. The
published code (`sentence_piece.py`) gives others: here the comma of a number is not split off, and a file may
add tokens, such as "(" for ALBERT, after which a new word starts.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from lmrep.core.errors import UserError
from lmrep.data.tokenizers.base import CONFIG, AddedToken, Encoding
from lmrep.data.tokenizers.library import LibraryTokenizer
from lmrep.data.tokenizers.pieces import FAMILIES, SPACE, Pieces, family_of
from lmrep.data.tokenizers.published import TOKENIZER_JSON, PublishedFiles, check_value, type_name
from lmrep.data.tokenizers.spiece_model import check_characters

RULES = "unigram-1"
UNMATCHED = " "  # no word has a space, so that a piece that begins with it never occurs in a text
NORMALIZERS = ("Sequence", "Precompiled", "Replace", "Strip", "StripAccents", "Lowercase", "NFC", "NFD", "NFKC", "NFKD")
PRE_TOKENIZERS = ("Sequence", "WhitespaceSplit", "Metaspace")
# of Replace, besides plain strings; others may take forever
PATTERNS = ({"Regex": " {2,}"}, {"Regex": r"\s{2,}|[\n\r\t]"})
USED = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model")  # of tokenizer.json


class Unigram(Pieces, LibraryTokenizer):
    """A unigram model with the rules of a tokenizer.json.

    Args:
      content: the content of tokenizer.json.
      config: the content of tokenizer_config.json beside it, which `save` writes again.
      tokens: the pieces of the model and the tokens that are added to them.
      added: the tokens of the file besides `specials`.
      specials: role -> text.
    """

    def __init__(self, content: Mapping[str, Any], config: Mapping[str, Any], tokens: Sequence[str],
                 added: Sequence[AddedToken], specials: Mapping[str, str]):
        self.content, self.config = {"version": "1.0", **{name: content.get(name) for name in USED}}, dict(config)
        self.lowercase = any(part["type"] == "Lowercase" for part in _components(content, "normalizer"))
        scheme = next(part.get("prepend_scheme", "always") for part in _components(content, "pre_tokenizer")
                      if part["type"] == "Metaspace")
        self.sentence_separator = "" if scheme == "always" else " "
        super().__init__(tokens, added, specials)
        self.set_family("unigram")
        self.byte_pieces = {i for i, token in enumerate(tokens)
                       if content["model"].get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", token)}

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """Tokenizes a text. Offsets exclude white space before a word."""
        encoding = super().encode(text, specials)
        offsets = [(end - len(text[start:end].lstrip()), end) for start, end in encoding.offsets]
        return Encoding(encoding.ids, encoding.tokens, offsets, encoding.words)

    def build(self, match_specials: bool) -> tokenizers.Tokenizer:
        content = self.content if match_specials else self._without_specials()
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
        if match_specials:
            listed = {entry["content"] for entry in content["added_tokens"] or ()}
            tokenizer.add_special_tokens([self.special_token(role) for role, name in self.specials.items()
                                          if name not in listed])
        return tokenizer

    def _without_specials(self) -> dict[str, Any]:
        """Returns the content with names of special tokens that occur in no text."""
        entries = self.content["added_tokens"] or []
        special = {*self.specials.values(), *(entry["content"] for entry in entries if entry.get("special"))}
        vocab = [[UNMATCHED + piece if piece in special else piece, score]
                 for piece, score in self.content["model"]["vocab"]]
        for token in self.tokens[len(vocab) :]:
            if token not in special:
                break
            vocab.append([UNMATCHED + token, 0.0])
        added = [entry for entry in entries if entry["content"] not in special]
        return self.content | {"model": self.content["model"] | {"vocab": vocab}, "added_tokens": added,
                               "post_processor": None}

    def identity(self) -> list:
        rules = json.dumps([self.content[name] for name in ("normalizer", "pre_tokenizer", "model")], sort_keys=True)
        return [RULES, hashlib.sha256(rules.encode()).hexdigest(), sorted(self.specials.items())]

    def saved_config(self) -> dict:
        return self.config

    def tokenizer_json(self) -> str:
        """Returns the content as it was read, since the library changes the last digit of scores."""
        return json.dumps(self.content, ensure_ascii=False, indent=2)


def load(files: PublishedFiles) -> Unigram | None:
    """Loads a tokenizer.json alone. Raises UserError if its model is malformed or its rules are unknown."""
    path, model = files.directory / TOKENIZER_JSON, files.model
    if files.vocabulary_file != TOKENIZER_JSON or model.get("type") != "Unigram":
        return None
    pieces = _pieces(model, str(path))
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(pieces):
        raise UserError(f"{path}: its model's unk_id is {str(unknown)[:60]}; expected the id of the unknown token")
    _check_rules(files)
    tokens = files.tokens({piece: i for i, piece in enumerate(pieces)})
    family = family_of(files.directory / "config.json", files.config, tokens)
    specials = {"unk": pieces[unknown]} | FAMILIES[family].specials
    names = {role: name for role, name in files.specials.items()
             if role in specials or not FAMILIES[family].fixed_roles}
    specials |= names
    if specials.get("eod") not in tokens:  # not every file of XLNet's names the end of a document
        specials.pop("eod", None)
    files.check_specials(tokens, specials, "a vocabulary")
    content = files.tokenizer_json | {"added_tokens": files.added_entries()}
    config = {name: value for name, value in files.config.items() if name != "auto_map"}
    try:
        tokenizer = Unigram(content, config, tokens, files.added_tokens(specials), specials)
        tokenizer.encode("A b,\u00e9\u4e00 1.", specials=True)  # damaged rules raise only when used
    except BaseException as error:  # what the library raises where it panics is no Exception
        if isinstance(error, UserError | KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise UserError(f"{path} is not a tokenizer: {str(error).partition(chr(10))[0][:200]}") from None
    if family in ("albert", "xlnet"):  # whose classes in other libraries follow the config
        check_value(files.directory / CONFIG, "do_lower_case", config.get("do_lower_case"), None, tokenizer.lowercase)
    for token in tokenizer.added:
        if not token.special and tokenizer._plain.token_to_id(token.content) != tokenizer.ids[token.content]:
            raise UserError(f"{path} adds the special tokens before {token.content[:60]!r} after others that are not "
                            "special; expected all special tokens first")
    return tokenizer


def _pieces(model: Mapping[str, Any], path: str) -> list[str]:
    vocab = model.get("vocab")
    if not (isinstance(vocab, list) and vocab):
        raise UserError(f"{path}: its model is Unigram, whose vocab is not a list; expected pieces and their scores")
    for i, entry in enumerate(vocab):
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
                and type(entry[1]) in (int, float) and math.isfinite(entry[1])):
            raise UserError(f"{path}: entry {i} of its model's vocab is {str(entry)[:60]}; expected a piece and its "
                            "score")
    pieces = [piece for piece, _ in vocab]
    if len(set(pieces)) != len(pieces):
        twice = next(piece for i, piece in enumerate(pieces) if piece in pieces[:i])
        raise UserError(f"{path}: its model's vocab has {twice[:60]!r} twice; expected each piece once")
    return pieces


def _components(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Lists the normalizers or pre-tokenizers, without the sequences that hold them."""
    component = content.get(name)
    key, pending, parts = "normalizers" if name == "normalizer" else "pretokenizers", [component], []
    while pending:
        part = pending.pop(0)
        if isinstance(part, dict) and isinstance(part.get(key), list):
            pending = part[key] + pending
        elif part is not None:
            parts.append(part)
    return parts


def _check_rules(files: PublishedFiles) -> None:
    path = files.directory / TOKENIZER_JSON
    for name, known in (("normalizer", NORMALIZERS), ("pre_tokenizer", PRE_TOKENIZERS)):
        for part in _components(files.tokenizer_json, name):
            if type_name(part) not in known:
                raise UserError(f"{path}: {type_name(part)} in its {name}; expected {', '.join(known)}")
            if part["type"] == "Precompiled":
                try:
                    check_characters(base64.b64decode(part.get("precompiled_charsmap"), validate=True))
                except (ValueError, TypeError, IndexError) as error:
                    raise UserError(f"{path}: the precompiled_charsmap of its normalizer is damaged: {error}") from None
            pattern = part.get("pattern", {"String": ""})
            if pattern not in PATTERNS and not (isinstance(pattern, dict) and isinstance(pattern.get("String"), str)):
                raise UserError(f"{path}: Replace in its normalizer has the pattern {str(pattern)[:60]}; expected a "
                                "string")
    metaspaces = [part for part in _components(files.tokenizer_json, "pre_tokenizer") if part["type"] == "Metaspace"]
    check_value(path, "number of Metaspace pre-tokenizers", str(len(metaspaces)), "1")
    check_value(path, "replacement of Metaspace", metaspaces[0].get("replacement"), SPACE)
