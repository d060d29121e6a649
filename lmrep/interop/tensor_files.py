"""Safetensors files, read without trusting them and written byte by byte.

A file is the length of a header in 8 bytes, the header as JSON, {name: {"dtype", "shape", "data_offsets"}}, and the
tensors' bytes. Here nothing is allocated by what a header claims: the header is small or refused, and every tensor is
a view into the mapped file that was found to lie there, each byte of it in one tensor.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lmrep.core.errors import UserError

MOST_HEADER = 4 * 2**20  # bytes: room for forty thousand tensors, and never more than some hundred MB once parsed
MOST_DIMENSIONS = 8

DTYPES = {name: np.dtype(kind) for name, kind in {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
    "BOOL": "?",
}.items()}  # fmt: skip
NAMES = {kind: name for name, kind in DTYPES.items()}


def parse_json(path: Path, text: bytes) -> Any:
    """JSON that somebody else wrote.

    Raises:
      UserError: it is not JSON, names a key twice, is nested too deeply, or holds what is no Unicode text.
    """
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError("a key stands there twice")
        return found

    try:
        found = json.loads(text, object_pairs_hook=once)
        json.dumps(found, ensure_ascii=False).encode()  # escapes may spell lone surrogates
        return found
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} does not hold sound JSON: {str(error)[:200]}; fetch the file again") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a small file. Raises UserError where it is missing, is no file, large or no object."""
    try:
        size = path.stat().st_size if path.is_file() else -1
        if not 0 <= size <= MOST_HEADER:
            found = "is not there as a file" if size < 0 else f"has {size:,} bytes, more than {MOST_HEADER:,}"
            raise UserError(f"{path} {found}; give the directory of a published checkpoint")
        found = parse_json(path, path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds a {type(found).__name__}; expected a JSON object")
    return found


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(tensors by name in the order of their bytes, the header's metadata). The tensors are views into the mapped file,
    which may be larger than the memory.

    Raises:
      UserError: it is not such a file: the header is too large or malformed, a dtype is unknown, offsets overlap, leave
        holes, or do not fit the shapes or the file.
    """
    try:
        if not path.is_file():
            raise UserError(f"{path} is not there as a file")
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise _unsound(path, f"its header should have {length:,} bytes, and the file has {size:,}")
            if length > MOST_HEADER:
                raise _unsound(path, f"its header has {length:,} bytes; at most {MOST_HEADER:,} are read")
            header = parse_json(path, file.read(length))
        if not isinstance(header, dict):
            raise _unsound(path, "its header is no JSON object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise _unsound(path, "its metadata are not texts")
        spans = sorted((_span(path, name, entry) for name, entry in header.items()), key=lambda span: span[:2])
        end = 0
        for begin, after, name, _, _ in spans:
            if begin != end:
                raise _unsound(path, f"tensor {name[:80]!r} begins at byte {begin:,}; expected {end:,}")
            end = after
        if end != size - 8 - length:
            raise _unsound(path, f"its tensors take {end:,} bytes, and it has {size - 8 - length:,}")
        data = np.memmap(path, np.uint8, "r") if end else np.empty(0, np.uint8)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return {name: _view(data, 8 + length + begin, dtype, shape) for begin, _, name, dtype, shape in spans}, metadata


def _span(path: Path, name: str, entry: Any) -> tuple[int, int, str, np.dtype, tuple[int, ...]]:
    """(first byte, byte after the last, name, dtype, shape) of a tensor, as its entry in the header claims."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _unsound(path, f"tensor {name[:80]!r} has no dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise _unsound(path, f"tensor {name[:80]!r} has dtype {str(kind)[:40]!r}; known are {', '.join(DTYPES)}")
    if (not _numbers(shape) or len(shape) > MOST_DIMENSIONS
            or math.prod(n or 1 for n in shape) * DTYPES[kind].itemsize >= 2**63):
        raise _unsound(path, f"tensor {name[:80]!r} has shape {str(shape)[:80]}")
    if not _numbers(offsets) or len(offsets) != 2:
        raise _unsound(path, f"tensor {name[:80]!r} has data_offsets {str(offsets)[:80]}")
    if offsets[1] - offsets[0] != math.prod(shape) * DTYPES[kind].itemsize:
        raise _unsound(path, f"tensor {name[:80]!r}, {kind}{shape}, has offsets {offsets}, which do not fit")
    return offsets[0], offsets[1], name, DTYPES[kind], tuple(shape)


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 2**48 for n in values)


def _view(data: np.ndarray, begin: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return np.ndarray(shape, dtype, data, begin) if math.prod(shape) else np.empty(shape, dtype)


def _unsound(path: Path, why: str) -> UserError:
    return UserError(f"{path} is not a sound safetensors file: {why}; fetch it again")


def write(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes the tensors, those of wider dtypes first, so that each lies where its dtype may, and otherwise in their
    order. One at a time is copied, where it is not contiguous. Raises OSError."""
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, value in tensors.items():
        begin, end = end, end + value.nbytes
        header[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def kind(value: np.ndarray) -> str:
    """Dtype and shape for people: "F32[2, 3]"."""
    return f"{NAMES.get(value.dtype, value.dtype)}{list(value.shape)}"
