"""`lmrep predict` with JSON, an object a line. (Texts as words and lines: tests/test_cli_runs.py.)"""

import json

import pytest

import lmrep
from lmrep.cli import predict
from tests import given, small


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("predict")
    given.workdir(home)
    return home


def asked(home, *words, stdin=""):
    return small.command("predict", f"--workdir={home}/run", *words, stdin=stdin)


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_json_lines_keep_their_order_and_have_probabilities(home, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "LINES", 4)
    texts = [f"The [MASK] {'cat ' * (i % 5)}sees{' [MASK]' * (i % 3)}." for i in range(10)]
    given_ = lines(*({"id": i, "text": text} for i, text in enumerate(texts)))
    answer = asked(home, "--jsonl", "--k=3", stdin=given_.replace("\n", "\n\n", 1))  # blank lines are left out
    found = [json.loads(line) for line in answer.out.splitlines()]
    assert answer.code == 0 and [record["id"] for record in found] == list(range(10))
    for record, text, expected in zip(found, texts, lmrep.load(home / "run").fill_masks(texts, 3), strict=True):
        assert record["text"] == text and record.keys() == {"id", "text", "masks"}
        for mask, pairs in zip(record["masks"], expected, strict=True):
            assert [answer["word"] for answer in mask] == [word for word, _ in pairs]
            assert [answer["probability"] for answer in mask] == pytest.approx([p for _, p in pairs], rel=1e-4)
    (tmp_path / "asked.jsonl").write_text(given_)
    assert asked(home, "--jsonl", "--k=3", f"--input={tmp_path}/asked.jsonl").out == answer.out


def test_file_of_texts_is_read_line_by_line(home, tmp_path):
    (tmp_path / "texts.txt").write_text("The [MASK] cat.\nA [MASK].\n")
    assert asked(home, f"--input={tmp_path}/texts.txt") == asked(home, "The [MASK] cat.", "A [MASK].")


@pytest.mark.parametrize(("bad", "message"), [
    ("The [MASK].", "line 3 of standard input is not JSON: Expecting value"),
    ('["The [MASK]."]', 'line 3 of standard input is ["The [MASK]."]; expected {"text": "..."}'),
    ('{"texts": "The [MASK]."}', 'expected {"text": "..."}'),
    ('{"text": 3}', 'line 3 of standard input is {"text": 3}'),
    ('{"text": "The cat."}', "line 3 of standard input: there is no [MASK] in 'The cat.'"),
    (json.dumps({"text": "[MASK]" + " cat" * 60}), "line 3 of standard input: '[MASK] cat"),
    ('{"text": "\\ud800 [MASK]"}', "line 3 of standard input is not UTF-8 text"),
])
def test_bad_line_is_reported_by_number(home, bad, message):
    answer = asked(home, "--jsonl", stdin=lines({"text": "A [MASK]."}) + "\n" + bad + "\n")
    assert answer.code == 2 and message in answer.err and "Traceback" not in answer.err, answer


@pytest.mark.parametrize(("words", "message"), [
    (["--jsonl", "A [MASK]."], "was given the text 'A [MASK].' and --jsonl"),
    (["--input=x", "A [MASK]."], "was given the text 'A [MASK].' and --input"),
    (["--input=/nowhere/x"], "cannot read /nowhere/x: No such file or directory"),
    (["--jsonl"], "standard input has no text"),
])
def test_predict_refuses_invalid_input(home, words, message):
    answer = asked(home, *words)
    assert answer.code == 2 and message in answer.err


def test_text_that_is_not_utf_8_is_refused(home, tmp_path):
    (tmp_path / "latin.txt").write_bytes("A [MASK].\nUn café [MASK].\n".encode("latin-1"))
    answer = asked(home, f"--input={tmp_path}/latin.txt")
    assert answer.code == 2 and "latin.txt is not UTF-8 text" in answer.err and "byte 0xe9" in answer.err
