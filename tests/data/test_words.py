"""The tokenizer of full words."""

from lmrep.data import tokenizers
from lmrep.data.tokenizers import Config, words

TEXTS = ["the N dogs see the <unk> cat .", "The cat sees  the\tdogs .", "a Caf\u00e9 @-@ bar"]
CONFIG = Config(name="words", vocab_size=64, lowercase=False)


def trained(**fields):
    return tokenizers.train(Config(name="words", **{"vocab_size": 64, "lowercase": False, **fields}),
                            lambda: iter(TEXTS))


def test_words_are_sorted_by_frequency_after_the_special_tokens():
    assert trained().tokens == [*words.SPECIALS.values(), "the", ".", "cat", "dogs", "@-@", "Caf\u00e9", "N", "The",
                                "a", "bar", "see", "sees"]


def test_text_is_split_at_white_space_alone():
    encoding = trained().encode("The N dogs. the\n @-@ bar")
    assert encoding.tokens == ["The", "N", "<unk>", "the", "@-@", "bar"]
    assert encoding.offsets == [(0, 3), (4, 5), (6, 11), (12, 15), (17, 20), (21, 24)]
    assert encoding.words == list(range(6))
    assert all(trained().vocabulary.starts_word)


def test_lowercase_merges_words_of_other_case_and_accents():
    tokenizer = trained(lowercase=True)
    assert "The" not in tokenizer.tokens and "cafe" in tokenizer.tokens
    assert tokenizer.encode("THE caf\u00e9").tokens == ["the", "cafe"]


def test_rare_words_are_left_out_of_a_small_vocabulary():
    many = [" ".join(f"w{i}" for i in range(n)) for n in range(100)]
    tokenizer = tokenizers.train(CONFIG, lambda: iter(many))
    assert tokenizer.tokens[5:] == [f"w{i}" for i in range(64 - 5)]


def test_punctuation_marks_are_words_of_any_text(tmp_path):
    tokenizer = tokenizers.train(Config(name="words_text", vocab_size=64, lowercase=False),
                                 lambda: iter(["The dog's end. The end (of it)!"]))
    assert tokenizer.tokens[5:] == ["The", "end", "!", "'", "(", ")", ".", "dog", "it", "of", "s"]
    encoding = tokenizer.encode("The cat's end.")
    assert encoding.tokens == ["The", "<unk>", "'", "s", "end", "."] and encoding.words == list(range(6))
    tokenizer.save(tmp_path)
    assert type(tokenizers.load(tmp_path)) is words.TextWords
