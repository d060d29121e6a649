"""Adafactor: second moments of rows and columns (Shazeer and Stern, 2018), without momentum, as T5 uses it."""

import optax

from lmrep.core.params import Tree
from lmrep.optimizers.base import OptimizerConfig, OptimizerDef, each_layer


def direction(config: OptimizerConfig, specs: Tree) -> optax.GradientTransformation:
    """Adafactor's direction of each layer's tensors."""
    return each_layer(optax.chain(
        optax.scale_by_factored_rms(decay_rate=config.moment_power, min_dim_size_to_factor=config.factor_from),
        optax.clip_by_block_rms(config.rms_clip),
        optax.scale_by_param_block_rms() if config.parameter_scale else optax.identity(),
    ), specs)


DEFINITION = OptimizerDef(direction, recipes={
    # Raffel et al.: 1 / sqrt(max(step, 10,000)).
    "adafactor": {"learning_rate": 0.01, "weight_decay": 0.0, "clip": 0.0, "schedule": {
        "name": "inverse_sqrt", "warmup": 10_000, "warmup_from": 1.0}},
})
