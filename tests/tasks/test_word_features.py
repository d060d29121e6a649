"""Word vectors and characters beside the tokens of texts."""

import random

import numpy as np
import pytest

import lmrep
from lmrep.core.params import ParamSpec
from lmrep.data import tokenizers
from lmrep.data.records.encoding import input_layout
from lmrep.experiment.fine_tuning import compose_task
from lmrep.objectives.base import FrozenPart
from lmrep.tasks import word_features
from lmrep.tasks.base import Format, TextEncoder
from tests import small
from tests.tasks import tiny
from tests.tasks.questions import TEXTS

TEXT = "  Zoë lives in  Łódź, «naïve» 3,000 km from Bern."
TASKS = {
    "classification": [{"text": "cat dog bird", "label": "good"}, {"text": "fish", "text2": "tree cat", "label": "bad"},
                       {"text": "horse mouse tree stone cat " * 3, "label": "good"},
                       {"text": "dog " * 20, "text2": "bird fish", "label": "bad"},
                       {"text": "tree", "text2": "mouse dog cat " * 7, "label": "bad"}],
    "regression": [{"text": "cat dog bird", "label": "1.5"}, {"text": "fish stone " * 9, "label": "-2"}],
    "multiple_choice": [{"text": "cat dog", "choices": ["bird", "fish tree", "stone"], "label": "1"},
                        {"text": "mouse", "choices": ["dog cat tree", "fish"], "label": "0"}],
    "span_extraction": [{"question": "dog cat", "context": "mouse tree fish " * 5, "answers": [("tree", 6)]},
                        {"question": "horse", "context": "stone dog", "answers": [("dog", 6)]}],
}
VECTORS = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)
PART = FrozenPart("words", "glove.txt", {"vectors": ParamSpec(VECTORS.shape, ("vocab", None))}, tiny.WORDS[:6],
                  values={"vectors": VECTORS}, fingerprint="0")
WORDS = word_features.WordVectors("exact")
CHARACTERS = word_features.Characters(filters=3, width=4, max_length=6, dropout=0.0)


@pytest.mark.parametrize("name", ["wordpiece", "byte_level_bpe", "bpe", "sentencepiece_unigram", "words"])
def test_the_words_of_tokens_are_the_text(name):
    """Also of those that are unknown tokens or several ones, as they are written."""
    config = tokenizers.Config(name=name, vocab_size=58 if name.startswith("sent") else 320)
    tokenizer, forms = tokenizers.train(config, lambda: iter([*TEXTS, TEXT])), {"km": 0}
    encoder = TextEncoder(tokenizer, input_layout(tokenizer.vocabulary, "both", True), 64, Format(), forms)
    numbers = encoder.words(TEXT)
    assert len(numbers) == len(encoder.ids([TEXT], [""])[0])
    words = [*forms]
    found = [words[number] for i, number in enumerate(numbers) if not i or number != numbers[i - 1]]
    assert "".join(found) == "".join(TEXT.split()) and {"Zoë", "km", "from"} <= {*found}
    assert encoder.words("").shape == (0,) and len(forms) == len(words)


@pytest.mark.parametrize(("task", "long"), [
    *((task, "truncate") for task in TASKS), *((task, "windows") for task in TASKS if task != "multiple_choice")])
def test_every_token_of_a_unit_has_its_word(task, long):
    one = tiny.Tiny(task, TASKS[task], length=16, form={"long": long, "stride": 3}, words=WORDS, characters=CHARACTERS,
                    frozen={"words": PART})
    units = word_features.columns(one.config, one.encode()[0], {"words": PART})
    tokens = [one.tokenizer.tokens[i] for i in units.tokens]
    known = {word: i for i, word in enumerate(PART.tokens)}
    special = [token.startswith("[") for token in tokens]
    assert any(special) and not all(special) and len(units.example) > len(one.records) - (long == "truncate")
    assert units.columns["vector"].tolist() == [
        -2 if each else known.get(token, -1) for each, token in zip(special, tokens, strict=True)]
    assert {"stone", "mouse"} & {*tokens}
    expected = [[0] * 6 if each else [byte + 1 for byte in token.encode()[:6].ljust(6, b"\xff")]
                for each, token in zip(special, tokens, strict=True)]
    np.testing.assert_array_equal(units.columns["word_bytes"], np.where(np.array(expected) == 256, 0, expected))


def test_the_linear_network_reads_the_mean_of_the_vectors():
    record = {"text": "cat stone dog", "label": "good"}
    one = tiny.Tiny("classification", [record, {"text": "dog", "label": "bad"}], "none", words=WORDS, pooling="mean",
                    frozen={"words": PART}, dense=False)
    own = one.params["objective"]["classification"]
    vectors = np.stack([np.zeros(5), VECTORS[0], own["network"]["words"]["unknown"], VECTORS[1], np.zeros(5)])
    logits = vectors.mean(0) @ own["out"]["kernel"] + own["out"]["bias"]
    expected = np.exp(logits - np.logaddexp.reduce(logits))
    found = one.score().predictions[0]["probabilities"]
    assert [found[label] for label in one.config.labels] == pytest.approx(expected.tolist(), abs=1e-5)


def orders(count, seed, words):
    """Whether the first of two words comes before the second; words of the training texts, or others."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        first, second = draw.choice(words[:2]), draw.choice(words[2:4])
        text = [first, second] if draw.random() < 0.5 else [second, first]
        for _ in range(draw.randint(0, 4)):
            text.insert(draw.randint(0, len(text)), "the")
        found.append({"text": " ".join(text), "label": str(text.index(first) < text.index(second))})
    return found


@pytest.mark.slow
def test_an_lstm_over_word_vectors_alone_learns_the_order_of_words(tmp_path):
    """Of words that the training texts lack, too: their vectors are close to those of words that occur there."""
    training, unseen = ("cat", "dog", "tree", "stone"), ("lion", "wolf", "bush", "rock")
    draw = np.random.default_rng(0)
    base = np.eye(4, 6)
    lines = {word: base[i % 4] + 0.05 * draw.normal(size=6) for i, word in enumerate((*training, *unseen))}
    (tmp_path / "glove.txt").write_text("".join(
        " ".join([word, *(f"{x:.4f}" for x in vector)]) + "\n" for word, vector in lines.items()))
    tiny.write(tmp_path / "train.jsonl", orders(160, 0, training))
    tiny.write(tmp_path / "dev.jsonl", orders(60, 1, unseen))
    c = compose_task(f"network=bilstm,model=none,vectors={tmp_path}/glove.txt,mesh=1x1x1", "classification")
    assert c.objective.pooling == "mean"
    c.data.train, c.data.validation = str(tmp_path / "train.jsonl"), str(tmp_path / "dev.jsonl")
    c.tokenizer.vocab_size, c.batch_size, c.epochs = 200, 16, 12.0
    c.log.update({"every": 10, "tensorboard": False, "report": False})
    c.objective.bilstm.update({"width": 12, "dropout": 0.0})
    c.objective.update({"pooling": "attention", "dropout": 0.0})
    c.checkpoint.every = c.evaluation.every = 120
    c.optimizer.learning_rate = 1e-2
    outcome = lmrep.train(c, tmp_path / "run")
    assert outcome.after["accuracy"] > 0.95
    run = lmrep.load(tmp_path / "run")
    found = run.predict([each["text"] for each in orders(60, 1, unseen)])
    right = [one["label"] == each["label"] for one, each in zip(found, orders(60, 1, unseen), strict=True)]
    assert np.mean(right) == pytest.approx(outcome.after["accuracy"])
    answer = small.command("predict", f"--workdir={tmp_path}/run", "the lion the rock")
    assert answer.code == 0 and answer.out.startswith("True"), answer
