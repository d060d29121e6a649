"""SpanBERT (Joshi et al., 2019): spans of words masked together, and predicted from the words around them too.

    lmrep train --config=experiments/spanbert.py:size=base,data=files --workdir=runs/spanbert-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

The recipe of the released command: 256 rows of 512 tokens a step for 2.4 million steps; whole sentences of one
document, without pairs; new masks each time; Adam at 1e-4, warmed up over 10,000 steps. The paper trained in 15 days on
32 V100s, on BERT's text. After fine-tuning, base has SQuAD 1.1 F1 92.4 and SQuAD 2.0 F1 83.6 (development sets), where
BERT-base has 88.5 and 76.5; large has 94.6 and 88.7 (test), where BERT-large has 91.3 and 83.3.

In little, for a try of minutes on two cores, on the documentation that comes with Python:

    lmrep train --config=experiments/spanbert.py:size=tiny --workdir=runs/spanbert-tiny

Every part can be chosen after the colon, which makes each of the paper's ablations one flag:

    size       base large (both cased); tiny (base's, of two layers, for a try on two cores)
    spans      boundary (geometric spans and the boundary objective), geometric (the spans alone), whole_word, subword
    format     doc_sentences (single texts, several of which share a row), segment_pair (two, with NSP), or any other
    data       python_docs, files, jsonl or parquet (give --config.data.files) or tfds (give --config.data.tfds_name)
    init       a workdir, or a directory in Hugging Face's layout: starts from its parameters
    optimizer  spanbert bert roberta lamb adafactor adamw, with the rate and warm-up of SpanBERT
    mesh       data, fsdp, or sizes data x fsdp x tensor as 2x2x2

The paper says weight decay 0.1, the released command 0.01 of every parameter: this follows the command;
--config.optimizer.weight_decay=0.1 the paper.
"""

from lmrep.config.loading import parts
from lmrep.data.formats import FORMATS
from lmrep.experiment.config import default_config, scale_down
from lmrep.interop.init_from import adopt_checkpoint
from lmrep.training.optimizers import RECIPES

CORPORA = {"python_docs": "python_docs", "files": "text_files", "jsonl": "jsonl", "parquet": "parquet", "tfds": "tfds"}
SPANS = {  # objective, its fields
    "boundary": ("span_boundary", {"max_targets": 15}),
    "geometric": ("span_boundary", {"boundary": False}),
    "whole_word": ("masked", {"whole_word": True}),
    "subword": ("masked", {}),
}


def get_config(argument=""):
    """The config; `argument` chooses parts, as above."""
    chosen = parts(argument, size=("base", ("base", "large", "tiny")), spans=("boundary", tuple(SPANS)),
                   format=("doc_sentences", tuple(FORMATS)), data=("python_docs", tuple(CORPORA)),
                   optimizer=("spanbert", ("spanbert", *RECIPES)), mesh="data", init="")
    objective, fields = SPANS[chosen.spans]
    recipe = "adamw" if chosen.optimizer == "spanbert" else chosen.optimizer
    size = "base" if chosen.size == "tiny" else chosen.size
    config = default_config(f"spanbert_{size}", objective, chosen.format, recipe, chosen.mesh)
    config.name = f"spanbert_{chosen.size}"
    config.steps, config.batch_size, config.length = 2_400_000, 256, 512
    config.data.corpus = CORPORA[chosen.data]
    config.tokenizer.update({"vocab_size": config.model.vocab, "lowercase": False})
    config.objective.update(fields)
    config.objective.sentence_pair = chosen.format in ("segment_pair", "sentence_pair")
    if chosen.optimizer == "spanbert":
        config.optimizer.decay_skip = ()
    config.optimizer.learning_rate = 1e-4
    config.optimizer.schedule.update({"warmup": 10_000, "warmup_fraction": 0.0})
    config.checkpoint.every = config.evaluation.every = 10_000
    if chosen.size == "tiny":
        scale_down(config)
    if chosen.init:
        adopt_checkpoint(config, chosen.init)
    config.samples = ("The [MASK] of a list is an integer.",)
    return config
