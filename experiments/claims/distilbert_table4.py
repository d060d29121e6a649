"""Each loss of DistilBERT helps, and so does the start from its teacher (Sanh et al., 2019, table 4).

    lmrep reproduce distilbert:table4 --workdir=claims/distilbert_table4 --seeds=0-2

The paper removes one of the three losses, or starts from random parameters. The mean of GLUE, 77.0, changes by -0.31
without the masked-LM loss, -1.46 without the cosine loss, -2.96 without the divergence from the teacher's distribution,
and -3.69 from random parameters.

The miniature is a teacher of four layers, the network of `quickstart.py`, which is trained first with the same seed,
and students of two. The measure is the loss of the students at masked tokens of held-out text, where lower is better.
At the other scales the students are fine-tuned on SST-2. In three seeds of the miniature the divergence did not help.
Likely causes, which were not tested: the measure is one of the three losses, and the teacher, trained for 1,500 steps,
has little to teach beyond the text itself.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium

STUDENTS = {  # name: (title, choices, change of GLUE)
    "triple": ("triple loss, from the teacher's layers", "losses=all", 0.0),
    "no_mlm": ("without the masked-LM loss", "losses=no_mlm", -0.31),
    "no_cos": ("without the cosine loss", "losses=no_cos", -1.46),
    "no_ce": ("without the divergence", "losses=no_ce", -2.96),
    "random": ("from random parameters", "losses=all", -3.69),
}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    teacher, (depth, picked), student, fields, tuned, measure = at_scale(
        scale, miniature=(("quickstart.py", {"steps": 1500, "model.layers": 4, "model.max_length": 64}), (2, "0,3"),
                          "distilbert.py:size=tiny,format=packed",
                          {"steps": 500, "model.norm": "pre", "data.validation": 0.05, "data.test": 0.05}, "",
                          Measure("masked loss", "mlm_loss", {"split": "test"}, format=".3f")),
        single=(("bert.py:size=base,data=files", medium(60_000)), (4, "0,2,5,7"), "distilbert.py:data=files",
                {"steps": 30_000, "batch_size": 256, "length": 128, "execution.dtype": "bfloat16"},
                "tasks/sst2.py:data=SST-2", Measure("accuracy on SST-2, %", "accuracy", {}, lambda x: 100 * x)),
        paper=(("bert.py:size=base,data=files", {}), (6, "0,2,4,7,9,11"), "distilbert.py:data=files", {},
               "tasks/sst2.py:data=SST-2", Measure("accuracy on SST-2, %", "accuracy", {}, lambda x: 100 * x)))
    fields = fields | {"model.layers": depth, "model.token_types": 0, "frozen.teacher": "{teacher}"}
    start = {"init_mapping": {"encoder/layers": f"encoder/layers[{picked}]"}}
    return Claim(
        paper="Sanh et al., 2019, table 4", statement="Without a loss, or from random parameters, a student is worse.",
        runs={"teacher": teacher} | {
            name: (f"{student},{choice},init={{teacher}}", fields | ({"init": ""} if name == "random" else start))
            for name, (_, choice, _) in STUDENTS.items()} | {
            f"tuned_{name}": f"{tuned},init={{{name}}}" for name in STUDENTS if tuned},
        rows={name: Row(title, *(() if name == "triple" else ("triple", "below" if tuned else "above")),
                        published=published, run=f"tuned_{name}" if tuned else name)
              for name, (title, _, published) in STUDENTS.items()},
        published="change of the mean of GLUE", measure=measure,
        cost="two hours on one core beside other work")
