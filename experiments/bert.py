"""BERT (Devlin et al., 2019): masked language modelling and next-sentence prediction on pairs of segments.

    lmrep train --config=experiments/bert.py:size=base,data=files --workdir=runs/bert-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

This is the recipe of the released code: batches of 256 for a million steps, 90 % of them on 128 tokens and the rest on
512; ten static masks for each example; Adam without bias correction at 1e-4 after 10,000 steps of warm-up.

Cost: in the paper, four days on 4 Cloud TPUs (base) or 16 (large). Expected: GLUE 79.6 (base) and 82.1 (large), test
averages after fine-tuning.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/bert.py:size=tiny --workdir=runs/bert-tiny

Choices after the colon:

    size       base bert_tiny mini small medium base_cased large large_cased; tiny: scaled down for two cores
    model      any preset of lmrep.models.PRESETS or network of MODELS instead, such as roberta_base
    objective  masked, causal ("no NSP & LTR"), replaced_token, span_boundary
    format     segment_pair or sentence_pair (with next-sentence prediction), packed or any other (without)
    data       python_docs, files, jsonl or parquet (set --config.data.files), tfds (set --config.data.tfds_name)
    optimizer  bert roberta lamb adafactor adamw; lamb and adafactor with the rates of their papers, the others 1e-4
    mesh       data, fsdp, or sizes data x fsdp x tensor such as 2x2x2; 2x1x1x4: data x fsdp x tensor x sequence,
               which shards long sequences
    init       a workdir or a Hugging Face directory: starts from its parameters, network and tokenizer
"""

from lmrep.experiment.compose import choose, compose

SIZES = {size: f"bert_{size}" for size in ("base", "mini", "small", "medium", "base_cased", "large", "large_cased")}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choose(argument, SIZES | {"bert_tiny": "bert_tiny"})
    config = compose(chosen, own_rates=True)
    return config
