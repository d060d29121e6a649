"""Muon: momentum that is orthogonalized, matrix by matrix; Adam for the other parameters (Jordan et al., 2024)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, ParamSpec, Tree, map_paths
from lmrep.optimizers import adamw
from lmrep.optimizers.base import SKIP, OptimizerDef, each_layer
from lmrep.optimizers.parameters import is_stacked, matches

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the quintic polynomial, as released
EPS = 1e-7
DEFAULT = ("encoder/*kernel",)  # may match nothing: networks without kernels use the recipe too


@dataclass(frozen=True)
class Config(adamw.Config):
    """The settings of Muon; betas, eps and bias_correction are those of Adam for the other parameters."""

    matrices: tuple[str, ...] = setting(DEFAULT, "patterns of parameters, of which matrices have an orthogonalized "
                                        "update; the other parameters have Adam's")
    momentum: float = setting(0.95, "decay rate of the momentum", at_least=0, below=1)
    nesterov: bool = setting(True, "add the gradient to the momentum once more")
    newton_steps: int = setting(5, "iterations of Newton and Schulz", at_least=1)
    update_scale: str = setting("rms", "rms: updates have an RMS of about 0.2, as Adam's, so that they take its rate "
                                "and weight decay (Liu et al., 2025); shape: sqrt(max(1, outputs / inputs)), as "
                                "released, for rates such as 0.02", choices=("rms", "shape"))
    adam_rate: float = setting(1.0, "learning rate of the other parameters, as a fraction of the matrices'", above=0)


def orthogonalize(x: Array, steps: int) -> Array:
    """Moves the singular values of a matrix f32[m, n] to about 0.7 to 1.2, by Newton-Schulz iterations."""
    a, b, c = COEFFICIENTS
    y = (x if x.shape[0] <= x.shape[1] else x.T) / (jnp.linalg.norm(x) + EPS)
    for _ in range(steps):
        square = y @ y.T
        y = a * y + (b * square + c * square @ square) @ y
    return y if x.shape[0] <= x.shape[1] else y.T


def direction(config: Config, specs: Tree) -> optax.GradientTransformation:
    """Computes Muon's direction for the matrices, and Adam's for the others."""
    selected = matches(config.matrices, specs, "optimizer.matrices", optional=DEFAULT)

    def label(path: str, spec: ParamSpec) -> str:
        if selected[path].any() and not selected[path].all():
            raise UserError(f"optimizer.matrices matches {path} in some layers of a stack; expected patterns of all")
        return "matrix" if selected[path].all() and len(spec.shape) == 2 + is_stacked(spec) else "other"

    def update_of(x: Array) -> Array:
        rows, columns = x.shape
        scale = 0.2 * max(rows, columns) ** 0.5 if config.update_scale == "rms" else max(1, columns / rows) ** 0.5
        return scale * orthogonalize(x, config.newton_steps)

    # The scale of the sum of gradients, which the released code averages, does not matter.
    matrix = optax.chain(optax.trace(config.momentum, config.nesterov), each_layer(optax.stateless(
        lambda updates, params: jax.tree.map(update_of, updates)), specs))
    other = optax.chain(adamw.direction(config, specs), optax.scale(config.adam_rate))
    return optax.partition({"matrix": matrix, "other": other}, map_paths(label, specs))


DEFINITION = OptimizerDef(direction, config=Config, check=adamw.check, recipes={
    "muon": {"betas": (0.9, 0.95), "bias_correction": True, "eps": 1e-10, "decay_skip": SKIP, "clip": 0.0}})
