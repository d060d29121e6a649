"""Safetensors files, valid and malformed."""

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


def test_safetensors_reads_written_files(tmp_path):
    tensor_files.write(tmp_path / "x", TENSORS, {"format": "pt"})
    reference = library.load_file(tmp_path / "x")
    assert reference.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(reference[name], value, strict=True)


def test_safetensors_file_round_trip(tmp_path):
    library.save_file(TENSORS, tmp_path / "x", {"format": "np"})
    ours, metadata = tensor_files.read(tmp_path / "x")
    assert metadata == {"format": "np"} and ours.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(ours[name], value, strict=True)
    tensor_files.write(tmp_path / "y", ours, metadata)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_bfloat16_is_read_and_written(tmp_path):
    value = TENSORS["a"].astype(ml_dtypes.bfloat16)
    tensor_files.write(tmp_path / "x", {"a": value}, {})
    np.testing.assert_array_equal(tensor_files.read(tmp_path / "x")[0]["a"], value, strict=True)


def test_tensors_that_are_not_contiguous_are_written(tmp_path):
    tensor_files.write(tmp_path / "x", {"a": TENSORS["a"].T}, {})
    np.testing.assert_array_equal(tensor_files.read(tmp_path / "x")[0]["a"], TENSORS["a"].T, strict=True)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_unsupported_dtypes_are_refused_by_name(tmp_path, dtype):
    with pytest.raises(UserError, match=f"tensor 'a' has dtype {dtype}; expected one of F64"):
        tensor_files.read(file(tmp_path / "x", {"a": entry(0, 8, (8,), dtype)}, bytes(8)))


@pytest.mark.parametrize(("header", "data"), [
    ({"a": entry(0, 4), "b": entry(2, 6)}, 6),
    ({"a": entry(0, 4), "b": entry(0, 4)}, 4),
    ({"a": entry(0, 4), "b": entry(8, 12)}, 12),
    ({"a": entry(4, 8)}, 8),
    ({"a": entry(0, 4)}, 5),
    ({"a": entry(0, 4)}, 3),
    ({"a": entry(0, 4 * 2**40, (2**40,))}, 4),
    ({"a": entry(0, 4, (2**40, 2**20))}, 4),
    ({"a": entry(0, 4, (2**50,))}, 4),
    ({"a": entry(0, 4, (-1,))}, 4),
    ({"a": entry(4, 0)}, 4),
    ({"a": entry(-4, 0)}, 4),
    ({"a": entry(0, 4, dtype="F31")}, 4),
    ({"a": [0, 4]}, 4),
    ({"__metadata__": {"a": 1}}, 0),
    ([], 0),
    (b"{", 0),
    (b'{"a":1,"a":2}', 0),
    (b"[" * 100_000, 0),
    (b'{"\\ud800":1}', 0),
])
def test_malformed_file_is_refused_in_one_message(tmp_path, header, data):
    with pytest.raises(UserError, match=r"x is not a valid safetensors file: .*; download it again") as error:
        tensor_files.read(file(tmp_path / "x", header, bytes(data)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", [3, 2**31, 2**64 - 1])
def test_header_longer_than_the_file_is_not_read(tmp_path, length):
    with pytest.raises(UserError, match="is not a valid safetensors file"):
        tensor_files.read(file(tmp_path / "x", b"{}", length=length))


def test_huge_header_is_not_read(tmp_path):
    with pytest.raises(UserError, match=r"is not a valid safetensors file: .*header too large"):
        path = file(tmp_path / "x", b"{}", length=2**32)
        os.truncate(path, 2**33)  # holds no bytes on the disk
        tensor_files.read(path)


def test_pipe_or_a_directory_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="is not a file"):
            tensor_files.read(path)
        with pytest.raises(UserError, match="is not a file"):
            tensor_files.read_json(path)


@pytest.mark.parametrize("numbers", [
    range(40), pytest.param((*range(40, 300), 1030, 3274, 5437), marks=pytest.mark.slow)], ids=["40", "others"])
def test_mutated_checkpoints_are_read_or_refused(tmp_path, numbers):
    names = tuple(sorted(path.name for path in mutations.GOLDEN.iterdir()))
    outcomes = [mutations.attempt(number, names, tmp_path) for number in numbers]
    counts = Counter(outcome.partition(",")[0] for outcome in outcomes)
    assert counts["refused"] > len(numbers) / 2 and counts["read"] > len(numbers) / 15
