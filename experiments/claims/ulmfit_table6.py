"""A language model that is fine-tuned on the texts of the task gives a better classifier, and more so with
discriminative and slanted triangular learning rates (Howard and Ruder, 2018, table 6).

    lmrep reproduce ulmfit:table6 --workdir=claims/ulmfit_table6 --seeds=0-2

The paper fine-tunes its language model in several ways before the classifier. The errors on IMDb are 6.99 % without
this, 5.86 with it, 5.55 with discriminative rates, and 5.00 with slanted triangular rates too. On TREC-6, a small set,
they are 6.38, 6.54, 6.36 and 5.69.

The miniature is `ulmfit.py:size=tiny`, whose language model reads the documentation of Python, and then unlabelled
reviews; the classifier reads 64 words of a review, without dropout in its network. All rows are measured on 2,500
reviews of the test set.

In one seed the errors were 37.0 % without fine-tuning of the language model, 30.6 with it, 33.9 with discriminative
rates, and 34.4 with slanted triangular rates too: the first difference has the sign of the paper, the others do not.

Data: the documentation that comes with Python, and the folder aclImdb in the current directory (Maas et al., 2011), or
--config.NAME.data.train=FILE and --config.NAME.data.validation=FILE for each row NAME, and
--config.RUN.data.files=FILES for the runs target_full, target_rates and target_all. At the other scales,
--config.general.data.files=FILES is the text of the first language model.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

TARGETS = {  # row: (title, choices of the language model's fine-tuning, published error)
    "full": ("one rate for all layers", ",rates=equal,schedule=constant", 5.86),
    "rates": ("discriminative rates", ",schedule=constant", 5.55),
    "all": ("discriminative and slanted rates", "", 5.00),
}
WITHOUT_DROPOUT = {f"model.{kind}_dropout": 0.0 for kind in ("input", "embedding", "hidden", "weight")}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    size, fields, files, second, changes, evaluated = at_scale(
        scale, miniature=("size=tiny,", {"steps": 400}, "unsup/1*.txt", {"steps": 250},
                          {"epochs": 0.75, "length": 64, "evaluation.examples": 2500, **WITHOUT_DROPOUT},
                          {"examples": "2500"}),
        single=("", {"steps": 115_000}, "[pnu]*/*.txt", {"steps": 20_000}, {"epochs": 10.0}, {}),
        paper=("", {}, "[pnu]*/*.txt", {}, {}, {}))
    general, target = "" if scale == "miniature" else "data=files", f"ulmfit.py:{size}stage=target,data=files,init="
    texts = {"data.files": f"aclImdb/train/{files}", "data.documents": "file"}
    classifier = "tasks/ulmfit.py:task=imdb,data=aclImdb,init="
    rows = {"none": Row("no fine-tuning of the language model", published=6.99)}
    for name, (title, _, published) in TARGETS.items():
        rows[name] = Row(title, [*rows][-1], "below", published=published)
    return Claim(
        paper="Howard and Ruder, 2018, table 6",
        statement="Fine-tuning the language model helps a classifier, and each part of its learning rates helps.",
        runs={"general": (f"ulmfit.py:{size}{general}", fields)} | {
            f"target_{name}": (f"{target}{{general}}{choices}", second | texts)
            for name, (_, choices, _) in TARGETS.items()} | {"none": (f"{classifier}{{general}}", changes)} | {
            name: (f"{classifier}{{target_{name}}}", changes) for name in TARGETS},
        rows=rows, published="error on IMDb, in %",
        measure=Measure("error, %", "accuracy", evaluated, lambda accuracy: 100 - 100 * accuracy),
        cost="two hours of CPU time, by one of the seeds, with the files of IMDb")
