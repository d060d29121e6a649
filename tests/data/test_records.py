"""Labelled examples in TSV, CSV and JSON Lines, and what is common to every reader."""

import gzip
import json
import os

import fsspec
import pytest

from lmrep.core.errors import UserError
from lmrep.data.records import FIELDS, READERS, Config, Record, delimited, fingerprint, read, spread


def train(path, needed=(), **settings):
    return read(Config(train=path, **settings), "train", needed)


def fields(path, **settings):
    return [record.fields for record in train(path, **settings)]


def refused(path, *words, split="train", needed=(), **settings):
    with pytest.raises(UserError) as error:
        read(Config(**{split: path}, **settings), split, needed)
    message = str(error.value)
    assert all(word in message for word in words), message


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


@pytest.mark.parametrize("text", ["\u200b\u200d", "\ufeff \x00", "\u2028"])
def test_text_without_a_visible_character_is_empty(write, text):
    path = write("a.jsonl", json.dumps({"text": "x"}) + "\n" + json.dumps({"text": text}) + "\n")
    refused(path, "a.jsonl, line 2: the text is empty")


def test_test_files_may_have_other_columns_and_no_labels(write):
    path = write("test.tsv", "index\tsentence\n4\tOne.\n")
    config = Config(train="", test=path, columns={"label": "1", "text": "3"},
                    test_columns={"text": "sentence", "id": "index"})
    assert read(config, "test") == [Record({"text": "One."}, "4", "test.tsv, line 2")]
    assert read(Config(test=path, columns={"label": "gold", "text": "sentence"}), "test", ["text", "label"])[0].fields \
        == {"text": "One."}
    write("empty.tsv", "text\tlabel\nOne.\t\n")
    assert read(Config(test="empty.tsv"), "test")[0].fields == {"text": "One."}
    refused("empty.tsv", "line 2", "label is empty")


def test_whether_there_is_a_header_can_be_stated(write):
    path = write("a.tsv", "quality\tfirst\n1\tOne.\n")
    columns = {"label": "0", "text": "1"}
    assert len(fields(path, columns=columns)) == 2
    assert fields(path, columns=columns, header="yes") == [{"label": "1", "text": "One."}]
    refused(path, "header is no", "'first'", columns={"text": "first"}, header="no")


def test_csv_is_quoted_and_cells_may_hold_line_breaks(write):
    path = write("a.csv", 'text,label\r\n"He said ""no"",\r\nthen left",1\r\nplain,0\r\n')
    records = train(path)
    assert records[0].fields == {"text": 'He said "no",\nthen left', "label": "1"}
    assert records[1].where == "a.csv, line 4"


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
    refused(path, "no 'e3'", "e0", columns={**columns, "choices": "e0,e3"})
    refused(write("b.csv", "sent,e0,e1,gold\nHe,ran,sat,2\n"), "line 2", "'2'", "0 to 1",
            columns={**columns, "choices": "e0,e1"})


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
    refused(path, "'LOC:city'", "'LOC'", label_map={"LOC": "place"})
    assert len(train(path, label_map={"-": ""})) == 3
    assert len(read(Config(validation=path, label_map={"LOC": "place"}), "validation")) == 3
    refused(path, "all 3 are left out", label_until=":", label_map=dict.fromkeys(("LOC", "NUM", "DESC"), ""))


def test_tags_are_mapped(write):
    path = write("a.jsonl", json.dumps({"words": ["Ann", "left"], "tags": [1, 0]}) + "\n")
    assert fields(path, label_map={"0": "O", "1": "B-PER"}) == [{"words": ["Ann", "left"], "tags": ["B-PER", "O"]}]
    refused(path, "a.jsonl, line 1", "label_map leaves a word without a tag", label_map={"0": ""})
    refused(path, "label_map has none of the labels", label_map={"B": "O"})


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
    refused("a.tsv,e.tsv", "'e.tsv' match no file")


def test_remote_files_are_read_like_local_ones(write):
    store = fsspec.filesystem("memory")
    store.pipe("/records/a.tsv", b"text\tlabel\none\tx\n")
    store.pipe("/records/b.jsonl.gz", gzip.compress(b'{"text": "two"}'))
    records = train("memory://records/*")
    assert [r.fields["text"] for r in records] == ["one", "two"]
    assert records[0].where.endswith("records/a.tsv, line 2")
    both = "memory://records/a.tsv,memory://records/b.jsonl.gz"
    assert [r.fields["text"] for r in train(both)] == ["one", "two"]
    refused("memory://records/*.csv", "no file in that store")
    refused("no_such_store://a.tsv", "no_such_store")


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
    refused(path, "more than 1 examples", "the first", "line 3", damaged_examples=1)


def test_every_reader_is_named_in_the_message_about_an_unknown_format(write):
    refused(write("a.txt", "some text\n"), "a.txt", *READERS)
    refused("a.txt", "'tvs'", "did you mean 'tsv'", format="tvs")


@pytest.mark.parametrize(("name", "content", "settings", "words"), [
    ("a.tsv", "text\tlabel\na\tx\n", {"columns": {"text": "sentense"}}, ["line 1", "'sentense'", "text, label"]),
    ("a.tsv", "sentence\tlabel\na\tx\n", {"columns": {"text": "sentense"}}, ["did you mean 'sentence'"]),
    ("a.tsv", "text\tx\na\tx\n", {"needed": ["text", "label"]}, ["no 'label'", "{'label': 'x'}", "from 0"]),
    ("a.tsv", "body;class\na;x\n", {"columns": {"text": "body"}}, ["separated by ';'", "config.data.separator=';'"]),
    ("a.csv", "body;class\na;x\n", {"columns": {"text": "body"}, "separator": ","}, ["config.data.separator=';'"]),
    ("a.jsonl", '{"a": "b"}\n' * 3, {"columns": {"text": "c"}, "damaged_examples": 2},
     ["more than 2 examples", "the first", "line 1"]),
    ("a.tsv", "a\tb\nc\td\n", {"columns": {"text": "2"}}, ["2 columns", "no column 2"]),
    ("a.tsv", "gj04\t1\n", {}, ["'gj04', '1'", "set config.data.columns"]),
    ("a.tsv", "text\tlabel\na\tx\ty\n", {}, ["line 2", "3 columns", "the header 2"]),
    ("a.tsv", "a\tx\nb\n", {"columns": {"text": "1"}}, ["line 2", "1 column ", "line 1 2"]),
    ("a.tsv", "a\tx\nb\n", {"columns": {"text": "0", "label": "-1"}}, ["line 2", "1 column ", "line 1 2"]),
    ("a.tsv", "text\tlabel\n \tx\n", {}, ["line 2", "text is empty"]),
    ("a.tsv", "text\tlabel\na b\tx\n\t\n", {}, ["line 3", "label is empty"]),
    ("a.tsv", "text\tlabel\na\t:x\n", {"label_until": ":"}, ["line 2", "nothing precedes", "':x'"]),
    ("a.jsonl", '{"text": "a", "label": " "}\n', {}, ["line 1", "label is empty"]),
    ("a.jsonl", '{"text": "a", "label": null}\n', {"needed": ["label"]}, ["line 1", "no 'label': it is null"]),
    ("a.tsv", b"text\tlabel\ncaf\xe9\tx\n", {}, ["a.tsv, line 2", "UTF-8", "0xe9", "encoding"]),
    ("a.tsv", "text\tlabel\n", {}, ["no examples"]),
    ("a.tsv", "", {}, ["no examples"]),
    ("a.tsv", "text\tlabel\na\tx\n", {"columns": {"txt": "0"}}, ["'txt'", "did you mean 'text'"]),
    ("a.tsv", "text\tlabel\na\tx\n", {"needed": ["text2"]}, ["no 'text2'", "text, label"]),
    ("a.tsv", "words\ttags\na b\tX\n", {}, ["line 2", "2 words and 1 tags"]),
    ("a.csv", 'text,label\na,x\n"b,y\n', {}, ["a.csv, line 3", "not closed"]),
    ("a.csv", 'text,label\na,x\n"b,y\n', {"damaged_examples": 9}, ["a.csv, line 3", "not closed", "separator=','"]),
    ("a.csv", 'text,label\n"a"b,x\nc,y\n', {}, ["a.csv, line 2", "not valid CSV"]),
    ("a.csv", 'sent1,sent2,ending0,ending1,"label\n', {"format": "choices"}, ["a.csv, line 1", "not closed"]),
    ("a.csv", "", {"format": "choices"}, ["no examples"]),
    ("a.jsonl", '{"text": "a \\ud800"}\n', {}, ["a.jsonl, line 1: the text", "surrogate", "undecodable=replace"]),
    ("a.jsonl", '{"text": "a", "label": "x\\udfff"}\n', {}, ["a.jsonl, line 1: the label", "surrogate"]),
    ("a.jsonl", '{"text": "a", "id": "\\ud8003"}\n', {}, ["a.jsonl, line 1: the id", "surrogate"]),
    ("a.jsonl", '{"words": ["a", "\\ud800"]}\n', {}, ["a.jsonl, line 1: the words", "surrogate"]),
    ("a.jsonl", '{"text": "a", "label": 0, "label": 1}\n', {}, ["a.jsonl, line 1", "'label' occurs twice"]),
    ("a.jsonl", '{"text": "a", "label": %s}\n' % ("9" * 5000), {}, ["a.jsonl, line 1", "5,000 digits"]),
    ("a.jsonl", '{"text": "a", "label": %s}\n' % ("[" * 5000), {}, ["a.jsonl, line 1", "nests deeper"]),
    ("a.jsonl", '{"choices": ["a", "b"], "label": "%s"}\n' % ("1" * 5000), {}, ["'111", "...; expected", "0 to 1"]),
    ("a.tsv", "text\na\n", {"encoding": "undefined"}, ["'undefined'"]),
    ("a.tsv", "text\na\n", {"encoding": "a\0b"}, ["config.data.encoding"]),
    ("a.tsv", "text\na\n", {"columns": {"text": "9" * 5000}}, ["line 1"]),
    ("a.jsonl", '{"text": "a"}\n{"text": }\n', {}, ["a.jsonl, line 2", "not JSON", "character 10"]),
    ("a.json", '[{"text": "a"},\n {"text" "b"}]', {}, ["a.json is not JSON", "line 2"]),
    ("a.jsonl", '{"text": "a"}\n[1]\n', {}, ["line 2", "a list"]),
    ("a.jsonl", '{"txt": "a", "b": 1}\n', {"needed": ["text"]}, ["line 1", "no 'text'", "txt, b"]),
    ("a.jsonl", '{"text": 5}\n', {"needed": ["text"]}, ["line 1", "'text' is 5", "a string"]),
    ("a.jsonl", '{"body": {"x": 1}}\n', {"columns": {"text": "body.text"}}, ["no 'body.text'", "body"]),
    ("a.jsonl", '{"words": ["a", " "]}\n', {}, ["line 1", "one of the words is empty"]),
    ("a.jsonl", '{"choices": ["a", ""], "label": 0}\n', {}, ["line 1", "one of the choices is empty"]),
    ("a.jsonl", '{"choices": ["a", "b"], "label": 2}\n', {}, ["line 1", "'2'", "0 to 1"]),
    ("a.jsonl", '{"choices": ["a", "b"], "label": "B"}\n', {}, ["'B'", "label_map"]),
    ("a.jsonl", '{"context": "a b", "answers": [["b", 1]]}\n', {}, ["line 1", "'b'", "character 1", "' '"]),
    ("a.jsonl", '{"context": "a b", "answers": [["b", 9]]}\n', {}, ["character 9", "''"]),
    ("a.jsonl", '{"other": 1}\n', {}, ["'other'", "set config.data.columns"]),
    ("a.jsonl.gz", b"plain", {"format": "jsonl"}, ["not an intact gzip file"]),
    ("a.jsonl.gz", gzip.compress(b'{"text": "a"}' * 99, mtime=0)[:-20], {"format": "jsonl"},
     ["not an intact gzip file"]),
    ("a.tsv", "text\na\n", {"encoding": "utf8x"}, ["'utf8x'"]),
    ("a.tsv", "text\na\n", {"encoding": "base64"}, ["'base64'"]),
    ("a.tsv", "text\na\n", {"encoding": "idna"}, ["config.data.encoding is 'idna'"]),
    ("a.tsv", "text\na\n", {"encoding": "punycode"}, ["config.data.encoding is 'punycode'"]),
    ("a.tsv", "text\na\n".encode("utf-16"), {}, ["a.tsv begins", "UTF-16", "'utf-8'; set it to utf-16"]),
    ("a.txt", "text\na\n".encode("utf-16"), {}, ["set it to utf-16"]),
    ("a.tsv", b"a\0\x1b[1m\x07\tb\n", {"needed": ["text"]}, [r"a\x00\x1b[1m\x07, b"]),
    ("a.tsv", "\t".join("x" * i for i in range(1, 999)) + "\n", {"needed": ["text"]}, ["xxx, ...: set"]),
    ("a.json", '{"data": [{"body": "a"}]}', {"needed": ["text"]}, ["a.json, data[0] has no 'text'", "fields body"]),
])
def test_bad_files_are_refused(write, name, content, settings, words):
    refused(write(name, content), *words, **settings)


def test_a_split_without_files_is_refused(write):
    refused("*.tsv", "train files", "'*.tsv'", "no file")
    refused("", "no validation files", split="validation")


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
    refused(path, "line 2 has 6 columns", columns=columns | {"text2": "-1"})


def test_validation_examples_are_held_out_of_training(write, caplog):
    path = write("a.tsv", "text\n" + "".join(f"{i}\n" for i in range(50)))
    for asked, count in ((7, 7), (40, 10)):
        config = Config(train=path, held_out=asked)
        texts = {split: [record.fields["text"] for record in read(config, split)] for split in ("train", "validation")}
        assert len(texts["validation"]) == count and sorted(texts["train"] + texts["validation"]) == sorted(
            map(str, range(50)))
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "a fifth of them, 10" in caplog.text
    for other in ({"phrases": True}, {"validation": path}):
        refused(path, "config.data.held_out", *other, held_out=5, **other)
    refused(write("b.tsv", "text\na\n"), "held_out", held_out=5)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "a.tsv")
    refused(str(tmp_path / "a.tsv"), "a.tsv is a named pipe")
    refused(str(tmp_path / "a.tsv"), "a.tsv is a named pipe", format="tsv")


def test_fields_are_documented():
    assert {"text", "label", "words", "tags", "context", "answers", "choices"} <= set(FIELDS)


def test_some_examples_are_taken_at_equal_distances():
    own = list(range(10))
    assert spread(own, 4) == [0, 2, 5, 7]
    assert spread(own, 10) == spread(own, 20) == spread(own, 0) == own
