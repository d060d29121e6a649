"""The names of published tensors: the rows of a family's table, and the parameters that they map to.

    "encoder.layer.{l}.attention.self.query": linear("encoder/layers/attention/query")

maps `...query.weight`, [out, in], to our kernel [l, in, out], and `...query.bias` to our bias. `{l}` is the number of a
layer, since our layers are stacked.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

Params = Mapping[str, np.ndarray]  # by path
Shapes = Mapping[str, tuple[int, ...]]  # by path
TOKEN = "encoder/embedding/token"
POSITION, TOKEN_TYPE = "encoder/embedding/position", "encoder/embedding/token_type"
POOLER = "objective/pair/pooler/"  # base models have it without a head
# A checkpoint with one of them has a language model's head with a transform.
TRANSFORMS = ("objective/masked/transform/kernel", "objective/causal/transform/kernel")


class Tensor(NamedTuple):
    """The parameters that a published tensor holds."""

    paths: tuple[str, ...]  # of our parameters; several of them lie side by side along the last axis of the tensor
    transposed: bool = False  # whether its axes are ours reversed
    shape: tuple[int, ...] = ()  # its shape, where it splits axes of ours
    also: tuple[str, ...] = ()  # its other names in published files. The name in the table is the one that is written.
    optional: bool = False  # whether a checkpoint may lack it, together with all other optional tensors


Module = Mapping[str, Tensor]  # the tensors of a module of PyTorch, by what follows its name
Names = Mapping[str, str | Tensor | Module]  # name of a tensor or module -> our path, or more


def linear(*paths: str, bias: bool = True, transposed: bool = True) -> Module:
    """Names a linear map, whose weight is [out, in] if it is transposed; or several maps of one input."""
    kernel = Tensor(tuple(f"{path}/kernel" for path in paths), transposed)
    return {".weight": kernel} | ({".bias": Tensor(tuple(f"{path}/bias" for path in paths))} if bias else {})


def norm(path: str) -> Module:
    """Names a layer norm; files made from TensorFlow's checkpoints call its parameters gamma and beta."""
    return {".weight": Tensor((f"{path}/scale",), also=(".gamma",)),
            ".bias": Tensor((f"{path}/bias",), also=(".beta",))}


def rows(table: Names, under: str = "") -> Iterator[tuple[list[str], Tensor]]:
    """Yields (names, tensor) of every tensor of a table; `under` begins its paths."""
    for name, value in table.items():
        module = value if isinstance(value, Mapping) else {"": value}
        for suffix, tensor in module.items():
            tensor = Tensor((tensor,)) if isinstance(tensor, str) else tensor
            others = [name * bool(suffix) + other for other in tensor.also]
            yield [name + suffix, *others], tensor._replace(paths=tuple(under + path for path in tensor.paths))


class TensorLocation(NamedTuple):
    """Maps a tensor of a file to our parameters; of stacked ones, to one `layer`."""

    tensor: Tensor
    layer: int | None

    def shape(self, shapes: Shapes) -> tuple[int, ...]:
        """Computes the tensor's shape from the shapes of our parameters."""
        if self.tensor.shape:
            return self.tensor.shape
        parts = [shapes[path][self.layer is not None :] for path in self.tensor.paths]
        *before, last = parts[0][::-1] if self.tensor.transposed else parts[0]
        return (*before, last if len(parts) == 1 else sum(shape[-1] for shape in parts))

    def read(self, params: Params) -> np.ndarray:
        """Makes the tensor of our parameters; a view where it is part of one of them."""
        views = self._views(params)
        value = views[0] if len(views) == 1 else np.concatenate(views, axis=-1)
        return value.reshape(self.tensor.shape) if self.tensor.shape else value

    def assign(self, value: np.ndarray, params: Params) -> None:
        """Writes the tensor into our parameters."""
        start, views = 0, self._views(params)
        value = value.reshape(views[0].shape) if self.tensor.shape else value
        for view in views:
            view[...] = value[..., start : start + view.shape[-1]]
            start += view.shape[-1]

    def _views(self, params: Params) -> list[np.ndarray]:
        views = [params[path] if self.layer is None else params[path][self.layer] for path in self.tensor.paths]
        return [view.T for view in views] if self.tensor.transposed else views
