"""Language models of both directions are better than a forward one, and that than none (Peters et al., 2017).

    lmrep reproduce taglm:directions --workdir=claims/taglm_directions --seeds=0-2

The paper adds the vectors of frozen language models to a tagger of names. F1 on CoNLL-2003 is 90.87 without them and
91.93 with the best ones; a backward model beside the forward one is worth 0.2.

The miniature is `elmo.py:size=tiny` in one direction and in both, and the tagger of `taglm.py`. The names are those of
WNUT-17. After its four epochs the tagger finds hardly a name (F1 of 0.9 % without a model, 0 % with the forward one,
one seed): this miniature is too short to tell.

Data: the documentation that comes with Python, and the files of WNUT-17 (Derczynski et al., 2017) in the folder wnut17
in the current directory, wnut17train.conll and emerging.dev.conll, or --config.NAME.data.train=FILE and
--config.NAME.data.validation=FILE for the rows none, forward and both. At the other scales, the folder conll2003.
"""

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tagger, files = at_scale(
        scale, miniature=("elmo.py:size=tiny,tokenizer=elmo_text", {"steps": 2000}, "taglm.py:", {
            "data.train": "wnut17/wnut17train.conll", "data.validation": "wnut17/emerging.dev.conll", "epochs": 4.0}),
        single=("elmo.py:size=small,data=files", {"steps": 150_000}, "taglm.py:data=conll2003,", {}),
        paper=("elmo.py:size=original,data=files", {}, "taglm.py:data=conll2003,", {}))
    return Claim(
        paper="Peters et al., 2017", statement="Two directions are better than one, and one better than none.",
        runs={"lm_forward": (f"{page},directions=forward", fields), "lm_both": (page, fields),
              "none": (f"{tagger}features={{lm_both}}", files | {"objective.features.layers": "0"}),
              "forward": (f"{tagger}features={{lm_forward}}", files), "both": (f"{tagger}features={{lm_both}}", files)},
        rows={"none": Row("vectors without context (paper: no model)", published=90.87),
              "forward": Row("forward model", "none", "above"),
              "both": Row("both directions", "forward", "above", published=91.93)},
        published="F1 on CoNLL-2003", measure=Measure("F1, %", "entity_f1", {}, lambda value: 100 * value),
        cost="40 minutes on two cores, with the files of WNUT-17")
