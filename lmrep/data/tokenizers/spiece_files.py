"""Published SentencePiece models, loaded by the conventions of their papers (`pieces.py`). Other models are used
without cleaning, with the special tokens that they declare.
"""

import re
from functools import partial
from typing import Any

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import sentence_piece, spiece_model, unigram
from lmrep.data.tokenizers.base import CONFIG, AddedToken, TokenizerDef, Trained
from lmrep.data.tokenizers.pieces import FAMILIES, SPECIALS, T5_SPECIALS, XLNET_SPECIALS, family_of
from lmrep.data.tokenizers.published import TOKENIZER_JSON, PublishedFiles, check_value, read_bytes
from lmrep.data.tokenizers.sentence_piece import SENTINELS, XLNET_SYMBOLS, Cleaning, SentencePiece, sentinels


def load(files: PublishedFiles) -> SentencePiece | unigram.Unigram | None:
    """Loads a spiece.model, or a tokenizer.json of unigrams. Raises UserError if it is malformed or the files beside it
    need unknown rules."""
    if not files.vocabulary_file.endswith(".model"):
        return unigram.load(files)
    path, config, names = files.directory / files.vocabulary_file, files.config, files.specials
    model = read_bytes(path, "a SentencePiece model")
    try:
        declared = spiece_model.read(model)
        family = family_of(path.with_name("config.json"), config, declared.tokens)
        specials = FAMILIES[family].specials
        if FAMILIES[family].renumbered:
            raise UserError(f"the ids of {FAMILIES[family].name} are not those of this model, and there is no "
                            f"{TOKENIZER_JSON}; write it in Python: from transformers import AutoTokenizer; "
                            f"AutoTokenizer.from_pretrained({str(files.directory)!r}).save_pretrained(...)")
        if FAMILIES[family].fixed_roles:
            names = {role: name for role, name in names.items() if role in specials}
        if family == "any" and config.get("tokenizer_class") != FAMILIES[family].name:  # that class names all of them
            specials = declared.specials
        number = config.get("extra_ids", SENTINELS) if family == "t5" else 0
        if type(number) is not int or not 0 <= number <= 10**5:
            raise UserError(f"extra_ids of {CONFIG} is {str(number)[:60]}; expected a number of tokens")
        if family == "deberta-v2":
            check_value(CONFIG, "split_by_punct", config.get("split_by_punct"), None, False)
        default = [AddedToken(token, special=True, normalized=False) for token in FAMILIES[family].added
                   if token not in declared.tokens]
        added = _added(config, declared.tokens, [*sentinels(number), *default])
        return SentencePiece(model, specials | names, _cleaning(config, family), added)
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _cleaning(config: dict[str, Any], family: str) -> Cleaning | None:
    """Returns the cleaning that do_lower_case, keep_accents and remove_space set; the family's by default."""
    lowercase = FAMILIES[family].lowercase
    default = None if lowercase is None else Cleaning(lowercase)
    if family == "any" and config.get("remove_space") is True:
        default = Cleaning(lowercase=False)
    both = (True, False)
    allowed = (both, both, (True,)) if default else ((False,), (True,), (False,))
    for key, expected in zip(("do_lower_case", "keep_accents", "remove_space"), allowed, strict=True):
        check_value(CONFIG, key, config.get(key), None, *expected)
    if default is None:
        return None
    return Cleaning(*(default if config.get(key) is None else config[key] for key, default in
                      (("do_lower_case", default.lowercase), ("keep_accents", default.keep_accents))))


def _added(config: dict[str, Any], pieces: list[str], default: list[AddedToken]) -> list[AddedToken]:
    """Lists the tokens that tokenizer_config.json adds to a model. Special ones are matched only if special tokens are
    requested. Others would be matched before the text is split, which is refused."""
    listed = config.get("added_tokens_decoder") or {}
    if not (isinstance(listed, dict) and all(
            re.fullmatch(r"\d{1,9}", key) and isinstance(entry, dict) and isinstance(entry.get("content"), str)
            for key, entry in listed.items())):
        raise UserError(f"added_tokens_decoder of {CONFIG} is not an object of ids and tokens")
    added, names = list(default), [*pieces, *(token.content for token in default)]
    for i, entry in sorted((int(key), entry) for key, entry in listed.items()):
        content = entry["content"]
        if i < len(names) and names[i] == content:
            continue
        if i != len(names) or content in names or not (content and entry.get("special")):
            raise UserError(f"{CONFIG} adds {content[:60]!r} as id {i}, and the model has {len(names):,} pieces; "
                            "expected special tokens that follow them, each id once")
        added.append(AddedToken(content, special=True, normalized=False))
        names.append(content)
    return added


DEFINITIONS = {f"sentencepiece_{algorithm}": TokenizerDef(
    partial(sentence_piece.train, algorithm), load, sentence_piece.RULES, trained._replace(exact_size=True),
    lowercase=False if algorithm == "t5" else None) for algorithm, trained in {
        "unigram": Trained(SPECIALS), "bpe": Trained(SPECIALS), "xlnet": Trained(XLNET_SPECIALS, len(XLNET_SYMBOLS)),
        "t5": Trained(T5_SPECIALS, SENTINELS, sentinels=SENTINELS)}.items()}
