"""SentencePiece: training vocabularies, the same one from the same corpus."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from lmrep.core.errors import RunFault, UserError
from lmrep.data import corpora, tokenizers
from lmrep.data.store import prepare
from lmrep.data.tokenizers import Config
from lmrep.data.tokenizers.sentence_piece import _sample_lines
from tests.data.sentencepiece_texts import CORPUS, NAMES, cleaned, texts

TRAIN = """
import sys
from lmrep.data.tokenizers import Config, train
texts = sys.stdin.read().split("|")
for name in sys.argv[1:]:
    print(train(Config(name, 250), lambda: iter(texts)).fingerprint)
"""

def test_the_same_corpus_trains_the_same_vocabulary(tmp_path):
    here = [tokenizers.train(Config(algorithm, 250), lambda: iter(CORPUS)).fingerprint for algorithm in NAMES]
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [0])\n{TRAIN}", *NAMES], input="|".join(CORPUS),
        text=True, capture_output=True, check=True, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert done.stdout.split() == here and not done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("algorithm", NAMES)
def test_the_message_for_a_too_large_vocabulary_has_the_maximum(algorithm):
    with pytest.raises(UserError, match=r"vocab_size is 90,000, and this corpus has at most [\d,]+ pieces") as caught:
        tokenizers.train(Config(algorithm, 90000), lambda: iter(CORPUS))
    most = int(re.search(r"vocab_size=(\d+)", str(caught.value))[1])
    assert tokenizers.train(Config(algorithm, most), lambda: iter(CORPUS)).size == most
    with pytest.raises(UserError, match="vocab_size"):
        tokenizers.train(Config(algorithm, most + 1), lambda: iter(CORPUS))


@pytest.mark.parametrize("algorithm", NAMES)
def test_a_corpus_without_text_is_refused(algorithm):
    with pytest.raises(UserError, match="characters of the corpus and the special tokens take"):
        tokenizers.train(Config(algorithm, 64), lambda: iter([*CORPUS, "".join(map(chr, range(0x4E00, 0x4F00))) * 9]))
    with pytest.raises(UserError, match="pieces"):
        tokenizers.train(Config(algorithm, 64), lambda: iter(["", " "]))


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


def test_a_corpus_is_prepared_with_its_model(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n\n".join(CORPUS[:50]))
    data = corpora.Config(corpus="text_files", files=str(tmp_path / "corpus.txt"), validation=0.0, test=0.0)
    ready = prepare.prepare(data, Config(NAMES[0], vocab_size=200), tmp_path / "data")
    store = ready.stores["train"]
    assert ready.tokenizer.decode(store.take(np.arange(*store.sentences[:2]))) in cleaned(" ".join(CORPUS), True)
    assert ready.tokenizer.vocabulary.starts_word[store.take(store.sentences[:-1])].all()
    model = next((tmp_path / "data").glob("*/tokenizer/spiece.model"))
    loaded = prepare.prepare(data, Config(NAMES[0], vocab_file=str(model)), tmp_path / "other")
    assert loaded.tokenizer.fingerprint == ready.tokenizer.fingerprint
