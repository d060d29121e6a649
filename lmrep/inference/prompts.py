"""Chooses sample texts to try a trained model with."""

import re
from collections.abc import Sequence
from itertools import islice

import numpy as np

from lmrep.core.errors import RunFault
from lmrep.data.mixture import Sources
from lmrep.data.store.prepare import Prepared
from lmrep.data.store.token_store import Store
from lmrep.data.tokenizers import Tokenizer
from lmrep.objectives.base import Capability

CANDIDATES = 256  # sentences of a split from which prompts are chosen
PROMPTS = 3  # the most prompts for a capability
CHARACTERS = range(20, 101)  # allowed lengths of a sentence
MAX_TOKENS = 64  # in a sentence
PROSE = re.compile(r"[^\W\d_][^\"\u201c\u201d]*[.!?\u2026\u3002\uff01\uff1f]")  # from a letter to a full stop


def sample_prompts(
    samples: Sequence[str], capabilities: Sequence[Capability], prepared: Prepared | None = None, max_length: int = 0
) -> list[str]:
    """Chooses texts to try a trained model with.

    Args:
      samples: the samples of the config. Those that no capability accepts are left out: they may be for another
        objective.
      capabilities: the capabilities of the run.
      prepared: the run's text. If no sample is left, prompts are made from sentences of its validation split, or of its
        train split if that has none.
      max_length: the most tokens that the model takes; 0 for any number.

    Returns:
      The texts. Without `prepared`, the last capability's example if none of the samples is accepted, and [] if there
      are no samples.
    """
    accepted = [text for text in samples if any(capability.accepts(text) for capability in capabilities)]
    if accepted or not capabilities:
        return accepted
    if prepared is None:
        return [capabilities[-1].example] if samples else []
    try:
        stores = [prepared.stores[split] for split in ("validation", "train") if split in prepared.stores]
        texts = next(filter(None, (sentences(store, prepared.tokenizer) for store in stores)), [])
    except RunFault:  # damaged records, which only concern runs that read them
        texts = []
    limit = max_length // 3 if max_length else MAX_TOKENS  # leaves space for a continuation
    return [text for i, capability in enumerate(reversed(capabilities))
            for text in _prompts(capability, texts[i :: len(capabilities)], prepared.tokenizer, limit)]


def example(
    samples: Sequence[str], capabilities: Sequence[Capability], prepared: Prepared | None = None, max_length: int = 0
) -> str:
    """Chooses a text for `lmrep predict`: the first of `sample_prompts`, or an example; "" without capabilities."""
    texts = sample_prompts(samples, capabilities, prepared, max_length)
    return next(iter(texts), capabilities[-1].example if capabilities else "")


def sentences(store: Store | Sources, tokenizer: Tokenizer) -> list[str]:
    """Returns short sentences of a split, evenly spaced in it, as the tokenizer decodes them: those that begin with a
    letter, end with a full stop and quote nothing, if there are any. They depend only on the split and the
    tokenizer."""
    stores = store.stores if isinstance(store, Sources) else (store,)
    special, texts = list(store.vocabulary.specials.values()), []
    for part in stores:
        count = CANDIDATES // len(stores) + 1
        number = len(part.sentences) - 1
        chosen = np.unique(np.arange(count) * number // count) if number else np.zeros(0, np.int64)
        begins, ends = part.sentences[chosen], part.sentences[chosen + 1]
        spans = [np.arange(begin, min(end, begin + MAX_TOKENS + 1)) for begin, end in zip(begins, ends, strict=True)]
        taken = part.take(np.concatenate([*spans, np.zeros(0, np.int64)]))  # at once: they may lie in an object store
        for ids in np.split(taken, np.cumsum([len(span) for span in spans]))[:-1]:
            text = " ".join(tokenizer.decode(ids.tolist()).split())
            names_special = np.isin(ids, special).any() or any(name in text for name in tokenizer.specials.values())
            if len(ids) <= MAX_TOKENS and len(text) in CHARACTERS and "\ufffd" not in text and not names_special:
                texts.append(text)
    texts = list(dict.fromkeys(texts))
    return [text for text in texts if PROSE.fullmatch(text)] or texts


def _prompts(capability: Capability, texts: Sequence[str], tokenizer: Tokenizer, limit: int) -> list[str]:
    """Makes a prompt of at most `limit` tokens from each third of the sentences; the example if there is none."""
    mask, prompts = tokenizer.specials.get("mask", ""), []
    for third in np.array_split(np.arange(len(texts)), PROMPTS):
        candidates = (capability.prompt_from(texts[i], mask, [*texts[i + 1:], *texts[:i]])
                      for i in np.roll(third, len(third) // 2))
        prompts += list(islice((
            text for text in candidates if text and len(tokenizer.encode(text, specials=True).ids) <= limit), 1))
    return prompts or [capability.example]
