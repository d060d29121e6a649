"""SentencePiece (Kudo and Richardson 2018): unigram language models over pieces (Kudo 2018), or BPE, of raw text.

Wraps the `sentencepiece` library. A text is normalized by the rules in the model (for published ones NFKC, with white
space collapsed), spaces and the start of the text become "▁" (U+2581), and the result is split into pieces; one that
begins with "▁" starts a word. ALBERT and XLNet clean the text before that (`Cleaning`) and afterwards split the comma
off a number ("2010," is "2010" and ","), as their published code does and other libraries do not. T5 does neither.
"""

import hashlib
import io
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import spiece_model
from lmrep.data.tokenizers.base import SENTINEL, AddedToken, Encoding
from lmrep.data.tokenizers.pieces import FAMILIES, SPACE, SPECIALS, T5_SPECIALS, XLNET_SPECIALS, Pieces

RULES = "spm-1"
XLNET_SYMBOLS = ("<eop>", ".", "(", ")", '"', "-", "\u2013", "\u00a3", "\u20ac")  # after its special tokens
COVERAGE = 0.9999  # fraction of the corpus's characters that become pieces; rarer ones are <unk>
XLNET_COVERAGE = 0.99995
MAX_LINE = 1000  # characters: the trainer drops longer lines
SENTINELS = 100  # of T5
MAX_TRAINING_CHARACTERS = 25 * 10**6  # the trainer needs 20 bytes for each; of larger corpora it gets a sample
THREADS = 16  # of the trainer, on every machine: the order of its sums depends on their number


@dataclass(frozen=True)
class Cleaning:
    """The cleaning of text in ALBERT and XLNet: white space is collapsed, `` and '' become ", and the fields apply."""

    lowercase: bool  # lower-case the text
    keep_accents: bool = False  # if False, decompose compatibility characters (NFKD) and remove combining marks

    def apply(self, text: str) -> str:
        """Returns the cleaned text."""
        text = " ".join(text.split()).replace("``", '"').replace("''", '"')
        if not (self.keep_accents or text.isascii()):
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
        return text.lower() if self.lowercase else text

    def trace(self, text: str) -> tuple[str, list[int], list[int]]:
        """Returns (cleaned text, starts, ends): character i of it comes from `text[starts[i]:ends[i]]`. A removed mark
        belongs to the character before it."""
        traced: list[tuple[str, int, int]] = []
        previous = None
        for word in re.finditer(r"\S+", text):
            if previous:
                traced.append((" ", previous.end(), word.start()))
            previous = word
            for unit in re.finditer(r"``|''|.", word[0], re.DOTALL):
                start, end = word.start() + unit.start(), word.start() + unit.end()
                bases = '"' if end - start == 2 else unit[0]
                if not self.keep_accents:
                    bases = [c for c in unicodedata.normalize("NFKD", bases) if not unicodedata.combining(c)]
                traced += [(c, start, end) for c in bases]
                if traced and not bases:
                    traced[-1] = (*traced[-1][:2], end)
        clean = "".join(c for c, _, _ in traced)
        if self.lowercase:  # at once, since the form of a sigma depends on its position (but no length does)
            clean = clean.lower()
            traced = [(c, start, end) for c, start, end in traced for _ in c.lower()]
        return clean, [start for _, start, _ in traced], [end for _, _, end in traced]


def sentinels(number: int = SENTINELS) -> list[AddedToken]:
    """Makes T5's sentinels, which represent masked spans. They follow the ids of the model, highest number first."""
    return [AddedToken(SENTINEL.format(i), special=True, normalized=False) for i in reversed(range(number))]


class SentencePiece(Pieces):
    """A SentencePiece model.

    Args:
      model: the bytes of a spiece.model.
      specials: role -> text.
      cleaning: applied to a text first; None applies none, and keeps the commas of numbers.
      added: tokens that follow the model's ids: T5's sentinels.

    Raises:
      UserError: the model is not of unigrams or BPE, or lacks a special token.
    """

    def __init__(self, model: bytes, specials: dict[str, str] = SPECIALS, cleaning: Cleaning | None = None,
                 added: Sequence[AddedToken] = ()):
        declared = spiece_model.read(model, specials.values())
        self.model, self.cleaning = declared.model, cleaning
        self._characters_table = declared.characters
        self.sentence_separator = "" if declared.dummy_prefix else " "
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)
            self._inside = sentencepiece.SentencePieceProcessor(model_proto=self.model + spiece_model.NO_PREFIX)
            self.byte_pieces = {i for i in range(len(self._processor)) if self._processor.is_byte(i)}
            self._processor.encode("A b,\u00e9\u4e00 1.")  # damaged rules raise only when used
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(f"it is not a SentencePiece model: {_without_location(error)}") from None
        tokens = [*declared.tokens, *(token.content for token in added)]
        if missing := sorted(set(specials.values()) - set(tokens)):
            raise UserError(f"{', '.join(missing)} is not among its {len(tokens):,} pieces; expected the special "
                            f"tokens {' '.join(specials.values())}")
        super().__init__(tokens, added, specials)
        self.set_family(declared.algorithm)
        self._numbers = self._split_commas() if cleaning else {}
        longest_first = sorted(self.atomic, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(re.escape(name) for name in longest_first))

    def _split_commas(self) -> dict[int, list[int]]:
        """Returns the ids by which the published code replaces each piece that ends in a digit and a comma."""
        split = {}
        for i, piece in enumerate(self.tokens):
            if piece.endswith(",") and piece[-2:-1].isdigit():
                parts = self._processor.encode(piece[:-1].replace(SPACE, ""), out_type=str)
                if piece[0] != SPACE and parts[0][0] == SPACE:
                    parts = [part for part in (parts[0][1:], *parts[1:]) if part]
                split[i] = [self._processor.piece_to_id(part) for part in (*parts, ",")]
        return split

    @property
    def lowercase(self) -> bool:
        return bool(self.cleaning and self.cleaning.lowercase)

    # Text to ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Tokenizes texts to int32 ids, without special tokens. Uses all cores, or one if TOKENIZERS_PARALLELISM is
        false, the variable that the `tokenizers` library reads."""
        clean = [self.cleaning.apply(text) for text in texts] if self.cleaning else list(texts)
        threads = 1 if os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("false", "0", "off") else -1
        batch = [np.asarray(x, np.int32) for x in self._processor.encode(clean, out_type="numpy", num_threads=threads)]
        for i in self._with_commas(batch):
            batch[i] = np.array([part for x in batch[i].tolist() for part in self._numbers.get(x, (x,))], np.int32)
        return batch

    def _with_commas(self, batch: list[np.ndarray]) -> list[int]:
        """Returns the indices of texts with a number that ends in a comma. Searches all at once; searching each would
        double the time of tokenization."""
        if not (self._numbers and batch):
            return []
        has_comma = np.zeros(self.size, bool)
        has_comma[list(self._numbers)] = True
        positions = np.flatnonzero(has_comma[np.concatenate(batch)])
        return np.unique(np.searchsorted(np.cumsum([len(ids) for ids in batch]), positions, side="right")).tolist()

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """Tokenizes a text. Offsets exclude white space before a word; a piece of white space has empty ones."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise TypeError("the text has lone surrogates") from None
        tokens: list[tuple[int, int, int, bool]] = []  # id, start, end, whether it starts a word
        start = 0
        for match in self._special_pattern.finditer(text) if specials else ():
            tokens += self._encode_range(text, start, match.start())
            tokens.append((self.ids[match[0]], *match.span(), True))
            start = match.end()
        tokens += self._encode_range(text, start, len(text))
        words = np.cumsum([starts for *_, starts in tokens]) - 1
        return Encoding(np.array([i for i, *_ in tokens], np.int32), [self.id_to_token(i) for i, *_ in tokens],
                        [(start, end) for _, start, end, _ in tokens], words.astype(int).tolist())

    def _encode_range(self, text: str, low: int, high: int) -> list[tuple[int, int, int, bool]]:
        """Tokenizes the characters [low, high). Text that directly follows a special token gets no "▁"."""
        part = text[low:high]
        processor = self._inside if low and part and not part[0].isspace() else self._processor
        clean, starts, ends = self.cleaning.trace(part) if self.cleaning else (part, None, None)
        encoding = processor.encode(clean, out_type="offset_mapping")
        tokens: list[tuple[int, int, int, bool]] = []
        for i, (start, end) in zip(encoding["ids"], encoding["offsets"], strict=True):
            while start < end and clean[start].isspace():
                start += 1
            *before, last = self._numbers.get(i, (i,))  # for a number with a comma, the last token is the comma
            spans = [(token, start, max(start, end - 1)) for token in before]
            for token, a, b in (*spans, (last, end - 1 if before else start, end)):
                if starts is not None:
                    a, b = (starts[a], ends[b - 1]) if a < b else (starts[a] if a < len(starts) else len(part),) * 2
                first = not tokens or self.tokens[token].startswith(SPACE)
                tokens.append((int(token), low + a, low + b, first))
        return self._whole_characters(tokens)

    def _whole_characters(self, tokens: list[tuple[int, int, int, bool]]) -> list[tuple[int, int, int, bool]]:
        """Gives all byte pieces of a character its offsets; the library gives them to the last piece alone."""
        after = None
        for n in range(len(tokens) - 1, -1, -1):
            token, start, end, first = tokens[n]
            if token not in self.byte_pieces:
                after = None
            elif start < end:
                after = start, end
            elif after:
                tokens[n] = (token, *after, first)
        return tokens

    def identity(self) -> list:
        return [RULES, hashlib.sha256(self.model).hexdigest(), self.cleaning and asdict(self.cleaning),
                sorted(self.specials.items())]

    @property
    def published(self) -> bool:
        return self.saved_config()["tokenizer_class"] != FAMILIES["any"].name

    def saved_config(self) -> dict:
        first, cleaning = len(self.tokens) - len(self.added), self.cleaning
        families = [] if self.name == "sentencepiece_bpe" else FAMILIES.values()  # other libraries read unigrams there
        name = next((family.name for family in families
                     if (family.specials, family.lowercase is None, family.renumbered)
                     == (self.specials, cleaning is None, False)), FAMILIES["any"].name)
        saved = {"tokenizer_class": name}
        if name == FAMILIES["t5"].name:
            saved["extra_ids"] = len(self.added)
            if list(self.added) != sentinels(len(self.added)):
                saved = {"tokenizer_class": FAMILIES["any"].name}
        if cleaning:
            saved |= {"do_lower_case": cleaning.lowercase, "keep_accents": cleaning.keep_accents, "remove_space": True}
        if self.added:
            saved["added_tokens_decoder"] = {str(first + i): asdict(token) for i, token in enumerate(self.added)}
        return saved

    def save_vocabulary(self, directory: Path) -> None:
        name = self.saved_config()["tokenizer_class"]
        file = next(family.file for family in FAMILIES.values() if family.name == name)
        (directory / file).write_bytes(self.model)
        if self.name == "sentencepiece_xlnet" and self.cleaning:
            pieces = range(len(self._processor))
            (directory / "tokenizer.json").write_text(xlnet_json(
                self.tokens[: len(pieces)], [self._processor.get_score(i) for i in pieces], self.specials,
                self.lowercase, self._characters_table), encoding="utf8")


def xlnet_json(
    tokens: Sequence[str], scores: Sequence[float], specials: Mapping[str, str], lowercase: bool, characters: bytes
) -> str:
    """Returns the tokenizer.json of an XLNet vocabulary, for other libraries. From a spiece.model alone, transformers 5
    makes added tokens of the marks that XLNet's training names, and puts a space after each: `"At` is `"` and `▁At`.

    Args:
      tokens, scores: the pieces of a unigram model.
      specials: role -> text.
      lowercase: whether text is lower-cased.
      characters: the model's table of characters, `precompiled_charsmap`; empty for none.

    Raises:
      UserError: the table is damaged.
    """
    cleaning = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
                normalizers.StripAccents(), *[normalizers.Lowercase()][: int(lowercase)]]
    space = {"replacement": SPACE, "prepend_scheme": "always"}
    tokenizer = tokenizers.Tokenizer(models.Unigram(
        list(zip(tokens, scores, strict=True)), tokens.index(specials["unk"]), byte_fallback=False))
    try:
        tokenizer.normalizer = normalizers.Sequence(
            cleaning + ([normalizers.Precompiled(characters)] if characters else []))
    except Exception as error:  # the library has no class for it
        raise UserError(f"the table of characters of the SentencePiece model is damaged: {error}") from None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)])
    tokenizer.decoder = decoders.Metaspace(**space)
    sep, cls = specials["sep"], specials["cls"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A:0 {sep}:0 {cls}:2", pair=f"$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2",
        special_tokens=[(token, tokens.index(token)) for token in (sep, cls)])
    tokenizer.add_special_tokens([
        tokenizers.AddedToken(specials[role], lstrip=role == "mask", special=True, normalized=False)
        for role in XLNET_SPECIALS if role in specials])
    return tokenizer.to_str(pretty=True)


# Training

SPECIALS_OF = {"xlnet": XLNET_SPECIALS, "t5": T5_SPECIALS}  # algorithm -> special tokens; of others, ALBERT's
ALBERT_OPTIONS = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": SPECIALS["pad"],
                  "unk_piece": SPECIALS["unk"], "control_symbols": [*SPECIALS.values()][2:],
                  "character_coverage": COVERAGE}
OPTIONS = {  # algorithm -> options of the trainer
    "xlnet": {"control_symbols": [*XLNET_SPECIALS.values()][3:], "user_defined_symbols": [*XLNET_SYMBOLS],
              "character_coverage": XLNET_COVERAGE},
    "t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>"}}


def train(algorithm: str, vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> SentencePiece:
    """Trains "unigram", "bpe", "xlnet": unigrams with XLNet's special tokens and marks, or "t5": unigrams with T5's
    special tokens and, after all others, its sentinels. The special tokens are the first ids. If `lowercase`, text is
    cleaned as for ALBERT; otherwise it is cleaned for XLNet alone, and for T5 never. Raises UserError if the text is
    empty, has fewer different pieces than `vocab_size`, or more characters."""
    roles, added = SPECIALS_OF.get(algorithm, SPECIALS), sentinels() if algorithm == "t5" else []
    cleaning = Cleaning(lowercase) if algorithm == "xlnet" or (lowercase and algorithm != "t5") else None
    keep = min(1.0, MAX_TRAINING_CHARACTERS / max(1, sum(map(len, texts()))))
    model, faults = io.BytesIO(), []

    def lines() -> Iterator[str]:
        try:
            for line in _sample_lines(texts(), keep):
                yield cleaning.apply(line) if cleaning else line
        except (Exception, KeyboardInterrupt, SystemExit) as fault:  # the library would raise its own error
            faults.append(fault)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(), model_writer=model, model_type="bpe" if algorithm == "bpe" else "unigram",
            vocab_size=vocab_size - len(added), max_sentence_length=8 * MAX_LINE, num_threads=THREADS, minloglevel=3,
            **OPTIONS.get(algorithm, ALBERT_OPTIONS))
    except RuntimeError as error:
        if faults:
            raise faults[0] from None
        raise UserError(_training_error(str(error), vocab_size, len(added))) from None
    return SentencePiece(model.getvalue(), roles, cleaning, added)


def _sample_lines(texts: Iterable[str], keep: float) -> Iterator[str]:
    """Yields lines of at most MAX_LINE characters, a fraction `keep` of them, evenly spread."""
    taken = 0.0
    for text in texts:
        for start in range(0, len(text), MAX_LINE):
            taken += keep
            if taken >= 1 and (line := text[start : start + MAX_LINE].replace("\0", " ")).strip():
                yield line
            taken %= 1


def _training_error(error: str, size: int, added: int) -> str:
    """Explains the library's error for a vocabulary of `size` pieces, `added` of which are not trained."""
    size_is = f"tokenizer.vocab_size is {size:,}"
    if match := re.search(r"Please set it to a value <= (\d+)", error):
        maximum = int(match[1]) + added
        fix = f"set --config.tokenizer.vocab_size={maximum}, or give" if maximum >= 64 + added else "give"
        return f"{size_is}, and this corpus has at most {maximum:,} pieces; {fix} more text"
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", error):
        return (f"{size_is}, and the characters of the corpus and the special tokens take {int(match[1]) + added:,} "
                "pieces before any is learned; set --config.tokenizer.vocab_size to more")
    return f"no SentencePiece vocabulary of {size:,} pieces can be trained on this corpus: {_without_location(error)}"


def _without_location(error: object) -> str:
    """Returns the library's message without the location in its source."""
    return re.sub(r"^.*?\.cc\(\d+\)\s*", "", str(error).strip(), flags=re.DOTALL)[:200] or "no content"
