"""The report's section about compute: what it shows of a run, and its charts of validation against operations."""

import dataclasses
import json
import shutil

import pytest

from lmrep.analysis import report
from lmrep.analysis.report import compute, prose, run_data
from lmrep.planning import run_cost
from lmrep.planning.compute import of_experiment, totals
from tests import runs


@pytest.fixture(scope="module")
def run():
    return run_data.read(runs.folder("masked") / "run", "one", runs.folder("masked") / "data")


def test_the_table_has_the_three_conventions_and_the_record(run):
    table = dict(compute.rows([run]))
    expected = totals(of_experiment(run.experiment, run.network.tokenizer.vocabulary))
    assert run.cost.flops == expected["exact"]
    assert table["FLOPs of the run, exact"] == prose.number(expected["exact"])
    assert table["FLOPs by ELECTRA's script"] == prose.number(expected["electra_script"])
    assert table["FLOPs by 6 N + attention"] == prose.number(expected["six_n"])
    assert float(table["device-hours"]) == pytest.approx(run.cost.device_hours, rel=1e-2)
    assert ("not known" in table["energy"]) == (run.cost.kwh is None)


def test_formulas_count_the_steps_that_were_done(run):
    halves = [dataclasses.replace(run.stage, steps=steps) for steps in (8, 8)]
    two = dataclasses.replace(run, stages=halves, network=dataclasses.replace(
        run.network, objectives=run.network.objectives * 2, flops=run.network.flops * 2))
    assert compute._by_formulas(two) == compute._by_formulas(run)


def test_energy_and_co2(run):
    known = run.cost._replace(kwh=12.34, co2_kg=5.678, energy="CPUs by RAPL", price=3.5, grid=0.46)
    table = dict(compute.rows([dataclasses.replace(run, cost=known)]))
    assert "12.3 kWh" in table["energy"] and "5.68 kg, at 0.46" in table["CO2 equivalents"]
    assert table["energy from"] == "CPUs by RAPL" and table["price"] == "3.50"


def test_a_run_without_a_record_shows_what_is_computed(run):
    table = dict(compute.rows([dataclasses.replace(run, cost=None)]))
    assert table["FLOPs of the run, exact"] == prose.number(run.cost.flops)
    assert "energy" not in table and table["device-hours"]
    nothing = dataclasses.replace(run, cost=None, network=None, timing=(), train=())
    assert compute.rows([nothing]) == [] and compute.charts([nothing]) == {}


def test_charts_are_those_of_the_metrics_that_judge_a_run(run):
    without = dataclasses.replace(run, validation=())
    assert set(compute.charts([run])) == {"mlm_loss", "mlm_accuracy"}
    assert [list(chart.lines) for chart in compute.charts([without, run]).values()] == [[1], [1]]
    assert compute.charts([without]) == {}


def test_a_task_has_its_operations_from_the_record(run):
    spent = run.cost._replace(flops=1000.0, steps=10)
    task = dataclasses.replace(run, network=dataclasses.replace(run.network, flops=()), cost=spent)
    assert task.flops_at(5) == 500


@pytest.mark.slow
def test_the_page_survives_a_damaged_record(tmp_path):
    workdir = runs.copy("masked", tmp_path / "run")
    shutil.rmtree(workdir / "checkpoints")  # which takes time
    line = json.loads((workdir / run_cost.FILE).read_text().splitlines()[0])
    (workdir / run_cost.FILE).write_text(json.dumps(line | {"energy": "<b>"}) + '\n{"start": "x"}\n\xff')
    page = report.write([workdir], data_dir=tmp_path).read_text()
    assert 'id="compute"' in page and 'data-axis="flop"' in page
    assert "<b>" not in page.split('id="compute"')[1].split("</section>")[0]
