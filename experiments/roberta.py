"""RoBERTa (Liu et al., 2019): masked language modelling on full sentences, with new masks each time, and its ablations.

    lmrep train --config=experiments/roberta.py:size=base,data=files --workdir=runs/roberta-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

The final recipe: 8,192 rows of 512 tokens a step for 500,000 steps, byte-level BPE of 50,265 pieces, rates of 6e-4
(base, 24,000 steps of warm-up) and 4e-4 (large, 30,000). The paper trained large on 1,024 V100s, 100,000 steps in about
a day, on 160 GB of text, and reports, after fine-tuning on the development sets, MNLI 90.2 and SST-2 96.4; base has
87.6 and 94.8. On Books and Wikipedia alone (16 GB), large has MNLI 89.0 after 100,000 steps.

Every part can be chosen after the colon, which makes each of the paper's ablations one flag:

    size       base large
    format     full_sentences (the final choice), doc_sentences, segment_pair and sentence_pair (with NSP), or any other
    masking    dynamic (a new mask each time), static (ten of each example, walked in turn)
    batch      final; or, as in the paper's table of batches, 256 (a million steps at 1e-4), 2k (125,000 at 7e-4), 8k
               (31,000 at 1e-3): about as many rows each
    data       python_docs, files, jsonl or parquet (give --config.data.files) or tfds (give --config.data.tfds_name)
    init       a workdir, or a directory in Hugging Face's layout: starts from its parameters
    optimizer  roberta bert lamb adafactor adamw, with the rate of the batch
    mesh       data, fsdp, or sizes data x fsdp x tensor as 2x2x2

Pairs without the question about them: --config.objective.sentence_pair=False. Rows of sentence_pair are short: there
the length is 128 and the batch eight times as large, which gives a step about as many tokens. The table's warm-ups are
not published: 256 has BERT's 10,000 steps, the others 8 % of theirs, as in the recipe released for 2,048 rows.
`experiments/ablations/roberta_inputs.py` compares formats and masking in little.
"""

from lmrep.config.loading import parts
from lmrep.data.formats import FORMATS
from lmrep.experiment.config import default_config
from lmrep.interop.init_from import adopt_checkpoint
from lmrep.objectives.masked import RULES
from lmrep.training.optimizers import RECIPES

CORPORA = {"python_docs": "python_docs", "files": "text_files", "jsonl": "jsonl", "parquet": "parquet", "tfds": "tfds"}
BATCHES = {  # rows, steps, rate, steps of warm-up
    ("base", "final"): (8192, 500_000, 6e-4, 24_000),
    ("large", "final"): (8192, 500_000, 4e-4, 30_000),
    "256": (256, 1_000_000, 1e-4, 10_000),
    "2k": (2048, 125_000, 7e-4, 10_000),
    "8k": (8192, 31_000, 1e-3, 2_480),
}
PAIRS = ("segment_pair", "sentence_pair")


def get_config(argument=""):
    """The config; `argument` chooses parts, as above."""
    chosen = parts(argument, size=("base", ("base", "large")), format=("full_sentences", tuple(FORMATS)),
                   masking=("dynamic", ("dynamic", "static")), batch=("final", ("final", "256", "2k", "8k")),
                   data=("python_docs", tuple(CORPORA)), optimizer=("roberta", tuple(RECIPES)), mesh="data", init="")
    config = default_config(f"roberta_{chosen.size}", "masked", chosen.format, chosen.optimizer, chosen.mesh)
    config.name = f"roberta_{chosen.size}"
    rows, steps, rate, warmup = BATCHES.get(chosen.batch) or BATCHES[chosen.size, chosen.batch]
    config.steps, config.batch_size, config.length = steps, rows, 512
    if chosen.format == "sentence_pair":
        config.batch_size, config.length = 8 * rows, 128
    config.data.corpus = CORPORA[chosen.data]
    config.tokenizer.update({"name": "byte_level_bpe", "vocab_size": config.model.vocab, "lowercase": False})
    config.objective.update(RULES["roberta"])
    config.objective.masking = chosen.masking
    config.objective.sentence_pair = chosen.format in PAIRS
    config.format.duplicates = 10 if chosen.masking == "static" or chosen.format in PAIRS else 1
    config.optimizer.learning_rate = rate
    config.optimizer.schedule.update({"warmup": warmup, "warmup_fraction": 0.0})
    config.checkpoint.every = config.evaluation.every = max(1000, steps // 100)
    if chosen.init:
        adopt_checkpoint(config, chosen.init)
    config.samples = ("The <mask> of a list is an integer.",)
    return config
