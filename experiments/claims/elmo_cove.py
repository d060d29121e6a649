"""Vectors of a language model are better than vectors of a translation encoder (Peters et al., 2018, table 6).

    lmrep reproduce elmo:cove --workdir=claims/elmo_cove --seeds=0-2

The paper reads parts of speech from single layers by a linear classifier. Accuracy is 97.3 with the first layer of the
biLM and 96.8 with the second, and 93.3 and 92.8 with the layers of CoVe.

The miniature compares the last layers of `elmo.py:size=tiny`, which reads the documentation of Python, and of
`cove.py:size=tiny`, which translates captions. Parts of speech of English are those of Universal Dependencies.

Data: the documentation that comes with Python, and two folders in the current directory: ud-english-ewt, with the
.conllu files of Universal Dependencies (Silveira et al., 2014), and multi30k, with train.en, train.de, val.en and
val.de (Elliott et al., 2016); or --config.NAME.data.train=FILE and --config.NAME.data.validation=FILE for the runs
translation, cove and elmo.
"""

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    encoder, fields, model, lengths, changes = at_scale(
        scale, miniature=("cove.py:size=tiny", {"steps": 800, "data.train": "multi30k/train.en",
                                                "data.validation": "multi30k/val.en"},
                          "elmo.py:size=tiny,tokenizer=elmo_text", {"steps": 1000}, {"epochs": 3.0}),
        single=("cove.py:size=base", {"steps": 100_000}, "elmo.py:size=small,data=files", {"steps": 200_000}, {}),
        paper=("cove.py:size=base", {}, "elmo.py:size=original,data=files", {}, {}))
    task = "tasks/ud_pos.py:data=ud-english-ewt,features="
    probe = {**changes, "cache_features": True, "objective.features.layers": "last"}
    return Claim(
        paper="Peters et al., 2018, table 6", statement="A language model is better than a translation encoder.",
        runs={"translation": (encoder, fields), "bilm": (model, lengths),
              "cove": (f"{task}{{translation}}", probe), "elmo": (f"{task}{{bilm}}", probe)},
        rows={"cove": Row("translation encoder", published=92.8), "elmo": Row("biLM", "cove", "above", published=96.8)},
        published="accuracy with the last layer, Penn Treebank, in %",
        measure=Measure("accuracy of parts of speech, %", "token_accuracy", {}, lambda value: 100 * value, ".2f"),
        cost="85 minutes of CPU time, by one of the seeds, with parallel text and a treebank")
