"""What the ablations have in common: the quickstart's network, the same number of tokens in a step whatever the format,
training one run after the other, and evaluation on test text by an objective that no run was trained on.

Imported from the same directory: `python experiments/ablations/NAME.py`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import jax
from ml_collections import ConfigDict

import lmrep
from lmrep.api import Outcome, default_data_dir
from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import flatten, unflatten
from lmrep.core.sharding import make_mesh, shardings
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import loader
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import StagePlan, default_config
from lmrep.models.base import Model
from lmrep.objectives.base import Objective
from lmrep.training.evaluation import Evaluator
from lmrep.training.state import specs_of

LENGTH, TOKENS = 64, 1792  # tokens of a sequence, and of a step
PAIRS = ("segment_pair", "sentence_pair")


def run_script(main: Callable[[], None]) -> None:
    """Runs a script. Errors that a user can fix are one line and an exit code, as with `lmrep`."""
    try:
        main()
    except (UserError, RunFault) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def arguments(about: str, steps: int = 1000) -> argparse.ArgumentParser:
    """The flags of every ablation; `steps` is the default of its --steps."""
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--files", default="", help="a glob of text files; empty: the documentation of Python")
    parser.add_argument("--data_dir", type=Path, default=default_data_dir())
    return parser


def small(objective: str, form: str, given: argparse.Namespace) -> ConfigDict:
    """The quickstart's model and optimizer with an objective and a format; `train` sets `batch_size`."""
    c = default_config("bert_tiny", objective, form, "adamw", "1x1x1")
    c.steps, c.length = given.steps, LENGTH
    c.model.update({"vocab": 0, "heads": 4, "norm": "pre", "init_stddev": 0.08, "dropout": 0.0,
                    "attention_dropout": 0.0})
    c.data.update({"corpus": "text_files" if given.files else "python_docs", "files": given.files,
                   "validation": 0.05, "test": 0.1})
    c.tokenizer.vocab_size = 2048
    c.format.duplicates = 10 if form in PAIRS else 1
    if "sentence_pair" in c.objective:
        c.objective.sentence_pair = form in PAIRS
    c.optimizer.update({"learning_rate": 4e-3, "betas": (0.9, 0.98), "eps": 1e-6})
    c.optimizer.schedule.warmup_fraction = 0.1
    c.checkpoint.every = c.evaluation.every = max(1, given.steps // 4)
    c.log.every, c.log.report = max(1, given.steps // 40), False
    return c


@dataclass(frozen=True)
class Trained:
    """A finished run: its workdir, its batch size, the statistics of its examples (`tokens_per_example`, `padding`),
    the outcome of training, and the seconds that this call took, few if the run was trained before."""

    place: Path
    rows: int
    facts: Mapping[str, float]
    outcome: Outcome
    seconds: float


def train(configs: Mapping[str, ConfigDict], given: argparse.Namespace) -> Iterator[Trained]:
    """Trains each config in a directory of its name, with TOKENS tokens in a step, one after the other. A finished run
    is not trained again, and one that was stopped is resumed."""
    for name, c in configs.items():
        c.name, place = name, given.workdir / name
        c.batch_size, facts = rows(c, given.data_dir)
        print(f"training {place}: {c.steps:,} steps of {c.batch_size} rows of {LENGTH}", flush=True)
        start = time.monotonic()
        outcome = lmrep.train(c, place, data_dir=given.data_dir)
        yield Trained(place, c.batch_size, facts, outcome, time.monotonic() - start)


def rows(c: ConfigDict, data_dir: Path) -> tuple[int, Mapping[str, float]]:
    """(rows a step, statistics of the training split's rows) for TOKENS tokens a step."""
    experiment = experiments.parse(c)
    prepared = build.prepared(experiment, data_dir, print)
    plan = build.plan(experiments.resolve_stages(experiment)[0], prepared.stores["train"], experiment.seed, data_dir)
    facts = plan.statistics()
    return round(TOKENS / facts["tokens_per_example"]), facts


def score(
    directory: Path, data_dir: Path, format_name: str, form: object,
    ask: Callable[[StagePlan, Model, Vocabulary], Objective],
) -> dict[str, float]:
    """The metrics of a run's network on the test split, in a format and by a question that need not be its own.

    Args:
      directory: its workdir.
      data_dir: where token stores live.
      format_name, form: the format and its record.
      ask: (the run's stage, network, vocabulary) -> the question, of parameters that the run has.
    """
    run = lmrep.load(directory)
    stage = replace(experiments.resolve_stages(run.experiment)[0], format_name=format_name, format=form)
    prepared = build.prepared(run.experiment, data_dir)
    vocabulary = prepared.tokenizer.vocabulary
    objective = ask(stage, build.model(run.experiment, vocabulary), vocabulary)
    held = flatten(run.params)
    params = unflatten({path: held[path] for path in flatten(specs_of(objective))})
    mesh = make_mesh(1)
    evaluator = Evaluator(objective, mesh, 32, run.experiment.evaluation.seed)
    plan = build.plan(stage, prepared.stores["test"], run.experiment.evaluation.seed, data_dir)
    batches = loader.evaluation_batches(plan, batch_size=32, indices=evaluator.indices)
    return evaluator(jax.device_put(params, shardings(specs_of(objective), mesh)), batches)


def page(trained: list[Trained], given: argparse.Namespace) -> Path:
    """Writes report.html about all of them."""
    from lmrep.analysis import report

    return report.write([each.place for each in trained], given.workdir / "report.html", data_dir=given.data_dir)
