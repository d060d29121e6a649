"""ULMFiT (Howard and Ruder, 2018), all three stages in one command: language model, adaptation to the texts of a
task, classifier.

    lmrep train --config=experiments/chains/ulmfit.py:task=imdb,labelled=/data/aclImdb --workdir=runs/ulmfit \\
        --config.general.data.files='/data/wikitext-103/*.txt' --config.general.data.documents=blank_line \\
        --config.target.data.files='/data/aclImdb/train/*/*.txt'

The runs are runs/ulmfit/general, target and classifier: experiments/ulmfit.py with stage=general and stage=target, and
experiments/tasks/ulmfit.py, where each starts from the one before. --config.NAME.FIELD sets a field of one run. All
configs are checked before the first run starts, and the same command continues where it was stopped.

direction=both trains general_backward, target_backward and classifier_backward after them, from texts that are read
from their end. The mean of both classifiers is

    lmrep evaluate --workdir=runs/ulmfit/classifier --ensemble=runs/ulmfit/classifier_backward

Cost and Expected: those of the three stages, in their files. Nothing of this has been run at the paper's size.

In minutes on two cores, with the documentation that comes with Python, and labelled examples of any kind:

    lmrep train --config=experiments/chains/ulmfit.py:size=tiny --workdir=runs/ulmfit-tiny \\
        --config.classifier.data.train=train.csv --config.classifier.data.validation=validation.csv

Choices after the colon:

    general    the workdir of a general language model; without it, one is trained
    direction  forward; backward: the three runs of backward models alone; both
    recipe     paper; released: the scripts of the authors
    tokenizer  fastai_paper; fastai_v1
    size       base; tiny: two narrow layers, and five epochs of the classifier
    data       text of the language models: files, or as in bert.py
    task       files (--config.classifier.data.train), imdb or trec, with their folder in `labelled`
    labelled   the folder with the published files of the task
"""

from lmrep.config.loading import parse_argument
from lmrep.core.errors import UserError

RECIPES = {"paper": "", "released": "ulmfit_released"}


def get_chain(argument=""):
    """The runs, in order; `argument` makes the choices above."""
    chosen = parse_argument(
        argument, general="", direction=("forward", ("forward", "backward", "both")), recipe=("paper", tuple(RECIPES)),
        tokenizer=("fastai_paper", ("fastai_paper", "fastai_v1")), size=("base", ("base", "tiny")), data="",
        task=("files", ("files", "imdb", "trec")), labelled="")
    if chosen.general and chosen.direction == "both":
        raise UserError("general= is a model of one direction, and direction=both needs two; train one direction, and "
                        "then the other in another workdir")
    data = chosen.data or ("" if chosen.size == "tiny" else "files")
    shared = {"size": "" if chosen.size == "base" else "tiny", "data": data,
              "recipe": "" if chosen.recipe == "paper" else chosen.recipe,
              "tokenizer": "" if chosen.tokenizer == "fastai_paper" else chosen.tokenizer}
    runs = {}
    for direction in ("forward", "backward"):
        if chosen.direction not in (direction, "both"):
            continue
        suffix = "_backward" if chosen.direction == "both" and direction == "backward" else ""
        shared["direction"] = "" if direction == "forward" else direction
        general = chosen.general or f"{{general{suffix}}}"
        if not chosen.general:
            runs[f"general{suffix}"] = page("ulmfit.py", **shared | {"recipe": ""})
        runs[f"target{suffix}"] = page("ulmfit.py", stage="target", init=general, **shared)
        classifier = page(
            "tasks/ulmfit.py", init=f"{{target{suffix}}}", recipe=RECIPES[chosen.recipe], size=shared["size"],
            task="" if chosen.task == "files" else chosen.task, data=chosen.labelled)
        runs[f"classifier{suffix}"] = (classifier, {"epochs": 5.0} if chosen.size == "tiny" else {})
    return runs


def page(file, **choices):
    """The config file with those choices that are not empty."""
    return f"{file}:" + ",".join(f"{name}={value}" for name, value in choices.items() if value)
