"""Tokenizers: text to ids and back. One interface (`base.py`) and its kinds, each by the rules of what was published:
BERT's WordPiece (`wordpiece.py`), GPT's BPE (`bpe.py`), the byte-level BPE of GPT-2 and RoBERTa (`byte_level.py`), and
SentencePiece, of unigrams or BPE, as ALBERT, XLNet and T5 have it (`sentence_piece.py`). Any is trained on a corpus or
read from files (`published.py`).
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data.tokenizers import bpe, byte_level, sentence_piece, wordpiece
from lmrep.data.tokenizers.base import Added, Encoding, Tokenizer
from lmrep.data.tokenizers.bpe import Bpe
from lmrep.data.tokenizers.byte_level import ByteLevel
from lmrep.data.tokenizers.published import load, read_vocabulary, refuse_capitals
from lmrep.data.tokenizers.sentence_piece import SentencePiece
from lmrep.data.tokenizers.wordpiece import PUBLISHED_LONGEST, SPECIALS, WordPiece

__all__ = ["RULES", "SPECIALS", "Added", "Bpe", "ByteLevel", "Config", "Encoding", "SentencePiece", "Tokenizer",
           "WordPiece", "from_vocab_file", "load", "read_vocabulary", "size", "train"]

TOKENIZERS = {"wordpiece": wordpiece, "bpe": bpe, "byte_level_bpe": byte_level, "sentencepiece_unigram": sentence_piece,
         "sentencepiece_bpe": sentence_piece}
RULES = {name: module.RULES for name, module in TOKENIZERS.items()}


@dataclass(frozen=True)
class Config:
    """Which tokenizer to train, or to load."""

    name: str = setting("wordpiece", "how words are cut: as BERT's, as GPT's, as RoBERTa's and GPT-2's, as ALBERT's, "
                        "XLNet's and T5's (unigram), or by the same library's BPE", choices=tuple(TOKENIZERS))
    vocab_size: int = setting(8192, "how many pieces to train; a loaded vocabulary keeps its own size", at_least=64,
                              at_most=2**31 - 1)
    vocab_file: str = setting("", "a published vocabulary to load instead of training: a vocab.txt (one piece a line), "
                              "a vocab.json with its merges.txt beside it (encoder.json, vocab.bpe), a SentencePiece "
                              "model (spiece.model), or the directory that holds one")
    lowercase: bool = setting(True, "lower-case and strip accents: as BERT uncased and ALBERT (bpe always does, "
                              "byte_level_bpe never)")


def train(config: Config, texts: Callable[[], Iterator[str]]) -> Tokenizer:
    """Trains a tokenizer on a corpus, which each call of `texts` streams anew. Its special tokens are ids 0 to 4. The
    same texts give the same vocabulary, in every process. Raises UserError for too small a vocabulary, and one of
    SentencePiece that is too large for the corpus."""
    size(dataclasses.replace(config, vocab_file=""))
    if config.name == "wordpiece":
        return wordpiece.train(config.vocab_size, config.lowercase, texts)
    if config.name.startswith("sentencepiece_"):
        return sentence_piece.train(config.name.removeprefix("sentencepiece_"), config.vocab_size, config.lowercase,
                                    texts)
    if config.name == "bpe":
        return bpe.train(config.vocab_size, texts)
    return byte_level.train(config.vocab_size, texts)


def size(config: Config) -> int:
    """How many ids the tokenizer will have, at most. Raises UserError as `from_vocab_file`, and for a vocabulary that
    is too small to be trained, and for cased text where the kind has none."""
    if config.vocab_file:
        return from_vocab_file(config).size
    if config.name == "bpe":
        bpe.check_case(config.lowercase)
    if config.vocab_size <= (least := TOKENIZERS[config.name].LEAST):
        raise UserError(f"tokenizer.vocab_size is {config.vocab_size}; {config.name} has {least:,} pieces before it "
                        "learns any; set --config.tokenizer.vocab_size to more")
    return config.vocab_size


def from_vocab_file(config: Config) -> Tokenizer:
    """The tokenizer of a published vocabulary. Raises UserError for files that are none, or of another kind or case."""
    path = Path(config.vocab_file).expanduser()
    if path.is_dir():
        found = load(path)
    elif config.name == "wordpiece" and path.suffix != ".model":
        found = WordPiece(read_vocabulary(path), config.lowercase, PUBLISHED_LONGEST)
    else:
        found = load(path.parent, path.name)
    if found.name != config.name:
        raise UserError(f"{config.vocab_file} is {found.name}, and tokenizer.name is {config.name}; set "
                        f"--config.tokenizer.name={found.name}")
    if not isinstance(found, ByteLevel):
        _check_case(found, config)
    return found


def _check_case(found: WordPiece | Bpe | SentencePiece, config: Config) -> None:
    if found.lowercase != config.lowercase:
        raise UserError(f"{config.vocab_file} is {'lower-cased' if found.lowercase else 'cased'}; set "
                        f"--config.tokenizer.lowercase={found.lowercase}")
    if found.lowercase:
        refuse_capitals(config.vocab_file, found.tokens, "set --config.tokenizer.lowercase=False for a cased one")
