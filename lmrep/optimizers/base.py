"""The parts that optimizers share: their settings, the row of the table, and additions to optax.

Four things go beyond optax. A stack of layers is one array here, but a rule that reads a tensor's norm, RMS or rank
acts on each layer separately (`each_layer`), so that a stacked update equals the unstacked one. Patterns on parameter
paths select what weight decay skips and how fast each parameter learns. A parameter whose multiplier is 0 does not
change, and nor do its moments (`multiplied`). And a running average of the parameters can be kept (`averaging`).
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from lmrep.config.record import setting
from lmrep.core.components import row
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree, abstract, flatten, map_paths
from lmrep.core.sharding import replicated, shardings
from lmrep.optimizers.parameters import is_stacked
from lmrep.optimizers.schedules import DecayConfig, Rule, ScheduleConfig

SKIP = ("*bias", "*norm/*")  # may match nothing, unlike other patterns: networks without norms use these recipes too


@dataclass(frozen=True)
class OptimizerConfig:
    """The settings that all optimizers have; the file of an optimizer adds its own in a subclass.

    Patterns are globs on parameter paths, in which `*` matches any text, including slashes. A number or a range after
    `layers` addresses layers of a stack: `encoder/layers/11/*`, `*/layers/0-5/attention/*`. A pattern that matches no
    parameter is refused, unless it is in `SKIP`.
    """

    name: str = setting(MISSING, "update rule, a row of OPTIMIZERS")
    learning_rate: float = setting(1e-4, "peak learning rate", above=0)
    weight_decay: float = setting(0.01, "decoupled weight decay, multiplied by the learning rate", at_least=0)
    decay_skip: tuple[str, ...] = setting((), "patterns of parameters without weight decay and lamb's trust ratio")
    gradient_scale: float = setting(1.0, "factor of the gradient, before it is clipped", above=0)
    clip: float = setting(1.0, "largest global norm of the gradient; 0: no limit", at_least=0)
    multipliers: dict[str, float] = setting({}, "pattern -> factor of the learning rate; 0 freezes the parameters: "
                                            "neither they nor their moments change; the factors of all matching "
                                            "patterns are multiplied",
                                            at_least=0)
    layer_decay: float = setting(1.0, "factor of the learning rate for each level below the head: of n layers, layer i "
                                 "learns at rate * layer_decay^(n + 1 - i), i from 0, and the embeddings at rate * "
                                 "layer_decay^(n + 2), as in ELECTRA's code", above=0, at_most=1)
    layer_decay_of: str = setting("rate", "what layer_decay multiplies: the learning rate; groups: the learning rate "
                                  "with one level less, as in ULMFiT: of layer i by layer_decay^(n - i), of embeddings "
                                  "by layer_decay^(n + 1); or, as in XLNet's code, the clipped gradient, of layer i "
                                  "alone by layer_decay^(n - 1 - i), which Adam's normalization mostly cancels",
                                  choices=("rate", "groups", "gradient"))
    ema: float = setting(0.0, "decay of a running average of the parameters, kept beside them; 0: none", at_least=0,
                         below=1)
    schedule: ScheduleConfig = setting(DecayConfig("linear"), "learning rate over the steps")


@row
class OptimizerDef(NamedTuple):
    """A row of OPTIMIZERS."""

    # (config, specs) -> an optax transformation of the clipped gradient of all parameters into their updates at rate 1,
    # before weight decay. The arrays of its state are in trees with the structure of `specs`, so that they are laid out
    # and frozen with their parameters; its other state is scalars.
    direction: Callable[[Any, Tree], optax.GradientTransformation]
    # {the choice `optimizer=NAME` of config files: the settings that differ from the defaults}. Learning rate and
    # warm-up go with a batch size, and are the config file's.
    recipes: Mapping[str, Mapping[str, Any]] = {}
    config: type[OptimizerConfig] = OptimizerConfig  # its settings; a subclass adds those that not all have
    # (config), which raises UserError if settings do not fit each other
    check: Callable[[Any], None] = lambda config: None
    # (config, specs, {path: where it has weight decay}) -> a transformation of the update after weight decay
    rescale: Callable[[Any, Tree, dict[str, np.ndarray]], optax.GradientTransformation] | None = None
    # (config, the whole transformation) -> the same with an average of the parameters (`Averaged`), where `ema` is 0.
    # It hands the further keyword arguments of `update` on
    average: Callable[[Any, optax.GradientTransformation], optax.GradientTransformation] | None = None
    # (config) -> how validations change the state of `average`, as `ScheduleDef.rule`; None: they do not
    rule: Callable[[Any], Rule | None] = lambda config: None
    tiny_rate: float = 2e-3  # the learning rate of `size=tiny`


def check_rule(rule: optax.GradientTransformation, specs: Tree, what: str) -> None:
    """Checks by shapes that the updates of a rule fit the parameters, and that its state keeps its shapes and belongs
    to parameters. Raises UserError, which names the optimizer as `what`."""
    params = abstract(specs)
    before = jax.eval_shape(rule.init, params)
    updates, after = jax.eval_shape(rule.update, params, before, params)
    for name, new, old in (("updates are", updates, params), ("update makes the state", after, before)):
        shapes = [[(jax.tree_util.keystr(keys), f"{leaf.dtype}{list(leaf.shape)}") for keys, leaf in
                   jax.tree_util.tree_leaves_with_path(tree)] for tree in (new, old)]
        if shapes[0] != shapes[1]:
            actual, expected = (next((" ".join(leaf).strip() for leaf in leaves if leaf not in others), "nothing")
                                for leaves, others in (shapes, shapes[::-1]))
            raise UserError(f"{what}: its {name} {actual}; expected {expected}; correct this component")
    paths = flatten(specs)
    for keys, leaf in jax.tree_util.tree_leaves_with_path(before):
        if leaf.ndim and not parameter_path(keys, paths):
            raise UserError(f"{what}: its state has {leaf.dtype}{list(leaf.shape)} at {jax.tree_util.keystr(keys)}, "
                            "which belongs to no parameter; keep arrays in trees with the structure of the parameters")


class Averaged(NamedTuple):
    """The state of an optimizer that keeps averages."""

    count: Array  # i32[], updates so far
    average: Tree  # of the parameters after each update
    rule: Any  # the state of the optimizer itself


def averaged(params: Tree, state: Any) -> Tree:
    """Returns the averages in an optimizer's state, or `params` where it has none yet."""
    return params | state.average if isinstance(state, Averaged) and int(state.count) else params


def state_shardings(optimizer: optax.GradientTransformation, specs: Tree, mesh: Mesh) -> Tree:
    """Returns the layout of the optimizer's state: a tree of NamedSharding with the structure of `optimizer.init`.

    Arrays of a parameter's shape, such as its moments, have the parameter's layout; counters and factored moments,
    which are small, are replicated.
    """
    layouts, parameters = flatten(shardings(specs, mesh)), flatten(specs)

    def layout(keys: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        path = parameter_path(keys, parameters)
        same_shape = path and leaf.shape == parameters[path].shape
        return layouts[path] if same_shape else replicated(mesh)

    return jax.tree_util.tree_map_with_path(layout, jax.eval_shape(optimizer.init, abstract(specs)))


def weight_decay(rate: float, decayed: dict[str, np.ndarray]) -> optax.GradientTransformation:
    """Adds `rate` times the parameter, for parameters with weight decay."""
    if not rate:
        return optax.identity()
    return optax.stateless(lambda updates, params: map_paths(
        lambda path, update, param: where(decayed[path], update + rate * param, update), updates, params))


def learning_rate(rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiplies updates by the negative learning rate, and by the `rate_factor` f32[] of the step, if it has one."""
    scaled_by_rate = optax.scale_by_learning_rate(rate)

    def update(
        updates: Tree, state: Any, params: Tree | None = None, *, rate_factor: Array | None = None, **extra: Any
    ) -> tuple[Tree, Any]:
        updates, state = scaled_by_rate.update(updates, state, params)
        return updates if rate_factor is None else jax.tree.map(lambda x: x * rate_factor, updates), state

    return optax.GradientTransformationExtraArgs(scaled_by_rate.init, update)


def clip(limit: float, scale: float = 1.0) -> optax.GradientTransformation:
    """Multiplies the gradient by `scale`, and scales it down to a global norm of at most `limit`.

    One factor for all parameters: optax's version selects element by element, and made Adam four times slower on CPU.
    """
    def clipped(grads: Tree, params: Tree) -> Tree:
        factor = limit / jnp.maximum(optax.tree.norm(grads), limit / scale)
        return jax.tree.map(lambda g: g * factor, grads)

    return optax.stateless(clipped)


def scaled(factors: dict[str, np.ndarray]) -> optax.GradientTransformation:
    """Multiplies updates by `factors`."""
    return optax.stateless(lambda updates, params: map_paths(lambda path, x: x * along(factors[path], x), updates))


def each_layer(rule: optax.GradientTransformation, specs: Tree) -> optax.GradientTransformation:
    """Applies `rule` to every tensor, and every layer of a stack, separately. Its state is a tree of rule states. In
    `optax.partition`, it gets some of the parameters of `specs`."""
    stacked = {path: is_stacked(spec) for path, spec in flatten(specs).items()}

    def by_layer(function: Callable) -> Callable:
        return lambda path, *leaves: (jax.vmap(function) if stacked[path] else function)(*leaves)

    def update(updates: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        pairs = map_paths(by_layer(rule.update), updates, state, params)
        return tuple(map_paths(lambda path, leaf, pair, i=i: pair[i], updates, pairs) for i in (0, 1))

    return optax.GradientTransformation(lambda params: map_paths(by_layer(rule.init), params), update)


def multiplied(rule: optax.GradientTransformation, factors: dict[str, np.ndarray]) -> optax.GradientTransformation:
    """Multiplies the updates of `rule` by `factors`; with factor 0, parameter and moments stay bit-identical.

    Parameters with factor 0 do not count in the gradient's global norm. If all of a tensor has factor 0, XLA does not
    compute its gradient.
    """
    if all((factor == 1).all() for factor in factors.values()):
        return rule
    trained = {path: factor != 0 for path, factor in factors.items()}
    rule = optax.with_extra_args_support(rule)

    def keep(keys: tuple, old: Array, new: Array) -> Array:
        return where(trained.get(parameter_path(keys, trained), np.True_), new, old)

    def scale(path: str, update: Array) -> Array:
        # Adding -0.0 keeps the bits of every number; adding 0.0 would turn -0.0 into 0.0.
        return where(trained[path], update * along(factors[path], update), jnp.full_like(update, -0.0))

    def update(grads: Tree, state: Tree, params: Tree, **extra: Any) -> tuple[Tree, Tree]:
        grads = map_paths(lambda path, g: where(trained[path], g, jnp.zeros_like(g)), grads)
        updates, new_state = rule.update(grads, state, params, **extra)
        return map_paths(scale, updates), jax.tree_util.tree_map_with_path(keep, state, new_state)

    return optax.GradientTransformationExtraArgs(rule.init, update)


def averaging(rule: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """Adds to `rule` an exponentially decaying average of the parameters after each update, not of the initial ones.

    It is debiased at every step: update t has weight (1 - decay) / (1 - decay^t), so that after the first update the
    average equals the parameters, and the stored average can be used directly.
    """
    def init(params: Tree) -> Averaged:
        return Averaged(jnp.int32(0), jax.tree.map(jnp.array, params), rule.init(params))

    rule = optax.with_extra_args_support(rule)

    def update(grads: Tree, state: Averaged, params: Tree, **extra: Any) -> tuple[Tree, Averaged]:
        updates, inner = rule.update(grads, state.rule, params, **extra)
        count = state.count + 1
        weight = (1 - decay) / (1 - decay ** count.astype(jnp.float32))
        average = jax.tree.map(
            lambda average, now: jnp.where(count == 1, now, average + weight * (now - average)),
            state.average, optax.apply_updates(params, updates))
        return updates, Averaged(count, average, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def where(mask: np.ndarray, x: Array, y: Array) -> Array:
    """Selects x where the mask (bool[], or bool[l] over the layers) is true, else y; free if the mask is uniform."""
    if mask.all():
        return x
    return jnp.where(along(mask, x), x, y) if mask.any() else y


def along(vector: np.ndarray, x: Array) -> np.ndarray:
    """Reshapes a scalar, or a vector over the leading axis, to broadcast against x."""
    return vector.reshape(vector.shape + (1,) * (x.ndim - vector.ndim))


def parameter_path(keys: tuple, paths: Container[str]) -> str:
    """Finds among `paths` the parameter that a leaf of an optimizer's state belongs to; "" if there is none.

    The path is a run of dictionary keys: the last run in trees of moments, also inside `optax.partition`, and the first
    in trees of states, as `each_layer` makes them.
    """
    runs = [[]]
    for key in keys:
        runs[-1:] = [[*runs[-1], key.key]] if isinstance(key, jax.tree_util.DictKey) else [runs[-1], []]
    return next((path for run in runs if (path := "/".join(map(str, run))) in paths), "")
