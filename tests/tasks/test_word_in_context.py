"""A word in two contexts: WiC's and SuperGLUE's files, the tokens of the word, the context that is kept, and a run."""

import json
import random

import numpy as np
import pytest

import lmrep
from lmrep.analysis.report import results as reported
from lmrep.core.errors import UserError
from lmrep.data import records
from lmrep.experiment.task_data import _both_orders
from lmrep.tasks import networks, target_words
from lmrep.tasks.known import KNOWN
from tests.tasks import tiny

NEEDED = ("text", "text2", "span", "span2", "label")
DATA = "bank\tN\t4-1\tThey sat on the bank.\tThe bank was closed .\nrun\tV\t1-1\tThey run it\tThey run\n"
GLUE = {"word": "bank", "sentence1": "on the bank", "sentence2": "a bank", "start1": 7, "start2": 2, "end1": 11,
        "end2": 6, "idx": 5, "label": True}


def example(text, text2, at, at2, label="T"):
    """Two texts and the numbers of their target words."""
    spans = [records.word_in_context.nth_word(*each) for each in ((text, at), (text2, at2))]
    return {"text": text, "text2": text2, "span": spans[0], "span2": spans[1], "label": label}


def examples(count, seed=0):
    """T where the target word of the second text is one of the first four; other words are any."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        texts = [tiny.sentence(draw, draw.randint(1, 6)) for _ in range(2)]
        places = [draw.randrange(len(text.split())) for text in texts]
        found.append(example(*texts, *places, "TF"[texts[1].split()[places[1]] not in tiny.WORDS[:4]]))
    return found


def as_wic(rows):
    """(data, labels) in the form of WiC's files."""
    def places(row):
        return "-".join(str(len(row[text][: row[span][0]].split())) for span, text in (
            ("span", "text"), ("span2", "text2")))
    return ("".join(f"w\tN\t{places(row)}\t{row['text']}\t{row['text2']}\n" for row in rows),
            "".join(f"{row['label']}\n" for row in rows))


def test_files_of_wic_and_of_superglue_give_the_characters_of_the_word(tmp_path):
    (tmp_path / "dev.data.txt").write_text(DATA)
    (tmp_path / "dev.gold.txt").write_text("F\nT\n\n")
    [first, second] = records.read(records.Config(train=str(tmp_path / "dev.data.txt")), "train", NEEDED)
    assert first.fields == {"text": "They sat on the bank.", "text2": "The bank was closed .", "span": [16, 20],
                            "span2": [4, 8], "lemma": "bank", "pos": "N", "label": "F"}
    assert second.fields["label"] == "T" and second.where.endswith("dev.data.txt, line 2")
    (tmp_path / "dev.gold.txt").unlink()
    config = records.Config(test=str(tmp_path / "dev.data.txt"))
    assert all("label" not in record.fields for record in records.read(config, "test", NEEDED))
    tiny.write(tmp_path / "train.jsonl", [GLUE])
    files, data = KNOWN["wic"].form(str(tmp_path))
    [record] = records.read(records.Config(train=str(tmp_path / files["train"]), **data), "train", NEEDED)
    assert record.fields == {"text": "on the bank", "text2": "a bank", "span": [7, 11], "span2": [2, 6],
                             "lemma": "bank", "label": "true"} and record.id == "5"
    (tmp_path / "a.csv").write_text("text,from,to,text2,span2,label\non the bank,7,11,a bank,2-6,true\n")
    config = records.Config(train=str(tmp_path / "a.csv"), columns={"span": "from,to"})
    [other] = records.read(config, "train", NEEDED)
    assert other.fields == {name: value for name, value in record.fields.items() if name != "lemma"}


def test_the_context_around_the_word_is_kept_of_long_texts():
    words = tiny.WORDS * 3
    rows = [example(" ".join(words), "cat tree cat", at, 1) for at in (0, 11, 23)]
    task = tiny.Tiny("word_in_context", [*rows, example("dog", "dog", 0, 0, "F")], length=16)
    units, long = task.encode()
    assert long == 3 and len(units.example) == 4
    for number, at in enumerate((0, 11, 23)):
        own = slice(*units.offsets[number : number + 2])
        tokens, marks = units.tokens[own], units.columns["target_word"][own]
        assert len(tokens) == 16
        assert [task.tokenizer.tokens[i] for i in tokens[marks == 1]] == [words[at]]
        assert [task.tokenizer.tokens[i] for i in tokens[marks == 2]] == ["tree"]
        before = int(np.flatnonzero(marks == 1)[0]) - 1
        assert before == {0: 0, 11: 5, 23: 9}[at]


def test_the_head_reads_the_pair_and_the_means_of_the_words():
    rows = [example("cat dog bird", "fish tree", 1, 0), example("stone", "horse mouse cat", 0, 2, "F")]
    task = tiny.Tiny("word_in_context", rows)
    batch = task.examples().gather(np.arange(2))
    net = networks.bind(task.config, task.model, "word_in_context", {})
    x = np.asarray(networks.token_vectors(task.params, batch, net))
    y = [np.asarray(target_words.vectors(x, batch, number))[:, 0] for number in (1, 2)]
    for i, (first, second) in enumerate([(2, 5), (1, 5)]):
        np.testing.assert_allclose([y[0][i], y[1][i]], [x[i, first], x[i, second]], rtol=1e-6)
    head = task.params["objective"]["word_in_context"]["out"]
    logits = np.concatenate([x[:, 0], *y], -1) @ head["kernel"] + head["bias"]
    found = np.stack(task.outputs(task.examples())["log_probabilities"])
    np.testing.assert_allclose(found, logits - np.logaddexp.reduce(logits, -1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_pairs_in_the_other_order_keep_their_words():
    [one] = tiny.as_records([example("cat dog", "fish", 1, 0)])
    other = _both_orders([one])[1]
    assert other.fields == {"text": "fish", "text2": "cat dog", "span": [0, 4], "span2": [4, 7], "label": "T"}
    assert target_words.marked(other) == {"text": "[fish]", "text2": "cat [dog]"}


@pytest.mark.slow
def test_a_run_on_several_devices_learns_predicts_and_writes_its_labels(tmp_path):
    for name, count in (("train", 300), ("dev", 40)):
        data, labels = as_wic(examples(count, seed=count))
        (tmp_path / f"{name}.data.txt").write_text(data)
        (tmp_path / f"{name}.gold.txt").write_text(labels)
    config = tiny.config("word_in_context", tmp_path / "train.data.txt", tmp_path / "dev.data.txt", "mesh=2x2x2",
                         epochs=5.0)
    lmrep.train(config, tmp_path / "run")
    [results] = json.loads((tmp_path / "run" / "results.json").read_text())["evaluations"]
    assert results["metrics"]["accuracy"] > 0.9 > 0.7 > results["metrics"]["majority_accuracy"]
    written = (tmp_path / "run" / "predictions" / "validation.txt").read_text().splitlines()
    assert len(written) == 40 and {*written} == {"T", "F"}
    run, notes = lmrep.load(tmp_path / "run"), []
    shown = reported.read(tmp_path / "run", run.experiment, [], notes)
    assert shown.examples == 40 and not notes
    assert all(texts.keys() == {"text", "text2", "lemma", "pos"} and "[" in texts["text"]
               for texts, _, _ in shown.worst)
    one = {"text": "stone", "text2": "tree dog", "span": [0, 5], "span2": [5, 8]}
    glue = {"sentence1": "stone", "sentence2": "tree dog", "start1": 0, "end1": 5, "start2": 5, "end2": 8}
    found = run.predict([one, glue, "w\tN\t0-1\tstone\ttree dog", json.dumps(one), "w\tN\t0-0\tstone\ttree dog"])
    assert [each["label"] for each in found] == ["T"] * 4 + ["F"]
    for wrong in ("stone", "w\tN\t0-2\tstone\ttree dog", one | {"span2": [5, 9]}):
        with pytest.raises(UserError):
            run.predict([wrong])
