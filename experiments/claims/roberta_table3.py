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

from lmrep.claims import Claim, Measure, Row, at_scale

BATCHES = {"small": ("256", 16, 2e-3), "medium": ("2k", 128, 4e-3), "large": ("8k", 512, 8e-3)}
SEQUENCES = 102_400


def get_claim(scale="miniature"):
    """The claim at a scale."""
    runs = at_scale(
        scale, miniature={name: ("quickstart.py", {"batch_size": size, "steps": SEQUENCES // size,
                                                   "optimizer.learning_rate": rate})
                          for name, (_, size, rate) in BATCHES.items()},
        paper={name: (f"roberta.py:size=base,data=files,batch={batch}", {}) for name, (batch, *_) in BATCHES.items()})
    return Claim(
        paper="Liu et al., 2019, table 3", statement="Larger batches have a lower perplexity after as many epochs.",
        runs=runs, published="held-out perplexity of masked tokens, BooksCorpus and English Wikipedia",
        rows={"small": Row("batches of 256 (here 16)", published=3.99),
              "medium": Row("of 2,000 (128)", "small", "below", published=3.68),
              "large": Row("of 8,000 (512)", "small", "below", published=3.77)},
        measure=Measure("masked perplexity", "mlm_loss", {"split": "test"}, math.exp, ".2f"),
        cost=at_scale(scale, miniature="half an hour on two cores", paper=""))
