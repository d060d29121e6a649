"""Which networks, objectives and formats go together, by shape; and that those which do, train: every network shape
under every objective, for two steps on one device and on eight, with the formats in turn."""

from functools import partial
from itertools import cycle

import jax
import numpy as np
import pytest

from lmrep.core.sharding import batch_sharding, make_mesh, use_mesh
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FORMATS
from lmrep.experiment import compatibility
from lmrep.models import PRESETS, transformer
from lmrep.objectives import OBJECTIVES
from lmrep.training import optimizers, state
from lmrep.training.step import train_step
from tests import small

V = compatibility.SMALL["vocab"]
VOCABULARY = Vocabulary(V, {role: i for i, role in enumerate(compatibility.ROLES)}, np.arange(V) % 3 > 0,
                        np.ones(V, int))


# By shape


def test_the_command_prints_every_triple_and_why_some_are_refused():
    found = list(compatibility.pairings())
    assert {p[:3] for p in found} == {(network, objective, form) for network in (*PRESETS, "lstm")
                                      for objective in compatibility.objectives() for form in FORMATS}
    assert set(OBJECTIVES) < set(compatibility.objectives())
    refused = {p[1:] for p in found if p.refused and p.preset in PRESETS}
    assert {p.objective for p in found if p.preset == "lstm" and not p.refused} == {"causal"}
    pairs = [name for name in compatibility.objectives() if name.endswith(" sentence_pair")]
    assert "masked sentence_pair" in pairs and refused == {
        (name, form, f"objective '{name.split()[0]}' as configured needs pair_label, which format '{form}' does not "
                     "give; formats that do: segment_pair, sentence_pair")
        for name in pairs for form in FORMATS if form not in ("segment_pair", "sentence_pair")}

    answer = small.command("pairings", "bert_tiny", "gpt2")
    head, *lines = answer.out.splitlines()
    assert answer.code == 0 and head.split() == list(FORMATS)
    assert lines[0].split() == ["bert_tiny", "masked", *["fits"] * len(FORMATS)]
    assert lines[1].split()[:6] == ["bert_tiny", "masked", "sentence_pair", "[1]", "fits", "fits"]
    refusing = "the objective as configured needs pair_label, which the format does not give; formats that do: "
    assert answer.out.count("[1]") > 2 and lines[-1] == f"[1] {refusing}segment_pair, sentence_pair"
    assert len(lines) == 1 + len(compatibility.objectives()) * len(
        [name for name in PRESETS if name.startswith(("bert_tiny", "gpt2"))])
    assert small.command("pairings", "bart").code == 2


def test_what_a_question_needs_and_a_format_lacks_is_refused(monkeypatch):
    rows = FORMATS["packed"]._replace(fields=lambda config: ("tokens", "example"))
    monkeypatch.setitem(FORMATS, "bare", rows)
    reason = compatibility.refusal("bert_tiny", "masked", "bare")
    assert "needs segment_ids, which format 'bare' does not give" in reason


def test_what_a_step_reads_is_found():
    """So that formats are traced together only where what they differ in is not read."""
    small_configs = {name: compatibility.smallest(PRESETS[name].config) for name in ("bert_tiny", "gpt2")}
    given = (*compatibility.default_fields("stream"), "pair_label")
    common = {"tokens", "segment_ids", "positions"}
    assert compatibility.reads("transformer", small_configs["bert_tiny"], "masked sentence_pair", given) == {
        *common, "token_type_ids", "pair_label"}
    assert compatibility.reads("transformer", small_configs["gpt2"], "causal", given) == common


# In earnest


def triples():
    """(network, objective, format): every network under every objective, and the objectives' switches with one network
    each, the formats in turn."""
    shapes = {compatibility.smallest(preset.config): name for name, preset in reversed(PRESETS.items())}
    switched = [name for name in compatibility.objectives() if name not in OBJECTIVES]
    asked = [(network, objective) for network in reversed(shapes.values()) for objective in OBJECTIVES]
    asked += zip(cycle(shapes.values()), switched, strict=False)
    turns = cycle(FORMATS)
    for network, objective in asked:
        name, fields = compatibility.settings(objective)
        needed = OBJECTIVES[name].batch_fields(OBJECTIVES[name].config(**fields))
        yield network, objective, next(form for form in turns if set(needed) <= set(compatibility.default_fields(form)))


def question(fields, seed):
    """A batch of `fields` with packed, padded rows."""
    rng, rows, t = np.random.default_rng(seed), 8, compatibility.LENGTH
    segments = np.ones((rows, t), np.int32)
    segments[:, t // 2 :] += 1
    segments[::3, t - 5 :] = 0
    tokens = np.where(segments > 0, rng.integers(6, V, (rows, t)), 0).astype(np.int32)
    made = {"tokens": tokens, "segment_ids": segments, "positions": np.tile(np.arange(t, dtype=np.int32), (rows, 1)),
            "token_type_ids": np.zeros((rows, t), np.int32), "example": np.arange(rows, dtype=np.int32),
            "pair_label": np.arange(rows, dtype=np.int32) % 2, "reset": np.zeros(rows, np.int32),
            "following": np.full(rows, -1, np.int32)}
    return {name: made[name] for name in fields}


@pytest.mark.parametrize(("network", "objective", "form"), triples())
def test_it_trains_on_one_device_and_on_eight_alike(network, objective, form):
    name, fields = compatibility.settings(objective)
    kind = OBJECTIVES[name]
    network = transformer.build(compatibility.smallest(PRESETS[network].config))
    asked = kind.build(kind.config(**fields), network, VOCABULARY)
    optimizer = optimizers.build(optimizers.Config(learning_rate=1e-3), asked.specs, 10)
    start = state.create(asked, optimizer, 8, 0)

    def losses(*sizes):
        mesh, found, now = make_mesh(*sizes), [], start
        step = jax.jit(partial(train_step, objective=asked, optimizer=optimizer, seed=0))
        with use_mesh(mesh):
            now = jax.device_put(start, state.layout(asked, optimizer, 8, mesh))
            for number in range(2):
                batch = jax.device_put(question(compatibility.default_fields(form), number), batch_sharding(mesh))
                now, metrics = step(now, batch)
                found.append(float(metrics["loss"][0]))
        return found, now

    one, after = losses(1, 1, 1)
    assert np.isfinite(one).all() and after.step == 2
    moved = jax.tree.map(lambda old, new: (np.asarray(old) != np.asarray(new)).any(), start.params, after.params)
    assert all(jax.tree.leaves(moved))
    np.testing.assert_allclose(losses(2, 2, 2)[0], one, rtol=1e-5)
