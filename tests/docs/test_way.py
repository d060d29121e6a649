"""docs/understand/config.md lists the functions that a config passes on its way to the first step."""

import re
import sys
from pathlib import Path

import ml_collections
import pytest

from lmrep.experiment.record import Experiment, ResolvedStage
from lmrep.models import MODELS
from lmrep.objectives import OBJECTIVES
from lmrep.training import loop
from lmrep.training.stages import Stage
from tests import small

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/understand/config.md").read_text()
CONFIGS = (ml_collections.ConfigDict, Experiment, ResolvedStage, Stage,
           *(row.config for row in (*MODELS.values(), *OBJECTIVES.values())))
OWN = ("lmrep/models/", "lmrep/objectives/")  # read their own records


class Reached(BaseException):
    """The run is about to compile its step."""


@pytest.fixture(scope="module")
def way(tmp_path_factory):
    """(file, function) of all functions of a run of BERT up to its step -> whether an argument is a config."""
    home, found = tmp_path_factory.mktemp("way"), {}
    texts = small.corpus(home / "texts")

    def note(frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{ROOT}/lmrep/") or "<" in code.co_qualname:
            return
        file = code.co_filename.removeprefix(f"{ROOT}/")
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        takes = any(isinstance(frame.f_locals.get(name), CONFIGS) for name in names)
        found[file, code.co_qualname] = takes or found.get((file, code.co_qualname), False)

    def reached(*_):
        raise Reached

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "compiled_train_step", reached)
        sys.setprofile(note)
        try:
            with pytest.raises(Reached):
                small.command("train", "--config=experiments/bert.py:size=tiny,data=files", "--config.steps=10",
                              f"--config.data.files={texts}/*.txt", f"--workdir={home}/run", f"--data_dir={home}/data")
        finally:
            sys.setprofile(None)
    return found


def listed(section):
    """The files and the functions of the package that a section names."""
    words = re.findall(r"`([^`]+)`", re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1])
    return [word for word in words if "/" in word], [*dict.fromkeys(word for word in words if "/" not in word)]


def test_the_way_is_the_listed_one(way):
    files, functions = listed("From the command to the step")
    called = {name for _, function in way for name in (function, function.rpartition(".")[2])}
    called |= {"facts", "compiled_train_step", "train_step"}  # of runs that start from a checkpoint; replaced here
    assert set(functions) <= called and set(files) <= {file for file, _ in way} | {"lmrep/training/step.py"}
    assert f"Read these {len(functions)} functions in this order; each of the {len(files)} files" in PAGE


def test_all_functions_that_take_a_config_are_listed(way):
    taking = [pair for pair, takes in way.items() if takes and not pair[0].startswith(OWN)]
    text = "".join(f"- `{file}`: {', '.join(f'`{name}`' for other, name in taking if other == file)}\n"
                   for file in dict.fromkeys(file for file, _ in taking))
    assert text in PAGE, text
    assert f"{len(taking)} functions in {text.count('- ')} files" in PAGE
    assert len(taking) <= 25 and text.count("- ") <= 12
