"""`lmrep score` of generated texts: sacreBLEU's lines and rouge-score's table, with several references."""

import json
import os

import pytest
from rouge_score import rouge_scorer
from sacrebleu.metrics import BLEU, CHRF

TEXTS = ["the cat left", "", "It rains, again!"]
REFERENCES = (["the cat has left", "two dogs", "it is raining again"], ["a cat left", "dogs", "It rains again."])


@pytest.fixture
def files(tmp_path):
    for name, texts in (("texts", TEXTS), ("ref0", REFERENCES[0]), ("ref1", REFERENCES[1])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    rows = [{"id": i, "generated": TEXTS[i], "target": REFERENCES[0][i]} for i in range(len(TEXTS))]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("references", [1, 2])
@pytest.mark.parametrize(("options", "metric"), [
    (["--metric=bleu"], BLEU()),
    (["--metric=bleu", "--tokenize=intl", "--lowercase"], BLEU(tokenize="intl", lowercase=True)),
    (["--metric=chrf"], CHRF()), (["--metric=chrf", "--word_order=2"], CHRF(word_order=2))])
def test_lines_and_figures_are_sacrebleus(score, files, options, metric, references):
    expected = metric.corpus_score(TEXTS, [*REFERENCES[:references]])
    gold = ",".join(str(files / f"ref{i}.txt") for i in range(references))
    code, out, _ = score(*options, f"--gold={gold}", f"--predictions={files / 'texts.txt'}")
    assert (code, out) == (0, expected.format(width=1, signature=str(metric.get_signature())) + "\n")
    code, out, _ = score(*options, f"--gold={gold}", f"--predictions={files / 'texts.txt'}", "--bootstrap=20", "--json")
    found = json.loads(out)
    name = options[0].removeprefix("--metric=")
    low, high = found[f"{name}_interval"]
    assert found[name] == expected.score and low <= found[name] <= high


def test_rouge_is_that_of_its_package_for_the_best_reference(score, files):
    gold = f"--gold={files / 'ref0.txt'},{files / 'ref1.txt'}"
    code, out, _ = score("--metric=rouge", gold, f"--predictions={files / 'texts.txt'}")
    assert code == 0 and out.splitlines()[0] == "score_type,low,mid,high" and len(out.splitlines()) == 13
    code, out, _ = score("--metric=rouge", gold, f"--predictions={files / 'texts.txt'}", "--json")
    scorer = rouge_scorer.RougeScorer(["rouge1"])
    each = [scorer.score_multi(list(own), text)["rouge1"].fmeasure
            for own, text in zip(zip(*REFERENCES, strict=True), TEXTS, strict=True)]
    assert json.loads(out)["rouge1"] == pytest.approx(sum(each) / len(each), abs=0.05)  # the median of resamples


def test_fields_of_json_lines_are_texts(score, files):
    one = score("--metric=bleu", f"--gold={files / 'texts.jsonl'}", f"--predictions={files / 'texts.jsonl'}")
    assert one == score("--metric=bleu", f"--gold={files / 'ref0.txt'}", f"--predictions={files / 'texts.txt'}")


def test_other_numbers_of_texts_and_pipes_are_refused(score, files):
    (files / "short.txt").write_text("a\n")
    code, _, err = score("--metric=chrf", f"--gold={files / 'short.txt'}", f"--predictions={files / 'texts.txt'}")
    assert code == 2 and "short.txt has 1 text," in err
    code, _, err = score("--metric=bleu", "--tokenize=x", f"--gold={files}", f"--predictions={files}")
    assert code == 2 and "--tokenize" in err
    os.mkfifo(files / "pipe")
    code, _, err = score("--metric=accuracy", f"--gold={files / 'pipe'}", f"--predictions={files / 'texts.txt'}")
    assert code == 2 and "pipe is a named pipe" in err
