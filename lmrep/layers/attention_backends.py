"""Implementations of attention, by name, and the choice among them.

Each declares what it supports. A run that needs more is refused with the fields to change; `auto` takes the
implementation that is expected to be the fastest of those that support everything.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from lmrep.core import sharding
from lmrep.core.errors import UserError
from lmrep.layers import chunked_attention, fused_attention, local_attention
from lmrep.layers.attention import Attend, AttentionMask, dense


class Needs(NamedTuple):
    """What attention has to honour."""

    head_width: int
    dtype: str = "float32"
    length: int = 1  # positions of a sequence
    packed: bool = True  # whether a sequence may hold several segments
    causal: bool = False
    mask: bool = False  # whether there is a mask beside segments and causality
    dropout: bool = False  # on the probabilities
    sharded: bool = False  # whether the positions of a sequence are on several devices
    capped: bool = False  # whether logits are soft-capped


class Backend(NamedTuple):
    """An implementation and what it honours. All take sequences of any length and causal masks."""

    attend: Callable[..., Attend]  # AttentionMask -> `Attend`; with `capped`, (AttentionMask, cap=) too
    platforms: tuple[str, ...] = ()  # where it runs; none: everywhere
    packed: bool = True  # whether it keeps the segments of a sequence apart
    mask: bool = True  # whether it takes `AttentionMask.mask`
    dropout: bool = True  # whether it has dropout that is the same on every mesh and when a run is resumed
    sharded: bool = True  # whether it takes sequences that are on several devices
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # in which it computes
    width_multiple: int = 1  # of which the width of a head is a multiple
    max_width: int = 0  # of a head; 0 for any
    capped: bool = False  # whether it has `soft_cap` on the logits
    windows: tuple[bool, ...] = ()  # the values of `AttentionMask.causal` with which it takes `AttentionMask.window`


ATTENTION: dict[str, Backend] = {
    "xla": Backend(lambda mask, cap=0.0: dense(mask.to_bool(), cap=cap), capped=True, windows=(False, True)),
    "chunked": Backend(chunked_attention.attend, capped=True),
    "cudnn": Backend(fused_attention.cudnn, platforms=("gpu",), packed=False, mask=False, dropout=False,
                     sharded=False, dtypes=("bfloat16",), width_multiple=8, max_width=128, windows=(True,)),
    "splash": Backend(fused_attention.splash, platforms=("tpu",), mask=False, dropout=False, sharded=False,
                      capped=True, windows=(False, True)),
}
AUTO = "auto"
EVERYWHERE = tuple(name for name, backend in ATTENTION.items() if not backend.platforms and backend.dropout)

# By platform, the backends that are expected to be faster than xla, the fastest first, and from which length on. Those
# of the CPU were measured (`experiments/benchmarks/attention.py`): chunked takes half the time at 4,096, the same time
# and 0.6 of the memory at 2,048, and a little more time at 1,024. On GPUs and TPUs nothing was timed: the vendor's
# kernel is assumed to be faster on long sequences, and chunked is there for its memory.
FASTER: dict[str, tuple[tuple[str, int], ...]] = {
    "cpu": (("chunked", 2048),),
    "gpu": (("cudnn", 512), ("chunked", 4096)),
    "tpu": (("splash", 512), ("chunked", 4096)),
}


class Choice(NamedTuple):
    """The backend that is used, and by name those that would be preferred, each with the reason that rules it out."""

    name: str
    ruled_out: dict[str, str]


def reasons(name: str, needs: Needs, platform: str | None = None) -> list[str]:
    """Returns the reasons why backend `name` does not honour `needs`, with the fields to change; [] if it does. The
    platform is not checked where it is None."""
    backend, unmet = ATTENTION[name], []
    if platform is not None and backend.platforms and platform not in backend.platforms:
        unmet.append(f"runs on {' and '.join(backend.platforms)}, not on {platform}")
    if needs.packed and not backend.packed:
        unmet.append("does not keep several texts in an example apart: set config.format to one that packs none, or so "
                     "that it does not")
    if needs.mask and not backend.mask:
        unmet.append("takes no mask beside segments and causality")
    if needs.dropout and not backend.dropout:
        unmet.append("has no dropout that every mesh and a resumed run repeat: set model.attention_dropout=0")
    if needs.sharded and not backend.sharded:
        unmet.append("does not shard a sequence: set mesh.sequence=1")
    if needs.capped and not backend.capped:
        unmet.append("has no soft cap on attention logits: set model.attention_cap=0")
    if needs.dtype not in backend.dtypes:
        unmet.append(f"computes in {' or '.join(backend.dtypes)} only: set execution.dtype={backend.dtypes[0]}")
    if needs.head_width % backend.width_multiple or 0 < backend.max_width < needs.head_width:
        unmet.append(f"takes heads whose width is a multiple of {backend.width_multiple} and at most "
                     f"{backend.max_width}, not {needs.head_width}: set model.heads or model.width")
    return unmet


def resolve(name: str, needs: Needs, platform: str | None) -> Choice:
    """Returns the backend that `execution.attention` means on a platform ("cpu", "gpu", "tpu"). Raises UserError if a
    backend is named that does not honour all that is needed."""
    if name != AUTO:
        if unmet := reasons(name, needs, platform):
            fitting = [backend for backend in ATTENTION if not reasons(backend, needs, platform)]
            raise UserError(f"execution.attention is {name}, which {'; it '.join(unmet)}; or set execution.attention "
                            f"to {', '.join((AUTO, *fitting))}")
        return Choice(name, {})
    ruled_out = {}
    for faster, length in FASTER.get(platform, ()):
        if needs.length < length:
            continue
        if not (unmet := reasons(faster, needs, platform)):
            return Choice(faster, ruled_out)
        ruled_out[faster] = "; it ".join(unmet)
    return Choice("xla", ruled_out)


_only_dense: contextvars.ContextVar[bool] = contextvars.ContextVar("only_dense", default=False)


@contextlib.contextmanager
def only_dense() -> Iterator[None]:
    """Traces every backend as "xla" in a context: for counting operations, not for running."""
    token = _only_dense.set(True)
    try:
        yield
    finally:
        _only_dense.reset(token)


def bind(
    name: str, mask: AttentionMask, *, head_width: int, dtype: str, dropout: bool, cap: float = 0.0
) -> Attend:
    """Returns the implementation `name`, or what `auto` means for these shapes, under a mask, with a `cap` on logits.
    Called while a program is traced. Raises UserError if the backend does not honour the mask, dropout, dtype, width or
    cap. (Whether sequences are packed cannot be seen here: `auto` takes it that they are.) Under a mask with a window,
    `auto` and those that do not take it are `local_attention`."""
    counted = _only_dense.get() and name != "xla"
    if mask.window and (counted or name == AUTO or mask.causal not in ATTENTION[name].windows):
        return local_attention.attend(mask, cap)
    if counted:
        name = "xla"
    needs = Needs(head_width, dtype, mask.segment_ids.shape[1], packed=name == AUTO, causal=mask.causal,
                  mask=mask.mask is not None, dropout=dropout, sharded=sharding.axis_size(sharding.SEQUENCE) > 1,
                  capped=cap > 0)
    choice = resolve(name, needs, sharding.platform() if name == AUTO else None)
    return ATTENTION[choice.name].attend(mask, **({"cap": cap} if cap else {}))


def describe(choices: Mapping[str, Choice]) -> str:
    """Describes the implementations of attention of all stages in a line."""
    lines = {stage: choice.name + "".join(f" ({name}, which is expected to be faster, {reason})"
                                          for name, reason in choice.ruled_out.items())
             for stage, choice in choices.items()}
    if len(set(lines.values())) == 1:
        return next(iter(lines.values()))
    return "; ".join(f"{line} in stage {stage!r}" for stage, line in lines.items())
