"""The words of taggers as tokens, and long sentences in windows."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as library

from lmrep.data.records import Record
from lmrep.tasks import tagging
from lmrep.tasks import words as task_words
from tests.tasks.tags import SENTENCE, encoder, record, resolved

# Words as tokens


@pytest.mark.parametrize("name", ["wordpiece", "byte_level_bpe"])
def test_words_have_the_ids_of_the_tokenizers_library_for_pretokenized_text(name):
    given = encoder(name=name)
    reference = given.tokenizer.library_model()
    if name == "byte_level_bpe":
        reference.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
    expected = reference.encode(SENTENCE, is_pretokenized=True, add_special_tokens=False)
    units, _ = tagging.encode(tagging.Config(), [Record({"words": SENTENCE}, "0", "")], given)
    assert units.tokens[1:-1].tolist() == expected.ids
    assert units.columns["word"][1:-1].tolist() == expected.word_ids
    assert units.tokens[[0, -1]].tolist() == [2, 3]
    assert units.columns["word"][[0, -1]].tolist() == [-1, -1]


@pytest.mark.parametrize("name", ["byte_level_bpe", "sentencepiece_bpe", "bpe", "words"])
def test_words_have_the_ids_that_they_have_in_a_text(name):
    given = encoder(name=name)
    ids = task_words.word_ids([record("visits Rome . visits")], given)
    text = given.tokenizer.encode_batch([" ".join(["Oslo", "visits", "Rome", "."])])[0]
    assert text.tolist()[-sum(map(len, ids.values())):] == np.concatenate(list(ids.values())).tolist()
    assert list(ids) == ["visits", "Rome", "."]


@pytest.mark.parametrize("name", ["wordpiece", "sentencepiece_bpe"])
def test_a_word_without_a_token_is_unknown_and_not_lost(name):
    given = encoder(name=name)
    sentence = Record({"words": ["Ann", "\x01", "Rome"], "tags": ["B", "O", "B"]}, "0", "")
    units, _ = tagging.encode(resolved([sentence], scheme="none"), [sentence], given)
    unknown = given.tokenizer.vocabulary.specials["unk"]
    assert unknown in units.tokens.tolist()
    assert set(units.columns["word"]) == {-1, 0, 1, 2}
    assert (units.columns["tag"] >= 0).sum() == 3


@pytest.mark.parametrize(("pieces", "at"), [("first", [1, 2]), ("mean", [1, 2]), ("last", [1, 4])])
def test_the_tag_is_at_the_token_that_stands_for_the_word(pieces, at):
    word = np.array([-1, 0, 1, 1, 1, -1])
    assert np.flatnonzero(task_words.representatives(word, pieces)).tolist() == at


def test_the_mean_is_over_the_tokens_of_a_word_within_its_sentence():
    x = jax.random.normal(jax.random.key(0), (1, 7, 3))
    word, segments = jnp.array([[-1, 0, 0, 1, 0, 0, -1]]), jnp.array([[1, 1, 1, 1, 2, 2, 2]])
    means = task_words.word_means(x, word, segments)
    expected = [0 * x[0, 0], *2 * [x[0, 1:3].mean(0)], x[0, 3], *2 * [x[0, 4:6].mean(0)], 0 * x[0, 0]]
    np.testing.assert_allclose(means[0], np.stack(expected), atol=1e-6)


# Long sentences


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("stride", "seed"), itertools.product((1, 5, 9, 40), range(4)))
def test_each_word_is_chosen_in_the_window_where_it_has_the_most_context(stride, seed, left):
    sizes = np.random.default_rng(seed).integers(1, 6, 30)
    found = task_words.windows(sizes, 12, stride, left)
    chosen = np.concatenate([np.arange(start, end)[mask] for start, end, mask in found])
    assert sorted(chosen) == list(range(30))
    starts = [start for start, *_ in found]
    assert starts == sorted(set(starts))

    def context(word, start, end):
        before, after = sizes[start:word].sum(), sizes[word + 1:end].sum()
        return before if left else min(before, after)

    for start, end, mask in found:
        assert sizes[start:end].sum() <= 12
        for word in np.arange(start, end)[mask]:
            assert context(word, start, end) == max(context(word, a, b) for a, b, _ in found if a <= word < b)


def test_a_short_sentence_is_one_window():
    [(start, end, mask)] = task_words.windows(np.array([1, 2, 3]), 6, 1)
    assert (start, end, mask.tolist()) == (0, 3, [True] * 3)


def test_words_beyond_the_length_are_scored():
    """A score of the first window alone would be 100 %."""
    words, tags = "Ann visits Rome . " * 8, "B-PER O B-LOC O " * 8
    sentence = record(words, tags)
    c = resolved([sentence])
    units, long = tagging.encode(c, [sentence], encoder(length=12))
    assert (long, len(units.example) > 1) == (1, True)
    assert c.labels == ("O", "B-LOC", "B-PER")
    outputs = []
    for first, last in itertools.pairwise(units.offsets):
        rows = []
        for word in units.columns["word"][first:last]:
            label = c.labels.index(sentence.fields["tags"][word]) if 0 <= word < 8 else 0
            rows.append(np.log(np.where(np.arange(3) == label, 0.98, 0.01)))
        outputs.append(np.array(rows))
    result = tagging.score(c, [sentence], units, {"log_probabilities": outputs})
    assert len(result.predictions[0]["tags"]) == len(result.predictions[0]["probabilities"]) == 32
    assert result.metrics["token_accuracy"] == pytest.approx((8 + 12) / 32)
    assert result.metrics["entity_recall"] == pytest.approx(4 / 16)
    assert result.metrics["loss"] == pytest.approx(-(20 * np.log(0.98) + 12 * np.log(0.01)) / 32, rel=1e-5)


def test_a_word_longer_than_a_window_keeps_its_tag():
    sentence = record(f"Ann {'xy' * 30} Rome", "B-PER O B-LOC")
    units, _ = tagging.encode(resolved([sentence]), [sentence], encoder(length=12))
    assert (units.columns["tag"] >= 0).sum() == 3
    assert units.lengths.max() <= 12
