"""Config files, arguments and overrides: what they give, and one clear message for each way to fail."""

import sys

import ml_collections
import pytest

from lmrep.config.loading import load, override, parse_argument
from lmrep.core.errors import UserError
from lmrep.experiment.resolve import apply_overrides

EXPERIMENT = '''
import ml_collections
from lmrep.config.loading import parse_argument

def get_config(argument=""):
    chosen = parse_argument(argument, size=("tiny", ("tiny", "base")), length=128)
    return ml_collections.ConfigDict({"size": chosen.size, "length": chosen.length, "inner": {"rate": 0.1}})
'''


@pytest.fixture
def write(tmp_path):
    def write(text, name="experiment.py"):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file
    return write


def example():
    return ml_collections.ConfigDict({
        "steps": 10, "rate": 0.1, "name": "a", "on": True, "nothing": None, "table": {},
        "betas": (0.9, 0.999), "layers": [1, 2], "patterns": ("a",), "empty": (),
        "optimizer": {"name": "adamw", "schedule": {"warmup": 5}},
        "stages": ({"length": 128, "deep": {"x": 1}, "own": {}}, {"length": 512, "deep": {"x": 2}, "own": {}}),
    }).lock()


def after(path, text):
    config = example()
    override(config, path, text)
    return config


def refusal(action, lines=2):
    with pytest.raises(UserError) as error:
        action()
    assert len(str(error.value).splitlines()) <= lines and error.value.__cause__ is None
    return str(error.value)


# --- files ------------------------------------------------------------------------------------------------------


def test_load_runs_get_config_with_the_argument_and_overrides_then_set_fields(write):
    config = load(write(EXPERIMENT), "size=base")
    assert config.to_dict() == {"size": "base", "length": 128, "inner": {"rate": 0.1}}
    config = apply_overrides(config, [("length", "64"), ("inner.rate", "1"), ("length", "32")])
    assert config.to_dict() == {"size": "base", "length": 32, "inner": {"rate": 1.0}}


def test_load_accepts_a_plain_dict(write):
    file = write("def get_config(argument): return {'a': {'b': 1}}")
    assert load(str(file)).a.b == 1
    assert [f.name for f in file.parent.iterdir()] == ["experiment.py"]  # no __pycache__


def test_a_page_that_loads_another_keeps_its_choices_apart(tmp_path):
    """Its default may be named where its other values differ, whatever the other page makes of the name."""
    inner, outer = tmp_path / "inner.py", tmp_path / "outer.py"
    inner.write_text("from lmrep.config.loading import parse_argument\n\n\ndef get_config(argument=''):\n"
                     "    return vars(parse_argument(argument, size=('x', ('x', 'y'))))\n")
    outer.write_text("from lmrep.config import loading\n\n\ndef get_config(argument=''):\n"
                     "    chosen = loading.parse_argument(argument, size=('a', ('a', 'b')))\n"
                     f"    page = loading.load({str(inner)!r}, 'size=y')\n"
                     "    return page if chosen.size == 'a' else {'size': 'none'}\n")
    assert (load(outer, "size=a").size, load(outer, "size=b").size) == ("y", "none")


def test_file_may_declare_dataclasses(write):
    file = write("from __future__ import annotations\nimport dataclasses\n\n@dataclasses.dataclass\nclass A:\n"
                 "    x: int = 3\n\ndef get_config(argument=''):\n    return {'x': A().x}\n")
    assert load(file).x == 3


@pytest.mark.parametrize(("text", "message"), [
    ("x = 1", "defines no function get_config; expected `def get_config"),
    ("get_config = 3", "defines no function get_config"),
    ("def get_config(): return {}", "defines get_config(), not of one argument; expected `def get_config"),
    ("def get_config(argument):\n    x = (\n", "experiment.py:2: SyntaxError: '(' was never closed"),
    ("def get_config(argument):\nreturn 1", "experiment.py:2: IndentationError: expected an indented block"),
    (b"\x00\x01\x02", "SyntaxError"),
    (b"x = '\xff\xfe'", "SyntaxError"),
    ("import no_such_module_at_all", "experiment.py:1: ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    ("\n1 / 0", "experiment.py:2: ZeroDivisionError: division by zero"),
    ("def f(x):\n    return x['k']\n\ndef get_config(argument):\n    return f({})", "experiment.py:2: KeyError: 'k'"),
    ("import json\n\ndef get_config(argument):\n    return json.loads('')", "experiment.py:4: JSONDecodeError: Expect"),
    ("def get_config(argument):\n    raise ValueError", "experiment.py:2: ValueError"),
    ("def get_config(argument):\n    raise ValueError('a\\nb')", "experiment.py:2: ValueError: a b"),
    ("import sys\nsys.exit('bye')", "experiment.py:2: SystemExit: bye"),
    ("def get_config(argument):\n    return 3", "get_config returned 3; expected an ml_collections.ConfigDict"),
])
def test_failing_file_gives_one_message_with_the_location(write, text, message):
    assert message in refusal(lambda: load(write(text)))


def test_user_error_of_the_file_is_passed_on_unchanged(write):
    file = write("from lmrep.core.errors import UserError\n\n"
                 "def get_config(argument):\n    raise UserError('no: ' + argument)")
    assert refusal(lambda: load(file, "x=1")) == "no: x=1"


def test_missing_and_non_python_files_are_refused(write, tmp_path):
    file = write(EXPERIMENT, "quickstart.py")
    assert refusal(lambda: load(tmp_path / "quikstart.py")).endswith("quikstart.py; did you mean 'quickstart.py'?")
    assert "no config file" in refusal(lambda: load(tmp_path / "nowhere" / "a.py"))
    assert "is not a Python file" in refusal(lambda: load(tmp_path))
    assert "is not a Python file" in refusal(lambda: load(write("{}", "config.json")))
    assert "size is 'huge'; expected one of tiny, base" in refusal(lambda: load(file, "size=huge"))


def test_loading_does_not_change_interpreter_state(write):
    before = sys.dont_write_bytecode, list(sys.path)
    with pytest.raises(UserError):
        load(write("1 / 0"))
    assert (sys.dont_write_bytecode, list(sys.path)) == before


# --- overrides --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "text", "value"), [
    ("steps", "20", 20), ("steps", "1_000", 1000), ("steps", "1e4", 10000), ("steps", "-3", -3),
    ("rate", "1", 1.0), ("rate", "1e-3", 0.001), ("rate", "-.5", -0.5),
    ("name", "b", "b"), ("name", "3", "3"), ("name", "none", "none"), ("name", "True", "True"), ("name", "", ""),
    ("name", "a=b,(c", "a=b,(c"),
    ("on", "false", False), ("on", "False", False), ("on", "TRUE", True),
    ("nothing", "3", 3), ("nothing", "x y", "x y"), ("nothing", "none", None), ("nothing", "(1, 2)", (1, 2)),
    ("betas", "0.8,1", (0.8, 1.0)), ("betas", "(0.8, 0.9)", (0.8, 0.9)), ("betas", "[1]", (1.0,)), ("betas", "()", ()),
    ("betas", "", ()), ("betas", "0.5", (0.5,)),
    ("layers", "3,4", [3, 4]), ("layers", "[3, 4]", [3, 4]),
    ("patterns", "*/bias, *norm/*", ("*/bias", "*norm/*")), ("patterns", "('a', 'b')", ("a", "b")),
    ("patterns", "(a, b)", ("a", "b")), ("patterns", "1,none", ("1", "none")), ("patterns", "(1, 2)", ("1", "2")),
    ("empty", "1,x", (1, "x")),
    ("optimizer.name", "lamb", "lamb"), ("optimizer.schedule.warmup", "7", 7),
    ("stages.0.length", "64", 64), ("stages.1.deep.x", "9", 9), ("betas.1", "0.98", 0.98), ("layers.0", "5", 5),
])
def test_override_is_converted_to_the_type_of_the_field(path, text, value):
    config = after(path, text)
    got = config
    for key in path.split("."):
        got = got[int(key)] if key.isdecimal() else got[key]
    assert got == value and type(got) is type(value)
    if isinstance(value, tuple | list):
        assert [type(x) for x in got] == [type(x) for x in value]
    changed = {k for k, v in example().items() if config[k] != v}
    assert changed <= {path.partition(".")[0]}  # and nothing else moved


def test_override_of_a_tuple_entry_keeps_the_others():
    stages = after("stages.0.deep.x", "7").stages
    assert [s["deep"]["x"] for s in stages] == [7, 2] and [s["length"] for s in stages] == [128, 512]


def test_empty_dict_field_accepts_a_dict():
    assert after("table", "{'*/layers/0-5/*': 0.5}").table.to_dict() == {"*/layers/0-5/*": 0.5}
    assert after("stages.0.own", "{'a': {'b': 1}}").stages[0]["own"] == {"a": {"b": 1}}
    assert "expected a table" in refusal(lambda: after("table", "3"))
    assert "dots" in refusal(lambda: after("table", "{'a.b': 1}"))


def test_tables_with_keys_of_the_user_accept_more_of_them():
    config = ml_collections.ConfigDict({"frozen": {"features": "runs/elmo"}, "init_mapping": {}}).lock()
    config = apply_overrides(config, [("frozen.teacher", "runs/bert"), ("init_mapping.encoder/layers", "layers[0,2]")])
    assert config.frozen.to_dict() == {"features": "runs/elmo", "teacher": "runs/bert"}
    assert config.init_mapping.to_dict() == {"encoder/layers": "layers[0,2]"}


def test_references_follow_the_field_they_refer_to():
    config = example().unlock()
    config.copy_of_steps = config.get_ref("steps")
    override(config, "steps", "77")
    assert config.copy_of_steps == 77


def test_placeholder_keeps_its_type():
    config = ml_collections.ConfigDict({"x": ml_collections.config_dict.placeholder(int)})
    assert "config.x cannot be 'abc'" in refusal(lambda: override(config, "x", "abc"))
    override(config, "x", "3")
    assert config.x == 3


@pytest.mark.parametrize(("path", "text", "message"), [
    ("optimiser.name", "x", "config has no field 'optimiser'; did you mean 'optimizer'?"),
    ("optimizer.nam", "x", "config.optimizer 'adamw' has no field 'nam'; did you mean 'name'?"),
    ("optimizer.zzz", "x", "config.optimizer 'adamw' has no field 'zzz'; it has name, schedule"),
    ("stages.2.length", "x", "config.stages has no entry '2'; expected a number from 0 to 1"),
    ("stages.length", "x", "config.stages has no entry 'length'; expected a number from 0 to 1"),
    ("stages.0.lenth", "x", "config.stages.0 has no field 'lenth'; did you mean 'length'?"),
    ("steps.x", "1", "config.steps is 10; it has no fields, so config.steps.x cannot be set"),
    ("", "1", "config has no field ''"),
    ("steps", "abc", "config.steps cannot be 'abc'; expected a whole number, as 10 is"),
    ("steps", "1.5", "config.steps cannot be '1.5'; expected a whole number"),
    ("steps", "true", "config.steps cannot be 'true'; expected a whole number"),
    ("steps", "none", "config.steps cannot be 'none'; expected a whole number"),
    ("rate", "fast", "config.rate cannot be 'fast'; expected a number, as 0.1 is"),
    ("rate", "nan", "config.rate cannot be 'nan'; expected a number"),
    ("on", "1", "config.on cannot be '1'; expected True or False, as True is"),
    ("on", "yes", "config.on cannot be 'yes'; expected True or False"),
    ("betas", "0.9,x", "config.betas cannot be 'x'; expected a number"),
    ("betas", "(0.9, 'x')", "config.betas cannot be \"(0.9, 'x')\"; expected a number"),
    ("optimizer", "lamb", "config.optimizer cannot be set as a whole; set its fields, as --config.optimizer.name=..., "
                          "or make a choice after the colon, as --config=FILE.py:name=value"),
    ("stages", "7", "config.stages cannot be set as a whole; set a field of an entry, as --config.stages.0.length="),
    ("stages.0", "1", "config.stages.0 cannot be set as a whole; set its fields, as --config.stages.0.length="),
])
def test_invalid_override_is_refused(path, text, message):
    config = example()
    assert message in refusal(lambda: override(config, path, text))
    assert config == example()


# --- parts ------------------------------------------------------------------------------------------------------


def test_config_argument_is_split_into_fields():
    sizes = {"tiny": 1, "base": 2}
    declared = dict(size=("tiny", sizes), objective=("masked", ["masked", "causal"]), length=128, on=False)
    assert vars(parse_argument("", **declared)) == {"size": "tiny", "objective": "masked", "length": 128, "on": False}
    got = parse_argument("objective=causal,length=512,on=true", **declared)
    assert (got.size, got.objective, got.length, got.on) == ("tiny", "causal", 512, True)


@pytest.mark.parametrize(("argument", "message"), [
    ("siz=tiny", "the experiment has no choice 'siz'; did you mean 'size'?"),
    ("form=tiny", "the experiment has no choice 'form'; its choices are\n"
     "  size    tiny, base (default: tiny)\n  length  any (default: 128)"),
    ("size", "the experiment's argument has 'size'; expected name=value, as in\n"
     "  size    tiny, base (default: tiny)\n  length  any (default: 128)"),
    ("size=base,size=tiny", "the experiment's argument gives size twice; give it once"),
    ("size=bse", "size is 'bse'; expected one of tiny, base; did you mean 'base'?"),
    ("length=long", "length cannot be 'long'; expected a whole number, as 128 is"),
])
def test_invalid_config_argument_is_refused(argument, message):
    assert refusal(lambda: parse_argument(argument, size=("tiny", ("tiny", "base")), length=128), 3) == message


def test_long_lists_of_choices_are_wrapped():
    networks = [f"network_{i}" for i in range(40)]
    lines = refusal(lambda: parse_argument("x", model=("", ("", *networks))), 9).splitlines()
    assert len(lines) > 3 and all(len(line) <= 100 for line in lines)
    assert lines[1].startswith("  model  network_0, network_1, ") and lines[2].startswith("         network_")


def test_all_stages_can_be_removed():
    config = example()
    assert len(config.stages)
    override(config, "stages", "()")
    assert len(config.stages) == 0
