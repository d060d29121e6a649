"""The contract of a task is small."""

from lmrep.tasks.base import TaskDef


def test_a_row_has_at_most_12_fields():
    assert len(TaskDef._fields) <= 12
