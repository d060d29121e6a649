"""Next-sentence prediction does not teach the order of sentences; a loss of the order does (Lan et al., 2019, table 5).

    lmrep reproduce albert:table5 --workdir=claims/albert_table5 --seeds=0-2

The paper trains ALBERT-base without a loss of pairs, with next-sentence prediction (NSP) and with sentence order (SOP).
Their accuracies of the order of held-out pairs are 53.3, 52.0 and 86.5 %; the averages of five tasks 79.0, 79.2 and
80.1.

The miniature is the network of `quickstart.py`. Every network is then trained for 100 steps on the order of sentences,
so that all have a head for it; the measure is the accuracy of the order on held-out text.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium

PAIRS = {"none": ({"format.pairs": "nsp", "objective.sentence_pair": False}, "masks alone", 53.3),
         "nsp": ({"format.pairs": "nsp"}, "and next-sentence prediction", 52.0),
         "sop": ({"format.pairs": "sop"}, "and sentence order", 86.5)}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, steps = at_scale(
        scale, miniature=("quickstart.py:format=segment_pair", {"steps": 2500}, 100),
        single=("albert.py:size=base,data=files", medium(
            25_000, learning_rate=9e-4, batch_size=1024, length=128), 1000),
        paper=("albert.py:size=base,data=files", {}, 1000))
    order = {"format.pairs": "sop", "objective.sentence_pair": True, "steps": steps, "optimizer.learning_rate": 1e-4}
    rows = {name: Row(title, "none" if name == "nsp" else "nsp" if name == "sop" else "",
                      "above" if name == "sop" else "", published=published, run=f"order_{name}")
            for name, (_, title, published) in PAIRS.items()}
    return Claim(
        paper="Lan et al., 2019, table 5",
        statement="A network trained on the order of sentences tells it, and one trained on next sentences does not.",
        runs={name: (page, fields | changes) for name, (changes, *_) in PAIRS.items()} | {
            f"order_{name}": (f"{page},init={{{name}}}", order) for name in PAIRS},
        rows=rows, published="accuracy of the order of held-out pairs, without further training",
        measure=Measure("accuracy of the order, %", "pair_accuracy", {"split": "test"}, lambda value: 100 * value),
        cost="an hour on one core")
