"""Dtypes for computation. Parameters, optimizer state, norms, softmax and losses are always float32."""

import jax.numpy as jnp

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
