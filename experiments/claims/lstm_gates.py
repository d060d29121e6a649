"""Gated cells have a lower perplexity than plain recurrent ones (Sundermeyer et al., 2012).

    lmrep reproduce lstm:gates --workdir=claims/lstm_gates --seeds=0-2

The paper compares LSTM language models with the plain recurrent ones of Mikolov et al. (2010), at the same width, and
reports lower perplexities. Its figures are not repeated here: they could not be checked.

The miniature is one layer of width 256, with `lstm_lm.py` and `rnn_lm.py` of size=tiny, and one of width 128 of the
LSTM, which has fewer parameters than the plain one. The plain cells have their page's learning rate, which is lower,
since they are unstable at the other. The measure is the perplexity of held-out tokens.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

import math

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    sizes, fields, narrow = at_scale(scale, miniature=(("size=tiny", "size=tiny"), {"steps": 1500}, 128),
                                     single=(("size=medium,data=files",) * 2, {}, 325),
                                     paper=(("size=medium,data=files",) * 2, {}, 325))
    lstm, plain = (f"{page}:{size}" for page, size in zip(("lstm_lm.py", "rnn_lm.py"), sizes, strict=True))
    return Claim(
        paper="Sundermeyer et al., 2012", statement="An LSTM has a lower perplexity than a plain recurrent network.",
        runs={"plain": (plain, fields), "lstm": (lstm, fields), "narrow": (lstm, fields | {"model.width": narrow})},
        rows={"plain": Row("plain cells"), "lstm": Row("LSTM of the same width", "plain", "below"),
              "narrow": Row("LSTM of half the width", "plain", "below")},
        measure=Measure("perplexity", "lm_loss", {"split": "test"}, math.exp),
        cost="40 minutes on one core")
