"""Classes and tags that a model cannot predict: training data with them is refused; elsewhere they count as errors."""

import logging
from collections.abc import Callable, Iterable, Sequence

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.data.records.values import listed

log = logging.getLogger(__name__)


def report(
    labels: Sequence[str], records: Iterable[Record], describe: Callable[[Record, int], str],
    labels_of: Callable[[Record], Sequence[str]], training: bool = False,
) -> None:
    """Warns of classes or tags that the training data lacks, and that a model cannot predict.

    Args:
      labels: the classes or tags that the model predicts.
      records: of a split.
      describe: (record, number of a label in it) -> the beginning of a message.
      labels_of: record -> its labels; () if it has none.
      training: whether they are the training data, and `labels` those of the config; () accepts any.

    Raises:
      UserError: training data has a class or tag that `labels` lack.
    """
    if training and not labels:
        return
    known, unseen, total = {*labels}, [], 0
    for record in records:
        gold = labels_of(record)
        total += len(gold)
        unseen += [(record, i, label) for i, label in enumerate(gold) if label not in known]
    if unseen:
        record, i, label = unseen[0]
        if training:
            raise UserError(f"{describe(record, i)}, and config.objective.labels has {listed(labels)}; correct it, or "
                            f"list all labels{suggestion(label, labels)}")
        log.warning("%s, which the training data lacks: %s of %s labels here are such; they count as errors in "
                    "metrics, and the loss leaves them out%s", describe(record, i), f"{len(unseen):,}", f"{total:,}",
                    suggestion(label, labels))
