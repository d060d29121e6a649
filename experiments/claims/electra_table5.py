"""Where ELECTRA's gain comes from: a loss on all tokens, and no [MASK] in the input (Clark et al., 2020, table 5).

    lmrep reproduce electra:table5 --workdir=claims/electra_table5 --seeds=0-2

The paper compares ELECTRA with variants between it and BERT. GLUE is 85.0 with ELECTRA, 84.3 where the original of
every token is predicted (all-tokens MLM), 82.4 where that of the replaced ones is (replace MLM), 82.4 where replaced
tokens are detected among the masked 15 % alone, and 82.2 with BERT.

The miniature is `electra.py:size=tiny`, 800 steps of each; then all networks are fine-tuned on whether the second of
two segments continues the first, with masked tokens beside it. The measure is the accuracy on these pairs of held-out
text: labelled data that need no files. At the other scales it is SST-2.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

VARIANTS = {"bert": ("BERT", 82.2), "electra_15": ("ELECTRA 15 %", 82.4), "replace_mlm": ("replace MLM", 82.4),
            "all_tokens_mlm": ("all-tokens MLM", 84.3), "electra": ("ELECTRA", 85.0)}
AGAINST = {"electra_15": "bert", "replace_mlm": "bert", "all_tokens_mlm": "replace_mlm", "electra": "all_tokens_mlm"}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, changes, metric, evaluate = at_scale(
        scale, miniature=("electra.py:size=tiny", {"steps": 800},
                          "electra.py:size=tiny,variant=bert,format=segment_pair",
                          {"objective.sentence_pair": True, "steps": 400, "optimizer.learning_rate": 7e-4},
                          "pair_accuracy", {"split": "test"}),
        single=("electra.py:size=small,data=files", {"steps": 60_000, "execution.dtype": "bfloat16"},
                "tasks/sst2.py:data=SST-2,recipe=electra", {}, "accuracy", {}),
        paper=("electra.py:size=base,data=files", {}, "tasks/sst2.py:data=SST-2,recipe=electra", {}, "accuracy", {}))
    return Claim(
        paper="Clark et al., 2020, table 5",
        statement="ELECTRA is best, then all-tokens MLM, then replace MLM and ELECTRA 15 %, then BERT.",
        runs={name: (f"{page},variant={name}", fields) for name in VARIANTS} | {
            f"tuned_{name}": (f"{tuned},init={{{name}}}", changes) for name in VARIANTS},
        rows={name: Row(title, AGAINST.get(name, ""), "above" if name in AGAINST else "", published=published,
                        run=f"tuned_{name}") for name, (title, published) in VARIANTS.items()},
        published="GLUE", measure=Measure("accuracy of fine-tuned networks, %", metric, evaluate, lambda x: 100 * x),
        cost="110 minutes of CPU time, by one of the seeds")
