"""The tokenizer of bytes."""

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.data import corpora, tokenizers
from lmrep.data.store.prepare import prepare
from lmrep.data.tokenizers import Config
from lmrep.data.tokenizers.raw_bytes import Bytes

TEXT = "Caf\u00e9,\n\n  x\ty \u5927!\u00a0 it's <mask> 12"


def test_ids_are_the_bytes_after_the_special_tokens():
    [ids] = Bytes().encode_batch([TEXT])
    assert (ids - 5).tolist() == list(TEXT.encode())
    assert Bytes().decode(ids) == TEXT
    assert Bytes().size == 5 + 256 and sorted(Bytes().vocabulary.specials.values()) == [0, 1, 2, 3, 4]


def test_special_tokens_are_matched_where_requested_and_every_byte_has_its_characters():
    encoding = Bytes().encode(TEXT, specials=True)
    assert encoding.ids.tolist().count(Bytes().vocabulary.specials["mask"]) == 1
    accent = Bytes().encode("a\u00e9b")
    assert accent.offsets == [(0, 1), (1, 2), (1, 2), (2, 3)] and accent.words == [0] * 4


def test_it_is_loaded_from_its_files(tmp_path):
    Bytes().save(tmp_path)
    loaded = tokenizers.load(tmp_path)
    assert loaded.name == "bytes" and loaded.fingerprint == Bytes().fingerprint
    with pytest.raises(UserError, match=r"is bytes, and tokenizer\.name is byte_level_bpe"):
        tokenizers.from_vocab_file(Config("byte_level_bpe", vocab_file=str(tmp_path), lowercase=False))


def test_a_corpus_keeps_every_byte(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    data = corpora.Config("text_files", files=str(tmp_path / "a.txt"), documents="file", validation=0, test=0)
    ready = prepare(data, Config("bytes", lowercase=False), tmp_path / "data")
    store = ready.stores["train"]
    assert (store.take(np.arange(store.tokens)) - 5).tolist() == list(TEXT.encode())
    assert ready.statistics["train"]["unknown"] == 0
