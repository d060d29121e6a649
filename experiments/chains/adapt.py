"""Adaptation to a domain before fine-tuning (Gururangan et al., 2020): a chain of runs in one command.

    lmrep train --config=experiments/chains/adapt.py:init=runs/bert,task=classify --workdir=runs/reviews \\
        --config.adapt.data.files='/data/reviews/*.txt' \\
        --config.task.data.train=/data/train.csv --config.task.data.validation=/data/validation.csv

The run `adapt` continues the pretraining of a checkpoint on texts of the domain, and `task` is fine-tuned from it, in
runs/reviews/adapt and runs/reviews/task. Without init=, a run `pretrain` comes first. --config.NAME.FIELD sets a field
of one run. The configs of all runs are checked before the first one starts; the same command continues where it
was stopped. `lmrep evaluate`, `predict` and `report` take the workdir of one run.

Any checkpoint of an encoder can be adapted; the paper adapts RoBERTa-base. `adapt` has the numbers
of bert.py, in one stage on packed texts of 128 tokens; `task` has those of its config file.

Cost: that of bert.py for the steps of `adapt`, and of the task. Expected: the paper reports gains on eight tasks of
four domains (its table 3); nothing of this has been run with this file.

In two minutes on two cores, with the documentation that comes with Python, and labelled examples of any kind:

    lmrep train --config=experiments/chains/adapt.py:size=tiny --workdir=runs/chain \\
        --config.task.data.train=train.csv --config.task.data.validation=validation.csv

Choices after the colon:

    init   a run or a published directory to adapt; without it, one is pretrained
    size   of the network that is pretrained, as in bert.py; tiny: two narrow layers
    data   of `adapt` (and of `pretrain`), as in bert.py
    task   a config file of experiments/tasks: classify mnli tag ...
"""

from lmrep.config.loading import parse_argument


def get_chain(argument=""):
    """The runs, in order; `argument` makes the choices above."""
    chosen = parse_argument(argument, init="", size="base", data="", task="classify")
    choices = f"size={chosen.size}" if not chosen.init else ""
    data = chosen.data or ("" if chosen.size == "tiny" else "files")
    page = "bert.py:" + ",".join(filter(None, [choices, data and f"data={data}"]))
    pretrain = {} if chosen.init else {"pretrain": page}
    adapt = f"{page},format=packed,init={chosen.init or '{pretrain}'}"
    return pretrain | {"adapt": (adapt, {"stages": ()}), "task": f"tasks/{chosen.task}.py:init={{adapt}}"}
