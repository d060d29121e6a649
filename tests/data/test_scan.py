"""A corpus is surveyed once, and later readings must find the same documents; tokenizers are trained on a sample."""

import dataclasses
from collections import Counter
from itertools import chain

import pytest

from lmrep.core import progress
from lmrep.core.errors import RunFault
from lmrep.data import corpora
from lmrep.data.store import scan
from tests.data.test_prepare import texts, write


@pytest.fixture
def scanned_corpus(tmp_path):
    """(its config, a corpus of documents of a line each, its survey)."""
    config = write(tmp_path, texts())
    corpus = corpora.open_corpus(config)
    return config, corpus, scan.survey(corpus, config, lambda line: None)


def test_the_splits_divide_the_documents(scanned_corpus):
    config, corpus, scanned = scanned_corpus
    each = {split: scan.documents(config, split, lambda line: None) for split in corpora.SPLITS}
    taken = {split: list(documents) for split, (_, documents) in each.items()}
    assert sorted(chain(*taken.values())) == sorted(corpus.documents())
    for split, documents in taken.items():
        assert len(documents) == scanned.in_split(split).sum() > 0
        assert sum(map(len, documents)) == scanned.characters(split) == each[split][0]


@pytest.mark.parametrize("change", [lambda each: each[:-1], lambda each: [*each, "One more."], lambda each: each[::-1]])
def test_documents_that_differ_from_the_survey_are_a_fault(scanned_corpus, change):
    _, corpus, scanned = scanned_corpus
    changed = dataclasses.replace(corpus, readers=(
        corpora.Reader("", lambda tally: change(list(corpus.documents()))),))
    with pytest.raises(RunFault, match="changed while it was read"):
        list(scan.reread(changed, scanned))


def test_a_sample_is_of_the_train_split_and_has_the_requested_size(scanned_corpus):
    config, corpus, scanned = scanned_corpus
    _, train = scan.documents(config, "train", lambda line: None)
    train, report = list(train), scan.Report("reading", 10**9, lambda line: None)

    def lines(budget):
        return list(scan.sample(corpus, scanned, budget, False, report))

    size = scanned.characters("train")
    some = lines(size // 4)
    assert lines(size) == train
    assert set(some) < set(train) and 0.1 < len(some) / len(train) < 0.4 and some == lines(size // 4)
    assert Counter(lines(2 * size + size // 4)) == Counter([*train, *train, *some])


def test_progress_reports_the_time_left(monkeypatch):
    clock, lines = iter([0.0, 1.0, 4.0, 5.0, 8.0]), []
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    report = scan.Report("tokenizing", 10_000_000, lines.append)
    for _ in range(4):
        report.add(2_000_000)
    assert lines == ["tokenizing: 4.0 of 10.0 million characters, 0:06 left",
                     "tokenizing: 8.0 of 10.0 million characters, 0:02 left"]
    assert [scan.describe_amount(*each) for each in ((1234,), (1234, 54321), (1234567,))] == [
        "1,234 characters", "1,234 of 54,321 characters", "1.2 million characters"]


def test_continued_work_reports_the_rate_of_this_process(monkeypatch):
    clock, lines = iter([0.0, 4.0]), []
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    scan.Report("tokenizing", 10_000_000, lines.append, done=6_000_000).add(2_000_000)
    assert lines == ["tokenizing: 8.0 of 10.0 million characters, 0:04 left"]
