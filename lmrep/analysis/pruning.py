"""Removes attention heads of a trained run for good: a new run with a smaller network (Michel et al., 2019)."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.analysis import head_importance, heads
from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import Tree, count
from lmrep.data import tokenizers
from lmrep.experiment import config as experiments
from lmrep.experiment.config import stage_at
from lmrep.inference.run import Run
from lmrep.models import pruned_heads, transformer
from lmrep.models.base import Inputs, Model, check_heads, with_gates
from lmrep.storage import workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.state import trainable

TOLERANCE = 1e-4  # relative; a larger difference from the gated network is not rounding


class Pruned(NamedTuple):
    """A run without some of its heads."""

    removed: Mapping[int, Sequence[int]]  # {layer: the heads that were removed now}, by their original numbers
    pruned_heads: str  # all heads that the network lacks, in the format of `model.pruned_heads`
    parameters: tuple[int, int]  # of the encoder, before and after
    difference: float  # the largest absolute difference from the outputs of the gated network, for random tokens


def least_important(
    run: Run, fraction: float, examples: int = 1000, normalize: bool = True, at_least: int = 1,
    data_dir: str | Path | None = None,
) -> dict[int, list[int]]:
    """Returns the floor(fraction * heads) least important heads of a run as {layer: heads}. Where layers share
    parameters, they are the same heads in all layers, selected by the sum of their importance over layers.

    Args:
      examples: number of training examples that importance is computed on; 0: all.
      normalize: divide the importance of each layer by its L2 norm.
      at_least: number of heads that every layer keeps.

    Raises:
      UserError: as for `head_importance.gated`, or no head can be removed.
    """
    gated = head_importance.gated(run, examples, split="", normalize=normalize, data_dir=data_dir)
    kept = run.model.heads.kept()
    importance = gated.importance(heads.gates_without((), kept, run.model.heads.number))
    if _network(run).share in ("attention", "all"):
        selected = heads.lowest(importance.sum(0, keepdims=True), kept[:1], int(len(kept[0]) * fraction), at_least)
        selected = [(layer, head) for layer in range(len(kept)) for _, head in selected]
    else:
        selected = heads.lowest(importance, kept, int(sum(map(len, kept)) * fraction), at_least)
    if not selected:
        raise UserError(f"{fraction:g} of the {sum(map(len, kept))} heads removes no head; give a larger --fraction")
    return {layer: sorted(head for its_layer, head in selected if its_layer == layer) for layer in range(len(kept))}


def prune(run: Run, target: Path, removed: Mapping[int, Sequence[int]]) -> Pruned:
    """Writes a workdir with the run's checkpoint without some heads. Every command except `train` accepts it, and a run
    may start from it (`init=`).

    Args:
      target: the workdir to write, new or empty.
      removed: {layer: heads}, by the numbers that heads had in the unpruned network.

    Raises:
      UserError: there is no such head, or it has been removed before; a layer would have no head; `target` is not
        empty.
      RunFault: the outputs differ from those of the gated network, or the disk is full; nothing is written.
    """
    network = _network(run)
    before = network.kept_heads
    if gone := [f"{layer}:{head}" for layer, numbers in removed.items() for head in numbers
                if layer < len(before) and head < network.heads and head not in before[layer]]:
        raise UserError(f"{run.directory} has no head {', '.join(gone)} any more (model.pruned_heads is "
                        f"{network.pruned_heads})")
    earlier = pruned_heads.parse(network.pruned_heads, network.layers, network.heads)
    text = pruned_heads.write({layer: {*earlier.get(layer, ()), *removed.get(layer, ())}
                               for layer in {*earlier, *removed}})
    pruned_heads.parse(text, network.layers, network.heads, "--heads")
    after = dataclasses.replace(network, pruned_heads=text)
    transformer.check(after)
    params = jax.device_get(trainable(run.params))
    layers = pruned_heads.remove(params["encoder"]["layers"], before, after.kept_heads, network.head_width,
                                 transformer.SHARING[network.share])
    params = params | {"encoder": params["encoder"] | {"layers": layers}}
    experiment = dataclasses.replace(run.experiment, model={**run.experiment.model, "pruned_heads": text})
    model = experiments.build_model(experiment, run.tokenizer.size)
    difference = _difference(run, model, params["encoder"], removed)
    record = workdir.read_config(run.directory)
    config = record["config"] | {"model": experiment.model, "objective": run.experiment.objective}
    with workdir.new_directory(target) as temporary:
        tokenizers.load(run.directory / "tokenizer").save(temporary / "tokenizer")
        with contextlib.closing(Checkpoints(temporary / "checkpoints")) as written:
            written.save(run.step, {"params": params}, {"pruned_heads": text})
        workdir.write_config(temporary, {
            **record, "config": config, "pruned_from": {"run": str(run.directory.absolute()), "step": run.step}})
    return Pruned(removed, text, (count(run.model.specs), count(model.specs)), difference)


def _network(run: Run) -> transformer.Config:
    """Returns the config of the run's network. Raises UserError if its heads cannot be gated."""
    check_heads(run.model, f"the network {run.model.name!r} of {run.directory}")
    return experiments.model_config(run.experiment.model, run.tokenizer.size)


def _difference(run: Run, model: Model, encoder: Tree, removed: Mapping[int, Sequence[int]]) -> float:
    """Returns the largest absolute difference between the outputs of `model` and of the run's network with the gates of
    the removed heads at 0. Raises RunFault where it is larger than rounding."""
    gates = heads.gates_without([(layer, head) for layer, numbers in removed.items() for head in numbers],
                                run.model.heads.kept(), run.model.heads.number)
    length = min(64, run.model.max_length or 64)
    tokens = np.random.default_rng(0).integers(0, run.tokenizer.size, (2, length))
    inputs = Inputs(tokens=jnp.asarray(tokens, jnp.int32))

    def output(network: Model, params: Tree) -> np.ndarray:
        with jax.default_matmul_precision("highest"):
            return np.asarray(jax.jit(network.encode)(params, inputs).hidden, np.float32)

    expected = output(with_gates(run.model, jnp.asarray(gates)), run.params["encoder"])
    difference = float(np.abs(output(model, encoder) - expected).max())
    if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise RunFault(f"the outputs without these heads differ by {difference:g} from those of the gated network; "
                       f"nothing is written. Check {run.directory} with lmrep evaluate")
    return difference


def describe(pruned: Pruned, run: Run, target: Path) -> str:
    """Describes which heads were removed, and the size of the network, in four lines."""
    removed = "; ".join(f"layer {layer}: {', '.join(map(str, numbers))}"
                        for layer, numbers in sorted(pruned.removed.items()) if numbers)
    number, total = sum(map(len, pruned.removed.values())), sum(map(len, run.model.heads.kept()))
    before, after = pruned.parameters
    stage = stage_at(run.experiment, run.step)
    return (f"removed {number} of {total} heads: {removed}\n"
            f"{before:,} -> {after:,} parameters of the encoder ({stage.objective_name})\n"
            f"largest difference from the gated network: {pruned.difference:.2g}\n"
            f"{target}: model.pruned_heads={pruned.pruned_heads}")


def parse(text: str, run: Run) -> dict[int, tuple[int, ...]]:
    """Parses the value of --heads. Raises UserError for heads that the network does not have."""
    network = _network(run)
    return pruned_heads.parse(text, network.layers, network.heads, "--heads")
