"""Tokenizers of published directories: every layout gives the same ids; what we would read otherwise is refused."""

import json

import pytest
from tokenizers import AddedToken as LibraryToken
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lmrep.core.errors import UserError
from lmrep.data import tokenizers
from lmrep.data.tokenizers import SPECIALS, AddedToken, Bpe, ByteLevel, Config, WordPiece, bpe, byte_level
from lmrep.data.tokenizers.byte_level import BYTES

WORDS = [*SPECIALS.values(), "the", "é", "e", "##e", "T", "x", "##x"]
MERGES = [("h", "e"), ("Ġ", "t"), ("Ġt", "he")]
GPT2 = [*BYTES, *("".join(merge) for merge in MERGES), "<|endoftext|>"]
TOKENS = ["<s>", "<pad>", "</s>", "<unk>", *reversed(GPT2), "madeupword0000", "<mask>"]
ENDING = [("t", "h"), ("th", "e</w>")]
LETTERS = [*"aehtT", *(f"{c}</w>" for c in "aeht<>/"), "th", "the</w>"]
GPT = ["<unk>", *LETTERS, "\n</w>"]
FIVE = [*byte_level.SPECIALS.values(), *LETTERS]


def write(directory, **files):
    """Files by name, "_" for the dot: lists are lines, the rest is JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = "".join(f"{line}\n" for line in content) if isinstance(content, list) else json.dumps(content)
        stem, _, end = name.rpartition("_")
        (directory / f"{stem}.{end}").write_text(text, encoding="utf8")
    return directory


def ids(words):
    return {token: i for i, token in enumerate(words)}


def saved(tokenizer, directory, *names):
    """What `save` writes, less all but the files named."""
    tokenizer.save(directory)
    for path in directory.iterdir():
        if names and path.name not in names:
            path.unlink()
    return directory


LINES = ["#version: 0.2", *map(" ".join, MERGES)]


def test_every_layout_of_roberta_gives_the_same_tokenizer(tmp_path):
    dictionary = [f"{i} {9 * i}" for i in reversed(range(len(GPT2)))] + ["madeupword0000 0"]
    own = ByteLevel(TOKENS, MERGES)
    layouts = [
        write(tmp_path / "a", dict_txt=dictionary, encoder_json=ids(GPT2), vocab_bpe=LINES),
        write(tmp_path / "b", dict_txt=dictionary, vocab_json=ids(GPT2), merges_txt=LINES),
        write(tmp_path / "c", dict_txt=dictionary, vocab_json=ids(TOKENS), merges_txt=LINES[1:]),
        saved(own, tmp_path / "d", "tokenizer.json"),
        saved(own, tmp_path / "e", "vocab.json", "merges.txt"),
        saved(own, tmp_path / "f"),
    ]
    assert {tokenizers.load(layout).fingerprint for layout in layouts} == {own.fingerprint}


@pytest.mark.parametrize("names", [("encoder_json", "vocab_bpe"), ("vocab_json", "merges_txt")])
def test_every_layout_of_gpt2_gives_the_same_tokenizer(tmp_path, names):
    own = ByteLevel(GPT2, MERGES, specials=byte_level.GPT2_SPECIALS)
    directory = write(tmp_path / "a", **dict(zip(names, (ids(GPT2), LINES), strict=True)))
    file = names[0].replace("_", ".")
    loaded = [tokenizers.load(directory), tokenizers.load(saved(own, tmp_path / "b")),
             tokenizers.load(saved(own, tmp_path / "c", "tokenizer.json")),
             tokenizers.from_vocab_file(Config("byte_level_bpe", vocab_file=str(directory / file)))]
    assert {each.fingerprint for each in loaded} == {own.fingerprint}
    assert loaded[0].vocabulary.specials == dict.fromkeys(("bos", "eos", "unk"), GPT2.index("<|endoftext|>"))
    text = "the<|endoftext|> he"
    assert loaded[0].encode(text, specials=True).tokens == ["t", "he", "<|endoftext|>", " ", "he"]
    assert loaded[0].decode(loaded[0].encode_batch([text])[0]) == text and len(loaded[0].encode(text).ids) > 10
    with pytest.raises(UserError, match="has no mask token"):
        _ = loaded[0].mask_token
    (directory / "merges.txt").unlink(missing_ok=True)
    (directory / "vocab.bpe").unlink(missing_ok=True)
    with pytest.raises(UserError, match="cannot read the vocabulary"):
        tokenizers.load(directory)


@pytest.mark.parametrize("names", [("encoder_bpe_40000_json", "vocab_40000_bpe"), ("vocab_json", "merges_txt")])
def test_every_layout_of_gpt_gives_the_same_tokenizer(tmp_path, names):
    own, lines = Bpe(GPT, ENDING, specials=bpe.GPT_SPECIALS), ["#version: 0.2", *map(" ".join, ENDING)]
    directory = write(tmp_path / "a", **dict(zip(names, (ids(GPT), lines), strict=True)))
    file = names[0].removesuffix("_json") + ".json"
    other = {"tokenizer_class": "OpenAIGPTTokenizerFast", "do_lower_case": True}
    loaded = [tokenizers.load(directory), tokenizers.load(saved(own, tmp_path / "b")),
             tokenizers.load(saved(own, tmp_path / "c", "tokenizer.json")),
             tokenizers.load(write(saved(own, tmp_path / "d", "tokenizer.json", "vocab.json", "merges.txt"),
                                   tokenizer_config_json=other)),
             tokenizers.load(edited(saved(own, tmp_path / "e", "tokenizer.json"),
                                    lambda facts: facts["model"].pop("type"))),
             tokenizers.from_vocab_file(Config("bpe", vocab_file=str(directory / file)))]
    assert {each.fingerprint for each in loaded} == {own.fingerprint}
    assert loaded[0].vocabulary.specials == {"unk": 0, "eos": len(GPT) - 1}
    without = tokenizers.load(write(tmp_path / "f", vocab_json=ids(GPT[:-1]), merges_txt=lines))
    assert without.vocabulary.specials == {"unk": 0}


def modernbert(path):
    """ModernBERT's tokenizer.json of a small vocabulary, as the library makes it."""
    library = Tokenizer(models.BPE({**ids([*BYTES, *("".join(merge) for merge in MERGES)])}, MERGES))
    library.normalizer, library.decoder = normalizers.NFC(), decoders.ByteLevel()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens(["|||IP_ADDRESS|||", "<|endoftext|>"])
    library.add_tokens([LibraryToken("  ", normalized=True), LibraryToken("    ", normalized=True)])
    library.add_special_tokens([LibraryToken(token, special=True, normalized=False, lstrip=token == "[MASK]")
                                for token in ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")])
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, library.token_to_id(token)) for token in ("[CLS]", "[SEP]")])
    write(path, tokenizer_config_json={"tokenizer_class": "PreTrainedTokenizerFast"} | {
        f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "mask", "unk")})
    library.save(str(path / "tokenizer.json"))
    return library


def test_modernbert_is_read_and_written(tmp_path):
    """With its normalization, its runs of spaces, and one separator between the texts of a pair."""
    library = modernbert(tmp_path / "a")
    ours = tokenizers.load(tmp_path / "a")
    assert ours.one_separator and ours.vocabulary.specials == {
        role: library.token_to_id(f"[{role.upper()}]") for role in ("cls", "sep", "pad", "mask", "unk")}
    again = tokenizers.load(saved(ours, tmp_path / "b"))
    written = Tokenizer.from_file(str(tmp_path / "b/tokenizer.json"))
    assert again.fingerprint == ours.fingerprint
    for text in ("the the", "    the [MASK]  x", "e\u0301 |||IP_ADDRESS||| [SEP]", "it's 12", ""):
        expected = library.encode(text, add_special_tokens=False).ids
        assert again.encode(text, specials=True).ids.tolist() == expected
        assert ours.encode(text, specials=True).ids.tolist() == expected
        assert written.encode(text, "the").ids == library.encode(text, "the").ids


@pytest.mark.parametrize("file_name", ["special_tokens_map_json", "tokenizer_config_json"])
@pytest.mark.parametrize("make, mask", [(lambda: WordPiece(WORDS), "T"), (lambda: ByteLevel(TOKENS, MERGES), "Ġthe"),
                                        (lambda: ByteLevel(GPT2, MERGES, specials=byte_level.GPT2_SPECIALS), "Ġthe"),
                                        (lambda: Bpe(FIVE, ENDING), "the</w>"),
                                        (lambda: Bpe(GPT, ENDING, specials=bpe.GPT_SPECIALS), "the</w>")])
def test_special_tokens_have_the_names_in_the_files(tmp_path, file_name, make, mask):
    own, files = make(), ("vocab.txt", "vocab.json", "merges.txt")
    for number, named in enumerate((mask, {"content": mask, "lstrip": False})):
        directory = saved(own, tmp_path / str(number), *files)
        write(directory, **{file_name: {"mask_token": named, "pad_token": None}})
        loaded = tokenizers.load(directory)
        assert loaded.specials == own.specials | {"mask": mask} and loaded.fingerprint != own.fingerprint
        assert loaded.vocabulary.specials["mask"] == own.tokens.index(mask) == loaded.encode(mask, specials=True).ids[0]
        assert mask not in loaded.encode(mask).tokens
        again = tokenizers.load(saved(loaded, tmp_path / f"{number} again"))
        assert again.fingerprint == loaded.fingerprint and again.mask_token == mask
        alone = tokenizers.load(saved(loaded, tmp_path / f"{number} alone", "tokenizer.json", "tokenizer_config.json"))
        assert alone.fingerprint == loaded.fingerprint


def test_the_default_maximum_word_length_is_that_of_other_libraries(tmp_path):
    texts = ["x" * 100, "x" * 101, "x" * 201]
    trained = saved(WordPiece(WORDS), tmp_path / "trained")
    alone = saved(WordPiece(WORDS), tmp_path / "alone", "vocab.txt")
    file = tokenizers.from_vocab_file(Config(vocab_file=str(alone / "vocab.txt")))
    for loaded, max_length in ((tokenizers.load(trained), 200), (tokenizers.load(alone), 100), (file, 100)):
        assert [len(ids) == 1 for ids in loaded.encode_batch(texts)] == [len(text) > max_length for text in texts]


def edited(directory, change, name="tokenizer.json"):
    facts = json.loads((directory / name).read_text())
    change(facts)
    return write(directory, **{name.replace(".", "_"): facts})


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_layout_of_bert_gives_the_same_tokenizer(tmp_path, lowercase):
    own = WordPiece(WORDS, lowercase, 100)
    layouts = [
        write(tmp_path / "a", vocab_txt=WORDS, tokenizer_config_json={"do_lower_case": lowercase}),
        saved(own, tmp_path / "b", "tokenizer.json"),
        saved(own, tmp_path / "c", "vocab.txt", "tokenizer.json"),
        edited(saved(own, tmp_path / "d", "tokenizer.json"), lambda facts: facts["model"].pop("type")),  # as of old
        saved(own, tmp_path / "e"),
    ]
    layouts += [write(tmp_path / "f", vocab_txt=WORDS)] * lowercase
    assert {tokenizers.load(layout).fingerprint for layout in layouts} == {own.fingerprint}
    config = Config(vocab_file=str(tmp_path / "e"), lowercase=not lowercase)
    with pytest.raises(UserError, match=f"set --config.tokenizer.lowercase={lowercase}"):
        tokenizers.from_vocab_file(config)


def test_a_smaller_maximum_word_length_is_kept(tmp_path):
    def shorten(facts):
        facts["model"]["max_input_chars_per_word"] = 2

    loaded = tokenizers.load(edited(saved(WordPiece(WORDS), tmp_path), shorten))
    assert loaded.encode("xx xxx").tokens == ["x", "##x", "[UNK]"]
    assert loaded.fingerprint != WordPiece(WORDS).fingerprint
    assert tokenizers.load(saved(loaded, tmp_path)).fingerprint == loaded.fingerprint


@pytest.mark.parametrize("make, mask", [(lambda: WordPiece(WORDS), "[MASK]"),
                                        (lambda: ByteLevel(TOKENS, MERGES), "<mask>"),
                                        (lambda: Bpe(FIVE, ENDING), "<mask>")])
@pytest.mark.parametrize("alone", [True, False])
def test_added_tokens_keep_their_ids(tmp_path, make, mask, alone):
    own = make()
    new = [{"id": own.size, "content": "new-one"}, {"id": own.size + 1, "content": "<new>", "special": True,
                                                      "normalized": False}]
    directory = edited(saved(own, tmp_path / "a", *["tokenizer.json"] * alone),
                       lambda facts: facts["added_tokens"].extend(new))
    loaded = tokenizers.load(directory)
    assert loaded.tokens == [*own.tokens, "new-one", "<new>"]
    assert loaded.added == (AddedToken("new-one"), AddedToken("<new>", special=True, normalized=False))
    text = f"the new-one <new> {mask}"
    assert [i for i in loaded.encode(text, specials=True).ids if i >= own.size] == [own.size, own.size + 1]
    assert own.size in loaded.encode(text).ids and own.size + 1 not in loaded.encode(text).ids
    again = tokenizers.load(saved(loaded, tmp_path / "b"))
    assert again.fingerprint == loaded.fingerprint != own.fingerprint
    assert again.encode(text, specials=True).ids.tolist() == loaded.encode(text, specials=True).ids.tolist()
    assert loaded.decode([own.size + 1]) == "<new>" == loaded.id_to_token(own.size + 1)


def put(*path):
    *path, value = path

    def change(facts):
        for key in path[:-1]:
            facts = facts[key]
        facts[path[-1]] = value
    return change
