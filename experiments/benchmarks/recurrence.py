"""The recurrence of a bidirectional language model, forward and backward pass, beside PyTorch's.

    python experiments/benchmarks/recurrence.py

Both directions of stacked LSTM layers with a projection, in float32, from given word vectors to the gradients of all
weights and of the vectors: `lmrep.layers.projected_lstm`, and one `torch.nn.LSTM(proj_size=...)` for each direction.
Rounds alternate. On two cores of an Intel Xeon beside other programs, jax 0.10.2, torch 2.13.0, 2026-11-23, one of
three runs took at least 151 ms and 158 ms a round.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from arguments import parse_flags
from timing import Row, alternate, print_table

from lmrep.core.host import keep_memory
from lmrep.core.params import init
from lmrep.layers import projected_lstm
from lmrep.layers.projected_lstm import Reading


def ours(o, x):
    """A function that computes the gradients with JAX."""
    specs = {str(i): [projected_lstm.specs(o.projection, o.cell, o.projection)] * 2 for i in range(o.layers)}
    params = init(specs, jax.random.key(0))
    real = jnp.ones(x[0].shape[:2], bool)
    state = projected_lstm.initial_state(o.batch_size, o.cell, o.projection)

    def loss(params, x):
        for _, layer in sorted(params.items()):
            found = projected_lstm.apply([
                Reading(own["input"], own["recurrent"]["kernel"], own["projection"]["kernel"], each, state, real, ~real)
                for own, each in zip(layer, x, strict=True)])
            x = [outputs for outputs, _ in found]
        return sum((each**2).sum() for each in x)

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, x).compile()
    return lambda _: jax.block_until_ready(compiled(params, x))


def theirs(o, x):
    """The same with PyTorch."""
    import torch

    lstms = [torch.nn.LSTM(o.projection, o.cell, o.layers, proj_size=o.projection, batch_first=True) for _ in x]
    inputs = [torch.tensor(np.array(each)).requires_grad_() for each in x]

    def run(_):
        for lstm in lstms:
            lstm.zero_grad()
        sum((lstm(each)[0] ** 2).sum() for lstm, each in zip(lstms, inputs, strict=True)).backward()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--cell", type=int, default=512)
    parser.add_argument("--projection", type=int, default=128)
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    o = parse_flags(parser, cell=16, projection=8, window=4, batch_size=2, rounds=1)
    keep_memory()
    rng = np.random.default_rng(0)
    x = [jnp.asarray(rng.normal(size=(o.batch_size, o.window, o.projection)), jnp.float32) for _ in range(2)]
    seconds = alternate({"lmrep": ours(o, x), "torch.nn.LSTM": theirs(o, x)}, o.rounds, unmeasured=2)
    print_table(("recurrence", *seconds), [Row(
        f"{o.layers} layers of both directions, cell {o.cell}, projection {o.projection}, {o.batch_size} x {o.window}",
        *seconds.values())])


if __name__ == "__main__":
    main()
