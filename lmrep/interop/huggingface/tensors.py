"""The names of published tensors, as rows of a family's table, and the parameters that they map to.

    "encoder.layer.{l}.attention.self.query": linear("encoder/layers/attention/query")

maps `...query.weight`, [out, in], to our kernel [l, in, out], and `...query.bias` to our bias. `{l}` is the number of a
layer, since our layers are stacked; where they are not, because they differ, it is in our path too.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

Params = Mapping[str, np.ndarray]  # by path
Shapes = Mapping[str, tuple[int, ...]]  # by path
TOKEN, TABLE_DELTA = "encoder/embedding/token", "encoder/embedding/delta"
POSITION, TOKEN_TYPE = "encoder/embedding/position", "encoder/embedding/token_type"
POOLER = "objective/pair/pooler/"  # base models have it, although they have no head
# A checkpoint with one of these has a language model's head with a transform.
TRANSFORMS = ("objective/masked/transform/kernel", "objective/causal/transform/kernel")


class Tensor(NamedTuple):
    """The parameters that a published tensor holds."""

    paths: tuple[str, ...]  # of our parameters; several are concatenated along their last axis
    transposed: bool = False  # whether its axes are in reverse order
    shape: tuple[int | str, ...] = ()  # its shape, if it splits axes of ours; a name is that field of our config
    also: tuple[str, ...] = ()  # other names in published files; the name in the table is written
    optional: bool = False  # whether a checkpoint may lack it, together with all other optional tensors
    # (our config) -> the numbers of its rows, in the order of our columns; None for the same order
    order: Callable[[Any], np.ndarray] | None = None


Module = Mapping[str, Tensor]  # suffix of the name of a PyTorch module -> tensor
Names = Mapping[str, str | Tensor | Module]  # name of a tensor or module -> our path, `Tensor` or `Module`


def linear(*paths: str, bias: bool = True, transposed: bool = True) -> Module:
    """Returns the tensors of a linear layer at `paths`, or of several layers with one input. The weight is [out, in] if
    it is `transposed`."""
    kernel = Tensor(tuple(f"{path}/kernel" for path in paths), transposed)
    return {".weight": kernel} | ({".bias": Tensor(tuple(f"{path}/bias" for path in paths))} if bias else {})


def norm(path: str, bias: bool = True) -> Module:
    """Returns the tensors of a layer norm, also called gamma and beta in files made from TensorFlow's checkpoints."""
    scale = {".weight": Tensor((f"{path}/scale",), also=(".gamma",))}
    return scale | ({".bias": Tensor((f"{path}/bias",), also=(".beta",))} if bias else {})


def rows(table: Names, under: str = "") -> Iterator[tuple[list[str], Tensor]]:
    """Yields (names, tensor) of every tensor of a table, with `under` before its paths."""
    for name, value in table.items():
        module = value if isinstance(value, Mapping) else {"": value}
        for suffix, tensor in module.items():
            tensor = Tensor((tensor,)) if isinstance(tensor, str) else tensor
            also = [name * bool(suffix) + alias for alias in tensor.also]
            yield [name + suffix, *also], tensor._replace(paths=tuple(under + path for path in tensor.paths))


class TensorLocation(NamedTuple):
    """The place of a published tensor in our parameters."""

    tensor: Tensor
    layer: int | None  # the layer of stacked parameters; None for others
    order: tuple[int, ...] | None = None  # `Tensor.order` of the network

    def shape(self, shapes: Shapes) -> tuple[int, ...]:
        """Returns the tensor's shape, given the shapes of our parameters."""
        if self.tensor.shape:
            return self.tensor.shape
        parts = [shapes[path][self.layer is not None :] for path in self.tensor.paths]
        shape = (*parts[0][:-1], sum(part[-1] for part in parts))
        return shape[::-1] if self.tensor.transposed else shape

    def read(self, params: Params) -> np.ndarray:
        """Returns the tensor's value from our parameters; a view if it is a part of a single parameter."""
        views = self._views(params)
        value = views[0] if len(views) == 1 else np.concatenate(views, axis=-1)
        value = value.T if self.tensor.transposed else value
        value = value if self.order is None else value[np.argsort(self.order)]
        return value.reshape(self.tensor.shape) if self.tensor.shape else value

    def assign(self, value: np.ndarray, params: Params) -> None:
        """Copies the tensor's value into our parameters, in place."""
        start, views = 0, self._views(params)
        if self.tensor.shape:
            value = value.reshape(views[0].shape[::-1] if self.tensor.transposed else views[0].shape)
        value = value if self.order is None else value[np.array(self.order)]
        value = value.T if self.tensor.transposed else value
        for view in views:
            view[...] = value[..., start : start + view.shape[-1]]
            start += view.shape[-1]

    def _views(self, params: Params) -> list[np.ndarray]:
        return [params[path] if self.layer is None else params[path][self.layer] for path in self.tensor.paths]
