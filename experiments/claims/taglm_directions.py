"""Language models of both directions are better than a forward one, and that than none (Peters et al., 2017).

    lmrep reproduce taglm:directions --workdir=claims/taglm_directions --seeds=0-2

The paper adds the vectors of frozen language models to a tagger of names. F1 on CoNLL-2003 is 90.87 without them and
91.93 with the best ones; a backward model beside the forward one is worth 0.2.

The miniature is `elmo.py:size=tiny` in one direction and in both, and `taglm.py:size=tiny`, which tags parts of speech:
of names it finds hardly one after a few epochs on a small set.

Data: the documentation that comes with Python, and the folder ud-english-ewt in the current directory, with the .conllu
files of Universal Dependencies (Silveira et al., 2014), or --config.NAME.data.train=FILE and
--config.NAME.data.validation=FILE for the rows none, forward and both. At the other scales, the folder conll2003.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

NAMES = ("entity_f1", "F1, %")


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tagger, changes, (metric, unit) = at_scale(
        scale, miniature=("elmo.py:size=tiny,tokenizer=elmo_text", {"steps": 1500},
                          "taglm.py:size=tiny,task=ud_pos,data=ud-english-ewt,", {
                              "epochs": 2.0, "cache_features": True},
                          ("token_accuracy", "accuracy of parts of speech, %")),
        single=("elmo.py:size=small,data=files", {"steps": 150_000}, "taglm.py:data=conll2003,", {}, NAMES),
        paper=("elmo.py:size=original,data=files", {}, "taglm.py:data=conll2003,", {}, NAMES))
    return Claim(
        paper="Peters et al., 2017", statement="Two directions are better than one, and one better than none.",
        runs={"lm_forward": (f"{page},directions=forward", fields), "lm_both": (page, fields),
              "none": (f"{tagger}features={{lm_both}}", changes | {"objective.features.layers": "0"}),
              "forward": (f"{tagger}features={{lm_forward}}", changes),
              "both": (f"{tagger}features={{lm_both}}", changes)},
        rows={"none": Row("vectors without context (paper: no model)", published=90.87),
              "forward": Row("forward model", "none", "above"),
              "both": Row("both directions", "forward", "above", published=91.93)},
        published="F1 on CoNLL-2003", measure=Measure(unit, metric, {}, lambda value: 100 * value, ".2f"),
        cost="95 minutes of CPU time, by one of the seeds, with a treebank")
