"""The lower layer of a biLM knows more of parts of speech (Peters et al., 2018, table 6).

    lmrep reproduce elmo:table6 --workdir=claims/elmo_table6 --seeds=0-2

The paper reads parts of speech from each layer by a linear classifier. Accuracy is 97.3 with the first layer of the
biLM and 96.8 with the second; word senses have the opposite order (elmo:table5).

The miniature is `elmo.py:size=tiny`, and parts of speech of English are those of Universal Dependencies.

Data: the documentation that comes with Python, and the folder ud-english-ewt in the current directory, with the .conllu
files of Universal Dependencies (Silveira et al., 2014), or --config.NAME.data.train=FILE and
--config.NAME.data.validation=FILE for the rows first and second.
"""

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, changes = at_scale(
        scale, miniature=("elmo.py:size=tiny,tokenizer=elmo_text", {"steps": 2000}, {"epochs": 3.0}),
        single=("elmo.py:size=small,data=files", {"steps": 300_000}, {}),
        paper=("elmo.py:size=original,data=files", {}, {}))
    return Claim(
        paper="Peters et al., 2018, table 6",
        statement="The first layer is better for parts of speech than the second.",
        runs={"bilm": (page, fields)} | {
            name: ("tasks/ud_pos.py:features={bilm},data=ud-english-ewt", {
                **changes, "cache_features": True, "objective.features.layers": layer})
            for name, layer in (("first", "1"), ("second", "2"))},
        rows={"first": Row("first layer", published=97.3),
              "second": Row("second layer", "first", "below", published=96.8)},
        published="accuracy, Penn Treebank, in %",
        measure=Measure("accuracy, %", "token_accuracy", {}, lambda value: 100 * value, ".2f"),
        cost="40 minutes on one core, with a treebank")
