"""The bandwidth between chips, from their coordinates in slices that are not here."""

from types import SimpleNamespace

import numpy as np
import pytest

from lmrep.planning import hardware


def links(version, shape, group, slices=1):
    """The fraction of a chip's links that collectives within a group of chips use; coordinates run row by row."""
    order = [SimpleNamespace(coords=(*point, 0), slice_index=number)
             for number in range(slices) for point in np.ndindex(*shape)]
    chip = hardware.CHIPS[version]
    there = hardware.Hardware("", chip, order, slices)
    return there.speed(np.array([group]), order) / chip.interconnect


@pytest.mark.parametrize(("version", "shape", "group", "expected"), [
    ("v5e", (4, 4), range(4), 0.25),  # a line: half of the links of one of two dimensions
    ("v5e", (4, 4), range(0, 16, 4), 0.25), ("v5e", (4, 4), range(16), 0.5),
    ("v5e", (16, 16), range(16), 0.5),  # a ring, whose ends are joined
    ("v5e", (16, 16), range(256), 1.0), ("v5e", (4, 4), [0, 5, 10, 15], 0.25),  # a diagonal is no block
    ("v5p", (4, 4, 4), range(4), 1 / 3), ("v5p", (2, 2, 2), range(8), 0.5),
])
def test_a_group_uses_the_links_of_its_dimensions(version, shape, group, expected):
    assert links(version, shape, list(group)) == pytest.approx(expected)


def test_slices_are_joined_by_the_slow_network():
    chip = hardware.CHIPS["v5e"]
    assert links("v5e", (2, 2), [0, 4], slices=2) == chip.network / chip.interconnect
    assert links("v5e", (2, 2), [0, 1], slices=2) == 0.25
