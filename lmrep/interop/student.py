"""A student that starts from layers of its teacher (Sanh et al., 2019), as the fields of an experiment's config."""

import os

import ml_collections

from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.interop import checkpoint_config, init_from


def pick(depth: int, layers: int) -> list[int]:
    """The numbers of `layers` of a teacher's `depth` layers, from 0, evenly spaced from the first to the last: 0, 2, 4,
    7, 9, 11 for 6 of 12, as released."""
    if not 0 < layers <= depth:
        raise UserError(f"layers is {layers}, and the teacher has {depth}; expected 1 to {depth}")
    return [round(i * (depth - 1) / (layers - 1)) for i in range(layers)] if layers > 1 else [0]


def follow(
    config: ml_collections.ConfigDict, teacher: str | os.PathLike, layers: int = 0, start: bool = True,
    head: bool = True,
) -> None:
    """Sets, in place, a student of a teacher: its tokenizer and its network, with fewer layers and without token types.

    Args:
      config: of an experiment with a distillation objective.
      teacher: a workdir or a published directory.
      layers: of the student; 0: half of the teacher's.
      start: whether it starts from the teacher's parameters, layers by `pick`; otherwise from random ones.
      head: whether the dense layer and the norm of the masked-LM head do too. (The output bias always does.)

    Raises:
      UserError: there is no teacher, or it has fewer layers.
    """
    path = remote.as_url(teacher) or str(init_from.directory_of(teacher, "teacher").absolute())
    network, _ = checkpoint_config.adopt_tokenizer(config, teacher)
    depth = network["layers"]
    layers = layers or max(1, depth // 2)
    kept = {name: config.model[name] for name in checkpoint_config.dropout_fields(network) if name in config.model}
    config.model = {**network, **kept, "layers": layers, **({"token_types": 0} if "token_types" in network else {})}
    if network.get("max_length"):
        config.length = min(config.length, network["max_length"])
    config.frozen = {"teacher": path}
    if not start:
        return
    config.init = path
    chosen = ",".join(map(str, pick(depth, layers)))
    shared = network.get("share", "none") != "none"
    config.init_mapping = {"encoder": "encoder"} if shared else {"encoder/layers": f"encoder/layers[{chosen}]"}
    if not head and config.objective.name == "distillation":
        config.init_mapping.update({f"objective/masked/{name}": "" for name in ("transform", "norm")})
