"""Sample prompts of a run whose config has none."""

import dataclasses

import numpy as np
import pytest

from lmrep.data import corpora, tokenizers
from lmrep.data.mixture import Sources
from lmrep.data.store import token_store
from lmrep.data.store.prepare import Prepared, prepare_corpus
from lmrep.inference import prompts
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.base import Capability
from lmrep.objectives.capabilities import FillMask, GenerateText, content_words
from tests import small

MASKED, CAUSAL, REPLACED = (OBJECTIVES[name].capabilities for name in ("masked", "causal", "replaced_token"))
WORDS = {"the", *small.NOUNS, *small.VERBS, *small.ADJECTIVES}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    home = tmp_path_factory.mktemp("prompts")
    data = corpora.Config(corpus="text_files", files=f"{small.corpus(home / 'texts')}/*.txt", validation=0.2, test=0.0)
    return prepare_corpus(data, tokenizers.Config(vocab_size=200), home / "data")


def sentences_of(prepared, split):
    """Every sentence of a split."""
    store = prepared.stores[split]
    return {prepared.tokenizer.decode(store.take(np.arange(*store.sentences[i : i + 2])))
            for i in range(len(store.sentences) - 1)}


def of_texts(directory, texts):
    """A Prepared whose validation split has these texts, a document each."""
    tokenizer = tokenizers.train(tokenizers.Config(vocab_size=200), lambda: iter(texts * 20))
    ids = [[tokenizer.encode(text).ids] for text in texts]
    store = token_store.write(directory, ids, tokenizer.vocabulary, "validation")
    return Prepared(tokenizer, {"validation": store}, {}, directory)


def test_each_prompt_is_a_validation_sentence_with_one_word_masked(prepared):
    found, known = prompts.sample_prompts((), MASKED, prepared), sentences_of(prepared, "validation")
    assert len(found) == prompts.PROMPTS and all(20 <= len(text) <= 100 for text in found)
    for text in found:
        before, after = text.split("[MASK]")
        masked = [sentence[len(before) : len(sentence) - len(after)] for sentence in known
                  if sentence.startswith(before) and sentence.endswith(after)]
        assert any(word in WORDS and len(word) >= 4 for word in masked)


def test_prompts_are_deterministic(prepared):
    for capabilities in (MASKED, CAUSAL, REPLACED):
        assert prompts.sample_prompts((), capabilities, prepared) == prompts.sample_prompts((), capabilities, prepared)


def test_prompts_to_continue_are_the_first_words_of_sentences(prepared):
    found, known = prompts.sample_prompts((), CAUSAL, prepared), sentences_of(prepared, "validation")
    assert found and all(len(text.split()) == 6 for text in found)
    assert all(any(sentence.startswith(text) for sentence in known) for text in found)


def test_replaced_word_is_one_of_another_sentence(prepared):
    found, known = prompts.sample_prompts((), REPLACED, prepared), sentences_of(prepared, "validation")
    replaced = [text for text in found if "[MASK]" not in text]
    assert len(replaced) == len(found) / 2 == prompts.PROMPTS
    for text in replaced:
        words = text.split()
        changed = [sum(a != b for a, b in zip(words, sentence.split(), strict=True)) for sentence in known]
        assert min(changed) <= 1 and {word.strip(".") for word in words} <= WORDS


def test_prompts_without_a_validation_split_are_train_sentences(prepared):
    only = dataclasses.replace(prepared, stores={"train": prepared.stores["train"]})
    found, known = prompts.sample_prompts((), CAUSAL, only), sentences_of(prepared, "train")
    assert found and all(any(sentence.startswith(text) for sentence in known) for text in found)


def test_every_source_of_a_mixture_has_sentences(tmp_path):
    tokenizer = of_texts(tmp_path / "both", ["The old cat sees the fish.", "A red dog finds the mouse."]).tokenizer
    stores = [token_store.write(tmp_path / str(i), [[tokenizer.encode(text).ids]], tokenizer.vocabulary)
              for i, text in enumerate(("The old cat sees the fish.", "A red dog finds the mouse."))]
    found = prompts.sentences(Sources(("a", "b"), tuple(stores), (1, 1), tokenizer.vocabulary), tokenizer)
    assert found == ["the old cat sees the fish.", "a red dog finds the mouse."]


def test_sentences_are_preferred_to_headings(tmp_path):
    prepared = of_texts(tmp_path, ["THE OLD CAT AND THE DOG", "Too short.", "The old cat sees the dog.", "cat " * 40])
    assert prompts.sentences(prepared.stores["validation"], prepared.tokenizer) == ["the old cat sees the dog."]
    prepared = of_texts(tmp_path / "headings", ["THE OLD CAT AND THE DOG", "Too short."])
    assert prompts.sentences(prepared.stores["validation"], prepared.tokenizer) == ["the old cat and the dog"]


@pytest.mark.parametrize("texts", [["A cat."], ["\u732b \u72ac"], []])
def test_text_without_a_usable_sentence_leaves_the_example(tmp_path, texts):
    tokenized = of_texts(tmp_path / "tokenizer", ["The old cat sees the dog."])
    ids = [[tokenized.tokenizer.encode(text).ids] for text in texts]
    store = token_store.write(tmp_path / "store", ids, tokenized.tokenizer.vocabulary, "validation")
    other = dataclasses.replace(tokenized, stores={"validation": store})
    assert prompts.sample_prompts((), MASKED, other) == [FillMask.example]


def test_capability_without_prompts_has_its_example(prepared):
    class Other(Capability):
        example = "Anything."

    assert prompts.sample_prompts((), (Other(),), prepared) == ["Anything."]


def test_samples_of_the_config_come_first(prepared):
    assert prompts.sample_prompts(("The [MASK].",), MASKED, prepared) == ["The [MASK]."]
    assert "The [MASK]." not in prompts.sample_prompts(("The [MASK].",), CAUSAL, prepared) != []
    assert prompts.example((), CAUSAL, prepared) == prompts.sample_prompts((), CAUSAL, prepared)[0]


def test_prompts_leave_space_for_a_continuation(prepared):
    for text in prompts.sample_prompts((), MASKED, prepared, max_length=32):
        assert len(prepared.tokenizer.encode(text, specials=True).ids) <= 10
    assert prompts.sample_prompts((), MASKED, prepared, max_length=9) == [FillMask.example]


def test_words_with_apostrophes_hyphens_or_digits_are_not_masked():
    assert [word[0] for word in content_words("Don't re-read it: the 1234th naïve story's end.")] == ["naïve"]
    assert [word[0] for word in content_words("猫が好き")] == list("猫が好き")
    assert FillMask().prompt_from("It is so.", "[MASK]", ()) is None
    assert FillMask().prompt_from("The story ends.", "", ()) is None
    assert FillMask().prompt_from("The story ends here.", "<mask>", ["A story."]) == "The <mask> ends here."
    assert GenerateText().prompt_from("One two three four five six.", "", ()) is None
