"""Where parameters start: layers by number, slices, other subtrees; and what is refused."""

import numpy as np
import pytest

from lmrep.interop.path_mapping import origins, take

STACKED = {"encoder/layers/mlp/kernel": np.arange(12), "encoder/layers/norm/scale": np.arange(12) + 100,
           "encoder/embedding/token": np.arange(5), "objective/masked/bias": np.arange(5),
           "objective/generator/layers/mlp/kernel": np.arange(12) + 50}
NUMBERED = {f"encoder/layers/{i}/kernel": np.full(2, i) for i in range(4)} | {"encoder/embedding/token": np.zeros(3)}


def taken(paths, source, mapping):
    """{path: the values that it starts from}."""
    return {path: take(source[origin.path], origin, path).tolist()
            for path, origin in origins(paths, source, mapping).items()}


PATHS = ("encoder/layers/mlp/kernel", "encoder/layers/norm/scale", "encoder/embedding/token", "objective/masked/bias")


@pytest.mark.parametrize(("index", "numbers"), [
    ("0,2,4,7,9,11", [0, 2, 4, 7, 9, 11]), ("0:3", [0, 1, 2]), ("::4", [0, 4, 8]), ("-1", [11]),
    ("0, 10:", [0, 10, 11]), ("::-6", [11, 5]),
])
def test_layers_by_number(index, numbers):
    mapping = {"encoder/layers": f"encoder/layers[{index}]"}
    found = taken(PATHS, STACKED, mapping)
    assert found["encoder/layers/mlp/kernel"] == numbers
    assert found["encoder/layers/norm/scale"] == [100 + i for i in numbers]
    assert found["encoder/embedding/token"] == [0, 1, 2, 3, 4]  # what no path fits starts from its own path


def test_layers_that_are_named_by_number():
    paths = ["encoder/layers/0/kernel", "encoder/layers/1/kernel", "encoder/layers/2/kernel", "encoder/embedding/token"]
    found = taken(paths, NUMBERED, {"encoder/layers": "encoder/layers[3,1]"})
    assert found == {"encoder/layers/0/kernel": [3, 3], "encoder/layers/1/kernel": [1, 1],
                     "encoder/embedding/token": [0, 0, 0]}


def test_subtrees_and_the_longest_path():
    found = taken(PATHS, STACKED, {"encoder/layers": "objective/generator/layers", "encoder/layers/norm": "",
                                   "objective": ""})
    assert found == {"encoder/layers/mlp/kernel": list(range(50, 62)), "encoder/embedding/token": [0, 1, 2, 3, 4]}


def test_a_prefix_is_dropped():
    plain = {path.removeprefix("encoder/"): value for path, value in STACKED.items() if path.startswith("encoder")}
    assert taken(PATHS[:3], plain, {"encoder": ""}) == {}  # random
    assert taken(["layers/mlp/kernel"], STACKED, {"layers": "encoder/layers"}) == {"layers/mlp/kernel": list(range(12))}
    assert taken(PATHS[:1], plain, {"encoder/layers": "layers"}) == {PATHS[0]: list(range(12))}
