"""Replacing spans and dropping tokens are at least as good as predicting the whole text (Raffel et al., 2019, table 5).

    lmrep reproduce t5:table5 --workdir=claims/t5_table5 --seeds=0-2

The paper corrupts 15 % of the tokens. GLUE is 82.32 where the whole text is predicted (MASS-style), 83.28 where spans
are replaced by sentinels and predicted, and 84.44 where tokens are dropped and predicted; the last two also have
shorter targets.

The miniature is `t5.py:size=tiny`. Since the objectives have different targets, all networks are then trained for 150
steps as a prefix language model, which none was before: the second part of a text is generated from the first. The
measure is the loss of this on held-out text, where lower is better. At the other scales it is the accuracy on SST-2,
as text. The margin of "at least as good" is 0.03 nats.

In one seed, both had a higher loss than predicting the whole text: by 0.97 nats with spans, and by 0.86 with dropped
tokens. Two possible causes were not tested: where the whole text is predicted, each of the 500 steps has several times
as many targets, and the decoder learns to write running text, which the measure asks for.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

OBJECTIVES = {"mask": ("the whole text", "variant=mask", 82.32),
              "replace_spans": ("spans", "variant=replace_spans,noise=tokens", 83.28),
              "drop_tokens": ("dropped tokens", "variant=drop_tokens", 84.44)}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, changes, measure, better, margin = at_scale(
        scale, miniature=("t5.py:size=tiny", {"steps": 500}, "t5.py:size=tiny,variant=prefix", {
            "steps": 150, "optimizer.learning_rate": 0.02},
            Measure("loss as a prefix language model", "denoising_loss", {"split": "test"}, format=".3f"), "below",
            0.03),
        single=("t5.py:size=small,data=files", {"steps": 25_000, "optimizer.schedule.warmup_fraction": 0.4,
                                              "execution.dtype": "bfloat16", "microbatches": 2},
                "tasks/sst2.py:data=SST-2,as_text=true,recipe=t5", {},
                Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", 0.3),
        paper=("t5.py:size=base,data=files", {}, "tasks/sst2.py:data=SST-2,as_text=true,recipe=t5", {},
               Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", 0.3))
    return Claim(
        paper="Raffel et al., 2019, table 5",
        statement="Predicting the corrupted tokens alone is at least as good as predicting the whole text.",
        runs={name: (f"{page},{choices}", fields) for name, (_, choices, _) in OBJECTIVES.items()} | {
            f"tuned_{name}": (f"{tuned},init={{{name}}}", changes) for name in OBJECTIVES},
        rows={name: Row(title, *(("mask", better, margin) if name != "mask" else ("", "", 0.0)), published,
                        f"tuned_{name}") for name, (title, _, published) in OBJECTIVES.items()},
        published="GLUE, for which higher is better", measure=measure,
        cost="an hour and 40 minutes on one core, by one of the seeds")
