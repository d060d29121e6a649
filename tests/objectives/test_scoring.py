"""The views of a text that scores read, written out for [CLS] 7 8 9 [SEP], in which 8 and 9 are one word."""

import numpy as np

from lmrep.objectives import bidirectional, scoring
from tests.objectives.toys import CLS, MASK, SEP

IDS, WORDS = np.array([[CLS, 7, 8, 9, SEP]], np.int32), np.array([[-1, 0, 1, 1, -1]])


def as_lists(views):
    return [np.asarray(each).tolist() for each in views]


def test_each_token_is_masked_alone_or_with_the_later_ones_of_its_word():
    at, targets = [[1], [2], [3]], [[7], [8], [9]]
    alone = [[CLS, MASK, 8, 9, SEP], [CLS, 7, MASK, 9, SEP], [CLS, 7, 8, MASK, SEP]]
    assert as_lists(scoring.masked_views(IDS, WORDS, mask=MASK, word_l2r=False)) == [[0, 0, 0], alone, at, targets]
    by_word = [alone[0], [CLS, 7, MASK, MASK, SEP], alone[2]]
    assert as_lists(scoring.masked_views(IDS, WORDS, mask=MASK, word_l2r=True)) == [[0, 0, 0], by_word, at, targets]


def test_views_of_several_texts_name_theirs():
    views = scoring.masked_views(np.concatenate([IDS, IDS + 20]), np.concatenate([WORDS, WORDS]), mask=MASK,
                                 word_l2r=False)
    assert views.text.tolist() == [0, 0, 0, 1, 1, 1] and views.targets[:, 0].tolist() == [7, 8, 9, 27, 28, 29]


def test_tokens_are_predicted_before_them_at_them_and_from_both_sides():
    tokens = IDS.tolist()
    assert as_lists(scoring.next_token_views(IDS, WORDS)) == [[0], tokens, [[0, 1, 2, 3]], [[7, 8, 9, SEP]]]
    assert as_lists(scoring.token_views(IDS, WORDS)) == [[0], tokens, [[1, 2, 3]], [[7, 8, 9]]]
    both = [[0, 1, 1, 2, 2, 3, 3, 4]], [[7, CLS, 8, 7, 9, 8, SEP, 9]]
    assert as_lists(bidirectional.views(IDS, WORDS)) == [[0], tokens, *both]
