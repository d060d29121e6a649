"""The base class of tokenizers with SentencePiece's pieces, and the special tokens of ALBERT, XLNet, T5, CamemBERT,
XLM-RoBERTa and DeBERTa.

tokenizer_config.json (tokenizer_class) or the model's config.json (model_type) names the paper. A vocabulary alone is
recognized by its special tokens: [CLS] [SEP] [MASK] are ALBERT's, <cls> <sep> <eod> XLNet's, and the ids <pad> 0,
</s> 1 and <unk> 2 T5's.
"""

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmrep.core.errors import UserError
from lmrep.data.tokenizers.base import CONFIG, Tokenizer
from lmrep.data.tokenizers.published import ANY_CLASS, read_json

SPACE = "\u2581"
SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}  # ALBERT's; ids 0 to 4
# In the order of their ids, from 0. <eod> ends documents; the published training names these marks, which are pieces.
XLNET_SPECIALS = {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "cls": "<cls>", "sep": "<sep>", "pad": "<pad>",
                  "mask": "<mask>", "eod": "<eod>"}
T5_SPECIALS = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
ROBERTA_SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
DEBERTA_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
MARKS, LETTERS = frozenset("!\"#$%&()*+,-./:;?@[\\]^_`{|}~"), frozenset(string.ascii_lowercase)  # for ALBERT's masks


class Family(NamedTuple):
    """The conventions of one paper's models."""

    name: str  # the tokenizer class of other libraries
    specials: dict[str, str]  # role -> text
    marks: tuple[str, ...] = ()  # pieces by which its models are recognized
    lowercase: bool | None = None  # whether its text is lower-cased, by default; None if its text is not cleaned
    # whether fairseq's code, which trained it, gave the pieces other ids than those in spiece.model
    renumbered: bool = False
    file: str = "spiece.model"  # the name of its model
    added: tuple[str, ...] = ()  # special tokens that follow the pieces of a model that lacks them

    @property
    def fixed_roles(self) -> bool:
        """Whether `specials` has all its roles, though its files also name <s> and </s>, or [CLS] and [SEP], bos and
        eos."""
        return "cls" in self.specials and "bos" not in self.specials


FAMILIES = {
    "albert": Family("AlbertTokenizer", SPECIALS, ("[CLS]", "[SEP]", "[MASK]"), True),
    "xlnet": Family("XLNetTokenizer", XLNET_SPECIALS, ("<cls>", "<sep>", "<eod>"), False),
    "t5": Family("T5Tokenizer", T5_SPECIALS),
    "camembert": Family("CamembertTokenizer", ROBERTA_SPECIALS, renumbered=True),
    "xlm-roberta": Family("XLMRobertaTokenizer", ROBERTA_SPECIALS, renumbered=True),
    "deberta-v2": Family("DebertaV2Tokenizer", DEBERTA_SPECIALS, file="spm.model", added=("[MASK]",)),
    "any": Family("SentencePiece", {}),  # of no other library
}


def family_of(model_config: Path, config: Mapping[str, Any], pieces: Sequence[str]) -> str:
    """Returns the family of a vocabulary, a key of FAMILIES.

    Args:
      model_config: the path of the model's config.json, which may be absent.
      config: the content of tokenizer_config.json.
      pieces: the vocabulary, by id.

    Raises:
      UserError: one of the two files names another tokenizer.
    """
    name = config.get("tokenizer_class")
    known = {family.name: key for key, family in FAMILIES.items()}
    if isinstance(name, str) and name.removesuffix("Fast") in known:
        return known[name.removesuffix("Fast")]
    if name not in (None, *ANY_CLASS):
        raise UserError(f"tokenizer_class of {CONFIG} is {str(name)[:60]}, which would split text differently; "
                        f"expected {', '.join(known)}")
    families = [family for family in FAMILIES if family != "any"]
    model_type = read_json(model_config).get("model_type") if model_config.exists() else None
    model_type = "t5" if model_type == "mt5" else model_type
    if model_type not in (None, *families):
        raise UserError(f"model_type of config.json is {str(model_type)[:60]}, whose tokenizer is unknown; expected "
                        f"{', '.join(families)}, or a {CONFIG} with a tokenizer_class of {', '.join(known)}")
    if model_type is not None:
        return model_type
    if list(pieces[:3]) == ["<pad>", "</s>", "<unk>"]:
        return "t5"
    return next((name for name, family in FAMILIES.items() if family.marks and set(family.marks) <= set(pieces)), "any")


class Pieces(Tokenizer):
    """Base class of tokenizers whose pieces begin with "▁" where a word starts."""

    byte_pieces: set[int]  # the ids of pieces that represent a byte

    def set_family(self, algorithm: str) -> None:
        """Sets the name of the tokenizer from its special tokens and its algorithm, "unigram" or "bpe"."""
        families = {"xlnet": XLNET_SPECIALS, "t5": T5_SPECIALS} if algorithm == "unigram" else {}
        family = next((name for name, specials in families.items() if self.specials == specials), algorithm)
        self.name = f"sentencepiece_{family}"
        # T5 has the end of a text alone, and DeBERTa no token types but BERT's layout
        self.one_separator = "cls" not in self.specials or self.specials == DEBERTA_SPECIALS

    def sentinels(self, before: str = "") -> Iterator[int]:
        """Yields the ids of the tokens that represent spans, which are pieces of the model in mT5."""
        return iter([*super().sentinels(before)] or [*super().sentinels(SPACE)])

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text, with special tokens, each but <unk> after a space."""
        parts = []
        for i in ids:
            token = self.tokens[i]
            space = token in self.atomic and token != self.specials.get("unk")
            parts.append(bytes.fromhex(token[3:5]) if i in self.byte_pieces
                         else f"{' ' * space}{self.id_to_token(i)}".encode())
        return b"".join(parts).decode(errors="replace").removeprefix(" ")

    def id_to_token(self, token: int) -> str:
        """Returns the piece of an id as text, with its leading space."""
        return self.tokens[token].replace(SPACE, " ")

    def starts_word(self, piece: str) -> bool:
        """Tells whether a piece starts a word: whether it begins with "▁", or is a special or added token other than
        <unk>. For XLNet, also <unk>, names in angle brackets and punctuation marks. For ALBERT, which masks complete
        words, and for models trained here, also these, and pieces with a character other than these marks and English
        letters."""
        if piece.startswith(SPACE) or (piece in self.atomic and piece != self.specials.get("unk")):
            return True
        if self.specials == XLNET_SPECIALS:
            return piece in MARKS or piece.startswith("<")
        return self.specials == SPECIALS and (
            piece in MARKS or piece.startswith("<") or not {c.lower() for c in piece} <= MARKS | LETTERS)
