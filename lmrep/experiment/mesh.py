"""The mesh of devices as a choice of a config."""

import dataclasses
import math
from dataclasses import dataclass

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.sharding import axis_names


@dataclass(frozen=True)
class MeshConfig:
    """The size of each axis of the device mesh (see `lmrep.core.sharding`)."""

    data: int = setting(-1, "data parallelism: copies of the model; -1: all remaining devices", at_least=-1)
    fsdp: int = setting(1, "shards of parameters and batch, gathered before use; -1: all remaining devices",
                        at_least=-1)
    tensor: int = setting(1, "shards of heads, feed-forward width and vocabulary", at_least=1)
    sequence: int = setting(1, "shards of each sequence, for long inputs; attention gathers keys and values",
                            at_least=1)

    def sizes(self, devices: int) -> tuple[int, ...]:
        """(data, fsdp, tensor), and sequence if that is above 1, on that many devices; raises UserError where they do
        not fit."""
        sizes = [self.data, self.fsdp, self.tensor, *([self.sequence] if self.sequence > 1 else [])]
        rest = sizes.count(-1) == 1 and 0 not in sizes
        if rest:
            sizes[sizes.index(-1)] = devices // -math.prod(sizes)
        used = math.prod(sizes)
        if min(sizes) < 1 or used > devices or (rest and used < devices):
            given = dataclasses.asdict(self)
            axes = ", ".join(f"{name}={given[name]}" for name in axis_names(sizes))
            raise UserError(f"mesh is {axes}, and there are {devices} device(s); expected sizes whose product is the "
                            "number of devices (one may be -1: the remaining ones)")
        return tuple(sizes)


def parse_mesh(text: str) -> dict[str, int]:
    """The mesh that an experiment's `mesh=` names: "data", "fsdp", or sizes as "2x2x2" (data x fsdp x tensor) and
    "2x1x1x4" (data x fsdp x tensor x sequence).

    Raises:
      UserError: it is none of these.
    """
    named = {"data": (-1, 1, 1), "fsdp": (1, -1, 1)}
    sizes = named.get(text) or tuple(int(n) if n.isdecimal() else 0 for n in text.split("x"))
    if len(sizes) not in (3, 4) or 0 in sizes:
        raise UserError(f"mesh is {text!r}; expected data, fsdp, or sizes data x fsdp x tensor such as 2x2x2, or "
                        "data x fsdp x tensor x sequence such as 2x1x1x4")
    data, fsdp, tensor, sequence = (*sizes, 1)[:4]
    return {"data": data, "fsdp": fsdp, "tensor": tensor, "sequence": sequence}
