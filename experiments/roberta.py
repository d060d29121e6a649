"""RoBERTa (Liu et al., 2019): masked language modelling on full sentences with dynamic masks, and its ablations.

    lmrep train --config=experiments/roberta.py:size=base,data=files --workdir=runs/roberta-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

The final recipe: batches of 8,192 sequences of 512 tokens for 500,000 steps, a byte-level BPE vocabulary of 50,265, and
rates of 6e-4 (base, 24,000 steps of warm-up) and 4e-4 (large, 30,000).

Cost: in the paper, large on 1,024 V100s, 100,000 steps in about a day, on 160 GB of text. Expected, on the development
sets after fine-tuning: MNLI 90.2 and SST-2 96.4 (large), 87.6 and 94.8 (base). On Books and Wikipedia alone (16 GB),
large has MNLI 89.0 after 100,000 steps.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/roberta.py:size=tiny --workdir=runs/roberta-tiny

Choices after the colon, which make each of the paper's ablations one flag:

    size       base large; tiny: base scaled down for two cores
    format     full_sentences (the final choice), doc_sentences, segment_pair and sentence_pair (with NSP), or any other
    masking    dynamic (a new mask each time), static (ten masks for each example, in turn)
    batch      final; or, as in the paper's table of batch sizes, 256 (a million steps at 1e-4), 2k (125,000 at 7e-4),
               8k (31,000 at 1e-3), which see about as many sequences each
    model, objective, data, optimizer (with the rate of the batch), mesh, init: as in bert.py

Pairs without NSP: --config.objective.sentence_pair=False. Examples of sentence_pair are short, so its length is 128 and
its batch eight times as large, which makes about as many tokens in a step. The warm-ups of the table are not published:
256 has BERT's 10,000 steps, the others 8 % of theirs, as in the recipe released for batches of 2,048.
With data=python_docs, batches have 256 sequences. `experiments/ablations/roberta_inputs.py` compares formats and masks
on two cores.
"""

from lmrep.experiment.compose import choose, compose, has_pair_label

BATCHES = {  # batch size, steps, rate, steps of warm-up
    "256": (256, 1_000_000, 1e-4, 10_000),
    "2k": (2048, 125_000, 7e-4, 10_000),
    "8k": (8192, 31_000, 1e-3, 2_480),
}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choose(argument, {"base": "roberta_base", "large": "roberta_large"},
                    masking=("dynamic", ("dynamic", "static")), batch=("final", ("final", *BATCHES)))
    recipe = chosen.recipe
    if chosen.batch != "final":
        batch_size, steps, rate, warmup = BATCHES[chosen.batch]
        recipe = recipe._replace(batch_size=batch_size, steps=steps, learning_rate=rate, warmup=warmup)
    if chosen.format == "sentence_pair":
        recipe = recipe._replace(batch_size=8 * recipe.batch_size, lengths=((1.0, 128),))
    config = compose(chosen, recipe)
    if chosen.objective == "masked":
        config.objective.masking = chosen.masking
    config.format.duplicates = 10 if chosen.masking == "static" or has_pair_label(chosen.format) else 1
    return config
