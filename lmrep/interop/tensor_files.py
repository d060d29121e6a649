"""Reads and writes safetensors files with the safetensors library, and reads JSON files from others. Malformed files
raise UserError."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from lmrep.core.errors import UserError
from lmrep.core.input_files import check_plain
from lmrep.core.json_text import InvalidJSON, loads

MAX_JSON = 4 * 2**20  # bytes

DTYPES = {name: np.dtype(dtype) for name, dtype in {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16,
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
    "BOOL": "?",
}.items()}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_json(path: Path) -> dict[str, Any]:
    """Reads the JSON object in a small file. Raises UserError if it is missing, too large or malformed."""
    try:
        size = path.stat().st_size if path.is_file() else -1
        if not 0 <= size <= MAX_JSON:
            problem = "is not a file" if size < 0 else f"has {size:,} bytes; expected at most {MAX_JSON:,}"
            raise UserError(f"{path} {problem}; give the directory of a published checkpoint")
        content = loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except InvalidJSON as error:
        check_plain(path)
        raise UserError(f"{path} is not valid JSON: {error}; download it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads (tensors by name, in the order of their bytes; the metadata of the file).

    Raises:
      UserError: the file is no safetensors file, or has a dtype that is not in `DTYPES`.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            names = file.offset_keys()
            for name in names:
                if (dtype := file.get_slice(name).get_dtype()) not in DTYPES:
                    raise UserError(f"{path}: tensor {name[:80]!r} has dtype {dtype}; expected one of "
                                    f"{', '.join(DTYPES)}")
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError, TypeError) as error:
        check_plain(path)
        raise UserError(f"{path} is not a valid safetensors file: {str(error)[:200]}; download it again") from None


def write(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes tensors in the library's order: wider dtypes first, then by name. Raises OSError."""
    try:
        save_file({name: np.ascontiguousarray(value).reshape(value.shape) for name, value in tensors.items()}, path,
                  dict(metadata) or None)
    except SafetensorError as error:
        raise OSError(0, str(error)) from error


def dtype_and_shape(value: np.ndarray) -> str:
    """Describes an array for people: "F32[2, 3]"."""
    return f"{DTYPE_NAMES.get(value.dtype, value.dtype)}{list(value.shape)}"
