"""The properties of a vocabulary."""

import numpy as np
import pytest

from lmrep.core.vocabulary import Vocabulary


@pytest.mark.parametrize("specials, unknown", [
    ({"pad": 0, "unk": 1, "cls": 2}, 1), ({"bos": 7, "eos": 7, "unk": 7}, -1), ({"unk": 0}, 0), ({"pad": 0}, -1)])
def test_a_token_that_ends_documents_is_not_that_of_unknown_words(specials, unknown):
    assert Vocabulary(8, specials, np.ones(8, bool), np.zeros(8, np.int64)).unknown == unknown
