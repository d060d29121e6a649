"""`lmrep predict` with JSON, an object a line. (Texts as arguments and lines: test_runs.py.)"""

import gzip
import json

import pytest

import lmrep
from lmrep.cli import predict
from tests import given, small


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("predict")
    given.workdir(home, layers=1)
    return home


def run_predict(home, *words, stdin=""):
    return small.command("predict", f"--workdir={home}/run", *words, stdin=stdin)


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_json_lines_keep_their_order_and_have_probabilities(home, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "LINES", 4)
    texts = [f"The [MASK] {'cat ' * (i % 5)}sees{' [MASK]' * (i % 3)}." for i in range(10)]
    records = lines(*({"id": i, "text": text} for i, text in enumerate(texts)))
    result = run_predict(home, "--jsonl", "--k=3", stdin=records.replace("\n", "\n\n", 1))  # blank lines are left out
    found = [json.loads(line) for line in result.out.splitlines()]
    assert result.code == 0 and [record["id"] for record in found] == list(range(10))
    for record, text, expected in zip(found, texts, lmrep.load(home / "run").fill_masks(texts, 3), strict=True):
        assert record["text"] == text and record.keys() == {"id", "text", "masks"}
        for mask, pairs in zip(record["masks"], expected, strict=True):
            assert [candidate["word"] for candidate in mask] == [word for word, _ in pairs]
            assert [candidate["probability"] for candidate in mask] == pytest.approx([p for _, p in pairs], rel=1e-4)
    (tmp_path / "prompts.jsonl").write_text(records)
    assert run_predict(home, "--jsonl", "--k=3", f"--input={tmp_path}/prompts.jsonl").out == result.out


def test_file_of_texts_is_read_line_by_line(home, tmp_path):
    content = "\ufeffThe [MASK] cat.\r\nA\u2028\rcat [MASK].\n".encode()
    (tmp_path / "texts.txt").write_bytes(content)
    (tmp_path / "texts.gz").write_bytes(gzip.compress(content))
    expected = run_predict(home, "The [MASK] cat.", "A\u2028\rcat [MASK].")
    assert expected.code == 0
    assert run_predict(home, f"--input={tmp_path}/texts.txt") == expected
    assert run_predict(home, f"--input={tmp_path}/texts.gz") == expected
    assert run_predict(home, stdin="\ufeffThe [MASK] cat.\n") == run_predict(home, "The [MASK] cat.")


def test_unknown_words_are_reported_once(home, monkeypatch):
    monkeypatch.setattr(predict, "LINES", 1)
    assert not run_predict(home, "A cat [MASK] [UNK].").err
    assert run_predict(home, "A [MASK] cat", "A \u732b [MASK]", "\u4eba [MASK]").err == (
        "warning: 2 of 8 words are unknown to the tokenizer, for example '\u732b', and are read as [UNK]\n")


@pytest.mark.parametrize(("invalid", "message"), [
    ("The [MASK].", "line 3 of standard input is not JSON: Expecting value"),
    ('["The [MASK]."]', 'line 3 of standard input is ["The [MASK]."]; expected {"text": "..."}'),
    ('{"texts": "The [MASK]."}', 'expected {"text": "..."}'),
    ('{"text": 3}', 'line 3 of standard input is {"text": 3}'),
    ('{"text": "The cat."}', "line 3 of standard input: there is no [MASK] in 'The cat.'"),
    (json.dumps({"text": "[MASK]" + " cat" * 60}), "line 3 of standard input: '[MASK] cat"),
    ('{"text": "\\ud800 [MASK]"}', "line 3 of standard input is not UTF-8 text"),
])
def test_invalid_line_is_reported_by_number(home, invalid, message):
    result = run_predict(home, "--jsonl", stdin=lines({"text": "A [MASK]."}) + "\n" + invalid + "\n")
    assert result.code == 2 and message in result.err and "Traceback" not in result.err, result


@pytest.mark.parametrize(("words", "message"), [
    (["--jsonl", "A [MASK]."], "was given the text 'A [MASK].' and --jsonl"),
    (["--input=x", "A [MASK]."], "was given the text 'A [MASK].' and --input"),
    (["--input=/nowhere/x"], "cannot read /nowhere/x: No such file or directory"),
    (["--jsonl"], "standard input has no text"),
])
def test_predict_refuses_invalid_input(home, words, message):
    result = run_predict(home, *words)
    assert result.code == 2 and message in result.err


def test_text_that_is_not_utf_8_is_refused(home, tmp_path):
    (tmp_path / "latin.txt").write_bytes("A [MASK].\nUn café [MASK].\n".encode("latin-1"))
    result = run_predict(home, f"--input={tmp_path}/latin.txt")
    assert result.code == 2 and "latin.txt is not UTF-8 text" in result.err and "byte 0xe9" in result.err
