"""Large batches reach a lower perplexity in as many epochs (Liu et al., 2019, table 3).

    lmrep reproduce roberta:table3 --workdir=claims/roberta_table3 --seeds=0-2

The paper trains BERT-base on as many sequences with three batch sizes, each with a rate of its own. Held-out perplexity
of masked tokens is 3.99 with batches of 256, 3.68 with 2,000 and 3.77 with 8,000.

The miniature is the network of `quickstart.py`. Batches have 16, 128 and 512 sequences of 64 tokens, and the steps are
as many as give 102,400 sequences. Rates rise with the batch, more slowly than in the paper, whose smallest rate is far
below what a small network takes. The measure is the perplexity of masked tokens.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

import math

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def batches(page, sequences, rates, fields=()):
    """Returns {size: run} with as many sequences in all, of {size: learning rate}."""
    return {size: (page, {**dict(fields), "batch_size": size, "steps": sequences // size,
                          "optimizer.learning_rate": rate}) for size, rate in rates.items()}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    runs = at_scale(
        scale, miniature=batches("quickstart.py", 102_400, {16: 2e-3, 128: 4e-3, 512: 8e-3}),
        single=batches("roberta.py:size=base,data=files", 18_432_000, {128: 3e-4, 512: 6e-4, 2048: 1e-3},
                       medium(0, length=128)),
        paper={size: (f"roberta.py:size=base,data=files,batch={batch}", {})
               for size, batch in ((256, "256"), (2048, "2k"), (8192, "8k"))})
    small, middle, large = runs
    return Claim(
        paper="Liu et al., 2019, table 3", statement="Larger batches have a lower perplexity after as many epochs.",
        runs=dict(zip(("small", "medium", "large"), runs.values(), strict=True)),
        published="held-out perplexity of masked tokens, BooksCorpus and English Wikipedia",
        rows={"small": Row(f"batches of 256 (here {small})", published=3.99),
              "medium": Row(f"of 2,000 ({middle:,})", "small", "below", published=3.68),
              "large": Row(f"of 8,000 ({large:,})", "small", "below", published=3.77)},
        measure=Measure("masked perplexity", "mlm_loss", {"split": "test"}, math.exp, ".2f"),
        cost="45 minutes on one core, by one of the seeds")
