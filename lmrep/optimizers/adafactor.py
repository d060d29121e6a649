"""Adafactor: second moments of rows and columns (Shazeer and Stern, 2018), without momentum, as T5 uses it."""

from dataclasses import dataclass

import optax

from lmrep.config.record import setting
from lmrep.core.params import Tree
from lmrep.optimizers.base import OptimizerConfig, OptimizerDef, each_layer


@dataclass(frozen=True)
class Config(OptimizerConfig):
    """The settings of Adafactor."""

    factor_from: int = setting(128, "smallest dimension of matrices with a factored second moment", at_least=1)
    moment_power: float = setting(0.8, "the second moment decays by 1 - step^-power", above=0)
    rms_clip: float = setting(1.0, "largest RMS of a tensor's update", above=0)
    parameter_scale: bool = setting(True, "multiply a tensor's update by its RMS (at least 0.001)")


def direction(config: Config, specs: Tree) -> optax.GradientTransformation:
    """Computes Adafactor's direction, tensor by tensor and layer by layer."""
    return each_layer(optax.chain(
        optax.scale_by_factored_rms(decay_rate=config.moment_power, min_dim_size_to_factor=config.factor_from),
        optax.clip_by_block_rms(config.rms_clip),
        optax.scale_by_param_block_rms() if config.parameter_scale else optax.identity(),
    ), specs)


DEFINITION = OptimizerDef(direction, config=Config, recipes={
    # Raffel et al.: 1 / sqrt(max(step, 10,000)).
    "adafactor": {"learning_rate": 0.01, "weight_decay": 0.0, "clip": 0.0, "schedule": {
        "name": "inverse_sqrt", "warmup": 10_000, "warmup_from": 1.0}},
})
