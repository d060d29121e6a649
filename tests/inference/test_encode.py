"""Vectors of texts: layers, windows, packing, words."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest

from lmrep.data import tokenized_text, tokenizers
from lmrep.inference import encode as R
from lmrep.layers.stack import Execution
from lmrep.models import layer_choice, transformer
from lmrep.models.base import Inputs
from lmrep.models.layer_choice import Layers
from tests.reference import random_params

CONFIG = transformer.Config(vocab=50, width=16, layers=3, heads=2, mlp=32, max_length=128, norm="pre")
MODEL = transformer.build(CONFIG)
PARAMS = random_params(MODEL.specs)
EVERY = Layers((0, 1, 2, 3))


def texts(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 50, n).astype(np.int32) for n in lengths]


@pytest.fixture(scope="module")
def run():
    """The compiled states of MODEL, which counts the shapes it is given in `run.shapes`."""
    compiled = jax.jit(partial(R.states, model=MODEL), static_argnames=("layers", "attention"))

    def run(batch, layers=EVERY, attention=False):
        run.shapes.add(batch["tokens"].shape)
        return compiled(PARAMS, batch, layers=layers, attention=attention)

    run.shapes = set()
    return run


@pytest.fixture(scope="module")
def alone():
    """A text's states [l + 1, t, d] and attention [l, h, t, s] from the network itself: no padding, no batch."""
    encode = jax.jit(partial(MODEL.encode, layers=True, attention=True))

    def alone(ids):
        encoded = encode(PARAMS, Inputs(tokens=ids[None]))
        return np.concatenate([np.stack(encoded.layers)[:-1, 0], encoded.hidden]), encoded.attention[:, 0]

    return alone


# Which layers


@pytest.mark.parametrize(("layers", "numbers", "join"), [
    ("last", (12,), "stack"), ("all", tuple(range(13)), "stack"), ("0", (0,), "stack"), (4, (4,), "stack"),
    (-1, (12,), "stack"), ("-13", (0,), "stack"), ("3,1,-2", (3, 1, 11), "stack"), ((3, -1), (3, 12), "stack"),
    ([5], (5,), "stack"), (np.int64(5), (5,), "stack"), ("sum:9,10,11,12", (9, 10, 11, 12), "sum"),
    ("concat:-4,-3,-2,-1", (9, 10, 11, 12), "concat"), ("sum:all", tuple(range(13)), "sum"),
])
def test_layers_are_chosen_by_name_or_number(layers, numbers, join):
    assert layer_choice.parse_layers(layers, 12) == Layers(numbers, join)


def test_depth_of_a_model_is_the_number_of_its_layers():
    assert layer_choice.num_layers(MODEL) == 3


def test_layers_are_stacked_summed_or_concatenated(run, alone):
    [ids] = texts([7])
    states, _ = alone(ids)
    for layers, expected in [(Layers((3,)), states[3:]), (Layers((2, 0)), states[[2, 0]]),
                             (Layers((1, 2, 3), "sum"), states[1:].sum(0, keepdims=True)),
                             (Layers((0, 3), "concat"), np.concatenate([states[0], states[3]], -1)[None])]:
        [(_, hidden, probabilities)] = R.compute(partial(run, layers=layers), [R.Window(0, ids, 0, 7, 0)], 128)
        np.testing.assert_allclose(hidden, expected, rtol=0, atol=1e-5)
        assert probabilities is None


def test_layers_above_the_highest_requested_are_not_computed():
    batch = dict.fromkeys(("tokens", "segment_ids", "positions"), np.ones((8, 64), np.int32))

    def work(*numbers):
        states = jax.jit(partial(R.states, model=MODEL, layers=Layers(numbers)))
        return states.lower(PARAMS, batch).compile().cost_analysis()["flops"]

    full = work(3)
    assert work(1) < 0.4 * full and work(0, 1, 2, 3) < 1.02 * full


def test_vectors_are_float32_for_any_compute_dtype():
    model = transformer.build(CONFIG, Execution(dtype="bfloat16"))
    batch = dict.fromkeys(("tokens", "segment_ids", "positions"), np.ones((1, 4), np.int32))
    hidden, probabilities = jax.eval_shape(partial(R.states, model=model, layers=EVERY, attention=True), PARAMS, batch)
    assert hidden.dtype == probabilities.dtype == np.float32


# Windows


@pytest.mark.parametrize("edges", [(1, 1), (0, 0), (1, 0)])
@pytest.mark.parametrize("length", [11, 12, 13, 14, 20, 31, 64])
def test_each_vector_comes_from_the_window_where_its_token_is_nearest_the_middle(length, edges):
    max_length, (before, after) = 12, edges
    ids = np.arange(length, dtype=np.int32)
    found = R.windows(7, ids, edges, max_length, "windows")
    assert all(len(w.ids) <= max_length and w.text == 7 for w in found)
    positions = [range(w.position, w.position + w.stop - w.start) for w in found]
    assert [*itertools.chain(*positions)] == list(range(length))
    for w in found:
        assert w.ids[w.start : w.stop].tolist() == ids[w.position : w.position + w.stop - w.start].tolist()
        assert w.ids[:before].tolist() == ids[:before].tolist()
        assert w.ids[len(w.ids) - after :].tolist() == ids[length - after :].tolist()
    if length <= max_length:
        assert len(found) == 1
        return
    capacity = max_length - before - after

    def margin(w, token):
        """The distance of the token from the nearer end of a window; -1 if the window lacks it."""
        content = w.ids[before : before + capacity]
        return min(token - content[0], content[-1] - token) if content[0] <= token <= content[-1] else -1

    for w in found:
        for token in w.ids[w.start : w.stop]:
            if before <= token < length - after:
                assert margin(w, token) == max(margin(other, token) for other in found)


# Packing


@pytest.mark.parametrize("max_length", [512, 100, 40, 0])
def test_packed_sequences_contain_every_text_once_with_little_padding(max_length):
    rng = np.random.default_rng(0)
    lengths = [*np.minimum(rng.geometric(1 / 30, 2000) + 1, max_length or 5000).tolist(), 0, 2]
    sequences = R.pack(lengths, max_length)
    assert sorted(i for _, members in sequences for i in members) == list(range(len(lengths)))
    for size, members in sequences:
        assert sum(lengths[i] for i in members) <= size
        assert size == max_length or (size & (size - 1) == 0 and size >= R.MIN_LENGTH)
        assert size <= max_length or not max_length
    assert [size for size, _ in sequences] == sorted((size for size, _ in sequences), reverse=True)
    assert sum(size for size, _ in sequences) < 1.05 * sum(lengths) + R.MIN_LENGTH


def test_texts_are_not_packed_on_request():
    assert all(len(members) == 1 for _, members in R.pack([3, 5, 8, 8, 0], 64, packed=False))


def test_batches_have_one_length_and_a_bounded_size():
    sequences = [(256, [0]), (128, [1, 2]), (128, [3]), (128, [4]), (64, [5])]
    assert list(R.batches(sequences, 256)) == [(256, [[0]]), (128, [[1, 2], [3]]), (128, [[4]]), (64, [[5]])]
    assert list(R.batches(sequences[:2], 100)) == [(256, [[0]]), (128, [[1, 2]])]  # a sequence at least
    assert list(R.batches([], 256)) == []


def test_packing_does_not_change_vectors_or_attention(run, alone):
    rng = np.random.default_rng(1)
    ids = texts([*rng.choice([0, 2, 17, 70, 128], 80, p=[0.05, 0.4, 0.4, 0.1, 0.05]), 128, 0])
    split = [w for i, x in enumerate(ids) for w in R.windows(i, x, (1, 1), 128)]
    run.shapes.clear()
    found = {i: (hidden, probabilities) for i, hidden, probabilities
             in R.compute(partial(run, attention=True), split, 128, tokens=512)}
    assert sorted(found) == list(range(len(ids))) and len(run.shapes) <= 4
    for i, x in enumerate(ids):
        hidden, probabilities = found[i]
        assert hidden.shape == (4, len(x), 16) and probabilities.shape == (3, 2, len(x), len(x))
        if len(x):
            states, attention = alone(x)
            np.testing.assert_allclose(hidden, states, rtol=0, atol=1e-5)
            np.testing.assert_allclose(probabilities, attention, rtol=0, atol=1e-6)


def test_vectors_of_windows_are_joined(run, alone):
    """Each vector is that of its window, read alone; the text between is packed with others."""
    long, *others = texts([300, 5, 90, 20])
    split = R.windows(0, long, (1, 1), 128, "windows")
    more = [w for i, x in enumerate(others, 1) for w in R.windows(i, x, (1, 1), 128)]
    found = {i: hidden for i, hidden, _ in R.compute(run, [*split, *more], 128, tokens=256)}
    assert found[0].shape == (4, 300, 16) and len(split) > 2
    for w in split:
        states, _ = alone(w.ids)
        np.testing.assert_allclose(found[0][:, w.position : w.position + w.stop - w.start], states[:, w.start : w.stop],
                                   rtol=0, atol=1e-5)


# Words


@pytest.mark.parametrize("words", [[None, 0, 0, 1, 2, 2, 2, None], [0], [None, None], [], [0, 0, None, 1], [3, 4, 4]])
def test_vector_of_a_word_combines_its_tokens(words):
    hidden = np.random.default_rng(0).normal(size=(2, len(words), 4)).astype(np.float32)
    numbers = sorted({word for word in words if word is not None})
    for how, take in [("mean", lambda x: x.mean(1)), ("first", lambda x: x[:, 0]), ("last", lambda x: x[:, -1])]:
        found = R.by_word(hidden, words, how)
        assert found.shape == (2, len(numbers), 4) and found.dtype == np.float32
        for w, number in enumerate(numbers):
            tokens = hidden[:, [i for i, word in enumerate(words) if word == number]]
            np.testing.assert_allclose(found[:, w], take(tokens), rtol=1e-5, atol=1e-6)


def test_byte_level_words_have_character_offsets():
    config = tokenizers.Config(name="byte_level_bpe", vocab_size=280)
    tokenizer = tokenizers.train(config, lambda: iter(["the cat"] * 9))
    found = tokenized_text.tokenize_text("the café <mask>, cat's", tokenizer)
    assert [found.text[start:end] for start, end in found.word_offsets] == ["the", "café", "<mask>", ",", "cat", "'s"]
    assert found.words[0] is None and found.words[-1] is None
    assert found.ids[0] == tokenizer.vocabulary.specials["cls"] and tokenizer.vocabulary.specials["mask"] in found.ids
