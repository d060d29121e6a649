"""Generated texts, and sliding-window perplexity."""

from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.core.errors import UserError
from lmrep.inference import generate, perplexity
from lmrep.layers.attention import AttentionMask
from lmrep.models import decoding
from lmrep.models.base import Inputs
from lmrep.models.decoding import Sampling
from tests import chance
from tests.objectives.test_causal import T, V, build

MODEL, OBJECTIVE, PARAMS = build()
PROMPT = np.random.default_rng(5).integers(0, V, (3, 4)).astype(np.int32)


@jax.jit
def logits_of(tokens):
    """[b, t, v] of the token that follows each, without a cache."""
    mask = AttentionMask(jnp.ones_like(tokens), causal=True)
    hidden = MODEL.encode(PARAMS["encoder"], Inputs(tokens=tokens, attention_mask=mask)).hidden
    return OBJECTIVE.uses.next_token.logits(PARAMS, hidden)


@cache
def program(**options):
    return jax.jit(partial(generate.generate, model=MODEL, objective=OBJECTIVE, capacity=T, **options))


def extend(prompt, sampling, tokens=T - 4, seed=0, padding=0, **options):
    f, size = program(sampling=sampling, tokens=tokens, **options), prompt.shape[1]
    return np.asarray(f(PARAMS, np.pad(prompt, ((0, 0), (0, padding))), size, jax.random.key(seed)))


filtered = jax.jit(decoding.filter_logits, static_argnums=1)


def test_temperature_0_gives_the_likeliest_tokens():
    found = extend(PROMPT, Sampling(temperature=0))
    full = np.concatenate([PROMPT, found], 1)
    assert (np.asarray(logits_of(full)).argmax(-1)[:, 3:-1] == found).all()
    assert (extend(PROMPT, Sampling(temperature=0.7, top_k=1)) == found).all()
    logits = logits_of(PROMPT)[:, -1]
    for temperature in (1e-30, 1e-42):  # the latter is 0 in float32
        kept = np.isfinite(filtered(logits, Sampling(temperature=temperature, top_p=0.9)))
        assert (kept.sum(-1) == 1).all() and (kept.argmax(-1) == found[:, 0]).all()
    assert (extend(PROMPT, Sampling(temperature=0), padding=5) == found).all()


def test_seed_repeats_samples_and_examples_differ():
    same = np.repeat(PROMPT[:1], 8, 0)
    first, again, other = (extend(same, Sampling(temperature=2.0), seed=seed) for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any() and len({tuple(row) for row in first}) > 4


def test_each_prompt_has_its_own_draws():
    function = jax.jit(partial(generate.generate, model=MODEL, objective=OBJECTIVE),
                       static_argnames=("sampling", "tokens", "capacity"))
    options = SimpleNamespace(tokens=4, samples=2, seed=0, temperature=2.0, top_k=0, top_p=1.0)
    run = SimpleNamespace(model=MODEL, params=PARAMS, end_tokens=set(), continue_prompts=function)
    first, other, again = (generate.continuations(run, PROMPT[0].tolist(), options, number, "a text")
                           for number in (0, 1, 0))
    assert first == again != other


def test_banned_tokens_are_never_generated():
    likely = int(extend(PROMPT[:1], Sampling(temperature=0), tokens=1)[0, 0])
    assert likely not in extend(np.repeat(PROMPT[:1], 50, 0), Sampling(), tokens=4, banned_token_ids=(likely,))


def truncated(logits, sampling):
    """The probabilities of the tokens that are sampled, float64."""
    logits = np.asarray(logits).astype(np.float64) / sampling.temperature
    order = np.argsort(-logits)[: sampling.top_k or None]
    probabilities = np.exp(logits[order]) / np.exp(logits[order]).sum()
    kept = order[: np.searchsorted(np.cumsum(probabilities), sampling.top_p - 1e-12) + 1]
    expected = np.zeros(V)
    expected[kept] = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
    return expected


MIXED = Sampling(temperature=1.5, top_k=20, top_p=0.5)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5), Sampling(top_k=5), Sampling(top_p=0.6),
                                      MIXED])
def test_logits_are_truncated_by_temperature_k_and_p(sampling):
    logits = logits_of(PROMPT[:1])[0, -1]
    found = np.exp(jax.nn.log_softmax(filtered(logits, sampling)))
    np.testing.assert_allclose(found, truncated(logits, sampling), rtol=1e-4, atol=1e-7)


def test_samples_follow_the_truncated_distribution():
    expected = truncated(logits_of(PROMPT[:1])[0, -1], MIXED)
    found = np.bincount(extend(np.repeat(PROMPT[:1], 4000, 0), MIXED, tokens=1)[:, 0], minlength=V)
    assert chance.fits(found, expected) > chance.REJECT
    assert chance.fits(found, np.roll(expected, 1)) < chance.REJECT  # the probabilities of other tokens


@pytest.mark.parametrize(("length", "window", "stride"), [
    (30, 8, 4), (30, 8, 7), (8, 8, 3), (5, 8, 1), (1, 8, 4), (0, 8, 4)])
def test_windows_predict_each_token_once_with_sufficient_context(length, window, stride):
    times = np.zeros(length, int)
    for start, end, first in perplexity.windows(length, window, stride):
        assert 0 < end - start <= window
        for i in range(first, end):
            times[i] += 1
            assert i - start >= min(i, window - stride)
    assert (times[1:] == 1).all() and not times[:1].any()


@pytest.mark.parametrize("stride", [0, 8, -1])
def test_stride_that_skips_tokens_is_refused(stride):
    with pytest.raises(UserError, match=rf"stride is {stride}; expected 1 to 7"):  # at once
        perplexity.windows(30, 8, stride)


def test_sliding_window_loss_equals_the_sum_over_windows():
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, V, n).astype(np.int32) for n in (25, 3, 1, 12)]
    run = jax.jit(partial(perplexity.sum_nll, PARAMS, objective=OBJECTIVE, model=MODEL))
    found = np.sum([*perplexity.sliding_window_nll(run, iter(texts), T, 5, pad=2, tokens=3 * T)], axis=0)
    expected = 0.0
    for text in texts:
        for start, end, first in perplexity.windows(len(text), T, 5):
            padded = np.pad(text[start:end], (0, T - (end - start)))[None]
            logs = log_softmax(np.asarray(logits_of(padded))[0].astype(np.float64), -1)
            expected -= sum(logs[i - start - 1, text[i]] for i in range(first, end))
    assert found[1] == 24 + 2 + 0 + 11 and found[0] == pytest.approx(expected, rel=1e-4)


def test_perplexity_metrics():
    found = perplexity.Perplexity(nll=8 * np.log(2), tokens=4, words=2, bytes=8, documents=1).figures
    assert found["token_perplexity"] == pytest.approx(4) and found["word_perplexity"] == pytest.approx(16)
    assert found["bits_per_byte"] == pytest.approx(1)
