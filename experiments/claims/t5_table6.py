"""A corruption rate of 50 % is worse than 15 %; lower rates differ little (Raffel et al., 2019, table 6).

    lmrep reproduce t5:table6 --workdir=claims/t5_table6 --seeds=0-2

The paper corrupts 10, 15, 25 and 50 % of the tokens, independently. GLUE is 82.82, 83.28, 83.00 and 81.27.

The miniature is `t5.py:size=tiny`. All networks are then trained for 100 steps as a prefix language model, which none
was before: the second part of a text is generated from the first. The measure is the loss of this on held-out text,
where lower is better. At the other scales it is the accuracy on SST-2, as text. "Differ little" is at most 0.05 nats
above 15 %, since in the paper 10 and 25 % are lower by half a point of GLUE at most.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

PUBLISHED = {10: 82.82, 15: 83.28, 25: 83.00, 50: 81.27}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, changes, measure, better, worse, margin = at_scale(
        scale, miniature=("t5.py:size=tiny", {"steps": 300}, "t5.py:size=tiny,variant=prefix", {
            "steps": 100, "optimizer.learning_rate": 0.02},
            Measure("loss as a prefix language model", "denoising_loss", {"split": "test"}, format=".3f"), "below",
            "above", 0.05),
        single=("t5.py:size=small,data=files", {"steps": 25_000, "optimizer.schedule.warmup_fraction": 0.4,
                                              "execution.dtype": "bfloat16", "microbatches": 2},
                "tasks/sst2.py:data=SST-2,as_text=true,recipe=t5", {},
                Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", "below", 0.5),
        paper=("t5.py:size=base,data=files", {}, "tasks/sst2.py:data=SST-2,as_text=true,recipe=t5", {},
               Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", "below", 0.5))
    claimed = {10: ("rate_15", better, margin), 15: ("", "", 0.0), 25: ("rate_15", better, margin),
               50: ("rate_15", worse, 0.0)}
    return Claim(
        paper="Raffel et al., 2019, table 6",
        statement="Corrupting half of the tokens is worse; 10 to 25 % differ little.",
        runs={f"rate_{rate}": (f"{page},variant=replace_spans,noise=tokens", {**fields, "objective.rate": rate / 100})
              for rate in PUBLISHED} | {
            f"tuned_{rate}": (f"{tuned},init={{rate_{rate}}}", changes) for rate in PUBLISHED},
        rows={f"rate_{rate}": Row(f"{rate} %", *claimed[rate], PUBLISHED[rate], f"tuned_{rate}") for rate in PUBLISHED},
        published="GLUE, for which higher is better", measure=measure,
        cost="two hours of CPU time, by one of the seeds")
