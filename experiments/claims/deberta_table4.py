"""Each part of DeBERTa helps: both terms of positions, and absolute positions for masked tokens (He et al., 2021, table
4).

    lmrep reproduce deberta:table4 --workdir=claims/deberta_table4 --seeds=0-2

The paper trains base networks on the same text for a million steps. Accuracy on MNLI (matched) is 84.9 % with RoBERTa's
network and 86.3 with DeBERTa's. It is 86.1 without the enhanced mask decoder (EMD), 85.9 without the term of content to
position (c2p), 86.0 without that of position to content (p2c), and 85.8 without the decoder and one of them. The
differences are larger on RACE: 66.8, 71.7, and 70.3, 69.3 and 69.6 without one part.

The miniature is the network of `quickstart.py` with layer norm after each block, which the mask decoder needs, and a
lower rate for it. The measure is the masked loss on held-out text, where lower is better. At the other scales it is
the accuracy on MNLI. Positions are projected by the matrices of content, as in the released networks from version 2 on;
the networks of the paper's table have separate matrices for positions.

In one seed, after 1,000 steps, the loss was 1.36 nats higher with learned positions. Without one or two of the parts it
changed by -0.015 to +0.029 nats, which one seed cannot tell from chance.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder MNLI of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium

PARTS = {  # name: (title, terms of positions, runs of the mask decoder, published)
    "deberta": ("DeBERTa", "both", 2, 86.3),
    "no_decoder": ("without the mask decoder", "both", 0, 86.1),
    "no_c2p": ("without content to position", "p2c", 2, 85.9),
    "no_p2c": ("without position to content", "c2p", 2, 86.0),
    "no_decoder_c2p": ("without the decoder and content to position", "p2c", 0, 85.8),
    "no_decoder_p2c": ("without the decoder and position to content", "c2p", 0, 85.8),
}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, worse, measure = at_scale(
        scale, miniature=("quickstart.py", {"steps": 1000, "model.norm": "post", "optimizer.learning_rate": 2e-3}, "",
                          "above", Measure("masked loss", "mlm_loss", {"split": "test"}, format=".3f")),
        single=("bert.py:size=base,data=files,format=full_sentences", medium(18_000), "tasks/mnli.py:data=MNLI",
                "below", Measure("accuracy on MNLI, %", "accuracy", {}, lambda value: 100 * value)),
        paper=("bert.py:size=base,data=files,format=full_sentences", {}, "tasks/mnli.py:data=MNLI",
               "below", Measure("accuracy on MNLI, %", "accuracy", {}, lambda value: 100 * value)))
    runs = {"bert": (page, fields)} | {name: (page, fields | {
        "model.positions": "disentangled", "model.position_terms": terms, "model.mask_decoder": decoder})
        for name, (_, terms, decoder, _) in PARTS.items()}
    rows = {"bert": Row("learned positions", "deberta", worse, published=84.9)} | {
        name: Row(title, *(("deberta", worse) if name != "deberta" else ()), published=published)
        for name, (title, *_, published) in PARTS.items()}
    if tuned:
        runs |= {f"tuned_{name}": (f"{tuned},init={{{name}}}", {}) for name in rows}
        rows = {name: row._replace(run=f"tuned_{name}") for name, row in rows.items()}
    return Claim(
        paper="He et al., 2021, table 4",
        statement="DeBERTa is better than the network with learned positions, and than DeBERTa without one or two of "
                  "its parts.",
        runs=runs, rows=rows, published="accuracy on MNLI, in %, for which higher is better", measure=measure,
        cost="an hour and a half on one core, by one of the seeds")
