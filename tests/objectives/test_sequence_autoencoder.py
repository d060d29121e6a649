"""The sequence autoencoder: what is read and predicted, its loss and gradients, and the texts that it writes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax

from lmrep.core.vocabulary import Vocabulary
from lmrep.models import awd_lstm, lstm, transformer
from lmrep.models.base import Context, model_inputs
from lmrep.objectives import causal, sequence_autoencoder
from lmrep.objectives.base import Carry, Keys
from lmrep.objectives.capabilities import Reconstruct
from lmrep.objectives.outputs import with_network_losses
from tests import reference

V, T = 23, 6
VOCABULARY = Vocabulary(V, {"eos": 0, "pad": 1}, np.ones(V, bool), np.arange(V))
BATCH = {"tokens": np.array([[5, 7, 9, 0, 1, 1], [4, 8, 15, 16, 3, 0], [1] * 6], np.int32),
         "segment_ids": np.array([[1] * 4 + [0] * 2, [1] * 6, [0] * 6], np.int32),
         "example": np.arange(3, dtype=np.int32)}
KEYS = Keys(jax.random.split(jax.random.key(0), 3), jax.random.key(1))


def build(model=None, **fields):
    model = model or lstm.build(lstm.Config(vocab=V, width=8, layers=1, embedding=6, tied=False, dropout=0.0))
    objective = sequence_autoencoder.build(sequence_autoencoder.Config(**fields), model, VOCABULARY)
    return model, objective, reference.random_params(objective.specs, seed=2)


def test_a_text_is_read_and_then_all_of_it_but_its_last_token_again():
    model, objective, _ = build()
    batch = objective.prepare(KEYS, BATCH)
    sequence, writing = jax.device_get(sequence_autoencoder.twice(BATCH, model))
    for row, n in enumerate((4, 6)):
        text = BATCH["tokens"][row, :n]
        real = sequence["segment_ids"][row] > 0
        np.testing.assert_array_equal(sequence["tokens"][row][real], [*text, *text[:-1]])
        np.testing.assert_array_equal(writing[row, :n], np.arange(n - 1, 2 * n - 1))
        np.testing.assert_allclose(batch["weights"][row], (np.arange(T) < n) / 10)
    assert not sequence["segment_ids"][2].any() and not batch["weights"][2].any()


def numpy_loss(params, text):
    """Dai and Le's loss of one text, written as one LSTM over 2 n - 1 positions: the nll of each token."""
    p = reference.float64(params)
    layer, table = p["encoder"]["layers"]["0"], p["encoder"]["embedding"]["token"]
    h, c, n, nll = np.zeros(8), np.zeros(8), len(text), []
    for i, token in enumerate([*text, *text[:-1]]):
        gates = reference.linear(layer["input"], table[token]) + h @ layer["recurrent"]["kernel"]
        i_gate, f, g, o = np.split(gates, 4)
        c = expit(f) * c + expit(i_gate) * np.tanh(g)
        h = expit(o) * np.tanh(c)
        if i >= n - 1:
            nll.append(-log_softmax(p["objective"]["causal"]["output"] @ h)[text[i - n + 1]])
    return nll


@pytest.mark.parametrize("objective", [sequence_autoencoder, causal])
def test_the_bias_starts_at_the_frequencies_of_tokens(objective):
    """Unseen tokens, and the padding of the table, count as one; without counts, all tokens have the same logit."""
    model, _, _ = build()
    bias = objective.build(objective.Config(unigram_bias=True), model, VOCABULARY).specs["objective"]["causal"]["bias"]
    counts = np.maximum(VOCABULARY.counts, 1)
    np.testing.assert_allclose(bias.init(jax.random.key(0), bias.shape), np.log(counts / counts.sum()), rtol=1e-6)
    padded = causal.unigram_logits(None, (V + 2,), counts=VOCABULARY.counts)
    np.testing.assert_allclose(padded[-2:], np.log(1 / counts.sum()), rtol=1e-6)
    np.testing.assert_allclose(causal.unigram_logits(None, (V,), counts=np.zeros(V, int)), np.log(1 / V), rtol=1e-6)


@pytest.mark.parametrize("chunk", [0, 4])
def test_the_loss_is_that_of_one_lstm_over_both_halves(chunk):
    """Chunks change gradients alone."""
    _, objective, params = build(chunk=chunk)
    total, (metrics, _) = objective.loss(params, objective.prepare(KEYS, BATCH), None, Carry())
    expected = [*numpy_loss(params, BATCH["tokens"][0, :4]), *numpy_loss(params, BATCH["tokens"][1])]
    assert float(total) == pytest.approx(np.mean(expected), rel=1e-5)
    assert float(metrics["reconstruction_loss"][0]) == pytest.approx(sum(expected), rel=1e-5)
    assert int(metrics["reconstruction_loss"][1]) == 10


def test_no_gradient_is_passed_from_a_chunk_to_the_one_before():
    """The gradient is the sum over chunks of the gradients of their own losses, from states that are constants."""
    model, objective, params = build(chunk=4)
    batch = objective.prepare(KEYS, BATCH)
    sequence, writing = sequence_autoencoder.twice(BATCH, model)
    found = jax.grad(lambda params: objective.loss(params, batch, None, Carry())[0])(params)

    def chunk_loss(params, state, start):
        part = {name: x[:, start : start + 4] for name, x in sequence.items()}
        encoded = model.encode(params["encoder"], model_inputs(model, part, conditions_on=Context.LEFT, carry=state))
        logits = encoded.hidden @ params["objective"]["causal"]["output"].T
        total = 0.0
        for row in range(2):
            for i, at in enumerate(writing[row]):
                if batch["weights"][row, i] > 0 and start <= at < start + 4:
                    total -= jax.nn.log_softmax(logits[row, at - start])[BATCH["tokens"][row, i]] / 10
        return total, encoded.carry

    state, expected = model.state.carry(3), jax.tree.map(jnp.zeros_like, params)
    for start in (0, 4, 8):
        gradient, state = jax.grad(chunk_loss, has_aux=True)(params, state, start)
        expected = jax.tree.map(jnp.add, expected, gradient)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), found, expected)
    whole = jax.grad(lambda params: build()[1].loss(params, batch, None, Carry())[0])(params)
    assert not np.allclose(found["encoder"]["embedding"]["token"], whole["encoder"]["embedding"]["token"], atol=1e-4)


def test_losses_of_the_network_do_not_grow_with_the_number_of_chunks():
    """`ar` is a mean over all positions, and so the same in one chunk and in several."""
    dropout = dict.fromkeys(awd_lstm.DROPOUT, 0.0)
    network = awd_lstm.build(awd_lstm.Config(vocab=V, width=8, layers=2, embedding=6, ar=3.0, tar=0.0, **dropout))
    totals = []
    for chunk in (0, 4):
        objective = with_network_losses(lambda model, chunk=chunk: build(model, chunk=chunk)[1], network, 1)
        params = reference.random_params(objective.specs, seed=2)
        total, (metrics, _) = objective.loss(params, objective.prepare(KEYS, BATCH), jax.random.key(3), Carry())
        loss, ar = (float(np.divide(*metrics[name])) for name in ("reconstruction_loss", "network_ar"))
        assert float(total) == pytest.approx(loss + 3 * ar, rel=1e-5) and ar > 0
        totals.append(float(total))
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)


@pytest.mark.parametrize("network", ["lstm", "transformer"])
def test_a_text_is_written_by_the_most_probable_tokens(network):
    model = None if network == "lstm" else transformer.build(
        transformer.Config(vocab=V, width=8, layers=1, heads=2, mlp=16, max_length=16, dropout=0.0))
    model, objective, params = build(model)
    found = objective.predict(params, {name: BATCH[name][:2] for name in ("tokens", "segment_ids")}, k=5)["generated"]
    table = params["objective"]["causal"]["output"] if network == "lstm" else params["encoder"]["embedding"]["token"]
    for row, n in enumerate((4, 6)):
        tokens = BATCH["tokens"][row, :n].tolist()
        for _ in range(5):
            read = {"tokens": np.array([tokens]), "segment_ids": np.ones((1, len(tokens)), np.int32)}
            hidden = model.encode(params["encoder"], model_inputs(model, read, conditions_on=Context.LEFT)).hidden
            tokens.append(int((hidden[0, -1] @ table.T).argmax()))
        assert found[row].tolist() == tokens[n:]


def test_reconstructions_are_shown_on_one_line():
    shown = Reconstruct()
    assert shown.accepts("a b") and not shown.accepts("a [MASK]") and shown.prompt_from("A b.", "", ()) == "A b."
    assert shown.to_json("a b") == {"reconstruction": "a b"} and shown.to_text("a b", "a\nc", None) == "a b => a c"
