"""Fine-tunes a trained encoder in a Flax Linen model: a text classifier.

    python experiments/examples/linen_classifier.py runs/quickstart
"""

import sys

import flax.linen as nn
import jax
import optax
from flax.training.train_state import TrainState

import lmrep
from lmrep.interop import modules

run = lmrep.load(sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__))
batch = run.inputs(["Return the number of items.", "Return a list.", "Raise an error.", "Raises ValueError."])
labels = jax.numpy.array([0, 0, 1, 1])


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, inputs, **kwargs):
        return nn.Dense(2)(modules.linen(run.model, run.params["encoder"])(inputs, **kwargs).hidden[:, 0])


@jax.jit
@jax.value_and_grad
def loss(params, key):
    logits = model.apply(params, batch, deterministic=False, rngs={"dropout": key})
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


model, update = Classifier(), jax.jit(TrainState.apply_gradients)
state = TrainState.create(apply_fn=None, params=jax.jit(model.init)(jax.random.key(0), batch), tx=optax.adam(1e-3))
for key in jax.random.split(jax.random.key(1), 20):
    value, grads = loss(state.params, key)
    state = update(state, grads=grads)
print(f"loss {value:.3f}; labels {jax.jit(model.apply)(state.params, batch).argmax(-1)}, expected {labels}")
