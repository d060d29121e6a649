"""The checks of `accelerator.py`: the numbers that lmrep computes on a device. Each returns results as dicts: `name`,
`passed`, `detail`."""

import itertools
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
from training_steps import System, build, lmrep_batch

from lmrep.core import params as P
from lmrep.core.sharding import platform
from lmrep.layers.attention_backends import ATTENTION, Needs, reasons
from lmrep.layers.stack import Execution
from lmrep.models.transformer import Config
from lmrep.objectives.base import Carry, Keys
from lmrep.training import state
from lmrep.training.step import train_step

HEAD = 64  # width of a head, as in all the networks that are timed
LIMITS = {"float32": (1e-5, 1e-4), "bfloat16": (1e-3, 0.04)}  # relative differences of loss and gradient
SEGMENTS = (37, 5, 64, 22), (100, 28)  # lengths of the texts that are packed into sequences of 128
CONTEXTS = {"bidirectional": "masked", "causal": "causal"}  # and the objective that has it


def network(context, length, dropout=0.0):
    """A small network. Its weights are large, so that the loss depends on the context."""
    config = Config(vocab=512, width=2 * HEAD, layers=2, heads=2, mlp=256, max_length=length, dropout=dropout,
                    attention_dropout=dropout, init_stddev=0.1)
    # Every token is predicted, and none replaced: the loss does not depend on a random choice of tokens.
    fields = {"rate": 1.0, "mask": 0.0, "keep": 1.0, "random": 0.0} if context == "bidirectional" else {}
    return System(config, CONTEXTS[context], "adamw", length=length, fields=fields)


def backends(packed, dtypes=("bfloat16",)):
    """The implementations of attention that the device has, without dropout."""
    needs = [Needs(HEAD, dtype, packed=packed) for dtype in dtypes]
    return [name for name in ATTENTION if not any(reasons(name, need, platform()) for need in needs)]


def gradient(system, execution):
    """(params, batch) -> (loss, gradient), without dropout."""
    objective, _ = build(system, execution)

    def loss(params, batch):
        keys = Keys(jax.random.split(jax.random.key(0), len(batch["tokens"])), jax.random.key(1))
        return objective.loss(params, objective.prepare(keys, batch), None, Carry())[0]

    return jax.value_and_grad(loss)


def initial(system):
    """Parameters."""
    return jax.jit(partial(P.init, state.specs_of(build(system)[0])))(jax.random.key(0))


def flat(gradient):
    """All its elements, float32."""
    return np.concatenate([np.asarray(x, np.float32).ravel() for x in jax.tree.leaves(gradient)])


def difference(first, second):
    """The relative differences of two (loss, gradient)."""
    (loss, first), (expected, second) = first, second
    return (abs(float(loss) - float(expected)) / abs(float(expected)),
            float(np.linalg.norm(flat(first) - flat(second)) / np.linalg.norm(flat(second))))


def padded_batch(length, vocab=512):
    """A sequence of `length` tokens, and one of half of them and padding."""
    tokens = np.random.default_rng(length).integers(104, vocab, (2, length))
    return lmrep_batch(tokens, np.arange(length) < np.array([[length], [(length + 1) // 2]]))


def gradients(seconds, lengths):
    """Whether gradients are finite at all lengths, in bfloat16, with each implementation of attention, and equal to
    those of "xla" up to rounding. Lengths for which the time, `seconds`, is not enough are named."""
    end = time.monotonic() + seconds
    names = backends(packed=False)
    systems = {context: network(context, max(lengths)) for context in CONTEXTS}
    params = {context: initial(system) for context, system in systems.items()}

    def run(context, length, name):
        if time.monotonic() > end:
            return None
        try:
            f = jax.jit(gradient(systems[context], Execution(dtype="bfloat16", attention=name)))
            return jax.device_get(f(params[context], padded_batch(length)))
        except Exception as error:  # of one length
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"

    settings = list(itertools.product(CONTEXTS, lengths, names))
    with ThreadPoolExecutor(8) as threads:  # compiling takes most of the time
        found = dict(zip(settings, threads.map(lambda setting: run(*setting), settings), strict=True))
    return [judge(name, lengths, found) for name in names]


def judge(name, lengths, found):
    """The result of one implementation of attention."""
    wrong, missing, worst = [], [], 0.0
    for context, length in itertools.product(CONTEXTS, lengths):
        own, reference = found[context, length, name], found[context, length, "xla"]
        if own is None or reference is None:
            missing.append(f"{length} {context}")
        elif isinstance(own, str):
            wrong.append(f"{length} {context}: {own}")
        elif not (np.isfinite(own[0]) and np.isfinite(flat(own[1])).all()):
            wrong.append(f"{length} {context}: not finite")
        elif not isinstance(reference, str):
            deviation = difference(own, reference)[1]
            worst = max(worst, deviation)
            if not deviation <= LIMITS["bfloat16"][1]:
                wrong.append(f"{length} {context}: differs from xla by {deviation:.2g}")
    detail = f"lengths {', '.join(map(str, lengths))}; bidirectional and causal, with padding"
    if name != "xla":
        detail += f"; gradients differ from xla's by {worst:.2g} at most, allowed {LIMITS['bfloat16'][1]}"
    detail += "".join(f"; {title} {', '.join(items)}" for title, items in (
        ("WRONG:", wrong), ("NO TIME FOR", missing)) if items)
    return {"name": f"finite gradients, bfloat16, {name}", "passed": not wrong and not missing, "detail": detail}


def packed_batches(texts, length):
    """(the texts packed as `SEGMENTS` says, with empty sequences after them; each text in a sequence of its own)."""
    packed, separate = ([np.zeros((len(texts), length), int) for _ in range(3)] for _ in range(2))
    remaining = iter(enumerate(texts))
    for row, sizes in enumerate(SEGMENTS):
        for number, (size, start) in enumerate(zip(sizes, np.cumsum((0, *sizes)), strict=False)):
            i, text = next(remaining)
            fields = text, number + 1, np.arange(size)
            for array, alone, values in zip(packed, separate, fields, strict=True):
                array[row, start : start + size] = values
                alone[i, :size] = np.minimum(values, 1) if array is packed[1] else values
    return lmrep_batch(*packed), lmrep_batch(*separate)


def packed(isolated=True, names=None, contexts=tuple(CONTEXTS), dtypes=tuple(LIMITS)):
    """Whether packed texts have the loss and the gradient of separate ones: exactly in float32, that is, up to the
    order of sums, and within a tolerance in bfloat16. `isolated=False` lets the texts of a sequence see each other,
    which must be found. `names` are implementations of attention, by default all that take packed texts."""
    rng, results = np.random.default_rng(0), []
    texts = [rng.integers(104, 512, size) for sizes in SEGMENTS for size in sizes]
    together, separate = packed_batches(texts, sum(SEGMENTS[0]))
    if not isolated:
        together["segment_ids"] = np.minimum(together["segment_ids"], 1)
    for name in names or backends(packed=True, dtypes=dtypes):
        details, passed = [], True
        for context, dtype in itertools.product(contexts, dtypes):
            system = network(context, sum(SEGMENTS[0]))
            with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
                f, params = jax.jit(gradient(system, Execution(dtype=dtype, attention=name))), initial(system)
                found = difference(f(params, together), f(params, separate))
            passed &= all(value <= limit for value, limit in zip(found, LIMITS[dtype], strict=True))
            details.append(f"{context} {dtype}: {found[0]:.2g} and {found[1]:.2g} (allowed {LIMITS[dtype][0]} and "
                           f"{LIMITS[dtype][1]})")
        results.append({"name": f"packed equals separate, {name}", "passed": passed,
                        "detail": "relative difference of loss and of gradient, " + "; ".join(details)})
    return results


def resume():
    """Whether four steps give the same bits as two, a checkpoint that is restored, and two more, compiled anew. On
    accelerators it is tried with XLA's deterministic operations too."""
    options = [{}] if platform() == "cpu" else [{}, {"xla_gpu_deterministic_ops": True}]
    return [_resume(option) for option in options]


def _resume(options):
    system = network("causal", 128, dropout=0.1)
    objective, optimizer = build(system, Execution(dtype="bfloat16"))
    rng = np.random.default_rng(0)
    batches = [lmrep_batch(rng.integers(104, 512, (8, 128))) for _ in range(4)]
    step = partial(train_step, objective=objective, optimizer=optimizer, seed=0)
    create = jax.jit(partial(state.create, objective, optimizer, 8))

    def compiled():
        jax.clear_caches()  # as a new process, but for autotuning
        return jax.jit(step).lower(create(0), batches[0]).compile(compiler_options=options)

    def train(run, current, chosen):
        for batch in chosen:
            current, _ = run(current, batch)
        return current

    run = compiled()
    straight, again = (train(run, create(0), batches) for _ in range(2))
    resumed = train(compiled(), restored(train(run, create(0), batches[:2])), batches[2:])
    name = "resume, bit for bit" + (", deterministic operations" if options else "")
    different, repeated = unequal(straight, resumed), unequal(straight, again)
    detail = "4 steps against 2, checkpoint, 2; bfloat16, dropout"
    if different:
        detail += f"; {len(different)} arrays differ, first {different[0]}"
    if repeated:
        detail += f"; two runs of the same 4 steps differ too, in {len(repeated)} arrays"
    return {"name": name, "passed": not different, "detail": detail}


def restored(current):
    """The state after a checkpoint of it was written and read."""
    from lmrep.storage.checkpoints import Checkpoints

    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), current)
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = Checkpoints(directory)
        try:
            checkpoints.save(2, current, {})
            checkpoints.wait()
            return checkpoints.restore(checkpoints.newest(), target)[0]
        finally:
            checkpoints.close()


def unequal(first, second):
    """The paths of the arrays of two trees whose bits differ."""
    leaves = jax.tree.leaves(second)
    return [jax.tree_util.keystr(path) for (path, x), y in zip(
        jax.tree.leaves_with_path(first), leaves, strict=True) if np.asarray(x).tobytes() != np.asarray(y).tobytes()]


CHECKS = {"gradients": gradients, "packed": packed, "resume": resume}
