"""The command shell: parsing, help, messages and exit codes."""

import errno
import importlib
import subprocess
import sys
from importlib import metadata
from types import ModuleType, SimpleNamespace

import ml_collections
import pytest

from lmrep.cli import main as shell
from lmrep.cli.arguments import COMMON, Arguments, Flag, parse
from lmrep.core.errors import TRACEBACK, RunFault, UserError

FLAGS = {
    "top": Flag(5, "how many"),
    "rate": Flag(0.5, "how fast"),
    "seed": Flag(None, "or none", int),
    "note": Flag("", "say this"),
    "verbose": Flag(False, "say more"),
    "not_quiet": Flag(True, "a name that begins with no"),
}


@pytest.fixture
def command(monkeypatch):
    """A command `try` that records what it receives and then does `command.action()`."""
    module = ModuleType("lmrep.cli.try", "Tries things.\n\nAt length.")
    module.FLAGS, module.received, module.action = FLAGS, [], lambda: 0

    def run(arguments):
        module.received.append(arguments)
        return module.action()

    module.run = run
    monkeypatch.setitem(sys.modules, "lmrep.cli.try", module)
    monkeypatch.setattr(shell, "show_messages", lambda level: None)  # later tests capture messages
    monkeypatch.setitem(shell.COMMANDS, "try", shell.Command(
        "try things", "lmrep try --top=3", shell.CONFIG, "[WORD ...]"))
    return module


def parsed(*words):
    return parse("try", words, COMMON | FLAGS)


# Parsing

def test_command_receives_config_flags_and_arguments():
    args = parsed("--config=a/b.py:size=tiny,x=1:2", "first", "--config.a.b=c=d", "--workdir", "runs/x", "--top", "3",
                 "--config.stages.0.x", "-1", "second word", "--verbose", "--", "--top=9", "--")
    assert args.command == "try" and args.config_file == "a/b.py" and args.config_argument == "size=tiny,x=1:2"
    assert args.overrides == (("a.b", "c=d"), ("stages.0.x", "-1")) and args.workdir == "runs/x"
    assert vars(args.flags) == {"top": 3, "rate": 0.5, "seed": None, "note": "", "verbose": True, "not_quiet": True}
    assert args.words == ("first", "second word", "--top=9", "--")


def test_defaults_without_arguments():
    args = parsed()
    assert args == Arguments("try", flags=SimpleNamespace(**{name: flag.default for name, flag in FLAGS.items()}))


@pytest.mark.parametrize(("words", "name", "value"), [
    (["--verbose"], "verbose", True), (["--verbose", "--noverbose"], "verbose", False),
    (["--verbose=true"], "verbose", True), (["--verbose=False"], "verbose", False),
    (["--not_quiet=false"], "not_quiet", False), (["--not-quiet"], "not_quiet", True),
    (["--nonot_quiet"], "not_quiet", False),
    (["--rate=1"], "rate", 1.0), (["--rate", "-1e-3"], "rate", -0.001), (["--seed=7"], "seed", 7),
    (["--note="], "note", ""), (["--note=a=b"], "note", "a=b"), (["--note=file:///a b"], "note", "file:///a b"),
    (["--note=file:///a/b"], "note", "/a/b"), (["--note", "file:///a"], "note", "/a"),
    (["--top=1", "--top=2"], "top", 2),
])
def test_flag_values_are_converted(words, name, value):
    result = getattr(parsed(*words).flags, name)
    assert result == value and type(result) is type(value)


def test_boolean_flag_does_not_consume_the_next_argument():
    assert parsed("--verbose", "true").words == ("true",)


def test_arguments_may_be_negative_numbers_or_a_dash():
    assert parsed("-", "-1").words == ("-", "-1")


@pytest.mark.parametrize(("words", "message"), [
    (["--tpo=3"], "lmrep try has no flag --tpo; did you mean '--top'?"),
    (["--workdri=x"], "lmrep try has no flag --workdri; did you mean '--workdir'?"),
    (["--zzzzzz"], "lmrep try has no flag --zzzzzz; see lmrep try --help"),
    (["--notop"], "lmrep try has no flag --notop; did you mean '--top'?"),
    (["-config=x"], "lmrep try has no flag -config=x; flags begin with two dashes"),
    (["--top"], "--top needs a value: --top=VALUE"),
    (["--workdir", "--top=3"], "--workdir needs a value: --workdir=VALUE"),
    (["--config.a.b"], "--config.a.b needs a value: --config.a.b=VALUE"),
    (["--top=many"], "--top is 'many'; expected a whole number"),
    (["--top=1.5"], "--top is '1.5'; expected a whole number"),
    (["--top=3000000000"], "--top is 3000000000; expected at most 2,147,483,647"),
    (["--rate=x"], "--rate is 'x'; expected a number"),
    (["--verbose=1"], "--verbose is '1'; expected True or False"),
])
def test_invalid_argument_gives_one_message(words, message):
    with pytest.raises(UserError) as error:
        parsed(*words)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_load_config_runs_the_experiment(tmp_path):
    file = tmp_path / "e.py"
    file.write_text("def get_config(argument): return {'argument': argument, 'a': {'b': 1}}")
    config = parsed(f"--config={file}:size=tiny", "--config.a.b=2").load_config()
    assert isinstance(config, ml_collections.ConfigDict)
    assert config.to_dict() == {"argument": "size=tiny", "a": {"b": 2}}


def test_missing_required_arguments_are_reported():
    with pytest.raises(UserError, match="lmrep try needs an experiment, for example --config="):
        Arguments("try").load_config()
    with pytest.raises(UserError, match="lmrep try needs the directory of a run, for example --workdir="):
        Arguments("try").required_workdir()
    assert Arguments("try", workdir="x").required_workdir() == "x"


# Exit codes

@pytest.mark.parametrize(("returned", "code"), [(0, 0), (None, 0), (143, 143)])
def test_exit_code_is_the_return_value_of_the_command(command, returned, code):
    command.action = lambda: returned
    assert shell.main(["try", "--top=3", "a"]) == code
    assert command.received[0].flags.top == 3 and command.received[0].words == ("a",)


@pytest.mark.parametrize(("error", "code", "message"), [
    (UserError("too small"), 2, "lmrep: error: too small\n"),
    (RunFault("loss is nan"), 3, "lmrep: error: loss is nan\n"),
    (KeyboardInterrupt(), 130, "lmrep: interrupted\n"),
    (OSError(errno.EROFS, "Read-only file system", "/x/y"), 3,
     "lmrep: error: /x/y: Read-only file system; fix that, and run the command again\n"),
    (OSError(errno.ENOSPC, "No space left on device"), 3,
     "lmrep: error: No space left on device; fix that, and run the command again\n"),
])
def test_expected_failures_are_printed_as_messages(command, capsys, error, code, message):
    def fail():
        raise error
    command.action = fail
    assert shell.main(["try"]) == code
    assert capsys.readouterr() == ("", message)


def test_errors_show_their_traceback_on_demand(command, capsys, monkeypatch):
    def fail():
        raise UserError("too small")
    command.action = fail
    monkeypatch.setenv(TRACEBACK, "1")
    assert shell.main(["try"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback") and error.endswith("lmrep: error: too small\n")


@pytest.mark.parametrize(("code", "problem"), [
    ("\nimport lmrep.models\nlmrep.models.lstn", "3, cannot be imported: AttributeError: module 'lmrep.models' has"),
    ("def build(c name):", "1, cannot be imported: SyntaxError: invalid syntax"),
])
def test_a_file_that_cannot_be_imported_is_named(command, capsys, tmp_path, monkeypatch, code, problem):
    file = tmp_path / "broken_component.py"
    file.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    command.action = lambda: importlib.import_module("broken_component")
    assert shell.main(["try"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lmrep: error: {file}, line {problem}") and error.count("\n") == 1


def test_bug_keeps_its_traceback(command):
    command.action = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        shell.main(["try"])


@pytest.mark.parametrize(("words", "message"), [
    (["trian"], "lmrep: error: there is no command 'trian'; did you mean 'train'?\n"),
    (["qqq"], "lmrep: error: there is no command 'qqq'; see lmrep --help\n"),
    (["--workdir=x", "train"], "lmrep: error: expected a command before --workdir=x: train, "),
    (["try", "--tpo=3"], "lmrep: error: lmrep try has no flag --tpo; did you mean '--top'?\n"),
])
def test_invalid_command_line_exits_2(command, capsys, words, message):
    assert shell.main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(message) and err.count("\n") == 1
    assert not command.received


# Help

@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command_with_an_example(capsys, words):
    assert shell.main(words) == 0
    out = capsys.readouterr().out
    assert "lmrep train --config=experiments/quickstart.py --workdir=runs/quickstart" in out
    for name, command in shell.COMMANDS.items():
        assert f"  {name}" in out and command.summary in out
    assert max(map(len, out.splitlines())) <= 100


def test_help_of_a_command_lists_its_flags_and_does_not_run_it(command, capsys):
    assert shell.main(["try", "--top=3", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Tries things.\n\nAt length.\n") and out.endswith("Example:\n  lmrep try --top=3\n")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  --")}
    assert list(lines) == ["--config=PATH", "--workdir=PATH", "--config.FIELD=TEXT", "--top=N", "--rate=X", "--seed=N",
                           "--note=TEXT", "--[no]verbose", "--[no]not_quiet", "--[no]compilation_cache"]
    assert lines["--top=N"].endswith("how many (default: 5)") and lines["--seed=N"].endswith("or none")
    assert not command.received


def test_help_after_two_dashes_is_an_argument(command):
    assert shell.main(["try", "--", "--help"]) == 0
    assert command.received[0].words == ("--help",)


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(capsys, flag):
    assert shell.main([flag]) == 0
    assert capsys.readouterr().out.split() == ["lmrep", metadata.version("lmrep")]


def test_python_m_lmrep_is_the_command():
    result = subprocess.run([sys.executable, "-m", "lmrep", "--version"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and result.stdout.startswith("lmrep ")


def test_help_of_a_command_by_name(command, capsys):
    assert shell.main(["help", "try"]) == 0
    by_name = capsys.readouterr().out
    assert shell.main(["try", "--help"]) == 0 and capsys.readouterr().out == by_name
    assert shell.main(["help", "trian"]) == 2 and "did you mean 'train'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", shell.COMMANDS)
def test_help_lists_the_flags_that_a_command_takes_and_no_others(capsys, name):
    """A flag that is not listed is refused."""
    assert shell.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    for flag in ("config", "workdir"):
        listed = f"  --{flag}=" in out
        assert listed == (flag in shell.COMMANDS[name].common) and (f"  --{flag}.FIELD" in out) == (
            listed and flag == "config")
        if not listed:
            assert shell.main([name, f"--{flag}=x"]) == 2
            assert f"--{flag}" in capsys.readouterr().err
    if not shell.COMMANDS[name].words:
        assert shell.main([name, "word"]) == 2 and "takes no argument 'word'" in capsys.readouterr().err


LIGHT = [name for name in shell.COMMANDS if name != "predict"]  # its flags are the options of the capabilities
HEAVY = ("jax", "flax", "optax", "numpy", "ml_collections", "tensorflow_datasets", "grain", "orbax")


def test_help_and_refusals_import_nothing_heavy():
    lines = [["--help"], ["--version"], ["trian"]]
    lines += [[name, flag] for name in LIGHT for flag in ("--help", "--no-such-flag")]
    script = (f"import sys\nfrom lmrep.cli.main import main\nfor words in {lines!r}:\n"
              f"    print(main(words), words, [m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)")
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    reported = [line for line in result.stderr.splitlines() if not line.startswith("lmrep: error: ")]
    assert reported == [f"{0 if words[-1] in ('--help', '--version') else 2} {words} []" for words in lines]
