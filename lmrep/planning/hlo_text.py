"""The text of optimized HLO: its operations, types and groups of devices."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_BITS = {"pred": 8, "c64": 64, "c128": 128, "token": 0, "opaque": 0}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_OPERATION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(r"(?:body|calls|to_apply|true_computation|false_computation|called_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")
_OPERANDS = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')


class Operation(NamedTuple):
    """A line of HLO.

    Attributes:
      name: unique in its module.
      type: of its result: "bf16[8,128]{1,0}", or a tuple.
      opcode: "fusion".
      operands: names.
      arguments: what stands between the parentheses, as text.
      attributes: what follows them, as text.
      root: whether it is its computation's result.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    arguments: str
    attributes: str
    root: bool

    @property
    def source(self) -> str:
        """The path of JAX transformations and functions that it comes from; "" where that is not known."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""


def parse(text: str) -> tuple[dict[str, dict[str, Operation]], str]:
    """(the operations of each computation by name, the name of the computation that runs first)."""
    computations: dict[str, dict[str, Operation]] = {}
    entry, current = "", {}
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            current = computations.setdefault(found[2], {})
            if found[1]:
                entry = found[2]
        elif found := _OPERATION.match(line):
            operation = _operation(line, found)
            current[operation.name] = operation
    return computations, entry


def type_bytes(text: str, everywhere: bool = False) -> int:
    """Bytes in main memory of an array or a tuple of arrays: "(bf16[2,3]{1,0}, f32[])" -> 16. With `everywhere` also of
    those in other memory spaces ("{1,0:S(1)}")."""
    return sum(math.ceil(_bits(dtype) * math.prod(int(n) for n in shape.split(",") if n) / 8)
               for dtype, shape, layout in _ARRAY.findall(text) if everywhere or "S(" not in layout)


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    digits = re.match(r"[a-z]+(\d+)", dtype)
    return int(digits[1]) if digits else 0


def shape(text: str) -> tuple[int, ...]:
    """The dimensions of an array type."""
    return tuple(int(n) for n in _ARRAY.search(text)[2].split(",") if n)


def _operation(line: str, found: re.Match) -> Operation:
    rest = line[found.end():]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    result, rest = rest[:end], rest[end:].lstrip()
    start = rest.index("(")
    stop = _closing(rest, start)
    arguments = rest[start + 1: stop]
    return Operation(found[2], result, rest[:start], tuple(_OPERANDS.findall(arguments)), arguments, rest[stop + 1:],
                     bool(found[1]))


def _closing(text: str, start: int) -> int:
    """The position of the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if not depth:
            return i
    return len(text) - 1


def elements(text: str) -> list[str]:
    """The elements of a tuple type."""
    parts, depth, begin = [], 0, 1
    for i, character in enumerate(text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(character, 0)
        if (character == "," and depth == 1) or (character == ")" and depth == 0):
            parts.append(text[begin:i].strip())
            begin = i + 1
    return parts


def called(operation: Operation) -> list[str]:
    """The computations that an operation runs."""
    branches = _BRANCHES.search(operation.attributes)
    return _CALLED.findall(operation.attributes) + (_OPERANDS.findall(branches[1]) if branches else [])


def index(element: Operation) -> int:
    """Of the element of a tuple that an operation takes."""
    return int(re.search(r"index=(\d+)", element.attributes)[1])


def result_bytes(operation: Operation) -> int:
    """Bytes of the result of a collective, in any memory. One that is started returns its operands, too."""
    text = operation.type
    if operation.opcode.endswith("-start") and text.startswith("(") and operation.opcode != "all-reduce-start":
        parts = elements(text)
        text = parts[1] if len(parts) > 1 else parts[0]
    return type_bytes(text, everywhere=True)


def groups(attributes: str, devices: int) -> Sequence[Sequence[int]]:
    """The groups of a collective: numbers of devices in the order of the mesh."""
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", attributes):
        return [[int(n) for n in pair.split(",")] for pair in re.findall(r"(\d+,\d+)", pairs[1] + "}")] or [[0]]
    if listed := re.search(r"replica_groups=\{(\{.*?\})\}", attributes):
        return [[int(n) for n in group.split(",") if n] for group in re.findall(r"\{([\d,]*)\}", listed[1])]
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        return _iota(iota[2], iota[3]).reshape([int(n) for n in iota[1].split(",")])
    if mesh := re.search(r"replica_groups=(?:@)?mesh\[([^\]]*)\](?:, *device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? *"
                         r"\{([^}]*)\}", attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", mesh[1])}
        numbers = _iota(mesh[2], mesh[3]) if mesh[2] else np.arange(math.prod(sizes.values()))
        names, inside = list(sizes), re.findall(r"'([^']*)'", mesh[4])
        order = [names.index(name) for name in (*(n for n in names if n not in inside), *inside)]
        numbers = numbers.reshape(tuple(sizes.values())).transpose(order)
        return numbers.reshape(-1, math.prod(sizes[name] for name in inside))
    return [list(range(devices))]


def _iota(shape: str, transposed: str | None) -> np.ndarray:
    dimensions = [int(n) for n in shape.split(",")]
    numbers = np.arange(math.prod(dimensions)).reshape(dimensions)
    return numbers.transpose([int(n) for n in transposed.split(",")]) if transposed else numbers
