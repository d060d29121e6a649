"""RoBERTa (Liu et al., 2019): masked language modelling on full sentences with dynamic masks, and its ablations.

    lmrep train --config=experiments/roberta.py:size=base,data=files --workdir=runs/roberta-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

The final recipe: batches of 8,192 sequences of 512 tokens for 500,000 steps, a byte-level BPE vocabulary of 50,265, and
rates of 6e-4 (base, 24,000 steps of warm-up) and 4e-4 (large, 30,000), which then fall linearly to 0; Adam with betas
of 0.9 and 0.98, weight decay 0.01 on all parameters, and no clipping.

The networks, in fields of config.model, with all parameters of pretraining:

    size   layers  width  heads   mlp  max_length   vocab  dropout   parameters
    base       12    768     12  3072         512  50,265      0.1  124,696,665
    large      24   1024     16  4096         512  50,265      0.1  355,411,033

Cost: in the paper, large on 1,024 V100s, 100,000 steps in about a day, on 160 GB of text. Expected, on the development
sets after fine-tuning: MNLI 90.2 and SST-2 96.4 (large), 87.6 and 94.8 (base). On Books and Wikipedia alone (16 GB),
large has MNLI 89.0 after 100,000 steps.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/roberta.py:size=tiny --workdir=runs/roberta-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.002, layers=2, width=128, heads=4
and mlp=512.

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

from lmrep.experiment.fine_tuning import Recipe, epochs, steps
from lmrep.experiment.pretraining import Paper, choices, finish, has_pair_label, start

SIZES = {"base": "roberta_base", "large": "roberta_large"}
PAPERS = (Paper("Liu et al., 2019", "160 GB of English text"),)

FINE_TUNING = {"roberta": Recipe({  # fairseq's configs
    "": epochs(10, 32, 1e-5, betas=(0.9, 0.98), weight_decay=0.1, clip=0.0, bias_correction=True, decay_skip=(),
               optimizer__schedule__warmup_fraction=0.06),
    "mnli": steps(123_873, 32, 1e-5, warmup=7432),
    "qnli": steps(33_112, 32, 1e-5, warmup=1986),
    "qqp": steps(113_272, 32, 1e-5, warmup=28_318),
    "rte": steps(2036, 16, 2e-5, warmup=122),
    "sst2": steps(20_935, 32, 1e-5, warmup=1256),
    "mrpc": steps(2296, 16, 1e-5, warmup=137),
    "cola": steps(5336, 16, 1e-5, warmup=320),
    "stsb": steps(3598, 16, 2e-5, warmup=214),
}, grid={"batch_size": (16, 32), "optimizer.learning_rate": (1e-5, 2e-5, 3e-5)})}  # the paper's


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="masked", format="full_sentences", optimizer="roberta",
                     masking=("dynamic", ("dynamic", "static")), batch=("final", ("final", "256", "2k", "8k")))
    config = start(chosen)
    final = (8192, 500_000, 4e-4, 30_000) if chosen.published == "large" else (8192, 500_000, 6e-4, 24_000)
    config.batch_size, config.steps, config.optimizer.learning_rate, warmup = {
        "final": final,
        "256": (256, 1_000_000, 1e-4, 10_000),
        "2k": (2048, 125_000, 7e-4, 10_000),
        "8k": (8192, 31_000, 1e-3, 2_480),
    }[chosen.batch]
    config.length = 512
    if chosen.format == "sentence_pair":  # as many tokens in a step
        config.batch_size, config.length = 8 * config.batch_size, 128
    config.format.duplicates = 10 if chosen.masking == "static" or has_pair_label(chosen.format) else 1
    if chosen.objective == "masked":
        config.objective.update({"rate": 0.15, "mask": 0.8, "random": 0.1, "keep": 0.1, "masking": chosen.masking})
        if chosen.family == "roberta":  # another paper's network is masked as BERT is
            config.objective.update({"count": "floor", "mask_specials": True, "random_specials": False})
    if "sentence_pair" in config.objective:
        config.objective.sentence_pair = has_pair_label(chosen.format)
    if chosen.optimizer == "roberta":  # Adam; all parameters have weight decay
        config.optimizer.update({"betas": (0.9, 0.98), "eps": 1e-6, "bias_correction": True, "weight_decay": 0.01,
                                 "clip": 0.0})
        config.optimizer.schedule.update({"name": "linear", "decay_from": "warmup"})
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": warmup / config.steps})
    return finish(config, chosen)
