"""WordPiece, by BERT's rules (Devlin et al. 2019, and the code released with it).

Text is cleaned (control characters dropped, white space made spaces, spaces put around each CJK character, lower-cased
and stripped of accents where `lowercase`), split at white space and at each punctuation character, and each word is
cut greedily into the longest known pieces from the left, "##" before those that continue it. A word of more than 200
characters (100 in published vocabularies that say nothing else), or one with no such cut, is [UNK]. The library departs
from BERT's code for private-use code points, which it drops, and for a few hundred of the rarest (punctuation newer
than its Unicode tables, the first characters of CJK extension E), which it classes otherwise.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from lmrep.data.tokenizers.base import Added
from lmrep.data.tokenizers.machine import MachineTokenizer

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
LONGEST_WORD = 200  # characters; longer words are [UNK], in BERT's code and in what is trained here
PUBLISHED_LONGEST = 100  # in other libraries, hence for published vocabularies without a tokenizer.json
RULES = "bert-1"  # names the rules in fingerprints: raise it when a change moves an id or trains another vocabulary
COVERAGE = 0.9999  # share of a corpus's characters that get a piece of their own; words with rarer ones are [UNK]
LEAST = len(SPECIALS)  # pieces before any is learned


class WordPiece(MachineTokenizer):
    """BERT's tokenizer over its pieces, the five special tokens among them.

    Args:
      pieces: id i is piece i; those that continue a word begin with "##".
      lowercase: whether text is lower-cased and stripped of accents.
      longest: characters of a word that is still cut.
      added: pieces that are found before words are cut.
      specials: role -> name, of all five.
    """

    name, joint = "wordpiece", ""

    def __init__(self, pieces: Sequence[str], lowercase: bool = True, longest: int = LONGEST_WORD,
                 added: Sequence[Added] = (), specials: dict[str, str] = SPECIALS):
        self.lowercase, self.longest = lowercase, longest
        super().__init__(pieces, added, specials, SPECIALS)

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text: pieces joined to words, punctuation close to them, special tokens kept. Case, accents and
        spacing that the tokenizer dropped do not come back."""
        return tidy(" ".join(self.tokens[i] for i in ids).replace(" ##", ""))

    def id_to_token(self, token: int) -> str:
        """The piece that an id stands for, "##" before it where it continues a word."""
        return self.tokens[token]

    def _rules(self) -> tokenizers.Tokenizer:
        return _machine(self._ids, self.lowercase, self.longest, self.specials["unk"])

    def _around(self) -> processors.PostProcessor:
        return processors.BertProcessing(*((self.specials[role], self._ids[self.specials[role]])
                                           for role in ("sep", "cls")))

    def _starts_word(self, piece: str) -> bool:
        return piece in self._own or not piece.startswith("##")

    def _facts(self) -> list:
        return [RULES, self.lowercase, self.longest, self.tokens, *self._named()]

    def _config(self) -> dict:
        return {"tokenizer_class": "BertTokenizer", "do_lower_case": self.lowercase, "strip_accents": None,
                "tokenize_chinese_chars": True}

    def _save_pieces(self, directory: Path) -> None:
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in self.tokens), encoding="utf8")


# Patterns that close up what cutting at punctuation spread apart.
TIDY = [(re.compile(pattern), replacement) for pattern, replacement in (
    (r" ([.,;:!?%)\]}’”])(?=\W|$)", r"\1"),
    (r"(?<!\w)([(\[{‘“$]) (?!(?:PAD|UNK|CLS|SEP|MASK)\])", r"\1"),
    (r"(\w) (['’]) (s|t|d|m|re|ve|ll)\b", r"\1\2\3"),
    (r"(\w) ([-‐_/]) (?=\w)", r"\1\2"),
)]


def tidy(text: str) -> str:
    """Words and punctuation between spaces, with punctuation close to the words as people write it."""
    for pattern, replacement in TIDY:
        text = pattern.sub(replacement, text)
    return text


def train(vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> WordPiece:
    """Trains WordPiece on a corpus, which each call of `texts` streams anew. The special tokens are ids 0 to 4.

    The same texts give the same vocabulary, in every process. The library alone does not: it numbers the characters
    in the order of a hash map seeded at random, and that order breaks ties between merges. So each character, and
    each that can continue a word, is given its id beforehand.
    """
    machine = _machine({}, lowercase)
    single = alphabet(machine, texts(), vocab_size)
    inside = ["##" + c for c in single if _continues(machine, c)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, continuing_subword_prefix="##",
        special_tokens=[*SPECIALS.values(), *single, *inside], initial_alphabet=single, limit_alphabet=len(single))
    machine.train_from_iterator(texts(), trainer)
    ids = machine.get_vocab()
    return WordPiece(sorted(ids, key=ids.__getitem__), lowercase)


def alphabet(machine: tokenizers.Tokenizer, texts: Iterable[str], vocab_size: int) -> list[str]:
    """The characters to give pieces: the most frequent ones, up to COVERAGE of the text or a third of the pieces."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(machine.normalizer.normalize_str(text))
    ranked = sorted(((n, c) for c, n in counts.items() if not c.isspace()), key=lambda pair: (-pair[0], pair[1]))
    covered = np.cumsum([0] + [n for n, _ in ranked])
    needed = int(np.searchsorted(covered, COVERAGE * covered[-1]))
    return sorted(c for _, c in ranked[: min(needed, (vocab_size - len(SPECIALS)) // 3)])


def _continues(machine: tokenizers.Tokenizer, character: str) -> bool:
    """Whether this character can stand inside of a word: punctuation and CJK cannot."""
    return len(machine.pre_tokenizer.pre_tokenize_str(machine.normalizer.normalize_str("a" + character))) == 1


def _machine(ids: dict[str, int], lowercase: bool, longest: int = LONGEST_WORD,
             unknown: str = SPECIALS["unk"]) -> tokenizers.Tokenizer:
    """The library's tokenizer with BERT's rules over a vocabulary."""
    machine = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=longest))
    machine.decoder = decoders.WordPiece(prefix="##")
    return with_words(machine, lowercase)


def with_words(machine: tokenizers.Tokenizer, lowercase: bool) -> tokenizers.Tokenizer:
    """The library's tokenizer, with BERT's words."""
    machine.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None,
                                                    lowercase=lowercase)
    machine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return machine
