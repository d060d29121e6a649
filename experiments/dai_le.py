"""Sequence autoencoders and language models that start text classifiers (Dai and Le, 2015).

    lmrep train --config=experiments/dai_le.py:data=jsonl --workdir=runs/autoencoder \\
        --config.data.files='imdb/*.jsonl'

    lmrep train --config=experiments/tasks/dai_le.py:init=runs/autoencoder,data=aclImdb --workdir=runs/imdb

One LSTM layer reads a document to its end and then writes it again, or predicts each next word. Documents are cut to
400 tokens; of the 799 positions of an autoencoder, no gradient is passed from the 401st to the 400th. The classifier
starts from the table and the LSTM.

The numbers of recipe=paper are those that summaries of the paper report; this file was written without its text. Those
of recipe=released are of the code that its authors published later (adversarial_text in tensorflow/models). It drops
punctuation and unknown words, trains with 1,024 sampled words, normalizes the table of words and clips the gradient
without it, has dropout on the vectors of words alone, and multiplies the rate by 0.9999 at each step. Here punctuation
marks are words, unknown words are <unk>, the softmax is full, the table is not normalized, the whole gradient is
clipped, dropout acts on the output too, and the rate decays linearly. recipe=paper has this optimizer too. Summaries
report that the paper clips cells, at a value that they do not give: 3.0 in recipe=paper is ours, and ELMo's.
recipe=released clips none. The softmax of the code has a bias. Here it starts at the logarithm of the frequency of
each word: without that, Adam first teaches the state these frequencies, which saturates the cells of a small network,
and a classifier from it does not learn (docs/results/transfer.md).

    recipe    embedding  width  batch    steps
    paper           512   1024    128  500,000
    released        256   1024    256  100,000

Expected: no figure of pretraining is published; `experiments/tasks/dai_le.py` has those of classifiers.
Cost: the released code states two days for 100,000 steps on a Pascal Titan X.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/dai_le.py:size=tiny --workdir=runs/autoencoder-tiny

The documentation is small: the loss of training falls to 2.9, and the perplexity of held-out text from 2,049 to 103.

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.01, layers=1, width=256 and
embedding=128.

Choices after the colon:

    size       imdb; tiny: a narrow network for two cores
    objective  sequence_autoencoder, causal
    recipe     paper, released
    layers     1 (3 for the characters of DBpedia)
    characters no; yes: bytes in place of words
    unknown    keep: <unk>; remove: texts are without the words outside of the vocabulary, as in the released code
    format     documents, or any other
    optimizer  adam bert roberta lamb adafactor adamw, with the rate above
    model, data, mesh, init: as in bert.py

`lmrep predict` writes texts again, or continues them.
"""

from lmrep.experiment.pretraining import choices, finish, start

TOKENIZER_OF = "gpt2"


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, {"imdb": TOKENIZER_OF}, objective=("sequence_autoencoder", "causal"), format="documents",
                     optimizer="adam", recipe=("paper", ("paper", "released")), layers=(1, (1, 2, 3)),
                     characters=("no", ("no", "yes")), unknown=("keep", ("keep", "remove")))
    chosen.preset = chosen.model or "lstm"
    released = chosen.recipe == "released"
    config = start(chosen)
    config.name = f"{chosen.size}_{chosen.objective}"
    config.steps, config.batch_size, config.length = (100_000, 256, 400) if released else (500_000, 128, 400)
    if chosen.objective == "sequence_autoencoder" and chosen.preset == "lstm":
        config.objective.chunk = 400
    if chosen.optimizer == "adam":
        config.optimizer.update({"betas": (0.9, 0.999), "eps": 1e-8, "bias_correction": True, "weight_decay": 0.0,
                                 "clip": 1.0})
        config.optimizer.ema = 0.999 if released else 0.0
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 0.0})
    if chosen.preset == "lstm":
        config.objective.unigram_bias = True
        config.tokenizer.update({"name": "words_text", "lowercase": False, "vocab_size": 86_934,
                                 "unknown": chosen.unknown})
        config.model.update({"width": 1024, "embedding": 256 if released else 512, "tied": False, "dropout": 0.5,
                             "forget_bias": 0.0 if released else 1.0,
                             "clip_cell": 0.0 if released else 3.0})
    if chosen.characters == "yes":
        config.tokenizer.update({"name": "bytes", "vocab_size": 261, "unknown": "keep"})
    config = finish(config, chosen)
    if chosen.preset == "lstm":
        config.model.layers = chosen.layers
    if chosen.size == "tiny":
        config.optimizer.learning_rate = 1e-2
        if chosen.characters == "yes":
            config.tokenizer.vocab_size = 261
    return config
