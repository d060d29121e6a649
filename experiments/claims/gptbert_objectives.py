"""Masked and causal language modelling in one network are better than either alone (Charpentier and Samuel, 2024).

    lmrep reproduce gptbert:objectives --workdir=claims/gptbert_objectives --seeds=0-2

The paper trains on the 10 and 100 million words of the BabyLM challenge, with 15 of 16 examples masked and the others
causal, and reports that such networks outperform those of masked or causal examples alone. Its figures were not at
hand.

The miniature has two layers of width 128 and 3,000 steps of 32 sequences of 64 tokens, 6 million tokens in all. The
measure is the mean accuracy on BLiMP (Warstadt et al., 2020), of 200 pairs of each of its 67 paradigms: by
pseudo-log-likelihoods for networks that were trained on masked examples, from left to right for causal ones alone.

It comes out otherwise: the causal network is best, by 1.2 points (-4.3 to +6.7), and the hybrid one is 0.6 above the
masked one (-0.8 to +1.9). The likely cause is the short training: a causal step has a target at every position, a
masked one at 15 to 30 % of them. That was not tested. On the five tasks of BLiMP's supplement (`lmrep evaluate
--suite`, the files of the BabyLM challenge of 2025) the same networks have 50.2 ± 0.8 (hybrid), 49.9 ± 1.6 (masked) and
47.5 ± 1.2 (causal), where chance is 50: causal is 2.7 below hybrid (-7.4 to +2.0).

Data: an English text with a blank line between documents, such as 27 MB of Wikipedia, in enwiki-sample/enwiki.txt in
the current directory, or --config.data.files=... ; the files of BLiMP in the folder blimp.
"""

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, examples = at_scale(
        scale, miniature=("gptbert.py:size=tiny,data=files", {
            "data.files": "enwiki-sample/enwiki.txt", "data.documents": "blank_line", "steps": 3000, "length": 64,
            "objective.rate_steps": 3000, "evaluation.every": 1500, "checkpoint.every": 1500, "stages": (),
            "tokenizer.vocab_size": 4096}, {"examples": "200"}),
        single=("gptbert.py:size=small,data=files", {
            "data.documents": "blank_line", "batch_size": 2048, "execution.dtype": "bfloat16"}, {}),
        paper=("gptbert.py:size=small,data=files", {"data.documents": "blank_line"}, {}))
    return Claim(
        paper="Charpentier and Samuel, 2024, objectives",
        statement="Masked and causal examples together are better than masked or causal ones alone.",
        runs={"hybrid": (f"{page},share=15/16", fields), "masked": (f"{page},share=1", fields),
              "causal": (f"{page},share=0", fields)},
        rows={"hybrid": Row("15 of 16 masked, one causal"), "masked": Row("masked", "hybrid", "below"),
              "causal": Row("causal", "hybrid", "below")},
        measure=Measure("accuracy on BLiMP, %", "accuracy", {"pairs": "blimp", **examples}, lambda value: 100 * value),
        cost="70 minutes on two cores, in two processes")
