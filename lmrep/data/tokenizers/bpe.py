"""BPE, by the rules of GPT (Radford et al. 2018; Sennrich et al. 2016), with "</w>" where a piece ends a word.

Text is lower-cased and cut into words as BERT's (`wordpiece.py`): at white space, at each punctuation character, around
each CJK character, accents dropped. The characters of a word, the last one with "</w>", are then joined two by two, the
earliest merge of the list first. A character that has no piece is <unk>.

These are the rules that other libraries have for GPT's vocabulary. The code released with the paper cuts words
otherwise: it mends the text's encoding (ftfy), writes all dashes as "-", keeps line breaks as a token, keeps accents,
and cuts as spaCy does, which leaves "n't", "'s", "..." and "mr." whole. Line by line that gave other pieces for 0.3 and
0.9 % of the tokens of two English novels and for 2.0 % of Wikipedia's, of which 0.08 % were <unk>, and here 0.32 %.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, trainers

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import byte_level, wordpiece
from lmrep.data.tokenizers.base import Added
from lmrep.data.tokenizers.machine import MachineTokenizer

SPECIALS = byte_level.SPECIALS
NEWLINE, END = "\n</w>", "</w>"
# The published vocabulary's: what stood between paragraphs, which nothing else gives here, ends a document.
GPT = {"unk": "<unk>", "eos": NEWLINE}
RULES = "gpt-1"  # names the rules in fingerprints: raise it when a change moves an id or trains another vocabulary
LEAST = len(SPECIALS)  # pieces before any is learned
SHORT = re.compile(r"(\w) (n't|'(?:s|d|m|re|ve|ll))\b")  # spaCy's pieces of words, which the published network writes


class Bpe(MachineTokenizer):
    """GPT's tokenizer over its pieces, the special tokens among them.

    Args:
      pieces: id i is piece i; those that end a word end with "</w>".
      merges: pairs of pieces to be joined, in that order; each joins to a piece.
      added: pieces that are found before words are cut.
      specials: role -> name, `unk` among them.
    """

    name, joint, lowercase = "bpe", "", True

    def __init__(self, pieces: Sequence[str], merges: Sequence[tuple[str, str]], added: Sequence[Added] = (),
                 specials: dict[str, str] = SPECIALS):
        self.merges = [tuple(merge) for merge in merges]
        super().__init__(pieces, added, specials, SPECIALS)

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text: pieces joined to words, punctuation close to them, special tokens kept. Case, accents and
        spacing that the tokenizer dropped do not come back."""
        text = "".join(f"{self.id_to_token(i)} " if self.tokens[i] in self._own else self.id_to_token(i) for i in ids)
        return SHORT.sub(r"\1\2", wordpiece.tidy(text.removesuffix(" ").replace(" \n ", "\n")))

    def id_to_token(self, token: int) -> str:
        """The piece that an id stands for, as text: one that ends a word ends with a space, "the " say."""
        piece = self.tokens[token]
        if piece in self._own:
            return piece.removesuffix(END)
        return piece[: -len(END)] + " " if piece.endswith(END) else piece

    def _rules(self) -> tokenizers.Tokenizer:
        return _machine(models.BPE(self._ids, self.merges, unk_token=self.specials["unk"], fuse_unk=False,
                                   continuing_subword_prefix="", end_of_word_suffix=END))

    def _around(self) -> None:
        """Nothing, as other libraries have it for GPT."""

    def _ends_word(self, piece: str) -> bool:
        return piece in self._own or piece.endswith(END)

    def _facts(self) -> list:
        return [RULES, self.tokens, self.merges, *self._named()]

    def _config(self) -> dict:
        return {"tokenizer_class": "OpenAIGPTTokenizer"}

    def _save_pieces(self, directory: Path) -> None:
        byte_level.save(directory, self._ids, self.merges)


def train(vocab_size: int, texts: Callable[[], Iterator[str]]) -> Bpe:
    """Trains BPE on a corpus, which each call of `texts` streams anew. Ids 0 to 4 are <s> <pad> </s> <unk> <mask>, then
    come the characters, the same with "</w>", and the merges.

    The same texts give the same vocabulary, in every process, because each character has its ids beforehand (see
    `wordpiece.train`).
    """
    machine = _machine(models.BPE(continuing_subword_prefix="", end_of_word_suffix=END))
    alphabet = wordpiece.alphabet(machine, texts(), vocab_size)
    machine.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, continuing_subword_prefix="",
        end_of_word_suffix=END, special_tokens=[*SPECIALS.values(), *alphabet, *(c + END for c in alphabet)],
        initial_alphabet=alphabet, limit_alphabet=len(alphabet)))
    model = json.loads(machine.to_str())["model"]
    return Bpe(sorted(model["vocab"], key=model["vocab"].__getitem__), model["merges"])


def check_case(lowercase: bool) -> None:
    """Raises UserError where text is not to be lower-cased."""
    if not lowercase:
        raise UserError("tokenizer.name=bpe lower-cases text, as GPT's, and tokenizer.lowercase is False; set "
                        "--config.tokenizer.lowercase=True, or --config.tokenizer.name=byte_level_bpe for cased text")


def _machine(model: models.BPE) -> tokenizers.Tokenizer:
    machine = wordpiece.with_words(tokenizers.Tokenizer(model), lowercase=True)
    machine.decoder = decoders.BPEDecoder(suffix=END)
    return machine
