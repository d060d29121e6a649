"""What each part of AWD-LSTM is worth (Merity et al., 2018, table 4).

    lmrep reproduce awd_lstm:table4 --workdir=claims/awd_lstm_table4 --budget=2h

The paper removes one part at a time from both of its trainings. Here parts are removed from the first training, and the
second one is a row of its own. The published figures, of validation text of WikiText-2, are those of both trainings;
the one of the first row is the paper's row without fine-tuning.

The miniature is a network of two layers of 192 with half of the published dropout, on the documentation that comes with
Python; other text for all runs is --config.data.corpus=text_files --config.data.files=FILES.
"""

import math

from lmrep.claims import Claim, Measure, Row, at_scale

RATES = {"dropout": 0.4, "hidden_dropout": 0.2, "input_dropout": 0.65, "embedding_dropout": 0.1, "weight_dropout": 0.5}
PLAIN = {f"model.{name}": 0.0 for name in (*RATES, "ar", "tar")} | {"optimizer.weight_decay": 0.0}
PARTS = {  # row: (title, choices, fields without the part, published perplexity)
    "averages": ("without averages", ",optimizer=sgd", {}, 73.3),
    "lengths": ("without varying lengths", ",lengths=fixed", {}, 69.3),
    "types": ("without embedding dropout", "", {"model.embedding_dropout": 0.0}, 71.1),
    "decay": ("without weight decay", "", {"optimizer.weight_decay": 0.0}, 71.9),
    "penalties": ("without AR and TAR", "", {"model.ar": 0.0, "model.tar": 0.0}, 73.2),
    "weights": ("without dropout of recurrent weights", "", {"model.weight_dropout": 0.0}, 78.4),
    "plain": ("plain LSTM, without all of these", ",optimizer=sgd,lengths=fixed", PLAIN, None),
}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    size, factor, changes = at_scale(
        scale, miniature=("tiny", 0.5, {"steps": 350, "model.width": 192, "model.embedding": 96,
                                        "tokenizer.vocab_size": 6000}),
        single=("wt2,data=files", 1.0, {"steps": 60_000}),
        paper=("wt2,data=files", 1.0, {}))
    fields = changes | {f"model.{name}": factor * rate for name, rate in RATES.items()} | {
        "model.ar": 2.0, "model.tar": 1.0}
    second = {} if scale == "miniature" else changes  # which ends by itself
    page = f"awd_lstm.py:size={size}"
    return Claim(
        paper="Merity et al., 2018, table 4", published="perplexity of validation text, WikiText-2",
        statement="Every part of AWD-LSTM lowers the perplexity.",
        runs={"full": (page, fields), "second": (f"{page},training=second,init={{full}}", second)} | {
            name: (page + choices, fields | without) for name, (_, choices, without, _) in PARTS.items()},
        rows={"full": Row("AWD-LSTM, first training", published=69.1),
              "second": Row("and the second training", "full", "below", published=68.6)} | {
            name: Row(title, "full", "above", published=published)
            for name, (title, _, _, published) in PARTS.items()},
        measure=Measure("perplexity", "lm_loss", {"split": "test"}, math.exp),
        cost="110 minutes of CPU time, by one of the seeds")
