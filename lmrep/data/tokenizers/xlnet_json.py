"""tokenizer.json of an XLNet vocabulary, for other libraries.

From a spiece.model alone, transformers 5 makes added tokens of the marks that XLNet's training names, and puts a space
after each: `"At` would become `"` and `▁At`. The published directories have this file too.
"""

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from lmrep.core.errors import UserError

FUNCTIONAL = ("unk", "bos", "eos", "cls", "sep", "pad", "mask", "eod")  # roles of tokens that no text holds


def content(
    tokens: Sequence[str], scores: Sequence[float], specials: Mapping[str, str], lowercase: bool, characters: bytes
) -> str:
    """The file's text.

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
    space = {"replacement": "\u2581", "prepend_scheme": "always"}
    found = tokenizers.Tokenizer(models.Unigram(
        list(zip(tokens, scores, strict=True)), tokens.index(specials["unk"]), byte_fallback=False))
    try:
        found.normalizer = normalizers.Sequence(
            cleaning + ([normalizers.Precompiled(characters)] if characters else []))
    except Exception as error:  # the library has no class for it
        raise UserError(f"the table of characters of the SentencePiece model is damaged: {error}") from None
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)])
    found.decoder = decoders.Metaspace(**space)
    sep, cls = specials["sep"], specials["cls"]
    found.post_processor = processors.TemplateProcessing(
        single=f"$A:0 {sep}:0 {cls}:2", pair=f"$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2",
        special_tokens=[(token, tokens.index(token)) for token in (sep, cls)])
    found.add_special_tokens([
        tokenizers.AddedToken(specials[role], lstrip=role == "mask", special=True, normalized=False)
        for role in FUNCTIONAL if role in specials])
    return found.to_str(pretty=True)
