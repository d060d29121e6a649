"""Unigram models of a tokenizer.json alone. `tests/interop/test_live_tokenizers.py` compares their ids."""

import base64
import json

import sentencepiece

from lmrep.data import tokenizers
from lmrep.data.tokenizers import spiece_model
from tests.data import test_sentencepiece

T5 = test_sentencepiece.model(**test_sentencepiece.T5)
FACTS, LIBRARY = spiece_model.read(T5), sentencepiece.SentencePieceProcessor(model_proto=T5)


def added(i, content, special=True):
    return {"id": i, "content": content, "special": special, "normalized": False, "lstrip": False, "rstrip": False,
            "single_word": False}


def facts():
    """The tokenizer.json of T5's rules, with two sentinels."""
    names = ["<extra_id_1>", "<extra_id_0>"]
    pieces = [[piece, LIBRARY.get_score(i)] for i, piece in enumerate(FACTS.tokens)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [*(added(i, FACTS.tokens[i]) for i in range(3)),
                         *(added(len(pieces) + i, name) for i, name in enumerate(names))],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(FACTS.characters).decode()},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}]},
        "post_processor": None,
        "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [*pieces, *([name, 0.0] for name in names)],
                  "byte_fallback": False}}


def write(directory, content):
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(content))
    (directory / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
         "extra_ids": 2, "model_max_length": 512, "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}))
    return directory


def test_files_that_are_written_are_those_that_were_read(tmp_path):
    ours = tokenizers.load(write(tmp_path / "read", facts()))
    assert ours.name == "sentencepiece_t5" and not ours.lowercase and ours.published
    assert [ours.tokens[i] for i in ours.vocabulary.sentinels] == ["<extra_id_0>", "<extra_id_1>"]
    ours.save(tmp_path / "written")
    written = json.loads((tmp_path / "written/tokenizer.json").read_text())
    kept = {name: value for name, value in facts().items() if name not in ("truncation", "padding")}
    assert written == kept
    config = json.loads((tmp_path / "written/tokenizer_config.json").read_text())
    assert config["model_max_length"] == 512 and "auto_map" not in config
    assert tokenizers.load(tmp_path / "written").fingerprint == ours.fingerprint
    old = facts()
    del old["model"]["type"], old["pre_tokenizer"]["pretokenizers"][1]["prepend_scheme"]
    old["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True
    for text in test_sentencepiece.CORPUS[:9]:
        assert tokenizers.load(write(tmp_path / "old", old)).encode(text).ids.tolist() == ours.encode(text).ids.tolist()


def test_ids_are_those_of_the_sentencepiece_model(tmp_path):
    ours = tokenizers.load(write(tmp_path, facts()))
    for text in test_sentencepiece.CORPUS:
        found = ours.encode(text)
        assert found.ids.tolist() == LIBRARY.encode(text)
        assert all(text[start:end].strip() == text[start:end] != "" for start, end in found.offsets)
        assert found.words[-1] == len(text.split()) - 1
