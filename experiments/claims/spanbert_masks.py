"""Spans of geometric lengths are better masks than whole words or subwords (Joshi et al., 2020, table 6).

    lmrep reproduce spanbert:masks --workdir=claims/spanbert_masks --seeds=0-2

The paper trains with two segments, next-sentence prediction and different masks. F1 on SQuAD 2.0 is 83.8 with subwords,
84.3 with whole words and 85.4 with geometric spans.

The miniature is the network of `quickstart.py`, 2,500 steps of each, then fine-tuned on whether the second of two
segments continues the first, with masked subwords beside it. The measure is the accuracy on these pairs of held-out
text: labelled data that need no files. It asks less of spans than the answers of SQuAD do. At the other scales it is
SST-2.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium

MASKS = ("subword", "whole_word", "geometric")


def get_claim(scale="miniature"):
    """The claim at a scale."""
    pages, fields, tuned, changes, metric, evaluate = at_scale(
        scale, miniature=({"subword": ("quickstart.py", {}),
                           "whole_word": ("quickstart.py", {"objective.whole_word": True}),
                           "geometric": ("quickstart.py:objective=span_boundary", {"objective.boundary": False})},
                          {"steps": 2500}, "quickstart.py:format=segment_pair", {
                              "steps": 500, "optimizer.learning_rate": 1e-3}, "pair_accuracy", {"split": "test"}),
        single=({mask: (f"spanbert.py:size=base,data=files,spans={mask}", {}) for mask in MASKS}, medium(20_000),
                "tasks/sst2.py:data=SST-2", {}, "accuracy", {}),
        paper=({mask: (f"spanbert.py:size=base,data=files,spans={mask}", {}) for mask in MASKS}, {},
               "tasks/sst2.py:data=SST-2", {}, "accuracy", {}))
    return Claim(
        paper="Joshi et al., 2020, masking schemes", statement="Masked spans are better than masked words or subwords.",
        runs={mask: (page, fields | part) for mask, (page, part) in pages.items()} | {
            f"tuned_{mask}": (f"{tuned},init={{{mask}}}", changes) for mask in MASKS},
        rows={"subword": Row("subwords", "geometric", "below", published=83.8, run="tuned_subword"),
              "whole_word": Row("whole words", "geometric", "below", published=84.3, run="tuned_whole_word"),
              "geometric": Row("spans of geometric lengths", published=85.4, run="tuned_geometric")},
        published="F1 on SQuAD 2.0", measure=Measure(
            "accuracy of fine-tuned networks, %", metric, evaluate, lambda value: 100 * value),
        cost="40 minutes on one core, by one of the seeds")
