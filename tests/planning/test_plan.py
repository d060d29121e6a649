"""Plans of steps on devices of the CPU, and what is made of them."""

import html
import json
import math
import re

import jax
import numpy as np
import pytest

from lmrep.analysis.report.page import render_plan
from lmrep.cli import main
from lmrep.core.errors import UserError
from lmrep.core.messages import aligned
from lmrep.core.sharding import make_mesh
from lmrep.experiment import config as experiments
from lmrep.experiment import shapes, task_data
from lmrep.planning import cuda, flops, hardware, plan, search, table
from lmrep.training.config import CostConfig
from tests import small
from tests.tasks import tiny

CHIP = hardware.Chip("chip", 10 * 2**20, 1e12, 1e11, 1e10, 1e9, 0, 1, 100.0)


def causal():
    """The experiment that most tests plan."""
    config = small.config("texts", "causal")
    config.model.layers = 1
    return config


def on(count, chip=CHIP):
    return hardware.Hardware(f"cpu:{count}", chip, jax.devices()[:count])


def planned(count=4, chip=CHIP, **fields):
    config = search.with_fields(causal(), fields)
    return plan.plan(experiments.parse(config), on(count, chip))[0]


@pytest.fixture(scope="module")
def sharded():
    return planned(4, **{"mesh.data": 1, "mesh.fsdp": 4})


@pytest.fixture(scope="module")
def whole():
    return planned(1)


def test_the_state_is_counted_on_each_chip(sharded, whole):
    assert whole.memory.optimizer >= 2 * whole.memory.parameters  # Adam's moments
    assert sharded.memory.parameters < 0.4 * whole.memory.parameters
    assert sharded.memory.batch == whole.memory.batch / 4


def test_memory_adds_up(sharded):
    *parts, needed, available = sharded.memory
    assert sum(parts) == needed and available == CHIP.memory and sharded.fits


@pytest.mark.parametrize(("axis", "written", "read"), [("fsdp", 0.5, 0.5), ("data", 1.0, 1.0)])
def test_a_host_writes_and_reads_its_shards_of_a_checkpoint(axis, written, read):
    """Of two hosts; equal shards are written once and read by both."""
    mesh = make_mesh(**{axis: 4}, devices=jax.devices()[:4])
    (stage,) = shapes.without_data(experiments.parse(causal()), None, mesh)
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(stage.state))
    found = plan.checkpoint(stage.state, on(4)._replace(hosts=2))
    assert found.total == size
    assert (found.written / size, found.read / size) == pytest.approx((written, read), rel=0.05)
    assert found.written >= written * size and found.read >= read * size  # few arrays are not divided
    assert plan.checkpoint(stage.state, on(4)) == (size, size, size)


def test_products_are_shared_by_the_chips(sharded, whole):
    assert sharded.executed * 4 == pytest.approx(sharded.flops, rel=0.05)
    assert sharded.flops == whole.flops


def test_parameters_are_gathered_over_their_axis(sharded):
    kinds = {(each.opcode, each.axes) for each in sharded.transfers}
    assert ("all-gather", ("fsdp",)) in kinds and all(each.axes == ("fsdp",) for each in sharded.transfers)


@pytest.mark.slow
def test_the_table_and_its_gradient_are_sent_once():
    """For the output layer; the lookup exchanges activations. Gradients of kernels are scattered, too."""
    found = planned(4, CHIP._replace(interconnect=1e3), **{"mesh.data": 1, "mesh.fsdp": 4, "model.vocab": 16384})
    table = 16384 * 32 * 4
    sent = {each.opcode: each.bytes for each in found.transfers}
    kernels = (4 * 32 * 32 + 2 * 32 * 64) * 4
    assert sent["reduce-scatter"] == pytest.approx(3 / 4 * (table + kernels), rel=0.001)
    assert sent["all-gather"] < table and sent["all-reduce"] + sent["all-to-all"] < table / 5
    assert found.limit == "communication"  # the network is slow


@pytest.mark.slow
def test_a_recurrent_network_sends_nothing_at_each_time_step():
    config = experiments.default_config("lstm", "causal", "stream", "bert", "1x4x1")
    config.update_from_flattened_dict({"model.vocab": 64, "model.width": 32, "model.layers": 1, "length": 80})
    found = plan.plan(experiments.parse(config), on(4))[0]
    assert found.transfers and all(each.count < 80 for each in found.transfers)


def test_the_slowest_of_three_bounds_the_step(sharded):
    assert sharded.seconds == max(sharded.compute, sharded.bandwidth, sharded.network)
    assert sharded.compute == sharded.executed / CHIP.flops and sharded.bandwidth == sharded.traffic / CHIP.bandwidth
    assert sharded.network == pytest.approx(sum(each.bytes for each in sharded.transfers) / CHIP.interconnect)
    assert sharded.utilisation(CHIP.flops) == pytest.approx(sharded.flops / 4 / 1e12 / sharded.seconds)


@pytest.mark.slow
def test_every_stage_is_planned_and_equal_ones_are_compiled_once(monkeypatch):
    compiled = []
    compile_ = plan._compile
    monkeypatch.setattr(plan, "_compile", lambda lowered: compiled.append(lowered) or compile_(lowered))
    config = causal()
    config.stages = tuple({"name": name, "fraction": 0.25, "length": length}
                          for name, length in (("a", 16), ("b", 32), ("c", 32), ("d", 32)))
    plans = plan.plan(experiments.parse(config), on(1))
    assert [(each.stage, each.length, each.steps) for each in plans] == [
        ("a", 16, 3), ("b", 32, 3), ("c", 32, 3), ("d", 32, 3)]
    assert len(compiled) == 2 and plans[0].flops < plans[1].flops and plans[1].memory == plans[3].memory


@pytest.mark.slow
def test_what_does_not_fit_is_said():
    found = planned(1, CHIP._replace(memory=1000))
    assert not found.fits and "it needs" in found.warnings[0]


@pytest.mark.slow
def test_a_change_that_makes_it_fit_is_found_by_compiling_it():
    whole = planned(2, **{"mesh.data": 2})
    chip = CHIP._replace(memory=int(whole.memory.needed * 0.9))
    config = search.with_fields(causal(), {"mesh.data": 2})
    plans = plan.plan(experiments.parse(config), on(2, chip))
    assert not plans[0].fits
    found = search.first_that_fits(config, plans, on(2, chip))
    assert found.fits and found.plans[0].memory.needed <= chip.memory and "--config." in found.flags


def test_the_cost_of_a_run_is_that_of_its_steps(sharded):
    found = plan.cost_of_run([sharded], on(4), CostConfig(pue=1.5, grid=0.4, price_per_hour=2.0))
    assert found.hours == pytest.approx(sharded.steps * sharded.seconds / 3600)
    assert found.chip_hours == pytest.approx(4 * found.hours) and found.price == pytest.approx(2 * found.chip_hours)
    assert found.kwh == pytest.approx(found.chip_hours * 0.1 * 1.5) and found.co2_kg == pytest.approx(0.4 * found.kwh)
    assert plan.cost_of_run([sharded], on(4, CHIP._replace(watts=None)), CostConfig()).kwh is None
    assert plan.cost_of_run([sharded._replace(steps=None)], on(4)) is None


def estimate(experiment, hardware):
    """A plan that is not compiled: 20 B of state and 80 B of activations, and what the settings save of them."""
    mesh, remat = experiment.mesh, experiment.execution.remat == "full"
    state, activations = 20 // mesh.fsdp, 80 // experiment.microbatches // (1 + remat)
    memory = plan.Memory(state // 4, 0, state // 2, 0, activations, state // 4, 0, state + activations,
                         hardware.chip.memory)
    sizes = {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": mesh.tensor}
    seconds = experiment.microbatches + remat + 0.5 * (mesh.fsdp - 1) + 0.7 * (mesh.tensor - 1)
    return [plan.StepPlan("", 12, 16, 32, experiment.microbatches, sizes, memory, plan.Checkpoint(state, state, state),
                          1.0, 1.0, 1.0, (), seconds, 0.0, 0.0, (), 0.0)]


def test_search_ranks_by_estimates(monkeypatch):
    monkeypatch.setattr(search, "plan", estimate)
    found = search.search(causal(), on(2, CHIP._replace(memory=55)), limit=40)
    fitting = [choice.fields for choice in found if choice.fits]
    assert [(fields["mesh.fsdp"], fields["microbatches"], fields["execution.remat"]) for fields in fitting] == [
        (2, 1, "full"), (1, 2, "full"), (1, 2, "full")]
    assert [fields["mesh.tensor"] for fields in fitting] == [1, 1, 2]
    assert [choice.fits for choice in found] == sorted((choice.fits for choice in found), reverse=True)
    slower = [choice.seconds for choice in found if not choice.fits]
    assert slower == sorted(slower) and len(slower) == len(found) - 3
    assert {tuple(choice.plans[0].mesh.values()) for choice in found} == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}
    assert "--config.mesh.data=" in aligned(table.ranking([(c.flags, c.plans) for c in found]))


@pytest.mark.parametrize(("memory", "fields"), [
    (70, {"execution.remat": "full"}), (45, {"execution.remat": "full", "microbatches": 2}),
    (38, {"mesh.data": 1, "mesh.fsdp": 2, "execution.remat": "full", "microbatches": 2}), (10, None)])
def test_the_smallest_change_that_makes_it_fit(monkeypatch, memory, fields):
    """Sharding comes first where state takes more than half of the memory."""
    monkeypatch.setattr(search, "plan", estimate)
    config, there = search.with_fields(causal(), {"mesh.data": 2}), on(2, CHIP._replace(memory=memory))
    found = search.first_that_fits(config, estimate(experiments.parse(config), there), there)
    assert (found and found.fields) == fields


def test_search_sends_only_gradients_between_slices():
    """Slices are along the data axis."""
    assert {sizes[0] for sizes in search._meshes(causal(), on(8)._replace(slices=2))} == {2, 4, 8}
    assert search._choice(causal(), {"mesh.data": 1, "mesh.fsdp": 8}, on(8)._replace(slices=2)) is None


def test_the_command_prints_and_keeps_the_plan(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hardware, "_measure", lambda: (1e12, 1e11))
    words = ["plan", "--config=experiments/gpt2.py:size=tiny", "--topology=cpu:2", "--config.stages=()",
             f"--output={tmp_path / 'plan.json'}", "--config.cost.price_per_hour=3"]
    assert main.main(words) == 0
    printed = capsys.readouterr().out
    for text in ("step time, at least", "price", "mesh data x fsdp x tensor = 2 x 1 x 1"):
        assert text in printed
    kept = json.loads((tmp_path / "plan.json").read_text())
    assert kept["hardware"]["devices"] == 2 and kept["stages"][0]["fits"] and kept["config"]["name"]
    page = (tmp_path / "plan.html").read_text()
    assert kept["title"] in page and "activations kept for the backward pass" in page


@pytest.mark.slow
def test_the_command_compares_topologies(capsys, monkeypatch):
    monkeypatch.setattr(hardware, "_measure", lambda: (1e12, 1e11))
    words = ["plan", "--config=experiments/gpt2.py:size=tiny,mesh=fsdp", "--topology=cpu:1,cpu:4", "--config.stages=()"]
    assert main.main(words) == 0
    head, _, one, four = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert (one[0], one[1], four[0], four[1]) == ("1", "1 x 1 x 1", "4", "1 x 4 x 1")
    state = head.index("training state")
    assert float(four[state].split()[0]) < 0.4 * float(one[state].split()[0]) and one[state][-2:] == four[state][-2:]


def test_the_command_plans_for_gpus(tmp_path, capsys, monkeypatch):
    """A step that does not fit makes it exit with 2, and a setting that fits is found."""
    monkeypatch.setattr(cuda, "devices", lambda *_: (_ for _ in ()).throw(NotImplementedError()))
    words = ["plan", "--config=experiments/gpt2.py:size=tiny,mesh=fsdp", "--topology=h100:2x2", "--config.stages=()",
             f"--output={tmp_path / 'plan.json'}"]
    assert main.main(words) == 0
    printed, kept = capsys.readouterr().out, json.loads((tmp_path / "plan.json").read_text())
    assert "4 x NVIDIA H100 SXM (h100:2x2, 2 hosts)" in printed and "compiled for devices of the CPU" in printed
    assert "all-gather over fsdp, between hosts" in printed and "kg of CO2" in printed
    assert "CPU" in kept["hardware"]["note"] and kept["hardware"]["hosts"] == 2
    assert kept["hardware"]["note"] in html.unescape((tmp_path / "plan.html").read_text())
    [stage] = kept["stages"]
    assert stage["compute"] == stage["executed"] / 989e12 and stage["bandwidth"] == stage["traffic"] / 3.35e12
    # Both GPUs of a host carry the ring between hosts.
    assert stage["network"] == pytest.approx(sum(each["bytes"] for each in stage["transfers"]) / 100e9)


@pytest.mark.slow
def test_a_run_that_does_not_fit_a_gpu_exits_with_2(capsys, monkeypatch):
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.0001")
    monkeypatch.setattr(search, "first_that_fits", lambda *_, **__: None)
    monkeypatch.setattr(cuda, "devices", lambda *_: (_ for _ in ()).throw(NotImplementedError()))
    words = ["plan", "--config=experiments/gpt2.py:size=tiny", "--topology=rtx4090:1", "--config.stages=()"]
    assert main.main(words) == 2
    assert "NO FIT" in capsys.readouterr().out


def test_the_plan_in_a_workdir_is_a_section_of_the_report(tmp_path, sharded):
    path = tmp_path / table.FILE
    assert table.read(path) is None
    kept = table.record([sharded], on(4), plan.cost_of_run([sharded], on(4)), {"name": "small"})
    path.write_text(json.dumps(kept))
    page = render_plan(table.read(path))
    assert all(f"<th>{name}</th>" in page and cell in page for name, cell in table.rows([sharded], on(4))[1:])
    bar = re.search(r'<div class="bar">(.*?)</div>', page)[1]
    assert sum(map(float, re.findall(r"width:([\d.]+)%", bar))) == pytest.approx(
        100 * sharded.memory.needed / sharded.memory.available, abs=0.01)
    for text in ("{", "[]", json.dumps(kept | {"stages": []}), json.dumps(kept | {"table": [[3]]})):
        path.write_text(text)
        with pytest.raises(UserError, match=r"plan\.json is damaged"):
            table.read(path)


def test_what_xla_needs_is_read_from_its_message():
    message = "Ran out of memory in memory space hbm. Used 17.25G of 15.75G hbm. Exceeded hbm capacity by 1.50G."
    assert plan._required(message) == 17.25 * 2**30


def test_flops_and_batch_are_those_of_the_traced_step(sharded):
    mesh = make_mesh(1)
    [one] = shapes.without_data(experiments.parse(causal()), None, mesh)
    batch = shapes.batch(one, mesh)
    assert sharded.flops == flops.of_train_step(one.stage.objective, one.stage.optimizer, batch)
    assert 4 * sharded.memory.batch == sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(batch))


def pairs_of_texts(tmp_path, **fields):
    """An experiment whose sources have up to 32 tokens and whose targets up to 8."""
    path = tiny.write(tmp_path / "train.jsonl", [{"text": "cat " * 31, "target": "dog " * 7}] * 16)
    own = {"objective__max_target": 8, "model__head_width": 0, "model__max_length": 0}
    return experiments.parse(tiny.config("text_to_text", path, **own | fields))


def test_targets_and_sources_have_the_shapes_of_training(tmp_path):
    """The plan's step is that on a full batch of the longest texts."""
    experiment, mesh = pairs_of_texts(tmp_path), make_mesh(1)
    vocabulary = tiny.tokenizer().vocabulary
    [one] = shapes.without_data(experiment, vocabulary, mesh)
    records = tiny.as_records([{"text": "cat " * 31, "target": "dog " * 7}] * 16)
    examples = task_data.tokenize_records(
        experiment, experiments.build_model(experiment, vocabulary.size), tiny.tokenizer(), records, "train")
    trained = examples.gather(np.arange(16), examples.batch_length(np.arange(16)))
    batch = shapes.batch(one, mesh)
    planned, trained = (jax.tree.map(lambda x: (x.shape, x.dtype), one) for one in (batch, trained))
    assert planned == {name: trained[name] for name in planned}


def test_packed_targets_have_the_length_of_sources(tmp_path):
    [one] = shapes.without_data(pairs_of_texts(tmp_path, format__packed=True), None, make_mesh(1))
    batch = shapes.batch(one, make_mesh(1))
    assert batch["tokens"].shape == batch["source"]["tokens"].shape == (16, 32)


def test_a_batch_of_tokens_has_room_for_the_longer_text(tmp_path):
    for target, count in ((8, 4), (64, 2)):
        fields = {"format__batch_tokens": 128, "objective__max_target": target}
        [one] = shapes.without_data(pairs_of_texts(tmp_path, **fields), None, make_mesh(1))
        assert shapes.batch(one, make_mesh(1))["tokens"].shape == (count, target)
