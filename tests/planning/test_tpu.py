"""Plans for TPU slices that are not here, where libtpu is installed to compile for them (pip install -e '.[plan]')."""

import importlib.util

import pytest

from lmrep.core.errors import UserError
from lmrep.core.sharding import make_mesh, slice_of
from lmrep.experiment import config as experiments
from lmrep.planning import hardware, plan, search
from tests import small

pytestmark = pytest.mark.slow

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


@needs_libtpu
def test_a_sharded_step_is_compiled_for_a_slice():
    found = hardware.find("v5e:2x2")
    config = search.with_fields(small.config("texts"), {"mesh.data": 1, "mesh.fsdp": 4, "execution.dtype": "bfloat16"})
    planned = plan.plan(experiments.parse(config), found)[0]
    assert planned.fits and planned.memory.available == 15.75 * 2**30
    assert planned.executed * 4 == pytest.approx(planned.flops, rel=0.1)
    assert "all-gather" in {each.opcode for each in planned.transfers}


@needs_libtpu
def test_gradients_are_scattered_under_fsdp():
    """Those of kernels and of the table, whose 2,000 rows are no multiple of a tile's: what is summed by all-reduces
    along fsdp is smaller than one gradient of a kernel."""
    fields = {"mesh.data": 2, "mesh.fsdp": 8, "execution.dtype": "bfloat16", "model.width": 512, "model.mlp": 1024,
              "model.vocab": 2000, "model.layers": 2, "batch_size": 32}
    config = search.with_fields(small.config("texts"), fields)
    planned = plan.plan(experiments.parse(config), hardware.find("v5e:4x4"))[0]
    kernels, table = 2 * (4 * 512**2 + 2 * 512 * 1024), 2000 * 512
    along_fsdp = [each for each in planned.transfers if each.axes == ("fsdp",)]
    scattered = sum(each.bytes for each in along_fsdp if each.opcode == "reduce-scatter")
    summed = sum(each.bytes for each in along_fsdp if each.opcode == "all-reduce")
    assert scattered >= 7 / 8 * (2 * kernels + 4 * table) and summed < 2 * 512**2


@needs_libtpu
def test_a_step_that_does_not_fit_says_what_it_needs():
    fields = {"model.width": 8192, "model.heads": 64, "model.mlp": 32768, "model.layers": 4, "mesh.data": 4}
    config = search.with_fields(small.config("texts"), fields)
    planned = plan.plan(experiments.parse(config), hardware.find("v5e:2x2"))[0]
    assert not planned.fits and "it needs" in planned.warnings[0]


@needs_libtpu
def test_slices_are_along_the_data_axis():
    found = hardware.find("v5e:2x2", slices=2)
    mesh = make_mesh(4, 2, 1, devices=found.devices)
    assert [{slice_of(device) for device in part.flat} for part in mesh.devices] == [{0}, {0}, {1}, {1}]
    with pytest.raises(UserError, match="make it a multiple of 2"):
        make_mesh(1, 8, 1, devices=found.devices)


@needs_libtpu
def test_a_topology_that_libtpu_does_not_know_is_refused():
    with pytest.raises(UserError, match="libtpu knows no topology v5e:3x1"):
        hardware.find("v5e:3x1")


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_libtpu_the_command_says_how_to_get_it():
    with pytest.raises(UserError, match="pip install"):
        hardware.find("v5e:2x2")
