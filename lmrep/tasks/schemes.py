"""Schemes of tags that mark entities, such as B-PER, I-PER and O: the tags that may follow each other, conversion, and
the most probable sequence of tags that a scheme allows."""

import logging
import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.data.records.values import listed, short
from lmrep.layers.crf import Allowed

OUTSIDE = "O"
# scheme -> the prefixes of its tags: for the first word of an entity, a further word, the last word and the only word
PREFIXES = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES", "BILOU": "BILU"}
ENTITY_TAG = re.compile("O|[BIESLU](-.+)?")
HINT = "set --config.objective.scheme=none if the tags mark no entities"

log = logging.getLogger(__name__)


def follows(scheme: str, last: str, tag: str) -> bool:
    """Tells whether `tag` may follow `last` in a sentence; the tag before and after a sentence is "O".

    BIO: I- continues an entity of its type. IOB1: I- begins one too, and B- stands only where an entity follows
    another of its type. BIOES, BILOU: B- is followed by I- or the end of its type; a single word is S- or U-.
    """
    (before, last_type), (prefix, type_) = _split(last), _split(tag)
    same = last_type == type_ and before != OUTSIDE and prefix != OUTSIDE
    if scheme == "BIO":
        return prefix != "I" or same
    if scheme == "IOB1":
        return prefix != "B" or same
    is_open, continues = before in "BI", prefix in "IEL"
    return is_open == continues and (same or not continues)


def allowed(scheme: str, labels: Sequence[str]) -> Allowed:
    """Tells which tags may begin a sentence, follow each other and end a sentence: all, for the scheme "none"."""
    def may(last: str, tag: str) -> bool:
        return scheme == "none" or follows(scheme, last, tag)

    return Allowed(np.array([may(OUTSIDE, tag) for tag in labels]),
                   np.array([[may(last, tag) for tag in labels] for last in labels]),
                   np.array([may(tag, OUTSIDE) for tag in labels]))


def belongs(scheme: str, tag: str) -> bool:
    """Tells whether a tag is in the scheme."""
    return ENTITY_TAG.fullmatch(tag) is not None and tag[0] in (OUTSIDE + PREFIXES[scheme])


def convert(scheme: str, tags: Sequence[str]) -> list[str]:
    """Converts tags of any scheme, or of a mixture, to `scheme`. Entities are those that `conlleval` finds: B-, S- and
    U- begin one, and so does another tag that does not continue one of its type; E-, L-, S- and U- end it. A tag that
    is in no scheme is the type of an entity."""
    split = [_split(tag) for tag in tags]
    converted = list(tags)
    for i, (prefix, type_) in enumerate(split):
        if prefix == OUTSIDE:
            continue
        before, after = split[i - 1] if i else (OUTSIDE, ""), split[i + 1] if i + 1 < len(split) else (OUTSIDE, "")
        beside = before[0] != OUTSIDE and before[1] == type_
        first = not _continues(before, split[i])
        last = not _continues(split[i], after)
        begin, inside, *ends = PREFIXES[scheme]
        if ends and (first or last):
            prefix = ends[1] if first and last else begin if first else ends[0]
        else:
            prefix = begin if first and (scheme != "IOB1" or beside) else inside
        converted[i] = f"{prefix}-{type_}" if type_ else prefix
    return converted


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns (type, first word, word after the last) of the entities that `conlleval` finds in tags of any scheme."""
    spans: list[tuple[str, int, int]] = []
    for i, tag in enumerate(convert("BIO", tags)):
        prefix, type_ = _split(tag)
        if prefix == "B":
            spans.append((type_, i, i + 1))
        elif prefix == "I":
            spans[-1] = (type_, spans[-1][1], i + 1)
    return spans


def changed(scheme: str, tags: Sequence[str]) -> list[int]:
    """Returns the words whose tags the scheme does not have, or does not allow there: those that `convert` changes."""
    return [i for i, (tag, other) in enumerate(zip(tags, convert(scheme, tags), strict=True)) if tag != other]


def _continues(last: tuple[str, str], tag: tuple[str, str]) -> bool:
    """Tells whether a tag continues the entity of the tag before it, as `conlleval` reads them."""
    return last[0] in tuple("BI") and tag[0] in tuple("IEL") and last[1] == tag[1]


def detect(records: Sequence[Record]) -> str:
    """Detects the scheme of the tags of records: the one that the fewest tags break, or "none" for tags that mark no
    entities, such as parts of speech.

    Args:
      records: with words and tags.

    Raises:
      UserError: the tags seem to mark entities, and fit no scheme; with file, line and word.
    """
    tags = {tag for record in records for tag in record.fields["tags"]}
    other = not all(map(ENTITY_TAG.fullmatch, tags))
    if not any(tag[:2] in ("B-", "I-") for tag in tags) and (other or OUTSIDE not in tags or not tags & set("BI")):
        return "none"
    for record in records:
        check(record, record.fields["tags"], HINT)
    prefixes = {tag[0] for tag in tags}
    if not any(prefixes <= set(OUTSIDE + known) for known in PREFIXES.values()):
        raise UserError(f"the tags of the training data begin with {listed(sorted(prefixes))}, which is no scheme "
                        f"({', '.join(PREFIXES)}); convert them, or set --config.objective.scheme=none")
    return min(PREFIXES, key=lambda scheme: sum(len(changed(scheme, record.fields["tags"])) for record in records))


def check(record: Record, tags: Sequence[str], hint: str) -> None:
    """Raises UserError, which ends with `hint`, for a tag that is in no scheme."""
    for i, tag in enumerate(tags):
        if not ENTITY_TAG.fullmatch(tag):
            raise UserError(f"{describe(record, i, tag)}, which no scheme of entities has ({', '.join(PREFIXES)}): "
                            f"correct it, or {hint}")


def report(
    scheme: str, records: Sequence[Record], tags_of: Callable[[Record], Sequence[str]], labels: Collection[str] = ()
) -> None:
    """Warns of tags that break the scheme, and says how `convert` reads them.

    Args:
      scheme: a name in `PREFIXES`.
      records: of a split.
      tags_of: record -> its tags in the file.
      labels: the tags that the model predicts; a tag that is read as another one is not counted. (): all are counted.
    """
    invalid, total = [], 0
    for record in records:
        tags = tags_of(record)
        total += len(tags)
        read = convert(scheme, tags)
        invalid += [(record, i, tags, read) for i in changed(scheme, tags) if not labels or read[i] in labels]
    if invalid:
        record, i, tags, read = invalid[0]
        log.warning("%s, which %s does not allow in %s: read as %s, as conlleval does (%s of %s tags)",
                    describe(record, i, tags[i]), scheme, short(" ".join(tags[max(0, i - 1):i + 2])), short(read[i]),
                    f"{len(invalid):,}", f"{total:,}")


def of_labels(labels: Sequence[str]) -> str:
    """Returns the scheme of the tags of a published tagger; "none" for tags that mark no entities. B- and I- alone mean
    BIO."""
    prefixes = {tag[0] for tag in labels if ENTITY_TAG.fullmatch(tag)}
    if not any(tag[:2] in ("B-", "I-") for tag in labels) or not all(map(ENTITY_TAG.fullmatch, labels)):
        return "none"
    return next((scheme for scheme, known in PREFIXES.items() if prefixes <= set(OUTSIDE + known)), "none")


def describe(record: Record, i: int, tag: str) -> str:
    """Returns the beginning of a message about the tag of word i."""
    word = f", {short(record.fields['words'][i])}," if "words" in record.fields else ""
    return f"{record.where_word(i)}: word {i + 1}{word} has the tag {short(tag)}"


@lru_cache(maxsize=4096)
def _split(tag: str) -> tuple[str, str]:
    """Splits a tag into ("B", "PER") or ("O", ""), and a tag x that is in no scheme into ("I", "x")."""
    return (tag[:1], tag[2:]) if ENTITY_TAG.fullmatch(tag) else ("I", tag)


def best_sequence(scores: np.ndarray, labels: Sequence[str], scheme: str) -> np.ndarray:
    """Finds the most probable sequence of tags that a scheme allows (Viterbi, 1967).

    Args:
      scores: float [n, l], the log probability of each tag for each word.
      labels: the l tags.
      scheme: a name in `PREFIXES`.

    Returns:
      int64 [n].
    """
    start, between, end = (np.where(mask, 0.0, -1e9) for mask in allowed(scheme, labels))
    best = scores[0].astype(np.float64) + start  # finite, so that there is a sequence even where labels are missing
    previous = []
    for row in scores[1:]:
        paths = best[:, None] + between
        previous.append(paths.argmax(0))
        best = paths.max(0) + row
    sequence = [int((best + end).argmax())]
    for step in reversed(previous):
        sequence.append(int(step[sequence[-1]]))
    return np.array(sequence[::-1])
