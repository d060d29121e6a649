"""Sliding-window perplexity of raw text: `lmrep evaluate --stride` and `lmrep.evaluate(..., stride=...)`.

What the objective's own metrics come to is in test_api.py and test_cli_runs.py.
"""

import dataclasses
import itertools
import json
import logging
import sys
from collections import Counter

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

import lmrep
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.store import tokenize
from lmrep.data.tokenizers import byte_level
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.inference import evaluate, special_tokens
from lmrep.inference import perplexity as sliding
from lmrep.interop import conversion
from lmrep.models.base import Context, model_inputs
from tests import runs, small
from tests.interop.test_published import GOLDEN

LENGTH = 32
# name: (file, its text as it is evaluated, words, bytes); both are counted by hand.
RAW_TEXTS = {
    "crlf": (b"\xef\xbb\xbfThe cat\r\nsees\rthe dog.\r\n\r\n", "The cat\nsees\nthe dog.", 5, 21),
    "accents": ("Ça  élève\tnaïve.".encode(), "Ça  élève\tnaïve.", 3, 20),
    "emoji": ("the 👩‍🚀 cat\0\n👍🏽".encode(), "the 👩‍🚀 cat\n👍🏽", 4, 4 + 11 + 5 + 8),
    "spaces": ("the\u00a0cat\u3000sees\u2028the   dog".encode(), "the\u00a0cat\u3000sees\u2028the   dog", 5, 27),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A copy of the shared causal run in `run`."""
    home = tmp_path_factory.mktemp("evaluating")
    runs.copy("causal", home / "run")
    return home


@pytest.fixture(scope="module")
def data():
    """The folder of the run's stores."""
    return runs.folder("causal") / "data"


@pytest.fixture(scope="module")
def run(home):
    return lmrep.load(home / "run")


@pytest.fixture(scope="module")
def converted(home):
    """A GPT-2 with a byte-level tokenizer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)  # it takes seconds to import
        conversion.to_workdir(GOLDEN / "gpt2", home / "converted")
    return lmrep.load(home / "converted")


@pytest.fixture(scope="module")
def log_probabilities(run):
    """Next-token log-probabilities [t, v] of ids [t], by the full network without windows or cache."""
    batch = {"segment_ids": np.ones((1, LENGTH), int), "positions": np.arange(LENGTH)[None]}

    def inputs(tokens):
        return model_inputs(run.model, batch | {"tokens": tokens}, conditions_on=Context.LEFT)

    program = jax.jit(lambda tokens: run.objective.uses.next_token.logits(
        run.params, run.apply(run.params, inputs(tokens)).hidden))

    def log_probabilities(ids):
        padded = np.pad(np.asarray(ids, np.int32), (0, LENGTH - len(ids)))[None]
        return log_softmax(np.asarray(program(padded))[0, : len(ids)].astype(np.float64), -1)

    return log_probabilities


def sequence(run, text):
    return np.array([run.tokenizer.vocabulary.specials["cls"], *run.tokenizer.encode(text).ids])


# What is computed


@pytest.mark.parametrize(("text", "stride"), [("the", 1), ("the red cat sees the old dog. the dog sleeps.", 31)])
def test_text_of_one_window_has_the_network_s_loss(run, log_probabilities, text, stride):
    ids = sequence(run, text)
    log_probs = log_probabilities(ids)
    expected = -sum(log_probs[i - 1, ids[i]] for i in range(1, len(ids)))
    found = sliding.perplexity(run, [text], LENGTH, stride)
    assert found.tokens == len(ids) - 1 < LENGTH and found.nll == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("stride", [1, 7])
def test_long_text_has_the_loss_of_its_windows(run, log_probabilities, stride):
    text = " ".join(f"the {kind} {noun} {verb} the cat." for kind, noun, verb in zip(
        itertools.cycle(small.ADJECTIVES), itertools.cycle(small.NOUNS), small.VERBS * 5, strict=False))
    ids, expected = sequence(run, text), 0.0
    for i in range(1, len(ids)):  # in the first window that reaches it
        start = stride * max(0, -(-(i + 1 - LENGTH) // stride))
        assert i - start >= min(i, LENGTH - stride)
        expected -= log_probabilities(ids[start:i])[-1, ids[i]]
    found = sliding.perplexity(run, [text], LENGTH, stride)
    assert found.tokens == len(ids) - 1 > 3 * LENGTH and found.nll == pytest.approx(expected, rel=1e-5)


def test_texts_are_independent(run):
    texts = ["the red cat sees the dog.", "", "the old horse. " * 30, "   "]
    alone = [sliding.perplexity(run, [text], LENGTH, 9) for text in texts if text.strip()]
    found = sliding.perplexity(run, iter(texts), LENGTH, 9)
    assert found.documents == 2
    np.testing.assert_allclose(found, np.sum(alone, axis=0), rtol=1e-5)


@pytest.mark.parametrize("case", RAW_TEXTS)
def test_uniform_model_has_the_vocabulary_size_as_perplexity(converted, case):
    """Its perplexity is the size of its table, of any text; words and bytes are those of the raw text."""
    uniform = dataclasses.replace(converted, params=jax.tree.map(np.zeros_like, converted.params))
    _, text, words, size = RAW_TEXTS[case]
    found = sliding.perplexity(uniform, [text], 16, 5)
    figures, bits = found.figures, found.tokens * np.log2(converted.model.vocab_size)
    assert found.tokens == len(converted.tokenizer.encode(text).ids)  # white space is read as it stands
    assert (found.words, found.bytes, found.documents) == (words, size, 1)
    assert figures["token_perplexity"] == pytest.approx(converted.model.vocab_size, rel=1e-4)
    assert figures["bits_per_byte"] == pytest.approx(bits / size, rel=1e-4)
    assert np.log2(figures["word_perplexity"]) == pytest.approx(bits / words, rel=1e-4)


def test_words_and_bytes_are_counted_in_the_raw_text(home, data, run, tmp_path):
    for name, (content, *_) in RAW_TEXTS.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    found = lmrep.evaluate(home / "run", files=f"{tmp_path}/*.txt", stride=31, data_dir=data)
    _, texts, words, sizes = zip(*RAW_TEXTS.values(), strict=True)
    assert (found["words"], found["bytes"], found["documents"]) == (sum(words), sum(sizes), 4)
    assert found["tokens"] == sum(len(run.tokenizer.encode(text).ids) for text in texts)


@pytest.mark.parametrize("limit", [20, 25])
def test_chunked_tokenization_equals_tokenization_of_the_full_text(run, limit):
    text = "the cat  sees\nthe\u00a0dog , it's a b 12 345 6   \n\n x y z " * 3
    bytes_ = byte_level.train(300, False, lambda: iter([text, "the the cat cat sees sees"]))
    for tokenizer in (run.tokenizer, bytes_):
        ids = tokenizer.encode_batch([text])[0]
        np.testing.assert_array_equal(sliding.encode_verbatim(tokenizer, text, limit), ids)
    assert bytes_.decode(ids) == text
    assert bytes_.decode(sliding.encode_verbatim(bytes_, "catdog" * 50, limit)) == "catdog" * 50  # cut anywhere


# What stands before a document

SPECIALS = {"bert": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}, "gpt2": {"bos": 9, "eos": 9, "unk": 9},
            "t5": {"pad": 0, "eos": 1, "unk": 2}, "bos": {"bos": 5, "eos": 6, "unk": 0}, "none": {"unk": 0}}


@pytest.mark.parametrize(("specials", "format", "fields", "expected"), [
    ("bert", "packed", {}, 2), ("bert", "full_sentences", {}, 2), ("bos", "packed", {}, 5),
    ("gpt2", "packed", {}, None), ("gpt2", "packed", {"objective.across": True}, 9),
    ("bert", "stream", {}, 3), ("gpt2", "stream", {}, 9), ("bos", "stream", {}, 6),
    ("bert", "stream", {"format.isolate": True}, None),
    ("bert", "stream", {"format.isolate": True, "objective.across": True}, 3),
    ("bert", None, {}, 2), ("gpt2", None, {}, 9), ("bos", None, {}, 5), ("t5", None, {}, 1), ("none", None, {}, None),
])
def test_start_token_is_that_of_training(tmp_path, specials, format, fields, expected):
    vocabulary, stage = Vocabulary(10, SPECIALS[specials], np.ones(10, bool), np.ones(10, int)), None
    if format:
        config = small.config(tmp_path, "causal", format)
        config.update_from_flattened_dict(fields)
        [stage] = experiments.resolve_stages(experiments.parse(config))
    assert special_tokens.start_token(stage, vocabulary) == expected


def test_first_token_is_not_predicted_without_a_start_token(run, monkeypatch):
    texts = ["the red cat", "the"]
    monkeypatch.setattr(special_tokens, "start_token", lambda stage, vocabulary: None)
    found = sliding.perplexity(dataclasses.replace(run), texts, LENGTH, 4)
    assert (found.tokens, found.words, found.documents) == (2, 3, 1)  # nothing is asked of "the"


def test_unknown_tokens_are_reported(run, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("lmrep"), "propagate", True)
    caplog.set_level(logging.INFO, "lmrep")
    sliding.perplexity(run, ["the cat sees the dog."], LENGTH, 4)
    assert not caplog.messages
    sliding.perplexity(run, ["the \u732b sees the dog \u732b."], LENGTH, 4)
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("2 of 7 tokens are [UNK]; ")


# The corpus


def test_splits_contain_the_documents_of_the_run(home, data):
    """Each split has the tokens of its store, and together they have the words and bytes of the files. No evaluation
    takes the place of another."""
    total, every = Counter(), home / "run/eval.jsonl"
    previous = every.read_text().splitlines() if every.exists() else []
    for split in ("train", "validation", "test"):
        found = lmrep.evaluate(home / "run", split=split, stride=16, data_dir=data)
        written = json.loads((home / "run/eval.json").read_text())
        assert written == {"step": 150, "split": split, "stride": 16, "length": LENGTH, "metrics": found}
        [facts] = data.glob("text_files-*/statistics.json")
        kept = json.loads(facts.read_text())[split]
        assert (found["tokens"], found["documents"]) == (kept["tokens"], kept["documents"])
        assert found["documents"] > 2
        total.update(found)
        previous.append(json.dumps(written))
    assert every.read_text().splitlines() == previous
    texts = [path.read_text().strip() for path in (runs.folder("causal") / "texts").iterdir()]
    assert total["bytes"] == sum(map(len, texts)) and total["words"] == sum(len(text.split()) for text in texts)


def test_command_prints_what_it_writes(home, data):
    words = ("evaluate", f"--workdir={home}/run", f"--data_dir={data}", "--stride=16", "--examples=2")
    result = small.command(*words)
    written = json.loads((home / "run/eval.json").read_text())
    shown = dict(line.split() for line in result.out.splitlines())
    assert result.code == 0 and [*shown] == [
        "token_perplexity", "word_perplexity", "bits_per_byte", "tokens", "words", "bytes", "documents"]
    assert shown == {name: f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
                     for name, value in written["metrics"].items()}
    assert shown["documents"] == "2" and written["split"] == "test"
    assert "windows of 32 tokens, 16 apart" in result.err


def test_file_is_a_document_and_a_trained_run_has_a_low_perplexity(home, run, tmp_path):
    (tmp_path / "one.txt").write_text("The red cat sees the old dog.\n\nThe dog eats.\n")
    found = lmrep.evaluate(home / "run", files=f"{tmp_path}/one.txt", stride=8, step=150)
    assert found["documents"] == 1 and found["tokens"] == 12 and found["words"] == 10
    assert found["token_perplexity"] < run.model.vocab_size / 4


def test_evaluation_reads_all_sources_of_a_mixture(home, data, tmp_path):
    """For a run whose config has a mixture."""
    runs.copy("causal", tmp_path / "run")
    small.corpus(tmp_path / "more", 20, seed=1)
    record = json.loads((home / "run/config.json").read_text())
    record["config"]["sources"] = [{"weight": 3.0}, {"data": {"files": f"{tmp_path}/more/*.txt"}}]
    record["config"]["tokenizer"]["vocab_file"] = str(home / "run/tokenizer")
    prepared = build.prepare_data(experiments.parse(record["config"]), data).corpus
    record["data"] |= {split: store.fingerprint for split, store in prepared.stores.items()}
    (tmp_path / "run/config.json").write_text(json.dumps(record))
    found = lmrep.evaluate(tmp_path / "run", stride=8, data_dir=data)
    kept = prepared.statistics["test"]
    assert (found["documents"], found["tokens"]) == (kept["documents"], kept["tokens"])
    assert prepared.stores["test"].tokens == kept["tokens"] > prepared.stores["test"].stores[0].tokens


def test_changed_corpus_is_refused(home, data, tmp_path):
    runs.copy("causal", tmp_path / "run")
    record = json.loads((home / "run/config.json").read_text())
    record["config"]["data"]["test"] = 0.2
    (tmp_path / "run/config.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"the files of the corpus have changed since .* was trained"):
        lmrep.evaluate(tmp_path / "run", stride=8, data_dir=data)


# Long texts


def test_texts_are_read_lazily():
    taken = itertools.count()
    texts = (np.full(50, next(taken) % 7, np.int32) for _ in itertools.count())
    batches = sliding.sliding_window_nll(lambda batch: np.float32(batch["weights"].sum()), texts, 16, 4, 0, tokens=64)
    assert [next(batches) for _ in range(3)]
    assert next(taken) < 5


def test_long_document_is_never_copied_in_full(run, monkeypatch):
    """Only the ids have an array for the full text; windows are processed one at a time."""
    text, largest = "the red cat sees the old dog. " * 20_000, []
    batch = sliding._batch
    monkeypatch.setattr(sliding, "_batch", lambda members, length, batch_size, pad: (
        largest.append(length * batch_size) or batch(members, length, batch_size, pad)))
    monkeypatch.setattr(sliding, "sum_nll", lambda params, batch, objective, model: batch["weights"].sum())
    found = sliding.perplexity(run, [text], LENGTH, 31)
    assert found.tokens == found.nll == len(tokenize.tokenize(run.tokenizer, [text]).tokens)
    assert len(largest) > 10 and len({*largest}) == 1 and largest[0] < found.tokens / 10


def test_an_objective_that_gives_logits_alone_has_the_same_perplexity(run, log_probabilities):
    """And its loss is not computed, which may read other fields of a batch."""
    text = "the red cat sees the old dog."
    expected = sliding.perplexity(run, [text], LENGTH, 31)
    uses = run.objective.uses._replace(next_token=run.objective.uses.next_token._replace(nll=None))
    other = dataclasses.replace(run, objective=run.objective._replace(loss=None, uses=uses))
    found = sliding.perplexity(other, [text], LENGTH, 31)
    assert found.nll == pytest.approx(expected.nll, rel=1e-5) and found.tokens == expected.tokens


@pytest.mark.parametrize("change", [{"next_token": None}, {"conditions_on": Context.SOURCE}], ids=str)
def test_an_objective_that_does_not_predict_from_left_to_right_is_refused(run, change):
    """As span corruption, whose decoder reads a source."""
    objective = run.objective._replace(uses=run.objective.uses._replace(**change))
    with pytest.raises(UserError, match="needs a run that predicts from left to right"):
        evaluate._window(dataclasses.replace(run, objective=objective), None, 8)
