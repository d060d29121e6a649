"""SpanBERT (Joshi et al., 2019): masked spans, predicted from the words at their boundaries too.

    lmrep train --config=experiments/spanbert.py:size=base,data=files --workdir=runs/spanbert-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

This is the recipe of the released command: batches of 256 sequences of 512 tokens for 2.4 million steps; full sentences
of one document, without pairs; dynamic masks; Adam at 1e-4 after 10,000 steps of warm-up.

The networks, in fields of config.model, with all parameters of pretraining:

    size   layers  width  heads   mlp  max_length   vocab  dropout   parameters
    base       12    768     12  3072         512  28,996      0.1  110,301,480
    large      24   1024     16  4096         512  28,996      0.1  336,999,976

Cost: in the paper, 15 days on 32 V100s, on BERT's text. Expected after fine-tuning: base has SQuAD 1.1 F1 92.4 and
SQuAD 2.0 F1 83.6 (development sets), where BERT has 88.5 and 76.5; large has 94.6 and 88.7 (test), where BERT has 91.3
and 83.3.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/spanbert.py:size=tiny --workdir=runs/spanbert-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.002, layers=2, width=128, heads=4
and mlp=512.

Choices after the colon, which make each of the paper's ablations one flag:

    size       base large (both cased); tiny: base scaled down for two cores
    spans      boundary (geometric spans and the boundary objective), geometric (the spans alone), whole_word, subword
    format     doc_sentences (single segments, several in a sequence), segment_pair (two, with NSP), or any other
    optimizer  spanbert bert roberta lamb adafactor adamw, with the rate and warm-up of SpanBERT
    model, objective (instead of spans), data, mesh, init: as in bert.py

The paper says weight decay 0.1, the released command 0.01 on every parameter. This follows the command, and
--config.optimizer.weight_decay=0.1 the paper.
"""

from lmrep.experiment.fine_tuning import Recipe, epochs
from lmrep.experiment.pretraining import Paper, choices, finish, has_pair_label, start

SIZES = {"base": "spanbert_base", "large": "spanbert_large"}
PAPERS = (Paper("Joshi et al., 2019", "BooksCorpus and English Wikipedia, 3.3 billion words"),)

FINE_TUNING = {"spanbert": Recipe({  # the README of facebookresearch/SpanBERT
    "": epochs(10, 32, 2e-5, bias_correction=True),
    "squad1": epochs(4, 32, 2e-5, length=512),
    "squad2": epochs(4, 32, 2e-5, length=512),
})}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="span_boundary", format="doc_sentences", optimizer="spanbert",
                     spans=("boundary", ("boundary", "geometric", "whole_word", "subword")))
    is_ours = chosen.objective == "span_boundary"
    if is_ours and chosen.spans in ("whole_word", "subword"):
        chosen.objective = "masked"
    config = start(chosen)
    config.steps, config.batch_size, config.length = 2_400_000, 256, 512
    if chosen.objective == "span_boundary":
        config.objective.update({
            "rate": 0.15, "count": "ceil", "p": 0.2, "max_span_length": 10, "mask": 0.8, "keep": 0.1, "random": 0.1,
            "replace": "span", "boundary": chosen.spans == "boundary", "weight": 1.0, "max_targets": 15,
            "position_width": 200})
    elif is_ours:
        config.objective.whole_word = chosen.spans == "whole_word"
    if "sentence_pair" in config.objective:
        config.objective.sentence_pair = has_pair_label(chosen.format)
    if chosen.optimizer == "spanbert":  # Adam
        config.optimizer.update({"betas": (0.9, 0.999), "eps": 1e-8, "bias_correction": True, "weight_decay": 0.01,
                                 "decay_skip": (), "clip": 1.0})
        config.optimizer.schedule.update({"name": "linear", "decay_from": "warmup"})
    config.optimizer.learning_rate = 1e-4
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 10_000 / 2_400_000})
    return finish(config, chosen)
