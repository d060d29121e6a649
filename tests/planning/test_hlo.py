"""What is read from compiled programs, against closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lmrep.core.sharding import make_mesh
from lmrep.planning import hlo
from lmrep.planning.plan import axes_of, uncached


def compiled(f, *arguments):
    with uncached():
        return hlo.Program(jax.jit(f).lower(*arguments).compile().as_text())


def on(mesh, shape, *axes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))


def test_products_in_loops_count_once_per_iteration():
    def chain(x, weights):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    program = compiled(chain, jnp.ones((8, 16)), jnp.ones((5, 16, 16)))
    assert program.flops() == 5 * 2 * 8 * 16 * 16
    assert max(program.times.values()) == 5


def test_products_are_those_of_one_device():
    mesh = make_mesh(4, 1, 2)
    x, w = on(mesh, (8, 16), "data"), on(mesh, (16, 32), None, "tensor")
    assert compiled(jnp.dot, x, w).flops() == 2 * 8 * 16 * 32 / 8


CONVOLUTION = """HloModule m
ENTRY %main (a: f32[{left}], b: f32[{right}]) -> f32[{result}] {{
  %a = f32[{left}]{{0}} parameter(0)
  %b = f32[{right}]{{0}} parameter(1)
  ROOT %c = f32[{result}]{{0}} convolution(%a, %b), {attributes}
}}
"""


@pytest.mark.parametrize("left, right, result, attributes, expected", [
    # A matrix product, as a TPU has it.
    ("128,1024", "1024,4096", "128,4096", "dim_labels=bf_io->bf", 2 * 128 * 1024 * 4096),
    # Eight products at once: the batch is a spatial dimension, of which all but one tap are zeros of the dilation.
    ("8,16,32", "8,32,64", "8,16,64", "window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf",
     2 * 8 * 16 * 32 * 64),
    # Three taps over ten positions, without the two that lie in the padding.
    ("1,10,4", "3,4,6", "1,10,6", "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f", 2 * (30 - 2) * 4 * 6),
])
def test_convolutions(left, right, result, attributes, expected):
    text = CONVOLUTION.format(left=left, right=right, result=result, attributes=attributes)
    assert hlo.Program(text).flops() == expected


def test_collectives_have_axes_and_bytes():
    mesh = make_mesh(2, 4, 1)

    def f(x, w):
        return (x @ jax.lax.with_sharding_constraint(w, NamedSharding(mesh, PartitionSpec()))).sum(0)

    program = compiled(f, on(mesh, (8, 16), "data"), on(mesh, (16, 32), "fsdp"))
    found = {(each.opcode, axes_of(each.groups, mesh)): each for each in program.collectives(mesh.size)}
    gathered = found["all-gather", ("fsdp",)]
    assert (gathered.bytes, gathered.times) == (16 * 32 * 4, 1)
    assert gathered.sent == 16 * 32 * 4 * 3 / 4
    reduced = found["all-reduce", ("data",)]
    assert reduced.bytes == 32 * 4 and reduced.sent == 2 * 32 * 4 / 2


ASYNCHRONOUS = """HloModule m
%start (p: f32[4]) -> f32[8] {
  %p = f32[4]{0} parameter(0)
  ROOT %g = f32[8]{0} all-gather(%p), channel_id=3, replica_groups={{0,1}}, dimensions={0}
}
%beside (p: f32[4]) -> f32[8] {
  %p = f32[4]{0} parameter(0)
  ROOT %g = f32[8]{0} all-gather(%p), channel_id=3, replica_groups={{0,1}}, dimensions={0}
}
ENTRY %main (a: f32[4]) -> f32[8] {
  %a = f32[4]{0} parameter(0)
  %s = f32[8]{0} fusion(%a), kind=kCustom, calls=%start
  ROOT %d = f32[8]{0} fusion(%a), kind=kOutput, calls=%beside
}
"""


def test_an_asynchronous_collective_counts_once():
    [found] = hlo.Program(ASYNCHRONOUS).collectives(2)
    assert (found.opcode, found.bytes, found.times) == ("all-gather", 32, 1)


@pytest.mark.parametrize("text, expected", [
    ("replica_groups={{0,1},{2,3}}", [[0, 1], [2, 3]]),
    ("replica_groups=[2,2]<=[4]", [[0, 1], [2, 3]]),
    ("replica_groups=[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}, dimensions={0}", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0','axis_1'}", [[0, 1, 2, 3]]),
    ("source_target_pairs={{0,1},{1,0}}", [[0, 1], [1, 0]]),
    ("channel_id=1", [[0, 1, 2, 3]]),
])
def test_groups_of_devices_in_each_of_their_forms(text, expected):
    assert np.asarray(hlo.device_groups(text, 4)).tolist() == expected


def test_arrays_in_another_memory_do_not_count():
    assert hlo.type_bytes("(bf16[2,3]{1,0}, f32[], pred[9])") == 12 + 4 + 9
    assert hlo.type_bytes("f32[8,128]{1,0:T(8,128)S(1)}") == 0
    assert hlo.type_bytes("s4[3]{0}") == 2


def test_traffic_of_a_copy_that_is_scaled():
    n = 2**16
    assert compiled(lambda x: 2 * x, jnp.ones(n)).traffic() == 2 * 4 * n


@pytest.mark.parametrize("scanned", [False, True])
def test_what_the_backward_pass_reads_is_kept(scanned):
    layers, b, d = 6, 32, 64

    def loss(weights, x):
        def layer(x, weight):
            return jnp.tanh(x @ weight), None

        if scanned:
            x = jax.lax.scan(layer, x, weights)[0]
        else:
            for i in range(layers):
                x, _ = layer(x, weights[i])
        return (x**2).sum()

    program = compiled(jax.grad(loss), jnp.ones((layers, d, d)), jnp.ones((b, d)))
    one, weight = b * d * 4, d * d * 4
    # The output of each layer, at most also its derivative, and the slices of the weights.
    assert layers * one <= program.saved_bytes() <= (2 * layers + 1) * one + layers * weight


def test_numbers_of_a_program_that_is_sharded_add_up():
    mesh = make_mesh(8, 1, 1)
    x, w = on(mesh, (64, 32), "data"), on(mesh, (32, 16))
    program = compiled(lambda w, x: jax.grad(lambda w: jnp.tanh(x @ w).sum())(w), w, x)
    assert program.flops() * 8 == 2 * (2 * 64 * 32 * 16)
    total = sum(each.sent for each in program.collectives(8))
    assert math.isclose(total, 2 * 7 / 8 * 32 * 16 * 4)


NESTED = """
%inner (p: f32[8,1024], i: s32[]) -> f32[1024] {
  %p = f32[8,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,1024]{1,0} dynamic-slice(%p, %i, %zero), dynamic_slice_sizes={1,1024}
  ROOT %flat = f32[1024]{0} bitcast(%slice)
}

%relabelled (q: f32[8,1024]) -> f32[8,1024] {
  %q = f32[8,1024]{1,0} parameter(0)
  ROOT %copy = f32[8,1024]{1,0} copy(%q)
}

%outer (p: f32[8,1024], i: s32[], q: f32[8,1024]) -> (f32[1024], f32[8,1024]) {
  %p = f32[8,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %q = f32[8,1024]{1,0} parameter(2)
  %part = f32[1024]{0} fusion(%p, %i), kind=kLoop, calls=%inner
  %zero = s32[] constant(0)
  %update = f32[1,1024]{1,0} bitcast(%part)
  %tiled = f32[8,1024]{1,0} fusion(%q), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%relabelled
  %updated = f32[8,1024]{1,0} dynamic-update-slice(%tiled, %update, %i, %zero)
  ROOT %both = (f32[1024]{0}, f32[8,1024]{1,0}) tuple(%part, %updated)
}

ENTRY %main (p: f32[8,1024], i: s32[], q: f32[8,1024]) -> (f32[1024], f32[8,1024]) {
  %p = f32[8,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %q = f32[8,1024]{1,0} parameter(2)
  ROOT %fused = (f32[1024]{0}, f32[8,1024]{1,0}) fusion(%p, %i, %q), kind=kLoop, calls=%outer
}
"""


def test_traffic_of_nested_fusions_that_slice_and_update_is_that_of_the_slices():
    row, index = 4 * 1024, 4
    assert hlo.Program(NESTED).traffic() == row + index + row + row  # p, i; both results: q is updated in place


@pytest.mark.parametrize("microbatches", [1, 2])
def test_saved_bytes_are_those_of_a_microbatch(microbatches):
    b, n = 64, 256

    def loss(w, x):
        return jnp.sum(jnp.sin(jnp.sin(x @ w) @ w))

    def step(w, x):
        def add(total, part):
            return total + jax.grad(loss)(w, part), None
        return jax.lax.scan(add, jnp.zeros_like(w), x.reshape(microbatches, -1, n))[0] if microbatches > 1 else (
            jax.grad(loss)(w, x))

    saved = compiled(step, jnp.ones((n, n)), jnp.ones((b, n))).saved_bytes()
    one = 4 * b * n // microbatches
    assert 2 * one <= saved <= 5 * one


BESIDE = """
%async_collective_fusion (p: f32[4096], g: f32[1024], x: f32[64]) -> (f32[64], f32[1024], f32[4096]) {
  %p = f32[4096]{0} parameter(0)
  %g = f32[1024]{0} parameter(1)
  %x = f32[64]{0} parameter(2)
  %twice = f32[64]{0} add(%x, %x)
  %gathered = f32[4096]{0} all-gather(%g), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %all = (f32[64]{0}, f32[1024]{0}, f32[4096]{0}) tuple(%twice, %g, %gathered)
}

ENTRY %main (p: f32[4096], g: f32[1024], x: f32[64]) -> (f32[64], f32[1024], f32[4096]) {
  %p = f32[4096]{0} parameter(0)
  %g = f32[1024]{0} parameter(1)
  %x = f32[64]{0} parameter(2)
  ROOT %fused = (f32[64]{0}, f32[1024]{0}, f32[4096]{0}) fusion(%p, %g, %x), calls=%async_collective_fusion
}
"""


def test_traffic_beside_an_asynchronous_collective_is_that_of_the_computation():
    assert hlo.Program(BESIDE).traffic() == 2 * 4 * 64
