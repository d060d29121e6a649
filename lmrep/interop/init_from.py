"""Where a run's parameters start: those of another run or of a published checkpoint (`init=`), matched by path.

Tables over the vocabulary are matched by piece, so that a vocabulary may be extended, cut or put in another order: a
piece that the other tokenizer lacks starts as the mean of all its rows.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.core.params import Tree, flatten
from lmrep.data import tokenizers
from lmrep.experiment import config as experiments
from lmrep.experiment import page_files
from lmrep.inference.load import load as load_run
from lmrep.interop import conversion, published
from lmrep.models import transformer
from lmrep.storage import workdir


class SourceCheckpoint(NamedTuple):
    """What a run starts from.

    Attributes:
      name: of the place, for people.
      tokens: of its tokenizer, id i being piece i.
      params: float32 arrays by path, as `Objective.specs` names them.
      network: the fields of its network's config.
    """

    name: str
    tokens: Sequence[str]
    params: dict[str, np.ndarray]
    network: dict[str, Any]


def load(place: str | os.PathLike) -> SourceCheckpoint:
    """The parameters of the run in a workdir, at its newest checkpoint, or of a published directory.

    Raises:
      UserError: there is neither, or a value is not finite.
      RunFault: no checkpoint verifies.
    """
    if conversion.is_workdir(directory_of(place)):
        run = load_run(place)
        params = {path: np.asarray(value) for path, value in flatten(run.params).items()}
        network = dataclasses.asdict(experiments.model_config(run.experiment))
        origin = SourceCheckpoint(f"{place}, step {run.step:,}", run.tokenizer.tokens, params, network)
    else:
        checkpoint = published.read(Path(place))
        network = dataclasses.asdict(checkpoint.config)
        origin = SourceCheckpoint(str(place), tokenizers.load(place).tokens, dict(checkpoint.params), network)
    if broken := [path for path, value in origin.params.items() if not np.isfinite(value).all()]:
        raise UserError(f"{origin.name} has values that are not finite in {', '.join(broken[:4])}; it is broken, and "
                        "what starts from it would be: start from another checkpoint")
    return origin


def load_config(
    file: str | os.PathLike, argument: str = "", overrides: Sequence[tuple[str, str]] = ()
) -> ml_collections.ConfigDict:
    """The config of an experiment file, or of one that comes with the package, with the overrides.

    Where `get_config` sets `init`, the config takes network and tokenizer of that checkpoint, before the overrides.

    Raises:
      UserError: as `lmrep.config.loading.load` and `adopt_checkpoint`.
    """
    config = loading.load(page_files.find(file), argument)
    if config.get("init"):
        adopt_checkpoint(config, config.init)
    return loading.apply_overrides(config, overrides)


def adopt_checkpoint(config: ml_collections.ConfigDict, place: str | os.PathLike) -> None:
    """Sets `config.init`, and network and tokenizer to those of the run there, in place.

    Raises:
      UserError: there is no run.
    """
    if conversion.is_workdir(directory_of(place)):
        network, files = workdir.read_config(place)["config"]["model"], Path(place) / "tokenizer"
    else:
        network, files = dataclasses.asdict(published.config(Path(place))), Path(place)
    tokenizer = tokenizers.load(files)
    place, files = Path(place).absolute(), files.absolute()  # a run is resumed from any directory
    config.init = str(place)
    # Dropout is the new run's own: it is no part of what was learned.
    config.model = {**network, **{name: value for name, value in config.model.items() if name.endswith("dropout")}}
    config.tokenizer.update(name=tokenizer.name, vocab_file=str(files), vocab_size=max(tokenizer.size, 64),
                            lowercase=getattr(tokenizer, "lowercase", True))


def directory_of(place: str | os.PathLike) -> Path:
    """`place`, which must hold something to start from."""
    place = Path(place)
    if not (place / workdir.CONFIG).is_file():
        why = f"which has no {workdir.CONFIG}" if place.is_dir() else "which is no directory"
        raise UserError(f"init is {str(place)!r}, {why}; give the workdir of a run or a published directory")
    return place


class Match(NamedTuple):
    """How an origin's parameters fit a run's.

    Attributes:
      values: what the run takes, by path.
      extended: of the tables over the vocabulary, how many rows are of pieces that the origin lacks.
      missing: the run's parameters that the origin lacks; they start fresh.
      left: the origin's parameters that the run has no use for.
    """

    values: dict[str, np.ndarray]
    extended: dict[str, int]
    missing: list[str]
    left: list[str]


def match(specs: Tree, origin: SourceCheckpoint, pieces: Sequence[str]) -> Match:
    """Matches an origin's parameters with those of a run whose tokenizer has `pieces`.

    Raises:
      UserError: nothing matches, or a parameter has another shape.
    """
    wanted = flatten(specs)
    values, extended = {}, {}
    rows = None if list(pieces) == list(origin.tokens) else _rows(origin.tokens, pieces)
    for path, spec in wanted.items():
        if path not in origin.params:
            continue
        value = origin.params[path]
        axis = spec.axes.index("vocab") if "vocab" in spec.axes else None
        if axis is not None and (rows is not None or value.shape[axis] != spec.shape[axis]):
            value, extended[path] = _rearranged(value, spec.shape[axis], axis, rows, len(pieces))
        if value.shape != spec.shape:
            raise UserError(f"{path} is {spec.shape} in this run and {value.shape} in {origin.name}; give the model "
                            "the sizes of what it starts from (init= after the colon does)")
        values[path] = value
    if not values:
        some = ", ".join(sorted(origin.params)[:5])
        raise UserError(f"{origin.name} has none of this run's parameters; it has {some} ...; start from a model "
                        "of the same kind")
    return Match(values, {path: n for path, n in extended.items() if n},
               sorted(set(wanted) - set(origin.params)), sorted(set(origin.params) - set(wanted)))


def _rows(old: Sequence[str], new: Sequence[str]) -> np.ndarray:
    """For each new piece the row of the old table that it takes; -1 where there is none."""
    known = {piece: i for i, piece in enumerate(old)}
    return np.array([known.get(piece, -1) for piece in new])


def _rearranged(
    table: np.ndarray, size: int, axis: int, rows: np.ndarray | None, pieces: int
) -> tuple[np.ndarray, int]:
    """(a table with `size` entries along `axis`, of which the first are of the pieces; how many pieces are new).
    What no piece has, new or beyond the vocabulary, is the mean."""
    table = np.moveaxis(table, axis, 0)
    if rows is None:
        rows = np.arange(pieces)
    rows = np.where(rows < len(table), rows, -1)
    result = np.broadcast_to(table.mean(0, dtype=np.float64).astype(table.dtype), (size, *table.shape[1:])).copy()
    result[: len(rows)][rows >= 0] = table[rows[rows >= 0]]
    return np.moveaxis(result, 0, axis), int((rows < 0).sum())


def check_network(network: transformer.Config, origin: SourceCheckpoint) -> list[str]:
    """For people: in what the network differs from the origin's beyond its sizes.

    Raises:
      UserError: in something that gives every parameter another meaning.
    """
    differing = {name: (origin.network[name], value) for name, value in dataclasses.asdict(network).items()
                 if name in origin.network and origin.network[name] != value and name not in ("vocab", "max_length")}
    for name in ("heads", "norm", "positions", "position_offset", "embedding_norm"):
        if name in differing:
            former, present = differing[name]
            raise UserError(f"model.{name} is {present!r} in this run and {former!r} in {origin.name}, whose "
                            f"parameters would mean something else; set --config.model.{name}={former}")
    each = [f"{name} {former!r} -> {present!r}" for name, (former, present) in differing.items()]
    return [f"  the network differs: {', '.join(each)}"] if each else []


def describe(found: Match, origin: SourceCheckpoint) -> str:
    """For people: every parameter that is taken, missing or left."""
    def listing(head: str, paths: Sequence[str]) -> list[str]:
        return [f"  {head} ({len(paths)}): {', '.join(paths)}"] if paths else []

    rows = [f"{path} ({n:,} new rows, each the mean)" for path, n in found.extended.items()]
    return "\n".join([
        f"parameters start from {origin.name}",
        *listing("taken", sorted(found.values)), *listing("extended", rows),
        *listing("missing there, so fresh", found.missing), *listing("left there", found.left)])
