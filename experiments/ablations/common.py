"""Shared by the ablations: the quickstart's network, the same number of tokens per step for every format, training of
several runs one after the other, and their evaluation on the test split with a common objective.

The scripts import this from their own directory: `python experiments/ablations/NAME.py`.
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
from lmrep.experiment.config import ResolvedStage, default_config
from lmrep.models.base import Model
from lmrep.objectives.base import Objective
from lmrep.training.evaluation import Evaluator
from lmrep.training.state import specs_of

LENGTH, TOKENS = 64, 1792  # tokens per sequence and per step
PAIRS = ("segment_pair", "sentence_pair")


def run_script(main: Callable[[], None]) -> None:
    """Runs a script. Errors that a user can fix are one line and an exit code, as with `lmrep`."""
    try:
        main()
    except (UserError, RunFault) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def arguments(description: str, steps: int = 1000) -> argparse.ArgumentParser:
    """The flags that all ablations have; `steps` is the default of --steps."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--files", default="", help="a glob of text files; default: the documentation of Python")
    parser.add_argument("--data_dir", type=Path, default=default_data_dir())
    return parser


def small(objective: str, format_name: str, flags: argparse.Namespace) -> ConfigDict:
    """The quickstart's model and optimizer with an objective and a format; `train` sets `batch_size`."""
    c = default_config("bert_tiny", objective, format_name, "adamw", "1x1x1")
    c.steps, c.length = flags.steps, LENGTH
    c.model.update({"vocab": 0, "heads": 4, "norm": "pre", "init_stddev": 0.08, "dropout": 0.0,
                    "attention_dropout": 0.0})
    c.data.update({"corpus": "text_files" if flags.files else "python_docs", "files": flags.files,
                   "validation": 0.05, "test": 0.1})
    c.tokenizer.vocab_size = 2048
    c.format.duplicates = 10 if format_name in PAIRS else 1
    if "sentence_pair" in c.objective:
        c.objective.sentence_pair = format_name in PAIRS
    c.optimizer.update({"learning_rate": 4e-3, "betas": (0.9, 0.98), "eps": 1e-6})
    c.optimizer.schedule.warmup_fraction = 0.1
    c.checkpoint.every = c.evaluation.every = max(1, flags.steps // 4)
    c.log.every, c.log.report = max(1, flags.steps // 40), False
    return c


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
      workdir: its directory.
      batch_size: examples per step.
      statistics: of its training examples, such as `tokens_per_example` and `padding`.
      outcome: what `lmrep.train` returned.
      seconds: the duration of this call, short if the run was trained before.
    """

    workdir: Path
    batch_size: int
    statistics: Mapping[str, float]
    outcome: Outcome
    seconds: float


def train(configs: Mapping[str, ConfigDict], flags: argparse.Namespace) -> Iterator[Trained]:
    """Trains each config in a directory of its name with about TOKENS tokens per step, one after the other. Finished
    runs are not trained again; interrupted runs are resumed."""
    for name, c in configs.items():
        c.name, workdir = name, flags.workdir / name
        c.batch_size, statistics = batch_size(c, flags.data_dir)
        print(f"training {workdir}: {c.steps:,} steps of {c.batch_size} sequences of {LENGTH} tokens", flush=True)
        start = time.monotonic()
        outcome = lmrep.train(c, workdir, data_dir=flags.data_dir)
        yield Trained(workdir, c.batch_size, statistics, outcome, time.monotonic() - start)


def batch_size(c: ConfigDict, data_dir: Path) -> tuple[int, Mapping[str, float]]:
    """(examples per step for about TOKENS tokens, statistics of the training examples)."""
    experiment = experiments.parse(c)
    prepared = build.prepare_data(experiment, data_dir, print).corpus
    plan = build.plan(experiments.resolve_stages(experiment)[0], prepared.stores["train"], experiment.seed, data_dir)
    statistics = plan.statistics()
    return round(TOKENS / statistics["tokens_per_example"]), statistics


def evaluate(
    workdir: Path, data_dir: Path, format_name: str, format_config: object,
    make_objective: Callable[[ResolvedStage, Model, Vocabulary], Objective],
) -> dict[str, float]:
    """The metrics of a run's network on the test split, with another format and objective.

    Args:
      workdir: the run.
      data_dir: where the token stores are.
      format_name, format_config: the format and its config.
      make_objective: (stage, network, vocabulary) of the run -> an objective with parameters that the run has.
    """
    run = lmrep.load(workdir)
    stage = replace(experiments.resolve_stages(run.experiment)[0], format_name=format_name, format=format_config)
    prepared = build.prepare_data(run.experiment, data_dir).corpus
    vocabulary = prepared.tokenizer.vocabulary
    objective = make_objective(stage, experiments.build_model(run.experiment, vocabulary.size), vocabulary)
    trained = flatten(run.params)
    params = unflatten({path: trained[path] for path in flatten(specs_of(objective))})
    mesh = make_mesh(1)
    evaluator = Evaluator(objective, mesh, 32, run.experiment.evaluation.seed)
    plan = build.plan(stage, prepared.stores["test"], run.experiment.evaluation.seed, data_dir)
    batches = loader.evaluation_batches(plan, batch_size=32, indices=evaluator.indices)
    return evaluator(jax.device_put(params, shardings(specs_of(objective), mesh)), batches)


def write_report(runs: list[Trained], flags: argparse.Namespace) -> Path:
    """Writes one report.html about all runs."""
    from lmrep.analysis import report

    return report.write([run.workdir for run in runs], flags.workdir / "report.html", data_dir=flags.data_dir)
