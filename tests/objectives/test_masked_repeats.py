"""When masks repeat: static ones cycle, dynamic ones never return, evaluations repeat."""

from functools import cache

import jax
import numpy as np
import pytest

from lmrep.data.order import example_numbers
from lmrep.objectives.base import Carry
from lmrep.training.step import evaluation_step, prepare_keys
from tests.objectives.toys import V, batch, example, objective

TEXTS = [example(64, (np.random.default_rng(i).integers(5, V, 60).tolist(),)) for i in range(4)]
STATIC, DYNAMIC = objective(masking="static"), objective()


def masks(objective, numbers, step, seed=1):
    """The masks of a batch of these examples."""
    raw = batch([TEXTS[i % len(TEXTS)] for i in numbers], example=np.asarray(numbers, np.int32))
    prepared = jitted_prepare(objective.static)(raw, seed, step)
    inputs, predicted, used = (np.asarray(prepared[name]) for name in ("inputs", "predicted", "weights"))
    return [(tokens.tobytes(), np.sort(positions[weights > 0]).tobytes())
            for tokens, positions, weights in zip(inputs, predicted, used, strict=True)]


@cache
def jitted_prepare(static):
    objective = STATIC if static else DYNAMIC
    return jax.jit(lambda raw, seed, step: objective.prepare(prepare_keys(objective, raw, seed, step), raw))


def test_static_masks_cycle_through_ten():
    """4 texts, ten duplicates each: in 40 passes over the texts each of ten masks is seen four times."""
    seen = {}
    for step in range(16):  # of ten examples: 4 passes over the 40 examples, each in an order of its own
        numbers = example_numbers(40, 1, step * 10 + np.arange(10))
        for number, mask in zip(numbers.tolist(), masks(STATIC, numbers, step), strict=True):
            seen.setdefault(number, []).append(mask)
    assert {len(masks_seen) for masks_seen in seen.values()} == {4}
    assert {len(set(masks_seen)) for masks_seen in seen.values()} == {1}  # whatever the step and the index in the batch
    for text in range(4):
        assert len({seen[number][0] for number in range(40) if number % 4 == text}) == 10
    assert masks(STATIC, [0], 0, seed=2) != masks(STATIC, [0], 0)


def test_dynamic_masks_are_new_at_every_step_and_index():
    numbers = [0, 0, 4, 8, 0, 4, 8, 0, 0, 0]  # one text
    seen = [mask for step in range(4) for mask in masks(DYNAMIC, numbers, step)]
    assert len(set(seen)) == 40
    assert masks(DYNAMIC, numbers, 2) == seen[20:30]
    assert not set(masks(DYNAMIC, numbers, 2, seed=2)) & set(seen)


@pytest.mark.parametrize("objective", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_every_evaluation_has_the_same_masks(objective):
    """Whatever index in the batch an example has."""
    def loss(params, raw, key, carry):
        assert key is None
        return raw["weights"].sum(), ({name: (raw[name], 1) for name in ("inputs", "predicted", "weights")}, carry)

    step = jax.jit(lambda raw: evaluation_step({}, raw, Carry(), objective=objective._replace(loss=loss), seed=1)[0])
    raw = batch([TEXTS[i % 4] for i in range(10)])
    first, second = step(raw), step({name: x[::-1] for name, x in raw.items()})
    for name in ("inputs", "predicted", "weights"):
        np.testing.assert_array_equal(first[name][0], second[name][0][::-1])
    assert len({np.asarray(inputs).tobytes() for inputs in first["inputs"][0]}) == 10
