"""Special tokens and token types around texts and pairs of texts."""

import numpy as np
import pytest

from lmrep.core.vocabulary import Vocabulary
from lmrep.data import tokenizers
from lmrep.data.records.encoding import assemble, input_layout

TEXTS = [f"{name} lives in {city}." for name in ("Ada", "Kurt", "Emmy", "Grace") for city in ("Bern", "Oslo", "Quito", "Lyon")]


def vocabulary(name: str) -> Vocabulary:
    config = tokenizers.Config(name=name, vocab_size=300 if name == "byte_level_bpe" else 64)
    return tokenizers.train(config, lambda: iter(TEXTS)).vocabulary


@pytest.mark.parametrize("name, one_separator, cls_last, single, pair", [
    ("wordpiece", True, False, "[CLS] a a [SEP]", "[CLS] a a [SEP] b [SEP]"),
    ("byte_level_bpe", False, False, "<s> a a </s>", "<s> a a </s> </s> b </s>"),
    ("sentencepiece_xlnet", True, True, "a a <sep> <cls>", "a a <sep> b <sep> <cls>"),
    ("wordpiece", False, True, "a a [SEP] [CLS]", "a a [SEP] b [SEP] [CLS]"),
])
def test_special_tokens_are_those_of_published_systems(name, one_separator, cls_last, single, pair):
    words = vocabulary(name)
    layout = input_layout(words, "both", one_separator, cls_last=cls_last)
    names = {words.specials[role]: token for role, token in zip(
        ("cls", "sep"), ("<s>", "</s>") if name == "byte_level_bpe" else
        ("<cls>", "<sep>") if "xlnet" in name else ("[CLS]", "[SEP]"), strict=True)} | {50: "a", 51: "b"}
    a, b = np.array([50, 50]), np.array([51])
    for unit, expected in ((assemble(layout, a), single), (assemble(layout, a, b), pair)):
        assert " ".join(names[int(i)] for i in unit.ids) == expected
        assert len(unit.ids) - 2 - (unit.second >= 0) == layout.special(unit.second >= 0)
        assert unit.ids[unit.first] == 50 and (unit.second < 0 or unit.ids[unit.second] == 51)


def test_cls_has_a_token_type_of_its_own_where_it_is_last():
    layout = input_layout(vocabulary("sentencepiece_xlnet"), "both", True, cls_last=True)
    a, b = np.array([50, 50]), np.array([51])
    assert assemble(layout, a).types.tolist() == [0, 0, 0, 2]
    assert assemble(layout, a, b).types.tolist() == [0, 0, 0, 1, 1, 2]
    assert input_layout(vocabulary("wordpiece"), "left", True, cls_last=True).cls_last is False
