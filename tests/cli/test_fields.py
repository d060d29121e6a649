"""`lmrep fields`: every field of a config is there, with what its record says of it."""

import dataclasses
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from lmrep.config.loading import load
from lmrep.experiment import fields
from lmrep.experiment.config import default_config
from lmrep.experiment.record import ALL_FORMATS, ALL_OBJECTIVES, TaskExperiment
from lmrep.models import MODELS
from tests import small

BERT = Path(__file__).parents[2] / "experiments/bert.py"


def leaves(node, where=""):
    """{path: value} of a config as a nested dict."""
    entries = node.items() if isinstance(node, dict) else enumerate(node)
    found = {}
    for name, value in entries:
        records = isinstance(value, list | tuple) and value and isinstance(value[0], dict)
        found |= leaves(value, f"{where}{name}.") if records or (isinstance(value, dict) and value) else {
            f"{where}{name}": value}
    return found


@pytest.mark.parametrize("config", [default_config("bert_tiny", "masked", "packed"), load(BERT)], ids=["base", "bert"])
def test_all_fields_of_a_config_are_listed_and_can_be_set(config):
    values = leaves(config.to_dict())
    listed = {field.path: field for field in fields.list_fields(config.to_dict())}
    missing = {path for path, value in values.items() if path not in listed and value not in ((), [])}
    assert not missing
    shown = {path: listed[path].value for path in values.keys() & listed.keys()}
    assert all(tuple(shown[path]) == tuple(values[path]) if isinstance(values[path], list | tuple)
               else shown[path] == values[path] for path in shown)


def test_a_config_without_the_name_of_its_network_lists_all_networks():
    config = default_config("bert_tiny", "masked", "packed").to_dict()
    del config["model"]["name"]
    listed = [*fields.list_fields(config)]
    assert next(field.value for field in listed if field.path == "model.name") == ""
    assert {field.choice for field in listed if field.path == "model.width"} == {
        f"model {name}" for name, row in MODELS.items() if "width" in row.config.__dataclass_fields__}


def test_all_choices_are_listed_without_a_config():
    listed = list(fields.list_fields(None))
    choices = {field.choice for field in listed if field.choice}
    tables = {"model": MODELS, "objective": ALL_OBJECTIVES, "format": ALL_FORMATS}
    expected = {"tasks"} | {f"{field} {name}" for field, table in tables.items() for name, row in table.items()
                            if dataclasses.fields(row.config)}
    for path, rows in fields.RECORDS.items():  # what a row adds to the fields that all have
        shared = set.intersection(*({field.name for field in dataclasses.fields(row.config)} for row in rows.values()))
        expected |= {f"{path.removesuffix('.name')} {name}" for name, row in rows.items()
                     if {field.name for field in dataclasses.fields(row.config)} > shared}
    assert choices == expected
    sections = {field.path.split(".")[0] for field in listed}
    assert sections == {field.name for field in dataclasses.fields(TaskExperiment)}
    assert any(field.path == "stages.N.length" for field in listed)
    assert all(field.bounds.help for field in listed)


def test_field_shows_default_bounds_and_description():
    result = small.command("fields", "config.seed")
    assert result == (2, "", "lmrep: error: no field has 'config.seed' in its path or its meaning; lmrep fields lists "
                             "all fields\n")
    assert small.command("fields", "SEED", "initial").out == (
        "--config.seed=0   (a whole number; at least 0, at most 4,294,967,295)\n"
        "      of initial parameters, the order of examples and all random draws\n")
    out = small.command("fields", "objective.masking", f"--config={BERT}", "--config.objective.masking=static").out
    assert out.startswith("--config.objective.masking=static   (a string; dynamic | static; with objective masked)\n")


def test_records_of_a_tuple_are_numbered():
    config = ConfigDict({"stages": ({"length": 128}, {"length": 512})})
    found = {field.path: field.value for field in fields.list_fields(config.to_dict())}
    assert (found["stages.0.length"], found["stages.1.length"], found["stages.1.fraction"]) == (128, 512, 1.0)
