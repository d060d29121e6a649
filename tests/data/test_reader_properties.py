"""Properties of every reader of labelled files, over `READERS`: a file of each form, and the records that it holds."""

import gzip
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lmrep.core.errors import UserError
from lmrep.data.records import READERS, TARGETS, Config, detect, fingerprint, read
from tests.data.refused_records import HEAD, KEYS, SENTENCE, question, squad


class Form(NamedTuple):
    """A reader's form.

    Attributes:
      files: name -> content; the first one is read.
      records: (fields, id, line or other place) of each.
      settings: of the config; without `format`, the form is detected.
      unlabelled: the same files without targets, as a test set has them.
      marked: whether a byte order mark and Windows line ends change nothing.
    """

    files: dict[str, str]
    records: list[tuple[dict, str, str]]
    settings: dict = {}  # noqa: RUF012 - never changed
    unlabelled: dict[str, str] = {}  # noqa: RUF012
    marked: bool = True


CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

 \t
Peter NNP B-NP B-PER
"""
CONLLU = """# newdoc
# sent_id = s-1
# text = It's.
1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_
1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2\t's\tbe\tAUX\tVBZ\t_\t0\troot\t_\t_
2.1\tthere\t_\t_\t_\t_\t_\t_\t_\t_
3\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""
SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,label\n" \
       '0,v,1,"He sits, calm. He",He sits.,He,gold,"stands, up.",runs.,"says ""no"".",2\n'
QUESTIONS = squad(question(answers=[("The Normans", 0), ("Normans", 4)]), question(
    "q2", (), is_impossible=True, plausible_answers=[{"text": "x", "answer_start": 9}]))
NORMANS = {"question": "What?", "context": "The Normans gave their name to Normandy."}
WIC = "bank\tN\t1-2\tThe bank, closed.\tOn a bank\nrun\tV\t1-0\tI run\trun!\n"
SENSE = {"text": "The power plant & light"}
FORMS = {
    "tsv": Form({"a.tsv": 'text\ttext2\tlabel\n"What ?\tHe said "no\tentailment\nx\ty\tnone\n'},
                [({"text": '"What ?', "text2": 'He said "no', "label": "entailment"}, "0", "a.tsv, line 2"),
                 ({"text": "x", "text2": "y", "label": "none"}, "1", "a.tsv, line 3")],
                unlabelled={"a.tsv": "text\ttext2\nOne.\tTwo.\n"}),
    "csv": Form({"a.csv": 'text,label\n"He said ""no"",\nthen left",1\nplain,0\n'},
                [({"text": 'He said "no",\nthen left', "label": "1"}, "0", "a.csv, line 2"),
                 ({"text": "plain", "label": "0"}, "1", "a.csv, line 4")],
                unlabelled={"a.csv": "text,n\nOne,1\n"}),
    "jsonl": Form({"a.jsonl": '{"id": 5, "text": "One.", "label": 1}\n{"text": "Two.", "label": true}\n\n'},
                  [({"text": "One.", "label": "1"}, "5", "a.jsonl, line 1"),
                   ({"text": "Two.", "label": "true"}, "1", "a.jsonl, line 2")],
                  unlabelled={"a.jsonl": '{"text": "One."}\n'}),
    "columns": Form({"eng.train": CONLL},
                    [({"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]}, "0", "eng.train, line 3"),
                     ({"words": ["Peter"], "tags": ["B-PER"]}, "1", "eng.train, line 7")],
                    unlabelled={"eng.train": "one\ntwo\n\nthree\n"}),
    "conllu": Form({"en.conllu": CONLLU},
                   [({"words": ["It", "'s", "."], "tags": ["PRON", "AUX", "PUNCT"]}, "s-1", "en.conllu, line 5"),
                    ({"words": ["Yes"], "tags": ["INTJ"]}, "1", "en.conllu, line 10")]),
    "squad": Form({"a.json": QUESTIONS},
                  [(NORMANS | {"answers": [("The Normans", 0), ("Normans", 4)]}, "q1", "a.json, question q1"),
                   (NORMANS | {"answers": []}, "q2", "a.json, question q2")],
                  unlabelled={"a.json": squad({"id": "q3", "question": "What?"})}),
    "trees": Form({"train.txt": "(3 (2 It) (4 (4 (2 's) (3 good)) (2 -LRB-a\\/b-RRB-)))\n\n(1 (2 It) (1 bad))\n"},
                  [({"text": "It 's good (a/b)", "label": "3"}, "0", "train.txt, line 1"),
                   ({"text": "It bad", "label": "1"}, "1", "train.txt, line 3")]),
    "choices": Form({"train.csv": SWAG},
                    [({"text": "He sits.", "label": "2", "choices": ["He stands, up.", "He runs.", 'He says "no".']},
                      "0", "train.csv, line 2")],
                    unlabelled={"train.csv": "\n".join(line.rpartition(",")[0] for line in SWAG.splitlines())}),
    "word_in_context": Form(
        {"a.data.txt": WIC, "a.gold.txt": "F\nT\n"},
        [({"text": "The bank, closed.", "text2": "On a bank", "span": [4, 8], "span2": [5, 9], "lemma": "bank",
           "pos": "N", "label": "F"}, "0", "a.data.txt, line 1"),
         ({"text": "I run", "text2": "run!", "span": [2, 5], "span2": [0, 3], "lemma": "run", "pos": "V",
           "label": "T"}, "1", "a.data.txt, line 2")],
        unlabelled={"a.data.txt": WIC}),
    "label_text": Form({"a.label": "LOC:city Where is  caf\u00e9 ?\nNUM:date\tWhen ?\n"},
                       [({"label": "LOC:city", "text": "Where is  caf\u00e9 ?"}, "0", "a.label, line 1"),
                        ({"label": "NUM:date", "text": "When ?"}, "1", "a.label, line 2")]),
    "folders": Form({"d/pos/1_9.txt": "A review.\nEnd.\n", "d/pos/0_8.txt": "Good.\n", "d/neg/0_2.txt": "Bad.\n",
                     "d/a.txt": "-", "d/other/a.feat": "1:2"},
                    [({"text": "Bad.", "label": "neg"}, "neg/0_2", "d/neg/0_2.txt"),
                     ({"text": "Good.", "label": "pos"}, "pos/0_8", "d/pos/0_8.txt"),
                     ({"text": "A review.\nEnd.", "label": "pos"}, "pos/1_9", "d/pos/1_9.txt")],
                    unlabelled={"d/0_8.txt": "Good.\n"}),
    "documents": Form({"a.txt": "\n\nA title\nand text.\n \t\n\n\nAnother one.\n"},
                      [({"text": "A title\nand text."}, "0", "a.txt, line 3"),
                       ({"text": "Another one."}, "1", "a.txt, line 8")], {"format": "documents"}),
    "word_senses": Form(
        {"a.data.xml": HEAD + SENTENCE, "a.gold.key.txt": KEYS},
        [(SENSE | {"span": [4, 15], "lemma": "power_plant", "pos": "NOUN", "senses": ["plant%1:06:01::"]}, "d0.s0.t0",
          "a.data.xml, line 4"),
         (SENSE | {"span": [18, 23], "lemma": "light", "senses": ["light%1:19:00::", "light%1:19:05::"]}, "d0.s0.t1",
          "a.data.xml, line 6")],
        unlabelled={"a.data.xml": HEAD + SENTENCE}, marked=False),
    "parallel": Form({"train.de": "Ein Hund.\n\nZwei  Katzen .\n", "train.en": "A dog.\n\nTwo cats.\n"},
                     [({"text": "Ein Hund.", "target": "A dog."}, "0", "train.de, line 1"),
                      ({"text": "Zwei  Katzen .", "target": "Two cats."}, "1", "train.de, line 3")],
                     {"format": "parallel", "columns": {"text": "de", "target": "en"}},
                     unlabelled={"train.de": "Ein Hund.\n"})}


def path_of(form, files=None):
    first = next(iter(files or form.files))
    return first.split("/")[0] if "/" in first else first


def records_of(form, split="train", path=None, **settings):
    return read(Config(**{split: path or path_of(form)}, **form.settings | settings), split)


def write_all(write, files):
    for name, content in files.items():
        write(name, content)


def test_every_reader_has_a_form():
    assert {*FORMS, "parquet", "tfds"} == {*READERS}  # in test_records_parquet.py, and below


@pytest.mark.parametrize("name", FORMS)
def test_a_file_of_the_form_is_detected_and_its_records_are_read_in_order(name, write):
    form = FORMS[name]
    write_all(write, form.files)
    found = records_of(form)
    assert [(record.fields, record.id, record.where) for record in found] == form.records
    assert detect(Path(path_of(form)), Config(**form.settings)) == name
    again = records_of(form, "validation")
    assert fingerprint(again) == fingerprint(found) != fingerprint(found[::-1] if len(found) > 1 else [])


@pytest.mark.parametrize("name", FORMS)
def test_compression_marks_and_line_ends_of_windows_change_nothing(name, write):
    form = FORMS[name]
    for file, content in form.files.items():
        text = ("\ufeff" + content.replace("\n", "\r\n") if form.marked else content).encode()
        write(file, text) if name == "folders" else write(f"{file}.gz", gzip.compress(text))
    path = path_of(form) if name == "folders" else f"{path_of(form)}.gz"
    assert [record.fields for record in records_of(form, path=path)] == [fields for fields, *_ in form.records]


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.unlabelled])
def test_a_test_set_may_lack_its_targets_and_training_files_may_not(name, write):
    form = FORMS[name]
    write_all(write, form.unlabelled)
    path = path_of(form, form.unlabelled)
    fields = {*form.records[0][0]}
    needed = fields.intersection(*(each for each, *_ in form.records))
    settings = form.settings | {"format": name}
    [first, *_] = read(Config(test=path, **settings), "test", needed)
    assert {*first.fields} == fields - {*TARGETS}
    with pytest.raises(UserError, match="|".join(map(re.escape, (path, *form.files)))):
        read(Config(train=path, **settings), "train", needed)


# --- TFDS ---


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """The directory of a prepared TFDS data set with classes, lists and nested features, and the one above it."""
    top = tmp_path_factory.mktemp("tfds")
    directory = top / "reviews" / "1.0.0"
    directory.mkdir(parents=True)
    text, integer = tfds.features.Text(), tfds.features.Scalar(np.int32)
    features = tfds.features.FeaturesDict({
        "sentence": text, "label": tfds.features.ClassLabel(names=["bad", "good"]), "idx": integer,
        "words": tfds.features.Sequence(text), "score": tfds.features.Scalar(np.float32),
        "tags": tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "B"])),
        "answers": tfds.features.Sequence({"text": text, "answer_start": integer})})
    identity = tfds.core.dataset_builder.dataset_info.DatasetIdentity(
        name="reviews", version=tfds.core.Version("1.0.0"), data_dir=str(directory), module_name="")
    writer = tfds.core.SequentialWriter(tfds.core.DatasetInfo(builder=identity, features=features), 100,
                                        file_format="array_record")
    writer.initialize_splits(["train", "test"])
    example = {"sentence": "caf\u00e9", "label": 1, "idx": 7, "words": ["a", "b"], "tags": [0, 1], "score": 3.8,
               "answers": [{"text": "a", "answer_start": 0}]}
    writer.add_examples({"train": [example, example | {"label": 0}], "test": [example | {"label": -1}]})
    writer.close_all()
    return top, directory


def of_tfds(directory, split="train", needed=(), name="train", **settings):
    config = Config(**{split: name, "tfds": str(directory), "columns": {"text": "sentence", "id": "idx"}} | settings)
    return read(config, split, needed)


def test_classes_of_tfds_have_their_names(dataset):
    top, directory = dataset
    found = of_tfds(directory)
    assert found[0].fields == {"text": "caf\u00e9", "label": "good", "words": ["a", "b"], "tags": ["O", "B"],
                               "answers": [("a", 0)]}
    assert found[1].fields["label"] == "bad" and found[0].id == "7"
    assert found[1].where == f"{directory}, train, example 1"
    assert "label" not in of_tfds(directory, "test", name="test")[0].fields
    assert [r.fields for r in of_tfds("reviews", name="train[:1]", tfds_dir=str(top))] == [found[0].fields]
    scores = of_tfds(directory, columns={"text": "sentence", "label": "score"})
    assert scores[0].fields["label"] == "3.8"


@pytest.mark.parametrize(("settings", "names"), [
    ({"name": "dev"}, ["'dev'", "train"]), ({"columns": {"text": "txt"}}, ["'txt'", "sentence"]),
    ({"name": "test", "needed": ["label"]}, ["example 0", "'label'"])])
def test_splits_and_fields_that_a_data_set_of_tfds_lacks_are_named(dataset, settings, names):
    with pytest.raises(UserError) as caught:
        of_tfds(dataset[1], **settings)
    assert all(name in str(caught.value) for name in names)


# --- Files whose names do not say what they hold ---

TEXT, WORDS = ("text", "label"), ("words", "tags")
LABELLED = "1 a warm film\n0 it never finds its feet\n1 worth it\n"


@pytest.mark.parametrize(("name", "content", "needed", "expected"), [
    ("a.tsv", "a\tO\n\nb\tO\n", (), "columns"), ("A.CSV.gz", "text,label\n", (), "csv"),
    ("a.json", '[\n {"text": "a"}]', (), "jsonl"), ("a.txt", "a O\nb O\n\nc O\n", (), "columns"),
    ("a.conll", CONLLU, (), "conllu"), ("a.conll", "a O\n", (), "columns"),
    ("a.all", "0 a b\n\n1 c d\n", (), "label_text"), ("a.tsv", "o\tHe\ta\tb\tc\td\n", (), "tsv"),
    ("dev.tsv", 'o\tHe sits. He\truns.\tsays "no\tends\tis.\t3\n', (), "choices"),
    ("a.txt", "id\tsentence_A\tjudgment\n1\tA dog.\tYES\n", TEXT, "tsv"), ("a.txt", "text,label\na b,c\n", TEXT, "csv"),
    ("a.test", "text\tlabel\na b\t1\nb\t0\n", TEXT, "tsv"), ("a.test", LABELLED, TEXT, "label_text"),
    ("a.tsv", LABELLED, TEXT, "label_text"), ("a.csv", LABELLED, TEXT, "label_text"),
    ("a.test", LABELLED.replace(" ", "\t", 1), TEXT, "label_text"), ("a", "1\ta\n0\tb\n1\tc\n", TEXT, "label_text"),
    ("a.txt", "__label__x a\n__label__y b c\n__label__x d\n", TEXT, "label_text"),
    ("a", "LOC:city Where ?\nNUM:date When ?\nLOC:city Where was it ?\n", TEXT, "label_text"),
    ("a.txt", "bad film\ngood film , really\n" * 9 + "bad\tplot\nbad idea\n", TEXT, "label_text"),
    ("a.txt", "a O\nb O\n", WORDS, "columns"), ("a.txt", "# x\n1\tEU\tB-X\tO\n2\tis\tO\tO\n\n", WORDS, "columns")])
def test_a_format_is_detected_by_the_beginning_of_a_file(write, name, content, needed, expected):
    path = write(name, gzip.compress(content.encode()) if name.endswith(".gz") else content)
    assert detect(Path(path), Config(), needed) == expected


def test_each_word_has_its_line(write):
    first, second = read(Config(train=write("eng.train", CONLL)), "train")
    assert [first.where_word(i) for i in range(2)] == ["eng.train, line 3", "eng.train, line 4"]
    assert second.where_word(0) == "eng.train, line 7"
    [first, _] = read(Config(train=write("a.conllu", CONLLU)), "train")
    assert [first.where_word(i) for i in (1, 2)] == ["a.conllu, line 6", "a.conllu, line 8"]
    path = write("a.jsonl", json.dumps({"words": ["a", "b"], "tags": ["O", "O"]}))
    assert read(Config(train=path), "train")[0].where_word(1) == "a.jsonl, line 1"
