"""SpanBERT (Joshi et al., 2019): masked spans, predicted from the words at their boundaries too.

    lmrep train --config=experiments/spanbert.py:size=base,data=files --workdir=runs/spanbert-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

This is the recipe of the released command: batches of 256 sequences of 512 tokens for 2.4 million steps; full sentences
of one document, without pairs; dynamic masks; Adam at 1e-4 after 10,000 steps of warm-up.

Cost: in the paper, 15 days on 32 V100s, on BERT's text. Expected after fine-tuning: base has SQuAD 1.1 F1 92.4 and
SQuAD 2.0 F1 83.6 (development sets), where BERT has 88.5 and 76.5; large has 94.6 and 88.7 (test), where BERT has 91.3
and 83.3.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/spanbert.py:size=tiny --workdir=runs/spanbert-tiny

Choices after the colon, which make each of the paper's ablations one flag:

    size       base large (both cased); tiny: base scaled down for two cores
    spans      boundary (geometric spans and the boundary objective), geometric (the spans alone), whole_word, subword
    format     doc_sentences (single segments, several in a sequence), segment_pair (two, with NSP), or any other
    optimizer  spanbert bert roberta lamb adafactor adamw, with the rate and warm-up of SpanBERT
    model, objective (instead of spans), data, mesh, init: as in bert.py

The paper says weight decay 0.1, the released command 0.01 on every parameter. This follows the command, and
--config.optimizer.weight_decay=0.1 the paper.
"""

from lmrep.experiment.compose import choose, compose

SPANS = {  # objective, its fields
    "boundary": ("span_boundary", {}),
    "geometric": ("span_boundary", {"boundary": False}),
    "whole_word": ("masked", {"whole_word": True}),
    "subword": ("masked", {}),
}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choose(argument, {"base": "spanbert_base", "large": "spanbert_large"}, spans=("boundary", tuple(SPANS)))
    fields = {}
    if chosen.objective == "span_boundary":
        chosen.objective, fields = SPANS[chosen.spans]
    config = compose(chosen)
    config.objective.update(fields)
    return config
