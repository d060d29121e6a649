"""A small vocabulary, model and batch that the tests of objectives share."""

import jax
import numpy as np

from lmrep.core.vocabulary import Vocabulary
from lmrep.layers.stack import Execution
from lmrep.models import transformer
from lmrep.models.transformer import Config
from lmrep.objectives import masked
from lmrep.objectives.base import Keys

V = 24
PAD, UNK, CLS, SEP, MASK = range(5)
SPECIALS = {"pad": PAD, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK}
CONTINUATIONS = (20, 21, 22, 23)  # those that continue a word
FREQUENT = 7
VOCABULARY = Vocabulary(V, SPECIALS, ~np.isin(np.arange(V), CONTINUATIONS), np.where(np.arange(V) == FREQUENT, 9, 1))
# the embedding table has more rows than the tokenizer has ids
NETWORK = Config(vocab=V + 2, width=12, layers=1, heads=3, mlp=20, max_length=128)
KEY = jax.random.key(17)


def model(**execution):
    return transformer.build(NETWORK, Execution(**execution))


def objective(vocabulary=VOCABULARY, **fields):
    return masked.build(masked.Config(**fields), model(), vocabulary)


def example(length, *segments):
    """(tokens, segment_ids, token_type_ids), each i32[length]; a segment is one text or a pair of them, as lists of
    ids: [CLS] a [SEP], or [CLS] a [SEP] b [SEP]."""
    positions = [(token, number, side) for number, texts in enumerate(segments, 1) for side, text in enumerate(texts)
             for token in ([CLS] if side == 0 else []) + [*text, SEP]]
    positions += [(PAD, 0, 0)] * (length - len(positions))
    return np.array(positions, np.int32).T


def batch(examples, **fields):
    """Of examples from `example`; their numbers count up."""
    tokens, segment_ids, token_type_ids = np.stack(examples, 1)
    return {"tokens": tokens, "segment_ids": segment_ids, "token_type_ids": token_type_ids,
            "example": np.arange(len(examples), dtype=np.int32), **fields}


def prepare(objective, raw, key=KEY):
    """The prepared batch, as numpy arrays. Examples draw from keys of their own."""
    keys = Keys(jax.random.split(key, len(raw["tokens"])), key)
    return {name: np.asarray(x) for name, x in jax.jit(objective.prepare)(keys, raw).items()}


def jitted(objective):
    """The objective with compiled functions, which are many times faster than their operations one by one."""
    predict = objective.predict and jax.jit(objective.predict, static_argnames="k")
    return objective._replace(prepare=jax.jit(objective.prepare), loss=jax.jit(objective.loss), predict=predict)
