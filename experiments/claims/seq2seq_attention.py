"""Attention helps an encoder-decoder of LSTMs (Bahdanau et al., 2015; Luong et al., 2015).

    lmrep reproduce seq2seq:attention --workdir=claims/seq2seq_attention --seeds=0-2

The papers translate with and without attention. Without it, the decoder knows the source by one state alone, and long
sentences suffer. Their figures are not repeated here: they could not be checked.

The miniature is the network of `cove.py`, one layer of width 256, which writes texts of 24 tokens again from a source
in which 15 % of the tokens are noise (`t5.py:variant=bert`): a task that needs no parallel text. The measure is the
loss on held-out text. At the other scales it is translation of the files of --config.NAME.data.train=train.en and
--config.NAME.data.validation=valid.en, with .de beside them, by the loss of the target.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, measure = at_scale(
        scale, miniature=("t5.py:size=tiny,model=cove,variant=bert,optimizer=adamw", {
            "steps": 2000, "length": 24, "model.width": 256, "model.embedding": 128, "model.layers": 1,
            "optimizer.learning_rate": 2e-3},
            Measure("loss of the target", "denoising_loss", {"split": "test"}, format=".3f")),
        single=("cove.py:size=base", {"steps": 100_000},
                Measure("loss of the target", "lm_loss", {}, format=".3f")),
        paper=("cove.py:size=base", {}, Measure("loss of the target", "lm_loss", {}, format=".3f")))
    without = {"model.attention": "none", "model.input_feeding": False}
    return Claim(
        paper="Bahdanau et al., 2015", statement="An encoder-decoder with attention has a lower loss.",
        runs={"none": (page, fields | without), "attention": (page, fields)},
        rows={"none": Row("no attention"), "attention": Row("attention", "none", "below")},
        measure=measure, cost="40 minutes on one core")
