"""A family of published checkpoints is one file and one row: reading, writing and conversion work from its table."""

import dataclasses
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from lmrep.core.errors import UserError
from lmrep.interop import conversion
from lmrep.interop.huggingface import FAMILIES, Family
from lmrep.interop.huggingface.head_classes import HeadClass
from lmrep.interop.huggingface.read import read, specs
from lmrep.interop.huggingface.tensors import linear
from lmrep.interop.huggingface.write import from_network, write
from lmrep.models import transformer
from tests import small
from tests.contract import megatron
from tests.interop.test_published import GOLDEN

SIZES = {"vocab": 53, "width": 16, "layers": 2, "heads": 2, "mlp": 64, "max_length": 32, "norm": "pre",
         "embedding_norm": False, "token_types": 0, "activation": "relu"}


@pytest.fixture
def published(tmp_path, monkeypatch):
    """(the directory of a checkpoint of the family, its parameters)."""
    monkeypatch.setitem(FAMILIES, "megatron", megatron.FAMILY)
    config, draw = transformer.Config(**SIZES), np.random.default_rng(0)
    params = {path: draw.normal(size=spec.shape).astype(np.float32) for path, spec in specs(config).items()
              if path.startswith(("encoder/", "objective/masked/"))}
    checkpoint, remarks = from_network(config, params, {"pad": 0, "cls": 2, "sep": 3}, "masked")
    assert not remarks and checkpoint.class_name == "MegatronForMaskedLM"
    shutil.copytree(GOLDEN / "bert", tmp_path / "x", ignore=lambda *_: ["model.safetensors", "config.json"])
    write(checkpoint, tmp_path / "x", 10**9)
    return tmp_path / "x", params


def test_a_family_has_at_most_eight_fields():
    assert len(dataclasses.fields(Family)) <= 8


def test_tensors_have_the_names_and_layouts_of_the_table(published):
    directory, params = published
    tensors, checkpoint = load_file(directory / "model.safetensors"), read(directory)
    assert checkpoint.params.keys() == params.keys() and not checkpoint.extra_tensors
    for path, value in params.items():
        np.testing.assert_array_equal(checkpoint.params[path], value)
    attention = "encoder/layers/attention"
    np.testing.assert_array_equal(tensors["net.blocks.1.q.weight"], params[f"{attention}/query/kernel"][1].T)
    np.testing.assert_array_equal(tensors["net.blocks.1.kv.weight"], np.concatenate(
        [params[f"{attention}/{name}/kernel"][1] for name in ("key", "value")], -1))


def test_it_is_converted_to_a_run_and_back(published, tmp_path):
    directory, _ = published
    assert small.command("convert", directory, tmp_path / "run").code == 0
    assert small.command("predict", f"--workdir={tmp_path}/run", "the [MASK] cat").code == 0
    shutil.rmtree(tmp_path / "run/interop")  # as of a run that was trained here
    written = conversion.to_published(tmp_path / "run", tmp_path / "back").checkpoint
    assert written.family is megatron.FAMILY and not set(written.dtypes) ^ set(
        load_file(directory / "model.safetensors"))


def test_another_family_of_its_classes_is_refused_with_the_nearest(published, tmp_path):
    shutil.copytree(published[0], tmp_path / "y")
    file = tmp_path / "y/config.json"
    file.write_text(file.read_text().replace('"megatron"', '"unknown-megatron"'))
    with pytest.raises(UserError, match="the nearest that it has is MegatronForMaskedLM"):
        read(tmp_path / "y")


@pytest.mark.parametrize(("change", "problem"), [
    ({"config_from": lambda config_json, path: None}, "TypeError: .*takes 2 positional arguments but 3 were given"),
    ({"tensors": ["words.weight"]}, "AttributeError"),
    ({"heads": (HeadClass("MegatronModel"), HeadClass("MegatronForMaskedLM", ("maskd",)))},
     "a head of MegatronForMaskedLM is 'maskd'; .*did you mean 'masked'"),
])
def test_a_row_that_breaks_its_contract_is_refused_by_its_name(published, monkeypatch, change, problem):
    monkeypatch.setitem(FAMILIES, "megatron", dataclasses.replace(megatron.FAMILY, **change))
    with pytest.raises(UserError, match=f"checkpoint family 'megatron' .*{problem}"):
        read(published[0])


@pytest.mark.parametrize(("change", "problem"), [
    ({"blocks.{l}.o": None}, "lacks encoder/layers/attention/output/bias"),
    ({"mlm.out.bias": None}, "lacks objective/masked/bias"),
    ({"blocks.{l}.o": linear("encoder/layers/attention/outpt")}, "lacks encoder/layers/attention/output/bias"),
    ({"words2.weight": "encoder/embedding/token"}, "has encoder/embedding/token twice"),
])
def test_a_table_that_lacks_a_parameter_or_has_one_twice_is_refused(published, monkeypatch, change, problem):
    tensors = {name: value for name, value in (megatron.TENSORS | change).items() if value is not None}
    monkeypatch.setitem(FAMILIES, "megatron", dataclasses.replace(megatron.FAMILY, tensors=tensors))
    with pytest.raises(UserError, match=f"checkpoint family 'megatron' .*megatron.py.*{problem}"):
        read(published[0])
