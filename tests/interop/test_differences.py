"""`lmrep diff`, and the arrays of runs and published directories that it compares."""

import contextlib
import json
import shutil

import numpy as np
import pytest

import lmrep
from lmrep.core.params import flatten, unflatten
from lmrep.interop import conversion
from lmrep.interop.huggingface.read import read
from lmrep.storage.checkpoints import Checkpoints
from tests import given, small
from tests.interop.test_published import GOLDEN, copy, rewrite, same


def test_differences_are_sorted_and_name_the_layer(tmp_path):
    def change(tensors):
        tensors["bert.encoder.layer.1.output.dense.bias"][2] += 0.5
        tensors["bert.embeddings.LayerNorm.weight"][:] += 0.25
        tensors["extra"] = np.arange(3)
        return {name: value for name, value in tensors.items() if not name.startswith("cls.predictions")}

    other = rewrite(copy("bert", tmp_path / "x"), change)
    result = small.command("diff", GOLDEN / "bert", other)
    names, lines = result.out.splitlines()[:2], result.out.splitlines()[2:]
    assert names == [f"{GOLDEN / 'bert'} (as published)", f"{other} (as published)"]
    assert result.code == 0 and lines[1].split() == [
        "encoder/layers/mlp/out/bias", "0.5", lines[1].split()[2], "1", "F32[2,", "15]"]
    bias = read(GOLDEN / "bert").params["encoder/layers/mlp/out/bias"]
    assert float(lines[1].split()[2]) == pytest.approx(0.5 / np.linalg.norm(bias), rel=1e-2)
    assert lines[2].split()[:2] == ["encoder/embedding_norm/scale", "0.25"]
    assert f"only in {GOLDEN / 'bert'}: objective/masked/bias" in lines and f"only in {other}: extra" in lines
    assert lines[-1] == "23 of 25 common parameters are equal"


def test_shared_layer_is_not_compared_as_stacked_layers(tmp_path):
    def change(tensors):
        tensors["albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"][3] += 0.5
        return tensors

    other = rewrite(copy("albert", tmp_path / "x"), change)
    line = small.command("diff", GOLDEN / "albert", other).out.splitlines()[3].split()
    assert line[0] == "encoder/layers/mlp/in/kernel" and line[3:] == ["F32[15,", "22]"]


def test_run_with_averages_is_compared_by_its_averages(tmp_path):
    """As in loading, unless the config or the command selects otherwise."""
    workdir = given.workdir(tmp_path)
    raw = conversion.read_arrays(workdir)[0]
    averages = {path: value + 1 for path, value in raw.items()}
    with contextlib.closing(Checkpoints(workdir / "checkpoints")) as checkpoints:
        checkpoints.save(5, {"params": unflatten(raw), "opt_state": {"average": unflatten(averages)}}, {})
        checkpoints.wait()
    loaded = {path: np.asarray(value) for path, value in flatten(lmrep.load(workdir).params).items()}
    found, which = conversion.read_arrays(workdir)
    assert same(found, averages) and same(found, loaded) and which == "step 5, averages"
    found, which = conversion.read_arrays(workdir, raw=True)
    assert same(found, raw) and which == "step 5"
    record = json.loads((workdir / "config.json").read_text())
    shutil.copytree(workdir, tmp_path / "plain")
    record["config"]["evaluation"]["averaged"] = False
    (tmp_path / "plain" / "config.json").write_text(json.dumps(record))
    assert same(conversion.read_arrays(tmp_path / "plain")[0], raw)
    result = small.command("diff", workdir, tmp_path / "plain")
    assert result.out.startswith(f"{workdir} (step 5, averages)\n{tmp_path / 'plain'} (step 5)\n")
    assert f"0 of {len(raw)} common parameters are equal" in result.out
    assert "equal: all" in small.command("diff", "--raw", workdir, tmp_path / "plain").out


def test_run_that_loads_its_best_checkpoint_is_compared_by_it(tmp_path):
    workdir = given.workdir(tmp_path)
    raw = conversion.read_arrays(workdir)[0]
    with contextlib.closing(Checkpoints(workdir / "checkpoints", best="min")) as checkpoints:
        for step, loss in ((5, 0.1), (6, 0.2)):
            checkpoints.save(step, {"params": unflatten({path: x + step for path, x in raw.items()})}, {}, loss)
        checkpoints.wait()
    assert conversion.read_arrays(workdir)[1] == "step 6"
    record = json.loads((workdir / "config.json").read_text())
    record["config"]["checkpoint"]["load"] = "best"
    (workdir / "config.json").write_text(json.dumps(record))
    found, which = conversion.read_arrays(workdir)
    assert which == "step 5" and lmrep.load(workdir).step == 5
    assert same(found, {path: x + 5 for path, x in raw.items()})


def test_shape_differences_and_nan_are_reported():
    from lmrep.interop.differences import compare

    nan = np.array([np.nan, 1.0])
    found = compare({"a": nan, "b": nan, "c": np.ones(2), "d": np.ones(2)},
                    {"a": nan, "b": np.ones(2), "c": np.ones(3), "d": np.ones(2, np.float16)})
    assert found.equal == 2 and [d.path for d in found.differing] == ["b"] and np.isnan(found.differing[0].largest)
    assert found.other_shapes == ["c: F64[2] and F64[3]"] and found.only == ([], [])
