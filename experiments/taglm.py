"""TagLM (Peters et al., 2017): names in CoNLL-2003, tagged with the embeddings of language models, which stay frozen.

    lmrep train --config=experiments/elmo.py:size=original,layers=1,data=files --workdir=runs/lm \\
        --config.data.files='/data/1-billion-words/*.txt' --config.data.documents=line \\
        --config.model.shared=false --config.objective.shared=false
    lmrep train --config=experiments/taglm.py:features=runs/lm,vectors=senna.txt,data=conll2003 --workdir=runs/taglm \\
        --config.cache_features=true

The last layers' outputs of a forward and a backward language model, which share no parameters, are concatenated to the
output of the first of two bidirectional LSTM layers of width 300; word vectors (GloVe's text format) and a convolution
over the characters of each word are the input. Tags are converted to BIOES, and a CRF decodes. `data` is the folder of
the published files. In the paper these layers are GRUs, characters are read by a GRU, too, and digits are replaced
by 0.

Cost: 14,041 sentences an epoch; with `cache_features` the language model runs over them once. Expected: in the paper F1
of 91.93 on eng.testb (mean of 10 runs), 90.87 without language models, 88.17 without LSTM layers of the task; a
backward language model beside the forward one adds about 0.2, a large forward one in place of a small one about 0.3.
This file has not been run on that data.

On two cores, in minutes, on any files with a word and its tag on each line:

    lmrep train --config=experiments/elmo.py:size=tiny,tokenizer=elmo_text --workdir=runs/elmo-tiny
    lmrep train --config=experiments/taglm.py:size=tiny,features=runs/elmo-tiny --workdir=runs/taglm-tiny \\
        --config.data.train=train.conll --config.data.validation=dev.conll --config.cache_features=true

`task` is conll2003 (the default), conll2000 (chunks, the paper's other task), wnut17, or ud_pos, whose tags of parts of
speech stay as they are.

size=tiny sets epochs=5, batch_size=32, length=128, vocab_size=4096, learning_rate=0.001 and, for the LSTM layers,
width=64.

The ablations, each by flags or by another language model:

    without language models            leave out `features`
    embeddings at the input            --config.objective.features.placement=input
    after the second layer             --config.objective.features.placement=output
    no LSTM layers of the task         :network=crf with --config.objective.features.placement=input
    forward language model alone       features: a run of experiments/elmo.py:directions=forward
    small language models              features: a run of experiments/elmo.py:size=small,layers=1
    shared vectors of words            features: a run without --config.model.shared=false
    tags as they are in the files      --config.objective.scheme=auto --config.objective.repair=false
"""

from lmrep.config import loading
from lmrep.experiment.fine_tuning import compose_known

SPANS = ("conll2003", "conll2000", "wnut17")


def get_config(argument=""):
    """The config; `argument` makes the choices of `lmrep.experiment.fine_tuning.compose_task`, and `task`."""
    tasks = [part for part in argument.split(",") if part.startswith("task=")]
    task = loading.parse_argument(",".join(tasks), task=(SPANS[0], (*SPANS, "ud_pos"))).task
    argument = ",".join(part for part in argument.split(",") if part not in tasks)
    tiny = "size=tiny" in argument.split(",")
    if tiny and "model=" not in argument:
        argument += ",model=none"
    config = compose_known(argument, task, network="bilstm_crf", model="none")
    config.objective.bilstm.update({"width": 64 if tiny else 300, "layers": 2, "dropout": 0.25})
    config.objective.characters.filters = 30
    if task in SPANS:
        config.objective.update({"scheme": "BIOES", "repair": True})
    if config.objective.features.layers:
        config.objective.features.update({"layers": "last", "placement": "between", "dropout": 0.25})
    if config.model.name == "none":  # Adam for what is trained above frozen vectors
        config.batch_size = 32
        config.optimizer.update({"learning_rate": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.0, "clip": 5.0})
    if tiny:
        config.epochs = 5.0
    return config
