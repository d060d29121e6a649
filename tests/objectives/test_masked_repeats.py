"""When a question is asked again: static masks cycle, dynamic ones never return, evaluations repeat."""

from functools import cache

import jax
import numpy as np
import pytest

from lmrep.data.order import example_numbers
from lmrep.objectives.base import Carry
from lmrep.training.step import evaluation_step, prepare_keys
from tests.objectives.toys import V, batch, objective, row

TEXTS = [row(64, (np.random.default_rng(i).integers(5, V, 60).tolist(),)) for i in range(4)]
STATIC, DYNAMIC = objective(masking="static"), objective()


def questions(objective, numbers, step, seed=1):
    """{example: its question} for a batch of these examples."""
    given = batch([TEXTS[i % len(TEXTS)] for i in numbers], example=np.asarray(numbers, np.int32))
    found = ask(objective.static)(given, seed, step)
    return [(inputs.tobytes(), np.sort(places[counts]).tobytes()) for inputs, places, counts in
            zip(*(np.asarray(found[name]) for name in ("inputs", "predicted")), found["weights"] > 0, strict=True)]


@cache
def ask(static):
    objective = STATIC if static else DYNAMIC
    return jax.jit(lambda given, seed, step: objective.prepare(prepare_keys(objective, given, seed, step), given))


def test_static_questions_cycle_through_ten_masks():
    """4 texts, ten duplicates each: in 40 passes over the texts each of ten masks is seen four times."""
    seen = {}
    for step in range(16):  # of ten rows: 4 walks over the 40 examples, each in an order of its own
        numbers = example_numbers(40, 1, step * 10 + np.arange(10))
        for number, question in zip(numbers.tolist(), questions(STATIC, numbers, step), strict=True):
            seen.setdefault(number, []).append(question)
    assert {len(found) for found in seen.values()} == {4}
    assert {len(set(found)) for found in seen.values()} == {1}  # whatever the step and the row
    for text in range(4):
        assert len({seen[number][0] for number in range(40) if number % 4 == text}) == 10
    assert questions(STATIC, [0], 0, seed=2) != questions(STATIC, [0], 0)


def test_dynamic_questions_are_new_at_every_step_and_row():
    numbers = [0, 0, 4, 8, 0, 4, 8, 0, 0, 0]  # one text
    seen = [question for step in range(4) for question in questions(DYNAMIC, numbers, step)]
    assert len(set(seen)) == 40
    assert questions(DYNAMIC, numbers, 2) == seen[20:30]
    assert not set(questions(DYNAMIC, numbers, 2, seed=2)) & set(seen)


@pytest.mark.parametrize("asking", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_every_evaluation_asks_the_same(asking):
    """Whatever row an example is in."""
    def loss(params, given, key, carry):
        assert key is None
        return given["weights"].sum(), ({name: (given[name], 1) for name in ("inputs", "predicted", "weights")}, carry)

    step = jax.jit(lambda given: evaluation_step({}, given, Carry(), objective=asking._replace(loss=loss), seed=1)[0])
    given = batch([TEXTS[i % 4] for i in range(10)])
    once, again = step(given), step({name: x[::-1] for name, x in given.items()})
    for name in ("inputs", "predicted", "weights"):
        np.testing.assert_array_equal(once[name][0], again[name][0][::-1])
    assert len({np.asarray(line).tobytes() for line in once["inputs"][0]}) == 10
