"""Several tasks as text to text, mixed in one run (Raffel et al., 2019, sections 3.5.2 and 3.5.3).

    lmrep train --config=experiments/tasks/multitask.py:size=tiny,data=glue --workdir=runs/multitask
    lmrep predict --workdir=runs/multitask --source=sst2 "A fine film."
    lmrep evaluate --workdir=runs/multitask --source=rte --split=test

`data` is the folder of GLUE's published files, with CoLA/train.tsv and so on; `multi30k` that of aligned files
train.de, train.en, val.de and val.en, and adds their translation from German. `init=runs/t5`, in place of `size=tiny`,
starts from a pretrained run. Each task has its prefix and its metrics; STS-B's scores are rounded to 0.2. A run
validates each (`sst2/accuracy`) and keeps the checkpoint of the best `score`, the mean of their first metrics.

Choices after the colon, beside the choices of `generate.py`:

    data       the folder of GLUE
    tasks      which of its tasks, cola+mrpc+rte+sst2+stsb; also mnli, qnli, qqp and wnli
    multi30k   the folder of Multi30k; empty: no translation
    text       files of unlabelled text, which become a source `text` by span corruption: documents between blank lines,
               or the field `text` of JSON Lines; empty: none
    held_out   such files for its validation, which measures the loss alone; empty: none
    mixing     proportional: by the number of examples, at most `cap`; temperature: by its square root; equal
    cap        the paper's artificial limit K; its table compares 2^16 to 2^21

The paper's final models were pretrained on their tasks and unlabelled text together, whose size K limits, too. Here 284
tokens of text make a source of 256 and a target of 58, and each such piece is corrupted once, not anew in every epoch.
All pieces are kept in memory: of a large corpus, give a sample. The source's `weight` changes the limit of text alone.
`lmrep predict --source=text "A <extra_id_0> film."` fills in spans.

Sequences are packed, since every batch has examples of every task, which differ in length: of batches of 32 of the five
tasks, 81% of the source tokens would be padding without packing, and 1% are with it (WordPiece, 4,096 tokens).

Published for T5 are batches of 128 packed sequences of 512 tokens, a constant rate of 1e-3 in fine-tuning, Adafactor
and greedy search; the settings are as in `classify.py`, with packed sequences of 256 tokens. Expected: the
paper's GLUE average of its baseline, of base size and fine-tuned on each task alone, is 83.3 (its table 5).
Cost: in the paper, 2^18 steps of fine-tuning.

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 256 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=256, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

import os

from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.experiment.fine_tuning import compose_task
from lmrep.tasks.as_text import text_form
from lmrep.tasks.known import KNOWN

FOLDERS = {"cola": "CoLA", "mnli": "MNLI", "mrpc": "MRPC", "qnli": "QNLI", "qqp": "QQP", "rte": "RTE", "sst2": "SST-2",
           "stsb": "STS-B", "wnli": "WNLI"}
TEMPERATURES = {"proportional": 1.0, "temperature": 2.0, "equal": 0.0}


def glue(folder, name):
    """A task of GLUE as a source; "" leaves its files to be given."""
    known, (objective, data) = KNOWN[name], text_form(KNOWN[name].task, name)
    files = {split: os.path.join(folder, FOLDERS[name], file) if folder else "" for split, file in known.files.items()}
    return {"name": name, "data": {**known.data, **files, **data}, "objective": objective}


def multi30k(folder):
    """Captions in German and English as a source."""
    files = {"train": os.path.join(folder, "train.de"), "validation": os.path.join(folder, "val.de")}
    return {"name": "de_en", "data": {**files, "format": "parallel", "columns": {"text": "de", "target": "en"}},
            "objective": {"template": "translate German to English: {text}", "metrics": ("bleu", "chrf")}}


def unlabelled(files, held_out):
    """Text without labels as a source."""
    form = "jsonl" if files.removesuffix(".gz").endswith(".jsonl") else "documents"
    return {"name": "text", "data": {"train": files, "validation": held_out, "format": form},
            "objective": {"denoise": True, "metrics": ()}}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    own = {"data": "", "tasks": "cola+mrpc+rte+sst2+stsb", "multi30k": "", "text": "", "held_out": "",
           "mixing": ("proportional", tuple(TEMPERATURES)), "cap": 0}
    given = [part for part in argument.split(",") if part.partition("=")[0] in own]
    chosen = loading.parse_argument(",".join(given), **own)
    config = compose_task(",".join(part for part in argument.split(",") if part not in given), "text_to_text",
                          base="encoder_decoder")
    names = chosen.tasks.split("+")
    if unknown := [name for name in names if name not in FOLDERS]:
        raise UserError(f"tasks has {unknown[0]!r}; expected some of {', '.join(FOLDERS)} with + between them")
    if chosen.held_out and not chosen.text:
        raise UserError(f"held_out is {chosen.held_out!r}, for the validation of unlabelled text, and text is empty; "
                        "give text=FILES, or leave held_out out")
    config.name = "multitask"
    config.sources = (*(glue(chosen.data, name) for name in names),
                      *([multi30k(chosen.multi30k)] if chosen.multi30k else []),
                      *([unlabelled(chosen.text, chosen.held_out)] if chosen.text else []))
    config.temperature, config.size_cap = TEMPERATURES[chosen.mixing], chosen.cap
    config.checkpoint.best = "score"
    if not config.init:  # it gives texts back as they were; WordPiece makes "3. 8" of "3.8"
        name = "sentencepiece_t5" if chosen.text else "sentencepiece_unigram"  # with sentinels, or without
        config.tokenizer.update({"name": name, "lowercase": False})
    config.length, config.format.packed = 256, True
    return config
