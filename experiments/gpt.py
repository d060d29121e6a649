"""GPT (Radford et al., 2018): a left-to-right language model.

    lmrep train --config=experiments/gpt.py:data=files --workdir=runs/gpt \\
        --config.data.files='/data/books/*.txt' --config.data.documents=file

The paper's recipe: batches of 64 sequences of 512 tokens, 100 epochs of BooksCorpus, which are about three million
steps; Adam at 2.5e-4 with 2,000 steps of warm-up and a cosine down to 0; weight decay 0.01.

Cost: in the paper, a month on 8 P600s. Expected: perplexity 18.4 per token; GLUE 75.2 after fine-tuning (test, by its
average in the BERT paper).

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/gpt.py:size=tiny --workdir=runs/gpt-tiny

Choices after the colon:

    size       base; tiny: scaled down for two cores
    across     no; yes: a document sees the ones before it in its sequence
    format     stream (sequences split from one long text), packed, or any other
    optimizer  gpt bert roberta lamb adafactor adamw, with the rate and warm-up of GPT
    model, objective, data, mesh, init: as in bert.py

A vocabulary is trained by BPE on lower-cased text, as in the paper. GPT's own is read from a published directory
(`init=`, or --config.tokenizer.vocab_file); for cased text, set --config.tokenizer.name=byte_level_bpe.
`lmrep predict` continues texts, and `lmrep evaluate --stride=256` computes perplexities.
"""

from lmrep.experiment.compose import choose, compose


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choose(argument, {"base": "gpt"}, across=("no", ("no", "yes")))
    config = compose(chosen)
    if chosen.objective == "causal":
        config.objective.across = chosen.across == "yes"
    if chosen.format == "stream":
        config.format.isolate = chosen.across == "no"
    return config
