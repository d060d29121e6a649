"""ELMo (Peters et al., 2018): language models in both directions, of LSTM layers over words that are read by their
characters.

    lmrep train --config=experiments/elmo.py:size=original,data=files --workdir=runs/elmo \\
        --config.data.files='/data/1-billion-words/*.txt' --config.data.documents=line

Text is split at white space, cased: it should be tokenized, or split by rules (tokenizer=elmo_text). 2,048 filters over
the characters of a word, two highway layers (one in the smaller sizes) and a projection give its vector, which both
directions read. Each direction has two LSTM layers with projections, the second with a residual connection, and
predicts the next word of its stream of sentences by a softmax over the 793,471 most frequent words, of which training
samples 8,192. Examples have 20 words and continue the last batch's. Adagrad at 0.2 on batches of 384 (128 on
each of 3 GPUs), ten passes over the text: this file counts the steps of the 1 Billion Word Benchmark, 768,648,884
words; set --config.steps for other text.

The networks, in fields of config.model, with all parameters of pretraining:

    size      layers  cell  width  highways    vocab  dropout   parameters
    original       2  4096    512         2  793,471      0.1  500,651,487
    medium         2  2048    256         1  793,471      0.1  231,949,791
    small          2  1024    128         1  793,471      0.1  115,951,071

Cost: in the paper, two weeks on three GTX 1080s. Expected: a perplexity per word of 39.7, the mean of both directions
(the test set of the 1 Billion Word Benchmark); with the vectors, F1 of 92.22 on CoNLL-2003
(`experiments/tasks/conll2003_features.py`). Neither has been run with this file.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/elmo.py:size=tiny,tokenizer=elmo_text --workdir=runs/elmo-tiny

size=tiny sets steps=1000, batch_size=64, length=20, vocab_size=8000, learning_rate=0.2, width=64 and cell=256.

Choices after the colon; each ablation is one flag:

    size       original (cell 4096, output 512) medium (2048, 256) small (1024, 128); tiny: for two cores
    reads      characters, or words: a vector for each word of the vocabulary
    directions both, or forward: one language model
    residual   yes, or no
    layers     2
    tokenizer  elmo: words between white space; elmo_text: of text that is not tokenized, as the Penn Treebank has them
    words      of the vocabulary; 0: 793,471, and 8,000 where size=tiny
    order      independent: each direction shuffles the sentences by itself, as released; or same
    optimizer  elmo (Adagrad), or bert roberta lamb adafactor adamw at a rate of 1e-3, which is ours
    data, mesh, init: as in bert.py; model: a preset of another size

Without `tokenizer`, the tiny run's perplexities of held-out text fall from 7,988 to 117 forward and 122 backward.

Logs show the sampled losses of training, which are smaller than the full softmax's of evaluation. `lmrep evaluate`
gives the perplexities per word of both directions.
"""

from lmrep.experiment.fine_tuning import Recipe, epochs
from lmrep.experiment.pretraining import Paper, choices, finish, start

SIZES = {"original": "elmo_original", "medium": "elmo_medium", "small": "elmo_small"}
PAPERS = (Paper("Peters et al., 2018", "1 Billion Word Benchmark, 768,648,884 words"),)

# What is trained above frozen vectors, from random values: Adam as in Peters et al., 2017, whose gradients are clipped
# at 5.
FINE_TUNING = {"features": Recipe({
    "": epochs(20, 32, 1e-3, weight_decay=0.0, clip=5.0, bias_correction=True, eps=1e-8)})}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective=("bidirectional",), format=("sentence_stream",), optimizer="elmo",
                     reads=("characters", ("characters", "words")), directions=("both", ("both", "forward")),
                     residual=("yes", ("yes", "no")), layers=2, words=0, tokenizer=("elmo", ("elmo", "elmo_text")),
                     order=("independent", ("independent", "same")))
    config = start(chosen)
    config.steps, config.batch_size, config.length = 1_000_844, 384, 20  # ten passes; three GPUs with 128 examples each
    config.objective.negatives = 8192
    config.format.order = chosen.order
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 0.0})
    if chosen.optimizer == "elmo":  # of a loss that is multiplied by the 20 positions of an example
        config.optimizer.update({"name": "adagrad", "learning_rate": 0.2, "accumulator": 1.0, "gradient_scale": 20.0,
                                 "clip": 10.0, "weight_decay": 0.0})
        config.optimizer.schedule.name = "constant"
    config = finish(config, chosen)
    config.model.update({"reads": chosen.reads, "directions": chosen.directions, "layers": chosen.layers,
                         "residual": chosen.residual == "yes"})
    config.tokenizer.name = chosen.tokenizer
    if chosen.size == "tiny":
        config.update({"length": 20, "batch_size": 64, "steps": 1000})
        config.tokenizer.vocab_size = 8000
        config.objective.negatives = 1024
        if chosen.optimizer == "elmo":
            config.optimizer.learning_rate = 0.2
            config.optimizer.schedule.warmup_fraction = 0.0
        config.checkpoint.every = config.evaluation.every = 250
    if chosen.optimizer != "elmo":
        config.optimizer.learning_rate = 1e-3
    if chosen.words:
        config.tokenizer.vocab_size = chosen.words
    return config
