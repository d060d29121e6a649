"""Discriminative rates, slanted triangular rates and gradual unfreezing each help a classifier (Howard and Ruder, 2018,
table 7).

    lmrep reproduce ulmfit:table7 --workdir=claims/ulmfit_table7 --seeds=0-2

The paper fine-tunes one language model in several ways. The errors on TREC-6 are 5.69 % with all three parts, 6.86 with
gradual unfreezing alone, 5.86 with it and discriminative rates, 6.02 with it and slanted triangular rates, 6.21 with
discriminative rates alone, 6.86 with none, 16.09 where the head alone is trained, and 13.36 from scratch.

The miniature is `ulmfit.py:size=tiny`, whose language model reads the documentation of Python, and the classifier of
TREC-6. The second stage, on the texts of the task, is left out.

Data: the documentation that comes with Python, and the folder trec in the current directory, with train_5500.label and
TREC_10.label (Li and Roth, 2002), or --config.NAME.data.train=FILE and --config.NAME.data.validation=FILE for each row
NAME.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

PARTS = {"all": ("all three parts", "", 5.69),
         "no_slant": ("without slanted rates", ",schedule=constant", 5.86),
         "no_rates": ("without discriminative rates", ",rates=equal", 6.02),
         "no_freezing": ("discriminative rates alone", ",unfreezing=full,schedule=constant", 6.21),
         "none": ("none of the three", ",unfreezing=full,rates=equal,schedule=constant", 6.86),
         "last": ("the head alone", ",unfreezing=last,rates=equal,schedule=constant", 16.09)}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, changes = at_scale(scale, miniature=("ulmfit.py:size=tiny", {"steps": 2000}, {"epochs": 8.0}),
                                     single=("ulmfit.py:data=files", {"steps": 115_000}, {}),
                                     paper=("ulmfit.py:data=files", {}, {}))
    return Claim(
        paper="Howard and Ruder, 2018, table 7", statement="Each part of the fine-tuning lowers the error.",
        runs={"general": (page, fields)} | {
            name: (f"tasks/ulmfit.py:task=trec,data=trec,init={{general}}{choices}", changes)
            for name, (_, choices, _) in PARTS.items()},
        rows={name: Row(title, "" if name == "all" else "all", "" if name == "all" else "above", published=published)
              for name, (title, _, published) in PARTS.items()},
        published="error on TREC-6, in %",
        measure=Measure("error, %", "accuracy", {}, lambda accuracy: 100 - 100 * accuracy),
        cost="50 minutes on one core, by one of the seeds, with the files of TREC")
