"""The Python interface: what the commands do, as functions.

    import lmrep
    outcome = lmrep.train("experiments/quickstart.py", "runs/mine", steps=100)
    lmrep.evaluate("runs/mine", split="test")
    run = lmrep.load("runs/mine")
    run.encode(["Return the value of the key."], layers="all")[0].hidden    # f32[l + 1, t, d]
    run.fill_masks(["The [MASK] of a list is an integer."])

Wrong input raises `UserError`; what stops a run raises `RunFault`.
"""

import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from lmrep.config import loading
from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.core.host import check_address_space, check_backend, default_data_dir
from lmrep.core.params import flatten
from lmrep.core.paths import as_path
from lmrep.core.sharding import describe_sizes, make_mesh
from lmrep.data import word_vectors
from lmrep.data.store.prepare import Prepared
from lmrep.distributed.agreement import by_first_process
from lmrep.distributed.process_group import agreed
from lmrep.distributed.watchdog import Watch
from lmrep.experiment import attention, build, checks, frozen, shapes, sweep, task_inspection
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, own_tokenizer
from lmrep.experiment.task_data import STATISTICS, PreparedTask
from lmrep.inference import feature_cache, labelled, prompts, task_evaluation
from lmrep.inference.evaluate import evaluate, other_corpus
from lmrep.inference.load import load
from lmrep.inference.run import Run
from lmrep.interop import checkpoint_config, init_from
from lmrep.objectives.base import FrozenParts
from lmrep.planning import energy, flops, run_cost
from lmrep.storage import provenance, remote_workdir, trial, workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.tasks import TASKS
from lmrep.training import metrics_log as logs
from lmrep.training import state as states
from lmrep.training.config import TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.profiling import Profile
from lmrep.training.stages import Stage

__all__ = ["Outcome", "evaluate", "load", "other_corpus", "train"]

SHORT = 100  # characters of a text that fits in a command

log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """The result of a training run.

    Attributes:
      steps: at which it ended.
      before: the first validation metrics that compare with `after`: those before the first step or, after a stage of
        another objective, format or length, of step `before_step`; empty if there are none.
      after: validation metrics at the end; empty without a validation split.
      prompts: texts to try the model with: the config's samples that it accepts, or else sentences of its text.
      example: the same of a task: a short text of the validation split; "" where examples have more than one.
      before_step: of `before`.
      best_step: of the checkpoint that `after` is of, for a task; 0: the last.
      intervals: bootstrap 95 % intervals of `after`, for a task.
      unigram_loss: of predicting tokens by their frequency in the training split, in nats.
      splits: those that the run's data have.
    """

    steps: int
    before: dict[str, float]
    after: dict[str, float]
    prompts: tuple[str, ...] = ()
    example: str = ""
    before_step: int = 0
    unigram_loss: float | None = None
    best_step: int = 0
    splits: tuple[str, ...] = ()
    intervals: dict[str, list[float]] = {}  # noqa: RUF012


def train(
    config: Mapping[str, Any] | str | os.PathLike, directory: str | os.PathLike, *,
    data_dir: str | os.PathLike | None = None, command: Sequence[str] = (), profile: int = 0, **overrides: Any,
) -> Outcome:
    """Trains an experiment in `directory`, or resumes the run that is there.

    Args:
      config: an experiment's config, or its file with choices after a colon, as `--config` takes it:
        "experiments/bert.py:size=tiny", or "bert" for the one that comes with the package.
      directory: the workdir: config.json, tokenizer/, metrics.jsonl, timing.jsonl, cost.jsonl, tensorboard/,
        checkpoints/, report.html. It may be in a remote store (gs://bucket/runs/x).
      data_dir: the directory of token stores; by default $LMREP_DATA_DIR or ~/.cache/lmrep.
      command: the command line, for provenance.jsonl.
      profile: how many steps to trace, into `directory`/profile; 0: none.
      **overrides: fields of the config: steps=100, or **{"optimizer.learning_rate": 1e-3}.

    Raises:
      UserError: something does not fit; nothing was written to `directory`.
      RunFault: a fault stopped the run. Where one of several processes hangs or is gone, the others do not return: they
        name it and exit with code 3.
      Stopped: by SIGTERM or Ctrl-C, with everything saved.
    """
    check_address_space()
    check_backend()
    config, directory, data_dir = _load_config(config, overrides), as_path(directory), data_dir and as_path(data_dir)
    if url := remote.as_url(directory):
        experiments.check_mesh(experiments.parse(config), jax.device_count())  # before anything is downloaded
        with remote_workdir.training(url) as run:
            return _train(config, run.directory, run.checkpoints, url, data_dir, command, profile)
    return _train(config, Path(directory), Checkpoints, None, data_dir, command, profile)


def _train(
    config: Mapping[str, Any], directory: Path, checkpoints_of: Callable[..., Checkpoints], url: str | None,
    data_dir: str | os.PathLike | None, command: Sequence[str], profile: int,
) -> Outcome:
    """`train` in a local directory, with checkpoints that `checkpoints_of` makes; of the run at `url`, if it is in a
    remote store."""
    data_dir = Path(data_dir or default_data_dir())
    experiment = experiments.parse(config)
    sizes = experiments.check_mesh(experiment, jax.device_count())
    checks.check_processes(sizes, jax.device_count(), jax.process_count())
    keep, best = experiment.checkpoint.keep, experiment.checkpoint.keep_best
    checkpoints = checkpoints_of(directory / "checkpoints", keep, best, checks.best_direction(experiment))
    steps = checkpoints.steps()
    fresh = not steps
    if experiment.init and fresh:  # either all processes read it, or none
        agreed(lambda: init_from.directory_of(experiment.init))
    if fresh and not url and jax.process_count() == 1:
        checks.check_writable(directory)
        trial.try_checkpoint(directory)
    writers, prepared, stages, parts = agreed(lambda: _ready(experiment, directory, data_dir, steps))
    if isinstance(prepared, PreparedTask):
        experiment = prepared.experiment
    if not url and max(steps, default=0) < experiment.steps:
        agreed(lambda: trial.check_space(directory, max(map(_checkpoint_size, stages))))
    record = checks.run_record(experiment, prepared, stages, frozen.fingerprints(parts))
    checks.check_same_record(record)

    with Watch(experiment.faults.patience) as watch, contextlib.ExitStack() as stack:
        if not url:
            by_first_process(lambda: bool(stack.enter_context(workdir.lock(directory))))
        stack.callback(checkpoints.close)
        checkpoints.clean()
        agreed(lambda: checks.check_resumable(directory, checkpoints.steps(), record, experiment))
        resumed = checkpoints.newest()
        by_first_process(lambda: _write_record(directory, record, prepared, command))
        if not url:
            agreed(lambda: checks.check_shared(directory))
        metrics = progress = None
        if jax.process_index() == 0:
            metrics = logs.MetricsLog(directory, [make(resumed) for make in writers])
            metrics.resume(resumed)
            stack.callback(metrics.close)
            progress = stack.enter_context(logs.Progress(experiment.steps))
            if profile:
                progress = stack.enter_context(Profile(progress, directory / "profile", profile, resumed or 0))
        _announce(experiment, stages, sizes, resumed)
        mesh = make_mesh(*sizes)
        if (peak := flops.peak(mesh.devices.flat[0])) and all(stage.batch_struct for stage in stages):
            stages = [dataclasses.replace(stage, flops=flops.of_train_step(
                stage.objective, stage.optimizer, stage.batch_struct, stage.microbatches)) for stage in stages]
        config = TrainerConfig(experiment.checkpoint, experiment.evaluation, experiment.log, experiment.faults)
        meter = stack.enter_context(energy.Meter(energy.find(mesh.local_devices)))
        costs = run_cost.CostLog(directory, experiment.cost, mesh.devices.flatten().tolist(), meter)
        stack.callback(costs.close)
        outputs = RunOutputs(checkpoints, metrics, progress, watch, costs)
        trainer = Trainer(stages, mesh, experiment.seed, outputs, config, peak and peak * mesh.size)
        reached = int(trainer.run(resumed).step)
    if jax.process_index() == 0 and (spent := run_cost.read(directory)):
        log.info("cost: %s", run_cost.sentence(spent))
    return _finish(directory, url, data_dir, experiment, prepared)._replace(steps=reached)


def _finish(
    directory: Path, url: str | None, data_dir: Path, experiment: Experiment, prepared: Prepared | PreparedTask
) -> Outcome:
    """Writes the predictions of a task and the report of a run that has ended."""
    best = None
    if isinstance(prepared, PreparedTask):
        run = agreed(lambda: load(url or directory))  # all processes read a checkpoint together
        run = dataclasses.replace(run, directory=directory)  # where it writes
        best = by_first_process(lambda: _predict_splits(run, prepared))
    if experiment.log.report:
        _report(directory, data_dir)
    if isinstance(prepared, PreparedTask):
        outcome = _outcome(directory, experiment)._replace(splits=tuple(prepared.stores))
        return outcome._replace(**best) if best else outcome
    texts = prompts.sample_prompts(experiment.samples, experiments.capabilities(experiment), prepared,
                                   experiments.build_model(experiment).max_length)
    return _outcome(directory, experiment)._replace(
        prompts=tuple(texts), splits=tuple(name for name, store in prepared.stores.items() if store.tokens),
        unigram_loss=prepared.tokenizer.vocabulary.unigram_loss)


def _load_config(config: Mapping[str, Any] | str | os.PathLike, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config that `train` was given, with the overrides; a config that is given stays as it is."""
    pairs = [(path, value if isinstance(value, str) else repr(value)) for path, value in overrides.items()]
    if isinstance(config, str | os.PathLike):
        file, _, argument = as_path(config).partition(":")
        return checkpoint_config.load_config(file, argument, pairs)
    if pairs:
        config = loading.apply_overrides(ml_collections.ConfigDict(config).copy_and_resolve_references(), pairs)
    return config


def _ready(
    experiment: Experiment, directory: Path, data_dir: Path, steps: Sequence[int]
) -> tuple[list, Prepared, list[Stage], FrozenParts]:
    """(makers of log writers, data, stages, frozen parts) of a run with checkpoints of `steps`, with nothing written to
    its directory."""
    checks.check_same_config(directory, steps, experiment)
    fresh, vocabulary = not steps, experiment.tokenizer.vocab_file
    if not fresh and vocabulary and not os.path.exists(vocabulary):  # the run has its own copy
        experiment = dataclasses.replace(experiment, tokenizer=own_tokenizer(directory, experiment))
    checks.check_vocabulary(experiment)
    checks.check_writable(directory)  # before preparing the data, which may take an hour
    if (directory / sweep.FILE).exists():
        raise UserError(f"{directory} holds a sweep, not a run; give another --workdir")
    frozen.check_present(experiment)
    writers = _writers(experiment, directory) if jax.process_index() == 0 else []
    if not isinstance(experiment, experiments.TaskExperiment):  # tasks are checked once their labels are known
        shapes.check_contracts(experiment, frozen.load(experiment, values=False))
    prepared = build.prepared(experiment, data_dir, log.info)
    parts = frozen.load(experiment, prepared.tokenizer.tokens)
    for line in frozen.describe(parts):
        log.info("%s", line)
    if isinstance(prepared, PreparedTask):
        prepared = feature_cache.cached(prepared, parts, data_dir)
    stages = build.stages(experiment, prepared, data_dir, parts)
    network = experiments.model_config(experiment)
    warnings = [build.unused_rows(network, prepared.tokenizer.size)]
    if isinstance(prepared, Prepared):
        log.info("sentences: %s", prepared.sentences)
        warnings.append(build.imbalanced_splits(experiment, prepared))
    for warning in warnings:
        if warning and fresh and jax.process_index() == 0:
            log.warning("%s", warning)
    checks.check_samples(experiment, prepared.tokenizer)
    if experiment.init and fresh:
        stages[0] = _initialized(stages[0], experiment, network, prepared)
    if experiment.init_vectors and fresh:
        stages[0] = _with_vectors(stages[0], experiment.init_vectors, prepared.tokenizer.tokens)
    return writers, prepared, stages, parts


def _checkpoint_size(stage: Stage) -> int:
    """Bytes of a checkpoint of a stage."""
    return trial.checkpoint_size(states.saved(states.shapes(stage.objective, stage.optimizer, stage.batch_size)))


def _initialized(stage: Stage, experiment: Experiment, network: Any, prepared: Prepared) -> Stage:
    """The first stage with the parameters of the checkpoint at `experiment.init`."""
    source = init_from.load(experiment.init)
    if isinstance(prepared, PreparedTask):
        objective = prepared.experiment.objective
        source = init_from.for_task(source, TASKS[objective["name"]].initial, objective,
                                    prepared.experiment.head == "new")
    match = init_from.match(stage.objective.specs, source, prepared.tokenizer.tokens, experiment.init_mapping)
    log.info("%s", "\n".join([init_from.describe(match, source), *init_from.check_network(network, source)]))
    values = match.values
    if isinstance(prepared, PreparedTask) and (layers := prepared.experiment.new_layers):
        values = init_from.fresh_layers(values, stage.objective.specs, layers, prepared.experiment.seed)
        log.info("  the top %d layer(s) start from random values", layers)
    return dataclasses.replace(stage, init_values={**stage.init_values, **values})


def _with_vectors(stage: Stage, files: Mapping[str, str], tokens: Sequence[str]) -> Stage:
    """The first stage with tables that start from word vectors."""
    specs, values = flatten(stage.objective.specs), {}
    for path, file in files.items():
        if path not in specs or len(specs[path].shape) != 2:
            tables = [name for name, spec in specs.items() if spec.axes[:1] == ("vocab",)]
            raise UserError(f"config.init_vectors has {path!r}, which is no table of tokens; this run has "
                            f"{', '.join(tables)}")
        values[path], known = word_vectors.table(file, tokens, specs[path].shape)
        log.info("%s starts from %s, which has %s of %s tokens; the others start from 0", path, file, f"{known:,}",
                 f"{len(tokens):,}")
    return dataclasses.replace(stage, init_values={**stage.init_values, **values})


def _predict_splits(run: Run, prepared: PreparedTask) -> dict[str, Any] | None:
    """Writes the predictions of the best checkpoint for the splits that were not trained on, and their metrics.

    Returns:
      Fields of `Outcome`: what it reaches on the validation split; None without one.
    """
    results = {}
    for split, examples in prepared.stores.items():
        if split != "train":
            results[split] = labelled.predict_records(run, prepared.records[split], split, examples)
            task_evaluation.write(run, split, prepared.records[split], results[split])
    intervals = task_evaluation.write_results(run, results)
    if "validation" not in results:
        return None
    return {"after": results["validation"].metrics, "best_step": run.step, "intervals": intervals["validation"],
            "example": _example(prepared)}


def _example(prepared: PreparedTask) -> str:
    """A validation example that is a single short text; "" without one."""
    task = TASKS[prepared.experiment.objective["name"]]
    read = {*task.reads.inputs}
    texts = (record.fields["text"] for record in prepared.records["validation"]
             if record.fields.keys() & read == {"text"} and not record.source)
    return next((text for text in texts if len(text) <= SHORT), "")


def _report(directory: Path, data_dir: Path) -> None:
    """Writes report.html. The run is done and saved, so that an error here is a warning."""
    from lmrep.analysis import report

    if jax.process_count() > 1:
        log.info("for a report: lmrep report %s", directory)
        return
    try:
        log.info("report: %s", report.write([directory], data_dir=data_dir))
    except Exception as error:
        log.warning("the report could not be written: %s; lmrep report %s tries again", error, directory)


def _outcome(directory: Path, experiment: Experiment) -> Outcome:
    """The last validation of the run in `directory`, and the first that compares with it, from its metrics.jsonl."""
    validations = by_first_process(lambda: logs.validations(directory))
    compared = build.comparable(validations, experiments.resolve_stages(experiment))
    before, after = ({k: v for k, v in line.items() if k not in ("step", "split")}
                     for line in (compared[0], compared[-1])) if compared else ({}, {})
    step = compared[0]["step"] if compared else 0
    return Outcome(experiment.steps, before if step < experiment.steps else {}, after, before_step=step)


def _writers(experiment: Experiment, directory: Path) -> list:
    """Functions of the step that is resumed from that make the writers beside metrics.jsonl."""
    makers = []
    if experiment.log.tensorboard:
        makers.append(lambda resumed: logs.tensorboard(directory, resumed))
    if experiment.log.wandb:
        writer = logs.weights_and_biases(directory, experiment.log.wandb, dataclasses.asdict(experiment))
        makers.append(lambda resumed: writer)
    return makers


def _write_record(directory: Path, record: dict, prepared: Prepared, command: Sequence[str]) -> None:
    """Writes config.json, the statistics of labelled examples, the tokenizer and a line of provenance.jsonl."""
    workdir.write_config(directory, record)
    if isinstance(prepared, PreparedTask):
        workdir.write_json(directory / STATISTICS, task_inspection.statistics(prepared))
        (directory / task_evaluation.RESULTS).unlink(missing_ok=True)  # it is written at the end
    try:
        prepared.tokenizer.save(directory / "tokenizer")
    except OSError as error:
        raise RunFault(f"{directory} cannot be written: {error.strerror}; fix that and resume") from error
    provenance.append(directory, provenance.record(command or sys.argv, record["config"]))


def _announce(experiment: Experiment, stages: Sequence[Stage], sizes: tuple[int, ...], resumed: int | None) -> None:
    """Logs what is trained, on what, and from which step."""
    parameters = sum(int(np.prod(s.shape)) for s in jax.tree.leaves(
        stages[0].objective.specs, is_leaf=lambda x: hasattr(x, "axes")))
    names = " then ".join(dict.fromkeys(stage.objective.name for stage in stages))
    log.info("%s: %s parameters, objective %s, mesh %s on %s", experiment.name, f"{parameters:,}", names,
             describe_sizes(sizes), jax.devices()[0].device_kind)
    plans = experiments.resolve_stages(experiment)
    choices = {plan.name: experiments.attention_choice(experiment, plan, jax.default_backend()) for plan in plans}
    if all(choices.values()):
        log.info("%s", attention.describe(choices))
    if resumed == experiment.steps:
        log.info("all %s steps are done", f"{resumed:,}")
    elif resumed is not None:
        log.info("resuming from step %s of %s", f"{resumed:,}", f"{experiment.steps:,}")
