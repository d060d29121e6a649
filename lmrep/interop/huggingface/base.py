"""What describes a family of published checkpoints: `Family`, and helpers for the tables of its parameters' names.

A table maps paths of our parameters to the names of a tensor in files: the first name is the one that is written, the
others occur in published files. Several paths mean that the tensor is these parameters side by side. `{l}` is the
number of a layer, since our layers are stacked. Most kernels in files are [out, in] and ours [in, out].
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lmrep.config.record import read, setting
from lmrep.core.errors import UserError, published_names
from lmrep.interop.heads import HEADS, TASK_HEADS, PublishedTask, task_of
from lmrep.interop.huggingface import task_classes
from lmrep.interop.huggingface.task_classes import TaskClass
from lmrep.models import MODELS

Names = dict[tuple[str, ...], tuple[str, ...]]
Params = Mapping[str, np.ndarray]  # by path

TOKEN = ("encoder/embedding/token",)
POSITION, TOKEN_TYPE = "encoder/embedding/position", "encoder/embedding/token_type"
# One of them is there if a checkpoint has a language model's head with a transform.
TRANSFORMS = ("objective/masked/transform/kernel", "objective/causal/transform/kernel")

# Names of activations in config.json: ours. Of several names of one activation the first is written.
ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
               "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "relu": "relu",
               "tanh": "tanh", "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu"}
MAX_SIZE = 2**24  # of any size in a config.json


def size(default: int | None, help: str) -> Any:
    """A field of a config.json that is a size."""
    return setting(default, help, at_least=1, at_most=MAX_SIZE)


def probability(default: float, help: str) -> Any:
    """A field of a config.json that is a probability."""
    return setting(default, help, at_least=0, below=1)


class Layout(NamedTuple):
    """How files hold a parameter: its shape in one layer, and whether that is [out, in] with axes split."""

    shape: tuple[int, ...]
    transposed: bool = False


class TensorLocation(NamedTuple):
    """Where a tensor of a file is among our parameters."""

    paths: tuple[str, ...]
    layer: int | None  # of a stacked parameter
    transposed: bool
    split: tuple[int, ...] = ()  # its shape, if its axes are those of ours split

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """The tensor's shape, from the shapes of our parameters by path."""
        if self.split:
            return self.split
        own = [shapes[path] if self.layer is None else shapes[path][1:] for path in self.paths]
        *before, last = own[0][::-1] if self.transposed else own[0]
        return (*before, last if len(own) == 1 else sum(shape[-1] for shape in own))

    def read(self, params: Params) -> np.ndarray:
        """The tensor made of our parameters; a view where it is part of one of them."""
        views = self._views(params)
        found = views[0] if len(views) == 1 else np.concatenate(views, axis=-1)
        return found.reshape(self.split) if self.split else found

    def assign(self, tensor: np.ndarray, params: Params) -> None:
        """Writes the tensor into our parameters."""
        start, views = 0, self._views(params)
        tensor = tensor.reshape(views[0].shape) if self.split else tensor
        for view in views:
            view[...] = tensor[..., start : start + view.shape[-1]]
            start += view.shape[-1]

    def _views(self, params: Params) -> list[np.ndarray]:
        views = [params[path] if self.layer is None else params[path][self.layer] for path in self.paths]
        return [view.T for view in views] if self.transposed else views


@dataclass(frozen=True, eq=False)
class Family:
    """A family of published checkpoints: its tensors' names, its config.json, and what a run of it looks like.

    Attributes:
      name: `model_type` in config.json, unless `decoder_of` is.
      classes: the heads of a pretrained checkpoint -> the class of the transformers library.
      tasks: task -> the class of the library for it, and the tensors of its head; base models have no prefix then.
      base: names of the base model's tensors; they follow `prefix` and a dot, except in files of the base model alone
        and in those of `plain_head`.
      heads: names of the heads' tensors, with that of the output layer, which may be the token table.
      prefix: the base model's attribute in its classes with heads.
      record: the keys of config.json that matter, with the library's defaults.
      fields: key of config.json -> field of our network's config.
      architecture: fields of our config that are the same in all its networks, and decide what these compute. Where
        there are several values, a tuple, `from_json` says which.
      initialization: fields of our config that decide how its weights start, and where dropout acts.
      network_name: of its network in `lmrep.models.MODELS`.
      from_json: (values of `record`) -> the fields of our config that are not the value of one key.
      to_json: (our config) -> the keys of config.json for these fields.
      refine: (our config, tensors by name) -> our config, where config.json does not say all.
      depth: (our config, path of a stacked parameter) -> its number of layers.
      layouts: (our config) -> {path: how files hold this parameter}, where that is another shape.
      plain_head: the head, in `HEADS`, that all its checkpoints have (with `optional`), with the tied token table alone
        or an output table; "" for none.
      optional: begins the paths of a part of the network that a checkpoint may lack; "" for none.
      causal: whether it predicts from left to right.
      decoder_of: the family whose networks these are, read from left to right (`is_decoder` in config.json), with a
        head with a transform; "" for a family with networks of its own.
      variant_of: the family whose networks these are, under other names: a network of ours is written as that one.
      read_as: other class of the library -> the class that it is read as, without its other heads.
      transposed: whether kernels are [out, in].
      pad: the id of padding, where config.json has none.
      pads_left: whether padding precedes the tokens.
      positions_key, activation_key: keys of config.json; no `positions_key` for a network without position table.
      activations: name of an activation in config.json -> ours.
      writes_bos_eos: whether config.json has bos_token_id and eos_token_id.
      positions_after_padding: whether position 0 is row pad + 1 of the position table.
      always_projects: whether embeddings are projected even where they are as wide as the network.
      head_activation: activation of the masked-LM head, where that does not follow config.json.
      aliases: other key of config.json -> the key that means the same.
      objective: how a checkpoint without a masked-LM head was trained.
      without_lm_head: what a user should know about a checkpoint that has no head that predicts tokens.
      objective_fields: fields of the objective's config.
      pairs: `format.pairs` of checkpoints with a sentence-pair head; "" for the format's default.
      optimizer: of `optimizers.RECIPES`.
      preset_family: its name in `lmrep.models.PRESETS`.
      networks: (config, params, objective config) -> {name: a function that gives (config, params)} of the networks of
        a run that trains several; {} of one that has a single network.
    """

    name: str
    classes: Mapping[tuple[str, ...], str]
    base: Names
    heads: Names
    prefix: str
    record: type
    fields: Mapping[str, str]
    architecture: Mapping[str, Any]
    initialization: Mapping[str, Any]
    tasks: Mapping[str, TaskClass] = field(default_factory=dict)
    network_name: str = "transformer"
    from_json: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: {}
    to_json: Callable[[Any], Mapping[str, Any]] = lambda config: {}
    layouts: Callable[[Any], Mapping[str, Layout]] = lambda config: {}
    refine: Callable[[Any, Mapping[str, np.ndarray]], Any] = lambda config, tensors: config
    depth: Callable[[Any, str], int] = lambda config, path: config.layers
    plain_head: str = ""
    optional: str = ""
    causal: bool = False
    decoder_of: str = ""
    variant_of: str = ""
    read_as: Mapping[str, str] = field(default_factory=dict)
    transposed: bool = True
    pad: int | None = 0
    pads_left: bool = False
    positions_key: str = "max_position_embeddings"
    activation_key: str = "hidden_act"
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    writes_bos_eos: bool = True
    positions_after_padding: bool = False
    always_projects: bool = False
    head_activation: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    objective: str = "masked"
    without_lm_head: str = ("it has no masked-LM head, so `lmrep predict` cannot fill masks; a run with init= "
                            "initializes one")
    objective_fields: Mapping[str, Any] = field(default_factory=dict)
    pairs: str = ""
    optimizer: str = "bert"
    preset_family: str = ""
    networks: Callable[..., dict[str, Callable]] = lambda config, params, objective: {}

    # Tensors

    @property
    def output(self) -> str:
        """The name of the output layer, also in files that repeat the token table there."""
        return next(names[0] for paths, names in self.heads.items() if paths[0].endswith("/output"))

    @property
    def output_bias(self) -> str:
        """The name of the output layer's bias, which some files repeat under another name."""
        return self.output.removesuffix("weight") + "bias"

    def heads_of(self, paths: Iterable[str], classes: Sequence[str] = ()) -> tuple[str, ...]:
        """The outputs beside hidden states of a checkpoint with these paths. Where its head has no parameters, the
        `classes` in its config.json may say that it has none."""
        paths = set(paths)
        prefixes = {name: f"objective/{task_of(name)}/{head.part}" for name, head in TASK_HEADS.items()} | {
            name: head.prefix for name, head in HEADS.items() if head.prefix}
        found = tuple(name for name, prefix in prefixes.items() if any(path.startswith(prefix) for path in paths))
        plain = self.plain_head and any(path.startswith(self.optional) for path in paths)
        bare = list(classes or ()) == [self.classes[()]]
        tabled = self.causal and not self.decoder_of  # the head is the token table
        return found or (("causal",) if tabled and not bare else (self.plain_head,) if plain else ())

    def class_of(self, heads: tuple[str, ...]) -> str:
        """The library's class with these heads; or with the first of them; or without heads."""
        if heads and heads[0] in self.tasks:
            return self.tasks[heads[0]].name
        return self.classes.get(heads) or self.classes.get(heads[:1]) or self.classes[()]

    @property
    def model_type(self) -> str:
        """In config.json."""
        return self.decoder_of or self.name

    @property
    def class_names(self) -> list[str]:
        """The library's classes for checkpoints of this family."""
        return [*self.classes.values(), *dict.fromkeys(each.name for each in self.tasks.values()), *self.read_as]

    def paths(self, task: str = "") -> set[str]:
        """Every path that has a name, in pretrained checkpoints or in those of a task."""
        tables = (self.base, self.tasks[task].names(task) if task else self.heads)
        return {path for table in tables for paths in table for path in paths}

    def _tables(self) -> Iterator[tuple[Names, bool, bool]]:
        """(names, whether they follow the prefix, whether kernels are [out, in]) of base model, heads, and tasks."""
        yield self.base, True, self.transposed
        yield self.heads, False, self.transposed
        for task, own in self.tasks.items():
            yield own.names(task), False, True

    def locations(
        self, prefix: str, config: Any, paths: Iterable[str]
    ) -> Iterator[tuple[TensorLocation, list[str]]]:
        """Each location among `paths`, with the names of its tensor, in a network of this config."""
        known, layouts = set(paths), self.layouts(config)
        for table, prefixed, kernels_transposed in self._tables():
            start = prefix if prefixed else ""
            for own, names in table.items():
                if not known.issuperset(own):
                    continue
                split, transposed = layouts.get(own[0], ((), kernels_transposed and own[0].endswith("/kernel")))
                for layer in range(self.depth(config, own[0])) if "{l}" in names[0] else (None,):
                    yield (TensorLocation(own, layer, transposed, split),
                           [start + name.format(l=layer) for name in names])

    def prefix_in(self, names: Iterable[str]) -> str:
        """The prefix of the base model's names in a file."""
        start = f"{self.prefix}."
        return start if self.prefix and any(name.startswith(start) for name in names) else ""

    def locate(self, names: Iterable[str], config: Any, paths: Iterable[str]) -> dict[str, TensorLocation]:
        """{name: location} of those of `names` that have one among `paths`."""
        names = set(names)
        known = {name: location for location, own in self.locations(self.prefix_in(names), config, paths)
                 for name in own}
        known.setdefault(self.output, TensorLocation(TOKEN, None, False))
        return {name: location for name, location in known.items() if name in names}

    def names(self, paths: Iterable[str], config: Any, heads: tuple[str, ...]) -> list[str]:
        """The names of the parameters at `paths`, of a checkpoint with these heads, as the library writes them."""
        prefixed = heads and heads != (self.plain_head,) and (
            heads[0] not in self.tasks or self.tasks[heads[0]].prefixed)
        start = f"{self.prefix}." if self.prefix and prefixed else ""
        return [name for _, names in self.locations(start, config, paths)
                for name in (names if config.tied is False and self.output_bias in names else names[:1])]

    # config.json

    def pad_id(self, config_json: Mapping[str, Any]) -> int | None:
        """The id of padding, where there is one."""
        found = config_json.get("pad_token_id")
        return self.pad if found is None else found

    def position_offset(self, pad: int | None) -> int:
        """Rows of the position table before position 0."""
        return (self.pad if pad is None else pad) + 1 if self.positions_after_padding else 0

    def network(self, config_json: Mapping[str, Any], path: str) -> Any:
        """Our config of the network that a config.json describes; `path` is the file's, for messages.

        Raises:
          UserError: a value is out of range, or describes a network that ours cannot be.
        """
        values = vars(read(self.record, self._known(config_json, path), path, suggest=False))
        ours = {own: values[key] for key, own in self.fields.items()}
        width, heads = ours["width"], ours["heads"]
        if width % heads and "head_width" not in ours:
            key = next(key for key, own in self.fields.items() if own == "width")
            raise UserError(f"{path} has {key} {width}, which its {heads} heads do not divide")
        if ours.get("embedding") == width:
            if self.always_projects:
                raise UserError(f"{path} has embedding_size {width}, which is its hidden_size; {self.name} still "
                                "projects its embeddings then, and our network does not")
            ours["embedding"] = 0
        positions = {}
        if self.positions_key:
            offset = self.position_offset(self.pad_id(config_json))
            if values[self.positions_key] <= offset:
                raise UserError(f"{path} has {values[self.positions_key]} position rows, of which padding takes "
                                f"{offset}")
            positions = {"position_offset": offset, "max_length": values[self.positions_key] - offset}
        definition = MODELS[self.network_name]
        config = definition.config(**{**self.architecture, **self.initialization, **ours} | {
            "mlp": ours.get("mlp") or 4 * width, "activation": self.activations[values[self.activation_key]],
            "tied": config_json.get("tie_word_embeddings") is not False, **positions, **self.from_json(values)})
        with published_names(path, {own: key for key, own in self.fields.items()}):
            definition.check(config)
        return config

    def _known(self, config_json: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The keys of `record` in a config.json, under any of their names."""
        keys = [key.name for key in dataclasses.fields(self.record)]
        aliased = {key: config_json[alias] for alias, key in self.aliases.items()
                   if config_json.get(alias) is not None}
        known = aliased | {key: config_json[key] for key in keys if config_json.get(key) is not None}
        if too_long := [key for key, value in known.items() if len(str(value)) > 100]:
            raise UserError(f"{path} has a value of more than 100 characters at {too_long[0]}; download it again")
        for alias, key in self.aliases.items():
            if key in aliased and aliased[key] != known[key]:
                raise UserError(f"{path} has {key} {known[key]} and {alias} {str(aliased[key])[:80]}, which mean the "
                                "same; delete the one that is wrong")
        return known

    def misfits(self, config: Any, transformed: bool, task: PublishedTask | None = None) -> list[str]:
        """Why a network cannot be written as one of this family: "field=value" each.

        Args:
          config: of the network.
          transformed: whether it has a language model's head with a transform.
          task: that it was fine-tuned for.
        """
        below = self.tasks[task.name].network if task and task.name in self.tasks else {}
        wrong = [name for name, value in {**self.architecture, **below}.items()
                 if getattr(config, name) not in (value if isinstance(value, tuple) else (value,))]
        narrow = config.table_width != config.width
        if (narrow and "embedding" not in self.fields.values()) or (self.always_projects and not narrow):
            wrong.append("embedding")
        if "mlp" not in self.fields.values() and config.mlp != 4 * config.width:
            wrong.append("mlp")
        if config.activation not in self.activations.values() or (
                transformed and self.head_activation not in ("", config.activation)):
            wrong.append("activation")
        return [f"{name}={getattr(config, name)}" for name in wrong] + (
            task_classes.misfits(task, self.tasks.get(task.name)) if task else [])

    def config_json(self, config: Any, specials: Mapping[str, int]) -> dict[str, Any]:
        """The config.json of a network, without its class; `specials` are the tokenizer's ids by role."""
        values = {key: getattr(config, own) for key, own in self.fields.items()}
        if "embedding_size" in values:
            values["embedding_size"] = config.table_width
        bos_eos = {"bos_token_id": specials.get("bos", specials.get("cls")),
                   "eos_token_id": specials.get("eos", specials.get("sep"))}
        return {
            "model_type": self.model_type, **values,
            self.activation_key: next(name for name, own in self.activations.items() if own == config.activation),
            **({self.positions_key: config.max_length + config.position_offset} if self.positions_key else {}),
            **self.to_json(config), "pad_token_id": specials.get("pad", self.pad),
            **(bos_eos if self.writes_bos_eos else {}),
            "tie_word_embeddings": config.tied, "dtype": "float32",
        } | dict(self.to_json(config))


# Tables of names


def linear(paths: str | Sequence[str], name: str) -> Names:
    """A linear map, or several of one input with their outputs side by side."""
    paths = [paths] if isinstance(paths, str) else paths
    return {tuple(f"{path}/{own}" for path in paths): (f"{name}.{theirs}",)
            for own, theirs in (("kernel", "weight"), ("bias", "bias"))}


def norm(path: str, name: str) -> Names:
    """A layer norm; files made from TensorFlow's checkpoints call its parameters gamma and beta."""
    return {(f"{path}/scale",): (f"{name}.weight", f"{name}.gamma"),
            (f"{path}/bias",): (f"{name}.bias", f"{name}.beta")}


def masked_head(transform: str, norm_name: str, output: str, *bias: str) -> Names:
    """A masked-LM head; `bias` are names of that of its output layer."""
    return {**linear("objective/masked/transform", transform), **norm("objective/masked/norm", norm_name),
            ("objective/masked/bias",): bias, ("objective/masked/output",): (output,)}


def layers(
    start: str, qkv: Sequence[str], output: str, attention_norm: str, mlp_in: str, mlp_out: str, mlp_norm: str
) -> Names:
    """The layers; `start` begins all names, and `qkv` are those of query, key and value, or of all three joined."""
    names: Names = {}
    paths = [f"encoder/layers/attention/{each}" for each in ("query", "key", "value")]
    for own, theirs in zip(paths, qkv, strict=True) if len(qkv) == 3 else [(paths, qkv[0])]:
        names |= linear(own, start + theirs)
    return {
        **names,
        **linear("encoder/layers/attention/output", start + output),
        **norm("encoder/layers/attention_norm", start + attention_norm),
        **linear("encoder/layers/mlp/in", start + mlp_in),
        **linear("encoder/layers/mlp/out", start + mlp_out),
        **norm("encoder/layers/mlp_norm", start + mlp_norm),
    }
