"""Texts from texts, by an encoder-decoder: translation, summaries, or any task as text to text (Raffel et al., 2019).

    lmrep train --config=experiments/tasks/generate.py:size=tiny --workdir=runs/sst2-text \\
        --config.data.train=SST-2/train.tsv --config.data.validation=SST-2/dev.tsv \\
        --config.data.columns="{'text': 'sentence', 'target': 'label'}" \\
        --config.data.label_map="{'0': 'negative', '1': 'positive'}" \\
        --config.objective.template='sst2 sentence: {text}' --config.objective.metrics="('accuracy',)"

`init=runs/t5`, in place of `size=tiny`, starts from a pretrained run, and `model=t5_small` (`transformer_base`, `cove`)
is a published network with random parameters. The encoder reads `objective.template`, and `objective.target` is
generated: texts with the fields of an example in braces, such as `question: {question} context: {context}` and
`{answers}`. Without them an example has the fields text and target. Numbers are rounded by `objective.round_to` (STS-B
as T5: 0.2). Every other config file of this folder takes `as_text=true`, which sets templates and metrics for its task:

    lmrep train --config=experiments/tasks/squad1.py:as_text=true,size=tiny,data=squad --workdir=runs/squad-text

Published for T5 are 2^18 steps of 128 examples, a constant rate of 1e-3, Adafactor (all three: `recipe=t5`) and greedy
search; other settings are as in `classify.py`.

Cost: that of `classify.py`, and of the search at each validation. Expected: GLUE's average of the paper's baseline, of
base size, is 83.3 (its table 5).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_task


def get_config(argument=""):
    return compose_task(argument, "text_to_text", base="encoder_decoder")
