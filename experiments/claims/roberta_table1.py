"""Dynamic masking is at least as good as static masking (Liu et al., 2019, table 1).

    lmrep reproduce roberta:table1 --workdir=claims/roberta_table1

The paper trains BERT-base both ways and compares medians of five fine-tuned models: F1 on SQuAD 2.0 is 78.3 with static
masks (ten for each example) and 78.7 with dynamic ones, MNLI-m 84.3 and 84.0, SST-2 92.5 and 92.9. The miniature is the
network of `quickstart.py`, with next-sentence prediction; its measure is the masked loss on held-out text, on which a
lower value is better; the paper's figures here are of SQuAD 2.0. The margin of "at least as good" is 0.02 nats.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields = at_scale(scale, miniature=("quickstart.py:", {"steps": 2000}),
                            single=("roberta.py:size=base,data=files,batch=256,", medium(35_000)),
                            paper=("roberta.py:size=base,data=files,batch=256,", {}))
    runs = {masking: (f"{page}format=segment_pair", {**fields, "format.duplicates": 10, "objective.masking": masking})
            for masking in ("static", "dynamic")}
    return Claim(
        paper="Liu et al., 2019, table 1", statement="Dynamic masking is at least as good as static masking.",
        runs=runs, published="F1 on SQuAD 2.0, for which higher is better",
        rows={"static": Row("static masks", published=78.3),
              "dynamic": Row("dynamic masks", "static", "below", margin=0.02, published=78.7)},
        measure=Measure("masked loss", "mlm_loss", {"split": "test"}, format=".3f"),
        cost="25 minutes on one core")
