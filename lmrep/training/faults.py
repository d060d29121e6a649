"""What a run does about a batch that it cannot learn from, and what it tells of a device that is full.

A batch is at fault where its loss or gradient is not finite, or where its loss is a spike: more than `spike` times
the median of the losses before it. By policy the run then

- stops: nothing of that step is saved;
- skips it: inside the step, parameters, moments, averages and carry stay as they are, to the bit. The step counts, the
  optimizer's own count (its schedule, its bias correction) does not;
- goes back to the last checkpoint that verifies, and leaves out the batches from there to the one at fault, so that the
  step after the checkpoint shows the batch that came next.

All that decides is in the checkpoints: a run that was killed anywhere, and goes on under the same policy, makes the
same decisions. The limit for step n is of the losses up to step n - 2, the newest that the host is sure to know when it
hands out step n. Every fault is a line of faults.jsonl: step, stage, why, what was done, the batch's examples.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from lmrep.config.record import setting
from lmrep.core.errors import RunFault, UserError
from lmrep.core.sharding import batch_sharding, replicated
from lmrep.training.stages import Stage

MEND = ("Lower optimizer.learning_rate, lengthen the warm-up or set optimizer.clip, and start again in a new workdir; "
        "or go on in this one past the batch: --config.faults.policy=skip or back")


@dataclass(frozen=True)
class FaultsConfig:
    """What to do about faults of a long run. Nothing here changes a run that has none."""

    policy: str = setting("stop", "after a loss or gradient that is not finite, or a spike: stop; skip that update; or "
                          "go back to the last checkpoint and leave out the batches since",
                          choices=("stop", "skip", "back"))
    spike: float = setting(0.0, "a loss above this many times the median of those before it is a spike; 0: none is",
                           at_least=0)
    window: int = setting(64, "losses that the median is of; before there are as many none is a spike", at_least=1)
    limit: int = setting(10, "faults that a run may skip or go back for; the next one stops it", at_least=1)
    patience: float = setting(0.0, "in a run of several processes: seconds that one may be silent or stand still before "
                              "the others name it and exit; 0: no watchdog", at_least=0)


def check(config: FaultsConfig) -> None:
    """Raises UserError where the fields make no sense."""
    if 0 < config.spike <= 1:
        raise UserError(f"faults.spike is {config.spike:g}, which the median itself exceeds; expected above 1, 10 say, "
                        "or 0 for no spikes")


class Rewind(Exception):
    """Raised through the loop: the run is to go on from checkpoint `step`, or from its start where that is None."""

    def __init__(self, step: int | None):
        super().__init__(step)
        self.step = step


class Losses:
    """The last losses of a run, and the largest that the next may have.

    Args:
      config: says how many, and how far above them is too far.
      seen: (step, loss) pairs, as `seen` gave them.
    """

    def __init__(self, config: FaultsConfig, seen: Iterable[tuple[int, float]] = ()):
        self._config = config
        self._seen = deque(((int(step), float(loss)) for step, loss in seen), maxlen=config.window + 1)

    def add(self, step: int, loss: float) -> None:
        """Tells of the loss of a step that was no fault."""
        self._seen.append((step, loss))

    def limit(self, step: int) -> np.float32:
        """The largest loss of that step which is no spike, whether the host knows of the step before it or not."""
        losses = [loss for known, loss in self._seen if known <= step - 2][-self._config.window :]
        if not self._config.spike or len(losses) < self._config.window:
            return np.float32(np.inf)
        return np.float32(self._config.spike * float(np.median(losses)))

    @property
    def seen(self) -> list[tuple[int, float]]:
        """What a checkpoint holds; JSON."""
        return [*self._seen]


def reason(loss: float, gradient_norm: float, limit: float) -> str:
    """Why a batch is at fault, or "" where it is not; the same comparison as inside the step."""
    for name, value in (("loss", loss), ("gradient norm", gradient_norm)):
        if not np.isfinite(value):
            return f"the {name} is {value}"
    return f"the loss is {loss:.4g}, and a spike is what is above {limit:.4g}" if loss > limit else ""


def examples(numbers: jax.Array, mesh: Mesh) -> list[int]:
    """The numbers of a batch's examples on every host; each calls this."""
    return np.asarray(jax.jit(lambda x: x, out_shardings=replicated(mesh))(numbers)).tolist()


def stopped(why: str, step: int, stage: Stage, numbers: list[int], more: str = MEND) -> RunFault:
    """What to tell of a fault that ends the run."""
    named = ", ".join(map(str, numbers[:32])) + (", ..." if len(numbers) > 32 else "")
    place = f"stage {stage.name!r}, examples {named}" if numbers else f"stage {stage.name!r}"
    return RunFault(f"{why} at step {step:,} ({place}); this state is not saved. {more}")


def out_of_memory(error: Exception, stage: Stage, length: int | None, mesh: Mesh) -> RunFault | None:
    """What to tell of a device that has no memory left; None where the error is another.

    Args:
      length: tokens a row of the stage's batches; None where there was none yet.
    """
    if "RESOURCE_EXHAUSTED" not in str(error):
        return None
    said = " ".join(str(error).partition("RESOURCE_EXHAUSTED:")[2].split())[:160]
    rows = batch_sharding(mesh).shard_shape((stage.batch_size,))[0]
    parts = stage.microbatches
    held = f"{rows:,} rows" + (f" of {length:,} tokens" if length else "")
    return RunFault(
        f"out of memory in stage {stage.name!r}: {said}. Each of {mesh.size} device(s) has {held} of batch_size="
        f"{stage.batch_size}, in {parts} microbatch(es) of {-(-rows // parts):,}. Raise microbatches (to "
        f"{2 * parts}, say: the numbers stay), or set execution.remat=full, execution.dtype=bfloat16 or mesh.fsdp=-1 "
        "(which cuts parameters and moments); then less length or batch_size. The last checkpoint is untouched")
