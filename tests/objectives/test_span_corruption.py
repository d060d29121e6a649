"""T5's denoising: which tokens are noise, what source and target are, and the loss."""

from dataclasses import replace
from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.models import encoder_decoder, model_inputs
from lmrep.models.base import Context
from lmrep.objectives import span_corruption
from lmrep.objectives.base import Carry, Keys
from lmrep.objectives.capabilities import FillSpans, split_spans
from lmrep.objectives.span_corruption import Config, Ids, noise_counts
from tests import chance
from tests.cases import slow_after
from tests.reference import float64, random_params

V, SENTINELS = 160, 30
IDS = Ids(np.arange(V - 1, V - 1 - SENTINELS, -1).astype(np.int32), 0, 1, V)
VOCABULARY = Vocabulary(V, {"pad": 0, "eos": 1, "unk": 2}, np.ones(V, bool), np.ones(V, np.int64),
                        sentinels=tuple(IDS.sentinels.tolist()))
NETWORK = encoder_decoder.Config(vocab=V, width=16, layers=1, heads=2, mlp=32, dropout=0.0, attention_dropout=0.0,
                                 mlp_dropout=0.0)
CORRUPTIONS = {}  # compiled once for each config


def draw(c, n, t, examples=64, seed=0, ids=IDS):
    """Of each example (source, target), the text being 3, 4, 5, ... of n tokens."""
    tokens = jnp.broadcast_to(3 + jnp.arange(t), (examples, t))
    segments = jnp.broadcast_to((jnp.arange(t) < n).astype(jnp.int32), (examples, t))
    keys = jax.random.split(jax.random.key(seed), examples)
    corrupt = CORRUPTIONS.setdefault((c, len(ids.sentinels)), jax.jit(jax.vmap(
        partial(span_corruption.corrupt, c=c, ids=ids))))
    arrays = corrupt(keys, tokens, segments)
    source, sources, target, targets = map(np.asarray, arrays)
    sizes = span_corruption.lengths(t, c, len(ids.sentinels))
    assert (source.shape[1], target.shape[1]) == sizes
    assert sources.max() <= sizes[0] and targets.max() <= sizes[1]
    for each, sizes in ((source, sources), (target, targets)):
        assert (each[np.arange(each.shape[1]) >= sizes[:, None]] == ids.start).all()
    return [(a[:m].tolist(), b[:n].tolist()) for a, m, b, n in zip(source, sources, target, targets, strict=True)]


def expected_pair(noise, text, closing=False):
    """Source and target by the released code's rule: each run of noise, of the source, and each run of other tokens, of
    the target, becomes the next sentinel."""
    pair = []
    for replaced in (noise, [not x for x in noise]):
        out, number = [], 0
        for i, token in enumerate(text):
            if not replaced[i]:
                out.append(token)
            elif i == 0 or not replaced[i - 1]:
                out.append(int(IDS.sentinels[number]))
                number += 1
        pair.append(out)
    if closing and noise[-1]:
        runs = sum(noise[i] and (i == 0 or not noise[i - 1]) for i in range(len(noise)))
        pair[1].append(int(IDS.sentinels[runs]))
    return [*pair[0], IDS.end], [*pair[1], IDS.end]


def noise_of(source, n):
    """Which of n tokens are not in the source."""
    return [token not in source for token in range(3, 3 + n)]


# --- lengths


def test_published_lengths():
    """568 tokens make sources of 512 and targets of 114, of 85 noise tokens in 28 spans."""
    assert span_corruption.lengths(568, Config(), 100) == (512, 114)
    assert [int(x) for x in noise_counts(np.array(568), Config(), 100)] == [85, 28]
    ids = IDS._replace(sentinels=np.arange(999, 899, -1).astype(np.int32))
    for source, target in draw(Config(), 568, 568, examples=4, ids=ids):
        assert (len(source), len(target)) == (512, 114)


@pytest.mark.parametrize("c", slow_after(3, [
    Config(), Config(closing_sentinel=True), Config(variant="drop_tokens"), Config(rate=0.5), Config(mean_span=1.0),
    Config(rate=0.25, mean_span=10), Config(noise="tokens", rate=0.5)]), ids=str)
def test_source_and_target_follow_from_the_noise(c):
    for n, source, target in ((each, *pair) for each in (1, 2, 3, 17, 40) for pair in draw(c, each, 40, examples=16)):
        noise = noise_of(source, n)
        if c.variant == "drop_tokens":
            assert source == [token for token in range(3, 3 + n) if token in source] + [IDS.end]
            assert target == [token for token, chosen in zip(range(3, 3 + n), noise, strict=True) if chosen] + [IDS.end]
        else:
            assert (source, target) == expected_pair(noise, range(3, 3 + n), c.closing_sentinel)
        if c.noise == "spans" and n > 1:
            count, spans = noise_counts(np.array(n), c, SENTINELS)
            runs = sum(noise[i] and not noise[i - 1] for i in range(1, n))
            assert (sum(noise), runs, noise[0], noise[-1]) == (count, spans, False, True)


def test_an_empty_row_has_neither_source_nor_target():
    for variant in ("replace_spans", "deshuffling", "prefix"):
        assert set(map(str, draw(Config(variant=variant), 0, 12, examples=3))) == {"([], [])"}


# --- distributions


def test_all_ways_to_cut_are_equally_likely():
    n, parts, examples = 6, 3, 4000
    bits = jax.random.bits(jax.random.key(0), (examples, 9))
    found = np.asarray(jax.jit(jax.vmap(lambda bits: span_corruption.random_parts(bits, n, parts, 5)))(bits))
    assert (found[:, parts:] == 0).all()
    ways = [(a, b - a, n - b) for a, b in combinations(range(1, n), 2)]
    counts = [int((found[:, :parts] == way).all(1).sum()) for way in ways]
    assert sum(counts) == examples and chance.uniform(counts) > chance.REJECT


def test_tokens_are_noise_with_the_rate():
    examples = draw(Config(noise="tokens"), 100, 100, examples=400)
    share = np.mean([noise_of(source, 100) for source, _ in examples], 0)
    assert share[:80].mean() == pytest.approx(0.15, abs=0.008) and np.abs(share[:80] - 0.15).max() < 0.08


def test_prefixes_have_every_length():
    examples = draw(Config(variant="prefix"), 9, 12, examples=2000)
    lengths = [len(source) - 1 for source, _ in examples]
    counts = np.bincount(lengths, minlength=9)
    assert counts[0] == 0 and chance.uniform(counts[1:]) > chance.REJECT
    for source, target in examples[:50]:
        assert source[:-1] + target[:-1] == [*range(3, 12)] and source[-1] == target[-1] == IDS.end


@pytest.mark.slow
def test_targets_that_are_the_text():
    text, shuffled = [*range(3, 33), IDS.end], []
    for source, target in draw(Config(variant="deshuffling"), 30, 32):
        assert target == text and sorted(source[:-1]) == text[:-1] and source[-1] == IDS.end
        shuffled.append(source != text)
    assert all(shuffled)
    random, noise, drawn = 0, 0, set()
    for variant in ("mask", "bert"):
        for source, target in draw(Config(variant=variant, rate=0.5), 30, 32, examples=2000):
            assert target == text and len(source) == 31
            changed = [a for a, b in zip(source, text, strict=True) if a != b]
            noise += len(changed)
            if variant == "mask":
                assert len(changed) == 15 and set(changed) == {IDS.sentinels[0]}
            else:
                random += sum(a != IDS.sentinels[0] for a in changed)
                drawn.update(changed)
    assert drawn == set(range(3, V))  # the released code draws from id 3 on, sentinels included
    assert 0.06 < 2 * random / noise < 0.14


# --- the objective


def build(c=None, network=NETWORK, **changes):
    model = encoder_decoder.build(network)
    return span_corruption.build(c or Config(**changes), model, VOCABULARY)


def make_batch(b=8, t=40, seed=0):
    rng = np.random.default_rng(seed)
    segments = (np.arange(t) < rng.integers(t // 2, t + 1, (b, 1))).astype(np.int32)
    tokens = np.where(segments > 0, rng.integers(3, V - SENTINELS, (b, t)), 0).astype(np.int32)
    return {"tokens": tokens, "segment_ids": segments, "positions": np.tile(np.arange(t, dtype=np.int32), (b, 1)),
            "example": np.arange(b, dtype=np.int32)}


def prepared(objective, batch):
    keys = Keys(jax.random.split(jax.random.key(1), len(batch["tokens"])), jax.random.key(2))
    return jax.jit(objective.prepare)(keys, batch)


@pytest.mark.parametrize("tied", slow_after(1, ["all", "embeddings"]))
def test_loss_is_the_cross_entropy_of_the_targets_and_z_loss_in_training(tied):
    objective = build(network=replace(NETWORK, tied=tied), z_loss=0.1)
    params, batch = random_params(objective.specs), prepared(objective, make_batch())
    assert ("objective" in objective.specs) == (tied == "embeddings")
    run = jax.jit(lambda p, b, key: objective.loss(p, b, key, Carry()))
    (total, (metrics, _)), (trained, _) = run(params, batch, None), run(params, batch, jax.random.key(0))

    model = encoder_decoder.build(replace(NETWORK, tied=tied))
    inputs = model_inputs(model, {"tokens": batch["inputs"], "segment_ids": batch["target_segment_ids"],
                                  "source": batch["source"]}, conditions_on=Context.SOURCE)
    hidden = np.asarray(jax.jit(model.encode)(params["encoder"], inputs).hidden, np.float64)
    table = float64(params["encoder"]["embedding"]["token"]) / 4 if tied == "all" else float64(
        params["objective"]["span_corruption"]["output"])
    logits = hidden @ table.T
    log_z = np.log(np.exp(logits).sum(-1))
    nll = log_z - np.take_along_axis(logits, np.asarray(batch["targets"])[..., None], -1)[..., 0]
    real = np.asarray(batch["target_segment_ids"]) > 0
    assert float(total) == pytest.approx(nll[real].mean(), rel=1e-5)
    assert float(trained) == pytest.approx((nll + 0.1 * log_z**2)[real].mean(), rel=1e-5)
    sum_, count = metrics["denoising_loss"]
    assert float(sum_ / count) == pytest.approx(nll[real].mean(), rel=1e-5) and count == real.sum()


@pytest.mark.parametrize("variant", slow_after(1, span_corruption.VARIANTS))
def test_a_target_does_not_depend_on_itself(variant):
    """Neither the source nor the inputs up to a position have the token that is predicted there, of texts whose tokens
    are all different; and changing that token's later inputs changes nothing."""
    objective = build(variant=variant)
    batch = make_batch(b=4)
    batch["tokens"] = np.where(batch["segment_ids"] > 0, 3 + np.arange(40), 0).astype(np.int32)
    batch = prepared(objective, batch)
    inputs, targets, source = map(np.asarray, (batch["inputs"], batch["targets"], batch["source"]["tokens"]))
    assert (inputs[:, 0] == IDS.start).all() and (inputs[:, 1:] == targets[:, :-1]).all()
    words = (targets > IDS.end) & (targets < V - SENTINELS) & (np.asarray(batch["weights"]) > 0)
    for b, i in zip(*np.nonzero(words), strict=True):
        assert targets[b, i] not in inputs[b, : i + 1]
        if variant in ("replace_spans", "drop_tokens", "prefix"):
            assert targets[b, i] not in source[b]
    params = random_params(objective.specs)
    logits = jax.jit(lambda batch: _logits(objective, params, batch))
    at = 3
    changed = batch | {"inputs": batch["inputs"].at[:, at + 1 :].add(1)}
    np.testing.assert_array_equal(logits(batch)[:, : at + 1], logits(changed)[:, : at + 1])


def _logits(objective, params, batch):
    model = encoder_decoder.build(NETWORK)
    inputs = model_inputs(model, {"tokens": batch["inputs"], "segment_ids": batch["target_segment_ids"],
                                  "source": batch["source"]}, conditions_on=Context.SOURCE)
    return objective.uses.next_token.logits(params, model.encode(params["encoder"], inputs).hidden)


def test_examples_are_described():
    class Names:
        def id_to_token(self, i):
            return f"t{i}"

    objective = build()
    batch = prepared(objective, make_batch(b=2, t=12))
    lines = objective.uses.describe(jax.device_get(batch), Names())
    for line, source, target in zip(lines, batch["source"]["tokens"], batch["targets"], strict=True):
        left, right = line.split(" => ")
        assert left.split()[0] == f"t{source[0]}" and right.split()[0] == f"t{target[0]}" and right.endswith("t1")


def test_generated_targets_are_the_most_probable_tokens():
    """One after another, each given those before it."""
    objective = build()
    params = random_params(objective.specs, stddev=0.5)
    sources = np.random.default_rng(0).integers(3, V, (3, 11)).astype(np.int32)
    batch = {"tokens": jnp.asarray(sources), "segment_ids": jnp.asarray((np.arange(11) < [[11], [7], [4]]) * 1)}
    found = np.asarray(jax.jit(partial(objective.predict, k=9))(params, batch)["generated"])
    inputs = np.full((3, 9), IDS.start, np.int32)
    logits = jax.jit(lambda inputs: _logits(objective, params, {
        "inputs": inputs, "target_segment_ids": jnp.ones((3, 9), jnp.int32), "source": batch}))
    ended = np.zeros(3, bool)
    for i in range(9):
        best = np.where(ended, IDS.start, np.asarray(logits(inputs))[:, i].argmax(-1))
        np.testing.assert_array_equal(found[:, i], best)
        ended |= best == IDS.end
        inputs[:, i + 1 : i + 2] = best[:, None]


def test_spans_are_filled_in_with_what_follows_their_sentinels():
    class Words:
        tokens = ("<pad>", "</s>", "a", "b", "<extra_id_2>", "<extra_id_1>", "<extra_id_0>")
        vocabulary = Vocabulary(7, {"pad": 0, "eos": 1}, None, np.zeros(7), sentinels=(6, 5, 4))

        def decode(self, ids):
            return " ".join(self.tokens[i] for i in ids)

    assert split_spans([6, 2, 3, 5, 3, 6, 2, 1, 4, 2], Words()) == {"<extra_id_0>": "a b", "<extra_id_1>": "b"}
    fill = FillSpans()
    assert fill.accepts("the <extra_id_0> sat") and not fill.accepts("the [MASK] sat")
    assert fill.prompt_from("A small horse sees.", "", ()) == "A small <extra_id_0> sees."
    assert fill.to_text("x <extra_id_0>", {"<extra_id_0>": "a\nb"}, None) == "x <extra_id_0>\n  <extra_id_0>  a b"
    assert fill.to_text("x", {"<extra_id_0>": ""}, None).endswith("<extra_id_0>  (nothing)")
    with pytest.raises(UserError, match="there is no sentinel in 'the cat'"):
        fill.check(["the cat"], None, 0)
