"""What `lmrep train` says at its end, of every kind of question."""

from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from lmrep.cli.train import summary
from lmrep.core import params as P
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FIELDS
from lmrep.models import transformer
from lmrep.objectives import OBJECTIVES, replaced_token
from lmrep.objectives.base import Carry, Keys

ROLES = ("pad", "unk", "cls", "sep", "mask")
ASKED = [*((name, {}) for name in OBJECTIVES), ("masked", {"sentence_pair": True}),
         *(("replaced_token", {"variant": kind}) for kind in replaced_token.VARIANTS)]


def metrics(name, fields):
    """The names of what is measured, by shapes alone."""
    kind, b, t = OBJECTIVES[name], 2, 16
    vocabulary = Vocabulary(32, {role: i for i, role in enumerate(ROLES)}, np.ones(32, bool), np.ones(32, int))
    network = transformer.Config(vocab=32, width=16, layers=1, heads=2, mlp=16, max_length=t)
    objective = kind.build(kind.config(**fields), transformer.build(network), vocabulary)
    batch = {field: jax.ShapeDtypeStruct((b, t)[: len(FIELDS[field].axes)], np.int32)
             for field in kind.batch_fields(kind.config(**fields))}
    keys = jax.eval_shape(lambda: Keys(jax.random.split(jax.random.key(0), b), jax.random.key(0)))
    asked = jax.eval_shape(objective.prepare, keys, batch)
    loss = partial(objective.loss, key=None, carry=Carry())
    return jax.eval_shape(loss, P.abstract(objective.specs), asked)[1][0].keys()


@pytest.mark.parametrize(("name", "fields"), ASKED, ids=str)
def test_it_tells_what_was_learned(name, fields):
    after = dict.fromkeys(metrics(name, fields), 0.25)
    said = {}
    for before in (dict.fromkeys(after, 0.125), {}):  # an earlier stage may have had another question
        said[bool(before)] = summary(SimpleNamespace(steps=7, before=before, after=after))
        assert said[bool(before)].startswith("\nTrained to step 7.")
    assert said[True].count("25.00%") == sum(
        metric in after for metric in ("mlm_accuracy", "lm_accuracy", "replaced_accuracy", "original_accuracy",
                                       "pair_accuracy", "most_frequent_accuracy")), said[True]
    assert "12.50%" not in said[False]
    assert ("12.50%" in said[True]) == any(f"{each}_accuracy" in after for each in ("mlm", "lm", "pair"))
