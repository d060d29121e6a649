"""The vectors of a larger language model are better (Peters et al., 2017).

    lmrep reproduce taglm:size --workdir=claims/taglm_size --seeds=0-2

The paper adds the vectors of frozen language models to a tagger of names. Its best F1 on CoNLL-2003 is
91.93; a larger language model is worth 0.3 of it.

The miniature is `elmo.py:size=tiny` with cells of 32 and outputs of 16, and with 256 and 64, so that the tagger also
reads narrower vectors in the first row. The tagger and the tags are those of taglm:directions.

Data: the documentation that comes with Python, and the folder ud-english-ewt in the current directory, with the .conllu
files of Universal Dependencies (Silveira et al., 2014), or --config.NAME.data.train=FILE and
--config.NAME.data.validation=FILE for the rows small and large. At the other scales, the folder conll2003.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

NAMES = ("entity_f1", "F1, %")


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, small, large, tagger, changes, (metric, unit) = at_scale(
        scale, miniature=("elmo.py:size=tiny,tokenizer=elmo_text", {"steps": 2000, "model.cell": 32, "model.width": 16},
                          {"steps": 2000}, "taglm.py:size=tiny,task=ud_pos,data=ud-english-ewt,", {
                              "epochs": 2.0, "cache_features": True},
                          ("token_accuracy", "accuracy of parts of speech, %")),
        single=("elmo.py:size=medium,data=files", {"steps": 120_000, "model.cell": 512, "model.width": 64},
                {"steps": 120_000}, "taglm.py:data=conll2003,", {}, NAMES),
        paper=("elmo.py:size=original,data=files", {"model.cell": 1024, "model.width": 128}, {},
               "taglm.py:data=conll2003,", {}, NAMES))
    return Claim(
        paper="Peters et al., 2017", statement="A larger language model is better for a tagger.",
        runs={"lm_small": (page, small), "lm_large": (page, large),
              "small": (f"{tagger}features={{lm_small}}", changes),
              "large": (f"{tagger}features={{lm_large}}", changes)},
        rows={"small": Row("a small model"), "large": Row("a large one", "small", "above", published=91.93)},
        published="F1 on CoNLL-2003", measure=Measure(unit, metric, {}, lambda value: 100 * value, ".2f"),
        cost="an hour and a half on one core, with a treebank")
