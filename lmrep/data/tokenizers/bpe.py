"""BPE of GPT (Radford et al. 2018; Sennrich et al. 2016), in which "</w>" marks the last token of a word.

Text is lower-cased and split into words as in BERT (`wordpiece.py`): at white space, at each punctuation character,
around each CJK character, without accents. The characters of a word, the last one with "</w>", are then merged
pairwise, earliest merge first. Characters outside of the vocabulary are <unk>.

These are the rules that other libraries use for GPT's vocabulary. The code published with the paper differs: it repairs
the encoding of the text (ftfy), replaces dashes by "-", keeps line breaks as a token, keeps accents, and splits words
with spaCy, which keeps "n't", "'s", "..." and "mr." together. Its tokens differed for 0.3 and 0.9 % of the tokens of
two English novels, and for 2.0 % of Wikipedia's, of which 0.08 % were <unk>, as opposed to 0.32 % here.
"""

import re
from collections.abc import Callable, Iterable, Iterator

import tokenizers
from tokenizers import decoders, models

from lmrep.data.tokenizers import published, wordpiece
from lmrep.data.tokenizers.base import TokenizerDef, Trained
from lmrep.data.tokenizers.library import BPE_SPECIALS as SPECIALS
from lmrep.data.tokenizers.library import BpeTokenizer
from lmrep.data.tokenizers.published import PublishedFiles

LINE_BREAK, END = "\n</w>", "</w>"
# In the published vocabulary. It has the line break between paragraphs, which no text gives here; it ends a document.
GPT_SPECIALS = {"unk": "<unk>", "eos": LINE_BREAK}
CLASSES = ("OpenAIGPT",)  # tokenizer classes of other libraries with these rules
CONTRACTIONS = re.compile(r"(\w) (n't|'(?:s|d|m|re|ve|ll))\b")  # as spaCy splits them, hence in GPT's vocabulary


class Bpe(BpeTokenizer):
    """GPT's tokenizer. Tokens that end a word end with "</w>"; `unk` is among its special tokens."""

    name = "bpe"
    rules = "gpt-1"
    lowercase = True
    keeps_spacing = False

    def decode(self, ids: Iterable[int]) -> str:
        """Joins tokens to words, attaches punctuation and keeps special tokens. Does not restore case, accents and
        spacing, which tokenization discards."""
        text = "".join(f"{self.id_to_token(i)} " if self.tokens[i] in self.atomic else self.id_to_token(i)
                       for i in ids)
        return CONTRACTIONS.sub(r"\1\2", wordpiece.attach_punctuation(text.removesuffix(" ").replace(" \n ", "\n")))

    def id_to_token(self, token: int) -> str:
        """Returns the token of an id as text, with a space after it if it ends a word."""
        text = self.tokens[token]
        if text in self.atomic:
            return text.removesuffix(END)
        return text[: -len(END)] + " " if text.endswith(END) else text

    def library_model(self) -> tokenizers.Tokenizer:
        return _library_tokenizer(models.BPE(self.ids, self.merges, unk_token=self.specials["unk"], fuse_unk=False,
                                             continuing_subword_prefix="", end_of_word_suffix=END))

    def ends_word(self, token: str) -> bool:
        return token in self.atomic or token.endswith(END)

    def saved_config(self) -> dict:
        return {"tokenizer_class": "OpenAIGPTTokenizer"}


def train(vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> Bpe:
    """Trains BPE, lower-cased. Ids 0 to 4 are <s> <pad> </s> <unk> <mask>, followed by the characters, the characters
    with "</w>", and the merges. Characters get their ids before training, for the reason given in `wordpiece.train`."""
    tokenizer = _library_tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=END))
    alphabet = wordpiece.frequent_characters(tokenizer, texts(), vocab_size)
    return Bpe.train(tokenizer, texts(), vocab_size, continuing_subword_prefix="", end_of_word_suffix=END,
                     special_tokens=[*SPECIALS.values(), *alphabet, *(c + END for c in alphabet)],
                     initial_alphabet=alphabet, limit_alphabet=len(alphabet))


def _library_tokenizer(model: models.BPE) -> tokenizers.Tokenizer:
    tokenizer = wordpiece.with_bert_words(tokenizers.Tokenizer(model), lowercase=True)
    tokenizer.decoder = decoders.BPEDecoder(suffix=END)
    return tokenizer


# Published files


def load(files: PublishedFiles) -> Bpe | None:
    """Loads a vocabulary with "</w>" and its merges. Without RoBERTa's special tokens other than <unk>, its special
    tokens are <unk>, GPT's line break if it is in the vocabulary, and those that the files name."""
    if files.bpe is None or not any(token.endswith(END) for token in files.bpe):
        return None
    files.check_bert_words(lowercase=True)
    files.check_plain_bpe("continuing_subword_prefix")
    files.check_component("model", "BPE", end_of_word_suffix=END)
    files.check_config(CLASSES, do_lower_case=(None, True))
    tokens = files.tokens(files.bpe)
    gpt = not (set(SPECIALS.values()) - {GPT_SPECIALS["unk"]}) & set(tokens)
    present = {role: token for role, token in GPT_SPECIALS.items() if role == "unk" or token in files.bpe}
    specials = present | files.specials if gpt else SPECIALS | published.five_specials(files.specials)
    files.check_specials(tokens, specials, "GPT's" if gpt else "those of a vocabulary that is trained here")
    files.check_component("model", "BPE", unk_token=specials["unk"])
    return Bpe(tokens, files.merges(tokens), files.added_tokens(specials), specials)


DEFINITION = TokenizerDef(train, load, Bpe.rules, Trained(SPECIALS), lowercase=True)
