"""The cost of a run: Strubell's formula, several starts and processes, and cost.jsonl of a run that is killed."""

import json
from types import SimpleNamespace

import pytest

import lmrep
from lmrep.planning import energy, run_cost
from lmrep.training.config import CostConfig
from tests import forked, runs, small

POUND = 0.45359237  # kg
CPU, GPU, UNKNOWN = (SimpleNamespace(platform=platform, device_kind=kind) for platform, kind in (
    ("cpu", "cpu"), ("gpu", "NVIDIA A100-SXM4-40GB"), ("tpu", "TPU v9")))


@pytest.mark.parametrize(("watts", "hours", "kwh", "pounds"), [
    (1415.78, 12, 27, 26), (1515.43, 84, 201, 192), (517.66, 336, 275, 262)], ids=["base", "big", "ELMo"])
def test_the_figures_of_strubell(watts, hours, kwh, pounds):
    """Strubell et al. (2019), table 3: the Transformer and ELMo. (Of BERT it has the hours too coarsely.)"""
    config = CostConfig()
    total = run_cost.kilowatt_hours(watts * hours * 3600, config.pue)
    assert round(total) == kwh and round(total * config.grid / POUND) == pounds


def host(name="a", **joules):
    return {"host": name, "joules": joules, "sources": dict.fromkeys(joules, "a counter"),
            "missing": {} if joules else {"accelerators": "no NVML", "cpu": "no RAPL"}}


@pytest.mark.parametrize(("hosts", "devices", "config", "joules", "estimated"), [
    ([host(cpu=5, memory=2)], [CPU], {}, {"cpu": 5, "memory": 2}, False),
    ([host()], [CPU], {}, None, False),
    ([host()], [CPU] * 2, {"device_watts": 3.0}, {"cpu": 60}, True),
    ([host(accelerators=7, cpu=5)], [GPU], {"device_watts": 3.0}, {"accelerators": 7, "cpu": 5}, False),
    ([host()], [GPU] * 2, {}, {"accelerators": 2 * 400 * 10}, True),
    ([host(cpu=5)], [UNKNOWN], {}, None, False),
    ([host(cpu=5)], [UNKNOWN], {"device_watts": 100.0}, {"accelerators": 1000, "cpu": 5}, True),
    # two processes of one host measure the same CPUs, and each its own GPU
    ([host("a", accelerators=7, cpu=5), host("a", accelerators=8, cpu=6)], [GPU] * 2, {}, {
        "accelerators": 15, "cpu": 6}, False),
    ([host("a", accelerators=7, cpu=5), host("b", accelerators=8, cpu=6)], [GPU] * 2, {}, {
        "accelerators": 15, "cpu": 11}, False),
    ([host("a", cpu=5), host("b")], [CPU] * 2, {}, None, False),
])
def test_energy_is_measured_or_estimated_or_not_known(hosts, devices, config, joules, estimated):
    energies, text = run_cost.total_energy(hosts, devices, 10.0, CostConfig(**config))
    assert energies == joules
    assert ("not known" in text) == (joules is None) and ("estimated" in text) == estimated


def record(start, steps, joules, **more):
    return {"start": start, "step": steps, "steps": steps, "flops": 10.0 * steps, "seconds": 36.0 * steps,
            "device_hours": 0.01 * steps, "joules": joules, "energy": "RAPL", "pue": 2.0, "grid": 0.5,
            "price_per_hour": 0.0} | more


def test_starts_add_up_and_the_last_line_of_each_counts():
    found = run_cost.summed([record("a", 3, {"cpu": 1.8e6}), record("a", 5, {"cpu": 3.6e6}), record(
        "b", 2, {"cpu": 1.8e6, "memory": 1.8e6}, price_per_hour=3.0, grid=0.1)])
    assert (found.steps, found.flops, found.seconds) == (7, 70, 252)
    assert found.kwh == pytest.approx(4.0) and found.co2_kg == pytest.approx(0.4)
    assert found.device_hours == pytest.approx(0.07) and found.price == pytest.approx(0.21)


def test_a_start_without_energy_leaves_the_sum_unknown():
    found = run_cost.summed([record("a", 3, {"cpu": 1.0}), record("b", 3, None, energy="not known: no RAPL")])
    assert (found.kwh, found.co2_kg, found.energy) == (None, None, "not known: no RAPL")
    assert "energy not known: no RAPL" in run_cost.sentence(found)


def test_a_run_records_its_cost_at_each_checkpoint():
    run = runs.folder("masked") / "run"
    recorded, spent = run_cost.lines(run), run_cost.read(run)
    assert [line["step"] for line in recorded] == [line["steps"] for line in recorded] == [4, 8, 12]
    done = json.loads(small.command("flops", f"--workdir={run}", "--json").out)
    assert spent.flops == done["total"]["exact"] == done["done"]["flops"] == 3 * recorded[0]["flops"]
    assert spent.seconds == recorded[-1]["seconds"] and spent.device_hours == pytest.approx(spent.seconds / 3600)


def train(tmp_path, steps, **fields):
    config = small.config(tmp_path / "texts")
    config.steps, config.cost.device_watts = steps, 50.0
    config.cost.update(fields)
    config.model.layers = 1
    lmrep.train(config, tmp_path / "run", data_dir=tmp_path / "data")


@pytest.mark.slow
def test_a_run_records_its_cost_at_each_checkpoint_and_resumes_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "find", lambda devices: energy.Counters({}, {}, {"cpu": "no RAPL"}))
    small.corpus(tmp_path / "texts")
    train(tmp_path, 8)
    first = run_cost.lines(tmp_path / "run")
    assert [line["step"] for line in first] == [4, 8]
    spent = run_cost.read(tmp_path / "run")
    done = json.loads(small.command("flops", f"--workdir={tmp_path / 'run'}", "--json").out)
    assert spent.flops == done["total"]["exact"] == done["done"]["flops"]
    assert spent.device_hours == pytest.approx(spent.seconds / 3600)
    assert spent.kwh == pytest.approx(1.58 * 50 * spent.seconds / 3.6e6)
    assert spent.energy == "CPUs estimated at 50 W each (no RAPL), memory not measured"
    train(tmp_path, 10, pue=1.1, price_per_hour=2.0)  # which a resumed run may change
    lines = run_cost.lines(tmp_path / "run")
    assert [line["step"] for line in lines] == [4, 8, 10] and lines[:2] == first
    after = run_cost.read(tmp_path / "run")
    assert after.steps == 10 and after.flops == pytest.approx(10 / 8 * spent.flops)
    assert after.seconds > spent.seconds and after.pue == 1.1 and after.price == pytest.approx(2 * after.device_hours)
    assert lines[-1]["run"]["co2_kg"] == after.co2_kg
    train(tmp_path, 10)  # all steps are done
    assert run_cost.lines(tmp_path / "run") == lines


@pytest.mark.slow
def test_a_killed_run_has_the_cost_up_to_its_checkpoint(tmp_path):
    small.corpus(tmp_path / "texts")
    file = small.experiment_file(tmp_path, tmp_path / "texts")
    process = forked.Child(forked.lmrep, "train", f"--config={file}", f"--workdir={tmp_path / 'run'}",
                           "--config.steps=4000", f"--data_dir={tmp_path / 'data'}")
    small.until(lambda: bool(run_cost.lines(tmp_path / "run")), process)
    process.kill()
    small.finish(process)
    spent = run_cost.read(tmp_path / "run")
    assert spent.steps == spent.step >= 4 and spent.flops > 0


def test_damaged_lines_are_left_out(tmp_path):
    damaged = [{"start": "b"}, [1], record("b", 3, 5), record("b", 3, {"cpu": "x"}), record("b", 0, None),
               record("b", 3, None, pue="1")]
    texts = [json.dumps(line) for line in [*damaged, record("a", 3, None)]]
    (tmp_path / run_cost.FILE).write_text("\n".join([*texts, '{"start"']))
    assert run_cost.read(tmp_path).steps == 3
    assert run_cost.read(tmp_path / "none") is None
