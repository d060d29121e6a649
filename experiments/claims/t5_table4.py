"""BERT's denoising is better than a prefix language model, and deshuffling is worst (Raffel et al., 2019, table 4).

    lmrep reproduce t5:table4 --workdir=claims/t5_table4 --seeds=0-2

The paper pretrains with each of three objectives and fine-tunes. GLUE is 80.69 with the prefix language model, 82.96
with BERT's objective and 73.17 with deshuffling.

The miniature is `t5.py:size=tiny`. Since the objectives have different targets, all networks are then trained for 150
steps to replace spans, which none was before; the measure is the loss of this on held-out text, where lower is better.
It is near to BERT's objective. At the other scales the measure is the accuracy on SST-2, as text.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

PUBLISHED = {"prefix": 80.69, "bert": 82.96, "deshuffling": 73.17}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, changes, measure, better, worse = at_scale(
        scale, miniature=("t5.py:size=tiny", {"steps": 500}, "t5.py:size=tiny", {
            "steps": 150, "optimizer.learning_rate": 0.02},
            Measure("loss of replaced spans", "denoising_loss", {"split": "test"}, format=".3f"), "below", "above"),
        single=("t5.py:size=small,data=files", {"steps": 25_000, "optimizer.schedule.warmup_fraction": 0.4,
                                              "execution.dtype": "bfloat16", "microbatches": 2},
                "tasks/sst2.py:data=SST-2,as_text=true,recipe=t5", {},
                Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", "below"),
        paper=("t5.py:size=base,data=files", {}, "tasks/sst2.py:data=SST-2,as_text=true,recipe=t5", {},
               Measure("accuracy on SST-2, %", "accuracy", {}, lambda value: 100 * value), "above", "below"))
    rows = {"prefix": Row("prefix language model"), "bert": Row("BERT-style", "prefix", better),
            "deshuffling": Row("deshuffling", "prefix", worse)}
    return Claim(
        paper="Raffel et al., 2019, table 4",
        statement="BERT's denoising is better than a prefix language model, and deshuffling worse.",
        runs={name: (f"{page},variant={name}", fields) for name in PUBLISHED} | {
            f"tuned_{name}": (f"{tuned},init={{{name}}}", changes) for name in PUBLISHED},
        rows={name: row._replace(published=PUBLISHED[name], run=f"tuned_{name}") for name, row in rows.items()},
        published="GLUE, for which higher is better", measure=measure,
        cost="65 minutes on one core, by one of the seeds")
