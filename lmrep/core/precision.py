"""Compute dtypes. Parameters, optimizer state, norms, softmax and losses are float32 whatever the choice here."""

import jax.numpy as jnp

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
