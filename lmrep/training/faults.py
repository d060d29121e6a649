"""Policies for faulty batches, and the message for a device that is out of memory.

A batch is faulty if its loss or gradient is not finite, if it has no targets (`step.fewest_targets`), or if its loss is
a spike: more than `spike` times the median of the losses before it. Depending on the policy, the run then

- stops: nothing of that step is saved;
- skips the update: parameters, moments and averages stay bit-identical. The step of the run advances; the optimizer's
  count, which its schedule and bias correction use, does not;
- goes back to the last valid checkpoint and skips the batches up to and including the faulty one.

After a skipped update or batch, the next batch may continue sequences whose last part the carry has not seen. So
`carry.per_example` (recurrent states, memories) returns to its initial value; `carry.shared` is kept.

All inputs of these decisions are in the checkpoints: a run that was killed anywhere, and resumes under the same policy,
makes the same decisions. The largest loss of step n depends on the losses up to step n - 2, the newest that the host is
sure to know when it starts step n. Every fault is a line of faults.jsonl: step, stage, reason, action, the batch's
examples.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh

from lmrep.config.record import setting
from lmrep.core.errors import RunFault, UserError
from lmrep.core.sharding import batch_sharding
from lmrep.training.stages import Stage

NO_TARGETS = "the batch has no targets: nothing in it is predicted"
MORE_TARGETS = ("Give longer texts, raise objective.rate, or predict single tokens (objective.whole_word=False, "
                "objective.ngram=0)")
ADVICE = ("Lower optimizer.learning_rate, lengthen the warm-up or set optimizer.clip, and start again in a new "
          "workdir; or resume this one and pass over the batch: --config.faults.policy=skip or back")


@dataclass(frozen=True)
class FaultsConfig:
    """What to do about faults of a long run. A run without faults does not depend on it."""

    policy: str = setting("stop", "after a loss or gradient that is not finite, a batch without targets, or a spike: "
                          "stop; skip that update; or go back to the last checkpoint and skip the batches since",
                          choices=("stop", "skip", "back"))
    spike: float = setting(0.0, "a loss above this many times the median of the losses before it is a spike; 0: no "
                           "spikes", at_least=0)
    window: int = setting(64, "number of losses in the median; no loss is a spike before there are as many",
                          at_least=1)
    limit: int = setting(10, "number of faults that a run skips or goes back for; the next one stops it", at_least=1)
    patience: float = setting(0.0, "with several processes: seconds that one may be silent or make no progress before "
                              "the others report it and exit; 0: no watchdog", at_least=0)


def check(config: FaultsConfig) -> None:
    """Raises UserError if `spike` is positive but not above 1."""
    if 0 < config.spike <= 1:
        raise UserError(f"faults.spike is {config.spike:g}, which the median itself exceeds; expected above 1, such as "
                        "10, or 0 for no spikes")


@dataclass(eq=False)
class Rewind(Exception):
    """Raised by the training loop to go back because of a fault."""

    step: int | None  # the checkpoint to continue from; None: the start of the run
    stage: int  # the index of the stage with the fault


class Losses:
    """The last losses of a run, and the largest loss that is not a spike.

    Args:
      config: the config, with `spike` and `window`.
      history: the history from a checkpoint.

    Attributes:
      history: (step, loss) pairs of the steps without a fault.
    """

    def __init__(self, config: FaultsConfig, history: Iterable[tuple[int, float]] = ()):
        self._config = config
        self.history = deque(((int(step), float(loss)) for step, loss in history), maxlen=config.window + 1)

    def max_loss(self, step: int) -> np.float32:
        """Returns the largest loss of `step` that is not a spike. It does not depend on the last two steps before
        `step`, which the host may not know yet."""
        losses = [loss for earlier, loss in self.history if earlier <= step - 2][-self._config.window :]
        if not self._config.spike or len(losses) < self._config.window:
            return np.float32(np.inf)
        return np.float32(self._config.spike * float(np.median(losses)))


def fault_reason(loss: float, gradient_norm: float, max_loss: float, targets: float = math.inf) -> str:
    """Returns the reason why a batch is faulty, or "" if it is not, by the same comparisons as `step.train_step`."""
    if not targets:
        return NO_TARGETS
    for name, value in (("loss", loss), ("gradient norm", gradient_norm)):
        if not np.isfinite(value):
            return f"the {name} is {value}"
    return f"the loss is {loss:.4g}, a spike: above {max_loss:.4g}" if loss > max_loss else ""


def fault_error(reason: str, step: int, stage: Stage, examples: list[int], advice: str = ADVICE) -> RunFault:
    """Makes the error for a fault that ends the run."""
    listed = ", ".join(map(str, examples[:32])) + (", ..." if len(examples) > 32 else "")
    location = f"stage {stage.name!r}, examples {listed}" if examples else f"stage {stage.name!r}"
    advice = MORE_TARGETS if reason == NO_TARGETS else advice
    return RunFault(f"{reason} at step {step:,} ({location}); this state is not saved. {advice}")


def out_of_memory_error(error: Exception, stage: Stage, length: int | None, mesh: Mesh) -> RunFault | None:
    """Makes the error for a device that is out of memory; returns None if `error`, raised by JAX, has another cause.
    `length` is the number of tokens per example of the stage's batches, None before the first batch."""
    if "RESOURCE_EXHAUSTED" not in str(error):
        return None
    message = " ".join(str(error).partition("RESOURCE_EXHAUSTED:")[2].split())[:160]
    per_device, microbatches = batch_sharding(mesh).shard_shape((stage.batch_size,))[0], stage.microbatches
    examples = f"{per_device:,} examples" + (f" of {length:,} tokens" if length else "")
    return RunFault(
        f"out of memory in stage {stage.name!r}: {message}. Each of {mesh.size} device(s) has {examples} of batch_size="
        f"{stage.batch_size}, in {microbatches} microbatch(es) of {-(-per_device // microbatches):,}. Raise "
        f"microbatches (for example to {2 * microbatches}: the numbers stay the same), or set execution.remat=full, "
        "execution.attention=chunked (for long sequences), execution.dtype=bfloat16 or mesh.fsdp=-1 (which shards "
        "parameters and moments); then lower length or batch_size. The last checkpoint is intact")
