"""SentencePiece: training vocabularies, the same one from the same corpus."""

import re

import numpy as np
import pytest

from lmrep.core.errors import RunFault, UserError
from lmrep.data import tokenizers
from lmrep.data.tokenizers import Config
from lmrep.data.tokenizers.sentence_piece import _sample_lines
from tests.data.sentencepiece_texts import CORPUS, NAMES, texts


@pytest.mark.parametrize("algorithm", NAMES)
def test_the_message_for_a_too_large_vocabulary_has_the_maximum(algorithm):
    with pytest.raises(UserError, match=r"vocab_size is 90,000, and this corpus has at most [\d,]+ pieces") as caught:
        tokenizers.train(Config(algorithm, 90000), lambda: iter(CORPUS))
    most = int(re.search(r"vocab_size=(\d+)", str(caught.value))[1])
    assert tokenizers.train(Config(algorithm, most), lambda: iter(CORPUS)).size == most
    with pytest.raises(UserError, match="vocab_size"):
        tokenizers.train(Config(algorithm, most + 1), lambda: iter(CORPUS))


def test_large_corpora_are_sampled_evenly():
    numbers = [f"line {i}" for i in range(1000)]
    kept = [int(line.split()[1]) for line in _sample_lines(numbers, 0.1)]
    assert 99 <= len(kept) <= 101 and set(np.diff(kept)) <= {9, 10, 11}
    assert list(_sample_lines(numbers, 1.0)) == numbers
    assert "".join(_sample_lines(["x" * 2500, " ", ""], 1.0)) == "x" * 2500


@pytest.mark.parametrize("fault", [UserError, RunFault, RuntimeError, OSError, KeyboardInterrupt])
@pytest.mark.parametrize("reading", [1, 2])
def test_an_error_of_the_corpus_is_raised_unchanged(fault, reading):
    readings = iter([1, 2])

    def broken():
        number = next(readings)
        yield from CORPUS[:3]
        if number == reading:
            raise fault("line 3 cannot be read")

    with pytest.raises(fault, match="line 3 cannot be read"):
        tokenizers.train(Config(NAMES[0], 64), broken)


@pytest.mark.parametrize("algorithm", NAMES)
def test_unusual_text_and_long_lines_can_be_trained_on(algorithm):
    unusual = [*CORPUS, *texts(5, 100), "word " * 5000, "x" * 20_000]
    trained_tokenizer = tokenizers.train(Config(algorithm, 300, lowercase=False), lambda: iter(unusual))
    assert trained_tokenizer.size == 300
