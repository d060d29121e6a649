"""`lmrep convert` of ELMo's published files."""

import contextlib
import json

import h5py
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import lmrep
from lmrep.core.params import flatten
from lmrep.experiment import config as experiments
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs
from lmrep.storage.checkpoints import Checkpoints
from tests import small
from tests.interop.test_bilm import OPTIONS, SENTENCES, batch_ids, files, original, tensors  # noqa: F401, a fixture

WORDS = ["<S>", "</S>", "<UNK>", "the", "cat", "naïve", "."]


def write_vocabulary(directory, words=WORDS):
    (directory / "vocab-2016.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf8")


@pytest.fixture
def workdir(files, tmp_path_factory):  # noqa: F811
    write_vocabulary(files)
    target = tmp_path_factory.mktemp("converted") / "run"
    result = small.command("convert", files, target)
    assert result.code == 0, result.err
    assert "ELMo, " in result.out and "7 words" in result.out and "no softmax" in result.out
    return target


@pytest.mark.slow
def test_a_converted_run_has_the_vectors_of_the_original_tool(files, workdir):  # noqa: F811
    run, own, states, carry = lmrep.load(workdir), tensors(), {}, None
    config = experiments.model_config(run.experiment.model, run.tokenizer.size)
    assert run.step == 0 and run.tokenizer.tokens == WORDS and config.vocab == len(WORDS)
    assert run.special_tokens == ([0], [1])
    for batch in (SENTENCES[:2], SENTENCES[2:]):
        marked = [["<S>", *sentence, "</S>"] for sentence in batch]
        ids = np.zeros((len(marked), max(map(len, marked)), 50), np.int32)
        for example, words in zip(ids, marked, strict=True):
            example[: len(words)] = run.tokenizer.characters(words)
        np.testing.assert_array_equal(ids, batch_ids(batch))
        segments = jnp.asarray((ids > 0).any(2), jnp.int32)
        found = run.apply(run.params, Inputs(segments, characters=jnp.asarray(ids), carry=carry,
                                             attention_mask=AttentionMask(segments)), layers=True)
        carry = found.carry
        for computed, expected in zip(found.layers, original(own, batch_ids(batch), states), strict=True):
            np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-5)


def test_a_text_is_read_between_the_marks_of_sentences_and_each_one_by_itself(workdir):
    texts = SENTENCES[:2]
    for words, found in zip(texts, lmrep.load(workdir).encode([" ".join(words) for words in texts], layers="all"),
                            strict=True):
        for computed, expected in zip(found.hidden, original(tensors(), batch_ids([words]), {}), strict=True):
            np.testing.assert_allclose(computed, expected[0], rtol=0, atol=1e-5)


def test_a_workdir_becomes_the_files_that_it_was_read_from(workdir, tmp_path):
    target = tmp_path / "back"
    result = small.command("convert", workdir, target, "--to=bilm")
    assert result.code == 0 and "left out" not in result.out, result.err
    assert json.loads((target / "options.json").read_text()) == OPTIONS
    assert (target / "vocab.txt").read_text(encoding="utf8").split() == WORDS
    with h5py.File(target / "lm_weights.hdf5") as file:
        for name, value in tensors().items():
            np.testing.assert_allclose(file[name][()], value, rtol=0, atol=1e-7)
    again = tmp_path / "again"
    assert small.command("convert", target, again).code == 0
    first, second = (flatten(lmrep.load(each).params) for each in (workdir, again))
    assert first.keys() == second.keys()
    for path, value in first.items():
        np.testing.assert_allclose(second[path], value, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_output_layer_of_a_trained_run_is_left_out_and_reported(workdir, tmp_path):
    params = lmrep.load(workdir).params
    with contextlib.closing(Checkpoints(workdir / "checkpoints")) as checkpoints:
        checkpoints.save(1, {"params": params | {"objective": {"bidirectional": {"bias": np.zeros(7, np.float32)}}}},
                         {"stage": 0})
    result = small.command("convert", workdir, tmp_path / "files", "--to=bilm")
    assert result.code == 0 and "the files hold the network alone: objective/bidirectional/bias" in result.out


@pytest.mark.slow
def test_a_vocabulary_is_not_needed(files, tmp_path_factory):  # noqa: F811
    home = tmp_path_factory.mktemp("without")
    result = small.command("convert", files, home / "run")
    assert result.code == 0 and "no vocabulary file" in result.out
    assert lmrep.load(home / "run").tokenizer.tokens == WORDS[:3]
    (home / "text.txt").write_text("None of these words is in a vocabulary of three .\n")
    refused = small.command("evaluate", f"--workdir={home / 'run'}", f"--files={home / 'text.txt'}")
    assert refused.code == 2 and "lacks parameters of its objective" in refused.err
    assert small.command("convert", home / "run", home / "files", "--to=bilm").code == 0
    assert sorted(path.name for path in (home / "files").iterdir()) == ["lm_weights.hdf5", "options.json"]


@pytest.mark.slow
def test_a_vocabulary_needs_no_unknown_word(files, tmp_path):  # noqa: F811
    """As that of the original tool's example, which has the words of a text alone."""
    write_vocabulary(files, ["<S>", "cat", "\x85", "</S>", "the"])
    assert small.command("convert", files, tmp_path / "run").code == 0
    assert lmrep.load(tmp_path / "run").tokenizer.tokens == ["<S>", "cat", "\x85", "</S>", "the", "<UNK>"]
    (tmp_path / "text.txt").write_text("the mat. cat\nzebras\n")
    words = ("embed", f"--workdir={tmp_path / 'run'}", f"--input={tmp_path / 'text.txt'}", "--pretokenized")
    result = small.command(*words, f"--output={tmp_path / 'out.safetensors'}")
    assert result.code == 0, result.err
    vectors = load_file(tmp_path / "out.safetensors")
    assert [vectors[name].shape[1] for name in ("0", "1")] == [3, 1]  # one for each word


def set_bias(home, value):
    with h5py.File(home / "elmo_2x12_6_weights.hdf5", "r+") as file:
        file["CNN_proj/b_proj"][0] = value
