"""Optimizers as optax chains, chosen by config.

Four things go beyond optax. A stack of layers is one array here, but every rule that reads a tensor's norm, RMS or rank
acts on each layer separately (`_each_layer`), so that a stacked update equals the unstacked one. Patterns on parameter
paths (`matches`), which can address one layer of a stack, select what weight decay skips and how fast each parameter
learns. A parameter whose multiplier is 0 does not change, and nor do its moments (`_multiplied`). And a running average
of the parameters can be kept (`_averaging`).

`RECIPES` holds published settings.
"""

import fnmatch
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from lmrep.config.record import choose, setting, suggestion
from lmrep.core.errors import UserError
from lmrep.core.params import Array, ParamSpec, Tree, abstract, flatten, map_paths
from lmrep.core.sharding import replicated, shardings
from lmrep.training import schedules
from lmrep.training.plateau import scale_by_plateau


@dataclass(frozen=True)
class Config:
    """An optimizer. The defaults are BERT's.

    Patterns are globs on parameter paths, in which `*` matches any text, including slashes. A number or a range after
    `layers` addresses layers of a stack: `encoder/layers/11/*`, `*/layers/0-5/attention/*`. A pattern that matches no
    parameter is refused, except for those of `SKIP`.
    """

    name: str = setting("adamw", "update rule", choices=("adamw", "lamb", "adafactor", "adagrad", "sgd"))
    learning_rate: float = setting(1e-4, "peak learning rate", above=0)
    betas: tuple[float, ...] = setting((0.9, 0.999), "decay rates of adamw's and lamb's moments", at_least=0, below=1)
    eps: float = setting(1e-6, "added to the square root of the second moment of adamw and lamb", above=0)
    bias_correction: bool = setting(False, "divide the moments by 1 - beta^step (neither BERT nor ALBERT does)")
    accumulator: float = setting(1.0, "adagrad: the sum of squared gradients before the first step", above=0)
    momentum: float = setting(0.0, "sgd: decay rate of the momentum", at_least=0, below=1)
    weight_decay: float = setting(0.01, "decoupled weight decay, multiplied by the learning rate", at_least=0)
    decay_skip: tuple[str, ...] = setting((), "patterns of parameters without weight decay and lamb's trust ratio")
    gradient_scale: float = setting(1.0, "factor of the gradient, before it is clipped", above=0)
    clip: float = setting(1.0, "largest global norm of the gradient; 0: no limit", at_least=0)
    multipliers: dict[str, float] = setting({}, "pattern -> factor of the learning rate; the factors of all matching "
                                            "patterns are multiplied; 0: parameter and moments do not change",
                                            at_least=0)
    layer_decay: float = setting(1.0, "factor of the learning rate for each level below the head: of n layers, layer i "
                                 "learns at rate * layer_decay^(n + 1 - i), i from 0, and the embeddings at rate * "
                                 "layer_decay^(n + 2), as in ELECTRA's code", above=0, at_most=1)
    layer_decay_of: str = setting("rate", "what layer_decay multiplies: the learning rate; or, as in XLNet's code, the "
                                  "clipped gradient, of layer i alone by layer_decay^(n - 1 - i), which Adam's "
                                  "normalization mostly cancels", choices=("rate", "gradient"))
    factor_from: int = setting(128, "adafactor: smallest dimension of matrices with a factored second moment",
                               at_least=1)
    moment_power: float = setting(0.8, "adafactor: the second moment decays by 1 - step^-power", above=0)
    rms_clip: float = setting(1.0, "adafactor: largest RMS of a tensor's update", above=0)
    parameter_scale: bool = setting(True, "adafactor: multiply a tensor's update by its RMS (at least 0.001)")
    ema: float = setting(0.0, "decay of a running average of the parameters, kept beside them; 0: none", at_least=0,
                         below=1)
    schedule: schedules.Config = setting(schedules.Config(), "learning rate over the steps")


SKIP = ("*bias", "*norm/*")  # may match nothing, unlike other patterns: networks without norms use these recipes too

# Published settings. Learning rate and warm-up go with a batch size and are the experiment's.
RECIPES = {
    # Devlin et al.: no bias correction, and decay counted from step 0.
    "bert": Config(decay_skip=SKIP, schedule=schedules.Config(decay_from="start")),
    # Liu et al.: weight decay for all parameters, no clipping.
    "roberta": Config(betas=(0.9, 0.98), bias_correction=True, clip=0.0),
    # Lan et al.: parameters without decay have no trust ratio either.
    "lamb": Config(name="lamb", decay_skip=SKIP, schedule=schedules.Config(decay_from="start")),
    # Raffel et al.: 1 / sqrt(max(step, 10,000)).
    "adafactor": Config(name="adafactor", learning_rate=0.01, weight_decay=0.0, clip=0.0,
                        schedule=schedules.Config("inverse_sqrt", warmup=10_000, warmup_from=1.0)),
    # ELMo (Peters et al., 2018): the loss is multiplied by the 20 positions of an example.
    "elmo": Config(name="adagrad", learning_rate=0.2, weight_decay=0.0, gradient_scale=20.0, clip=10.0,
                   schedule=schedules.Config("constant")),
    # Loshchilov and Hutter, as in most libraries.
    "adamw": Config(bias_correction=True, eps=1e-8, decay_skip=SKIP),
}


def check(config: Config) -> None:
    """Raises UserError if the fields do not define an optimizer."""
    if len(config.betas) != 2:
        raise UserError(f"optimizer.betas is {config.betas}; expected two numbers, for example (0.9, 0.999)")


def schedule(config: Config, total_steps: int) -> optax.Schedule:
    """The learning rate f32[] of a step (from 0) before multipliers, as `build` uses it; for logs."""
    return schedules.build(config.schedule, config.learning_rate, total_steps)


def build(config: Config, specs: Tree, total_steps: int) -> optax.GradientTransformation:
    """The optimizer of the parameters of `specs`, over `total_steps` updates.

    Its `update(gradients, state, params)` takes and returns trees with the structure of `specs`; the caller adds the
    updates to the parameters. Raises UserError for a pattern that matches no parameter, and as `schedules.check`.
    """
    check(config)
    skip = matches(config.decay_skip, specs, "optimizer.decay_skip", optional=SKIP)
    decayed = {path: ~skipped for path, skipped in skip.items()}
    decay = _weight_decay(config.weight_decay, decayed)
    adam = _adam(*config.betas, config.eps, config.bias_correction)
    rules = {
        "adamw": (adam, decay),
        "lamb": (adam, decay, _trust_ratio(specs, decayed)),
        "adafactor": (_each_layer(_adafactor(config), specs), decay),
        "adagrad": (optax.scale_by_rss(config.accumulator, eps=0.0), decay),
        "sgd": (optax.trace(config.momentum) if config.momentum else optax.identity(), decay),
    }
    of_gradient = config.layer_decay_of == "gradient"
    rule = optax.chain(
        _clip(config.clip, config.gradient_scale) if config.clip else optax.scale(config.gradient_scale),
        *([_scaled(gradient_factors(config.layer_decay, specs))] if of_gradient else []),
        *choose(rules, config.name, "optimizer.name"),
        optax.scale_by_learning_rate(schedule(config, total_steps)),
        *([scale_by_plateau()] if config.schedule.name == "plateau" else []),
    )
    factors = multipliers(config.multipliers, specs)
    decays = layer_factors(1.0 if of_gradient else config.layer_decay, specs)
    rule = _multiplied(rule, {path: factor * decays[path] for path, factor in factors.items()})
    return _averaging(rule, config.ema) if config.ema else rule


class Averaged(NamedTuple):
    """The state of an optimizer that keeps averages."""

    count: Array  # i32[], updates so far
    average: Tree  # of the parameters after each update
    rule: Any  # the state of the optimizer itself


def averaged(params: Tree, state: Any) -> Tree:
    """`params`, or the averages in an optimizer's state once it has any."""
    return params | state.average if isinstance(state, Averaged) and int(state.count) else params


def matches(
    patterns: Iterable[str], specs: Tree, where: str = "patterns", optional: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """Which parameters at least one pattern matches. Patterns in `optional` may match none.

    Returns:
      {path: bool[]}, or bool[l] for a stacked parameter.

    Raises:
      UserError: a pattern matches no parameter; `where` is the config field that holds it.
    """
    addresses = {path: _addresses(path, spec) for path, spec in flatten(specs).items()}
    matched = {path: np.zeros(len(names) or (), bool) for path, names in addresses.items()}
    for pattern in itertools.chain.from_iterable(map(_expand, patterns)):
        glob = re.compile(fnmatch.translate(pattern))
        new = {path: np.array([bool(glob.match(n)) for n in names] or False) | bool(glob.match(path))
               for path, names in addresses.items()}
        if pattern not in optional and not any(mask.any() for mask in new.values()):
            known = [name for path, names in addresses.items() for name in (path, *names)]
            some = ", ".join(list(addresses)[:: max(1, len(addresses) // 4)][:4])
            raise UserError(f"{where}: {pattern!r} matches no parameter{suggestion(pattern, known)}; "
                            f"there are, for example, {some} (* matches any text)")
        matched = {path: matched[path] | new[path] for path in matched}
    return matched


def multipliers(factors: dict[str, float], specs: Tree) -> dict[str, np.ndarray]:
    """{path: f32[], or f32[l] for a stacked parameter}: the product of the factors of all patterns that match it."""
    product = {path: np.ones_like(mask, np.float32) for path, mask in matches((), specs).items()}
    for pattern, factor in factors.items():
        for path, mask in matches((pattern,), specs, "optimizer.multipliers").items():
            product[path] = np.where(mask, np.float32(factor) * product[path], product[path])
    return product


def layer_factors(decay: float, specs: Tree) -> dict[str, np.ndarray]:
    """{path: f32[], or f32[l] for a stacked parameter}: the factors of `Config.layer_decay`.

    Depths are those of ELECTRA's code: 0 for embeddings, i + 1 for layer i, n + 2 for the head. What follows the layers
    of the encoder, such as a final norm, has n + 1.
    """
    n, depths = _depths(specs)
    return {path: np.float32(decay) ** (n + 2 - depth).astype(np.float32) for path, depth in depths.items()}


def gradient_factors(decay: float, specs: Tree) -> dict[str, np.ndarray]:
    """As `layer_factors`, where `Config.layer_decay_of` is "gradient": the last layer, and what is in no layer, has 1.

    The released code keeps the biases of attention and the vectors of segments outside of layers, and does not scale
    their gradients; here they are in the layers.
    """
    n, depths = _depths(specs)
    return {path: np.float32(decay) ** np.where((depth > 0) & (depth <= n), n - depth, 0).astype(np.float32)
            for path, depth in depths.items()}


def _depths(specs: Tree) -> tuple[int, dict[str, np.ndarray]]:
    """(the number n of the encoder's layers, path -> i32[] or i32[l], the depth that `layer_factors` defines)."""
    flat = flatten(specs)
    stacked = [spec.shape[0] for path, spec in flat.items() if path.startswith("encoder/") and _is_stacked(spec)]
    numbers = {path: int(found[1]) for path in flat if (found := re.match(r"encoder/layers/(\d+)/", path))}
    n = max([*stacked, *(number + 1 for number in numbers.values())], default=0)

    def depth(path: str, spec: ParamSpec) -> np.ndarray:
        if not path.startswith("encoder/"):
            return np.array(n + 2)
        if _is_stacked(spec):
            return np.arange(spec.shape[0]) + 1
        if path in numbers:
            return np.array(numbers[path] + 1)
        return np.array(n + 1 if path.startswith("encoder/final") else 0)

    return n, {path: depth(path, spec) for path, spec in flat.items()}


def state_shardings(optimizer: optax.GradientTransformation, specs: Tree, mesh: Mesh) -> Tree:
    """The layout of the optimizer's state: a tree of NamedSharding with the structure that `optimizer.init` returns.

    Arrays of a parameter's shape, such as its moments, have the parameter's layout; counters and factored moments,
    which are small, are replicated.
    """
    layouts, parameters = flatten(shardings(specs, mesh)), flatten(specs)

    def layout(keys: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        path = _parameter_path(keys)
        same_shape = path in parameters and leaf.shape == parameters[path].shape
        return layouts[path] if same_shape else replicated(mesh)

    return jax.tree_util.tree_map_with_path(layout, jax.eval_shape(optimizer.init, abstract(specs)))


def _adam(beta1: float, beta2: float, eps: float, bias_correction: bool) -> optax.GradientTransformation:
    """Adam's direction (Kingma and Ba, 2015), or BERT's, without bias correction."""
    adam = optax.scale_by_adam(beta1, beta2, eps)
    if bias_correction:
        return adam

    def update(grads: Tree, state: optax.ScaleByAdamState, params: Tree = None) -> tuple[Tree, optax.ScaleByAdamState]:
        m = optax.tree.update_moment(grads, state.mu, beta1, 1)
        v = optax.tree.update_moment(grads, state.nu, beta2, 2)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), m, v)
        return direction, optax.ScaleByAdamState(state.count + 1, m, v)

    return optax.GradientTransformation(adam.init, update)


def _adafactor(config: Config) -> optax.GradientTransformation:
    """Adafactor's direction for one tensor (Shazeer and Stern, 2018), without momentum, as T5 uses it."""
    return optax.chain(
        optax.scale_by_factored_rms(decay_rate=config.moment_power, min_dim_size_to_factor=config.factor_from),
        optax.clip_by_block_rms(config.rms_clip),
        optax.scale_by_param_block_rms() if config.parameter_scale else optax.identity(),
    )


def _trust_ratio(specs: Tree, decayed: dict[str, np.ndarray]) -> optax.GradientTransformation:
    """LAMB's scaling of an update to the norm of its tensor (You et al., 2020), for parameters with weight decay."""

    def scale(path: str, spec: ParamSpec, update: Array, param: Array) -> Array:
        axes = tuple(range(_is_stacked(spec), update.ndim))
        length, step = (jnp.sqrt(jnp.square(x).sum(axes, keepdims=True)) for x in (param, update))
        ratio = jnp.where((length > 0) & (step > 0), length / step, 1.0)
        return _where(decayed[path], update * ratio, update)

    return optax.stateless(lambda updates, params: map_paths(scale, specs, updates, params))


def _weight_decay(rate: float, decayed: dict[str, np.ndarray]) -> optax.GradientTransformation:
    """Adds `rate` times the parameter, for parameters with weight decay."""
    if not rate:
        return optax.identity()
    return optax.stateless(lambda updates, params: map_paths(
        lambda path, update, param: _where(decayed[path], update + rate * param, update), updates, params))


def _clip(limit: float, scale: float = 1.0) -> optax.GradientTransformation:
    """Scales the gradient, `scale` times what it is, to a global norm of at most `limit`.

    One factor for all parameters: optax's version selects element by element, and made Adam four times slower on CPU.
    """
    def clip(grads: Tree, params: Tree) -> Tree:
        factor = limit / jnp.maximum(optax.tree.norm(grads), limit / scale)
        return jax.tree.map(lambda g: g * factor, grads)

    return optax.stateless(clip)


def _scaled(factors: dict[str, np.ndarray]) -> optax.GradientTransformation:
    """Multiplies updates by `factors`."""
    return optax.stateless(lambda updates, params: map_paths(lambda path, x: x * _along(factors[path], x), updates))


def _each_layer(rule: optax.GradientTransformation, specs: Tree) -> optax.GradientTransformation:
    """`rule` applied to every tensor, and every layer of a stack, separately. Its state is a tree of rule states."""
    def each(function: Callable) -> Callable:
        return lambda path, spec, *leaves: (jax.vmap(function) if _is_stacked(spec) else function)(*leaves)

    def update(updates: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        pairs = map_paths(each(rule.update), specs, updates, state, params)
        return tuple(map_paths(lambda path, spec, pair, i=i: pair[i], specs, pairs) for i in (0, 1))

    return optax.GradientTransformation(lambda params: map_paths(each(rule.init), specs, params), update)


def _multiplied(rule: optax.GradientTransformation, factors: dict[str, np.ndarray]) -> optax.GradientTransformation:
    """`rule` with updates multiplied by `factors`; if the factor is 0, parameter and moments stay bit-identical.

    Parameters with factor 0 do not count in the gradient's global norm. If all of a tensor has factor 0, XLA does not
    compute its gradient.
    """
    if all((factor == 1).all() for factor in factors.values()):
        return rule
    trained = {path: factor != 0 for path, factor in factors.items()}

    def keep(keys: tuple, old: Array, new: Array) -> Array:
        return _where(trained.get(_parameter_path(keys), np.True_), new, old)

    def scale(path: str, update: Array) -> Array:
        # Adding -0.0 keeps the bits of every number; adding 0.0 would turn -0.0 into 0.0.
        return _where(trained[path], update * _along(factors[path], update), jnp.full_like(update, -0.0))

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        grads = map_paths(lambda path, g: _where(trained[path], g, jnp.zeros_like(g)), grads)
        updates, new_state = rule.update(grads, state, params)
        return map_paths(scale, updates), jax.tree_util.tree_map_with_path(keep, state, new_state)

    return optax.GradientTransformation(rule.init, update)


def _averaging(rule: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """`rule`, with an exponentially decaying average of the parameters after each update, not of the initial ones.

    It is debiased at every step: update t has weight (1 - decay) / (1 - decay^t), so that after the first update the
    average equals the parameters, and the stored average can be used directly.
    """
    def init(params: Tree) -> Averaged:
        return Averaged(jnp.int32(0), jax.tree.map(jnp.array, params), rule.init(params))

    def update(grads: Tree, state: Averaged, params: Tree) -> tuple[Tree, Averaged]:
        updates, inner = rule.update(grads, state.rule, params)
        count = state.count + 1
        weight = (1 - decay) / (1 - decay ** count.astype(jnp.float32))
        average = jax.tree.map(
            lambda average, now: jnp.where(count == 1, now, average + weight * (now - average)),
            state.average, optax.apply_updates(params, updates))
        return updates, Averaged(count, average, inner)

    return optax.GradientTransformation(init, update)


def _where(mask: np.ndarray, x: Array, y: Array) -> Array:
    """x where the mask (bool[], or bool[l] over the layers) is true, else y; no operation if the mask is uniform."""
    if mask.all():
        return x
    return jnp.where(_along(mask, x), x, y) if mask.any() else y


def _along(vector: np.ndarray, x: Array) -> np.ndarray:
    """A scalar, or a vector over the leading axis, reshaped to broadcast against x."""
    return vector.reshape(vector.shape + (1,) * (x.ndim - vector.ndim))


def _is_stacked(spec: ParamSpec) -> bool:
    return spec.axes[:1] == ("layers",)


def _addresses(path: str, spec: ParamSpec) -> list[str]:
    """The paths that a parameter's layers would have without stacking; [] if it is not stacked."""
    head, stack, tail = f"/{path}".partition("/layers/")
    layers = spec.shape[0] if stack and _is_stacked(spec) else 0
    return [f"{head}{stack}{i}/{tail}"[1:] for i in range(layers)]


def _expand(pattern: str) -> list[str]:
    """`layers/0-5/*` as `layers/0/*` to `layers/5/*`."""
    span = re.search(r"(?<![^/])(\d+)-(\d+)(?![^/])", pattern)
    if not span:
        return [pattern]
    numbers = range(int(span[1]), int(span[2]) + 1)
    return [f"{pattern[:span.start()]}{i}{pattern[span.end():]}" for i in numbers] or [pattern]


def _parameter_path(keys: tuple) -> str:
    """The path of the parameter that a leaf of an optimizer's state belongs to; "" if there is none."""
    return "/".join(k.key for k in keys if isinstance(k, jax.tree_util.DictKey))
