"""Settings and peculiarities of the readers: columns, comments, phrases, classes, choices."""

from pathlib import Path

import pytest

from lmrep.data.records import Config, detect, read
from tests.data.test_reader_properties import CONLL, CONLLU, FORMS, SWAG


def records(path, split="train", needed=(), **settings):
    return read(Config(**{split: path}, **settings), split, needed)


def fields(path, split="train", **settings):
    return [record.fields for record in records(path, split, **settings)]


def test_columns_of_tags_are_chosen_and_marks_of_documents_left_out(write):
    path = write("eng.train", CONLL)
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


def test_conllu_fields_are_read_by_name(write):
    changed = fields(write("en.conllu", CONLLU), columns={"words": "lemma", "tags": "deprel"})[0]
    assert changed == {"words": ["it", "be", "."], "tags": ["nsubj", "root", "punct"]}


def test_phrases_of_training_trees_are_records_without_duplicates(write):
    path = write("train.txt", FORMS["trees"].files["train.txt"])
    found = fields(path, phrases=True)
    assert sorted((f["text"], f["label"]) for f in found) == [
        ("'s", "2"), ("'s good", "4"), ("'s good (a/b)", "4"), ("(a/b)", "2"), ("It", "2"), ("It 's good (a/b)", "3"),
        ("It bad", "1"), ("bad", "1"), ("good", "3")]
    assert fields(path, "validation", phrases=True) == fields(path)
    binary = {"0": "negative", "1": "negative", "2": "", "3": "positive", "4": "positive"}
    assert [f["label"] for f in fields(path, label_map=binary)] == ["positive", "negative"]
    assert "It" not in {f["text"] for f in fields(path, phrases=True, label_map=binary)}


def test_deep_trees_are_read_in_linear_time(write):
    path = write("train.txt", "(2 (1 a) " * 30_000 + "(1 b)" + ")" * 30_000 + "\n")
    assert len(fields(path)[0]["text"]) == 60_001


def test_labels_of_lines_end_where_the_setting_says(write):
    path = write("a.label", b"LOC:city Where is  caf\xe9 ?\nNUM:date\tWhen ?\n")
    assert fields(path, encoding="latin-1", label_until=":") == [
        {"label": "LOC", "text": "Where is  caf\u00e9 ?"}, {"label": "NUM", "text": "When ?"}]


def test_some_folders_are_read_in_the_order_of_the_classes(write):
    for name in ("train/pos/1_9.txt", "train/pos/0_8.txt", "train/neg/0_2.txt", "train/unsup/0_0.txt"):
        write(name, "A review.\n")
    found = records("train", classes=("pos", "neg"))
    assert [(r.id, r.fields["label"]) for r in found] == [("pos/0_8", "pos"), ("pos/1_9", "pos"), ("neg/0_2", "neg")]
    assert [f["label"] for f in fields("train")] == ["neg", "pos", "pos", "unsup"]


def test_choices_of_swag_continue_its_second_sentence_or_the_phrase(write):
    path = write("train.csv", SWAG)
    assert fields(path, columns={"text": "startphrase"})[0] == {
        "text": "He sits, calm. He", "label": "2", "choices": ["stands, up.", "runs.", 'says "no".']}
    assert records(path, needed=["text", "choices", "label"]) == records(path)


def test_codah_has_no_header(write):
    path = write("dev.tsv", 'o\tHe sits. He\truns.\tsays "no\tends\tis.\t3\n')
    assert fields(path) == [{"text": "He sits. He", "label": "3", "choices": ["runs.", 'says "no', "ends", "is."]}]


def test_choices_in_json_are_a_list_or_fields(write):
    path = write("a.jsonl", '{"ctx": "He", "endings": ["a", "b"], "label": 1, "sol1": "c", "sol2": "d"}')
    for name in ("endings", "sol1,sol2"):
        found = fields(path, columns={"text": "ctx", "choices": name}, format="choices")
        assert found == [{"text": "He", "choices": ["c", "d"] if "," in name else ["a", "b"], "label": "1"}]


def test_aligned_files_are_read_in_the_other_direction(write):
    write("train.de", "Ein Hund.\n\n")
    path = write("train.en", "A dog.\n\n")
    assert fields(path, format="parallel", columns={"text": "en", "target": "de"}) == [
        {"text": "A dog.", "target": "Ein Hund."}]


def test_a_line_without_its_translation_is_left_out(write):
    write("train.en", "A dog.\n\n")
    path = write("train.de", "Ein Hund.\nZwei Katzen.\n")
    assert len(records(path, format="parallel", columns={"text": "de", "target": "en"}, damaged_examples=1)) == 1


def test_columns_decide_between_two_formats(write):
    path = write("a.txt", "1\ta b\tc\n0\td\te\n1\tf\tg\n")
    settings = {"columns": {"label": "0", "text": "1", "text2": "2"}, "needed": ("text", "label")}
    assert detect(Path(path), Config(columns=settings["columns"]), settings["needed"]) == "tsv"
    assert fields(path, **settings)[1] == {"label": "0", "text": "d", "text2": "e"}
