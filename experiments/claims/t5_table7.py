"""Spans of ten tokens are worse than spans of three; shorter ones differ little (Raffel et al., 2019, table 7).

    lmrep reproduce t5:table7 --workdir=claims/t5_table7 --seeds=0-2

The paper corrupts 15 % of the tokens, in spans of 2, 3, 5 and 10 tokens on average. GLUE is 83.54, 83.49, 83.40 and
82.85.

The miniature is `t5.py:size=tiny`. All networks are then trained for 150 steps as a prefix language model, which none
was before: the second part of a text is generated from the first. The measure is the loss of this on held-out text,
where lower is better. At the other scales it is the accuracy on SST-2, as text. "Differ little" is at most 0.03 nats
above three tokens, since in the paper 2 and 5 differ from it by a tenth of a point.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

PUBLISHED = {2: 83.54, 3: 83.49, 5: 83.40, 10: 82.85}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, changes, measure, better, worse, margin = at_scale(
        scale, miniature=("t5.py:size=tiny", {"steps": 500}, "t5.py:size=tiny,variant=prefix", {
            "steps": 150, "optimizer.learning_rate": 0.02},
            Measure("loss as a prefix language model", "denoising_loss", {"split": "test"}, format=".3f"), "below",
            "above", 0.03),
        single=("t5.py:size=small,data=files", {"steps": 25_000, "optimizer.schedule.warmup_fraction": 0.4,
                                              "execution.dtype": "bfloat16", "microbatches": 2},
                "tasks/sst2.py:data=SST-2,as_text=true,recipe=t5", {},
                Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", "below", 0.3),
        paper=("t5.py:size=base,data=files", {}, "tasks/sst2.py:data=SST-2,as_text=true,recipe=t5", {},
               Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", "below", 0.3))
    claimed = {2: ("span_3", better, margin), 3: ("", "", 0.0), 5: ("span_3", better, margin),
               10: ("span_3", worse, 0.0)}
    return Claim(
        paper="Raffel et al., 2019, table 7", statement="Spans of ten tokens are worse; 2 to 5 differ little.",
        runs={f"span_{mean}": (f"{page},variant=replace_spans", {**fields, "objective.mean_span": float(mean)})
              for mean in PUBLISHED} | {
            f"tuned_{mean}": (f"{tuned},init={{span_{mean}}}", changes) for mean in PUBLISHED},
        rows={f"span_{mean}": Row(f"{mean} tokens", *claimed[mean], PUBLISHED[mean], f"tuned_{mean}")
              for mean in PUBLISHED},
        published="GLUE, for which higher is better", measure=measure,
        cost="55 minutes on one core, by one of the seeds")
