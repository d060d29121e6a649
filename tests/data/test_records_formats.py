"""Labelled examples in column files, CoNLL-U, SQuAD's JSON, phrase trees, text files, multiple choice and TFDS."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lmrep.core.errors import UserError
from lmrep.data.records import Config, detect, read


def records(path, split="train", needed=(), **settings):
    return read(Config(**{split: path}, **settings), split, needed)


def fields(path, split="train", **settings):
    return [record.fields for record in records(path, split, **settings)]


def refused(path, *words, split="train", needed=(), **settings):
    with pytest.raises(UserError) as error:
        records(path, split, needed, **settings)
    assert all(word in str(error.value) for word in words), str(error.value)


# Column files

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

 \t
Peter NNP B-NP B-PER
"""


def test_sentences_are_blocks_of_columns(write):
    path = write("eng.train", CONLL)
    found = records(path)
    assert [r.fields for r in found] == [{"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
                                         {"words": ["Peter"], "tags": ["B-PER"]}]
    assert [(r.id, r.where) for r in found] == [("0", "eng.train, line 3"), ("1", "eng.train, line 7")]
    assert fields(path, columns={"tags": "1"})[0]["tags"] == ["NNP", "VBZ"]
    document = write("b.conll", CONLL.replace("EU NNP", "-DOCSTART- -X- -X- O\nEU NNP"))
    assert fields(document) == fields(path)


def test_columns_between_tabs_may_hold_spaces(write):
    assert fields(write("a.conll", "New York\tB\r\nis\tO\r\n")) == [{"words": ["New York", "is"], "tags": ["B", "O"]}]


def test_comments_of_column_files_are_left_out(write):
    content = "# id 1\tdomain=en\nEU _ B-ORG\n\n# id 2\tdomain=en\n# O O\nPeter _ B-PER\n"
    path = write("a.conll", content)
    assert fields(path, comment="# id") == [{"words": ["EU"], "tags": ["B-ORG"]},
                                            {"words": ["#", "Peter"], "tags": ["O", "B-PER"]}]
    tabs = write("a.tsv", "#\thttp://a.b\n1\tEU\tB-ORG\n2\t#\tO\n\n#\thttp://c.d\n1\tPeter\tB-PER\n")  # GermEval's form
    assert fields(tabs, comment="#\t", columns={"words": "1"}) == [
        {"words": ["EU", "#"], "tags": ["B-ORG", "O"]}, {"words": ["Peter"], "tags": ["B-PER"]}]
    assert fields(tabs, columns={"words": "1"}) == fields(tabs, columns={"words": "1"}, comment="#\t")
    assert fields(tabs, columns={"words": "1"}, needed=["words", "tags"]) == fields(tabs, columns={"words": "1"})


@pytest.mark.parametrize(("content", "words"), [
    ("# id 1\nEU B-ORG\n# O\n\n# id 2\nIt O\n", ["EU", "#", "It"]),  # of another width
    ("# one\nEU B-ORG\n# O\n\n# two\nIt O\n", ["EU", "#", "It"]),  # above every sentence
    ("#EU B-ORG\nis O\n\n# O\n1 O\n", ["#EU", "is", "#", "1"]),  # words
    ("# O\nEU B-ORG\n\n# O\n1 O\n", ["#", "EU", "#", "1"]),
])
def test_comments_above_sentences_are_recognized(write, content, words):
    assert [word for each in fields(write("b.conll", content)) for word in each["words"]] == words


def test_each_word_of_a_column_file_has_its_line(write):
    first, second = records(write("eng.train", CONLL))
    assert [first.where_word(i) for i in range(2)] == ["eng.train, line 3", "eng.train, line 4"]
    assert second.where_word(0) == "eng.train, line 7"
    path = write("a.conllu", "# text = don't go\n1-2\tdon't" + "\t_" * 8 + "\n"
                 + "".join(f"{i}\t{word}\t{word}\tX" + "\t_" * 6 + "\n" for i, word in ((1, "do"), (2, "n't"))))
    assert records(path)[0].where_word(1) == "a.conllu, line 4"
    path = write("a.jsonl", json.dumps({"words": ["a", "b"], "tags": ["O", "O"]}))
    assert records(path)[0].where_word(1) == "a.jsonl, line 1"


def test_a_test_file_of_words_alone_has_no_tags(write):
    path = write("a.conll", "one\ntwo\n\nthree\n")
    assert fields(path, "test", format="columns") == [{"words": ["one", "two"]}, {"words": ["three"]}]
    refused(path, "line 1", "found 1 column,", format="columns")


@pytest.mark.parametrize(("content", "settings", "words"), [
    ("a O\nb B-X I-X\n", {}, ["line 2", "3 columns", "expected 2"]),
    ("a O\nb\n", {}, ["line 2", "1 column;", "expected 2"]),
    ("a O\n", {"columns": {"tags": "2"}}, ["2 columns", "'2'", "0 to 1"]),
    ("a O\n", {"columns": {"tags": "ner"}}, ["'ner'"]),
    ("a O\n", {"needed": ["text"]}, ["words and tags", "'text'"]),
    ("-DOCSTART- O\n\n", {}, ["no examples"]),
    ("a\t\n", {}, ["line 1", "one of the tags is empty"]),
    ("\tO\n", {}, ["line 1", "one of the words is empty"]),
    ("1 EU B-ORG\n2 is O\n\n1 Yes O\n", {}, ["line 1", "the numbers of words", "{'words': '1'}", "the last"]),
    ("O what\nB-GENRE comedy\n\nO which\n", {}, ["line 1", "has tags", "{'words': '1', 'tags': '0'}"]),
    ("EU B-ORG\n# a b\n", {}, ["line 2", "3 columns"]),
    ("#begin document\n" + "bc/cctv 0 EU NNP\n" * 20, {}, ["line 2", "the same text", "data.columns"]),
])
def test_bad_column_files_are_refused(write, content, settings, words):
    refused(write("a.conll", content), *words, **settings)


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


def test_conllu_fields_are_read_by_name(write):
    path = write("en.conllu", CONLLU)
    found = records(path)
    assert found[0].fields == {"words": ["It", "'s", "."], "tags": ["PRON", "AUX", "PUNCT"]}
    assert [r.id for r in found] == ["s-1", "1"] and found[0].where == "en.conllu, line 5"
    changed = records(path, columns={"words": "lemma", "tags": "deprel"})[0].fields
    assert changed == {"words": ["it", "be", "."], "tags": ["nsubj", "root", "punct"]}
    refused(path, "'pos'", "upos", columns={"tags": "pos"})
    refused(path, "'text'", "words and tags", columns={"text": "form"})
    refused(write("b.conllu", CONLLU.replace("\troot\t_", "\troot", 1)), "line 6", "9 columns", "expected 10")


# SQuAD


def squad(*questions, context="The Normans gave their name to Normandy."):
    paragraphs = [{"context": context, "qas": questions}]
    return json.dumps({"version": "2", "data": [{"title": "t", "paragraphs": paragraphs}]})


def question(name="q1", answers=(("Normandy", 31),), **more):
    return {"id": name, "question": " What? ", "answers": [{"text": t, "answer_start": s} for t, s in answers]} | more


def test_questions_have_their_context_and_answers(write):
    content = squad(question(answers=[("The Normans", 0), ("Normans", 4)]), question(
        "q2", (), is_impossible=True, plausible_answers=[{"text": "x", "answer_start": 9}]))
    found = records(write("a.json", content))
    assert found[0].fields == {"question": "What?", "context": "The Normans gave their name to Normandy.",
                               "answers": [("The Normans", 0), ("Normans", 4)]}
    assert found[1].fields["answers"] == []
    assert [(r.id, r.where) for r in found] == [("q1", "a.json, question q1"), ("q2", "a.json, question q2")]
    without = {"id": "q3", "question": "What?"}
    assert "answers" not in records(write("b.json", squad(without)), "test")[0].fields
    refused("b.json", "question q3", "no 'answers'")


@pytest.mark.parametrize(("content", "words"), [
    (squad(question(answers=[("Normandy", 30)])), ["question q1", "'Normandy'", "character 30", "' Normand'"]),
    (squad(question(answers=[("", 3)])), ["question q1", "an answer is empty"]),
    (squad(question(is_impossible=True)), ["question q1", "is_impossible and has answers"]),
    (squad(question(answers=()) | {"answers": "Normandy"}), ["question q1", "'Normandy'", "answer_start"]),
    (squad(question(), question()), ["qas[1] has the id 'q1', which ", "qas[0] has too"]),
    (squad(question(question="  ")), ["question q1", "question is empty"]),
    (squad({"id": "q1"}), ["qas[0]", "no 'question'", "id"]),
    (squad(question(name=["q1"])), ["qas[0] has the id ['q1']", "a string, a number"]),
    (squad(question() | {"answers": [{"text": 5, "answer_start": 0}]}), ["question q1", "answer_start"]),
    (squad(question(), context=" "), ["question q1", "context is empty"]),
    ('{"version": "1", "data": [{"title": "paragraphs", "paragraph": []}]}',
     ["a.json, data[0]", "no 'paragraphs'", "paragraph"]),
    ('{"version": "1", "data": {"paragraphs": []}}', ["a.json", "an object in 'data'", "a list"]),
    ('{"version": "1", "data": []}', ["no examples"]),
    ('{"version": "1",\n "data": [}', ["a.json is not JSON", "line 2"]),
])
def test_bad_squad_files_are_refused(write, content, words):
    refused(write("a.json", content), *words)


# Trees

TREES = "(3 (2 It) (4 (4 (2 's) (3 good)) (2 -LRB-a\\/b-RRB-)))\n\n(1 (2 It) (1 bad))\n"


def test_a_tree_is_a_sentence_with_the_label_of_its_root(write):
    path = write("train.txt", TREES)
    assert fields(path) == [{"text": "It 's good (a/b)", "label": "3"}, {"text": "It bad", "label": "1"}]
    assert [r.where for r in records(path)] == ["train.txt, line 1", "train.txt, line 3"]


def test_phrases_of_training_trees_are_records_without_duplicates(write):
    path = write("train.txt", TREES)
    found = fields(path, phrases=True)
    assert sorted((f["text"], f["label"]) for f in found) == [
        ("'s", "2"), ("'s good", "4"), ("'s good (a/b)", "4"), ("(a/b)", "2"), ("It", "2"), ("It 's good (a/b)", "3"),
        ("It bad", "1"), ("bad", "1"), ("good", "3")]
    assert fields(path, "validation", phrases=True) == fields(path)
    binary = {"0": "negative", "1": "negative", "2": "", "3": "positive", "4": "positive"}
    assert [f["label"] for f in fields(path, label_map=binary)] == ["positive", "negative"]
    assert "It" not in {f["text"] for f in fields(path, phrases=True, label_map=binary)}


@pytest.mark.parametrize(("tree", "message"), [
    ("(3 (2 It) (4 works)", "1 parentheses are not closed"),
    ("(3 (2 It) (4 works)))", "')' follows"),
    ("(3 (2 It)) (4 works)", "'(' follows"),
    ("(3 (2 It) (4))", "no words"),
    ("(3 (2 It) ())", "no label"),
    ("It works", "'It' in front"),
    ("(2 (1 a) " * 60_000, "60000 parentheses are not closed"),
])
def test_unbalanced_trees_are_refused(write, tree, message):
    refused(write("a.txt", f"(3 (2 It) (4 works))\n{tree}\n"), "a.txt, line 2", message, format="trees")


def test_deep_trees_are_read_in_linear_time(write):
    path = write("train.txt", "(2 (1 a) " * 100_000 + "(1 b)" + ")" * 100_000 + "\n")
    assert len(fields(path)[0]["text"]) == 200_001
    refused(path, "line 1", "nested", phrases=True)


# Text files


def test_lines_begin_with_their_label(write):
    path = write("a.label", b"LOC:city Where is  caf\xe9 ?\nNUM:date\tWhen ?\n")
    assert fields(path, encoding="latin-1") == [{"label": "LOC:city", "text": "Where is  caf\u00e9 ?"},
                                                {"label": "NUM:date", "text": "When ?"}]
    assert {f["label"] for f in fields(path, encoding="latin-1", label_until=":")} == {"LOC", "NUM"}
    refused(path, "line 1", "UTF-8", "0xe9")
    refused(write("b.all", "0 text\n1 \n"), "b.all, line 2", "nothing after '1'")


@pytest.fixture
def folder(write):
    for name in ("train/pos/1_9.txt", "train/pos/0_8.txt", "train/neg/0_2.txt", "train/unsup/0_0.txt", "train/a.txt"):
        write(name, f"\ufeffA review: {name}.\r\nEnd.\n")
    write("train/other/a.feat", "1:2")
    return "train"


def test_folders_are_classes(folder):
    found = records(folder, classes=("pos", "neg"))
    assert [(r.id, r.fields["label"]) for r in found] == [("pos/0_8", "pos"), ("pos/1_9", "pos"), ("neg/0_2", "neg")]
    assert found[2].fields["text"] == "A review: train/neg/0_2.txt.\nEnd." and found[2].where == "train/neg/0_2.txt"
    assert [f["label"] for f in fields(folder)] == ["neg", "pos", "pos", "unsup"]
    assert fields("train/pos", "test")[0] == {"text": "A review: train/pos/0_8.txt.\nEnd."}


def test_bad_folders_are_refused(folder, write):
    refused(folder, "no subfolder 'ned'", "did you mean 'neg'", classes=("pos", "ned"))
    refused("train/pos", "no subfolder with .txt files")
    write("tables/a.tsv", "text\tlabel\n")
    for split in ("train", "test"):
        refused("tables", "no subfolder with .txt files", "a glob: tables/*.tsv", split=split)
    refused("train/a.txt", "not a folder", format="folders")
    refused(folder, "train is a folder", "tsv", format="tsv")
    write("train/neg/1_1.txt", " \n")
    refused(folder, "train/neg/1_1.txt", "text is empty")
    write("train/neg/1_1.txt", b"one\ncaf\xe9\n")
    refused(folder, "train/neg/1_1.txt, line 2", "UTF-8")


# Multiple choice

SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,label\n" \
       '0,v,1,"He sits, calm. He",He sits.,He,gold,"stands, up.",runs.,"says ""no"".",2\n'


def test_choices_of_swag_continue_its_second_sentence(write):
    path = write("train.csv", SWAG)
    assert fields(path) == [
        {"text": "He sits.", "label": "2", "choices": ["He stands, up.", "He runs.", 'He says "no".']}]
    assert fields(path, columns={"text": "startphrase"})[0] == {
        "text": "He sits, calm. He", "label": "2", "choices": ["stands, up.", "runs.", 'says "no".']}
    assert records(path, needed=["text", "choices", "label"]) == records(path)
    unlabelled = "\n".join(line.rpartition(",")[0] for line in SWAG.splitlines())
    assert "label" not in fields(write("test.csv", unlabelled), "test")[0]
    refused("test.csv", "no 'label'", "ending2")
    refused(write("a.csv", SWAG.replace(",2\n", ",3\n")), "line 2", "'3'", "0 to 2")
    refused(write("a.csv", SWAG.replace("runs.", "")), "line 2", "one of the choices is empty")


def test_codah_has_no_header(write):
    path = write("dev.tsv", 'o\tHe sits. He\truns.\tsays "no\tends\tis.\t3\n')
    assert detect(Path(path), Config()) == "choices"
    assert fields(path) == [{"text": "He sits. He", "label": "3", "choices": ["runs.", 'says "no', "ends", "is."]}]
    refused(write("a.tsv", 'o\tHe\ta\tb\tc\td\t4\n'), "line 1", "'4'", "0 to 3", format="choices")


def test_choices_in_json_are_a_list_or_fields(write):
    path = write("a.jsonl", '{"ctx": "He", "endings": ["a", "b"], "label": 1, "sol1": "c", "sol2": "d"}')
    for name in ("endings", "sol1,sol2"):
        found = fields(path, columns={"text": "ctx", "choices": name}, format="choices")
        assert found == [{"text": "He", "choices": ["c", "d"] if "," in name else ["a", "b"], "label": "1"}]
    refused(path, "no 'sol1,sol3'", columns={"text": "ctx", "choices": "sol1,sol3"})


# TFDS


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


def test_tfds_classes_have_their_names(dataset):
    top, directory = dataset
    settings = {"tfds": str(directory), "columns": {"text": "sentence", "id": "idx"}}
    found = records("train", **settings)
    assert found[0].fields == {"text": "caf\u00e9", "label": "good", "words": ["a", "b"], "tags": ["O", "B"],
                               "answers": [("a", 0)]}
    assert found[1].fields["label"] == "bad" and found[0].id == "7"
    assert found[1].where == f"{directory}, train, example 1"
    assert "label" not in records("test", "test", **settings)[0].fields
    refused("test", "example 0", "no 'label'", needed=["label"], **settings)
    by_name = records("train[:1]", **settings | {"tfds": "reviews", "tfds_dir": str(top)})
    assert [r.fields for r in by_name] == [found[0].fields]
    scores = records("train", **settings | {"columns": {"text": "sentence", "label": "score"}})
    assert scores[0].fields["label"] == "3.8"


@pytest.mark.parametrize(("settings", "words"), [
    ({"train": "dev"}, ["no split 'dev'", "train"]),
    ({"columns": {"text": "txt"}}, ["no 'txt'", "sentence"]),
    ({"format": "tsv"}, ["'tsv'", "set one of them alone"]),
    ({"tfds": "", "format": "tfds"}, ["tfds is empty"]),
    ({"tfds": "/nowhere/at/all"}, ["no TFDS dataset"]),
])
def test_bad_tfds_settings_are_refused(dataset, settings, words):
    settings = {"train": "train", "tfds": str(dataset[1])} | settings
    refused(settings.pop("train"), *words, **settings)


# Documents


def test_documents_are_texts_between_blank_lines(write):
    found = records(write("a.txt", "\n\nA title\r\nand text.\r\n \t\r\n\n\nAnother one.\n"), format="documents")
    assert [record.fields for record in found] == [{"text": "A title\nand text."}, {"text": "Another one."}]
    assert [record.where for record in found] == ["a.txt, line 3", "a.txt, line 8"]
    refused(write("b.txt", " \n\n"), "b.txt has no examples", format="documents")


# Detection


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("a.tsv", "text\tlabel\na b\tc\n", "tsv"), ("a.tsv", "a\tO\n\nb\tO\n", "columns"),
    ("A.CSV.gz", "text,label\n", "csv"), ("a.csv", SWAG, "choices"),
    ("a.json", squad(), "squad"), ("a.json", '[\n {"text": "a"}]', "jsonl"),
    ("a.jsonl", '{"text": "a"}', "jsonl"), ("a.txt", TREES, "trees"), ("eng.testa", CONLL, "columns"),
    ("a.txt", "a O\nb O\n\nc O\n", "columns"), ("a.conllu", CONLLU, "conllu"), ("a.conll", CONLLU, "conllu"),
    ("a.conll", "a O\n", "columns"), ("a.label", "X a\n", "label_text"), ("a.all", "0 a b\n\n1 c d\n", "label_text"),
    ("a.tsv", "o\tHe\ta\tb\tc\td\n", "tsv"),
])
def test_formats_are_detected(write, name, content, expected):
    path = write(name, gzip.compress(content.encode()) if name.endswith(".gz") else content)
    assert detect(Path(path), Config()) == expected


TEXT, WORDS = ("text", "label"), ("words", "tags")
LABELLED = "1 a warm film\n0 it never finds its feet\n1 worth it\n"


@pytest.mark.parametrize(("name", "content", "needed", "expected"), [
    ("a.txt", "id\tsentence_A\tjudgment\n1\tA dog.\tYES\n", TEXT, "tsv"), ("a.txt", "text,label\na b,c\n", TEXT, "csv"),
    ("a.test", "text\tlabel\na b\t1\nb\t0\n", TEXT, "tsv"), ("a.test", LABELLED, TEXT, "label_text"),
    ("a.tsv", LABELLED, TEXT, "label_text"), ("a.csv", LABELLED, TEXT, "label_text"),
    ("a.test", LABELLED.replace(" ", "\t", 1), TEXT, "label_text"), ("a", "1\ta\n0\tb\n1\tc\n", TEXT, "label_text"),
    ("a.txt", "__label__x a\n__label__y b c\n__label__x d\n", TEXT, "label_text"),
    ("a", "LOC:city Where ?\nNUM:date When ?\nLOC:city Where was it ?\n", TEXT, "label_text"),
    ("a.txt", "bad film\ngood film , really\n" * 9 + "bad\tplot\nbad idea\n", TEXT, "label_text"),
    ("a.txt", "a O\nb O\n", WORDS, "columns"), ("a.txt", "# x\n1\tEU\tB-X\tO\n2\tis\tO\tO\n\n", WORDS, "columns"),
    ("a.txt", "to be\nor not\n\nto be\n", TEXT, None), ("a.txt", "1 a\n2 b\n3 c\n", TEXT, None),
])
def test_formats_of_files_whose_names_say_nothing_are_detected(write, name, content, needed, expected):
    if expected:
        assert detect(Path(write(name, content)), Config(), needed) == expected
    else:
        refused(write(name, content), "a.txt", "set config.data.format", needed=needed)


def test_a_file_that_may_have_two_formats_is_refused_with_both(write):
    path = write("a.txt", "1\ta b\tc\n0\td\te\n1\tf\tg\n")
    refused(path, "data.format=label_text", "data.format=tsv", "data.columns", needed=TEXT)
    assert fields(path, columns={"label": "0", "text": "1", "text2": "2"}, needed=TEXT)[1] == {
        "label": "0", "text": "d", "text2": "e"}
