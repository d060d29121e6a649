"""Classes and tags that a model cannot predict: of training data they are refused, of other data they are errors."""

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
    """Refuses training data with a class or tag that the config's `labels` lack. Arguments as of `report`."""
    known = {*labels}
    for record in records:
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
      labels: those that it predicts.
      records: of a split.
      describe: the beginning of a message about the label of that number of a record.
      labels_of: the labels of a record; () where it has none.
    """
    known, unseen, total = {*labels}, [], 0
    for record in records:
        given = labels_of(record)
        total += len(given)
        unseen += [(record, i, label) for i, label in enumerate(given) if label not in known]
    if unseen:
        record, i, label = unseen[0]
        log.warning("%s, which the training data lacks: %s of %s labels here are such; they count as errors in "
                    "metrics, and the loss leaves them out%s", describe(record, i), f"{len(unseen):,}", f"{total:,}",
                    suggestion(label, labels))
