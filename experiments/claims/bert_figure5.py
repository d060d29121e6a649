"""Masked language modelling learns more slowly at first than left to right, and is better soon (Devlin et al., 2019,
figure 5).

    lmrep reproduce bert:figure5 --workdir=claims/bert_figure5 --seeds=0-2

The paper fine-tunes BERT-base, and the same network trained left to right, on MNLI after 200,000 to a million steps.
The masked model is better almost at once; the paper says that it converges slightly more slowly. The figure has no
numbers.

The miniature is the network of `quickstart.py`, trained for 300 and for 2,000 steps, and then fine-tuned on whether the
second of two segments continues the first (with masked tokens beside it, as in BERT). The measure is the accuracy on
these pairs of held-out text: labelled data that need no files. At the other scales it is MNLI.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder MNLI of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, (early, late), fields, tuned, changes, metric, evaluate = at_scale(
        scale, miniature=("quickstart.py:", (300, 2000), {}, "quickstart.py:format=segment_pair", {
            "steps": 500, "optimizer.learning_rate": 1e-3}, "pair_accuracy", {"split": "test"}),
        single=("bert.py:size=base,data=files,format=packed,", (4_000, 70_000), medium(70_000),
                "tasks/mnli.py:data=MNLI", {}, "accuracy", {}),
        paper=("bert.py:size=base,data=files,format=packed,", (50_000, 1_000_000), {}, "tasks/mnli.py:data=MNLI", {},
               "accuracy", {}))
    runs = {f"{objective}_{name}": (f"{page}objective={objective}", fields | {"steps": steps})
            for objective in ("causal", "masked") for name, steps in (("early", early), ("late", late))}
    runs |= {f"tuned_{name}": (f"{tuned},init={{{name}}}", changes) for name in runs}
    return Claim(
        paper="Devlin et al., 2019, figure 5",
        statement="Masked language modelling is slower than left to right at first, and better in the end.",
        runs=runs,
        rows={"causal_early": Row(f"left to right, {early:,} steps", run="tuned_causal_early"),
              "masked_early": Row(f"masked, {early:,} steps", "causal_early", "below", run="tuned_masked_early"),
              "causal_late": Row(f"left to right, {late:,} steps", run="tuned_causal_late"),
              "masked_late": Row(f"masked, {late:,} steps", "causal_late", "above", run="tuned_masked_late")},
        measure=Measure("accuracy of fine-tuned networks, %", metric, evaluate, lambda value: 100 * value),
        cost="100 minutes of CPU time, by one of the seeds")
