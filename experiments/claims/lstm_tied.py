"""An output layer that is the table of tokens lowers the perplexity (Press and Wolf, 2017; Inan et al., 2017).

    lmrep reproduce lstm:tied --workdir=claims/lstm_tied --seeds=0-2

The papers tie the table of tokens and the output layer of LSTM language models, which have fewer parameters then and a
lower perplexity. Their figures are not repeated here: they could not be checked.

The miniature is the network of `lstm_lm.py`, one layer of width 128 with a table of the same width, with and without a
table that serves as the output layer. The measure is the perplexity of held-out tokens.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

import math

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields = at_scale(
        scale, miniature=("lstm_lm.py:size=tiny", {"steps": 1500, "model.width": 128, "model.embedding": 128}),
        single=("lstm_lm.py:size=medium,data=files", {}),
        paper=("lstm_lm.py:size=medium,data=files", {}))
    return Claim(
        paper="Press and Wolf, 2017", statement="Tied tables have a lower perplexity.",
        runs={"untied": (page, fields), "tied": (f"{page},tied=yes", fields)},
        rows={"untied": Row("separate output layer"), "tied": Row("tied tables", "untied", "below")},
        measure=Measure("perplexity", "lm_loss", {"split": "test"}, math.exp),
        cost="25 minutes on one core")
