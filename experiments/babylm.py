"""The BabyLM challenge (Charpentier et al., 2025): pretraining on 10 or 100 million words, in at most 10 epochs.

    lmrep train --config=experiments/babylm.py:track=strict_small,system=gpt_bert --workdir=runs/babylm \\
        --config.data.files=/data/babylm/train_10M

The folder has the track's six files: bnc_spoken.train, childes.train, gutenberg.train, open_subtitles.train,
simple_wiki.train and switchboard.train. They are cleaned as LTG-BERT's scripts do it (`lmrep.data.corpora.babylm`), and
1 % of the text is held out for validation and testing.

    track         words a epoch  layers  width  heads   vocab     steps  sequences  checkpoints, in millions of words
    strict_small     10 million      12    384      6   8,192     9,000        128  1 to 10, 20 to 100
    strict          100 million      12    768     12  16,384    21,000        512  also 200 to 1,000

Network and vocabulary are those of GPT-BERT for 10 and 100 million words (Charpentier and Samuel, 2024). Objective,
format, optimizer, schedule, dropout and the inner width of each system are those of its page:

    system    page        objective                                        inner width
    gpt_bert  gptbert.py  masked next-token prediction beside causal       1280, 2560; gated
    elc_bert  gptbert.py  masked; each layer reads all layers below        1024, 2048; gated
    bert      bert.py     masked, ten static masks, no sentence pairs      1536, 3072
    gpt2      gpt2.py     causal                                           1536, 3072

Checkpoints by words have the names of the challenge when they are exported (docs/use/babylm.md): `lmrep convert
--checkpoints=all`. The library has no class for the networks of gpt_bert and elc_bert.

What is ours, and was not tuned:

- The steps. A step has 16,384 tokens (strict: 65,536), in sequences of 128, later of 256 or 512 (gpt2: always 512). The
  released recipe of GPT-BERT reads about as many steps of 4 million tokens, which is thousands of epochs of 10 million
  words. The steps are 10 epochs where a word has 1.5 tokens (strict: 1.4), and fewer epochs where it has more. A run of
  more than 10 epochs is refused with the largest number of steps; `lmrep inspect` has the epochs. With --config.steps,
  change --config.objective.rate_steps of gpt_bert too.
- elc_bert is ELC-BERT's sums of layers (Charpentier and Samuel, 2023, layer_weights="convex") in the network and recipe
  of gptbert.py, with 15 % of the tokens masked.
- The rates: LAMB's by the square root of the batch, 8.8e-4 (strict: 1.25e-3); the others are of their pages.

Cost: not measured. Expected, in percent on BLiMP, the challenge's baselines of 2025: GPT-BERT with 15 of 16 examples
masked 70.4 on strict_small by masks, and 65.2 from left to right (strict: 74.6); GPT-2, which has 12 layers of width
768 there on both tracks, 67.3 and 75.1. Their recipes differ from these.

On two cores, in minutes, on files with these names, however small:

    lmrep train --config=experiments/babylm.py:size=tiny --workdir=runs/babylm-tiny --config.data.files=texts/babylm

size=tiny sets steps=400, batch_size=32, length=32 (64 at the end), vocab_size=2048, learning_rate=0.01, layers=2,
width=128, heads=4 and mlp=512. It has no limit of epochs, and saves checkpoints after 1,000, 2,000, 5,000 and 10,000
words.

Choices after the colon:

    track      strict_small strict
    system     gpt_bert elc_bert bert gpt2
    size       track: the network of the track; tiny: it scaled down for two cores
    mesh: as in bert.py
"""

from pathlib import Path

from lmrep.config import loading

MILLION = 10**6
EPOCHS = 10  # the challenge's limit
TRACKS = {  # size of gptbert.py, width, heads, vocabulary, steps, sequences of 128 tokens in a step
    "strict_small": ("small", 384, 6, 8_192, 9_000, 128),
    "strict": ("base", 768, 12, 16_384, 21_000, 512)}
SYSTEMS = {"gpt_bert": "gptbert.py:", "elc_bert": "gptbert.py:objective=masked,rate=fixed,",
           "bert": "bert.py:format=packed,", "gpt2": "gpt2.py:"}
SIZE = {"bert": "base_cased", "gpt2": "small"}  # of the page to start from; of gptbert.py, the track's
WORDS = (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100))  # millions


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = loading.parse_argument(
        argument, track=("strict_small", tuple(TRACKS)), system=("gpt_bert", tuple(SYSTEMS)),
        size=("track", ("track", "tiny")), mesh="data")
    size, width, heads, vocabulary, steps, sequences = TRACKS[chosen.track]
    page, _, choices = SYSTEMS[chosen.system].partition(":")
    published = "tiny" if chosen.size == "tiny" else SIZE.get(chosen.system, size)
    config = loading.load(Path(__file__).with_name(page), f"{choices}size={published},data=files,mesh={chosen.mesh}")
    config.name = f"babylm_{chosen.track}_{chosen.system}"
    config.data.update({"corpus": "babylm", "validation": 0.005, "test": 0.005})
    if chosen.system == "elc_bert":
        config.model.layer_weights = "convex"
        config.optimizer.decay_skip += ("*layer_weights/*",)
    if chosen.size == "tiny":
        config.checkpoint.words = (1_000, 2_000, 5_000, 10_000)
        return config
    config.data.max_epochs = float(EPOCHS)
    most = 100 if chosen.track == "strict_small" else 1_000
    config.checkpoint.words = tuple(words * MILLION for words in WORDS if words <= most)
    config.tokenizer.vocab_size, config.steps = vocabulary, steps
    config.checkpoint.every = config.evaluation.every = steps // 10
    if chosen.system == "gpt2":
        config.length = 512
    config.batch_size = sequences * 128 // config.length
    config.stages = tuple({**stage, "batch_size": sequences * 128 // (stage["length"] or config.length)}
                          for stage in config.stages)
    if page == "gptbert.py":
        config.optimizer.learning_rate *= (sequences / 32_768) ** 0.5
        if chosen.system == "gpt_bert":
            config.objective.rate_steps = steps
        else:
            config.model.mlp = 1_024 if size == "small" else 2_048
    else:
        config.model.update({"width": width, "heads": heads, "mlp": 4 * width, "max_length": 512, "vocab": 0})
    return config
