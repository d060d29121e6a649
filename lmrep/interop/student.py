"""A student that starts from layers of its teacher (Sanh et al., 2019), as the fields of an experiment's config."""

import os

import ml_collections

from lmrep.core.errors import UserError
from lmrep.experiment.config import model_def
from lmrep.interop import checkpoint_config


def pick(depth: int, layers: int) -> list[int]:
    """Picks the numbers of `layers` of a teacher's `depth` layers, from 0, evenly spaced from the first to the last: 0,
    2, 4, 7, 9, 11 for 6 of 12, as released."""
    if not 0 < layers <= depth:
        raise UserError(f"layers is {layers}, and the teacher has {depth}; expected 1 to {depth}")
    return [round(i * (depth - 1) / (layers - 1)) for i in range(layers)] if layers > 1 else [0]


def follow(
    config: ml_collections.ConfigDict, teacher: str | os.PathLike, layers: int = 0, start: bool = True,
    head: bool = True,
) -> ml_collections.ConfigDict:
    """Makes the config of a student of a teacher: with its tokenizer and its network, with fewer layers and without
    token types.

    Args:
      teacher: a workdir or a published directory.
      layers: of the student; 0: half of the teacher's.
      start: whether it starts from the teacher's parameters, layers by `pick`; otherwise from random ones.
      head: whether the dense layer and the norm of the masked-LM head do too. (The output bias always does.)

    Raises:
      UserError: there is no teacher, or it has fewer layers.
    """
    path, network, tokenizer, _ = checkpoint_config.facts(teacher, field="teacher")
    config = config.copy_and_resolve_references()
    config.tokenizer.update(tokenizer)
    depth = network["layers"]
    layers = layers or max(1, depth // 2)
    kept = {name: config.model[name] for name in model_def(network).dropout_fields if name in config.model}
    config.model = {**network, **kept, "layers": layers, **({"token_types": 0} if "token_types" in network else {})}
    if network.get("max_length"):
        config.length = min(config.length, network["max_length"])
    config.frozen = {"teacher": path}
    if not start:
        return config
    config.init = path
    chosen = ",".join(map(str, pick(depth, layers)))
    shared = network.get("share", "none") != "none"
    config.init_mapping = {"encoder": "encoder"} if shared else {"encoder/layers": f"encoder/layers[{chosen}]"}
    if not head and config.objective.name == "distillation":
        config.init_mapping.update({f"objective/masked/{name}": "" for name in ("transform", "norm")})
    return config
