"""The config files, what they declare, and combinations of their choices."""

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from lmrep import optimizers
from lmrep.config import loading
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.tokenizers import SPECIALS
from lmrep.experiment import build
from lmrep.experiment import config as experiments

ROOT = Path(__file__).parents[2]
FILES = {str(file.relative_to(ROOT / "experiments")): file for file in sorted((ROOT / "experiments").rglob("*.py"))
         if "def get_config(" in file.read_text()}
TASKS = [page for page in FILES if page.startswith("tasks/") or page in ("taglm.py", "transformer_mt.py", "cove.py")]
TRACED = set()  # (optimizer, network) whose update rule `build_shapes` has traced
MESHES = ("data", "fsdp", "1x1x2", "2x2x2")


def declared(page: str) -> dict[str, tuple]:
    """The choices of a page and their values, the default first; not those of a page that it loads."""
    found, outer = {}, []
    with pytest.MonkeyPatch.context() as patch:
        def record(argument, **defaults):
            outer.append(loading._DECLARED.get())
            for name, default in defaults.items() if outer[-1] is outer[0] else ():
                if isinstance(default, tuple):
                    found[name] = tuple(dict.fromkeys((default[0], *default[1])))
                elif name == "mesh":
                    found[name] = MESHES
            return real(argument, **defaults)

        real = loading.parse_argument
        patch.setattr(loading, "parse_argument", record)
        loading.load(FILES[page])
    return found


@functools.cache
def get_config(file: Path) -> Callable:
    """The function of a page, which runs once for each argument and gives a dict."""
    function = loading._function(file, "get_config", "")
    return functools.cache(lambda argument: function(argument).to_dict())


def load(page: str, argument: str) -> experiments.Experiment:
    """The experiment of a page and its argument. Raises UserError where they do not fit."""
    config = get_config(FILES[page])(argument)
    if page in TASKS:
        config = {**config, "data": {**config["data"], "train": "train.tsv"}}
    experiment = experiments.parse(config)
    experiments.check_mesh(experiment, 8)
    return experiment


def vocabulary(size: int) -> Vocabulary:
    """A vocabulary of `size` tokens."""
    specials = {role: i for i, role in enumerate(SPECIALS)}
    sentinels = tuple(range(size - 1, size - 21, -1))
    return Vocabulary(size, specials | {"eos": 3}, np.ones(size, bool), np.ones(size, np.int64), sentinels=sentinels)


def build_shapes(experiment: experiments.Experiment) -> list:
    """Builds network, objectives and optimizers by shapes alone, and returns the objective of each stage."""
    assert experiment.evaluation.every % max(1, experiment.checkpoint.every) == 0  # so that there is a best checkpoint
    tokens = vocabulary(experiment.tokenizer.vocab_size)
    network, objectives = experiments.build_model(experiment, tokens.size), []
    stages = experiments.resolve_stages(experiment)
    for i, stage in enumerate(stages):
        objectives.append(build.objective(stage, network, tokens))
        specs, steps = objectives[-1].specs, experiments.schedule_steps(stages, i)
        with pytest.MonkeyPatch.context() as patch:
            if (rule := (stage.optimizer.name, experiment.model["name"])) in TRACED:
                patch.setattr(optimizers, "check_rule", lambda *_: None)
            optimizers.build(stage.optimizer, specs, steps)
        TRACED.add(rule)
    return objectives


def covering(
    choices: Mapping[str, Sequence], fits: Callable[[Mapping], bool], beginnings: Sequence[Mapping] = ({},),
    among: Collection[str] = (),
) -> tuple[list[dict], set[frozenset]]:
    """Combinations of choices in which every pair of values occurs that can occur.

    Args:
      choices: {name: values}.
      fits: whether a combination is accepted.
      beginnings: combinations to try a pair with, where it does not fit alone.
      among: pairs of two of these names need not occur.

    Returns:
      The combinations, each with some of the names, and the pairs {(name, value), (name, value)} that fit with none of
      the beginnings.
    """
    def pairs(row):
        return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}

    rows, left, refused = [], {}, set()
    for (first, values), (second, others) in itertools.combinations(choices.items(), 2):
        if not {first, second} <= {*among}:
            left |= {frozenset(pair): None for pair in itertools.product(
                ((first, value) for value in values), ((second, value) for value in others))}
    while left:
        pair = next(iter(left))
        row = next((row for beginning in beginnings if fits(row := {**beginning, **dict(pair)})), None)
        if row is None:
            refused.add(pair)
            del left[pair]
            continue
        for name in [name for name in choices if name not in row]:
            gains = {value: len(pairs({**row, name: value}) & left.keys()) for value in choices[name]
                     if not pairs({**row, name: value}) & refused}
            for value in sorted(filter(gains.get, gains), key=gains.get, reverse=True):
                if fits({**row, name: value}):
                    row[name] = value
                    break
        rows.append(row)
        for covered in pairs(row) & left.keys():
            del left[covered]
    return rows, refused
