"""Vectors in context are better than without, all layers better than the last, and their weights should vary (Peters et
al., 2018, table 2).

    lmrep reproduce elmo:table2 --workdir=claims/elmo_table2 --seeds=0-2

The paper reads a frozen biLM in its tasks. F1 on SQuAD is 80.8 without it, 84.7 with its last layer, 85.0 with all
layers and a penalty (lambda) of 1, which makes their weights equal, and 85.2 with one of 0.001.

The miniature is `elmo.py:size=tiny`. Parts of speech are read from its vectors by a linear layer; the static vectors
are those of its layer 0, words without context.

Data: the documentation that comes with Python, and the folder ud-english-ewt in the current directory, with the .conllu
files of Universal Dependencies (Silveira et al., 2014), or --config.NAME.data.train=FILE and
--config.NAME.data.validation=FILE for each row NAME.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

LAYERS = {"static": "0", "last": "last", "equal": "mix:all", "free": "mix:all"}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, changes = at_scale(
        scale, miniature=("elmo.py:size=tiny,tokenizer=elmo_text", {"steps": 2000}, {"epochs": 3.0}),
        single=("elmo.py:size=small,data=files", {"steps": 300_000}, {}),
        paper=("elmo.py:size=original,data=files", {}, {}))
    penalty = {"equal": {"objective.features.l2": 1.0}, "free": {"objective.features.l2": 0.001}}
    return Claim(
        paper="Peters et al., 2018, table 2",
        statement="Contextual vectors are better than static ones, and a free mix of all layers better than the last.",
        runs={"bilm": (page, fields)} | {
            name: ("tasks/ud_pos.py:features={bilm},data=ud-english-ewt", {
                **changes, "cache_features": True, "objective.features.layers": layers, **penalty.get(name, {})})
            for name, layers in LAYERS.items()},
        rows={"static": Row("vectors without context (paper: no biLM)", published=80.8),
              "last": Row("the last layer", "static", "above", published=84.7),
              "equal": Row("all layers, lambda 1", "last", "above", published=85.0),
              "free": Row("all layers, lambda 0.001", "equal", "above", published=85.2)},
        published="F1 on SQuAD",
        measure=Measure("accuracy of parts of speech, %", "token_accuracy", {}, lambda value: 100 * value, ".2f"),
        cost="40 minutes on one core, with a treebank")
