"""SentencePiece models as they are published: whose they are, and what that says of how text is read.

A tokenizer_config.json (tokenizer_class) or the network's config.json (model_type) beside a model says whose it is;
of a model alone, its special tokens tell: [CLS] [SEP] [MASK] are ALBERT's, <cls> <sep> <eod> XLNet's, and the ids
<pad> 0, </s> 1 and <unk> 2 T5's. Any other model is read as it stands, with the special tokens that it says it has.
"""

import re
from pathlib import Path
from typing import Any

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import spiece_model
from lmrep.data.tokenizers.base import CONFIG, Added
from lmrep.data.tokenizers.files import read_bytes, read_json
from lmrep.data.tokenizers.sentence_piece import FAMILIES, SENTINELS, Cleaning, SentencePiece, sentinels

NAMES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
NETWORKS = ("albert", "xlnet", "t5")  # what a config.json may say


def load(path: Path, config: dict[str, Any], names: dict[str, str]) -> SentencePiece:
    """The tokenizer of a SentencePiece model.

    Args:
      path: the model.
      config: tokenizer_config.json beside it, or {}.
      names: role -> name, of what files beside it name.

    Raises:
      UserError: it is no such model, or read by rules that are none of ours.
    """
    model = read_bytes(path, "a SentencePiece model")
    try:
        facts = spiece_model.read(model)
        whose = _family(path.with_name("config.json"), config, facts.tokens)
        specials = FAMILIES[whose].specials
        if whose == "albert":  # whose files call [CLS] and [SEP] bos and eos too
            names = {role: name for role, name in names.items() if role in specials}
        if whose == "any" and config.get("tokenizer_class") != FAMILIES[whose].name:  # whose own files name them all
            specials = facts.specials
        added = _added(config, facts.tokens, _sentinels(config) if whose == "t5" else [])
        return SentencePiece(model, specials | names, _cleaning(config, whose), added)
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _family(network: Path, config: dict[str, Any], pieces: list[str]) -> str:
    """Whose model it is: a key of FAMILIES."""
    name = config.get("tokenizer_class")
    known = {family.name: whose for whose, family in FAMILIES.items()}
    if isinstance(name, str) and name.removesuffix("Fast") in known:
        return known[name.removesuffix("Fast")]
    if name not in (None, "PreTrainedTokenizerFast", "TokenizersBackend"):
        raise UserError(f"tokenizer_class of {CONFIG} is {str(name)[:60]}, which would cut text otherwise; expected "
                        f"{', '.join(known)}")
    kind = read_json(network).get("model_type") if network.exists() else None
    if kind not in (None, *NETWORKS):
        raise UserError(f"model_type of config.json is {str(kind)[:60]}, whose tokenizer is not known here; expected "
                        f"{', '.join(NETWORKS)}, or a {CONFIG} with a tokenizer_class of {', '.join(known)}")
    if kind is not None:
        return kind
    if pieces[:3] == ["<pad>", "</s>", "<unk>"]:
        return "t5"
    return next((name for name, each in FAMILIES.items() if each.marks and set(each.marks) <= set(pieces)), "any")


def _cleaning(config: dict[str, Any], whose: str) -> Cleaning | None:
    """What the keys do_lower_case, keep_accents and remove_space say, or else the family."""
    usual = FAMILIES[whose].cleaning
    if whose == "any" and config.get("remove_space") is True:
        usual = Cleaning(lowercase=False)
    both = (True, False)
    allowed = (both, both, (True,)) if usual else ((False,), (True,), (False,))
    for key, wanted in zip(("do_lower_case", "keep_accents", "remove_space"), allowed, strict=True):
        value = config.get(key)
        if value is not None and not any(value is each for each in wanted):
            raise UserError(f"{key} of {CONFIG} is {str(value)[:60]}, which would cut text otherwise; expected "
                            f"{' or '.join(map(str, wanted))}")
    if usual is None:
        return None
    return Cleaning(*(default if config.get(key) is None else config[key] for key, default in
                      (("do_lower_case", usual.lowercase), ("keep_accents", usual.keep_accents))))


def _sentinels(config: dict[str, Any]) -> list[Added]:
    number = config.get("extra_ids", SENTINELS)
    if type(number) is not int or not 0 <= number <= 10**5:
        raise UserError(f"extra_ids of {CONFIG} is {str(number)[:60]}; expected a number of tokens")
    return sentinels(number)


def _added(config: dict[str, Any], pieces: list[str], usual: list[Added]) -> list[Added]:
    """The pieces that tokenizer_config.json adds to a model's. Those that it adds as special are found in a text only
    where special tokens are asked for; others would be found before the rules cut the text, which is refused."""
    listed = config.get("added_tokens_decoder") or {}
    if not (isinstance(listed, dict) and all(re.fullmatch(r"\d{1,9}", key) and isinstance(each, dict)
                                             and isinstance(each.get("content"), str) for key, each in listed.items())):
        raise UserError(f"added_tokens_decoder of {CONFIG} is no record of ids and their pieces")
    found, known = list(usual), {*pieces, *(each.content for each in usual)}
    for i, each in sorted((int(key), each) for key, each in listed.items()):
        content = each["content"]
        names = [*pieces, *(other.content for other in found)]
        if i < len(names) and names[i] == content:
            continue
        if i != len(names) or content in known or not (content and each.get("special")):
            raise UserError(f"{CONFIG} adds {content[:60]!r} as id {i}, and the model has {len(names):,} pieces; "
                            "expected special tokens that follow them, each id once")
        found.append(Added(content, special=True, normalized=False))
        known.add(content)
    return found
