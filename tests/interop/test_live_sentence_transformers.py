"""Vectors of the sentence-transformers library, where it is installed, against those of `Run.embed`."""

import numpy as np
import pytest

import lmrep
from tests import given

library = pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.slow

TEXTS = ["The red cat sees the old dog.", "Old.", "A bird likes the mouse and the small fish."]


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_the_library_gives_the_same_vectors(tmp_path, pooling):
    run = lmrep.load(given.workdir(tmp_path))
    lmrep.convert(run.directory, tmp_path / "st", to="huggingface", sentence_transformers=pooling)
    vectors = library.SentenceTransformer(str(tmp_path / "st"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, run.embed(TEXTS, pooling), rtol=0, atol=1e-5)
