"""A format of labelled files that lmrep does not know is one function and one entry of `READERS`."""

import errno

import pytest

from lmrep.core.errors import UserError
from lmrep.data import records
from lmrep.data.records import READERS, Config, ReaderDef, Record, files
from lmrep.experiment import config as experiments
from lmrep.experiment.task_data import prepare_examples
from tests.tasks import tiny


def read(job):
    """Lines such as `good | the cat`."""
    for number, line in enumerate(files.lines(job.path, job.config), 1):
        where = f"{job.path}, line {number}"
        label, bar, text = line.strip().partition(" | ")
        yield Record({"text": text, "label": label}, "", where) if bar else UserError(
            f"{where} has no bar; expected a label, a bar and a text")


@pytest.fixture(autouse=True)
def bars(monkeypatch):
    monkeypatch.setitem(READERS, "bars", ReaderDef(read, (".bars",)))


def test_it_is_read_by_its_suffix_and_made_into_examples(tmp_path):
    (tmp_path / "train.bars").write_text("good | the cat\nbad | the dog\n" * 4)
    experiment = experiments.parse(tiny.config("classification", tmp_path / "train.bars"))
    prepared = prepare_examples(experiment, experiment.tokenizer)
    assert prepared.experiment.objective["labels"] == ("bad", "good")
    assert [record.id for record in prepared.records["train"]] == [str(i) for i in range(8)]
    assert prepared.splits["train"].examples == 8


def test_damaged_lines_and_labels_are_handled_as_of_any_format(tmp_path):
    (tmp_path / "dev.bars").write_text("1 | the cat\nno bar\n0 | the dog\n")
    data = Config(validation=str(tmp_path / "dev.bars"), label_map={"1": "good", "0": "bad"}, damaged_examples=1)
    assert [record.fields["label"] for record in records.read(data, "validation")] == ["good", "bad"]
    with pytest.raises(UserError, match=r"dev\.bars, line 2 has no bar"):
        records.read(Config(validation=data.validation), "validation")


@pytest.mark.parametrize(("example", "problem"), [
    (lambda fields: fields, "its read gives dict; expected Record"),
    (lambda fields: Record(fields), "missing 2 required positional arguments: 'id' and 'where' (line "),
    (lambda fields: Record({"label": 1}, "", "line 1"), "its read gives the label of line 1 as int; expected str"),
    (lambda fields: Record({"text": ["the"]}, "", "line 1"), "the text of line 1 as list; expected str"),
    (lambda fields: Record({"words": "the cat"}, "", "line 1"), "the words of line 1 as str; expected list[str]"),
    (lambda fields: fields["txt"], "KeyError: 'txt' (line "),
    (lambda fields: Record({"txt": fields["text"]}, "", "line 1"), "the field 'txt', which does not exist; did")])
def test_what_is_no_record_is_refused_by_the_name_and_the_file_of_the_reader(example, problem, tmp_path, monkeypatch):
    monkeypatch.setitem(READERS, "bars", ReaderDef(lambda job: iter([example({"text": "the cat"})]), (".bars",)))
    (tmp_path / "dev.bars").write_text("the cat\n")
    with pytest.raises(UserError) as refused:
        records.read(Config(validation=str(tmp_path / "dev.bars")), "validation")
    assert f"reader 'bars' ({__file__})" in str(refused.value) and problem in str(refused.value)


def test_a_read_that_returns_nothing_is_the_fault_of_its_reader(tmp_path, monkeypatch):
    monkeypatch.setitem(READERS, "bars", ReaderDef(lambda job: None, (".bars",)))
    (tmp_path / "dev.bars").write_text("the cat\n")
    with pytest.raises(UserError, match=r"^reader 'bars' \(.*\): its read returns NoneType; expected an iterable of"):
        records.read(Config(validation=str(tmp_path / "dev.bars")), "validation")


def test_a_record_without_a_field_that_the_task_needs_names_the_reader(tmp_path, monkeypatch):
    monkeypatch.setitem(READERS, "bars", ReaderDef(
        lambda job: iter([Record({"text": "the cat"}, "", "line 1")]), (".bars",)))
    (tmp_path / "dev.bars").write_text("the cat\n")
    with pytest.raises(UserError, match=r"^line 1 has no label, only text, as the reader 'bars' has read it; set "):
        records.read(Config(validation=str(tmp_path / "dev.bars")), "validation", ("text", "label"))


def test_a_fault_of_the_machine_is_not_the_reader_s(tmp_path, monkeypatch):
    def read(job):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setitem(READERS, "bars", ReaderDef(read, (".bars",)))
    (tmp_path / "dev.bars").write_text("the cat\n")
    with pytest.raises(OSError, match="Input/output error"):
        records.read(Config(validation=str(tmp_path / "dev.bars")), "validation")
