"""Floating-point operations of a program, against closed forms."""


import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmrep.core import params as P
from lmrep.core import sharding
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers.loops import repeat
from lmrep.layers.stack import Execution
from lmrep.models import transformer
from lmrep.models.base import Inputs
from lmrep.objectives import OBJECTIVES
from lmrep.planning import flops, hlo

N, D, L = 5, 8, 4
X = jax.ShapeDtypeStruct((N, D), jnp.float32)
KERNELS = [jax.ShapeDtypeStruct((D, D), jnp.float32)] * L
ONE = 2 * N * D * D  # a multiplication and an addition for each of n d d


def chain(kernels, x):
    for kernel in kernels:
        x = jnp.tanh(x @ kernel)
    return x.sum()


def scanned(kernels, x):
    return jax.lax.scan(lambda x, kernel: (jnp.tanh(x @ kernel), None), x, kernels)[0].sum()


def test_a_matrix_product_counts_multiplications_and_additions():
    assert flops.count(lambda x, k: x @ k, X, KERNELS[0]) == ONE
    assert flops.count(lambda x, k: x + k[0], X, KERNELS[0]) == 0


def test_batched_products():
    q = jax.ShapeDtypeStruct((2, 7, 3, 4), jnp.float32)  # b t h k
    k = jax.ShapeDtypeStruct((2, 9, 3, 4), jnp.float32)  # b s h k
    assert flops.count(lambda q, k: jnp.einsum("bthk,bshk->bhts", q, k), q, k) == 2 * 2 * 3 * 7 * 9 * 4


def test_the_body_of_a_scan_counts_once_per_iteration():
    stacked = jax.ShapeDtypeStruct((L, D, D), jnp.float32)
    assert flops.count(scanned, stacked, X) == L * ONE
    nested = jax.ShapeDtypeStruct((3, L, D, D), jnp.float32)

    def twice(kernels, x):
        return jax.lax.scan(lambda total, kernel: (total + scanned(kernel, x), None), 0.0, kernels)[0]

    assert flops.count(twice, nested, X) == 3 * L * ONE


def of_data(kernels, x):
    """A loop whose length depends on the data, with alternatives of which the second has two products."""
    branches = [lambda x: x @ kernels[0], lambda x: x @ kernels[0] @ kernels[1]]
    return repeat((x > 0).sum(), 3, lambda i, x: jax.lax.switch(i, branches, x), x)


def test_a_loop_over_data_counts_as_often_as_it_may_run_and_the_largest_alternative():
    assert flops.count(of_data, KERNELS, X) == 3 * 2 * ONE
    program = jax.jit(of_data).lower(KERNELS, X).compile()
    assert hlo.Program(program.as_text()).flops() == 3 * 2 * ONE


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, lambda f: jax.jit(jax.jit(f))])
def test_inner_programs_count(wrap):
    assert flops.count(wrap(chain), KERNELS, X) == L * ONE


def test_the_program_inside_a_custom_derivative_counts():
    @jax.custom_vjp
    def double(x, k):
        return 2 * x @ k

    double.defvjp(lambda x, k: (double(x, k), (x, k)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))
    assert flops.count(double, X, KERNELS[0]) == ONE


def test_a_gradient_costs_twice_its_forward_pass():
    assert flops.count(jax.value_and_grad(chain, argnums=(0, 1)), KERNELS, X) == 3 * L * ONE
    assert flops.count(jax.value_and_grad(chain), KERNELS, X) == 3 * L * ONE - ONE  # nothing asks for x's
    stacked = jax.ShapeDtypeStruct((L, D, D), jnp.float32)
    assert flops.count(jax.value_and_grad(scanned, argnums=(0, 1)), stacked, X) == 3 * L * ONE


def test_recomputation_counts():
    both = jax.value_and_grad(jax.checkpoint(chain), argnums=(0, 1))
    assert flops.count(both, KERNELS, X) == 4 * L * ONE


def test_a_transformer_encoder():
    """2 b t l (4 d^2 + 2 d f + 2 t d): Hoffmann et al., 2022, appendix F, without embeddings and head."""
    b, t, d, f, layers = 3, 16, 8, 24, 5
    c = transformer.Config(vocab=11, width=d, heads=2, mlp=f, layers=layers, max_length=t, token_types=0)
    tokens = Inputs(tokens=jax.ShapeDtypeStruct((b, t), jnp.int32))
    for scan in (True, False):
        model = transformer.build(c, Execution(scan=scan))
        counted = flops.count(lambda p, x, model=model: model.encode(p, x).hidden, P.abstract(model.specs), tokens)
        assert counted == 2 * b * t * layers * (4 * d * d + 2 * d * f + 2 * t * d)


def causal_step(c, b, execution=Execution()):
    vocabulary = Vocabulary(64, {"pad": 0, "mask": 1}, np.ones(64, bool), np.ones(64, np.int64))
    fields = ("tokens", "segment_ids", "positions")
    batch = {name: jax.ShapeDtypeStruct((b, c.max_length), jnp.int32) for name in fields}
    batch["example"] = jax.ShapeDtypeStruct((b,), jnp.int32)
    definition = OBJECTIVES["causal"]
    objective = definition.build(definition.config(), transformer.build(c, execution), vocabulary)
    return flops.of_train_step(objective, optax.sgd(1.0), batch)


def test_a_step_counts_the_same_whatever_computes_attention():
    c = transformer.Config(vocab=64, width=16, layers=1, heads=2, mlp=32, max_length=512, attention_dropout=0.0)
    assert len({causal_step(c, 2, Execution(attention=backend)) for backend in ("xla", "chunked", "splash")}) == 1


def test_a_step_counts_the_same_on_any_mesh():
    """Also where a part of it is mapped over the devices, each with its share of the examples."""
    c, b = transformer.Config(vocab=64, width=16, layers=1, heads=2, mlp=32, max_length=8), 8
    expected = causal_step(c, b)
    for sizes in ((8, 1, 1), (2, 2, 2)):
        with sharding.use_mesh(sharding.make_mesh(*sizes)):
            assert causal_step(c, b) == expected
