"""Makes the config of a student that starts from layers of its teacher (Sanh et al., 2019)."""

import os

import ml_collections

from lmrep.core.errors import UserError
from lmrep.experiment.config import model_def
from lmrep.interop import checkpoint_config


def pick_layers(depth: int, layers: int) -> list[int]:
    """Picks the indices of `layers` of a teacher's `depth` layers, evenly spaced from the first to the last: 0, 2, 4,
    7, 9, 11 for 6 of 12, as in the released DistilBERT. Raises UserError if there are too few."""
    if not 0 < layers <= depth:
        raise UserError(f"layers is {layers}, and the teacher has {depth}; expected 1 to {depth}")
    return [round(i * (depth - 1) / (layers - 1)) for i in range(layers)] if layers > 1 else [0]


def follow(
    config: ml_collections.ConfigDict, teacher: str | os.PathLike, layers: int = 0, start: bool = True,
    head: bool = True,
) -> ml_collections.ConfigDict:
    """Returns `config` with the tokenizer and the network of a teacher, with fewer layers and without token types, and
    with the teacher as a frozen part.

    Args:
      teacher: a workdir or a published directory.
      layers: the number of layers of the student; 0 for half of the teacher's.
      start: whether the student starts from the teacher's parameters, with the layers of `pick_layers`; otherwise from
        random ones.
      head: whether the dense layer and the norm of the masked-LM head start from the teacher's too; the output bias
        always does.

    Raises:
      UserError: there is no teacher, or it has fewer layers.
    """
    path, network, tokenizer, _ = checkpoint_config.facts(teacher, field="teacher")
    config = config.copy_and_resolve_references()
    config.tokenizer.update(tokenizer)
    depth = network["layers"]
    layers = layers or max(1, depth // 2)
    dropout = {name: config.model[name] for name in model_def(network).dropout_fields if name in config.model}
    config.model = {**network, **dropout, "layers": layers, **({"token_types": 0} if "token_types" in network else {})}
    if network.get("max_length"):
        config.length = min(config.length, network["max_length"])
    config.frozen = {"teacher": path}
    if not start:
        return config
    config.init = path
    chosen = ",".join(map(str, pick_layers(depth, layers)))
    shared = network.get("share", "none") != "none"
    config.init_mapping = {"encoder": "encoder"} if shared else {"encoder/layers": f"encoder/layers[{chosen}]"}
    if not head and config.objective.name == "distillation":
        config.init_mapping.update({f"objective/masked/{name}": "" for name in ("transform", "norm")})
    return config
