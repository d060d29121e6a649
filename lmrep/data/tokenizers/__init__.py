"""Tokenizers: text to ids and back. TOKENIZERS lists them: BERT's WordPiece, GPT's BPE, bytes, the byte-level BPE of
GPT-2 and RoBERTa, SentencePiece (unigram or BPE) of ALBERT, XLNet and T5, full words, words with their characters as in
ELMo, and words as in ULMFiT. Each is trained on a corpus or read from published files (`published.py` lists which). A
new one is a module and an entry of the table.
"""

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lmrep.config.record import choose, setting
from lmrep.core import remote_cache
from lmrep.core.components import component_table
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path
from lmrep.data.tokenizers import bpe, byte_level, elmo, fastai, spiece_files, wordpiece, words
from lmrep.data.tokenizers.backward import backward
from lmrep.data.tokenizers.base import CONFIG, AddedToken, Encoding, Tokenizer, TokenizerDef, Trained
from lmrep.data.tokenizers.bpe import Bpe
from lmrep.data.tokenizers.byte_level import ByteLevel
from lmrep.data.tokenizers.known_words import without_unknown
from lmrep.data.tokenizers.published import (
    TOKENIZER_JSON,
    PublishedFiles,
    check_value,
    read_json,
    refuse_capitals,
    type_name,
)
from lmrep.data.tokenizers.sentence_piece import SentencePiece
from lmrep.data.tokenizers.wordpiece import SPECIALS, WordPiece, read_vocabulary

__all__ = ["SPECIALS", "TOKENIZERS", "AddedToken", "Bpe", "ByteLevel", "Config", "Encoding", "PublishedFiles",
           "SentencePiece", "Tokenizer", "TokenizerDef", "Trained", "WordPiece", "from_vocab_file", "keeps_whitespace",
           "load", "read_vocabulary", "settings_of_ids", "size", "train"]

TOKENIZERS: dict[str, TokenizerDef] = component_table(TokenizerDef, {
    "wordpiece": wordpiece.DEFINITION, "bpe": bpe.DEFINITION, "bytes": byte_level.BYTES_DEFINITION,
    "byte_level_bpe": byte_level.DEFINITION,
    **spiece_files.DEFINITIONS, "words": words.DEFINITION, "words_text": words.TEXT_DEFINITION,
    "elmo": elmo.DEFINITION, "elmo_text": elmo.TEXT_DEFINITION, **fastai.DEFINITIONS})

PUBLISHED = ("wordpiece, bpe, bytes, byte_level_bpe, sentencepiece_unigram with lowercase=True, sentencepiece_xlnet, "
             "sentencepiece_t5, words and words_text")  # those that other libraries read
MAX_SIZE = 2**24  # of a vocabulary; the libraries reserve memory for it at once, and abort where there is not enough
MAX_TRAINING_WORD = 200  # characters, as in BERT's code; the time to train is quadratic in the length of words
LONG_RUN = re.compile(rf"(?<!\S)\S{{{MAX_TRAINING_WORD + 1},}}|(?<!\s)\s{{{MAX_TRAINING_WORD + 1},}}")
CHANGES = {"direction": ("forward", "backward"), "unknown": ("keep", "remove")}  # of any tokenizer; the first: none

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Config:
    """The tokenizer to train or to load."""

    name: str = setting("wordpiece", "the algorithm: as in BERT, as in GPT, bytes, as in GPT-2 and RoBERTa, as in "
                        "ALBERT (unigram), SentencePiece's BPE, as in XLNet, as in T5, full words, words with their "
                        "characters as in ELMo (words, elmo: separated by spaces; words_text, elmo_text: in any "
                        "text), or words as in ULMFiT (of fastai 1.0, or of the paper)", choices=TOKENIZERS)
    vocab_size: int = setting(8192, "number of tokens to train; a loaded vocabulary keeps its size", at_least=64,
                              at_most=MAX_SIZE)
    vocab_file: str = setting("", "a published vocabulary to load instead of training: a vocab.txt, a vocab.json with "
                              "its merges.txt beside it (or encoder.json with vocab.bpe), a SentencePiece model "
                              "(spiece.model), or the directory that holds one", path=as_path)
    lowercase: bool = setting(True, "lower-case text and strip accents, as in BERT uncased and ALBERT (bpe always "
                              "does, byte_level_bpe and bytes never)")
    direction: str = setting("forward", "order of the tokens: as in the text, or backward, for a language model that "
                             "reads documents from their end", choices=CHANGES["direction"])
    unknown: str = setting("keep", "words outside of the vocabulary: keep an unknown token for each, or remove them, "
                           "for tasks of whole texts", choices=CHANGES["unknown"])
    whitespace: str = setting("auto", "white space of documents: keep it (line breaks and indentation become tokens), "
                              "collapse each run to one space, or auto: keep it for byte_level_bpe "
                              "and bytes",
                              choices=("auto", "keep", "collapse"))


def settings_of_ids(config: Config) -> str:
    """Describes, for digests, the settings that decide which ids text gets from a tokenizer that is not trained yet."""
    text = repr(dataclasses.replace(config, vocab_file="", whitespace=""))
    for default in (", direction='forward'", ", unknown='keep'"):  # which old digests lack
        text = text.replace(default, "")
    return text


def keeps_whitespace(config: Config) -> bool:
    """Tells whether documents are tokenized with their exact white space."""
    default = choose(TOKENIZERS, config.name, "tokenizer.name").whitespace
    return (default if config.whitespace == "auto" else config.whitespace) == "keep"


def train(config: Config, texts: Callable[[], Iterator[str]]) -> Tokenizer:
    """Trains a tokenizer; each call of `texts` streams the training text from its start. The same text gives the same
    tokenizer in every process. Words of more than MAX_TRAINING_WORD characters are split. Raises UserError if
    `vocab_size` is too small, or too large for a SentencePiece vocabulary of this text."""
    size(dataclasses.replace(config, vocab_file=""))
    long_words = 0

    def bounded() -> Iterator[str]:
        nonlocal long_words
        long_words = 0
        for text in texts():
            *parts, rest = _split_long_words(text) if len(text) > MAX_TRAINING_WORD else [text]
            long_words += len(parts) > 0
            yield from parts
            yield rest

    tokenizer = _as_config(TOKENIZERS[config.name].train(config.vocab_size, config.lowercase, bounded), config)
    if long_words:
        log.warning("%s lines with words of more than %s characters were split to train the tokenizer",
                    f"{long_words:,}", f"{MAX_TRAINING_WORD:,}")
    return tokenizer


def _as_config(tokenizer: Tokenizer, config: Config) -> Tokenizer:
    """Removes unknown words and reverses the order of tokens, as the config says."""
    if config.unknown == "remove" and not tokenizer.removes_unknown:
        tokenizer = without_unknown(tokenizer)
    return backward(tokenizer) if config.direction == "backward" and not tokenizer.backward else tokenizer


def _split_long_words(text: str) -> Iterator[str]:
    start = 0
    for run in LONG_RUN.finditer(text):
        for end in range(run.start() + MAX_TRAINING_WORD, run.end(), MAX_TRAINING_WORD):
            yield text[start:end]
            start = end
    yield text[start:]


def size(config: Config) -> int:
    """Returns the largest number of ids that the tokenizer will have. Raises UserError as `from_vocab_file`, for a
    vocabulary too small to train, and for cased text if the tokenizer always lower-cases."""
    if config.vocab_file:
        return from_vocab_file(config).size
    definition = choose(TOKENIZERS, config.name, "tokenizer.name")
    if definition.lowercase and not config.lowercase:
        raise UserError(f"tokenizer.name={config.name} always lower-cases text, and tokenizer.lowercase is False; set "
                        "--config.tokenizer.lowercase=True, or choose another --config.tokenizer.name for cased text")
    if config.vocab_size <= (reserved := definition.trained.min_size):
        raise UserError(f"tokenizer.vocab_size is {config.vocab_size}; {config.name} has {reserved:,} tokens before "
                        "it learns any; set --config.tokenizer.vocab_size to more")
    return config.vocab_size


def known_size(config: Config) -> int:
    """Returns `size`, or 0 where the tokenizer is still to be trained and may get fewer ids. Raises UserError as
    `size`."""
    largest = size(config)
    return 0 if not config.vocab_file and TOKENIZERS[config.name].trained.size_is_limit else largest


def load(directory: str | Path, vocab: str = "vocab.json") -> Tokenizer:
    """Loads the tokenizer of a published directory, or of one that `Tokenizer.save` wrote.

    Args:
      directory: the directory of its files.
      vocab: the file name of the vocabulary, if it differs from the published ones.

    Raises:
      UserError: there is no tokenizer, its files are malformed, or it splits text by unknown rules.
    """
    directory = Path(directory)
    files = PublishedFiles.read(directory, vocab)
    loaded = filter(None, (definition.load(files) for definition in TOKENIZERS.values()))
    tokenizer = next(loaded, None)
    if tokenizer is None and files.tokenizer_json:
        raise UserError(f"{directory / TOKENIZER_JSON}: its model is {type_name(files.tokenizer_json.get('model'))}; "
                        "expected WordPiece as in BERT, BPE as in GPT or RoBERTa, Unigram as in T5, or WordLevel, "
                        "with its vocabulary, or the spiece.model of SentencePiece")
    if tokenizer is None:
        raise UserError(f"no tokenizer in {directory}; expected vocab.txt, vocab.json with merges.txt, encoder.json "
                        f"with vocab.bpe, spiece.model, or {TOKENIZER_JSON}")
    extra = read_json(directory / "added_tokens.json") if "added_tokens.json" in files.names else {}
    if missing := sorted(extra.keys() - set(tokenizer.tokens)):
        raise UserError(f"{directory / 'added_tokens.json'} adds {missing[0][:60]!r}, and no {TOKENIZER_JSON} says how "
                        f"it is matched in a text; save the tokenizer with its {TOKENIZER_JSON}")
    changes = {name: files.config.get(name, values[0]) for name, values in CHANGES.items()}
    for name, value in changes.items():
        check_value(directory / CONFIG, name, value, *CHANGES[name])
    return _as_config(tokenizer, Config(**changes))


def from_vocab_file(config: Config) -> Tokenizer:
    """Loads the tokenizer of `config.vocab_file`. Raises UserError if it cannot be loaded, or has another algorithm or
    case than the config says."""
    definition = choose(TOKENIZERS, config.name, "tokenizer.name")
    path = remote_cache.local(config.vocab_file, "tokenizer.vocab_file")
    if path.is_dir():
        tokenizer = load(path)
    elif definition.load_vocabulary and path.suffix != ".model":
        tokenizer = definition.load_vocabulary(path, config.lowercase)
    else:
        tokenizer = load(path.parent, path.name)
    if tokenizer.name != config.name:
        raise UserError(f"{config.vocab_file} is {tokenizer.name}, and tokenizer.name is {config.name}; set "
                        f"--config.tokenizer.name={tokenizer.name}")
    if definition.lowercase is not False and tokenizer.lowercase != config.lowercase:
        raise UserError(f"{config.vocab_file} is {'lower-cased' if tokenizer.lowercase else 'cased'}; set "
                        f"--config.tokenizer.lowercase={tokenizer.lowercase}")
    if tokenizer.backward and config.direction == "forward":
        raise UserError(f"{config.vocab_file} reads text backward, and tokenizer.direction is 'forward'; set "
                        "--config.tokenizer.direction=backward")
    if tokenizer.removes_unknown and config.unknown == "keep":
        raise UserError(f"{config.vocab_file} leaves out unknown words, and tokenizer.unknown is 'keep'; set "
                        "--config.tokenizer.unknown=remove")
    tokenizer = _as_config(tokenizer, config)
    if tokenizer.lowercase:
        refuse_capitals(config.vocab_file, tokenizer.tokens, tokenizer.specials.values(),
                        "set --config.tokenizer.lowercase=False for a cased one")
    return tokenizer
