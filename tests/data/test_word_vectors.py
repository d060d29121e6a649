"""Word vectors from text files."""

import numpy as np
import pytest

from lmrep.data import word_vectors


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "vectors.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_words_and_vectors(written):
    found = word_vectors.read(written("the 0.5 -1 2e-1\n\u00e9t\u00e9 1 2 3\n. . . 4 5 6\n"))
    assert found.words == ["the", "\u00e9t\u00e9", ". . ."]
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, np.float32([[0.5, -1, 0.2], [1, 2, 3], [4, 5, 6]]))


def test_a_header_and_windows_line_ends_are_tolerated(written):
    found = word_vectors.read(written("2 3\r\na 1 2 3\r\nb 4 5 6\r\n\r\n"))
    assert found.words == ["a", "b"] and found.vectors.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_selection_keeps_the_order_of_the_file_and_the_first_of_two(written):
    path = written("a 1 2\nb 3 4\na 5 6\nc 7 8\n")
    found = word_vectors.read(path, {"c", "a", "d"})
    assert found.words == ["a", "c"] and found.vectors.tolist() == [[1, 2], [7, 8]]
    assert word_vectors.read(path, ()).vectors.shape == (0, 2)
