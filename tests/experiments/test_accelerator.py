"""The benchmark on accelerators, with tiny networks on the CPU: it measures, reports failures, finds wrong numbers."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.small import SECONDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments/benchmarks"


@pytest.fixture(scope="module", autouse=True)
def import_path():
    """The scripts import their modules from their own directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield


def module(name):
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def tiny():
    script = module("accelerator")
    return {name: script.tiny(case).system for name, case in script.CASES.items()}


@pytest.mark.slow
def test_case_is_measured_and_a_missing_library_is_reported(tmp_path):
    """One run of the script, in which PyTorch cannot be imported."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')\n")
    command = [sys.executable, FOLDER / "accelerator.py", "--size=tiny", "--device=cpu", "--no-checks", "--rounds=2",
               "--turn=0.01", "--cases=BERT-base 128", f"--json={tmp_path / 'results.json'}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS,
                           env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    assert found.returncode == 1, found.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["trial"] and results["matrix_rate"]["used"] > 0 and results["versions"]["jax"]
    [case] = results["cases"]
    assert case["case"] == "BERT-base 128, concatenated"
    assert case["failed"] == {"transformers": "ModuleNotFoundError: No module named torch"}
    own = case["lmrep"]
    assert case["rounds"] == len(own["seconds"]) == 2 and np.isfinite(own["loss"])
    assert own["tokens_per_second"] == pytest.approx(own["tokens_per_step"] * own["steps_per_second"])
    assert own["utilisation"] == pytest.approx(case["flops"] * own["steps_per_second"] / results["matrix_rate"]["used"])
    assert "A trial of the script" in found.stdout and found.stdout.count("| failed: ModuleNotFoundError") == 1


@pytest.mark.parametrize(("done", "left", "expected"), [
    (0, 100, True), (6, 100, True), (7, 100, False),  # all rounds
    (2, 5, True), (3, 5, False),  # later cases need the time
    (0, 1, False),  # a round does not fit
])
def test_rounds_are_dropped_where_time_is_short(done, left, expected):
    assert module("accelerator").affordable(done, 7, seconds=2, left=left, reserved=50 if left < 50 else 0) is expected


class Stub:
    """In place of the two processes: that of transformers does not finish compiling, that of lmrep fails in its third
    turn where `error` is given. Time passes in turns only."""

    def __init__(self, seconds, error=None):
        self.seconds, self.error, self.turns = seconds, error, 0

    def left(self):
        return self.seconds

    def prepare(self, side, *request):
        pass

    def receive(self, side, seconds):
        assert seconds == pytest.approx(min(50, 0.75 * self.seconds))
        if side == "transformers":
            raise module("accelerator").OutOfTime("no result within 50 seconds")
        return {"seconds": 1.0, "flops": 100, "attention": "xla"}

    def ask(self, side, request, steps):
        self.turns, self.seconds = self.turns + 1, self.seconds - 3
        if self.turns == 3 and self.error:
            raise self.error
        return {"seconds": 0.1 * self.turns, "loss": 1.0, "gradient_norm": 1.0}


@pytest.mark.parametrize(("seconds", "reserved", "rounds"), [
    (100, 0, 5), (100, 95, 3), (8, 0, 2), (1, 0, 0), (-1, 0, 0)])
def test_one_framework_is_measured_without_the_other(tiny, seconds, reserved, rounds):
    script = module("accelerator")
    flags, _ = script.arguments(["--rounds=5", "--compile-seconds=50"])
    name = "BERT-base 128, concatenated"
    batches = dict(zip(script.SIDES, module("accelerator_data").concatenated(
        tiny[name], np.random.default_rng(0)), strict=True))
    result = script.measure(Stub(seconds), name, script.Case(tiny[name]), batches, flags, reserved)
    assert result["rounds"] == rounds and result["ratio"] is None and "transformers" in result["failed"]
    if not rounds:
        assert result["failed"]["lmrep"] == "no time left"
        return
    assert result["lmrep"]["seconds"] == pytest.approx([0.1 * (i + 1) for i in range(rounds)])
    for error, expected in ((script.OutOfTime("late"), 2), (script.Failed("out of memory"), None)):
        result = script.measure(Stub(100, error), name, script.Case(tiny[name]), batches, flags, 0)
        assert result["failed"].get("lmrep") == (None if expected else "out of memory")
        assert ("lmrep" in result) == bool(expected)


def test_flags():
    script = module("accelerator")
    flags, cases = script.arguments(["--lengths=64,129-131", "--cases=gpt-2,bert-large"])
    assert flags.lengths == [64, 129, 130, 131] and sorted(cases) == [
        "BERT-large 128, concatenated", "BERT-large 512, concatenated", "GPT-2 124M 1024, concatenated"]
    with pytest.raises(SystemExit):
        script.arguments(["--cases=gpt-3"])


def test_loss_that_is_not_finite_fails():
    script = module("accelerator")
    with pytest.raises(script.Failed, match="the loss is nan"):
        script.finite({"loss": float("nan"), "gradient_norm": 1.0})


def test_report_shows_failures_and_dropped_rounds():
    side = {"fastest": 0.01, "median": 0.02, "slowest": 0.04, "tokens_per_second": 1000.0, "utilisation": 0.5}
    results = {"device": "cpu", "date": "2026-01-01", "trial": False, "versions": {"jax": "1"}, "host": "h",
               "matrix_rate": {"size": 512, "used": 1e12}, "seconds": 5.0, "budget": 10.0,
               "cases": [{"case": "A", "batch": "1 x 2", "attention": "xla", "failed": {}, "lmrep": side,
                          "transformers": side, "ratio": 1.5, "rounds": 3, "wanted": 7},
                         {"case": "B", "batch": "1 x 2", "failed": {"lmrep": "out of memory", "transformers": "x"},
                          "ratio": None, "rounds": 0, "wanted": 7}],
               "checks": [{"name": "packed", "passed": False, "detail": "a | b"}]}
    text = module("accelerator_report").markdown(results)
    assert "| A | 1 x 2 | xla | 20 (10 to 40) | 20 (10 to 40) | 1,000 | 1,000 | 1.50 | 50% | 50% | 3 of 7 |" in text
    assert "| failed: out of memory | failed: x |" in text and "| packed | FAILED | a \\| b |" in text
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {12, 4}


def test_sentences_are_the_same_texts_packed_and_padded(tiny):
    system = tiny["BERT-base 512, sentences"]
    data = module("accelerator_data")
    packed, padded = data.sentences(system, np.random.default_rng(0))
    for batch in packed:
        segments, positions = batch["segment_ids"], batch["positions"]
        assert segments.shape == (system.batch_size, system.length)
        starts = (segments > 0) & (positions == 0)
        assert (batch["tokens"][starts] == 101).all() and starts.sum() == segments.max(1).sum()
        assert (batch["tokens"] == 102).sum() == starts.sum() and (batch["tokens"][segments == 0] == 0).all()
    for inputs, mask, labels in padded:
        assert (mask.sum(1).max() + 7) // 8 * 8 == inputs.shape[1] or inputs.shape[1] == system.length
        assert (labels[mask == 0] == -100).all() and ((labels != -100).sum(1) >= 1).all()
    assert data.real_tokens(packed) > 0.8 * system.batch_size * system.length
    assert data.real_tokens(padded) == np.mean([mask.sum() for _, mask, _ in padded])


def test_documents_of_full_sequences_are_numbered_from_their_start():
    data, script = module("accelerator_data"), module("accelerator")
    [batch], [(inputs, mask, labels)] = data.concatenated(
        script.CASES["BERT-large 512, concatenated"].system, np.random.default_rng(0), number=1)
    segments, positions = batch["segment_ids"], batch["positions"]
    same = segments[:, 1:] == segments[:, :-1]
    np.testing.assert_array_equal(positions[:, 1:], np.where(same, positions[:, :-1] + 1, 0))
    assert segments.max() > 1 and (segments > 0).all() and mask is None
    assert ((labels != -100).sum(1) == 77).all() and (inputs[labels != -100] == 103).all()


def test_t5_reads_512_tokens_and_generates_114_of_which_both_have_the_same(tiny):
    data, script, steps = module("accelerator_data"), module("accelerator"), module("training_steps")
    system = script.CASES["T5-base 512 + 114"].system._replace(batch_size=2)
    [ours], theirs = data.texts(system, np.random.default_rng(0), number=1)
    [(source, mask, labels)] = steps.corrupted(system, theirs)
    assert (source.shape, labels.shape) == ((2, 512), (2, 114)) and mask.all() and (labels != -100).all()
    spans = labels >= system.config.vocab - steps.SENTINELS
    for own, read, generated, masked in zip(ours["tokens"], source, labels, spans, strict=True):
        kept = read[(read > 1) & (read < system.config.vocab - steps.SENTINELS)]
        assert sorted([*kept, *generated[~masked & (generated > 1)]]) == sorted(own)
    assert data.real_tokens(theirs) == 2 * 568


@pytest.mark.slow
def test_transformers_t5_has_the_sizes_and_the_loss_of_lmreps(tiny):
    torch, steps = pytest.importorskip("torch"), module("training_steps")
    pytest.importorskip("transformers")
    system = tiny["T5-base 512 + 114"]
    system = system._replace(config=replace(system.config, attention_dropout=0.3))
    ours, theirs = module("accelerator_data").texts(system, np.random.default_rng(0), number=1)
    trained, own = steps.TransformersSteps(system, theirs, dtype="bfloat16"), steps.LmrepSteps(system, ours)
    for each in (trained, own):
        each.run(0)
        assert np.isfinite(each.last()).all() and each.last()[0] > np.log(1100) / 2
    specs = jax.tree.leaves(steps.build(system)[0].specs, is_leaf=lambda x: hasattr(x, "axes"))
    assert sum(int(np.prod(spec.shape)) for spec in specs) == sum(p.numel() for p in trained._parameters)
    rates = {module.dropout for module in steps.t5(system.config).modules() if type(module).__name__ == "T5Attention"}
    assert isinstance(trained._parameters[0], torch.nn.Parameter) and rates == {0.3}


@pytest.mark.slow
def test_generation_is_measured_by_the_generated_tokens(tiny):
    script, data, worker = module("accelerator"), module("accelerator_data"), module("accelerator_worker")
    name = "T5-base 128, 64 generated"
    batches = dict(zip(script.SIDES, data.prompts(tiny[name], np.random.default_rng(0)), strict=True))
    real = batches["lmrep"][0][1]
    assert real.sum(1).min() >= real.shape[1] // 4 and (np.diff(real) <= 0).all()
    framework = worker.Lmrep.__new__(worker.Lmrep)  # without the settings of a process
    facts = {"lmrep": framework.prepare(tiny[name], batches["lmrep"], "auto")}
    turn = framework.turn(1)
    assert framework._steps.texts.shape == (4, 8) and turn.keys() == {"seconds"} and script.finite(turn) == turn
    found = script.summary(name, script.Case(tiny[name]), batches, facts, {"lmrep": [turn]}, {"transformers": "none"})
    assert found["lmrep"]["tokens_per_second"] == pytest.approx(4 * 8 / turn["seconds"])
    assert script.utilise(found, 1e12) == found and "utilisation" not in found["lmrep"]


@pytest.mark.slow
def test_transformers_generates_as_many_tokens(tiny):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    system = tiny["T5-base 128, 64 generated"]
    batches = module("accelerator_data").prompts(system, np.random.default_rng(0))[1]
    texts = module("generation_steps").TransformersTexts(system, batches)
    texts.run(0)
    assert texts.texts.shape == (4, 8)


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [True, False])
def test_packed_texts_that_see_each_other_are_found(isolated):
    [result] = module("accelerator_checks").packed(isolated, names=["xla"], contexts=["causal"], dtypes=["float32"])
    assert result["passed"] is isolated, result["detail"]


@pytest.mark.slow
def test_resumed_run_has_the_same_bits_and_a_changed_state_is_found():
    checks = module("accelerator_checks")
    [result] = checks.resume()
    assert result["passed"], result["detail"]
    assert checks.unequal({"a": np.float32([0.0, 1])}, {"a": np.float32([-0.0, 1])}) == ["['a']"]


def test_wrong_gradients_are_found():
    checks = module("accelerator_checks")
    good = 1.0, {"w": np.ones(4, np.float32)}
    found = {(context, length, name): good for context in checks.CONTEXTS for length in (7, 8)
             for name in ("xla", "fused")}
    assert checks.judge("fused", (7, 8), found)["passed"]
    for wrong, message in (((1.0, {"w": np.float32([1, 1, 1, np.nan])}), "WRONG: 8 causal: not finite"),
                           ((1.0, {"w": np.float32([1, 1, 1, 2])}), "WRONG: 8 causal: differs from xla by 0.5"),
                           ("XlaError: no kernel", "WRONG: 8 causal: XlaError: no kernel"),
                           (None, "NO TIME FOR 8 causal")):
        result = checks.judge("fused", (7, 8), found | {("causal", 8, "fused"): wrong})
        assert not result["passed"] and message in result["detail"]


@pytest.mark.slow
def test_transformers_generator_has_the_sizes_of_lmreps(tiny):
    torch, steps = pytest.importorskip("torch"), module("training_steps")
    pytest.importorskip("transformers")
    system = tiny["ELECTRA-base 512, concatenated"]
    batches = module("accelerator_data").concatenated(system, np.random.default_rng(0), number=1)[1]
    trained = steps.TransformersSteps(system, batches, dtype="bfloat16")
    trained.run(0)
    loss, norm = trained.last()
    assert np.isfinite([loss, norm]).all() and loss > 50 * np.log(2) / 2
    objective, _ = steps.build(system)
    ours = sum(int(np.prod(spec.shape)) for spec in jax.tree.leaves(
        objective.specs, is_leaf=lambda x: hasattr(x, "axes")))
    theirs = sum(p.numel() for p in trained._parameters)
    assert isinstance(trained._parameters[0], torch.nn.Parameter) and ours == theirs
