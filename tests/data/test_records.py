"""Labelled examples in TSV, CSV and JSON Lines, and what is common to every reader."""

import gzip
import json

import fsspec
import pytest

from lmrep.data.records import FIELDS, Config, Record, delimited, fingerprint, read, spread


def train(path, needed=(), **settings):
    return read(Config(train=path, **settings), "train", needed)


def fields(path, **settings):
    return [record.fields for record in train(path, **settings)]


def test_columns_are_read_by_name_and_quotes_in_tsv_are_characters(write):
    path = write("a.tsv", 'index\tquestion\tsentence\tlabel\n7\t"What ?\tHe said "no\tentailment\n8\tx\ty\tnone\n')
    records = train(path, columns={"id": "index", "text": "question", "text2": "sentence"})
    assert [record.id for record in records] == ["7", "8"]
    assert records[0].fields == {"text": '"What ?', "text2": 'He said "no', "label": "entailment"}
    assert records[1].where == "a.tsv, line 3"


def test_columns_are_read_by_number_without_a_header(write):
    path = write("a.tsv", "gj04\t1\t\tOne.\ngj04\t0\t*\tTwo.\n")
    records = train(path, columns={"label": "1", "text": "-1"})
    assert [record.fields for record in records] == [{"label": "1", "text": "One."}, {"label": "0", "text": "Two."}]
    assert [record.id for record in records] == ["0", "1"]


def test_a_header_above_numbered_columns_is_no_example(write):
    numbers = {"columns": {"text": "0", "label": "1"}}
    path = write("a.tsv", "sentence\tlabel\nx\t1\n")
    assert fields(path, **numbers) == [{"text": "x", "label": "1"}]
    assert len(fields(path, header="no", **numbers)) == 2
    assert len(fields(write("b.tsv", "a label\tlabels\nx\t1\n"), **numbers)) == 2


def test_texts_between_blank_lines_are_no_columns_of_words(write):
    path = write("a.tsv", "text\tlabel\n\nx\t1\n\ny\t0\n")
    assert [record.fields for record in read(Config(train=path), "train", ("text", "label"))] == [
        {"text": "x", "label": "1"}, {"text": "y", "label": "0"}]


def test_test_files_may_have_other_columns_and_no_labels(write):
    path = write("test.tsv", "index\tsentence\n4\tOne.\n")
    config = Config(train="", test=path, columns={"label": "1", "text": "3"},
                    test_columns={"text": "sentence", "id": "index"})
    assert read(config, "test") == [Record({"text": "One."}, "4", "test.tsv, line 2")]
    assert read(Config(test=path, columns={"label": "gold", "text": "sentence"}), "test", ["text", "label"])[0].fields \
        == {"text": "One."}
    write("empty.tsv", "text\tlabel\nOne.\t\n")
    assert read(Config(test="empty.tsv"), "test")[0].fields == {"text": "One."}


def test_whether_there_is_a_header_can_be_stated(write):
    path = write("a.tsv", "quality\tfirst\n1\tOne.\n")
    columns = {"label": "0", "text": "1"}
    assert len(fields(path, columns=columns)) == 2
    assert fields(path, columns=columns, header="yes") == [{"label": "1", "text": "One."}]


@pytest.mark.parametrize(("content", "separator"), [
    ("text;label\nOne, two;x\nThree;y\n", ";"), ("text|label\na;b|x\nc;d|y\n", "|"), ("text\tlabel\na,b\tx\n", "\t"),
    ('"text";"label"\n"a, ""b""; c";x\n', ";"), ("text,label\na;b,x\nc,y,z\nd,y\n", ","), ("text\na;b\nc;d\n", ","),
    ('text,label\n"a;\n;b",x\n', ","), ("Good, really;1\nBad;0\n", ";"), ("", ",")])
def test_separator_of_csv_is_that_of_most_lines(content, separator):
    assert delimited.find_separator(content) == separator


def test_separator_can_be_set(write):
    expected = [{"text": "One, two", "label": "x"}]
    assert fields(write("a.csv", "text;label\r\nOne, two;x\r\n")) == expected
    assert fields(write("b.csv", "text\tlabel\nOne, two\tx\n"), separator="tab") == expected
    assert fields(write("b.tsv", "text;label\nOne, two;x\n"), separator=";") == expected


def test_choices_are_read_from_several_columns(write):
    path = write("a.csv", "sent,e0,e1,e2,gold\nHe,ran,sat,slept,2\n")
    columns = {"text": "sent", "choices": "e0,e1,e2", "label": "gold"}
    assert fields(path, columns=columns) == [{"text": "He", "choices": ["ran", "sat", "slept"], "label": "2"}]


def test_words_and_tags_are_split_at_spaces(write):
    path = write("a.tsv", "words\ttags\nEU rejects\tB-ORG O\n")
    assert fields(path) == [{"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]}]


@pytest.mark.parametrize("array", [False, True])
def test_json_objects_have_fields_of_their_own_names(write, array):
    objects = [{"id": 5, "data": {"premise": "One."}, "gold": 1, "words": 2, "n": None}, {
        "id": "x", "data": {"premise": "Two."}, "gold": True}, {"data": {"premise": "Three."}, "gold": 2.5}]
    path = write("a.json", json.dumps(objects) if array else "\n".join(map(json.dumps, objects)) + "\n\n")
    records = train(path, columns={"text": "data.premise", "label": "gold"})
    assert [r.fields["label"] for r in records] == ["1", "true", "2.5"]
    assert [r.id for r in records] == ["5", "x", "2"]
    assert records[0].fields == {"text": "One.", "label": "1"}  # a number is not a list of words
    assert records[1].where == ("a.json, item 1" if array else "a.json, line 2")


def test_json_objects_may_be_the_list_data_of_one(write):
    expected = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    for content in ({"data": expected}, {"name": "set", "n": 2, "data": expected}):
        assert fields(write("a.json", json.dumps(content))) == fields(write("b.json", json.dumps(content, indent=1))) \
            == expected
    lines = "".join(json.dumps({"data": [each], "text": "c"}) + "\n" for each in expected)
    assert fields(write("a.jsonl", lines)) == [{"text": "c"}] * 2
    assert fields(write("a.jsonl", '{"data": [1, 2], "text": "c"}')) == [{"text": "c"}]


def test_json_lists_are_words_tags_choices_and_answers(write):
    item = {"words": ["a", "b"], "tags": [0, "X"], "q": {"choices": [{"text": "yes"}, {"text": "no"}]}, "label": "B"}
    path = write("a.jsonl", json.dumps(item))
    expected = {"words": ["a", "b"], "tags": ["0", "X"], "choices": ["yes", "no"], "label": "1"}
    assert fields(path, columns={"choices": "q.choices.text"}, label_map={"A": "0", "B": "1"}) == [expected]
    for number, answers in enumerate(({"text": ["b"], "answer_start": [2]}, [{"text": "b", "answer_start": 2}],
                                      [["b", 2]])):
        path = write(f"{number}.jsonl", json.dumps({"context": "a b", "question": "?", "answers": answers}))
        assert fields(path)[0]["answers"] == [("b", 2)]


def test_labels_are_mapped_and_dropped(write):
    path = write("a.tsv", "label\ttext\nLOC:city\ta\nNUM:date\tb\nDESC:def\tc\n")
    records = train(path, label_until=":", label_map={"LOC": "place", "NUM": ""})
    assert [(r.fields["label"], r.id) for r in records] == [("place", "0"), ("DESC", "2")]
    assert len(train(path, label_map={"-": ""})) == 3
    assert len(read(Config(validation=path, label_map={"LOC": "place"}), "validation")) == 3


def test_tags_are_mapped(write):
    path = write("a.jsonl", json.dumps({"words": ["Ann", "left"], "tags": [1, 0]}) + "\n")
    assert fields(path, label_map={"0": "O", "1": "B-PER"}) == [{"words": ["Ann", "left"], "tags": ["B-PER", "O"]}]


def test_files_of_a_glob_are_read_in_order_and_decompressed(write):
    write("d/2/b.jsonl.gz", gzip.compress(b'{"text": "two"}'))
    write("d/1/a.tsv", "text\tlabel\none\tx\n")
    write("d/3.txt", '\ufeff{"text": "three"}\r\n')
    records = train("d/**")
    assert [(r.fields["text"], r.id) for r in records] == [("one", "0"), ("two", "1"), ("three", "2")]
    assert records[1].where == "d/2/b.jsonl.gz, line 1"


def test_several_paths_and_globs_are_read_in_their_order(write):
    for name in ("b1.tsv", "a.tsv", "b2.tsv", "c,d.tsv"):
        write(name, f"text\n{name}\n")
    assert [f["text"] for f in fields("b*.tsv, a.tsv,b1.tsv")] == ["b1.tsv", "b2.tsv", "a.tsv"]
    assert [f["text"] for f in fields("c,d.tsv")] == ["c,d.tsv"]


def test_remote_files_are_read_like_local_ones(write):
    store = fsspec.filesystem("memory")
    store.pipe("/records/a.tsv", b"text\tlabel\none\tx\n")
    store.pipe("/records/b.jsonl.gz", gzip.compress(b'{"text": "two"}'))
    records = train("memory://records/*")
    assert [r.fields["text"] for r in records] == ["one", "two"]
    assert records[0].where.endswith("records/a.tsv, line 2")
    both = "memory://records/a.tsv,memory://records/b.jsonl.gz"
    assert [r.fields["text"] for r in train(both)] == ["one", "two"]


def test_fingerprint_depends_on_the_content_alone(write):
    content = "text\tlabel\na\tx\nb\ty\n"
    first, second = train(write("a.tsv", content)), train(write("b.tsv", "\n" + content))
    assert fingerprint(first) == fingerprint(second)
    for other in (content.replace("\na", "\nc"), content.replace("\tx", "\tz"), "text\tlabel\nb\ty\na\tx\n"):
        assert fingerprint(train(write("c.tsv", other))) != fingerprint(first)


def test_damaged_examples_are_left_out_up_to_a_number(write, caplog):
    path = write("a.tsv", "text\tlabel\na\tx\nb\n\t\tx\nc\ty\n")
    records = train(path, damaged_examples=2)
    assert [(r.fields["text"], r.id) for r in records] == [("a", "0"), ("c", "3")]
    assert "line 3 has 1 column " in caplog.text


def test_another_encoding_can_be_set(write):
    assert fields(write("a.tsv", "text\ncaf\u00e9\n".encode("latin-1")), encoding="latin-1") == [{"text": "caf\u00e9"}]
    content = "text,label\r\n\u010a\u0a0a,x\r\ny,z\r\n"
    expected = [{"text": "\u010a\u0a0a", "label": "x"}, {"text": "y", "label": "z"}]
    for encoding in ("utf-16", "utf-16-be", "utf-32"):
        assert fields(write("a.csv", content.encode(encoding)), encoding=encoding) == expected
    assert fields(write("a.txt", '{"text": "a"}\n'.encode("utf-16")), encoding="utf-16") == [{"text": "a"}]


def test_what_is_no_unicode_text_can_be_replaced(write, caplog):
    path = write("a.jsonl", b'{"text": "caf\xe9", "label": "x\\udfff"}\n{"text": "b", "label": "y"}\n')
    assert fields(path, undecodable="replace")[0] == {"text": "caf\ufffd", "label": "x\ufffd"}
    assert "line 1" in caplog.text and "in 1 examples" in caplog.text


def test_cells_beyond_the_columns_that_are_given_by_number_are_ignored_and_counted(write, caplog):
    path = write("a.tsv", "2014\t4.2\tA.\tB.\n2014\t0.5\tC.\tD.\thttp://a\thttp://b\n2015\t3\tE.\tF.\n")
    columns = {"label": "1", "text": "2", "text2": "3"}
    assert [each["text2"] for each in fields(path, columns=columns)] == ["B.", "D.", "F."]
    assert "1 of 3 rows" in caplog.text and "line 2" in caplog.text


def test_validation_examples_are_held_out_of_training(write, caplog):
    path = write("a.tsv", "text\n" + "".join(f"{i}\n" for i in range(50)))
    for asked, count in ((7, 7), (40, 10)):
        config = Config(train=path, held_out=asked)
        texts = {split: [record.fields["text"] for record in read(config, split)] for split in ("train", "validation")}
        assert len(texts["validation"]) == count and sorted(texts["train"] + texts["validation"]) == sorted(
            map(str, range(50)))
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "a fifth of them, 10" in caplog.text


def test_fields_are_documented():
    assert {"text", "label", "words", "tags", "context", "answers", "choices"} <= set(FIELDS)


def test_some_examples_are_taken_at_equal_distances():
    own = list(range(10))
    assert spread(own, 4) == [0, 2, 5, 7]
    assert spread(own, 10) == spread(own, 20) == spread(own, 0) == own
