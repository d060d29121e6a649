"""From BERT to NeoBERT, step by step (Le Breton et al., 2025, figure 1).

    lmrep reproduce neobert:steps --workdir=claims/neobert_steps --seeds=0-2

The paper trains models M0 to M10, each with one change more than the last that was kept, and draws their scores on
GLUE. More text (M2) and a larger network (M7) help most. Another vocabulary (M3) and packed sequences (M6) hurt, and
are dropped. The values of the figure were not at hand, nor what it shows of the other changes, so nothing is claimed of
these here.

The rows are the twelve changes of `ablations/bert_to_neobert.py`, each compared with the last that was kept. Their
order was not checked with the paper.

The miniature starts at the network of `quickstart.py`, 800 updates of each. Masks, packing, lengths and texts differ,
so losses of pretraining do not compare: all networks are fine-tuned in the same way, 300 updates of BERT's masks and of
whether the second of two segments continues the first, and measured by the masked loss on held-out text, where lower
is better. The loss with another vocabulary is of other tokens: its row is compared with none. At the other scales the
measure is the accuracy on SST-2, and all rows are compared.

After fine-tuning, rotary positions are worth 1.1 nats, and larger batches at equal updates 0.25. Networks that saw
[MASK] alone are worse by 0.29 at BERT's masks, which keep or replace a fifth of the chosen tokens: the measure has
these. More text and the larger network are on the wrong side (+0.13 and +0.21, not resolved). Likely causes, not
tested: the networks are fine-tuned on documentation, a quarter of which the earlier ones had read four times as
often, and all have the learning rate of the smallest. The measure was chosen after two seeds: the first one, the
accuracy on the 328 pairs of the test split, was between 52 and 66 % and did not separate the rows.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale, one_gpu

CHANGES = {  # of the page: (title, whether the paper's score is better or worse with it)
    "rotary": ("rotary positions", ""),
    "gated": ("SwiGLU", ""),
    "norm": ("RMS norm, no biases", ""),
    "text": ("more text", "better"),
    "vocabulary": ("another vocabulary", "worse"),
    "optimizer": ("weight decay and a cosine", ""),
    "masks": ("masks of 20 %, all [MASK]", ""),
    "packing": ("packed sequences", "worse"),
    "larger": ("a larger network", "better"),
    "deeper": ("more layers, less width", ""),
    "batches": ("larger batches", ""),
    "longer": ("longer sequences", ""),
}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    small = scale == "miniature"
    sides = {"better": "below", "worse": "above"} if small else {"better": "above", "worse": "below"}
    choices, fields, tuned, changes = at_scale(
        scale, miniature=("size=tiny", {"steps": 800}, "quickstart.py:format=segment_pair", {
            "objective.sentence_pair": True, "steps": 300, "optimizer.learning_rate": 1e-3}),
        single=("size=medium,data=files", one_gpu(10_000), "tasks/sst2.py:data=SST-2", {}),
        paper=("size=base,data=files", {}, "tasks/sst2.py:data=SST-2", {}))
    page = f"ablations/bert_to_neobert.py:{choices}"
    runs, rows, before = {"bert": (page, fields)}, {"bert": Row("BERT", run="tuned_bert")}, "bert"
    for name, (title, score) in CHANGES.items():
        runs[name] = (f"{page},up_to={name}", fields)
        compared = (before, sides.get(score, "")) if name != "vocabulary" or not small else ()
        rows[name] = Row(title, *compared, run=f"tuned_{name}")
        before = before if score == "worse" else name  # which the paper drops
    return Claim(
        paper="Le Breton et al., 2025, figure 1",
        statement="On the way from BERT to NeoBERT, more text and a larger network help; another vocabulary and packed "
                  "sequences hurt.",
        runs=runs | {f"tuned_{name}": (f"{tuned},init={{{name}}}", changes) for name in runs}, rows=rows,
        measure=Measure("masked loss of fine-tuned networks", "mlm_loss", {"split": "test"}, format=".3f") if small else
        Measure("accuracy of fine-tuned networks, %", "accuracy", {}, lambda value: 100 * value),
        cost="four hours on one core")
