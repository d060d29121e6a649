"""The processes of `accelerator.py`: one for lmrep, one for transformers. Each serves one request at a time."""

import contextlib
import gc
import multiprocessing
import os
import time
from importlib import metadata

import jax
import jax.numpy as jnp
from accelerator_checks import CHECKS
from generation_steps import LmrepTexts, TransformersTexts
from training_steps import LmrepSteps, TransformersSteps

from lmrep.core.host import processor
from lmrep.core.sharding import platform as jax_platform
from lmrep.layers import attention_backends
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, name_of

GENERATION = "generation"  # in place of the name of an objective
MEMORY = 0.45  # fraction of the device's memory that each of the two may use


class Failed(Exception):
    """A request failed. The message is one line."""


class OutOfTime(Failed):
    """A request took too long. Its process was ended."""


class Worker:
    """A process for one framework, started at the first request, and again after a failure.

    Args:
      framework: of `FRAMEWORKS`.
      device: "cpu" or "cuda".
    """

    def __init__(self, framework, device):
        self._arguments = framework, device
        self._process = None

    def send(self, request, *arguments):
        """Sends a request: the name of a method of the framework, and its arguments."""
        if self._process is not None and not self._process.is_alive():
            self.stop()
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, other = context.Pipe()
            self._process = context.Process(target=serve, args=(other, *self._arguments))
            self._process.start()
            other.close()
        with contextlib.suppress(BrokenPipeError):  # `receive` reports a process that ended
            self._connection.send((request, arguments))

    def receive(self, seconds):
        """What the request returned. Raises Failed if it fails, OutOfTime if it takes longer than `seconds`."""
        try:
            if not self._connection.poll(max(0, seconds)):
                self.stop()
                raise OutOfTime(f"no result within {seconds:.0f} seconds")
            done, value, usable = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(10)
            code = self._process.exitcode
            self.stop()
            raise Failed(f"its process ended with exit code {code}") from error
        if not usable:
            self.stop()
        if not done:
            raise Failed(value)
        return value

    def stop(self, seconds=0):
        """Ends the process, which has so many seconds to end by itself."""
        if self._process is not None:
            self._connection.close()
            self._process.join(seconds)
            self._process.kill()
            self._process.join()
            self._process = None


def serve(connection, framework, device):
    """Answers requests until the other end is closed: (whether it was done, its result or the error as a line, whether
    the process can be used further)."""
    made = None
    while True:
        try:
            request, arguments = connection.recv()
        except EOFError:
            return
        try:
            made = made or FRAMEWORKS[framework](device)
            answer = True, getattr(made, request)(*arguments), True
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            answer = False, f"{type(error).__name__}: {lines[0][:200]}", isinstance(error, ImportError)
        connection.send(answer)


class Framework:
    """What both have in common. Requests are the methods without an underscore. A step is one of training, or generates
    texts for a batch."""

    packages = ()
    _steps = None

    def prepare(self, *arguments):
        """Compiles the step of a case, and runs each batch twice. Returns facts about it, with `seconds` of a step."""
        self._steps = None
        gc.collect()
        facts, number = self._prepare(*arguments)
        self.turn(number)
        return facts | {"seconds": self.turn(number)["seconds"]}

    def turn(self, number):
        """Runs steps, after an unmeasured one. Returns `seconds` of a step, and of training `loss` and `gradient_norm`
        of the last."""
        self._steps.run(0)
        self._steps.wait()
        start = time.perf_counter()
        for i in range(number):
            self._steps.run(i)
        self._steps.wait()
        seconds = (time.perf_counter() - start) / number
        return {"seconds": seconds, **dict(zip(("loss", "gradient_norm"), self._steps.last(), strict=False))}

    def facts(self):
        """Names of the device and of the versions."""
        versions = {}
        for package in self.packages:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[package] = metadata.version(package)
        return {"device": self._device_name(), "versions": versions}

    def matrix_rate(self, size, repeats=10):
        """Floating-point operations per second of bfloat16 products of random [size, size] matrices: the fastest of
        five times `repeats` of them."""
        multiply, wait = self._product(size)
        seconds = []
        for _ in range(6):  # the first compiles
            start = time.perf_counter()
            for _ in range(repeats):
                result = multiply()
            wait(result)
            seconds.append(time.perf_counter() - start)
        return 2 * size**3 * repeats / min(seconds[1:])


class Lmrep(Framework):
    """JAX, with memory allocated as it is needed."""

    packages = "jax", "jaxlib", "jax-cuda13-plugin", "nvidia-cudnn-cu13", "flax", "optax", "orbax-checkpoint", "numpy"

    def __init__(self, device):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:
            os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", str(MEMORY))
        jax.config.update("jax_platforms", device)
        jax.devices()

    def _device_name(self):
        return jax.devices()[0].device_kind

    def _prepare(self, system, batches, attention):
        jax.clear_caches()
        execution = Execution(dtype="bfloat16", attention=attention)
        if system.objective == GENERATION:
            self._steps = LmrepTexts(system, batches, execution)
            return {"attention": "xla"}, len(batches)
        self._steps = LmrepSteps(system, batches, execution)
        used, needs = "xla", MODELS[name_of(system.config)].attention(system.config)
        if needs is not None:
            needs = needs._replace(dtype="bfloat16", length=system.length, causal=system.objective == "causal")
            used = attention_backends.resolve(attention, needs, jax_platform()).name
        return {"flops": self._steps.flops, "attention": used}, len(batches)

    def _product(self, size):
        x, y = (jax.random.normal(jax.random.key(i), (size, size), jnp.bfloat16) for i in range(2))
        product = jax.jit(jnp.matmul)
        return lambda: product(x, y), jax.block_until_ready

    def check(self, name, *arguments):
        """Results of a check of `accelerator_checks`."""
        return CHECKS[name](*arguments)


class Transformers(Framework):
    """PyTorch."""

    packages = "torch", "transformers"

    def __init__(self, device):
        import torch

        jax.config.update("jax_platforms", "cpu")  # it draws the spans of T5, before the steps
        torch.set_float32_matmul_precision("high")
        self._torch, self._device = torch, device
        if device == "cuda":
            torch.cuda.set_per_process_memory_fraction(MEMORY)

    def _device_name(self):
        return self._torch.cuda.get_device_name() if self._device == "cuda" else processor()

    def _prepare(self, system, batches, compiled):
        self._torch.compiler.reset()
        if self._device == "cuda":
            self._torch.cuda.empty_cache()
        self._steps = TransformersTexts(system, batches, self._device) if system.objective == GENERATION else \
            TransformersSteps(system, batches, compiled, self._device, "bfloat16")
        return {}, len(batches)

    def _product(self, size):
        x, y = (self._torch.randn(size, size, device=self._device, dtype=self._torch.bfloat16) for _ in range(2))

        def wait(result):
            if self._device == "cuda":
                self._torch.cuda.synchronize()

        return lambda: x @ y, wait


FRAMEWORKS = {"lmrep": Lmrep, "transformers": Transformers}
