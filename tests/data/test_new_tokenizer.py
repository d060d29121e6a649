"""A tokenizer that the package does not know works once it is in TOKENIZERS."""

import json

import numpy as np
import pytest

from lmrep.config.record import read
from lmrep.core.errors import UserError
from lmrep.data import corpora, tokenizers
from lmrep.data.store.prepare import prepare
from lmrep.data.tokenizers import TOKENIZERS, Config, Encoding, Tokenizer, TokenizerDef

SPECIALS = {"unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}


class Characters(Tokenizer):
    name = "characters"

    def encode_batch(self, texts):
        return [self.encode(text).ids for text in texts]

    def encode(self, text, specials=False):
        ids = np.array([self._ids.get(c, 0) for c in text], np.int32)
        return Encoding(ids, [self.tokens[i] for i in ids], [(i, i + 1) for i in range(len(ids))], [*range(len(ids))])

    def decode(self, ids):
        return "".join(self.tokens[i] for i in ids)

    def id_to_token(self, token):
        return self.tokens[token]

    def _starts_word(self, token):
        return True

    def _identity(self):
        return ["characters-1", self.tokens]

    def _config(self):
        return {"tokenizer_class": "Characters"}

    def _save_vocabulary(self, directory):
        (directory / "characters.json").write_text(json.dumps(self.tokens))


def train(vocab_size, lowercase, texts):
    return Characters([*SPECIALS.values(), *sorted({c for text in texts() for c in text})][:vocab_size], (), SPECIALS)


def load(files):
    path = files.directory / "characters.json"
    return Characters(json.loads(path.read_text()), (), SPECIALS) if path.name in files.names else None


def test_a_new_tokenizer_takes_one_entry_of_the_table(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"name is 'characters'; expected one of"):
        read(Config, {"name": "characters"})
    row = TokenizerDef(train, load, "characters-1", len(SPECIALS), SPECIALS, "keep", lowercase=False)
    monkeypatch.setitem(TOKENIZERS, "characters", row)
    config = read(Config, {"name": "characters", "vocab_size": 64})
    (tmp_path / "a.txt").write_text("if x:\n    return x. Or not.\n\n" * 9)
    data = corpora.Config("text_files", files=str(tmp_path / "a.txt"), documents="file", validation=0, test=0)
    ready = prepare(data, config, tmp_path / "data")
    store = ready.stores["train"]
    decoded = ready.tokenizer.decode(store.take(np.arange(store.tokens)))
    assert decoded.strip() == (tmp_path / "a.txt").read_text().strip()
    loaded = tokenizers.from_vocab_file(Config("characters", vocab_file=str(ready.directory / "tokenizer")))
    assert loaded.fingerprint == ready.tokenizer.fingerprint and loaded.vocabulary.specials["mask"] == 2
    with pytest.raises(UserError, match=r"is characters, and tokenizer\.name is bpe"):
        tokenizers.from_vocab_file(Config("bpe", vocab_file=str(ready.directory / "tokenizer")))
