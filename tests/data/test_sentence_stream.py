"""Sentences as two streams, against the released reader in plain Python."""

import itertools
from collections import Counter

import numpy as np
import pytest

from lmrep.data import corpora, tokenizers
from lmrep.data.formats import plan
from lmrep.data.formats.sentence_stream import SentenceStream
from lmrep.data.loader import batches, evaluation_batches
from lmrep.data.store.prepare import prepare_corpus

BEGIN, END = 2, 3  # the tests' store has [CLS] and [SEP]


def sentences_of(store):
    return [store.stream[a:b].tolist() for a, b in itertools.pairwise(store.sentences)]


def read(sentences, backward):
    """The inputs of the released reader, without the mark that ends a sentence, which is a target alone."""
    for sentence in sentences:
        ids = [BEGIN, *sentence, END]
        yield from (ids[::-1] if backward else ids)[:-1]


def direction(batch, backward):
    """The fields of the stream that is read in a direction."""
    return batch["backward"] if backward else batch


def make(store, length=7, order="independent", seed=0, **fields):
    return plan("sentence_stream", SentenceStream(order=order, **fields), store, length, seed)


def endless(made, examples, backward=False, seed=1):
    """The stream of training as one list: that of a single reader."""
    steps = batches(made, batch_size=1, indices=np.arange(1), seed=seed, first_step=0, last_step=examples)
    return np.concatenate([direction(batch, backward)["tokens"][0] for batch in steps]).tolist()


def split(stream, mark):
    """The sentences of a stream, the last of which may be incomplete."""
    starts = [i for i, token in enumerate(stream) if token == mark]
    return [tuple(stream[a + 1 : b]) for a, b in itertools.pairwise([*starts, len(stream)])]


@pytest.mark.parametrize(("seed", "length", "order"), [(0, 7, "independent"), (1, 3, "same"), (2, 64, "independent")])
def test_every_sentence_is_read_once_in_each_pass(seed, length, order, random_store):
    store = random_store(seed, 12, tokens=9)
    made, sentences = make(store, length, order), sentences_of(store)
    count, orders = len(sentences), {}
    for backward, mark in ((False, BEGIN), (True, END)):
        read_sentences = split(endless(made, 3 * made.rows, backward), mark)
        for number in range(3):
            one = read_sentences[number * count : (number + 1) * count]
            expected = [tuple(each[::-1] if backward else each) for each in sentences]
            assert sorted(one) == sorted(expected)
            orders[backward, number] = [expected.index(each) for each in one]
    distinct = {tuple(each) for each in orders.values()}
    assert len(distinct) == (6 if order == "independent" else 3)
    assert tuple(range(count)) not in distinct
    assert (orders[False, 1] == orders[True, 1]) == (order == "same")


def test_examples_of_the_same_order_hold_the_same_sentences(random_store):
    made = make(random_store(3, 10, tokens=5), 200, "same")
    batch = made.gather(made.examples + np.arange(4))
    marks = batch["tokens"] == BEGIN
    np.testing.assert_array_equal(marks, batch["backward"]["tokens"] == END)
    for tokens, other, mark in zip(batch["tokens"], batch["backward"]["tokens"], marks, strict=True):
        for a, b in itertools.pairwise(np.flatnonzero(mark)):
            np.testing.assert_array_equal(tokens[a + 1 : b], other[a + 1 : b][::-1])


@pytest.mark.parametrize(("batch_size", "length"), [(1, 5), (3, 20), (8, 5)])
def test_examples_continue_and_no_token_is_left_out(batch_size, length, random_store):
    store = random_store(5, 30, tokens=12)
    made = make(store, length)
    steps = 3 * made.examples // batch_size
    found = list(batches(made, batch_size=batch_size, indices=np.arange(batch_size), seed=0, first_step=0,
                         last_step=steps))
    for backward in (False, True):
        interrupted = sum(np.count_nonzero(direction(batch, backward)["reset"]) for batch in found[1:])
        assert interrupted == (0 if batch_size == 1 else batch_size * ((steps - 1) // (made.positions // length
                                                                                       // batch_size)))
    # Readers together show each position of the streams once.
    turn = made.positions // (length * batch_size)
    shown = np.sort(made.numbers(np.arange(3 * turn * batch_size), batch_size, 0))
    np.testing.assert_array_equal(shown, made.examples + np.arange(len(shown)))
    if batch_size > 1:
        tokens = np.stack([batch["tokens"] for batch in found[:turn]], axis=1).reshape(-1)
        assert tokens.tolist() == endless(made, turn * batch_size)
    for batch in found:
        assert batch["segment_ids"].all() and batch["backward"]["segment_ids"].all()


@pytest.mark.parametrize(("length", "batch_size"), [(4, 4), (20, 1), (1000, 4)])
def test_evaluation_reads_the_corpus_once_in_its_order(length, batch_size, random_store):
    store = random_store(8, 20, tokens=10)
    made = make(store, length, duplicates=2)
    for backward, mark in ((False, BEGIN), (True, END)):
        rows = {}
        for batch in evaluation_batches(made, batch_size=batch_size, indices=np.arange(batch_size)):
            stream = direction(batch, backward)
            for i, number in enumerate(batch["example"]):
                real = stream["segment_ids"][i] > 0
                assert real.any() == (number >= 0)
                rows[int(number)] = (stream["tokens"][i][real].tolist(), stream["following"][i])
        rows.pop(-1, None)
        assert sorted(rows) == list(range(made.rows)) and made.evaluation_examples == made.rows
        expected = [*read(sentences_of(store), backward), mark]
        assert list(itertools.chain.from_iterable(rows[i][0] for i in range(made.rows))) == expected
        firsts = [rows[i][0][0] for i in range(made.rows)]
        assert [rows[i][1] for i in range(made.rows)] == [*firsts[1:], -1]
        # The targets are all words, and the end of every sentence.
        assert Counter(expected[1:]) == Counter([*store.stream.tolist(), *[mark] * len(sentences_of(store))])


def test_a_limited_evaluation_starts_anew_at_its_second_reader(random_store):
    made = make(random_store(9, 20), 6)
    first, second, *_ = evaluation_batches(made, batch_size=2, indices=np.arange(2), limit=10)
    assert first["example"].tolist() == [0, 5] and first["reset"].tolist() == [1, 1]
    assert second["example"].tolist() == [1, 6] and second["backward"]["reset"].tolist() == [0, 0]


def test_characters_belong_to_the_words_of_their_stream(tmp_path):
    words = [f"w{i}" * (1 + i % 9) for i in range(90)]
    rng = np.random.default_rng(0)
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(rng.choice(words, 12)) for _ in range(200)))
    data = corpora.Config(corpus="text_files", files=str(tmp_path / "text.txt"), validation=0.1, test=0)
    ready = prepare_corpus(data, tokenizers.Config(name="elmo", vocab_size=70), tmp_path / "data")
    tokenizer, store = ready.tokenizer, ready.stores["train"]
    made = make(store, 20)
    of = {tuple(each): word for word, each in zip(words, tokenizer.characters(words), strict=True)}
    of |= {tuple(each): mark for mark, each in zip(("<S>", "</S>"), tokenizer.characters(["<S>", "</S>"]), strict=True)}
    numbers = np.r_[np.arange(made.rows), made.examples + np.arange(made.rows), -1]
    batch = made.gather(numbers)
    for backward, mark in ((False, "<S>"), (True, "</S>")):
        stream = direction(batch, backward)
        real = stream["segment_ids"] > 0
        assert not stream["characters"][~real].any() and not real[-1].any()
        found = [of[tuple(each)] for each in stream["characters"][real]]
        known = tokenizer._words | {mark: tokenizer.tokens.index(mark)}
        assert [known.get(word, 2) for word in found] == stream["tokens"][real].tolist()
        assert mark in found and not ({"<S>", "</S>"} - {mark}) & set(found)
