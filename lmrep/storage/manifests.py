"""Makes and checks the manifest of a checkpoint, which lists the arrays of the state by path."""

from typing import Annotated, Any, NotRequired, TypedDict

import jax
import numpy as np

from lmrep.config.json_files import Count
from lmrep.config.record import convert
from lmrep.core.errors import UserError
from lmrep.core.files import MANIFEST, Damaged
from lmrep.core.params import Tree


def leaves_by_path(tree: Tree, part: str = "") -> dict[str, Any]:
    """Returns {path: leaf} of any pytree, in the order of its leaves. A path joins `part`, keys, indices and field
    names by slashes. Leaves without a dtype become numpy arrays. Raises ValueError for equal paths."""
    leaves = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        path = "/".join(filter(None, (part, jax.tree_util.keystr(keys, simple=True, separator="/"))))
        if path in leaves:
            raise ValueError(f"two entries of the state have the path {path}")
        leaves[path] = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return leaves


def subtree(part: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of {path: value} at the path `part` and below."""
    return {path: x for path, x in arrays.items() if not part or f"{path}/".startswith(f"{part}/")}


def array_type(x: Any) -> str:
    """Returns the dtype and shape of an array, such as "float32[2,3]"."""
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def abstract_array(array_type: str) -> jax.ShapeDtypeStruct:
    """Parses the result of `array_type`. Raises TypeError or ValueError for other texts."""
    dtype, _, shape = array_type.rstrip("]").partition("[")
    return jax.ShapeDtypeStruct(tuple(map(int, filter(None, shape.split(",")))), np.dtype(dtype))


def array_type_error(text: str) -> str:
    """Describes the expected form if `text` is not a result of `array_type`; otherwise returns ""."""
    try:
        valid = array_type(abstract_array(text)) == text and "-" not in text
    except (TypeError, ValueError):
        valid = False
    return "" if valid else "a dtype and a shape, such as float32[2,3]"


class Zarr3(TypedDict):
    """Where the arrays of a checkpoint are that `shards` has written."""

    folder: str
    grids: dict[str, list[list[Count]]]  # path -> shapes of a file's part of the array, and of a chunk


class Manifest(TypedDict):
    """The manifest of a checkpoint, without the hashes of its files."""

    step: Count
    score: float | None
    meta: dict[str, Any]
    arrays: dict[str, Annotated[str, array_type_error]]
    zarr3: NotRequired[Zarr3]


def checked(manifest: dict, step: int) -> dict:
    """Checks that a manifest is valid and belongs to checkpoint `step`, and returns it. Raises Damaged."""
    try:
        convert(Manifest, manifest, MANIFEST)
    except UserError as error:
        raise Damaged(str(error)) from None
    if manifest["step"] != step:
        raise Damaged(f"it is a copy of checkpoint {manifest['step']}")
    for path, text in manifest["arrays"].items() if "zarr3" in manifest else ():
        array, grid = abstract_array(text), manifest["zarr3"]["grids"].get(path, ())
        if [*map(len, grid)] != 2 * [array.ndim] or (
                array.size and not all(c and b % c == 0 for b, c in zip(*grid, strict=True))):
            raise Damaged(f"{MANIFEST} has {grid} as the files and chunks of {path}, which is {text}")
    return manifest


def mismatches(saved: dict[str, str], expected: dict[str, Any]) -> list[str]:
    """Returns the differences between the arrays `saved` ({path: dtype and shape}) and `expected` ({path: leaf}), one
    per line."""
    types = {path: array_type(x) for path, x in expected.items()}
    missing = [f"missing in the checkpoint: {path} {type_}" for path, type_ in types.items() if path not in saved]
    extra = [f"only in the checkpoint: {path} {type_}" for path, type_ in saved.items() if path not in types]
    differing = [f"differs: {path} is {saved[path]} in the checkpoint, {type_} in this run"
                 for path, type_ in types.items() if saved.get(path, type_) != type_]
    return missing + extra + differing
