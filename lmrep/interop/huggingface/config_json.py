"""Reads and writes config.json by a record of its keys, which gives for each key its default in the library, the field
of our config that has its value, and its other names."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmrep.config.record import Bounds, read
from lmrep.core.errors import UserError, published_names
from lmrep.models import MODELS

# The library's names of activations -> ours. The first of several names is written.
ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
               "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "relu": "relu",
               "tanh": "tanh", "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu"}
MAX_SIZE = 2**24  # of any size in a config.json


def key(default: Any, ours: str = "", also: Sequence[str] = (), values: Mapping[str, str] | None = None,
        **bounds: Any) -> Any:
    """Declares a key of a config.json.

    Args:
      default: its default in the library.
      ours: the field of our config that has its value; "" for none.
      also: other keys with the same meaning.
      values: {value of the key: value of our field}, if they differ.
      **bounds: the fields of `Bounds` that limit its value.
    """
    bounds = Bounds(choices=tuple(values), **bounds) if values else Bounds(**bounds)
    return dataclasses.field(default=default, metadata={
        "bounds": bounds, "ours": ours, "also": also, "values": values})


def size(default: int | None, ours: str = "", also: Sequence[str] = ()) -> Any:
    """Declares a key that is a size."""
    return key(default, ours, also, at_least=1, at_most=MAX_SIZE)


def rate(default: float, ours: str = "") -> Any:
    """Declares a key that is a dropout rate."""
    return key(default, ours, at_least=0, below=1)


def only(value: Any) -> Any:
    """Declares a key that may only have one value."""
    return key(value, choices=(value,))


def activation(default: str, names: Mapping[str, str] = ACTIVATIONS) -> Any:
    """Declares a key for the activation of the feed-forward blocks; `names` maps the library's names to ours."""
    return key(default, "activation", values=names)


class Mismatch(UserError):
    """A family cannot hold a network, because of `fields` of its config."""

    def __init__(self, fields: Sequence[str]):
        super().__init__(", ".join(fields))
        self.fields = list(fields)


@dataclass(frozen=True)
class Keys:
    """The keys that all families have."""

    pad_token_id: int | None = key(None, at_least=0, at_most=MAX_SIZE)
    tie_word_embeddings: bool = key(True, "tied")


@dataclass(frozen=True)
class ConfigTable:
    """The correspondence of a family's config.json and our config."""

    keys: type  # the record of its keys. A feed-forward width that is null or has no key is 4 d.
    # fields of our config that are the same for all networks of the family, and decide what these compute
    fixed: Mapping[str, Any]
    # fields of our config that only matter in training: initialization, and where dropout acts
    initial: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    network: str = "transformer"  # a name in `lmrep.models.MODELS`

    @property
    def ours(self) -> dict[str, str]:
        """{key: our field}."""
        return {key.name: key.metadata["ours"] for key in dataclasses.fields(self.keys) if key.metadata["ours"]}

    def read(self, config_json: Mapping[str, Any], path: str, tensors: Any = None) -> Any:
        """Converts a config.json to our config, as `Family.config_from`."""
        return self.config(self.values(config_json, path), path)

    def values(self, config_json: Mapping[str, Any], path: str) -> Any:
        """Reads the keys of a config.json, under any of their names, into a record. Raises UserError."""
        known = {}
        for key in dataclasses.fields(self.keys):
            for name in (key.name, *key.metadata["also"]):
                value = config_json.get(name)
                if value is None:
                    continue
                if len(str(value)) > 100:
                    raise UserError(f"{path} has a value of more than 100 characters at {name}; download it again")
                if known.setdefault(key.name, value) != value:
                    raise UserError(f"{path} has {key.name} {known[key.name]} and {name} {str(value)[:80]}, which mean "
                                    "the same; delete the one that is wrong")
        return read(self.keys, known, path, suggest=False)

    def config(self, values: Any, path: str, **fields: Any) -> Any:
        """Makes our config from the record of keys and further `fields`. Raises UserError with the names of keys."""
        ours = {key.metadata["ours"]: (key.metadata["values"] or {}).get(value, value)
                for key in dataclasses.fields(self.keys) if key.metadata["ours"]
                for value in (getattr(values, key.name),)}
        names = {field: key for key, field in self.ours.items()}
        width, heads = ours["width"], ours["heads"]
        if width % heads and "head_width" not in ours:
            raise UserError(f"{path} has {names['width']} {width}, which its {heads} heads do not divide")
        if ours.get("embedding") == width:
            ours["embedding"] = 0
        ours["mlp"] = ours.get("mlp") or 4 * width
        definition = MODELS[self.network]
        config = definition.config(**{**self.fixed, **self.initial, **ours, **fields})
        with published_names(path, names):
            definition.check(config)
        return config

    def write(self, config: Any, wrong: Sequence[str] = ()) -> dict[str, Any]:
        """Converts our config to keys, as `Family.config_to`. `wrong` are fields already known not to fit. Raises
        Mismatch."""
        ours = self.ours.values()
        wrong = [*(name for name, value in self.fixed.items() if getattr(config, name) != value), *wrong]
        if config.table_width != config.width and "embedding" not in ours:
            wrong.append("embedding")
        if config.mlp != 4 * config.width and "mlp" not in ours:
            wrong.append("mlp")
        written = {}
        for key in dataclasses.fields(self.keys):
            if field := key.metadata["ours"]:
                value = config.table_width if field == "embedding" else getattr(config, field)
                names = {ours: name for name, ours in reversed((key.metadata["values"] or {value: value}).items())}
                if value not in names:
                    wrong.append(field)
                written[key.name] = names.get(value)
        if wrong:
            raise Mismatch(wrong)
        return written
