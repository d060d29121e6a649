"""Precision, recall and F1 of entities, and the accuracy of tokens, from tags such as B-PER, I-PER and O.

`entity_*` count as seqeval does (Nakayama 2018). In strict mode tags that break their scheme, for example an I- with
nothing before it in IOB2, are no entity. `conll_*` count as `conlleval`, the script of CoNLL-2000 and CoNLL-2003 (Tjong
Kim Sang and Buchholz 2000), which lets such a tag begin an entity. On imperfect predictions the two differ.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import UserError

# seqeval's names of schemes
SCHEMES = ("IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU")
ALIASES = {"BIO": "IOB2", "BIOES": "IOBES"}

Tags = Sequence[Sequence[str]]


def entity_sums(gold: Tags, predicted: Tags, scheme: str = "IOB2", strict: bool = True) -> np.ndarray:
    """Counts correct, gold and predicted entities of each sequence as seqeval does, float64 [n, 3]. An entity is
    correct if its type and its boundaries are.

    Args:
      gold, predicted: a list of tags for each sequence.
      scheme: of the tags: IOB1, IOB2 (or BIO), IOE1, IOE2, IOBES (or BIOES) or BILOU. Not used if `strict` is false.
      strict: False: seqeval's default mode, which repairs tags as `conlleval` does, but knows S- tags too.

    Raises:
      UserError: the numbers of tags differ, or a tag is not in the scheme.
    """
    _check(gold, predicted)
    find = _strict_entities(scheme) if strict else _default_entities
    sets = [(find(a), find(b)) for a, b in zip(gold, predicted, strict=True)]
    return np.asarray([(len(a & b), len(a), len(b)) for a, b in sets], np.float64)


def conll_sums(gold: Tags, predicted: Tags) -> np.ndarray:
    """Counts correct, gold and predicted entities of each sequence as `conlleval` does, float64 [n, 3]."""
    _check(gold, predicted)
    counts = [conll_counts(a, b).values() for a, b in zip(gold, predicted, strict=True)]
    return np.asarray([np.sum([(0, 0, 0), *types], 0) for types in counts], np.float64)


def token_sums(gold: Tags, predicted: Tags) -> np.ndarray:
    """Counts correct tags and all tags of each sequence, float64 [n, 2]; O counts as any other tag."""
    _check(gold, predicted)
    return np.asarray([(sum(map(str.__eq__, a, b)), len(a)) for a, b in zip(gold, predicted, strict=True)], np.float64)


class _Tag(NamedTuple):
    prefix: str
    type: str


def conll_counts(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, np.ndarray]:
    """Counts correct, gold and predicted entities of a sequence by type, as `conlleval` does.

    An entity begins at B, at I or E after O or E, and wherever the type changes; it ends at O, before B, after E, and
    wherever the type changes. The script does not know S: two S of one type in a row are one entity, as are E and B.

    Returns:
      {type: int64 [3]}
    """
    counts: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(3, np.int64))
    last_gold = last_predicted = _Tag("O", "")
    matching = False  # whether gold and prediction are inside one entity that began together
    for tags in [*zip(gold, predicted, strict=True), ("O", "O")]:
        now_gold, now_predicted = (_Tag(*tag.partition("-")[::2]) for tag in tags)
        ends = _ends(last_gold, now_gold), _ends(last_predicted, now_predicted)
        if matching and all(ends) and last_gold.type == last_predicted.type:
            matching = False
            counts[last_gold.type][0] += 1
        elif ends[0] != ends[1] or now_gold.type != now_predicted.type:
            matching = False
        starts = _starts(last_gold, now_gold), _starts(last_predicted, now_predicted)
        matching |= all(starts) and now_gold.type == now_predicted.type
        for column, begins, tag in ((1, starts[0], now_gold), (2, starts[1], now_predicted)):
            if begins:
                counts[tag.type][column] += 1
        last_gold, last_predicted = now_gold, now_predicted
    return dict(counts)


def _ends(last: _Tag, now: _Tag) -> bool:
    """Tells whether an entity ends between two tags."""
    return ((last.prefix in ("B", "I") and now.prefix in ("B", "O"))
            or (last.prefix == "E" and now.prefix in ("E", "I", "O"))
            or (last.prefix not in ("O", ".") and last.type != now.type)
            or last.prefix in ("[", "]"))


def _starts(last: _Tag, now: _Tag) -> bool:
    """Tells whether an entity starts at the second of two tags."""
    return ((last.prefix in ("B", "I", "O") and now.prefix == "B")
            or (last.prefix in ("O", "E") and now.prefix in ("I", "E"))
            or (now.prefix not in ("O", ".") and last.type != now.type)
            or now.prefix in ("[", "]"))


def scheme_name(scheme: str) -> str:
    """Returns seqeval's name of a scheme. Raises UserError if there is none."""
    name = ALIASES.get(scheme.upper(), scheme.upper())
    if name not in SCHEMES:
        raise UserError(f"there is no scheme {scheme!r}; there are {', '.join([*SCHEMES, *ALIASES])}")
    return name


def _strict_entities(scheme: str) -> Callable[[Sequence[str]], set]:
    """Returns a function that finds the set of entities in a sequence's tags, in strict mode."""
    from seqeval import scheme as schemes

    name = scheme_name(scheme)
    token = getattr(schemes, name)

    def find(tags):
        try:
            return set(schemes.Tokens(list(tags), token, sent_id=0).entities)
        except (ValueError, KeyError, IndexError):
            allowed = [prefix for prefix in "BIOESLU" if schemes.Prefixes[prefix] in token.allowed_prefix]
            invalid = next(tag for tag in tags if tag[:1] not in allowed)
            raise UserError(f"the tag {invalid!r} is not of the scheme {name}, whose tags begin with "
                            f"{', '.join(allowed)}; choose another scheme, or leave strict mode") from None

    return find


def _default_entities(tags: Sequence[str]) -> set:
    from seqeval.metrics.sequence_labeling import get_entities

    with warnings.catch_warnings(action="ignore"):  # one for each tag without prefix
        return set(get_entities(list(tags)))


def _check(gold: Tags, predicted: Tags) -> None:
    for number, (a, b) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(a) != len(b):
            raise UserError(f"sequence {number:,} has {len(a)} gold and {len(b)} predicted tags; expected one for each "
                            "token")
