"""AWD-LSTM: what each mask drops, the penalties against closed forms, and the network against PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core import prng
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import dropout
from lmrep.layers.attention import AttentionMask
from lmrep.models import awd_lstm
from lmrep.models.base import Inputs
from lmrep.objectives import causal
from lmrep.objectives.base import Keys
from lmrep.objectives.outputs import with_network_losses
from tests import reference

V, D, E, T, B = 31, 24, 16, 9, 3
TOKENS = np.random.default_rng(0).integers(0, V, (B, T)).astype(np.int32)
KEY = jax.random.key(5)
PLAIN = dict.fromkeys(awd_lstm.DROPOUT, 0.0)


def network(**changes):
    model = awd_lstm.build(awd_lstm.Config(**{"vocab": V, "width": D, "layers": 2, "embedding": E} | PLAIN | changes))
    return model, reference.random_params(model.specs, seed=1)


def encode(model, params, key=None, tokens=TOKENS, segments=None):
    mask = None if segments is None else AttentionMask(jnp.asarray(segments), causal=True)
    return jax.jit(lambda p: model.encode(p, Inputs(jnp.asarray(tokens), attention_mask=mask), key, layers=True))(
        params)


def close(computed, expected, atol=1e-6):
    np.testing.assert_allclose(computed, expected, rtol=0, atol=atol)


# --- dropout


def gradients(model, params, key):
    """Outputs of one example, and the gradients of a sum of them."""
    weights = np.random.default_rng(2).normal(size=(T, E))

    def total(params):
        hidden = model.encode(params, Inputs(TOKENS[:1]), key).hidden[0]
        return (hidden * weights).sum(), hidden

    (_, hidden), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    return hidden, P.flatten(grads)


@pytest.mark.parametrize(("field", "paths"), [
    ("weight_dropout", ["layers/0/recurrent/kernel", "layers/1/recurrent/kernel"]),
    ("input_dropout", ["layers/0/input/kernel"]), ("hidden_dropout", ["layers/1/input/kernel"])])
def test_one_mask_of_a_matrix_serves_all_time_steps(field, paths):
    """Where the gradient of the parameter is 0, its element is dropped. The network without dropout, with that mask on
    the parameter, has the same outputs and gradients. Masks on the input of a matrix are those of its rows."""
    (model, params), rate = network(**{field: 0.4}), 0.4
    hidden, grads = gradients(model, params, KEY)
    plain, masks = network()[0], {path: (np.asarray(grads[path]) != 0) / (1 - rate) for path in paths}
    flat = P.flatten(params)
    masked = flat | {path: np.float32(flat[path] * mask) for path, mask in masks.items()}
    expected, expected_grads = gradients(plain, P.unflatten(masked), None)
    close(hidden, expected)
    for path, gradient in grads.items():
        close(gradient, expected_grads[path] * masks.get(path, 1), 1e-5)
    other = gradients(model, params, jax.random.key(6))[1]
    for path, mask in masks.items():
        kept = mask if field == "weight_dropout" else mask[:, :1]
        assert 0.3 < (kept > 0).mean() < 0.9 and ((mask > 0) == (kept > 0)).all()
        assert ((np.asarray(other[path]) != 0) != (mask > 0)).any()


def test_dropout_of_the_output_is_the_same_at_all_time_steps():
    model, params = network(dropout=0.5)
    encoded = encode(model, params, KEY)
    kept = np.asarray(encoded.hidden) != 0
    assert 0.2 < kept.mean() < 0.8 and (kept == kept[:, :1]).all() and (kept[0] != kept[1]).any()
    close(encoded.hidden, 2 * kept * encoded.layers[-1])


def test_embedding_dropout_drops_word_types_and_leaves_the_output_table_alone():
    model, params = network(embedding_dropout=0.5)
    tokens = np.tile(np.arange(V, dtype=np.int32), (2, 2))  # every word four times
    vectors, table = np.asarray(encode(model, params, KEY, tokens).layers[0]), params["embedding"]["token"]
    kept = (vectors[0, :V] != 0).any(-1)
    assert 0.2 < kept.mean() < 0.8
    close(vectors, np.tile(2 * kept[:, None] * table, (2, 2, 1)))
    np.testing.assert_array_equal(model.output.table({"embedding": {"token": table}}, KEY), table)


def test_evaluation_has_no_dropout():
    rates = dict.fromkeys(awd_lstm.DROPOUT, 0.5)
    model, params = network(**rates)
    np.testing.assert_array_equal(encode(model, params).hidden, encode(network()[0], params).hidden)
    assert np.abs(encode(model, params, KEY).hidden - encode(model, params).hidden).max() > 0.1


# --- penalties


@pytest.mark.parametrize("ar_of", ["dropped", "raw"])
def test_penalties_equal_their_closed_forms(ar_of):
    """Of positions with text; a difference is of two positions of the same text."""
    model, params = network(dropout=0.5, ar=3.0, tar=0.5, ar_of=ar_of)
    segments = np.array([[1] * T, [1, 1, 1, 2, 2, 2, 2, 0, 0], [0] * T], np.int32)
    encoded = encode(model, params, KEY, segments=segments)
    dropped, raw = (np.asarray(x, np.float64) for x in (encoded.hidden, encoded.layers[-1]))
    output = dropped if ar_of == "dropped" else raw
    squares = [output[b, t] ** 2 for b in range(B) for t in range(T) if segments[b, t]]
    changes = [(raw[b, t + 1] - raw[b, t]) ** 2 for b in range(B) for t in range(T - 1)
               if segments[b, t] == segments[b, t + 1] > 0]
    for name, values, weight in (("ar", squares, 3.0), ("tar", changes, 0.5)):
        term = encoded.losses[name]
        assert (int(term.count), float(term.weight)) == (np.size(values), weight)
        assert float(term.sum) == pytest.approx(np.sum(values), rel=1e-5)


def test_a_sequence_of_one_token_has_no_temporal_penalty():
    model, params = network()
    term = encode(model, params, tokens=TOKENS[:, :1]).losses["tar"]
    assert (float(term.sum), int(term.count)) == (0, 0)


# --- initial values and PyTorch


@pytest.mark.parametrize("biases", [1, 2])
def test_layers_start_as_those_of_pytorch(biases):
    c = awd_lstm.Config(vocab=V, width=64, embedding=16, biases=biases)
    params = P.flatten(P.init(awd_lstm.specs(c), jax.random.key(0)))
    assert sum(path.endswith("bias") for path in params) == 3 * biases
    for path, value in params.items():
        bound = 0.1 if path == "embedding/token" else 16**-0.5 if "layers/2" in path else 64**-0.5
        assert 0.85 * bound < np.abs(value).max() <= bound, path


class Torch:
    """The network in PyTorch and float64, with its `LSTM`, the output biases and the loss of the released code. Masks
    are given: without them, there is no dropout."""

    def __init__(self, params):
        self.torch = torch = pytest.importorskip("torch")
        encoder = params["encoder"]
        self.table = torch.nn.Parameter(torch.tensor(encoder["embedding"]["token"]).double())
        self.bias = torch.nn.Parameter(torch.tensor(params["objective"]["causal"]["bias"]).double())
        self.named, self.layers = {"encoder/embedding/token": self.table, "objective/causal/bias": self.bias}, []
        for i, layer in encoder["layers"].items():
            kernels = layer["input"]["kernel"], layer["recurrent"]["kernel"]
            lstm = torch.nn.LSTM(kernels[0].shape[0], kernels[1].shape[0], batch_first=True)
            for part, suffix in (("input", "ih"), ("recurrent", "hh")):
                for name, kind in (("kernel", "weight"), ("bias", "bias")):
                    parameter = getattr(lstm, f"{kind}_{suffix}_l0")
                    parameter.data = torch.tensor(layer[part][name].T.copy()).double()
                    self.named[f"encoder/layers/{i}/{part}/{name}"] = parameter
            self.layers.append(lstm)

    def run(self, tokens, state, masks=None):
        """(outputs [b, t, e] before and after dropout, logits [b, t, v], the state after them)."""
        torch, after = self.torch, []
        masks = masks and jax.tree.map(lambda x: torch.tensor(np.asarray(x)).double(), masks)
        x = torch.nn.functional.embedding(torch.tensor(tokens).long(), self.table)
        x = x * masks["types"] * masks["input"] if masks else x
        for i, lstm in enumerate(self.layers):
            hidden = lstm.weight_hh_l0 * (masks["weights"][i].T if masks else 1)
            raw, last = torch.func.functional_call(lstm, {"weight_hh_l0": hidden}, (x, state and state[i]))
            x = raw * masks["outputs"][i] if masks else raw
            after.append(tuple(part.detach() for part in last))
        return raw, x, x @ self.table.T + self.bias, after

    def loss(self, raw, dropped, logits, targets):
        targets = self.torch.tensor(targets).long().flatten()
        entropy = self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
        return entropy + 2 * dropped.pow(2).mean() + (raw[:, 1:] - raw[:, :-1]).pow(2).mean()


def test_windows_of_any_lengths_give_the_losses_of_one_text():
    """With padding to a multiple of 8, the state after each window, and the token that follows it."""
    model, _ = network(ar=0.0, tar=0.0)
    vocabulary = Vocabulary(V, {}, np.ones(V, bool), np.arange(V))
    objective = causal.build(causal.Config(), model, vocabulary)
    params = reference.random_params(objective.specs, seed=3)
    text = np.random.default_rng(4).integers(0, V, (B, 45)).astype(np.int32)

    def nll(lengths, multiple):
        total, begin, carry = 0.0, 0, objective.carry(B)
        for length in lengths:
            padding = ((0, 0), (0, -length % multiple))
            batch = objective.prepare(Keys(jax.random.split(KEY, B), KEY), {
                "tokens": np.pad(text[:, begin : begin + length], padding), "reset": np.full(B, not begin, np.int32),
                "segment_ids": np.pad(np.ones((B, length), np.int32), padding), "following": text[:, begin + length]})
            _, (metrics, carry) = jax.jit(objective.loss)(params, batch, None, carry)
            assert int(metrics["lm_loss"][1]) == B * length
            total, begin = total + float(metrics["lm_loss"][0]), begin + length
        return total, carry.per_example

    total, state = nll([44], 1)
    for lengths in ([8, 13, 5, 18], [5, 24, 15]):
        windows, after = nll(lengths, 8)
        assert windows == pytest.approx(total, rel=1e-6)
        jax.tree.map(lambda x, y: close(x, y, 2e-6), after, state)


def masks_of(key, tokens, rates):
    """The masks that a network of three layers draws."""
    type_key, input_key, *keys = prng.split(key, 8)
    widths, (b, t) = [E, D, D, E], tokens.shape

    def mask(key, shape, rate, **more):
        return dropout.apply(key, jnp.ones(shape), rate, **more)

    output_rates = [rates["hidden_dropout"]] * 2 + [rates["dropout"]]
    return {"types": dropout.apply_to_rows(type_key, jnp.ones((b, t, 1)), tokens, rates["embedding_dropout"]),
            "input": mask(input_key, (b, t, E), rates["input_dropout"], same_along=(1,)),
            "weights": [mask(key, (d, 4 * d), rates["weight_dropout"])
                        for key, d in zip(keys[::2], widths[1:], strict=True)],
            "outputs": [mask(key, (b, t, d), rate, same_along=(1,))
                        for key, d, rate in zip(keys[1::2], widths[1:], output_rates, strict=True)]}


@pytest.mark.parametrize("rates", [PLAIN, dict(zip(awd_lstm.DROPOUT, (0.4, 0.25, 0.4, 0.1, 0.5), strict=True))],
                         ids=["plain", "dropout"])
def test_the_loss_and_gradients_equal_those_of_pytorch(rates):
    """Over two batches, the second of which continues the first, with the same masks."""
    model, _ = network(layers=3, **rates)
    vocabulary = Vocabulary(V, {}, np.ones(V, bool), np.arange(V))
    objective = with_network_losses(lambda model: causal.build(causal.Config(bias=True), model, vocabulary), model, 1)
    params = reference.random_params(objective.specs, seed=3)
    theirs, state, carry = Torch(params), None, objective.carry(B)
    texts = np.random.default_rng(4).integers(0, V, (B, 2 * T + 1)).astype(np.int32)

    @jax.jit
    def step(params, batch, carry):
        batch = objective.prepare(Keys(jax.random.split(KEY, B), KEY), batch)
        inputs = Inputs(batch["tokens"], carry=carry.per_example)
        logits = objective.uses.next_token.logits(params, model.encode(params["encoder"], inputs, KEY).hidden)
        (total, (_, carry)), grads = jax.value_and_grad(objective.loss, has_aux=True)(params, batch, KEY, carry)
        return total, logits, grads, carry

    for first in (0, T):
        batch = {"tokens": texts[:, first : first + T], "segment_ids": np.ones((B, T), np.int32),
                 "reset": np.full(B, first == 0, np.int32), "following": texts[:, first + T]}
        total, logits, grads, carry = step(params, batch, carry)
        raw, dropped, expected_logits, state = theirs.run(
            batch["tokens"], state, masks_of(KEY, batch["tokens"], rates) if any(rates.values()) else None)
        expected = theirs.loss(raw, dropped, expected_logits, texts[:, first + 1 : first + T + 1])
        for parameter in theirs.named.values():
            parameter.grad = None
        expected.backward()
        close(logits, expected_logits.detach(), 1e-6 * np.abs(expected_logits.detach().numpy()).max())
        assert float(total) == pytest.approx(expected.item(), rel=1e-6)
        found = P.flatten(grads)
        assert found.keys() == theirs.named.keys()
        for path, parameter in theirs.named.items():
            gradient = (parameter.grad.T if path.endswith("kernel") else parameter.grad).numpy()
            close(found[path], gradient, 1e-6 * np.abs(gradient).max())
            if rates is not PLAIN and path.endswith("recurrent/kernel"):
                assert 0.3 < (gradient == 0).mean() < 0.7
