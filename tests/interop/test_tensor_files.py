"""Safetensors files, sound and hostile."""

import json
import os
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as library

from lmrep.core.errors import UserError
from lmrep.interop import tensor_files
from tests.interop import mutations

RNG = np.random.default_rng(0)
TENSORS = {"a": RNG.normal(size=(3, 5)).astype(np.float32), "b/ü": RNG.integers(0, 9, (7,)), "empty": np.ones((0, 4)),
           "scalar": np.array(2.5), "half": RNG.normal(size=(2, 1, 3)).astype(np.float16), "flag": np.ones(3, bool)}


def file(path, header, data=b"", length=None):
    """A file of that header, JSON or bytes, and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(begin, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_the_library_reads_what_is_written(tmp_path):
    tensor_files.write(tmp_path / "x", TENSORS, {"format": "pt"})
    theirs = library.load_file(tmp_path / "x")
    assert theirs.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(theirs[name], value, strict=True)


def test_what_the_library_writes_is_read(tmp_path):
    library.save_file(TENSORS, tmp_path / "x", {"format": "np"})
    ours, metadata = tensor_files.read(tmp_path / "x")
    assert metadata == {"format": "np"} and ours.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(ours[name], value, strict=True)
    tensor_files.write(tmp_path / "y", ours, metadata)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_dtypes_that_numpy_lacks(tmp_path, dtype):
    tensor_files.write(tmp_path / "x", {"a": TENSORS["a"].astype(dtype)}, {})
    np.testing.assert_array_equal(tensor_files.read(tmp_path / "x")[0]["a"], TENSORS["a"].astype(dtype), strict=True)


@pytest.mark.parametrize(("header", "data", "message"), [
    ({"a": entry(0, 4), "b": entry(2, 6)}, 6, "'b' begins at byte 2; expected 4"),
    ({"a": entry(0, 4), "b": entry(0, 4)}, 4, "'b' begins at byte 0; expected 4"),
    ({"a": entry(0, 4), "b": entry(8, 12)}, 12, "'b' begins at byte 8; expected 4"),
    ({"a": entry(4, 8)}, 8, "'a' begins at byte 4; expected 0"),
    ({"a": entry(0, 4)}, 5, "its tensors take 4 bytes, and it has 5"),
    ({"a": entry(0, 4)}, 3, "its tensors take 4 bytes, and it has 3"),
    ({"a": entry(0, 4 * 2**40, (2**40,))}, 4, "its tensors take 4,398,046,511,104 bytes, and it has 4"),
    ({"a": entry(0, 4, (2**40, 2**20))}, 4, "do not fit"),
    ({"a": entry(0, 0, (2**47, 2**47, 0))}, 0, "has shape"),
    ({"a": entry(0, 4, (2**50,))}, 4, "has shape"),
    ({"a": entry(0, 4, (-1,))}, 4, "has shape"),
    ({"a": entry(0, 4, (1,) * 9)}, 4, "has shape"),
    ({"a": entry(4, 0)}, 4, "do not fit"),
    ({"a": entry(-4, 0)}, 4, "has data_offsets"),
    ({"a": entry(0, 4, dtype="F31")}, 4, "has dtype 'F31'; known are F64"),
    ({"a": entry(0, 4) | {"more": 1}}, 4, "has no dtype, shape and data_offsets"),
    ({"a": [0, 4]}, 4, "has no dtype, shape and data_offsets"),
    ({"__metadata__": {"a": 1}}, 0, "its metadata are not texts"),
    ([], 0, "no JSON object"),
    (b"{", 0, "sound JSON"),
    (b'{"a":1,"a":2}', 0, "a key stands there twice"),
    (b"[" * 100_000, 0, "sound JSON"),
    (b'{"\\ud800":1}', 0, "sound JSON"),
])
def test_a_malformed_file_is_refused(tmp_path, header, data, message):
    with pytest.raises(UserError, match=message):
        tensor_files.read(file(tmp_path / "x", header, bytes(data)))


@pytest.mark.parametrize("length", [3, 2**31, 2**64 - 1])
def test_a_header_longer_than_the_file_is_not_read(tmp_path, length):
    with pytest.raises(UserError, match="its header should have"):
        tensor_files.read(file(tmp_path / "x", b"{}", length=length))


def test_a_huge_header_is_not_read(tmp_path):
    with pytest.raises(UserError, match="at most 4,194,304 are read"):
        path = file(tmp_path / "x", b"{}", length=2**32)
        os.truncate(path, 2**33)  # holds no bytes on the disk
        tensor_files.read(path)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="is not there as a file"):
            tensor_files.read(path)
        with pytest.raises(UserError, match="is not there as a file"):
            tensor_files.read_json(path)


def test_mutated_checkpoints_are_read_or_refused(tmp_path):
    names = tuple(sorted(path.name for path in mutations.GOLDEN.iterdir()))
    outcomes = [mutations.attempt(number, names, tmp_path) for number in (*range(300), 1030, 3274, 5437)]
    counts = Counter(outcome.partition(",")[0] for outcome in outcomes)
    assert counts["refused"] > 150 and counts["read"] > 20
