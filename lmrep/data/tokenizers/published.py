"""Tokenizers from the files of published directories.

    spiece.model                    SentencePiece: ALBERT's, XLNet's, T5's (`spiece_files.py`)
    vocab.txt                       WordPiece: BERT's
    vocab.json, merges.txt          byte-level BPE: RoBERTa's, GPT-2's
    encoder.json, vocab.bpe         the same: GPT-2's own names
    vocab.json, merges.txt          BPE with "</w>": GPT's
    encoder_bpe_40000.json, vocab_40000.bpe  the same: GPT's own names
    dict.txt beside GPT-2's         fairseq's RoBERTa: GPT-2's pieces (encoder.json and vocab.bpe, or vocab.json and
                                    merges.txt) in the order of its dictionary
    tokenizer.json                  WordPiece, BPE or byte-level BPE, where there is none of the above

tokenizer.json and tokenizer_config.json beside a vocabulary give the case, and pieces that were added; the latter and
special_tokens_map.json, what special tokens are called. Whatever in them would cut text otherwise than our rules is
refused by name; but <mask> always takes the space before it, as in RoBERTa's own code, and words of BERT's of up to 100
characters are cut where no tokenizer.json gives another number, as other libraries do. Nothing in a file is trusted:
what does not fit gives a UserError.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import bpe, byte_level, spiece_files, wordpiece
from lmrep.data.tokenizers.base import CONFIG, Added, Tokenizer
from lmrep.data.tokenizers.bpe import Bpe
from lmrep.data.tokenizers.byte_level import ByteLevel
from lmrep.data.tokenizers.files import read_json, read_lines, special_names
from lmrep.data.tokenizers.wordpiece import PUBLISHED_LONGEST, WordPiece

JSON = "tokenizer.json"
# Classes of other libraries that cut text by our rules. Others with the same files cut words otherwise.
CLASSES = {"wordpiece": ("Bert", "Electra", "DistilBert"), "bpe": ("OpenAIGPT",),
           "byte_level_bpe": ("Roberta", "GPT2", "Bart", "Longformer")}
# What may hold a vocabulary of BPE, and what its merges.
VOCABULARIES, MERGES = ("encoder.json", "encoder_bpe_40000.json"), ("merges.txt", "vocab.bpe", "vocab_40000.bpe")


def load(directory: str | Path, vocab: str = "vocab.json") -> Tokenizer:
    """The tokenizer of a published directory, or of one that `Tokenizer.save` wrote.

    A vocab.txt without files that give its case is lower-cased, as other libraries take it to be.

    Args:
      directory: that holds its files.
      vocab: the name that vocab.json has there, or the model of SentencePiece.

    Raises:
      UserError: there is no tokenizer, its files are malformed, or its rules are none of ours.
    """
    directory = Path(directory)
    has = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    found = _load(directory, has, vocab)
    extra = read_json(directory / "added_tokens.json") if "added_tokens.json" in has else {}
    if missing := sorted(extra.keys() - set(found.tokens)):
        raise UserError(f"{directory / 'added_tokens.json'} adds {missing[0][:60]!r}, and no {JSON} tells how that is "
                        f"found in a text; save the tokenizer with its {JSON}")
    return found


def _load(directory: Path, has: set[str], vocab: str) -> Tokenizer:
    facts = _with_type(read_json(directory / JSON)) if JSON in has else {}
    config = read_json(directory / CONFIG) if CONFIG in has else {}
    names = special_names(directory, config)
    if model := next((name for name in (vocab, *spiece_files.NAMES) if name in has and name.endswith(".model")), None):
        return spiece_files.load(directory / model, config, names)
    if "vocab.txt" in has:
        path = directory / "vocab.txt"
        return _wordpiece(path, read_vocabulary(path, wordpiece.SPECIALS | _five(names)), facts, config, names)
    if file := next((name for name in (vocab, *VOCABULARIES) if name in has), None):
        path = directory / file
        ids, source = read_json(path), directory / next((name for name in MERGES if name in has), MERGES[0])
        merges = read_lines(source, "the merges that belong to the vocabulary")
        if "dict.txt" in has and byte_level.SPECIALS["mask"] not in ids:
            return _fairseq(directory / "dict.txt", path, _pieces(path, ids), merges, source)
        return _of_merges(path, ids, merges, source, facts, config, names)
    model = facts.get("model")
    if isinstance(model, dict) and isinstance(model.get("vocab"), dict):
        path = directory / JSON
        if model.get("type") == "WordPiece":
            return _wordpiece(path, _extended(path, model["vocab"], facts), facts, config, names)
        if model.get("type") == "BPE" and isinstance(model.get("merges"), list):
            return _of_merges(path, model["vocab"], model["merges"], path, facts, config, names)
    if facts:
        raise UserError(f"{directory / JSON}: its model is {_kind(model)}; expected WordPiece as BERT's or BPE as "
                        "GPT's or RoBERTa's, with its vocabulary, or the spiece.model of SentencePiece")
    raise UserError(f"no tokenizer in {directory}; expected vocab.txt, vocab.json with merges.txt, encoder.json with "
                    f"vocab.bpe, spiece.model, or {JSON}")


# The kinds


def _five(names: dict[str, str]) -> dict[str, str]:
    """Those of the roles of BERT and RoBERTa. Both also call [CLS] and [SEP] bos and eos."""
    return {role: name for role, name in names.items() if role in wordpiece.SPECIALS}


def _wordpiece(path: Path, pieces: list[str], facts: dict, config: dict, names: dict[str, str]) -> WordPiece:
    """From the pieces (of vocab.txt, or all of them) and what else the directory says."""
    lowercase, longest, specials = True, PUBLISHED_LONGEST, wordpiece.SPECIALS | _five(names)
    if facts:
        source = path.with_name(JSON)
        normalizer, model = facts.get("normalizer"), facts.get("model")
        _expect(source, "normalizer", normalizer, "BertNormalizer", clean_text=True, handle_chinese_chars=True)
        _expect(source, "pre_tokenizer", facts.get("pre_tokenizer"), "BertPreTokenizer")
        _expect(source, "model", model, "WordPiece", continuing_subword_prefix="##",
                unk_token=specials["unk"])
        lowercase, longest = normalizer.get("lowercase", True), model.get("max_input_chars_per_word", 100)
        if not isinstance(lowercase, bool) or type(longest) is not int or not 0 < longest < 2**31:
            raise UserError(f"{source}: its lowercase is {lowercase!r} and its max_input_chars_per_word {longest!r}; "
                            "expected true or false, and a number of characters")
        _one_of(source, "strip_accents", normalizer.get("strip_accents"), None, lowercase)
    lowercase = config.get("do_lower_case", lowercase)
    source = path.with_name(CONFIG)
    _of_class(source, config, "wordpiece")
    _one_of(source, "do_lower_case", lowercase, True, False)
    _one_of(source, "strip_accents", config.get("strip_accents"), None, lowercase)
    _one_of(source, "tokenize_chinese_chars", config.get("tokenize_chinese_chars"), None, True)
    _one_of(source, "do_basic_tokenize", config.get("do_basic_tokenize"), None, True)
    if path.name != JSON and facts:
        _agree(path, {piece: i for i, piece in enumerate(pieces)}, facts["model"])
        pieces = _extended(path, {piece: i for i, piece in enumerate(pieces)}, facts)
    _check_specials(path, pieces, specials, "BERT's")
    if odd := [piece for piece in pieces if not piece or piece != piece.strip() or len(piece.splitlines()) > 1]:
        raise UserError(f"{path}: {odd[0][:60]!r} is among its pieces; expected none that is empty, begins or ends "
                        "with white space or has lines")
    if not facts and "do_lower_case" not in config:  # nothing says whether it is cased
        refuse_capitals(path, pieces, 'a cased vocabulary needs a tokenizer_config.json with "do_lower_case": false')
    return WordPiece(pieces, lowercase, longest, _added(facts, specials), specials)


def refuse_capitals(path: str | Path, pieces: Sequence[str], mend: str) -> None:
    """Raises UserError for a vocabulary to lower-case text for, of which much has capitals."""
    cased = sum(piece != piece.lower() for piece in pieces if piece not in wordpiece.SPECIALS.values())
    if cased > max(2, len(pieces) // 20):  # a few are no sign in a vocabulary of a dozen
        raise UserError(f"{path}: {cased:,} of {len(pieces):,} pieces have capitals, which lower-cased text never "
                        f"reaches; {mend}")


def _of_merges(path: Path, ids: dict, merges: list, source: Path, facts: dict, config: dict,
               names: dict[str, str]) -> Bpe | ByteLevel:
    """From a vocabulary piece -> id, the merges of the file `source`, and what else the directory says."""
    kind = _bpe if any(piece.endswith(bpe.END) for piece in ids) else _byte_level
    return kind(path, ids, merges, source, facts, config, names)


def _bpe(path: Path, ids: dict, merges: list, source: Path, facts: dict, config: dict, names: dict[str, str]) -> Bpe:
    """GPT's. One that has none of RoBERTa's special tokens but <unk> has that, GPT's line break if it is there, and
    what the directory names."""
    if facts:
        place, normalizer = path.with_name(JSON), facts.get("normalizer")
        _expect(place, "normalizer", normalizer, "BertNormalizer", clean_text=True, handle_chinese_chars=True,
                lowercase=True)
        _one_of(place, "strip_accents", normalizer.get("strip_accents"), None, True)
        _expect(place, "pre_tokenizer", facts.get("pre_tokenizer"), "BertPreTokenizer")
        _expect_plain(place, facts.get("model"), "continuing_subword_prefix")
        _expect(place, "model", facts["model"], "BPE", end_of_word_suffix=bpe.END)
        _agree(path, ids, facts["model"])
    _of_class(path.with_name(CONFIG), config, "bpe")
    _one_of(path.with_name(CONFIG), "do_lower_case", config.get("do_lower_case"), None, True)
    pieces = _extended(path, ids, facts)
    gpt = not (set(bpe.SPECIALS.values()) - {bpe.GPT["unk"]}) & set(pieces)
    own = {role: name for role, name in bpe.GPT.items() if role == "unk" or name in ids}
    specials = own | names if gpt else bpe.SPECIALS | _five(names)
    _check_specials(path, pieces, specials, "GPT's" if gpt else "those that are trained here")
    if facts:
        _expect(path.with_name(JSON), "model", facts["model"], "BPE", unk_token=specials["unk"])
    return Bpe(pieces, _merges(source, merges, set(pieces)), _added(facts, specials), specials)


def _byte_level(path: Path, ids: dict, merges: list, source: Path, facts: dict, config: dict,
                names: dict[str, str]) -> ByteLevel:
    """RoBERTa's or GPT-2's. One that has GPT-2's special token and none of RoBERTa's has that alone, and what the
    directory names."""
    if facts:
        place = path.with_name(JSON)
        _one_of(place, "normalizer", _kind(facts.get("normalizer")), "none")
        _expect(place, "pre_tokenizer", facts.get("pre_tokenizer"), "ByteLevel", add_prefix_space=False,
                use_regex=True)
        _expect_plain(place, facts.get("model"), "continuing_subword_prefix", "end_of_word_suffix")
    _of_class(path.with_name(CONFIG), config, "byte_level_bpe")
    _one_of(path.with_name(CONFIG), "add_prefix_space", config.get("add_prefix_space"), None, False)
    if facts:
        _agree(path, ids, facts["model"])
    pieces = _extended(path, ids, facts)
    gpt2 = set(byte_level.GPT2.values()) <= set(pieces) and not set(byte_level.SPECIALS.values()) & set(pieces)
    specials = byte_level.GPT2 | names if gpt2 else byte_level.SPECIALS | _five(names)
    _check_specials(path, pieces, specials, "GPT-2's" if gpt2 else "RoBERTa's")
    return ByteLevel(pieces, _merges(source, merges, set(pieces)), _added(facts, specials), specials)


def _agree(path: Path, ids: dict, model: dict) -> None:
    """Raises UserError where tokenizer.json gives other ids than the vocabulary beside it."""
    other = model.get("vocab")
    wrong = [piece for piece, i in other.items() if ids.get(piece, i) != i] if isinstance(other, dict) else []
    if wrong:
        raise UserError(f"{path} and {path.with_name(JSON)} give {str(wrong[0])[:60]!r} different ids; keep the one "
                        "that is the model's")


def _fairseq(path: Path, vocab: Path, gpt2: list[str], merges: list, source: Path) -> ByteLevel:
    """fairseq numbers <s> <pad> </s> <unk>, then the lines "GPT-2's-id count" of dict.txt, then <mask>."""
    s = byte_level.SPECIALS
    pieces = [s["cls"], s["pad"], s["sep"], s["unk"]]
    for number, line in enumerate(read_lines(path), 1):
        symbol, space, count = line.rpartition(" ")
        if not (space and symbol and count.isdecimal()):
            raise UserError(f"{path}, line {number} is {line[:60]!r}; expected a symbol and its count")
        if symbol.isdecimal() and len(symbol) < 10:
            if int(symbol) >= len(gpt2):
                raise UserError(f"{path}, line {number}: {vocab} has no piece {symbol}; expected GPT-2's own")
            symbol = gpt2[int(symbol)]
        pieces.append(symbol)
    pieces.append(s["mask"])
    if len(set(pieces)) != len(pieces):
        raise UserError(f"{path} has a piece twice; expected each once")
    return ByteLevel(pieces, _merges(source, merges, set(pieces)))


# Pieces and merges


def read_vocabulary(path: str | Path, specials: dict[str, str] = wordpiece.SPECIALS) -> list[str]:
    """The pieces of a vocab.txt, one a line, id i on line i + 1, `specials` (role -> name) among them. Raises UserError
    naming the line that is wrong."""
    pieces = [line.strip() for line in read_lines(path, "a vocab.txt, one piece a line")]
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, 1):
        if not piece:
            raise UserError(f"{path}, line {number} is empty; expected one piece a line")
        if piece in seen:
            raise UserError(f"{path}, line {number}: {piece[:60]!r} stands on line {seen[piece]} already; expected "
                            "each piece once")
        seen[piece] = number
    missing = [name for name in specials.values() if name not in seen]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} on none of its {len(pieces):,} lines; expected BERT's vocab.txt "
                        f"with {' '.join(specials.values())}")
    return pieces


def _pieces(path: Path, ids: dict) -> list[str]:
    """piece -> id, as a list."""
    found: list[str | None] = [None] * len(ids)
    for piece, i in ids.items():
        if type(i) is not int or not 0 <= i < len(ids) or found[i] is not None:
            raise UserError(f"{path}: {piece[:60]!r} has id {str(i)[:40]}; expected each id from 0 to {len(ids) - 1:,} "
                            "once")
        found[i] = piece
    return found


def _extended(path: Path, ids: dict, facts: dict) -> list[str]:
    """The pieces of a vocabulary piece -> id and those that tokenizer.json adds to it."""
    ids = dict(ids)
    for each in _added_tokens(path.with_name(JSON), facts):
        content, i = each["content"], each.get("id")
        if ids.setdefault(content, i) != i:
            raise UserError(f"{path.with_name(JSON)} adds {content[:60]!r} as id {str(i)[:40]}, which has id "
                            f"{ids[content]}; expected one id a piece")
    return _pieces(path, ids)


def _added_tokens(path: Path, facts: dict) -> list[dict]:
    tokens = facts.get("added_tokens") or []
    if not isinstance(tokens, list):
        tokens = [tokens]
    for each in tokens:
        if not (isinstance(each, dict) and isinstance(each.get("content"), str) and each["content"]):
            raise UserError(f"{path}: {str(each)[:60]} among its added_tokens; expected records with content and id")
    return tokens


def _added(facts: dict, specials: dict[str, str]) -> list[Added]:
    names = [name for name in Added.__dataclass_fields__ if name != "content"]
    return [Added(each["content"], **{name: bool(each.get(name, name == "normalized")) for name in names})
            for each in _added_tokens(Path(JSON), facts) if each["content"] not in specials.values()]


def _check_specials(path: Path, pieces: Sequence[str], specials: dict[str, str], whose: str) -> None:
    missing = [name for name in specials.values() if name not in set(pieces)]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} is none of its {len(pieces):,} pieces; expected {whose}, with "
                        f"{' '.join(specials.values())}")


def _merges(path: Path, merges: Iterable, pieces: set[str]) -> list[tuple[str, str]]:
    """Pairs, from lines "a b" or lists [a, b]."""
    found = []
    for number, merge in enumerate(merges, 1):
        if number == 1 and isinstance(merge, str) and merge.startswith("#version"):
            continue
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
                and " ".join(pair).split() == pair):
            raise UserError(f"{path}, merge {number} is {str(merge)[:60]!r}; expected two pieces")
        if lacking := [piece for piece in (*pair, "".join(pair)) if piece not in pieces]:
            raise UserError(f"{path}, merge {number}: {lacking[0][:60]!r} is no piece of the vocabulary; expected the "
                            "merges that belong to it")
        found.append(tuple(pair))
    return found


# What differs from our rules


def _with_type(facts: dict) -> dict:
    """Older versions of the library did not write which kind a model is of, only its fields."""
    model = facts.get("model")
    if not isinstance(model, dict) or "type" in model:
        return facts
    kind = "BPE" if "merges" in model else "WordPiece" if "max_input_chars_per_word" in model else "of no type"
    return facts | {"model": {"type": kind, **model}}


def _kind(part: Any) -> str:
    if not isinstance(part, dict):
        return "none" if part is None else "no record"
    return str(part.get("type", "of no type"))[:60]


def _expect(path: Path, name: str, part: Any, kind: str, **wanted: Any) -> None:
    """Refuses a part of tokenizer.json of another kind, or with another value of a field."""
    if _kind(part) != kind:
        raise UserError(f"{path}: its {name} is {_kind(part)}, which would cut text otherwise; expected {kind}")
    for field, value in wanted.items():
        if part.get(field, value) != value:
            raise UserError(f"{path}: {field} of its {name} is {str(part[field])[:60]}, which would cut text "
                            f"otherwise; expected {value}")


def _expect_plain(path: Path, model: Any, *fields: str) -> None:
    """Refuses a model that is not BPE, or one with other values of `fields`, or of any other, than BPE itself has."""
    _expect(path, "model", model, "BPE")
    for name in ("dropout", *fields, "fuse_unk", "byte_fallback", "ignore_merges"):
        if model.get(name):
            raise UserError(f"{path}: its model's {name} is {repr(model[name])[:60]}, which would cut text otherwise; "
                            "expected none")


def _one_of(path: Path, name: str, value: Any, *wanted: Any) -> None:
    if not any(value is each or (value == each and isinstance(value, str)) for each in wanted):
        raise UserError(f"{path}: its {name} is {str(value)[:60]}, which would cut text otherwise; expected "
                        f"{' or '.join(map(str, wanted))}")


def _of_class(path: Path, config: dict, kind: str) -> None:
    name = config.get("tokenizer_class")
    known = [f"{stem}Tokenizer{end}" for stem in CLASSES[kind] for end in ("", "Fast")]
    if name is not None and name not in (*known, "PreTrainedTokenizerFast", "TokenizersBackend"):
        raise UserError(f"{path}: its tokenizer_class is {str(name)[:60]}, which would cut text otherwise; expected "
                        f"{known[0]}")
