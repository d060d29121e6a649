"""Analyzes a compiled program by the text of its optimized HLO: matrix products, memory traffic, collectives, and what
the forward pass keeps for the backward pass.

XLA's cost analysis counts the body of a loop once; here it counts once per iteration.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
               "ragged-all-to-all")
# Operations that move no data by themselves.
FREE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call",
                  "after-all", "partition-id", "replica-id", "add-dependency", "opt-barrier", "iota"})
# Operations whose result has the values of their operand.
PASSING = frozenset({"bitcast", "get-tuple-element", "tuple", "copy", "copy-start", "copy-done", "opt-barrier"})
# Attribute of a fused operation whose result is its operand with other tiles.
ALIASED = "output_to_operand_aliasing={{}: (0, {})}"
_BITS = {"pred": 8, "c64": 64, "c128": 128, "token": 0, "opaque": 0}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_NESTED = r"\((?:[^()]++|\((?:[^()]++|\((?:[^()]++|\((?:[^()]++|\([^()]*+\))*+\))*+\))*+\))*+\)"  # parentheses
_OPERATION = re.compile(rf"^\s+(ROOT )?%?([\w.\-]+) = ({_NESTED}|\S+) +([^(]+)({_NESTED})(.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(r"(?:body|calls|to_apply|true_computation|false_computation|called_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")
_OPERANDS = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CHANNEL = re.compile(r"channel_id=(\d+)")
_WINDOW = {"size": 1, "stride": 1, "lhs_dilate": 1, "rhs_dilate": 1, "pad": 0}  # fields of a window, and their defaults
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


class Operation(NamedTuple):
    """A line of HLO."""

    name: str  # unique in the module
    type: str  # type of the result: "bf16[8,128]{1,0}", or a tuple
    opcode: str  # "fusion"
    operands: tuple[str, ...]  # names of the operands
    arguments: str  # the text between the parentheses
    attributes: str  # the text after the parentheses
    root: bool  # whether it gives the result of its computation

    @property
    def source(self) -> str:
        """The path of JAX transformations and functions that it comes from; "" where it is not known."""
        return (_OP_NAME.search(self.attributes) or [""] * 2)[1]

    @property
    def called(self) -> list[str]:
        """The names of the computations that it runs."""
        branches = _BRANCHES.search(self.attributes)
        return _CALLED.findall(self.attributes) + (_OPERANDS.findall(branches[1]) if branches else [])

    @property
    def element(self) -> int:
        """The index of the element that a get-tuple-element takes."""
        return int(re.search(r"index=(\d+)", self.attributes)[1])


class Collective(NamedTuple):
    """A collective operation."""

    opcode: str  # one of `COLLECTIVES`
    groups: np.ndarray  # int [groups, devices], indices of the devices that communicate, in the order of the mesh
    bytes: int  # of the full array: the result of an all-gather, the operand of a reduce-scatter
    times: int  # number of runs
    source: str  # as in `Operation.source`

    @property
    def sent(self) -> float:
        """Bytes that each device sends in all runs, with ring algorithms."""
        devices = self.groups.shape[1]
        if self.opcode in ("collective-permute", "collective-broadcast"):
            return float(self.bytes * self.times)
        factor = 2 if self.opcode == "all-reduce" else 1
        return factor * (devices - 1) / devices * self.bytes * self.times


class Program:
    """A compiled program of one device, parsed from `jax.stages.Compiled.as_text`."""

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Operation]] = {}
        self.entry, current = "", {}
        for line in text.splitlines():
            if start := _COMPUTATION.match(line):
                current = self.computations.setdefault(start[2], {})
                self.entry = start[2] if start[1] else self.entry
            elif found := _OPERATION.match(line):
                root, name, type_, opcode, arguments, attributes = found.groups()
                current[name] = Operation(name, type_, opcode, tuple(_OPERANDS.findall(arguments)), arguments[1:-1],
                                          attributes, bool(root))

    @cached_property
    def times(self) -> Counter[str]:
        """The number of runs of each computation, without computations that are fused into an operation."""
        times: Counter[str] = Counter()

        def run(name: str, count: int) -> None:
            times[name] += count
            for operation in self.computations[name].values():
                if operation.opcode == "conditional":
                    run(max(operation.called, key=self._products), count)
                elif operation.opcode in ("while", "call", "async-start"):
                    trips = self._trips(operation) if operation.opcode == "while" else 1
                    for called in operation.called:
                        run(called, count * trips)

        run(self.entry, 1)
        return times

    def _products(self, name: str) -> float:
        """Returns the FLOPs of the products in a computation and in the computations that it calls, each once."""
        return sum(self.flops_of(name, operation) + (0 if operation.opcode == "fusion" else
                                                     sum(map(self._products, operation.called)))
                   for operation in self.computations[name].values())

    def _trips(self, loop: Operation) -> int:
        """Returns the number of iterations of a loop: the compiler's, or the constant that bounds the counter."""
        if known := _TRIPS.search(loop.attributes):
            return int(known[1])
        condition = re.search(r"condition=%?([\w.\-]+)", loop.attributes)[1]
        constants = [int(operation.arguments) for operation in self._nested(condition)
                     if operation.opcode == "constant" and re.match(r"[su]\d+\[\]", operation.type)
                     and operation.arguments.isdecimal()]
        return max(constants, default=1)

    def _root(self, name: str) -> Operation:
        """Returns the operation that gives the result of a computation."""
        return next(operation for operation in self.computations[name].values() if operation.root)

    def _nested(self, name: str) -> Iterator[Operation]:
        """Iterates over the operations of a computation and of the computations that it calls."""
        for operation in self.computations[name].values():
            yield operation
            for called in operation.called:
                yield from self._nested(called)

    def operations(self) -> Iterator[tuple[str, Operation, int]]:
        """Iterates over (computation, operation, number of runs). A fusion is one operation."""
        for name, count in self.times.items():
            for operation in self.computations[name].values():
                yield name, operation, count

    # Matrix products

    def flops(self) -> float:
        """Returns the floating-point operations of the matrix products that one device computes."""
        return sum((count * self.flops_of(name, operation) for name, operation, count in self.operations()), 0.0)

    def flops_of(self, computation: str, operation: Operation) -> float:
        """Returns the floating-point operations of one run of an operation, with all that is fused into it."""
        if operation.opcode == "fusion":
            return sum(self.flops_of(called, fused) for called in operation.called
                       for fused in self.computations[called].values())
        types = self.computations[computation]
        if operation.opcode == "dot":
            left = shape(types[operation.operands[0]].type)
            contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", operation.attributes)
            return 2.0 * math.prod(shape(operation.type)) * math.prod(
                left[int(axis)] for axis in contracted[1].split(",") if axis)
        if operation.opcode == "convolution":  # what XLA makes of matrix products on TPUs
            return _convolution(operation, *(shape(types[name].type) for name in operation.operands[:2]))
        if operation.opcode == "custom-call" and "matmul" in operation.attributes.lower() and operation.operands:
            return 2.0 * math.prod(shape(operation.type)) * shape(types[operation.operands[0]].type)[-1]
        return 0.0

    # Memory

    def traffic(self) -> float:
        """Returns the bytes that one device reads from and writes to its main memory: operands and results of each
        operation; of an array that is only sliced or updated, the slice. Other memory spaces of a TPU do not count."""
        return float(sum(self._traffic(name, operation) * count for name, operation, count in self.operations()
                         if operation.opcode not in FREE and not operation.opcode.endswith("-done")))

    def _traffic(self, computation: str, operation: Operation) -> int:
        """Returns the bytes that one run of an operation reads and writes."""
        types = self.computations[computation]
        read = [type_bytes(types[name].type) for name in operation.operands if name in types]
        if operation.opcode.endswith("-start"):  # (destination, source, ...)
            parts = elements(operation.type) if operation.type.startswith("(") else [operation.type]
            sizes = [type_bytes(part, everywhere=True) for part in parts]
            moved = min((size for size in sizes[:2] if size), default=0)
            return moved * sum("S(" not in part for part in parts[:2])
        result = type_bytes(operation.type)
        if operation.opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * result
        if operation.opcode == "dynamic-update-slice":
            return 2 * read[1]
        if operation.opcode != "fusion":
            return result + sum(read)
        called, body = operation.called[0], self.computations[operation.called[0]]
        for fused in body.values():
            if fused.opcode == "parameter":
                index = int(fused.arguments)
                read[index] = min(read[index], self._bytes_read(called, fused.name))
        root = self._root(called)
        outputs = [(operation.type, root.name)]
        if root.opcode == "tuple":
            outputs = zip(elements(operation.type), root.operands, strict=True)
        return sum(read) + sum(min(type_bytes(kind), self._bytes_written(called, name)) for kind, name in outputs)

    def _bytes_read(self, computation: str, name: str) -> int:
        """Returns the bytes that a fused computation reads of one of its values, in any memory space."""
        body, total = self.computations[computation], 0
        for user in body.values():
            if name not in user.operands or _is_passed_on(computation, user):
                continue
            if user.opcode == "bitcast" or ALIASED in user.attributes:
                total += self._bytes_read(computation, user.name)
            elif user.opcode == "dynamic-slice":
                total += type_bytes(user.type, everywhere=True)
            elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
                continue
            elif user.opcode == "fusion":
                called = user.called[0]
                total += sum(self._bytes_read(called, fused.name) for fused in self.computations[called].values()
                             if fused.opcode == "parameter" and user.operands[int(fused.arguments)] == name)
            else:
                return type_bytes(body[name].type, everywhere=True)
        return total

    def _bytes_written(self, computation: str, name: str) -> int:
        """Returns the bytes of a result of a fused computation; for an update in place, of the update."""
        operation = (body := self.computations[computation])[name]
        if operation.opcode == "parameter" or _is_passed_on(computation, operation):
            return 0
        if operation.opcode == "bitcast":
            return self._bytes_written(computation, operation.operands[0])
        if operation.opcode == "dynamic-update-slice":
            return type_bytes(body[operation.operands[1]].type, everywhere=True)
        if operation.opcode == "fusion" and not operation.type.startswith("("):
            return self._bytes_written(operation.called[0], self._root(operation.called[0]).name)
        return type_bytes(operation.type, everywhere=True)

    def saved_bytes(self) -> int:
        """Returns the bytes that the forward pass keeps for the backward pass on one device: arrays that operations of
        `jvp` make and operations of its `transpose` read, directly or after copies. Both are in the entry computation,
        or in the body of the loop over microbatches."""
        return max(self._saved(self.computations[name]) for name in self.times)

    def _saved(self, entry: Mapping[str, Operation]) -> int:
        """Computes `saved_bytes` for one computation."""
        users: dict[str, list[Operation]] = {}
        for operation in entry.values():
            for name in operation.operands:
                users.setdefault(name, []).append(operation)

        def is_read(operation: Operation) -> bool:
            return any(is_read(user) if user.opcode in PASSING else "transpose(" in user.source
                       for user in users.get(operation.name, ()))

        total = 0
        for operation in entry.values():
            if operation.opcode in PASSING | FREE - {"while", "call", "iota"} or "transpose(" in operation.source or (
                    "jvp(" not in operation.source):
                continue
            if not operation.type.startswith("("):
                total += is_read(operation) * type_bytes(operation.type, everywhere=True)
                continue
            unchanged = self._unchanged(operation) if operation.opcode == "while" else set()
            elements = {user.element: user for user in users.get(operation.name, ())
                        if user.opcode == "get-tuple-element"}
            total += sum(type_bytes(element.type, everywhere=True) for i, element in elements.items()
                         if i not in unchanged and is_read(element))
        return total

    def _unchanged(self, loop: Operation) -> set[int]:
        """Returns the indices of the elements of a loop's state that its body passes on unchanged."""
        body = self.computations[called := re.search(r"body=%?([\w.\-]+)", loop.attributes)[1]]
        return {i for i, name in enumerate(self._root(called).operands)
                if body[name].opcode == "get-tuple-element" and body[name].element == i
                and body[body[name].operands[0]].opcode == "parameter"}

    # Collectives

    def collectives(self, devices: int) -> list[Collective]:
        """Returns the collectives of a program over that many devices, without collectives of a single device."""
        collectives, channels = [], set()
        for _, operation, count in self.operations():
            opcode = operation.opcode.removesuffix("-start")
            inner = [(opcode, operation)] if opcode in COLLECTIVES else [
                ("reduce-scatter" if "all-reduce-scatter" in operation.name + called else fused.opcode, fused)
                for called in (operation.called if operation.opcode == "fusion" else ())
                for fused in self.computations[called].values()
                if fused.opcode.removesuffix("-start") in COLLECTIVES]
            for opcode, collective in inner:
                # An asynchronous collective of a TPU is in each fusion that it runs beside.
                channel = _CHANNEL.search(collective.attributes) if collective is not operation else None
                if channel and channel[1] in channels:
                    continue
                channels.add(channel and channel[1])
                groups = np.asarray(device_groups(collective.attributes, devices))
                if groups.shape[1] < 2:
                    continue
                type_, start = collective.type, collective.opcode.endswith("-start")
                if start and type_.startswith("(") and collective.opcode != "all-reduce-start":
                    type_ = elements(type_)[:2][-1]  # it returns its operands, too
                size = type_bytes(type_, everywhere=True) * (
                    groups.shape[1] if collective.opcode.startswith("reduce-scatter") else 1)
                collectives.append(Collective(opcode.removesuffix("-start"), groups, size, count, collective.source))
        return collectives


def _is_passed_on(computation: str, user: Operation) -> bool:
    """Returns whether a fused operation passes on its operands: as the result of the fusion, or in an asynchronous
    collective of a TPU, which is in each fusion that it runs beside and counts at its end."""
    return (user.opcode == "tuple" and user.root) or (user.opcode in COLLECTIVES and "async_collective" in computation)


def _convolution(operation: Operation, left: tuple[int, ...], right: tuple[int, ...]) -> float:
    """Returns the FLOPs of a convolution, without products by the zeros of padding and dilation."""
    labels, result = _LABELS.search(operation.attributes), shape(operation.type)
    window = {key: value.split("x") for key, value in re.findall(r"(\w+)=([\d_x\-]+)", (
        re.search(r"window=\{([^}]*)\}", operation.attributes) or [0, ""])[1])}
    products = 2.0 * result[labels[3].index("b")] * result[labels[3].index("f")] * right[labels[2].index("i")]
    for i in range(sum(character.isdecimal() for character in labels[2])):
        size, stride, inner, outer, low = (int(window[name][i].split("_")[0]) if name in window else default for
                                           name, default in _WINDOW.items())
        extent = left[labels[1].index(str(i))]
        positions = (np.arange(result[labels[3].index(str(i))])[:, None] * stride - low
                     + np.arange(size)[None, :] * outer)
        inside = (positions >= 0) & (positions <= (extent - 1) * inner) & (positions % inner == 0)
        products *= int(inside.sum())
    return products


def type_bytes(text: str, everywhere: bool = False) -> int:
    """Returns the bytes of an array type or a tuple of them: "(bf16[2,3]{1,0}, f32[])" -> 16. Arrays outside main
    memory ("{1,0:S(1)}") count only with `everywhere`."""
    total = 0
    for dtype, sizes, layout in _ARRAY.findall(text):
        if everywhere or "S(" not in layout:
            bits = _BITS.get(dtype) or int((re.match(r"[a-z]+(\d+)", dtype) or (0, 0))[1])
            total += math.ceil(bits * math.prod(int(n) for n in sizes.split(",") if n) / 8)
    return total


def shape(text: str) -> tuple[int, ...]:
    """Returns the dimensions of an array type."""
    return tuple(int(n) for n in _ARRAY.search(text)[2].split(",") if n)


def elements(text: str) -> list[str]:
    """Splits a tuple type into its elements."""
    depths = accumulate({"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(character, 0) for character in text)
    ends = [i for i, depth in enumerate(depths) if (text[i], depth) in ((",", 1), (")", 0))]
    return [text[begin + 1: end].strip() for begin, end in pairwise([0, *ends])]


def device_groups(attributes: str, devices: int) -> Sequence[Sequence[int]]:
    """Parses the groups of a collective: indices of devices in the order of the mesh."""
    if listed := re.search(r"(?:source_target_pairs|replica_groups)=\{((?:\{[\d,]*\},?)+)\}", attributes):
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
    """Returns 0, 1, 2, ... in the shape "2,4", with its axes in the order `transposed`, "1,0"."""
    dimensions = [int(n) for n in shape.split(",")]
    numbers = np.arange(math.prod(dimensions)).reshape(dimensions)
    return numbers.transpose([int(n) for n in transposed.split(",")]) if transposed else numbers
