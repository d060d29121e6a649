"""Fine-tunes a trained encoder in a Flax NNX model: a text classifier.

    python experiments/examples/nnx_classifier.py runs/quickstart
"""

import sys

import jax.numpy as jnp
import optax
from flax import nnx

import lmrep
from lmrep.interop import modules

run = lmrep.load(sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__))
batch = run.inputs(["Return the number of items.", "Return a list.", "Raise an error.", "Raises ValueError."])
labels = jnp.array([0, 0, 1, 1])


class Classifier(nnx.Module):
    def __init__(self, rngs):
        self.encoder = modules.nnx(run.model, run.params["encoder"])
        self.output = nnx.Linear(run.model.width, 2, rngs=rngs)

    def __call__(self, inputs, rngs=None):
        return self.output(self.encoder(inputs, rngs=rngs).hidden[:, 0])


def loss(model, rngs):
    return optax.softmax_cross_entropy_with_integer_labels(model(batch, rngs), labels).mean()


model, rngs = Classifier(nnx.Rngs(0)), nnx.Rngs(1)
optimizer, gradient = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param), nnx.jit(nnx.value_and_grad(loss))
update = nnx.jit(lambda model, optimizer, grads: optimizer.update(model, grads))
for _ in range(20):
    value, grads = gradient(model, rngs)
    update(model, optimizer, grads)
print(f"loss {value:.3f}; labels {nnx.jit(model)(batch).argmax(-1)}, expected {labels}")
