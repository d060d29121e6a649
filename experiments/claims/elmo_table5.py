"""The upper layer of a biLM knows more of word senses, and more than that of a translation encoder (Peters et al.,
2018, table 5).

    lmrep reproduce elmo:table5 --workdir=claims/elmo_table5 --seeds=0-2

The paper gives a word the sense whose mean vector in SemCor is nearest. F1 is 67.4 with the first layer of the biLM and
69.0 with the second; with CoVe, 59.4 and 64.7.

The miniature is `elmo.py:size=tiny`; with the documentation of Python as its text, it has seen little of the words in
SemCor. It reads a quarter of SemCor, for the sake of time.

Data: the documentation that comes with Python, and the folder WSD_Evaluation_Framework in the current directory
(Raganato et al., 2017), or --config.NAME.data.train=FILE and --config.NAME.data.validation=FILE for the rows first and
second.
"""

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, part = at_scale(
        scale, miniature=("elmo.py:size=tiny,tokenizer=elmo_text", {"steps": 2000}, {"epochs": 0.25}),
        single=("elmo.py:size=small,data=files", {"steps": 300_000}, {}),
        paper=("elmo.py:size=original,data=files", {}, {}))
    senses = "tasks/word_senses.py:network=nearest,features={bilm},data=WSD_Evaluation_Framework"
    return Claim(
        paper="Peters et al., 2018, table 5", statement="The second layer is better for word senses than the first.",
        runs={"bilm": (page, fields)} | {name: (senses, part | {"objective.features.layers": layer})
                                         for name, layer in (("first", "1"), ("second", "2"))},
        rows={"first": Row("first layer", published=67.4),
              "second": Row("second layer", "first", "above", published=69.0)},
        published="F1 on all five sets, in %", measure=Measure("F1, %", "sense_f1", {}, lambda value: 100 * value),
        cost="half an hour on one core, by one of the seeds, with the files of SemCor")
