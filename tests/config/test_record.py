"""Records: what they accept and refuse, and their messages."""

import doctest
import math
from dataclasses import dataclass

import pytest

from lmrep.config import record
from lmrep.config.record import choose, convert, read, setting, suggestion
from lmrep.core.errors import UserError


@dataclass(frozen=True)
class Inner:
    rate: float = setting(0.5, "a fraction", above=0, at_most=1)


@dataclass(frozen=True)
class Outer:
    steps: int = setting(10, "how many", at_least=1, below=100)
    name: str = setting("a", "which", choices=("alpha", "beta", "a"))
    on: bool = setting(True, "whether")
    seed: int | None = setting(None, "or none", at_least=0)
    betas: tuple[float, ...] = setting((0.9, 0.999), "decay", at_least=0, below=1)
    weights: dict[str, float] = setting({}, "by name", at_least=0)
    inner: Inner = setting(Inner(), "nested")
    stages: tuple[Inner, ...] = setting((Inner(), Inner()), "several")


def refusal(mapping):
    with pytest.raises(UserError) as error:
        read(Outer, mapping)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_docstring_example_runs():
    results = doctest.testmod(record)
    assert results.attempted > 2 and results.failed == 0


def test_defaults():
    assert read(Outer, {}) == Outer()


def test_values_are_converted_only_without_loss():
    got = read(Outer, {"steps": 20.0, "betas": [0, 0.5], "weights": {"x": 1}, "seed": 3, "name": "beta", "on": False,
                       "inner": {"rate": 1}, "stages": [{"rate": 0.25}, Inner(0.75)]})
    assert got == Outer(20, "beta", False, 3, (0.0, 0.5), {"x": 1.0}, Inner(1.0), (Inner(0.25), Inner(0.75)))
    assert isinstance(got.steps, int) and isinstance(got.betas[0], float) and isinstance(got.weights["x"], float)


def test_whole_numbers_in_tables_of_text_become_text():
    assert convert(dict[str, str], {"label": 0, 1: "a"}, "columns") == {"label": "0", "1": "a"}
    for value in (1.5, True, None):
        with pytest.raises(UserError, match=r"columns\.label is .*; expected a string"):
            convert(dict[str, str], {"label": value}, "columns")


def test_instance_is_returned_unchanged():
    assert read(Outer, {"inner": Inner(0.25)}).inner == Inner(0.25)


@pytest.mark.parametrize(("mapping", "message"), [
    ({"step": 1}, "config has no field 'step'; did you mean 'steps'?"),
    ({"zzz": 1}, "config has no field 'zzz'; it has steps, name, on, seed, betas, weights, inner, stages"),
    ({"inner": {"rat": 1}}, "config.inner has no field 'rat'; did you mean 'rate'?"),
    ({"stages": ({"rate": 0.1}, {"rat": 0.1})}, "config.stages.1 has no field 'rat'; did you mean 'rate'?"),
    ({"inner": 3}, "config.inner is 3; expected a mapping of Inner fields"),
    ({"steps": "many"}, "config.steps is 'many'; expected a whole number"),
    ({"steps": 1.5}, "config.steps is 1.5; expected a whole number"),
    ({"steps": True}, "config.steps is True; expected a whole number"),
    ({"steps": None}, "config.steps is None; expected a whole number"),
    ({"steps": math.inf}, "config.steps is inf; expected a whole number"),
    ({"seed": "x"}, "config.seed is 'x'; expected a whole number"),
    ({"on": 1}, "config.on is 1; expected True or False"),
    ({"name": 1}, "config.name is 1; expected a string"),
    ({"inner": {"rate": "x"}}, "config.inner.rate is 'x'; expected a number"),
    ({"inner": {"rate": True}}, "config.inner.rate is True; expected a number"),
    ({"betas": ("x",)}, "config.betas.0 is 'x'; expected a number"),
    ({"weights": {"x": "y"}}, "config.weights.x is 'y'; expected a number"),
])
def test_unknown_fields_and_wrong_types_are_refused(mapping, message):
    assert refusal(mapping) == message


@pytest.mark.parametrize(("mapping", "message"), [
    ({"steps": 0}, "config.steps is 0; expected at least 1"),
    ({"steps": 100}, "config.steps is 100; expected below 100"),
    ({"seed": -1}, "config.seed is -1; expected at least 0"),
    ({"inner": {"rate": 0}}, "config.inner.rate is 0.0; expected above 0"),
    ({"inner": {"rate": 1.01}}, "config.inner.rate is 1.01; expected at most 1"),
    ({"inner": {"rate": math.nan}}, "config.inner.rate is nan; expected a finite number"),
    ({"inner": {"rate": -math.inf}}, "config.inner.rate is -inf; expected a finite number"),
    ({"name": "alpa"}, "config.name is 'alpa'; expected one of alpha, beta, a; did you mean 'alpha'?"),
    ({"betas": (0.9, 1)}, "config.betas is (0.9, 1.0); expected below 1"),
    ({"betas": (0.9, math.nan)}, "config.betas is (0.9, nan); expected a finite number"),
    ({"weights": {"x": 1, "y": -1}}, "config.weights is {'x': 1.0, 'y': -1.0}; expected at least 0"),
])
def test_values_out_of_bounds_are_refused(mapping, message):
    assert refusal(mapping) == message


def test_errors_name_the_record():
    with pytest.raises(UserError, match=r"^optimizer\.steps is 0"):
        read(Outer, {"steps": 0}, "optimizer")


def test_mutable_default_is_not_shared_by_the_class():
    assert "weights" not in vars(Outer)  # a dataclass would refuse it as a plain default


def test_choose_returns_a_known_name_or_raises():
    assert choose({"a": 1}, "a", "part") == 1
    with pytest.raises(UserError, match=r"part is 'masekd'; expected one of causal, masked; did you mean 'masked'\?"):
        choose({"masked": 1, "causal": 2}, "masekd", "part")


def test_suggestion_is_the_closest_name():
    assert suggestion("optimiser", ["optimizer", "model"]) == "; did you mean 'optimizer'?"
    assert suggestion("x", ["optimizer"]) == "" == suggestion("x", [])


def test_fields_of_an_optional_record_may_be_left_out_or_none():
    some = record.optional(Outer, "Some", Inner)
    assert set(vars(some())) == {*vars(Outer()), "rate"} and some().rate == 0.5
    assert all(getattr(some(), name) is None for name in vars(Outer()))
    assert read(some, {"steps": None, "name": None, "on": False}) == some(on=False)
    for fields, message in (({"steps": 0}, "steps is 0; expected at least 1"), ({"name": "x"}, "one of alpha, beta, a"),
                            ({"on": 3}, "expected True or False"), ({"rate": None}, "rate is None")):
        with pytest.raises(UserError, match=message):
            read(some, fields)
