"""Features on disk: any damage is noticed and repaired, and a full disk is a fault that leaves nothing."""

import functools
import resource
from types import SimpleNamespace

import numpy as np
import pytest

from lmrep.core import sealed_cache
from lmrep.core.errors import RunFault
from lmrep.core.files import MANIFEST
from lmrep.inference import feature_cache

FEATURES = np.random.default_rng(0).normal(size=(40, 2, 3)).astype(np.float32)


@pytest.fixture
def features(tmp_path, monkeypatch):
    """The features in the cache. Batches hold examples in any order, some of which touch."""
    batches = [np.r_[10:20, 20:25, 0:3], np.r_[39:40, 3:10], np.r_[0:0], np.r_[25:39]]
    monkeypatch.setattr(feature_cache, "_shape", lambda *_: FEATURES.shape)
    monkeypatch.setattr(feature_cache, "_vectors", lambda *_: ((rows, FEATURES[rows]) for rows in batches))
    write = functools.partial(feature_cache._write, part=None, c=None, examples=SimpleNamespace(), split="train")
    return lambda: sealed_cache.cached(tmp_path / "features/key", write, feature_cache._load, {"features": "key"}, "it")


def test_features_are_mapped_as_they_were_computed(features, tmp_path):
    for _ in range(2):
        assert isinstance(features(), np.memmap)
        np.testing.assert_array_equal(features(), FEATURES)
    assert [path.name for path in (tmp_path / "features").iterdir()] == ["key"]


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_is_noticed_and_repaired(features, tmp_path, caplog, seed):
    draw = np.random.default_rng(seed)
    features()
    for path in sorted((tmp_path / "features/key").iterdir()):
        content = path.read_bytes()
        for _ in range(10):
            caplog.clear()
            flipped = bytearray(content)
            flipped[draw.integers(len(content))] ^= 1 << int(draw.integers(8))
            path.write_bytes(flipped if draw.integers(2) else content[: draw.integers(len(content))])
            np.testing.assert_array_equal(features(), FEATURES)
            noticed = caplog.text.count("is damaged and will be built again")
            assert noticed == 1 or (noticed == 0 and path.name == MANIFEST)  # white space, in which nothing is said


def test_a_full_disk_is_a_fault_and_leaves_nothing(features, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(RunFault, match="cannot write it"):
            features()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "features").iterdir())
