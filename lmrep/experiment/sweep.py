"""The specification of a sweep: every setting, a set of overrides of one experiment's config, with every seed.

    sweeps/rates/
      sweep.json                            the spec
      learning_rate=1e-4,batch_size=16/     a setting
        seed=0/                             the workdir of a run
        seed=0.log, seed=0.json             the run's output, and how it ended
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from lmrep.config import json_files
from lmrep.config.record import flatten_config
from lmrep.core.errors import UserError
from lmrep.core.files import write_json
from lmrep.experiment import checks, page_files
from lmrep.experiment import config as experiments
from lmrep.experiment.record import TaskExperiment
from lmrep.experiment.settings import MAX_RUNS, Fields
from lmrep.experiment.task_data import best_metric
from lmrep.metrics import COMMON, Metric
from lmrep.storage import provenance
from lmrep.storage.workdir import SWEEP

FOLDER = re.compile(r"[^\0/.][^\0/]{0,250}")  # a direct child of the sweep's directory, not hidden
NAME_LENGTH = 120  # of a setting's directory
# Fields that may differ between two commands of one sweep: those that may change when a run is resumed, except the
# length of the runs and the metric that compares them.
FREE_FIELDS = ("name", "seed", "checkpoint.every", "checkpoint.keep", "checkpoint.keep_best",
               *(field for field in TaskExperiment.resumable
                 if field not in ("steps", "epochs", "checkpoint.*")))

Load = Callable[[str, Sequence[tuple[str, str]]], Any]  # (argument, overrides) -> the experiment's config


class Setting(NamedTuple):
    """A setting of a sweep."""

    name: str  # of its directory
    fields: Fields  # (path, value as text). A path that begins with a colon is a choice of the config file's argument.
    # {path: value} where its config differs from the sweep's base config; None for a path that it lacks
    changes: Mapping[str, Any]


class Run(NamedTuple):
    """A run of a sweep."""

    setting: Setting
    seed: int

    @property
    def name(self) -> str:
        """The run's workdir, relative to the sweep's."""
        return f"{self.setting.name}/seed={self.seed}"


class SweepSpec(NamedTuple):
    """The specification of a sweep.

    Attributes:
      file, argument: the config file, and its argument after the colon.
      overrides: fields that all settings share.
      data_dir: the directory of token stores; "" for the default.
      settings, seeds: every setting is trained with every seed.
      base: the config without a setting.
      metric: the validation metric that settings are compared by (`checkpoint.best`).
      metrics: the metrics of the runs, by name.
    """

    file: str
    argument: str
    overrides: Fields
    data_dir: str
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    base: Mapping[str, Any]
    metric: str
    metrics: Mapping[str, Metric]

    @property
    def loads_best(self) -> bool:
        """Whether a run's best checkpoint is used, instead of its newest."""
        return self.base.get("checkpoint", {}).get("load") == "best"

    def runs(self) -> list[Run]:
        """Returns all runs: every setting with the first seed, then every setting with the second, and so on."""
        return [Run(setting, seed) for seed in self.seeds for setting in self.settings]

    def flags(self, run: Run) -> list[str]:
        """Returns the flags of `lmrep train` for a run, except --workdir."""
        argument, overrides = _merged(self.argument, self.overrides, run.setting.fields)
        return [f"--config={self.file}{':' * bool(argument)}{argument}",
                *(f"--config.{path}={text}" for path, text in overrides), f"--config.seed={run.seed}",
                *([f"--data_dir={self.data_dir}"] if self.data_dir else [])]


# The specification


def make(load: Load, file: str, argument: str, overrides: Fields, settings: Sequence[Fields],
         seeds: Sequence[int], data_dir: str = "") -> SweepSpec:
    """Makes a spec, and checks all its configs.

    Args:
      load: (argument, overrides) -> the experiment's config.
      file, argument, overrides: as in `SweepSpec`.
      settings: the fields of each setting; `((),)` for the experiment as it is.
      seeds: () for the seed of the config.
      data_dir: the directory of token stores.

    Raises:
      UserError: a config is invalid, two settings are equal, or no metric compares them.
    """
    if len(settings) * max(1, len(seeds)) > MAX_RUNS:
        raise UserError(f"this sweep has {len(settings) * max(1, len(seeds)):,} runs; expected at most {MAX_RUNS:,}")
    for path, _ in overrides:
        if path == "seed" and seeds:
            raise UserError("--config.seed and --seeds are given; leave one of them out")
    base = load(argument, overrides).to_dict()
    flat_base = _flat(base)
    checked, seen, decided, metric, metrics = [], {}, {}, "", {}
    for fields, name in zip(settings, directory_names(settings), strict=True):
        try:
            config = load(*_merged(argument, overrides, fields))
            experiment = experiments.parse(config)
            experiments.best_direction(experiment)
        except UserError as error:
            raise UserError(f"setting {name}: {error}" if fields else str(error)) from None
        flat = _flat(config.to_dict())
        changes = {path: flat.get(path) for path in {**flat_base, **flat}
                   if (path in flat_base) != (path in flat) or flat_base.get(path) != flat.get(path)}
        key = json.dumps(changes, sort_keys=True)
        if key in seen:
            raise UserError(f"settings {seen[key]} and {name} are the same config; give it once")
        seen[key] = name
        best, data = experiment.checkpoint.best, repr((experiment.data, experiment.sources, experiment.objective))
        if not best:  # the training data of a task decides; settings with the same data read it once
            best = decided[data] = decided.get(data) or best_metric(experiment)
        if metric and best != metric:
            raise UserError(f"settings are compared by checkpoint.best, which is {metric!r} in one and {best!r} in "
                            "another; give all the same")
        metric = best
        for stage in experiments.resolve_stages(experiment):
            metrics |= COMMON | experiment.metrics(stage.objective_name)
        checked.append(Setting(name, fields, changes))
    return SweepSpec(file, argument, tuple(overrides), data_dir, tuple(checked), tuple(seeds) or (flat_base["seed"],),
                json.loads(json.dumps(base)), metric, metrics)


def extend(old: SweepSpec, new: SweepSpec) -> SweepSpec:
    """Returns `new`, which may only add settings or seeds to `old`; the settings of `old` keep their names.

    Raises:
      UserError: they differ in anything else.
    """
    try:
        before = checks.completed(experiments.parse(old.base))
    except UserError as error:
        raise UserError(f"{SWEEP} has a base config that this version of lmrep does not read: {error}") from None
    after = checks.completed(experiments.parse(new.base))
    lines = provenance.differences(before, after, FREE_FIELDS)
    if old.metric != new.metric:
        lines.append(f"checkpoint.best: {old.metric!r} -> {new.metric!r}")
    # Another version's config may have had other fields, which the same setting changes.
    changes = {setting.fields: setting.changes for setting in new.settings}
    settings = [setting._replace(changes=changes.get(setting.fields, setting.changes)) for setting in old.settings]
    before, after = ({_key(setting): setting for setting in members} for members in (settings, new.settings))
    lines += [f"setting {setting.name} is missing" for key, setting in before.items() if key not in after]
    if missing := [str(seed) for seed in old.seeds if seed not in new.seeds]:
        lines.append(f"seeds are missing: {', '.join(missing)}")
    if lines:
        raise UserError("the workdir holds another sweep:\n  " + "\n  ".join(lines) + "\nA sweep can be given more "
                        "settings and seeds besides its own; for other changes give another --workdir")
    taken = {setting.name for setting in old.settings}
    settings = [before.get(key) or setting._replace(
        name=f"{setting.name}-{_digest(setting.fields)}" if setting.name in taken else setting.name)
        for key, setting in after.items()]
    return new._replace(settings=tuple(settings))


def write(directory: Path, spec: SweepSpec) -> None:
    """Writes sweep.json to a directory. Raises RunFault if that fails."""
    settings = [setting._asdict() for setting in spec.settings]
    metrics = {name: metric._asdict() for name, metric in spec.metrics.items()}
    write_json(directory / SWEEP, spec._asdict() | {"settings": settings, "metrics": metrics})


def read(directory: Path) -> SweepSpec | None:
    """Reads the spec in a directory; None if there is none. Raises UserError if it is damaged."""
    return json_files.read(Annotated[SweepSpec, _mismatch], directory / SWEEP, "restore it, or give another --workdir")


def _mismatch(spec: SweepSpec) -> str:
    """Describes what a spec that was read should have had, or returns "" if it could come from `make`."""
    folders = [setting.name for setting in spec.settings]
    if not folders or len(set(folders)) < len(folders) or not all(map(FOLDER.fullmatch, folders)):
        return "settings with different names of folders"
    if len(set(spec.seeds)) < len(spec.seeds) or not all(0 <= seed < 2**32 for seed in spec.seeds):
        return "different seeds from 0 to 2**32 - 1"
    if not isinstance(spec.base.get("checkpoint"), dict | None):
        return "a config as base"
    try:
        for metric in spec.metrics.values():
            format(0.5, metric.format)
    except ValueError:
        return "metrics with formats of numbers"
    return "" if spec.metric in spec.metrics else "the metric among the metrics"


def command(directory: Path, spec: SweepSpec) -> str:
    """Returns the command line that continues a sweep."""
    config = f"--config={spec.file}{':' * bool(spec.argument)}{spec.argument}"
    words = [f"--workdir={directory}", *([] if page_files.is_page(spec.file) else [config])]
    return f"lmrep sweep {shlex.join(words)}"


def _merged(argument: str, overrides: Fields, fields: Fields) -> tuple[str, Fields]:
    """Returns (argument, overrides) of an experiment with the fields of a setting."""
    choices = [f"{path[1:]}={text}" for path, text in fields if path.startswith(":")]
    added = tuple((path, text) for path, text in fields if not path.startswith(":"))
    shared = {path for path, _ in overrides}
    for path, _ in added:
        if path in shared:
            raise UserError(f"{path} is given by --config.{path} too; leave it out there")
    return ",".join(filter(None, [argument, *choices])), (*overrides, *added)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {path: value} of a config, with values as JSON restores them."""
    return json.loads(json.dumps(flatten_config(config, list_items=True)))


def _key(setting: Setting) -> str:
    return json.dumps({path: value for path, value in setting.changes.items() if path != "seed"}, sort_keys=True)


# Names of settings


def directory_names(settings: Sequence[Fields]) -> list[str]:
    """Returns a different directory name for each setting: "FIELD=VALUE,FIELD=VALUE", where a field is the shortest end
    of its path that no other field has."""
    paths = list(dict.fromkeys(path for fields in settings for path, _ in fields))
    short = {}
    for path in paths:
        parts = path.removeprefix(":").split(".")
        ends = [".".join(parts[-depth:]) for depth in range(1, len(parts) + 1)]
        others = [other.removeprefix(":") for other in paths if other != path]
        short[path] = next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)),
                           ends[-1])
    folders, taken = [], set()
    for fields in settings:
        text = ",".join(f"{_clean(short[path])}={_clean(value)}" for path, value in fields) or "base"
        name = text if len(text) <= NAME_LENGTH else f"{text[:NAME_LENGTH]}-{_digest(fields)}"
        folders.append(f"{name}-{_digest(fields)}" if name in taken else name)
        taken.add(folders[-1])
    return folders


def _clean(text: str) -> str:
    """Converts `text` for a file name: drops brackets and quotes at its ends, replaces other characters by dashes."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", re.sub(r"^[(\[{'\"]+|[)\]}'\"]+$", "", text))


def _digest(fields: Fields) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:8]
