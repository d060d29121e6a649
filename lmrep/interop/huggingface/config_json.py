"""Reads and writes config.json by a table of its keys: for each key its default in the library, the field of our config
that has its value, and its other names."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from lmrep.config.record import Bounds, read
from lmrep.core.errors import UserError, published_names
from lmrep.models import MODELS

# The library's names of activations -> ours. The first of several names is written.
ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
               "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "relu": "relu",
               "tanh": "tanh", "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu"}
# The fields of the Transformer in which its layers are those of Vaswani et al. (2017).
ORIGINAL_LAYERS = {"norm_kind": "layer", "first_norm": True, "bias": True, "gated": False, "window": 0,
                   "convolution": 0, "query_key_norm": False, "layer_weights": "none",
                   "attention_cap": 0.0, "logit_cap": 0.0, "mask_decoder": 0}
MAX_SIZE = 2**24  # of any size in a config.json


class Key(NamedTuple):
    """A key of a config.json."""

    type: Any  # of its value
    default: Any  # in the library
    ours: str  # the field of our config that has its value; "" for none
    also: Sequence[str]  # other keys with the same meaning
    values: Mapping[str, str]  # {value of the key: value of our field}; {} if they are the same
    bounds: Bounds  # of its value


def key(default: Any, ours: str = "", also: Sequence[str] = (), values: Mapping[str, str] = {}, type_: Any = None,
        **bounds: Any) -> Key:
    """Makes a key. Its type is that of its default, unless `type_` is given; `bounds` are fields of `Bounds`."""
    bounds = Bounds(choices=tuple(values), **bounds) if values else Bounds(**bounds)
    return Key(type_ or type(default), default, ours, also, values, bounds)


def size(default: int | None, ours: str = "", also: Sequence[str] = (), at_least: int = 1) -> Key:
    """Makes a key that is a size; it may be null if its default is None."""
    return key(default, ours, also, type_=int | None if default is None else int, at_least=at_least, at_most=MAX_SIZE)


def rate(default: float, ours: str = "") -> Key:
    """Makes a key that is a dropout rate."""
    return key(default, ours, at_least=0, below=1)


def only(value: Any) -> Key:
    """Makes a key that may only have one value."""
    return key(value, choices=(value,))


def activation(default: str, names: Mapping[str, str] = ACTIVATIONS) -> Key:
    """Makes a key for the activation of the feed-forward blocks; `names` maps the library's names to ours."""
    return key(default, "activation", values=names)


class Mismatch(UserError):
    """A family cannot hold a network, because of `fields` of its config."""

    def __init__(self, fields: Sequence[str]):
        super().__init__(", ".join(fields))
        self.fields = list(fields)


# The keys that all families have.
COMMON = {"pad_token_id": size(None, at_least=0), "tie_word_embeddings": key(True, "tied")}


@dataclass(frozen=True)
class ConfigTable:
    """The correspondence of a family's config.json and our config."""

    keys: Mapping[str, Key]  # A feed-forward width that is null or has no key is 4 d.
    # fields of our config that are the same for all networks of the family, and decide what these compute
    fixed: Mapping[str, Any]
    # fields of our config that only matter in training: initialization, and where dropout acts
    initial: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    network: str = "transformer"  # a name in `lmrep.models.MODELS`

    def __post_init__(self):
        object.__setattr__(self, "keys", COMMON | self.keys)
        frame = sys._getframe()
        while frame.f_globals["__name__"] in (__name__, "dataclasses"):
            frame = frame.f_back
        object.__setattr__(self, "module", frame.f_globals["__name__"])  # the family's, for messages

    @cached_property
    def record(self) -> type:
        """The dataclass of the values of the keys."""
        return dataclasses.make_dataclass("Keys", [
            (name, key.type, dataclasses.field(default=key.default, metadata={"bounds": key.bounds}))
            for name, key in self.keys.items()], frozen=True)

    def read(self, config_json: Mapping[str, Any], path: str, tensors: Any = None) -> Any:
        """Converts a config.json to our config, as `Family.config_from`."""
        return self.config(self.values(config_json, path), path)

    def values(self, config_json: Mapping[str, Any], path: str) -> Any:
        """Reads the keys of a config.json, under any of their names, into a record. Raises UserError."""
        known = {}
        for key_name, key in self.keys.items():
            for name in (key_name, *key.also):
                value = config_json.get(name)
                if value is None:
                    continue
                if len(str(value)) > 100:
                    raise UserError(f"{path} has a value of more than 100 characters at {name}; download it again")
                if known.setdefault(key_name, value) != value:
                    raise UserError(f"{path} has {key_name} {known[key_name]} and {name} {str(value)[:80]}, which mean "
                                    "the same; delete the one that is wrong")
        return read(self.record, known, path, suggest=False)

    def config(self, values: Any, path: str, **fields: Any) -> Any:
        """Makes our config from the record of keys and further `fields`. Raises UserError with the names of keys."""
        ours = {key.ours: key.values.get(value := getattr(values, name), value)
                for name, key in self.keys.items() if key.ours}
        names = {key.ours: name for name, key in self.keys.items() if key.ours}
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
        ours = {key.ours for key in self.keys.values()}
        wrong = [*(name for name, value in self.fixed.items() if getattr(config, name) != value), *wrong]
        if config.table_width != config.width and "embedding" not in ours:
            wrong.append("embedding")
        if config.mlp != 4 * config.width and "mlp" not in ours:
            wrong.append("mlp")
        written = {}
        for name, key in self.keys.items():
            if key.ours:
                value = config.table_width if key.ours == "embedding" else getattr(config, key.ours)
                names = {ours: theirs for theirs, ours in reversed((key.values or {value: value}).items())}
                if value not in names:
                    wrong.append(key.ours)
                written[name] = names.get(value)
        if wrong:
            raise Mismatch(wrong)
        return written
