"""Tokenizers of published directories: every layout gives the same ids; what we would read otherwise is refused."""

import json

import pytest

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


def test_a_cased_vocabulary_without_a_setting_is_refused(tmp_path):
    words = [*SPECIALS.values(), "a", "The", "In", "An"]
    write(tmp_path, vocab_txt=words)
    with pytest.raises(UserError, match=r"3 of 9 tokens have capitals.*do_lower_case"):
        tokenizers.load(tmp_path)
    write(tmp_path, tokenizer_config_json={"do_lower_case": False})
    assert not tokenizers.load(tmp_path).lowercase


def test_files_that_contradict_each_other_are_refused(tmp_path):
    words = [*SPECIALS.values(), "a", "b"]
    tokenizers.WordPiece(words).save(tmp_path)
    write(tmp_path, vocab_txt=[*words[:-2], "b", "a"])
    with pytest.raises(UserError, match="different ids; keep the one that is the model's"):
        tokenizers.load(tmp_path)


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


@pytest.mark.parametrize("family, change, message", [
    ("w", put("normalizer", {"type": "NFKC"}), "normalizer is NFKC"),
    ("w", put("normalizer", "strip_accents", False), "strip_accents is False"),
    ("w", put("normalizer", "handle_chinese_chars", False), "handle_chinese_chars of its normalizer is False"),
    ("w", put("normalizer", "lowercase", "yes"), "its lowercase is yes"),
    ("w", put("pre_tokenizer", {"type": "Metaspace"}), "pre_tokenizer is Metaspace"),
    ("w", put("model", "continuing_subword_prefix", "@@"), "continuing_subword_prefix of its model is @@"),
    ("w", put("model", {"type": "Unigram", "vocab": [["a", 0.0]]}), "unk_id is None"),
    ("w", put("model", {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}), "BertNormalizer in its normalizer"),
    ("w", put("model", "vocab", "the", 10**15), "has id 1000000000000000"),
    ("w", put("model", "vocab", "the", True), "'the' has id True"),
    ("w", put("model", "vocab", "[MASK]", 3), "has id"),
    ("w", put("model", "max_input_chars_per_word", -1), "max_input_chars_per_word is -1"),
    ("w", put("added_tokens", [{"id": 1}]), "among its added_tokens"),
    ("w", put("added_tokens", [{"id": 77, "content": "far"}]), "'far' has id 77"),
    ("w", put("added_tokens", [{"id": 2, "content": "the"}]), "adds 'the' as id 2, which has id 5"),
    ("w", put("added_tokens", [{"id": len(WORDS), "content": "two\nlines"}]), "has several lines"),
    ("b", put("model", "merges", [["h ", "e"]]), "merge 1 is"),
    ("b", put("normalizer", {"type": "Lowercase"}), "normalizer is Lowercase"),
    ("b", put("pre_tokenizer", {"type": "Sequence", "pretokenizers": []}), "pre_tokenizer is Sequence"),
    ("b", put("pre_tokenizer", "add_prefix_space", True), "add_prefix_space of its pre_tokenizer is True"),
    ("b", put("pre_tokenizer", "use_regex", False), "use_regex"),
    ("b", put("model", "dropout", 0.1), "dropout is 0.1"),
    ("b", put("model", "ignore_merges", True), "ignore_merges"),
    ("b", put("model", "merges", ["h e", "h e l"]), "merge 2 is 'h e l'"),
    ("b", put("model", "merges", [["h", 3]]), "merge 1 is"),
    ("b", put("model", "merges", [["z", "q"]]), "'zq' is not in the vocabulary"),
    ("b", put("model", "vocab", {"a": 0}), "'<s>' has id 0"),
    ("g", put("normalizer", None), "normalizer is none"),
    ("g", put("normalizer", "lowercase", False), "lowercase of its normalizer is False"),
    ("g", put("normalizer", "strip_accents", False), "strip_accents is False"),
    ("g", put("pre_tokenizer", {"type": "Whitespace"}), "pre_tokenizer is Whitespace"),
    ("g", put("model", "type", "Unigram"), "is Unigram, whose vocab"),
    ("g", put("model", "end_of_word_suffix", "@"), "end_of_word_suffix of its model is @"),
    ("g", put("model", "continuing_subword_prefix", "##"), "continuing_subword_prefix is '##'"),
    ("g", put("model", "unk_token", "e"), "unk_token of its model is e"),
    ("g", put("model", "dropout", 0.1), "dropout is 0.1"),
    ("g", put("model", "merges", [["a", "</w>"]]), "'</w>' is not in the vocabulary"),
])
def test_a_tokenizer_json_of_other_rules_or_none_is_refused(tmp_path, family, change, message):
    own = {"w": WordPiece(WORDS), "b": ByteLevel(TOKENS, MERGES),
           "g": Bpe(GPT, ENDING, specials=bpe.GPT_SPECIALS)}[family]
    directory = saved(own, tmp_path, "tokenizer.json")
    with pytest.raises(UserError) as caught:
        tokenizers.load(edited(directory, change))
    assert message in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("files, message", [
    ({}, "no tokenizer in"),
    ({"tokenizer_json": []}, "is not JSON"),
    ({"tokenizer_json": ["[" * 100_000]}, "is not JSON"),
    ({"tokenizer_json": ['{"a": "\\ud800"}']}, "is not JSON"),
    ({"tokenizer_json": ["[1]"]}, "expected a JSON object"),
    ({"vocab_txt": WORDS, "tokenizer_config_json": {"tokenizer_class": "BertJapaneseTokenizer"}}, "BertJapanese"),
    ({"vocab_txt": WORDS, "tokenizer_config_json": {"do_lower_case": "no"}}, "do_lower_case is no"),
    ({"vocab_txt": WORDS, "tokenizer_config_json": {"tokenize_chinese_chars": False}}, "tokenize_chinese_chars"),
    ({"vocab_json": ids(TOKENS)}, "cannot read the vocabulary"),
    ({"vocab_json": ids(TOKENS), "merges_txt": []}, "is empty"),
    ({"vocab_json": ids(GPT2[:-1]), "merges_txt": LINES}, "<s>, <pad>, </s>, <unk>, <mask> is not among"),
    ({"vocab_json": ids(GPT2), "merges_txt": LINES, "special_tokens_map_json": {"pad_token": "<p>"}},
     "<p> is not among"),
    ({"vocab_txt": WORDS, "special_tokens_map_json": {"mask_token": 3}}, "mask_token is 3"),
    ({"vocab_txt": WORDS, "special_tokens_map_json": {"mask_token": "T"}, "tokenizer_config_json": {
        "mask_token": "[MASK]"}}, "and 'T' in special_tokens_map.json"),
    ({"vocab_json": ids(TOKENS), "merges_txt": [*LINES, "a b c"]}, "merge 5 is 'a b c'"),
    ({"vocab_json": ids(TOKENS), "merges_txt": LINES, "tokenizer_config_json": {"add_prefix_space": True}},
     "add_prefix_space is True"),
    ({"vocab_json": ids(TOKENS), "merges_txt": LINES, "tokenizer_config_json": {"tokenizer_class": "CLIPTokenizer"}},
     "CLIPTokenizer"),
    ({"vocab_txt": WORDS, "added_tokens_json": {"[MASK]": 4, "[NEW]": 12}}, "adds '[NEW]'"),
    ({"vocab_json": {"a": 0, "b": 0}, "merges_txt": LINES}, "'b' has id 0"),
    ({"vocab_json": ids(GPT[1:]), "merges_txt": [*map(" ".join, ENDING)]}, "<unk> is not among its"),
    ({"vocab_json": ids(GPT), "merges_txt": [*map(" ".join, ENDING)], "tokenizer_config_json": {
        "do_lower_case": False}}, "do_lower_case is False"),
    ({"vocab_json": ids(GPT), "merges_txt": [*map(" ".join, ENDING)], "tokenizer_config_json": {
        "tokenizer_class": "XLMTokenizer"}}, "XLMTokenizer"),
    ({"dict_txt": ["13"], "encoder_json": ids(GPT2), "vocab_bpe": LINES}, "line 1 is '13'"),
    ({"dict_txt": ["99999 1"], "encoder_json": ids(GPT2), "vocab_bpe": LINES}, "no token 99999"),
    ({"dict_txt": ["1 1", "1 1"], "encoder_json": ids(GPT2), "vocab_bpe": LINES}, "a token twice"),
    ({"dict_txt": ["1 1"], "encoder_json": ids(GPT2), "vocab_bpe": LINES}, "is not in the vocabulary"),
])
def test_malformed_directories_are_refused(tmp_path, files, message):
    with pytest.raises(UserError) as caught:
        tokenizers.load(write(tmp_path, **files))
    assert message in str(caught.value)
