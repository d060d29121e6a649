"""A run whose network reads the characters of words: every word has its own, those outside of the vocabulary too."""

import contextlib
import dataclasses
import json
from functools import partial

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import lmrep
from lmrep.data import tokenizers
from lmrep.data.prompts import unknown_words
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.inference import export
from lmrep.storage.checkpoints import Checkpoints
from tests import small
from tests.reference import random_params

NETWORK = {"name": "bilstm", "filters": (3, 4), "highways": 1, "character_width": 4, "cell": 16, "width": 8}


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
    home = tmp_path_factory.mktemp("elmo")
    texts = [path.read_text() for path in sorted(small.corpus(home / "texts").iterdir())]
    tokenizer = tokenizers.train(tokenizers.Config(name="elmo_text", vocab_size=64), lambda: iter(texts))
    config = small.config(home / "texts", "bidirectional", "sentence_stream")
    config.model, config.tokenizer.name, config.tokenizer.lowercase = NETWORK, "elmo_text", False
    experiment = experiments.parse(config)
    network = experiments.build_model(experiment, tokenizer.size)
    objective = build.objective(experiments.resolve_stages(experiment)[0], network, tokenizer.vocabulary)
    tokenizer.save(home / "run/tokenizer")
    (home / "run/config.json").write_text(json.dumps(
        {"config": dataclasses.asdict(experiment), "data": {"tokenizer": tokenizer.fingerprint, "train": ""}}))
    with contextlib.closing(Checkpoints(home / "run/checkpoints")) as checkpoints:
        checkpoints.save(0, {"params": random_params(objective.specs, stddev=0.3)}, {})
        checkpoints.wait()
    return lmrep.load(home / "run")


def test_words_outside_of_the_vocabulary_have_vectors_of_their_own(run):
    first, same, other = run.encode(["the zyxxquz cat", "the zyxxquz cat", "the qqqwww cat"], layers="all")
    assert first.tokens == ["<S>", "the", "zyxxquz", "cat", "</S>"]
    np.testing.assert_array_equal(first.hidden, same.hidden)
    assert (np.abs(first.hidden[0, 2] - other.hidden[0, 2]) > 1e-3).any()
    np.testing.assert_allclose(first.hidden[0, [0, 1, 3, 4]], other.hidden[0, [0, 1, 3, 4]], atol=1e-6)


def test_inputs_have_the_characters_of_every_word(run):
    inputs = run.inputs(["the zyxxquz cat", ("a qqqwww", "zyxxquz")])
    assert int(np.max(inputs.tokens)) < run.tokenizer.size and inputs.characters.shape[-1] == 50
    np.testing.assert_array_equal(inputs.characters[0, 2], run.tokenizer.characters(["zyxxquz"])[0])
    assert not np.asarray(inputs.characters)[0, 5:].any()
    hidden = jax.jit(run.apply)(run.params, inputs).hidden
    np.testing.assert_allclose(hidden[0, :5], run.encode(["the zyxxquz cat"])[0].hidden[0], atol=1e-5)


def test_pretokenized_words_are_not_split(run):
    text = run.encode(["don't (stop)"], pretokenized=True)[0]
    assert text.tokens == ["<S>", "don't", "(stop)", "</S>"] and text.by_word().shape[1] == 2
    assert run.encode(["don't (stop)"])[0].tokens == ["<S>", "do", "n't", "(", "stop", ")", "</S>"]


def test_no_word_is_unknown_to_it(run):
    assert unknown_words("the zyxxquz cat", run.tokenizer) == ([], 3)


# States that are carried from text to text

TEXTS = ["the cat sat", "a mat", "", "the zyxxquz cat sat on the mat again and again and again", "sat", "on it", "x"]


@pytest.fixture(scope="module")
def apply(run):
    """The network with all its layers, compiled."""
    return jax.jit(partial(run.apply, layers=True))


def one_after_another(run, apply, texts):
    """Hidden states of all layers, with the state of each text carried to the next."""
    carry, found = run.model.state.carry(1), []
    for text in texts:
        inputs = run.inputs([text], length=64)
        encoded = apply(run.params, inputs._replace(carry=carry))
        carry = encoded.carry
        found.append(np.stack([layer[0, : len(run.tokenize(text).ids)] for layer in encoded.layers]))
    return found


@pytest.mark.parametrize("streams", [3, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 9))])
def test_a_stream_carries_its_state_from_text_to_text(run, apply, streams):
    found = run.encode(TEXTS, "all", streams=streams)
    assert [each.text for each in found] == TEXTS
    for stream in range(min(streams, len(TEXTS))):
        expected = one_after_another(run, apply, TEXTS[stream::streams])
        for computed, hidden in zip(found[stream::streams], expected, strict=True):
            np.testing.assert_allclose(computed.hidden, hidden, rtol=0, atol=1e-5)
    alone = run.encode(TEXTS, "all")
    np.testing.assert_allclose(found[0].hidden, alone[0].hidden, rtol=0, atol=1e-5)
    if streams < len(TEXTS):
        assert np.abs(found[streams].hidden - alone[streams].hidden).max() > 1e-3


@pytest.mark.slow
def test_embed_carries_states_across_the_chunks_that_it_reads(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "LINES", 2)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    export.embed(run, tmp_path / "texts.txt", tmp_path / "v.safetensors", layers="all", streams=3)
    found = load_file(tmp_path / "v.safetensors")
    for i, text in enumerate(run.encode(TEXTS, "all", streams=3)):
        np.testing.assert_allclose(found[str(i)], text.hidden, rtol=0, atol=1e-6)
