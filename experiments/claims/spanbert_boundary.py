"""Single segments are better than pairs, and the boundary loss is at least as good as without it (Joshi et al., 2020,
table 7).

    lmrep reproduce spanbert:boundary --workdir=claims/spanbert_boundary --seeds=0-2

The paper trains with masked spans. F1 on SQuAD 2.0 is 85.4 with two segments and next-sentence prediction, 86.7 with
one segment, and 86.8 with one segment and the boundary loss; for coreference, 76.4, 76.3 and 79.0.

The miniature is the network of `quickstart.py`. All networks are then trained for 150 steps on masked subwords of
documents that are cut at the length, which no row has before; the measure is the masked loss on held-out text, where
lower is better. At the other scales it is the accuracy on SST-2. The margin of "at least as good" is 0.02 nats: for
SQuAD the paper's figures differ by a tenth of a point.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, changes, measure, better, margin = at_scale(
        scale, miniature=("quickstart.py:objective=span_boundary", {"steps": 2000}, "quickstart.py:format=packed", {
            "steps": 150, "optimizer.learning_rate": 1e-3},
            Measure("masked loss", "mlm_loss", {"split": "test"}, format=".3f"), "below", 0.02),
        single=("spanbert.py:size=base,data=files", medium(20_000), "tasks/sst2.py:data=SST-2", {},
                Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", 0.3),
        paper=("spanbert.py:size=base,data=files", {}, "tasks/sst2.py:data=SST-2", {},
               Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", 0.3))
    spans = fields | {"objective.boundary": False}
    runs = {"pairs": (f"{page},format=segment_pair", spans), "single": (f"{page},format=doc_sentences", spans),
            "boundary": (f"{page},format=doc_sentences", fields)}
    return Claim(
        paper="Joshi et al., 2020, objectives",
        statement="One segment is better than two, and the boundary loss at least as good as without it.",
        runs=runs | {f"tuned_{name}": (f"{tuned},init={{{name}}}", changes) for name in runs},
        rows={"pairs": Row("two segments, NSP", published=85.4, run="tuned_pairs"),
              "single": Row("one segment", "pairs", better, published=86.7, run="tuned_single"),
              "boundary": Row("one segment, boundary loss", "single", better, margin, 86.8, "tuned_boundary")},
        published="F1 on SQuAD 2.0, for which higher is better", measure=measure,
        cost="35 minutes on one core, by one of the seeds")
