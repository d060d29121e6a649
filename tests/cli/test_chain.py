"""Chains: runs that are trained in order, and start from earlier ones."""

import random

import pytest

import lmrep
from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.experiment import page_files
from lmrep.experiment.record import Experiment
from lmrep.interop import chain
from tests import small

PAGE = '''"""A small encoder, adapted and fine-tuned."""

from pathlib import Path

from lmrep.experiment.fine_tuning import compose_task
from tests.small import config


def get_chain(argument=""):
    return {{"pretrain": ("{home}/small.py", {{"steps": 16}}), "adapt": "{home}/adapt.py:init={{pretrain}}",
            "task": "{home}/task.py:init={{adapt}}"}}
'''
ADAPT = '''from pathlib import Path

from lmrep.config.loading import parse_argument
from tests.small import config


def get_config(argument=""):
    c = config(Path({texts!r}))
    c.init = parse_argument(argument, init="").init
    return c
'''
TASK = '''from lmrep.experiment.fine_tuning import compose_task


def get_config(argument=""):
    c = compose_task(argument, "classification")
    c.data.update({{"train": "{home}/train.csv", "validation": "{home}/train.csv"}})
    c.length, c.epochs, c.batch_size = 16, 2.0, 8
    c.log.update({{"every": 1, "tensorboard": False, "report": False}})
    return c
'''


STUDENT = ("distilbert.py:size=tiny,init={teacher}", {"frozen.teacher": "{teacher}", "init_mapping": {"a": "{b}"}})


def test_fields_name_the_workdirs_of_earlier_runs(tmp_path):
    teacher, student = chain.resolve({"teacher": ("bert.py:size=tiny", {}), "student": STUDENT}, {}, tmp_path, "own.py")
    assert student.experiment.init == student.experiment.frozen["teacher"] == teacher.directory
    with pytest.raises(UserError, match=r"own.py: the run student is 'distilbert.*frozen.teacher': .*only for the "
                                        r"workdir of an earlier run \(tutor\): 'teacher'"):
        chain.resolve({"tutor": ("bert.py:size=tiny", {}), "student": STUDENT}, {}, tmp_path, "own.py")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the config files of a chain, and its data."""
    home = tmp_path_factory.mktemp("chain")
    texts, draw = small.corpus(home / "texts"), random.Random(0)
    small.experiment_file(home, texts)
    (home / "chain.py").write_text(PAGE.format(home=home))
    (home / "adapt.py").write_text(ADAPT.format(texts=str(texts)))
    (home / "task.py").write_text(TASK.format(home=home))
    rows = [f"the {draw.choice(small.ADJECTIVES)} {noun},{noun}" for noun in small.NOUNS[:2] for _ in range(16)]
    (home / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return home


def train(home, workdir, *flags):
    """Trains the chain in `workdir`."""
    where = f"--config={home}/chain.py", f"--workdir={workdir}", f"--data_dir={home}/data"
    return small.command("train", *where, *flags)


@pytest.fixture(scope="module")
def whole(home):
    """The workdir of a chain that ran to its end."""
    result = train(home, home / "whole")
    assert result.code == 0, result.err
    return home / "whole"


@pytest.mark.slow
def test_each_run_starts_from_the_one_before(home, whole):
    assert lmrep.load(whole / "task").experiment.init == f"{whole}/adapt"
    assert [len(small.losses(whole / name)) for name in ("pretrain", "adapt")] == [16, 12]
    assert lmrep.load(whole / "adapt").experiment.init == f"{whole}/pretrain"
    assert lmrep.load(whole / "task").experiment.model["width"] == 32  # the network of the first run


@pytest.mark.slow
@pytest.mark.parametrize("last", ["pretrain", "adapt", "task"])
def test_the_same_command_continues_a_chain_bit_for_bit(home, whole, tmp_path, last):
    flags = (f"--config={home}/chain.py", f"--workdir={tmp_path}/runs", f"--data_dir={home}/data")
    process = small.start("train", *flags)
    small.until(lambda: any((tmp_path / "runs" / last / "checkpoints").glob("*")), process)
    process.kill()
    small.finish(process)
    result = small.command("train", *flags)
    assert result.code == 0, result.err
    for name in ("pretrain", "adapt", "task"):
        assert small.losses(tmp_path / "runs" / name) == small.losses(whole / name)


def test_a_warning_names_later_runs_of_one_that_is_trained_further(tmp_path, caplog):
    runs = [chain.ChainRun(name, "", "", (), str(tmp_path / name), Experiment()) for name in ("a", "b", "c")]
    for name in "abc":
        (tmp_path / name / "checkpoints/4").mkdir(parents=True)
    assert [run.name for run in chain.in_order(runs)] == ["a", "b", "c"] and not caplog.records
    for run in chain.in_order(runs):
        (tmp_path / run.name / "checkpoints" / ("8" if run.name == "b" else "4")).mkdir(exist_ok=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"b was trained further, and c started from an earlier checkpoint; remove {tmp_path}/c to train anew from the "
        "new one"]


@pytest.mark.parametrize(("flag", "text"), [
    ("--config.steps=3", "config.steps belongs to no run of "),
    ("--config.other.steps=3", "of pretrain, adapt, task"),
    ("--config.adapt.stepps=3", "run adapt of chain.py: config has no field 'stepps'"),
    ("--config.task.batch_size=x", "run task of chain.py: config.batch_size cannot be 'x'"),
    ("--config.task.model.width=33", "run task of chain.py: "),
    ("--config.task.data.train=nowhere.tsv", "run task: the train files 'nowhere.tsv' match no file"),
    ("--config.adapt.data.files=nowhere.txt", "run adapt: data.files 'nowhere.txt' matches no file"),
    ("--config.adapt.data.files=nowhere.txt", "or give others as --config.adapt.data.files=FILES"),
])
def test_all_configs_are_checked_before_the_first_run(home, tmp_path, flag, text):
    result = train(home, tmp_path / "runs", flag)
    assert result.code == 2 and text in result.err and not (tmp_path / "runs").exists()


def test_other_commands_refuse_a_chain(home, tmp_path):
    for words in (["fields"], ["inspect"], ["sweep", "--seeds=0-1", f"--workdir={tmp_path}"]):
        result = small.command(*words, f"--config={home}/chain.py")
        assert result.code == 2 and "defines a chain of runs, which lmrep train takes" in result.err


@pytest.mark.parametrize("chain", ["[]", "{}", '{"a b": "bert.py"}', '{"a": "bert.py:init={b}"}'])
def test_a_chain_is_refused_that_names_no_runs(tmp_path, chain):
    (tmp_path / "chain.py").write_text(f"def get_chain(argument=''):\n    return {chain}\n")
    result = small.command("train", f"--config={tmp_path}/chain.py", f"--workdir={tmp_path}/runs")
    assert result.code == 2 and f"{tmp_path}/chain.py" in result.err and result.err.count("\n") == 1


def test_a_chain_in_python_takes_files(home, tmp_path):
    with pytest.raises(lmrep.UserError, match="chain of runs, which read files"):
        lmrep.train(f"{home}/chain.py", tmp_path, data={"train": ["a text"]})


@pytest.mark.parametrize(("config", "names"), [
    ("chains/adapt.py:size=tiny", ["pretrain", "adapt", "task"]),
    ("chains/awd_lstm.py:size=tiny", ["first", "second"]),
    ("chains/ulmfit.py:size=tiny", ["general", "target", "classifier"]),
    ("chains/ulmfit.py:direction=both,recipe=released,tokenizer=fastai_v1", [
        "general", "target", "classifier", "general_backward", "target_backward", "classifier_backward"]),
])
def test_the_chains_of_the_package_are_valid(tmp_path, config, names):
    runs = chain.runs(config, {}, tmp_path)
    assert [run.name for run in runs] == names
    assert f"init={tmp_path}/{names[-2]}" in runs[-1].argument


def test_the_classifier_of_the_tiny_chain_is_small(tmp_path):
    run = chain.runs("chains/ulmfit.py:size=tiny", {}, tmp_path)[-1]
    assert dict(run.overrides) == {"epochs": 5.0}
    config = loading.load(page_files.find(run.file), run.argument)
    assert config.length == 512 and {config.model[name] for name in config.model if "dropout" in name} == {0.0}


def test_a_chain_may_begin_with_a_checkpoint(tmp_path):
    assert [*loading.load_chain(page_files.find("chains/adapt.py"), f"init={tmp_path}/bert")] == ["adapt", "task"]
    assert [*loading.load_chain(page_files.find("chains/ulmfit.py"), f"general={tmp_path}/lm")] == [
        "target", "classifier"]
