"""`Family`, the contract of a family of published checkpoints. A family's file is mainly its table of tensor names."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lmrep.config.record import choose
from lmrep.core.components import described, faults_of
from lmrep.core.errors import UserError
from lmrep.interop.heads import HEADS, PublishedTask
from lmrep.interop.huggingface.config_json import Mismatch
from lmrep.interop.huggingface.head_classes import HeadClass, mismatches
from lmrep.interop.huggingface.tensors import POOLER, TOKEN, Names, Shapes, Tensor, TensorLocation, rows
from lmrep.models import name_of

CONFIG = "config.json"


def numbered(path: str) -> str:
    """Returns the path of a parameter of one layer as tables of tensors have it, with {l} for the layer's number; other
    paths as they are."""
    return re.sub(r"(?<=/layers/)\d+(?=/)", "{l}", path)


class Specials(NamedTuple):
    """The special tokens of a family."""

    pad: int | None = 0  # the id of padding, if config.json has none
    pads_left: bool = False  # whether padding precedes the tokens
    shifts_positions: bool = False  # whether position 0 is row pad + 1 of the position table
    writes_ends: bool = True  # whether config.json has bos_token_id and eos_token_id
    writes_cls: bool = False  # whether it has cls_token_id and sep_token_id beside them


class Pretraining(NamedTuple):
    """How the checkpoints of a family were trained: the choices of a run that is converted from one."""

    objective: str = "masked"  # the objective of a checkpoint without a language model's head
    fields: Mapping[str, Any] = {}  # fields of the objective's config
    pairs: str = ""  # `format.pairs` of checkpoints with a sentence-pair head; "" for the format's default
    optimizer: str = "bert"  # a recipe of a row of `OPTIMIZERS`
    preset: str = ""  # the family's name in `lmrep.models.PRESETS`
    # a remark for users about a checkpoint without a head that predicts tokens
    without_head: str = ("it has no masked-LM head, so `lmrep predict` cannot fill masks; a run with init= initializes "
                         "one")
    # (config, params, objective config) -> {name: function that returns (config, params)} of the networks of a run that
    # trains several; {} for a run with a single network
    networks: Callable[..., dict[str, Callable]] = lambda config, params, objective: {}


@dataclass(frozen=True, eq=False)
class Family:
    """A family of published checkpoints."""

    # `model_type` in config.json; with " decoder" for left-to-right networks (`is_decoder`) of a family that reads both
    # sides
    name: str
    # the attribute of the base model in the library's classes with heads; with a dot, it begins the names of the base
    # model's tensors there
    prefix: str
    # (config.json, its path for messages, the tensors by name or None) -> our config. Raises UserError if a value is
    # out of range, or describes a network that ours cannot represent.
    config_from: Callable[[Mapping[str, Any], str, Mapping | None], Any]
    # (our config) -> the keys of config.json. Raises Mismatch. None if networks are written as another family's.
    config_to: Callable[[Any], Mapping[str, Any]] | None
    # the table of names: tensor or module in files -> our path, `Tensor` or `Module`. Paths that a network lacks, and
    # heads that none of `heads` has, are skipped.
    tensors: Names
    heads: Sequence[HeadClass]  # the classes of the library; a checkpoint is written as the first with its heads
    specials: Specials = Specials()
    pretraining: Pretraining = field(default=Pretraining())

    @property
    def described(self) -> str:
        """The family and its file, for messages."""
        return described("checkpoint family", self.name, self._source)

    @property
    def _source(self) -> Any:
        table = getattr(self.config_from, "__self__", None)  # a `ConfigTable`
        return sys.modules[table.module] if table else self.config_from

    # Classes

    @property
    def model_type(self) -> str:
        """The `model_type` in config.json."""
        return self.name.removesuffix(" decoder")

    @property
    def causal(self) -> bool:
        """Whether its networks predict from left to right."""
        return any("causal" in head_class.heads for head_class in self.heads)

    @property
    def network_name(self) -> str:
        """The name in `lmrep.models.MODELS` of its networks."""
        return name_of(self.network({}, CONFIG))

    @property
    def tasks(self) -> dict[str, HeadClass]:
        """{name in `HEADS` of a task's head: the class for it}."""
        return {head: head_class for head_class in self.heads for head in head_class.heads
                if head in HEADS and HEADS[head].task}

    @property
    def pretrained_heads(self) -> list[str]:
        """The heads for pretraining of all its classes. Raises UserError for one that `HEADS` lacks."""
        for head_class in self.heads:
            for head in head_class.heads:
                choose(HEADS, head, f"{self.described}: a head of {head_class.name}")
        return list(dict.fromkeys(head for head_class in self.heads for head in head_class.heads
                                  if not HEADS[head].task))

    def class_of(self, heads: tuple[str, ...]) -> HeadClass:
        """Finds the library's class with these heads, or else with the first of them, or else without heads."""
        if heads and heads[0] in self.tasks:
            return self.tasks[heads[0]]
        return next(head_class for names in (heads, heads[:1], ()) for head_class in self.heads
                    if head_class.heads == names)

    def heads_of(self, paths: Iterable[str], classes: Sequence[str] = ()) -> tuple[str, ...]:
        """Finds the heads of a checkpoint with parameters at these paths. A head without parameters counts as present
        unless `classes`, the architectures in config.json, are only the base model."""
        paths = set(paths)
        heads = tuple(name for name, head in HEADS.items() if any(path.startswith(head.prefix) for path in paths))
        optional = self.optional
        complete = not optional.isdisjoint(paths) if optional else [*classes] != [self.class_of(()).name]
        return heads or (self.tied_heads if complete else ())

    @property
    def tied_heads(self) -> tuple[str, ...]:
        """The heads that consist of an output layer only, which may be the token table."""
        return tuple(head for head in self.pretrained_heads if {path for path in self.paths()
                     if path.startswith(HEADS[head].prefix)} == {f"objective/{head}/output"})

    # Tensors

    def rows(self, prefix: str = "", tasks: Iterable[str] = ()) -> Iterator[tuple[list[str], Tensor]]:
        """Yields (names, tensor) of the base model, whose names begin with `prefix`, of the heads for pretraining, and
        of the heads for `tasks`."""
        heads = tuple(HEADS[head].prefix for head in self.pretrained_heads)
        with faults_of(self.described, self._source):
            table = list(rows(self.tensors))
        for names, tensor in table:
            if tensor.paths[0].startswith(("encoder/", POOLER)):
                yield [prefix + name for name in names], tensor
            elif tensor.paths[0].startswith(heads):
                yield names, tensor
        for task in tasks:
            yield from rows(self.tasks[task].tensors, f"objective/{HEADS[task].task}/")

    def paths(self, task: str = "") -> set[str]:
        """Returns our paths that have a name in a pretrained checkpoint, or in a checkpoint for `task`."""
        return {path for _, tensor in self._rows_for(task) for path in tensor.paths}

    def _rows_for(self, task: str) -> list[tuple[list[str], Tensor]]:
        """Returns the rows of a pretrained checkpoint, or of one for `task`."""
        starts = ("encoder/", POOLER, f"objective/{HEADS[task].task}/") if task else ""
        return [row for row in self.rows("", [task] if task else []) if row[1].paths[0].startswith(starts)]

    @property
    def optional(self) -> set[str]:
        """The paths of the parameters that a checkpoint may lack."""
        return {path for _, tensor in self.rows() if tensor.optional for path in tensor.paths}

    @property
    def output(self) -> str:
        """The name of the output layer's tensor, which may repeat the token table; "" if there is none."""
        return next((names[0] for names, tensor in self.rows() if tensor.paths[0].endswith("/output")), "")

    @property
    def output_bias(self) -> str:
        """The name of the output layer's bias, which some files repeat under another name."""
        return self.output.removesuffix("weight") + "bias"

    def locations(self, prefix: str, config: Any, shapes: Shapes) -> Iterator[tuple[TensorLocation, list[str]]]:
        """Yields (location, names of its tensor) of the tensors whose parameters are in `shapes`."""
        for names, tensor in self.rows(prefix, self.tasks):
            tensor = tensor._replace(shape=tuple(
                getattr(config, size) if isinstance(size, str) else size for size in tensor.shape))
            order = tuple(tensor.order(config).tolist()) if tensor.order else None
            if "{l}" in tensor.paths[0]:
                for layer in range(config.layers):
                    of_layer = tensor._replace(paths=tuple(path.format(l=layer) for path in tensor.paths))
                    if shapes.keys() >= set(of_layer.paths):
                        yield TensorLocation(of_layer, None, order), [name.format(l=layer) for name in names]
            elif shapes.keys() >= set(tensor.paths):
                for layer in range(shapes[tensor.paths[0]][0]) if "{l}" in names[0] else (None,):
                    yield TensorLocation(tensor, layer, order), [name.format(l=layer) for name in names]

    def prefix_in(self, names: Iterable[str]) -> str:
        """Returns the prefix of the base model's names in a file, "" if they have none."""
        start = f"{self.prefix}."
        return start if self.prefix and any(name.startswith(start) for name in names) else ""

    def locate(self, names: Iterable[str], config: Any, shapes: Shapes) -> dict[str, TensorLocation]:
        """Maps names of tensors to their locations among parameters of these shapes; unknown names are left out."""
        names = set(names)
        known = {name: location for location, aliases in self.locations(self.prefix_in(names), config, shapes)
                 for name in aliases}
        if table := next((location for location in known.values() if location.tensor.paths == (TOKEN,)), None):
            known.setdefault(self.output, table)
        return {name: location for name, location in known.items() if name in names}

    def check_tensors(self, specs: Collection[str], task: str = "") -> None:
        """Raises UserError if `tensors`, or the class of a task, lacks a path in `specs` that it needs, or has a name
        or a path twice."""
        table = self._rows_for(task)
        needed = ["encoder/", *([f"objective/{HEADS[task].task}/"] if task else (
            HEADS[head].prefix for head in self.pretrained_heads if head not in self.tied_heads))]
        alone = self.pretraining.fields.get("head") == "table"  # a masked-LM head without a transform
        without = ("objective/masked/transform/", "objective/masked/norm/") if alone else ()
        names = Counter(name for names, _ in table for name in names)
        paths = Counter(path for _, tensor in table for path in tensor.paths)
        problems = [*(f"lacks {path}" for path in specs if path.startswith(tuple(needed)) and path not in paths
                      and numbered(path) not in paths and not path.startswith(without)),
                    *(f"has {name} twice" for name, count in (names | paths).items() if count > 1)]
        if problems:
            raise UserError(f"{self.described}: its table of tensors {', '.join(problems[:3])}; correct this component")

    # config.json

    def pad_id(self, config_json: Mapping[str, Any]) -> int | None:
        """Returns the id of padding; None if there is none."""
        pad = config_json.get("pad_token_id")
        return self.specials.pad if pad is None else pad

    def position_offset(self, pad: int | None) -> int:
        """Returns the number of rows of the position table before position 0."""
        return (self.specials.pad if pad is None else pad) + 1 if self.specials.shifts_positions else 0

    def network(self, config_json: Mapping[str, Any], path: str, tensors: Mapping | None = None) -> Any:
        """Converts a config.json to our config, with the position offset. Raises UserError as `config_from`."""
        with faults_of(self.described, self._source):
            config = self.config_from(config_json, path, tensors)
        if not (offset := self.position_offset(self.pad_id(config_json))):
            return config
        if config.max_length <= offset:
            raise UserError(f"{path} has {config.max_length} position rows, of which padding takes {offset}")
        return replace(config, position_offset=offset, max_length=config.max_length - offset)

    def config_json(self, config: Any, specials: Mapping[str, int]) -> dict[str, Any]:
        """Converts our config to a config.json, without its class. `specials` are the tokenizer's ids by role. Raises
        Mismatch as `config_to`."""
        if offset := getattr(config, "position_offset", 0):
            config = replace(config, max_length=config.max_length + offset)
        ends = {"bos_token_id": specials.get("bos", specials.get("cls")),
                "eos_token_id": specials.get("eos", specials.get("sep"))}
        with faults_of(self.described, self._source):
            keys = self.config_to(config)
        if self.specials.writes_cls:
            ends |= {f"{role}_token_id": specials.get(role) for role in ("cls", "sep")}
        return {"model_type": self.model_type, **keys,
                "pad_token_id": specials.get("pad", self.specials.pad), **(ends if self.specials.writes_ends else {}),
                "dtype": "float32"}

    def mismatches(self, config: Any, transformed: bool, task: PublishedTask | None = None) -> list[str]:
        """Lists the fields, as "field=value", because of which a network cannot be written as one of this family.

        Args:
          transformed: whether the network has a language model's head with a transform.
          task: the task that it was fine-tuned for, if any.
        """
        head = self.tasks.get(task.name) if task else None
        below = head.network if head else {}
        wrong = [name for name, value in below.items() if getattr(config, name) != value]
        try:
            self.config_json(self.base_network(config, task), {})
        except Mismatch as mismatch:
            wrong = [*mismatch.fields, *wrong]
        always = {activation for head_class in self.heads for activation in head_class.always.values()}
        if transformed and always and config.activation not in always and "activation" not in wrong:
            wrong.append("activation")
        return [f"{name}={getattr(config, name)}" for name in wrong] + (mismatches(task, head) if task else [])

    def base_network(self, config: Any, task: PublishedTask | None) -> Any:
        """Returns a config with defaults for the fields that only the class of a task sets."""
        below = self.tasks[task.name].network if task and task.name in self.tasks else {}
        return replace(config, **{name: type(config).__dataclass_fields__[name].default for name in below})
