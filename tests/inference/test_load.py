"""What a run in hand gives: vectors, words, attention, and the network as a pure function."""

import dataclasses
import inspect
import json
import textwrap
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lmrep
from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import flatten
from lmrep.data import formats
from lmrep.data import prompts as data_prompts
from lmrep.data.formats import FORMATS
from lmrep.data.store import token_store
from lmrep.data.tokenizers import Bpe
from lmrep.experiment.config import default_config
from lmrep.inference.run import Run
from lmrep.models.base import Inputs
from tests import given, small

TEXTS = ["The red cat sees the old dog.", "", "A catdog likes [MASK]  birds.", "Old."]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return given.workdir(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def run(home):
    return lmrep.load(home)


@pytest.fixture(scope="module")
def every(run):
    """TEXTS, with all layers and attention."""
    return run.encode(TEXTS, layers="all", attention=True)


def test_run_without_training_is_loaded(home, run):
    """As converting leaves it: parameters alone, at step 0, and no fingerprint but the tokenizer's."""
    assert run.step == 0 and run.directory == home
    assert flatten(run.params).keys() == flatten(run.objective.specs).keys()


def test_vectors_equal_those_of_the_network(run, every):
    special, encode = run.tokenizer.vocabulary.specials, jax.jit(partial(run.model.encode, layers=True, attention=True))
    for text, found in [*zip(TEXTS, every, strict=True)][::2]:
        ids = [special["cls"], *run.tokenizer.encode(text, specials=True).ids, special["sep"]]
        encoded = encode(run.params["encoder"], Inputs(tokens=np.array([ids])))
        assert found.text == text and found.ids.tolist() == ids and found.hidden.dtype == np.float32
        np.testing.assert_allclose(found.hidden, np.stack(encoded.layers)[:, 0], rtol=0, atol=1e-5)
        np.testing.assert_allclose(found.attention, encoded.attention[:, 0], rtol=0, atol=1e-6)


def test_tokens_have_character_offsets_and_words(run, every):
    text, found = TEXTS[2], every[2]
    assert found.tokens[:2] == ["[CLS]", "a"] and found.tokens[-2:] == [".", "[SEP]"] and "[MASK]" in found.tokens
    for token, (start, end), word in list(zip(found.tokens, found.offsets, found.words, strict=True))[1:-1]:
        assert text[start:end].lower() == token.removeprefix("##").lower() and word is not None
    assert found.words[0] is None and found.words[-1] is None and found.offsets[0] == found.offsets[-1] == (0, 0)
    assert [text[start:end] for start, end in found.word_offsets] == ["A", "catdog", "likes", "[MASK]", "birds", "."]
    assert found.words.count(1) > 1  # "catdog" is no token
    assert every[1].tokens == ["[CLS]", "[SEP]"] and every[1].word_offsets == []


def test_each_word_has_one_vector(every):
    found = every[2]
    positions = [i for i, word in enumerate(found.words) if word == 1]
    np.testing.assert_allclose(found.by_word()[:, 1], found.hidden[:, positions].mean(1), atol=1e-6)
    np.testing.assert_array_equal(found.by_word("last")[:, 1], found.hidden[:, positions[-1]])
    assert found.by_word().shape == (4, 6, 32) and every[1].by_word().shape == (4, 0, 32)


@pytest.mark.slow
def test_layers_can_be_selected(run, every):
    for layers, expected in [("last", lambda x: x[3:]), ((0, -2), lambda x: x[[0, 2]]),
                             ("sum:1,2", lambda x: (x[1] + x[2])[None]),
                             ("concat:1,2", lambda x: np.concatenate([x[1], x[2]], -1)[None])]:
        for found, full in zip(run.encode(TEXTS, layers), every, strict=True):
            np.testing.assert_allclose(found.hidden, expected(full.hidden), rtol=0, atol=1e-5)
            assert found.attention is None


def test_poolings(every):
    hidden = every[0].hidden
    np.testing.assert_array_equal(every[0].pool(), hidden.mean(1))
    np.testing.assert_array_equal(every[0].pool("max"), hidden.max(1))
    np.testing.assert_array_equal(every[0].pool("cls"), hidden[:, 0])


def test_long_texts_are_split_into_windows(run):
    text = "the red cat sees " * 30
    short, long = run.encode(["A cat.", text], long="windows")
    assert long.hidden.shape == (1, 122, 32) and len(long.by_word()[0]) == 120
    np.testing.assert_allclose(short.hidden, run.encode(["A cat."])[0].hidden, rtol=0, atol=1e-5)
    first = run.encode(["the red cat sees " * 11 + "the red"])[0]  # the first window
    np.testing.assert_allclose(long.hidden[:, :30], first.hidden[:, :30], rtol=0, atol=1e-5)


def test_no_texts_give_no_vectors(run):
    assert run.encode([]) == []


# Inside one's own program


def test_network_is_a_pure_function(run, every):
    inputs = run.inputs(TEXTS)
    encoded = jax.jit(run.apply)(run.params, inputs)
    for row, found in enumerate(every):
        np.testing.assert_allclose(encoded.hidden[row, : len(found.ids)], found.hidden[-1], rtol=0, atol=1e-5)

    @jax.jit
    def cosine(params, inputs):
        first, second = run.apply(params, inputs, at=jnp.zeros((4, 1), int)).hidden[jnp.array([0, 3]), 0]
        return first @ second / jnp.linalg.norm(first) / jnp.linalg.norm(second)

    first, second = every[0].pool("cls")[-1], every[3].pool("cls")[-1]
    expected = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert float(cosine(run.params, inputs)) == pytest.approx(expected, abs=1e-5)


def test_batches_of_texts_have_few_shapes(run):
    draw = np.random.default_rng(0)
    shapes = set()
    for _ in range(100):
        inputs = run.inputs(["cat " * draw.integers(0, 46) for _ in range(4)])
        assert {inputs.tokens.shape, inputs.positions.shape, inputs.token_type_ids.shape} == {inputs.tokens.shape}
        shapes.add(inputs.tokens.shape)
    assert shapes <= {(4, 16), (4, 32), (4, 48)}
    assert run.inputs(["A cat."], length=20).tokens.shape == (1, 20)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ("packed", "stream", "sentence_stream") else pytest.mark.slow)
    for name in FORMATS if "pair" not in name])
def test_special_tokens_around_a_text_are_those_of_the_training_examples(tmp_path, name):
    """A corpus of one sentence makes one example, and `encode` reads that sentence alike."""
    workdir = given.workdir(tmp_path)
    record = json.loads((workdir / "config.json").read_text())
    record["config"]["format"] = default_config("bert_tiny", "masked", name).format.to_dict()
    record["data"]["train"] = "the fingerprint of a store"  # which converted checkpoints lack
    (workdir / "config.json").write_text(json.dumps(record))
    run, text = lmrep.load(workdir), "the red cat sees the old dog."
    ids = run.tokenizer.encode(text).ids
    store = token_store.write(tmp_path / "store", [[ids]], run.tokenizer.vocabulary)
    example = formats.plan(name, FORMATS[name].config(), store, 32, seed=0).gather(np.zeros(1, np.int64))
    expected = example["tokens"][0][example["segment_ids"][0] > 0].tolist()
    if name == "sentence_stream":  # each direction reads all but the mark at its end, and then another sentence's mark
        backward = example["backward"]["tokens"][0][example["backward"]["segment_ids"][0] > 0].tolist()
        assert run.tokenize(text).ids.tolist() == [*expected[:-1], backward[0]] == [expected[0], *backward[-2::-1]]
        return
    assert run.tokenize(text).ids.tolist() == expected and (name == "stream") == (expected[0] == ids[0])
    if name == "stream":
        assert run.encode([text])[0].ids.tolist() == expected
        special = run.tokenizer.vocabulary.specials
        masked = run.tokenize("the [MASK] cat").ids
        batch = data_prompts.mask_batch([masked], special["pad"], special["mask"], run.model.max_length)
        probabilities = run.predict_batch(batch, k=3)["probabilities"][0, 0]
        assert [p for _, p in run.fill_masks(["the [MASK] cat"], k=3)[0][0]] == probabilities.tolist()


def test_pairs_have_separators_and_token_types(run):
    special, pair = run.tokenizer.vocabulary.specials, ("The old cat.", "A dog")
    first, second = (run.tokenizer.encode(text).ids.tolist() for text in pair)
    inputs = run.inputs([pair, "A cat."])
    ids = [special["cls"], *first, special["sep"], *second, special["sep"]]
    assert inputs.tokens[0].tolist() == ids + [special["pad"]] * (16 - len(ids))
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert inputs.token_type_ids[0].tolist() == types + [0] * (16 - len(ids))
    assert np.isfinite(jax.jit(run.apply)(run.params, inputs).hidden).all()


def test_network_without_token_types_reads_pairs_as_its_tokenizer_says(tmp_path, monkeypatch):
    """With one separator as DistilBERT, whose tokenizer is WordPiece, or two as RoBERTa."""
    run = lmrep.load(given.workdir(tmp_path, token_types=0))
    assert run.tokenizer.one_separator
    special, pair = run.tokenizer.vocabulary.specials, ("The old cat.", "A dog")
    first, second = (run.tokenizer.encode(text).ids.tolist() for text in pair)
    for separators in (1, 2):
        monkeypatch.setattr(type(run.tokenizer), "one_separator", separators == 1)
        ids = [special["cls"], *first, *[special["sep"]] * separators, *second, special["sep"]]
        inputs = run.inputs([pair])
        assert inputs.tokens[0].tolist()[: len(ids)] == ids and inputs.token_type_ids is None


def test_run_repr_names_network_objective_and_tokenizer(run, home):
    shown = repr(run)
    assert str(home) in shown and "step=0" in shown and "masked" in shown and "wordpiece" in shown
    parameters, encoder = (sum(x.size for x in flatten(tree).values()) for tree in (run.params, run.params["encoder"]))
    assert f"{parameters:,} parameters, {encoder:,} of them in the encoder" in shown and parameters > encoder


@pytest.mark.slow
def test_docstring_example_is_correct(home):
    shown = inspect.cleandoc(Run.__doc__).split("Attributes:")[0].splitlines()[1:]
    lines = textwrap.dedent("\n".join(line for line in shown if line.startswith(" ") or not line))
    names = {"lmrep": lmrep, "jax": jax, "jnp": jnp}
    exec(lines.replace("runs/quickstart", str(home)).replace("key", "cat").replace("value of", "red"), names)
    gradient = flatten(names["gradient"])
    assert names["text"].hidden.shape[0] == 4 and gradient.keys() == flatten(names["run"].params).keys()
    assert all(np.isfinite(x).all() for x in gradient.values()) and any(x.any() for x in gradient.values())


# Masks


def test_another_tokenizer_is_refused(home, tmp_path):
    other = given.workdir(tmp_path / "other")
    vocabulary = other / "tokenizer/vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "more\n")
    with pytest.raises(RunFault, match="is not the tokenizer that the run was trained with"):
        lmrep.load(other)
    assert small.contents(home)


@pytest.mark.parametrize(("prompt", "text", "expected"), [
    ("the cat", "the cat sat.", " sat."), ("the ", "the  cat", " cat"), ("", "the cat", "the cat"),
    ("well -", "well-known.", "known."), ("he don '", "he don't know", "t know"), ("he (", "he (said", "said"),
    ("a -", "a-", ""),
])
def test_continuation_excludes_the_prompt(prompt, text, expected):
    assert data_prompts.continuation(prompt, text) == expected


def test_empty_prompt_is_refused(run):
    bare = dataclasses.replace(run, tokenizer=Bpe(["<unk>", "a</w>"], [], specials={"unk": "<unk>"}))
    assert bare.prompt("a") == [1]
    with pytest.raises(UserError, match=r"line 3 is empty, and .* was trained without a token before"):
        bare.prompt("", "line 3")
