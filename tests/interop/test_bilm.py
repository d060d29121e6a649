"""ELMo's published files, against a plain NumPy forward pass of their tensors."""

import json

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.core.params import unflatten
from lmrep.interop import bilm
from lmrep.layers.attention import AttentionMask
from lmrep.models import bilstm
from lmrep.models.base import Inputs

DIM, WIDTH, FILTERS, CHARACTER, HIGHWAYS = 12, 6, [[1, 4], [2, 4], [3, 8]], 5, 2
OPTIONS = {
    "lstm": {"use_skip_connections": True, "projection_dim": WIDTH, "cell_clip": 0.5, "proj_clip": 0.3, "dim": DIM,
             "n_layers": 2},
    "char_cnn": {"activation": "relu", "filters": FILTERS, "n_highway": HIGHWAYS, "embedding": {"dim": CHARACTER},
                 "n_characters": 262, "max_characters_per_token": 50}}
SENTENCES = [["The", "naïve", "cat"], ["sat", "."], ["A", "second", "batch", "of", "words"], ["ends"]]


def tensors(seed=0):
    """Random tensors under the names of the published files."""
    rng, n = np.random.default_rng(seed), sum(number for _, number in FILTERS)
    shapes = {"char_embed": (261, CHARACTER), "CNN_proj/W_proj": (n, WIDTH), "CNN_proj/b_proj": (WIDTH,)}
    for i, (width, number) in enumerate(FILTERS):
        shapes |= {f"CNN/W_cnn_{i}": (1, width, CHARACTER, number), f"CNN/b_cnn_{i}": (number,)}
    for i in range(HIGHWAYS):
        for name in ("carry", "transform"):
            shapes |= {f"CNN_high_{i}/W_{name}": (n, n), f"CNN_high_{i}/b_{name}": (n,)}
    for direction in range(2):
        for i in range(2):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            shapes |= {f"{cell}/W_0": (2 * WIDTH, 4 * DIM), f"{cell}/B": (4 * DIM,), f"{cell}/W_P_0": (DIM, WIDTH)}
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def write_files(directory, options=OPTIONS):
    (directory / "elmo_2x12_6_options.json").write_text(json.dumps(options))
    with h5py.File(directory / "elmo_2x12_6_weights.hdf5", "w") as file:
        for name, value in tensors().items():
            file.create_dataset(name, data=value)
    return directory


@pytest.fixture
def files(tmp_path):
    return write_files(tmp_path)


# --- the original tool, in NumPy: ids 0 to 261 after its shift by 1


def word_ids(word):
    """UTF-8 bytes between the marks of a word's begin and end, then padding up to 50; each plus 1."""
    marks = {"<S>": [256], "</S>": [257]}
    own = marks.get(word) or list(word.encode())[:48]
    return np.array([*[258, *own, 259], *[260] * (48 - len(own))]) + 1


def batch_ids(sentences):
    """int[b, t, 50]; words of zeros after the end of a sentence."""
    marked = [["<S>", *sentence, "</S>"] for sentence in sentences]
    ids = np.zeros((len(marked), max(map(len, marked)), 50), int)
    for row, sentence in zip(ids, marked, strict=True):
        for i, word in enumerate(sentence):
            row[i] = word_ids(word)
    return ids


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def word_vectors(own, ids):
    table = np.concatenate([np.zeros((1, CHARACTER)), own["char_embed"]])
    found = []
    for word in ids.reshape(-1, 50):
        x = table[word]
        y = np.concatenate([np.maximum(max_over_time(x, own[f"CNN/W_cnn_{i}"][0]) + own[f"CNN/b_cnn_{i}"], 0)
                            for i in range(len(FILTERS))])
        for i in range(HIGHWAYS):
            carry, transform = (y @ own[f"CNN_high_{i}/W_{name}"] + own[f"CNN_high_{i}/b_{name}"]
                                for name in ("carry", "transform"))
            y = sigmoid(carry) * np.maximum(transform, 0) + (1 - sigmoid(carry)) * y
        found.append(y @ own["CNN_proj/W_proj"] + own["CNN_proj/b_proj"])
    return np.array(found).reshape(*ids.shape[:2], WIDTH)


def max_over_time(x, kernel):
    return np.max([np.einsum("we,wef->f", x[i : i + len(kernel)], kernel) for i in range(51 - len(kernel))], axis=0)


def original(own, ids, states):
    """[b, t, 2 d] of the word vectors and of each layer; `states` are those of all rows, and are changed."""
    own = {name: np.asarray(value, np.float64) for name, value in own.items()}
    lengths = (ids > 0).any(2).sum(1)
    vectors = word_vectors(own, ids)
    layers = [np.concatenate([vectors] * 2, -1)] + [np.zeros((*ids.shape[:2], 2 * WIDTH)) for _ in range(2)]
    for b, length in enumerate(lengths):
        layers[0][b, length:] = 0
        for direction in range(2):
            x = vectors[b, :length][:: 1 - 2 * direction]
            for i in range(2):
                cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
                c, h = states.get((b, direction, i), (np.zeros(DIM), np.zeros(WIDTH)))
                outputs = []
                for each in x:
                    gates = np.concatenate([each, h]) @ own[f"{cell}/W_0"] + own[f"{cell}/B"]
                    into, new, forget, out = np.split(gates, 4)
                    c = np.clip(sigmoid(forget + 1) * c + sigmoid(into) * np.tanh(new), -0.5, 0.5)
                    h = np.clip((sigmoid(out) * np.tanh(c)) @ own[f"{cell}/W_P_0"], -0.3, 0.3)
                    outputs.append(h)
                states[b, direction, i] = c, h
                x = np.array(outputs) + (x if i else 0)
                layers[i + 1][b, :length, direction * WIDTH : (direction + 1) * WIDTH] = x[:: 1 - 2 * direction]
    return layers


def test_vectors_are_those_of_the_original_tool_with_states_carried_across_batches(files):
    config, params = bilm.read(*bilm.find(files))
    model, own, carry, states = bilstm.build(config), tensors(), None, {}
    run = jax.jit(lambda params, inputs: model.encode(params, inputs, layers=True))
    for batch in (SENTENCES[:2], SENTENCES[2:]):
        ids = batch_ids(batch)
        segments = jnp.asarray((ids > 0).any(2), jnp.int32)
        found = run(unflatten(params)["encoder"], Inputs(segments, characters=jnp.asarray(ids),
                                                         attention_mask=AttentionMask(segments), carry=carry))
        carry = found.carry
        for computed, expected in zip(found.layers, original(own, ids, states), strict=True):
            np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-5)


def test_files_that_are_written_are_those_that_were_read(files, tmp_path):
    target = tmp_path / "again"
    target.mkdir()
    bilm.write(target, *bilm.read(*bilm.find(files)))
    assert json.loads((target / "options.json").read_text()) == OPTIONS
    found = {}
    with h5py.File(target / "lm_weights.hdf5") as file:
        file.visititems(lambda name, value: found.update({name: value[()]}) if hasattr(value, "shape") else None)
    assert found.keys() == tensors().keys()
    for name, value in tensors().items():
        # 1 is added to the forget gate's bias and taken away again, with a rounding error.
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-7 if name.endswith("/B") else 0)


def replaced(name, make):
    """A change of the file of weights: what `make(file, secret)` puts in the place of a tensor or a group."""
    def change(directory):
        with h5py.File(directory / "elmo_2x12_6_weights.hdf5", "r+") as file:
            file.move(name, "moved")
            make(file, directory / "secret")
    return change


def virtual(file, secret):
    layout = h5py.VirtualLayout(shape=file["moved"].shape, dtype="f4")
    layout[:] = h5py.VirtualSource(str(secret), "moved", shape=layout.shape)
    file.create_virtual_dataset("char_embed", layout)


@pytest.mark.parametrize(("change", "message"), [
    (replaced("char_embed", lambda file, secret: file.create_dataset(
        "char_embed", (261, CHARACTER), "f4", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])), "in other files"),
    (replaced("char_embed", virtual), "in other files"),
    (replaced("char_embed", lambda file, secret: file.update({"char_embed": h5py.SoftLink("/moved")})), "is a link"),
    (replaced("CNN", lambda file, secret: file.update({"CNN": h5py.ExternalLink(str(secret), "/")})), "CNN is a link"),
    (replaced("CNN", lambda file, secret: file.update({"CNN": h5py.SoftLink("/moved")})), "CNN is a link"),
    (replaced("CNN", lambda file, secret: file.create_dataset("CNN", data=[1.0])), "cannot be read|has no CNN"),
    (replaced("char_embed", lambda file, secret: file.create_group("char_embed")), "is no tensor"),
    (replaced("char_embed", lambda file, secret: file.update({"char_embed": b"text"})), "is no tensor"),
    (replaced("char_embed", lambda file, secret: file.create_dataset("char_embed", (261, CHARACTER), "f4",
                                                                      chunks=(1, 1))), "has a shape and no values")])
def test_values_outside_the_file_are_refused(files, change, message):
    (files / "secret").write_bytes(bytes(10**4))
    change(files)
    with pytest.raises(UserError, match=message):
        bilm.read(*bilm.find(files))
