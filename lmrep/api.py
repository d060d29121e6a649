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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from lmrep.commands import embed, inspect, report
from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import write_json
from lmrep.core.host import check_address_space, check_backend, default_data_dir
from lmrep.core.params import count
from lmrep.core.paths import as_path
from lmrep.core.remote_cache import local_data_dir
from lmrep.core.sharding import describe_sizes, make_mesh
from lmrep.data import tokenizers
from lmrep.distributed.agreement import by_first_process
from lmrep.distributed.process_group import agreed, agreement
from lmrep.distributed.watchdog import Watch
from lmrep.experiment import budget, build, checks, epochs, frozen, inspection, shapes, small_networks
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, own_tokenizer
from lmrep.experiment.record import ALL_OBJECTIVES, UNKNOWN_STEPS, Data
from lmrep.inference import evaluate_task, feature_cache, prompts
from lmrep.inference.evaluate import evaluate
from lmrep.inference.load import load
from lmrep.inference.run import Run
from lmrep.interop import chain as chains
from lmrep.interop import checkpoint_config, init_from
from lmrep.interop.convert import convert
from lmrep.interop.save import save
from lmrep.layers import attention_backends
from lmrep.metrics import verdict
from lmrep.objectives.base import FrozenParts
from lmrep.planning import accelerators, energy, flops, run_cost
from lmrep.storage import jsonl, provenance, remote_workdir, trial, workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.tasks import TASKS
from lmrep.training import goodput
from lmrep.training import metrics_log as logs
from lmrep.training import state as states
from lmrep.training.config import TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.profiling import Profile
from lmrep.training.stages import Stage

__all__ = ["Outcome", "convert", "embed", "evaluate", "inspect", "load", "report", "save", "train"]

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
      splits: those that the run's data have.
      comparison: what the run is compared with, and the run as the last row.
      verdict: what it loses to, why, and what to change; "" if it loses to nothing.
    """

    steps: int
    before: dict[str, float]
    after: dict[str, float]
    prompts: tuple[str, ...] = ()
    example: str = ""
    before_step: int = 0
    best_step: int = 0
    splits: tuple[str, ...] = ()
    intervals: dict[str, list[float]] = {}  # noqa: RUF012
    comparison: tuple[verdict.Row, ...] = ()
    verdict: str = ""


def train(
    config: Mapping[str, Any] | str | os.PathLike, directory: str | os.PathLike, *,
    data: Mapping[str, Iterable] | None = None, data_dir: str | os.PathLike | None = None,
    command: Sequence[str] = (), profile: int = 0, **overrides: Any,
) -> Outcome:
    """Trains an experiment in `directory`, or resumes the run that is there.

    Args:
      config: an experiment's config, or its file with choices after a colon, as `--config` takes it:
        "experiments/bert.py:size=tiny", or "bert" for the one that comes with the package. Of a file that defines a
        chain of runs, all are trained, in `directory`/NAME, and the outcome is that of the last.
      directory: the workdir: config.json, tokenizer/, metrics.jsonl, timing.jsonl, cost.jsonl, tensorboard/,
        checkpoints/, report.html. It may be in a remote store (gs://bucket/runs/x).
      data: examples or texts in memory, in place of the config's files: {"train": records, "validation": records,
        "test": records}. For a task, records are dicts with the fields that `data.columns` names, a `datasets.Dataset`
        or a pandas data frame; for pretraining, {"train": texts}: strings, or dicts with `data.text_field`, a document
        each. They are written once, as JSON Lines, to `data_dir`/records.
      data_dir: the directory of token stores; by default $LMREP_DATA_DIR or ~/.cache/lmrep.
      command: the command line, for provenance.jsonl.
      profile: how many steps to trace, into `directory`/profile; 0: none.
      **overrides: fields of the config: steps=100, or **{"optimizer.learning_rate": 1e-3}; of a chain, with the name
        of the run, as **{"pretrain.steps": 100}.

    Raises:
      UserError: something does not fit; nothing was written to `directory`.
      RunFault: a fault stopped the run. Where one of several processes hangs or is gone, the others do not return: they
        name it and exit with code 3.
      Stopped: by SIGTERM or Ctrl-C, with everything saved.
    """
    check_address_space()
    check_backend()
    chain = chains.runs(config, overrides, directory) if isinstance(config, str | os.PathLike) else ()
    if chain and data is not None:
        raise UserError(f"{config} is a chain of runs, which read files; write the records to one, or train the runs "
                        "one by one")
    for run in chains.in_order(chain):
        outcome = train(f"{run.file}:{run.argument}", run.directory, data_dir=data_dir, command=command,
                        profile=profile, **dict(run.overrides))
    if chain:
        return outcome
    stopwatch = goodput.Stopwatch()
    experiment = experiments.parse(checkpoint_config.config_of(config, overrides, directory))
    sizes = experiments.check_mesh(experiment, jax.device_count())  # before anything is downloaded
    checks.check_processes(sizes, jax.device_count(), jax.process_count())

    # A local copy of a workdir in a remote store is trained.
    url, data_dir = remote.as_url(as_path(directory)), Path((data_dir and as_path(data_dir)) or default_data_dir())
    if data is not None:
        experiment = build.with_data(experiment, data, local_data_dir(data_dir))
    with remote_workdir.training(url) if url else contextlib.nullcontext() as there:
        directory, open_checkpoints = (there.directory, there.checkpoints) if url else (
            Path(as_path(directory)), Checkpoints)
        saving = experiment.checkpoint
        checkpoints = open_checkpoints(directory / "checkpoints", saving.keep, saving.keep_best,
                                       experiments.best_direction(experiment), saving.steps)
        if experiment.steps == UNKNOWN_STEPS:
            experiment = budget.with_record(experiment, directory, checkpoints.steps())
        with agreement():  # what can be refused is refused before the first write, by all processes or none
            prepared = _prepare(experiment, directory, data_dir, checkpoints.steps(), local=not url)
        checkpoints.always |= {*prepared.data.experiment.checkpoint.steps}  # of checkpoint.words
        checks.check_same_record(prepared.record)
        reached = _train(prepared, directory, checkpoints, sizes, command, profile, not url, stopwatch)
        return _finish(directory, url, data_dir, prepared.data, reached)


class _Prepared(NamedTuple):
    """What a run needs before its first write."""

    data: Data
    stages: list[Stage]
    parts: FrozenParts
    record: dict[str, Any]


def _prepare(experiment: Experiment, directory: Path, data_dir: Path, steps: Sequence[int], local: bool) -> _Prepared:
    """Checks, data and stages of a run that has checkpoints `steps`. Nothing is written that stays."""
    if experiment.init and not steps:
        init_from.directory_of(experiment.init)
    workdir.check_not_published(directory)
    checks.check_writable(directory)
    if (directory / workdir.SWEEP).exists():
        raise UserError(f"{directory} holds a sweep, not a run; give another --workdir")
    if steps:
        checks.check_resumable(directory, steps, experiment)
    if not steps and local and jax.process_count() == 1:
        trial.try_checkpoint(directory)
    given = experiment.tokenizer
    if steps and given.vocab_file and not os.path.exists(given.vocab_file):  # the run has its own copy
        experiment = dataclasses.replace(experiment, tokenizer=own_tokenizer(directory, experiment))
    # Its table can hold the vocabulary. One that may get smaller in training is checked afterwards.
    network = experiments.build_model(experiment, tokenizers.known_size(experiment.tokenizer))
    if jax.process_index() == 0:
        logs.writers(directory, experiment.log, {})  # of packages that are installed
    shapes.check_contracts(experiment)
    data = build.prepare_data(experiment, data_dir, log.info)
    experiment = dataclasses.replace(data.experiment, tokenizer=given)
    parts = frozen.load(experiment, data.tokenizer.tokens)
    data = feature_cache.cached(dataclasses.replace(data, experiment=experiment), parts, data_dir)
    stages = build.stages(data, data_dir, parts)
    if experiment.steps == UNKNOWN_STEPS:
        experiment = budget.with_steps(experiment, stages[0])
        data = dataclasses.replace(data, experiment=experiment)
        stages = build.stages(data, data_dir, parts)
    experiment = epochs.resolved(data, data_dir)
    data = dataclasses.replace(data, experiment=experiment)
    capabilities = ALL_OBJECTIVES[experiments.resolve_stages(experiment)[-1].objective_name].capabilities
    checks.check_samples(experiment.samples, capabilities, data.tokenizer, network.max_length)
    if not steps and (experiment.init or experiment.init_vectors):
        stages[0] = init_from.initialized(stages[0], experiment, data.tokenizer)
    if local and max(steps, default=0) < experiment.steps:
        trial.check_space(directory, max(trial.checkpoint_size(states.saved(
            states.shapes(stage.objective, stage.optimizer, stage.batch_size))) for stage in stages))
    return _Prepared(data, stages, parts, checks.run_record(data, stages, frozen.fingerprints(parts)))


def _train(
    prepared: _Prepared, directory: Path, checkpoints: Checkpoints, sizes: tuple[int, ...], command: Sequence[str],
    profile: int, local: bool, stopwatch: goodput.Stopwatch,
) -> int:
    """Locks the workdir, writes the record, and trains from the newest checkpoint. Returns the step that is reached."""
    data, stages, parts, record = prepared
    experiment = data.experiment
    with Watch(experiment.faults.patience) as watch, contextlib.ExitStack() as stack:
        if local:
            by_first_process(lambda: bool(stack.enter_context(workdir.lock(directory))))
        stack.callback(checkpoints.close)
        checkpoints.clean()
        steps = checkpoints.steps()
        agreed(lambda: steps and checks.check_resumable(directory, steps, experiment, record["data"]))
        resumed = checkpoints.newest()
        by_first_process(lambda: _write_record(directory, record, data, command))
        if local:
            agreed(lambda: checks.check_shared(directory))
        metrics = progress = None
        if jax.process_index() == 0:
            metrics = logs.MetricsLog(directory, logs.writers(directory, experiment.log, record["config"], resumed))
            metrics.resume(resumed)
            stack.callback(metrics.close)
            progress = stack.enter_context(logs.Progress(experiment.steps))
            if profile:
                progress = stack.enter_context(Profile(progress, directory / "profile", profile, resumed or 0))
        _announce(data, stages, parts, sizes, resumed)
        mesh = make_mesh(*sizes)
        peak = accelerators.known(mesh.devices.flat[0].device_kind).flops
        if peak and all(stage.batch_struct for stage in stages):
            stages = [dataclasses.replace(stage, flops=flops.of_train_step(
                stage.objective, stage.optimizer, stage.batch_struct, stage.microbatches)) for stage in stages]
        meter = stack.enter_context(energy.Meter(energy.find(mesh.local_devices)))
        costs = run_cost.CostLog(directory, experiment.cost, mesh.devices.flatten().tolist(), meter)
        stack.callback(costs.close)
        trainer = Trainer(
            stages, mesh, experiment.seed, RunOutputs(checkpoints, metrics, progress, watch, costs, stopwatch),
            TrainerConfig(experiment.checkpoint, experiment.evaluation, experiment.log, experiment.faults),
            peak and peak * mesh.size)
        return int(trainer.run(resumed).step)


def _finish(directory: Path, url: str | None, data_dir: Path, data: Data, reached: int) -> Outcome:
    """Writes the predictions for labelled examples, results.json and the report of a run that has ended at step
    `reached`."""
    if jax.process_index() == 0:
        if spent := run_cost.read(directory):
            log.info("cost: %s", run_cost.sentence(spent))
        if shares := goodput.read(directory):
            log.info("goodput: %s", shares)
    experiment, run = data.experiment, None
    if data.records:
        run = agreed(lambda: load(url or directory))  # all processes read a checkpoint together
        run = dataclasses.replace(run, directory=directory)  # where it writes
    outcome = _outcome(directory, experiment)._replace(steps=reached)
    fields = by_first_process(lambda: _results(directory, run, data, outcome))
    outcome = outcome._replace(**fields | {"comparison": tuple(map(verdict.Row._make, fields["comparison"]))})
    if experiment.log.report:
        _report(directory, data_dir)
    if data.records:
        return outcome._replace(splits=tuple(data.splits))
    capabilities = ALL_OBJECTIVES[experiments.resolve_stages(experiment)[-1].objective_name].capabilities
    texts = [] if jax.process_index() else prompts.sample_prompts(
        experiment.samples, capabilities, data.corpus, experiments.build_model(experiment).max_length)
    return outcome._replace(
        prompts=tuple(texts), splits=tuple(name for name, store in data.splits.items() if store.tokens))


def _results(directory: Path, run: Run | None, data: Data, outcome: Outcome) -> dict[str, Any]:
    """Compares a run, and writes results.json. Of a task, also writes the predictions of the best checkpoint, `run`,
    for the splits that were not trained on.

    Args:
      outcome: has what was validated in training.

    Returns:
      Fields of `Outcome`, as JSON.
    """
    experiment, fields, results, intervals, bag = data.experiment, {}, {}, {}, None
    for split, examples in data.splits.items() if run else ():
        if split != "train":
            results[split] = evaluate_task.predict_records(run, data.records[split], split, examples)
            evaluate_task.write(run, split, data.records[split], results[split])
            intervals[split] = evaluate_task.intervals(results[split])
    if "validation" in results:
        read = {*TASKS[experiment.objective["name"]].reads.inputs}
        texts = [record.fields["text"] for record in data.records["validation"]
                 if record.fields.keys() & read == {"text"} and not record.source]
        fields = {"after": results["validation"].metrics, "best_step": run.step,
                  "example": next((text for text in texts if len(text) <= SHORT), ""),
                  "intervals": intervals["validation"]}
        bag = evaluate_task.compare_with_bag_of_words(directory, data)
        outcome = outcome._replace(**fields)
    metrics = experiment.metrics(experiments.resolve_stages(experiment)[-1].objective_name)
    rows = verdict.comparison(
        metrics, outcome.before, outcome.after, before_step=outcome.before_step,
        step=outcome.best_step or outcome.steps, intervals=outcome.intervals, bag=bag,
        unigram_loss=None if run else data.tokenizer.vocabulary.unigram_loss)
    evaluate_task.write_results(directory, rows, run, results, intervals)
    text = verdict.sentence(metrics, rows, outcome.intervals)
    if text:
        train, validation = logs.lines(directory, "train"), logs.validations(directory)
        compared = build.comparable(validation, experiments.resolve_stages(experiment))
        train = [line for line in train if not compared or line["step"] > compared[0]["step"]]
        text += "\n" + verdict.advice(
            train, compared, labelled=bool(run), pretrained=bool(experiment.init or experiment.frozen),
            **({"examples": len(data.records["train"])} if run else {"tokens": data.splits["train"].tokens}))
    return {**fields, "comparison": rows, "verdict": text}


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
    """Reads the last validation of a run, and the first that compares with it, from metrics.jsonl."""
    validations = by_first_process(lambda: logs.validations(directory))
    compared = build.comparable(validations, experiments.resolve_stages(experiment))
    before, after = ({k: v for k, v in line.items() if k not in ("step", "split")}
                     for line in (compared[0], compared[-1])) if compared else ({}, {})
    step = compared[0]["step"] if compared else 0
    return Outcome(experiment.steps, before if step < experiment.steps else {}, after, before_step=step)


def _write_record(directory: Path, record: dict, data: Data, command: Sequence[str]) -> None:
    """Writes config.json, the statistics of labelled examples, the tokenizer and a line of provenance.jsonl."""
    workdir.write_config(directory, record)
    evaluate_task.keep_bag_of_words(directory)
    if data.records:
        write_json(directory / inspection.STATISTICS, inspection.label_statistics(data))
    try:
        data.tokenizer.save(directory / "tokenizer")
    except OSError as error:
        raise RunFault(f"{directory} cannot be written: {error.strerror}; fix that and resume") from error
    jsonl.append(directory / provenance.FILE, provenance.record(command or sys.argv, record["config"]))


def _announce(
    data: Data, stages: Sequence[Stage], parts: FrozenParts, sizes: tuple[int, ...], resumed: int | None
) -> None:
    """Logs what is trained, on what, and from which step."""
    experiment = data.experiment
    for line in frozen.describe(parts):
        log.info("%s", line)
    if data.corpus:
        log.info("sentences: %s", data.corpus.sentences)
    if resumed is None and jax.process_index() == 0:
        rows = experiments.model_config(experiment.model).vocab
        for warning in filter(None, [build.unused_rows(rows, data.tokenizer.size),
                                     build.imbalanced_splits(data) if data.corpus else ""]):
            log.warning("%s", warning)
    names = " then ".join(dict.fromkeys(stage.objective.name for stage in stages))
    log.info("%s: %s parameters, objective %s, mesh %s on %s", experiment.name,
             f"{count(stages[0].objective.specs):,}", names, describe_sizes(sizes), jax.devices()[0].device_kind)
    if (experiment.budget or data.records) and (chosen := small_networks.describe(experiment)):
        log.info("%s", chosen)
    plans = experiments.resolve_stages(experiment)
    choices = {plan.name: experiments.attention_choice(experiment, plan, jax.default_backend()) for plan in plans}
    if all(choices.values()):
        log.info("attention: %s", attention_backends.describe(choices))
    if resumed == experiment.steps:
        log.info("all %s steps are done", f"{resumed:,}")
    elif resumed is not None:
        log.info("resuming from step %s of %s", f"{resumed:,}", f"{experiment.steps:,}")
