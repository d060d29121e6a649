"""Which networks, objectives and formats go together, by shape; and that some of those which do, train."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from lmrep import experiment as experiments
from lmrep import pairings
from lmrep.core.sharding import batch_sharding, make_mesh, use
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FORMATS
from lmrep.models import PRESETS, transformer
from lmrep.objectives import OBJECTIVES
from lmrep.training import optimizers, state
from lmrep.training.step import train_step
from tests import small

FOUND = list(pairings.pairings())
NETWORKS = {pairings.in_little(preset.config): name for name, preset in PRESETS.items()}  # one name a network shape
V = pairings.SMALL["vocab"]
VOCABULARY = Vocabulary(V, {role: i for i, role in enumerate(pairings.ROLES)}, np.arange(V) % 3 > 0, np.ones(V, int))


def test_every_triple_works_or_says_why_not():
    assert len(FOUND) == len(PRESETS) * len(OBJECTIVES) * len(FORMATS)
    assert {p.objective for p in FOUND if not p.refused} == set(OBJECTIVES)
    assert {p.preset for p in FOUND if not p.refused} == set(PRESETS)


def test_what_a_question_needs_and_a_format_lacks_is_refused(monkeypatch):
    rows = FORMATS["packed"]._replace(fields=("tokens", "example"))
    monkeypatch.setitem(FORMATS, "bare", rows)
    assert "needs segment_ids, which format 'bare' does not give" in pairings.refusal("bert_tiny", "masked", "bare")


def test_the_command():
    answer = small.command("pairings", "bert_tiny", "gpt2")
    lines = answer.out.splitlines()
    assert answer.code == 0 and lines[0].split() == list(FORMATS)
    assert lines[1].split() == ["bert_tiny", "masked", *["works"] * len(FORMATS)]
    assert len([line for line in lines if line.startswith("gpt2")]) == len(OBJECTIVES) * len(
        [name for name in PRESETS if name.startswith("gpt2")])
    assert small.command("pairings", "bart").code == 2


def question(fields, seed=0):
    """A batch of `fields` with packed, padded rows."""
    rng, rows, t = np.random.default_rng(seed), 8, pairings.LENGTH
    segments = np.ones((rows, t), np.int32)
    segments[:, t // 2 :] += 1
    segments[::3, t - 5 :] = 0
    tokens = np.where(segments > 0, rng.integers(6, V, (rows, t)), 0).astype(np.int32)
    made = {"tokens": tokens, "segment_ids": segments, "positions": np.tile(np.arange(t, dtype=np.int32), (rows, 1)),
            "token_type_ids": np.zeros((rows, t), np.int32), "example": np.arange(rows, dtype=np.int32),
            "pair_label": np.arange(rows, dtype=np.int32) % 2, "reset": np.zeros(rows, np.int32)}
    return {name: made[name] for name in fields}


# Every objective with one network, over eight devices too; every other network with one of the objectives in turn.
FIRST, *OTHERS = NETWORKS
TURNS = list(FORMATS), list(OBJECTIVES)
OVER_EIGHT = [(FIRST, objective, TURNS[0][i]) for i, objective in enumerate(OBJECTIVES)]
TRIPLES = OVER_EIGHT + [(network, TURNS[1][i % len(TURNS[1])], TURNS[0][(i + 4) % len(TURNS[0])])
                        for i, network in enumerate(OTHERS)]


def losses(network, objective, form, sizes):
    """Of two steps of eight rows."""
    kind, mesh, found = OBJECTIVES[objective], make_mesh(*sizes), []
    network = replace(network, dropout=0.0, attention_dropout=0.0)
    asked = kind.build(kind.config(), transformer.build(network), VOCABULARY)
    optimizer = optimizers.build(optimizers.Config(), asked.specs, 10)
    with use(mesh):
        layout = state.layout(asked, optimizer, 8, mesh)
        made = jax.jit(partial(state.create, asked, optimizer, 8), static_argnums=0, out_shardings=layout)(0)
        step = jax.jit(partial(train_step, objective=asked, optimizer=optimizer, seed=0))
        for number in range(2):
            batch = jax.device_put(question(FORMATS[form].fields, number), batch_sharding(mesh))
            made, metrics = step(made, batch)
            found.append(float(metrics["loss"][0]))
    return found


def named(x):
    return NETWORKS[x] if isinstance(x, transformer.Config) else x


@pytest.mark.parametrize(("network", "objective", "form"), TRIPLES, ids=named)
def test_networks_train_under_objectives(network, objective, form):
    one = losses(network, objective, form, (1, 1, 1))
    assert np.isfinite(one).all()
    if (network, objective, form) in OVER_EIGHT:
        np.testing.assert_allclose(losses(network, objective, form, (2, 2, 2)), one, rtol=1e-5)


def test_a_triple_that_parses_is_one_that_the_shown_commands_may_choose():
    for name in OBJECTIVES:
        experiments.parse(experiments.base("bert_tiny", name))
