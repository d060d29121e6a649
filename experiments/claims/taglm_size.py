"""The vectors of a larger language model are better (Peters et al., 2017).

    lmrep reproduce taglm:size --workdir=claims/taglm_size --seeds=0-2

The paper adds the vectors of frozen language models to a tagger of names. Its best F1 on CoNLL-2003 is
91.93; a larger language model is worth 0.3 of it.

The miniature is `elmo.py:size=tiny` with cells of 32 and of 256, and the tagger of `taglm.py`. The names are those of
WNUT-17. Its four epochs are too few: in taglm:directions, with the same tagger, F1 stays below 1 %.

Data: the documentation that comes with Python, and the files of WNUT-17 (Derczynski et al., 2017) in the folder wnut17
in the current directory, wnut17train.conll and emerging.dev.conll, or --config.NAME.data.train=FILE and
--config.NAME.data.validation=FILE for the rows small and large. At the other scales, the folder conll2003.
"""

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, small, large, tagger, files = at_scale(
        scale, miniature=("elmo.py:size=tiny,tokenizer=elmo_text", {"steps": 2000, "model.cell": 32, "model.width": 16},
                          {"steps": 2000}, "taglm.py:", {"data.train": "wnut17/wnut17train.conll",
                          "data.validation": "wnut17/emerging.dev.conll", "epochs": 4.0}),
        single=("elmo.py:size=medium,data=files", {"steps": 120_000, "model.cell": 512, "model.width": 64},
                {"steps": 120_000}, "taglm.py:data=conll2003,", {}),
        paper=("elmo.py:size=original,data=files", {"model.cell": 1024, "model.width": 128}, {},
               "taglm.py:data=conll2003,", {}))
    return Claim(
        paper="Peters et al., 2017", statement="A larger language model is better for a tagger.",
        runs={"lm_small": (page, small), "lm_large": (page, large),
              "small": (f"{tagger}features={{lm_small}}", files), "large": (f"{tagger}features={{lm_large}}", files)},
        rows={"small": Row("a small model"), "large": Row("a large one", "small", "above", published=91.93)},
        published="F1 on CoNLL-2003", measure=Measure("F1, %", "entity_f1", {}, lambda value: 100 * value),
        cost="40 minutes on two cores, with the files of WNUT-17")
