"""Classes and tags that a model cannot predict: training data with them is refused; elsewhere they count as errors."""

import logging
from collections.abc import Callable, Iterable, Sequence

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.data.records.values import listed

log = logging.getLogger(__name__)


def check(
    labels: Sequence[str], records: Iterable[Record], describe: Callable[[Record, int], str],
    labels_of: Callable[[Record], Sequence[str]]
) -> None:
    """Raises UserError for training data with a class or tag that the config's `labels` lack; () accepts any. Arguments
    are those of `report`."""
    known = {*labels}
    for record in records if labels else ():
        for i, label in enumerate(labels_of(record)):
            if label not in known:
                raise UserError(f"{describe(record, i)}, and config.objective.labels has {listed(labels)}"
                                f"; correct it, or list all labels{suggestion(label, labels)}")


def report(
    labels: Sequence[str], records: Iterable[Record], describe: Callable[[Record, int], str],
    labels_of: Callable[[Record], Sequence[str]]
) -> None:
    """Warns of classes or tags that the training data lacks, and that a model cannot predict.

    Args:
      labels: the classes or tags that the model predicts.
      records: of a split.
      describe: (record, number of a label in it) -> the beginning of a message.
      labels_of: record -> its labels; () if it has none.
    """
    known, unseen, total = {*labels}, [], 0
    for record in records:
        gold = labels_of(record)
        total += len(gold)
        unseen += [(record, i, label) for i, label in enumerate(gold) if label not in known]
    if unseen:
        record, i, label = unseen[0]
        log.warning("%s, which the training data lacks: %s of %s labels here are such; they count as errors in "
                    "metrics, and the loss leaves them out%s", describe(record, i), f"{len(unseen):,}", f"{total:,}",
                    suggestion(label, labels))
