"""What objectives refuse, and the field or the part that the message names."""

from dataclasses import replace

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.models import bilstm, encoder_decoder, lstm, transformer, transformer_xl
from lmrep.objectives import (
    bidirectional,
    causal,
    masked,
    permutation,
    replaced_token,
    sequence_autoencoder,
    span_boundary,
    span_corruption,
)
from tests.objectives import test_distillation, toys
from tests.objectives.test_distillation import SIZES, teacher

V = toys.V
BARE = Vocabulary(V, {"pad": 0}, np.ones(V, bool), np.ones(V))  # no other special token
BILSTM = bilstm.Config(vocab=V, reads="words", cell=8, width=8)
XL = transformer_xl.Config(vocab=V, width=12, heads=2, mlp=20, memory=8, reuse=-1, causal=False)


def build(module, model=None, vocabulary=toys.VOCABULARY, **fields):
    return module.build(module.Config(**fields), model or toys.model(), vocabulary)


def prepare_permutation():
    batch = toys.batch([toys.example(16, ([5, 6, 7],))], reset=np.zeros(1, np.int32), reversed=np.zeros(1, np.int32))
    return toys.prepare(build(permutation, transformer_xl.build(XL), reuse=3), batch)


def prepare_autoencoder():
    network = transformer.build(replace(toys.NETWORK, max_length=30))
    return sequence_autoencoder.twice(toys.batch([toys.example(16, ([5, 6, 7],))]), network)


def narrow():
    """A network whose generator has a table of its own width, which is not the encoder's."""
    return toys.model()._replace(make_generator=lambda fraction, layers: transformer.build(
        replace(toys.NETWORK, width=8, heads=2)))


REFUSALS = {  # what is built -> what the message names
    "fractions that do not add to 1": (lambda: build(masked, mask=0.7), ("objective.mask", "0.9")),
    "fractions of spans that do not add to 1": (lambda: build(span_boundary, mask=0.7), ("objective.mask", "0.9")),
    "masks without a mask token": (lambda: build(masked, vocabulary=BARE), ("[MASK]", "pad")),
    "spans without a mask token": (lambda: build(span_boundary, vocabulary=BARE), ("span_boundary", "[MASK]")),
    "orders without a mask token": (
        lambda: build(permutation, transformer_xl.build(XL), BARE), ("permutation", "[MASK]")),
    "masks for capped logits": (lambda: build(masked, transformer.build(replace(toys.NETWORK, logit_cap=5.0))),
                                ("capped", "model.logit_cap=0")),
    "a table alone that is narrower than the network": (
        lambda: build(masked, transformer.build(replace(toys.NETWORK, embedding=4)), head="table"),
        ("objective.head", "4 wide", "12", "model.embedding=0")),
    "sentence pairs with a mask decoder": (
        lambda: build(masked, transformer.build(replace(
            toys.NETWORK, positions="disentangled", token_types=0, mask_decoder=2)), sentence_pair=True),
        ("objective.sentence_pair", "model.mask_decoder=0")),
    "an order for a network that reads both sides": (lambda: build(permutation), ("order",)),
    "more tokens reused than are remembered": (prepare_permutation, ("objective.reuse", "3", "8")),
    "two directions of a network with one": (
        lambda: build(bidirectional, lstm.build(lstm.Config(vocab=V, width=8))), ("left",)),
    "two directions without an end of sentences": (
        lambda: build(bidirectional, bilstm.build(BILSTM), replace(BARE, specials={"bos": 0})), ("eos", "sep")),
    "a table of each direction that is tied": (
        lambda: build(bidirectional, bilstm.build(replace(BILSTM, tied=True)), shared=False), ("shared",)),
    "noise without sentinels": (
        lambda: build(span_corruption, encoder_decoder.build(encoder_decoder.Config(vocab=V))), ("sentinels",)),
    "noise for a network without a source": (lambda: build(
        span_corruption, vocabulary=replace(toys.VOCABULARY, specials=toys.SPECIALS | {"eos": 3}, sentinels=(23, 22))),
        ("source",)),
    "a text and its copy that are longer than the positions": (prepare_autoencoder, ("length", "15", "30")),
    "more to write than there are positions": (
        lambda: build(sequence_autoencoder).predict({}, toys.batch([toys.example(16, ([5],))]), k=120), ("120", "128")),
    "chunks of a network without a state": (
        lambda: build(sequence_autoencoder, chunk=4), ("objective.chunk", "transformer")),
    "a cache longer than the positions": (lambda: toys.model().state.cache({}, 1, 129), ("129", "128")),
    "a generator of a narrow table": (
        lambda: build(replaced_token, narrow()), ("embedding/", "make_generator", "objective.tie")),
    "a teacher of another vocabulary": (
        lambda: test_distillation.built(teacher(transformer.build(replace(SIZES, vocab=48)))), ("48",)),
    "a teacher of another width": (
        lambda: test_distillation.built(teacher(transformer.build(replace(SIZES, width=32)))), ("32", "alpha_cos")),
    "a teacher without a masked head": (
        lambda: test_distillation.built(teacher(objective=causal)), ("causal_distillation",)),
}


@pytest.mark.parametrize(("act", "names"), REFUSALS.values(), ids=REFUSALS)
def test_it_is_refused(act, names):
    with pytest.raises((UserError, ValueError)) as refused:
        act()
    assert all(name in str(refused.value) for name in names), refused.value


def test_a_teacher_of_another_width_serves_without_the_cosine():
    test_distillation.built(teacher(transformer.build(replace(SIZES, width=32))), alpha_cos=0.0)
