"""BERT (Devlin et al., 2019): masked language modelling and next-sentence prediction on segment pairs.

    lmrep train --config=experiments/bert.py:size=base,data=files --workdir=runs/bert-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

The recipe of the released code: 256 rows a step for a million steps, the first 90 % on 128 tokens and the rest on
512; static masks, ten an example; Adam without bias correction at 1e-4, warmed up over 10,000 steps. The paper trained
base in four days on 4 Cloud TPUs and large on 16. It reports GLUE 79.6 and 82.1 (test averages) after fine-tuning.

Every part can be chosen after the colon:

    size       tiny mini small medium base base_cased large large_cased
    model      any name in lmrep.models.PRESETS, in place of size: roberta_base
    objective  masked, causal ("no NSP & LTR"), replaced_token, span_boundary
    format     segment_pair or sentence_pair (with the question about the pair), packed or any other (without; in
               stream, too, documents do not see each other)
    data       python_docs, files, jsonl or parquet (give --config.data.files) or tfds (give --config.data.tfds_name)
    init       a workdir, or a directory in Hugging Face's layout: starts from its parameters, with its network and
               tokenizer (size and model are then its own)
    optimizer  bert roberta lamb adafactor adamw; lamb and adafactor with the rates of their papers, the others 1e-4
    mesh       data, fsdp, or sizes data x fsdp x tensor as 2x2x2
"""

from dataclasses import asdict

from lmrep.config.loading import parts
from lmrep.data.formats import FORMATS
from lmrep.experiment.config import StageConfig, default_config
from lmrep.interop.init_from import adopt_checkpoint
from lmrep.models import PRESETS
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.masked import RULES
from lmrep.training.optimizers import RECIPES

SIZES = ("tiny", "mini", "small", "medium", "base", "base_cased", "large", "large_cased")
CORPORA = {"python_docs": "python_docs", "files": "text_files", "jsonl": "jsonl", "parquet": "parquet", "tfds": "tfds"}


def get_config(argument=""):
    """The config; `argument` chooses parts, as above."""
    chosen = parts(argument, size=("base", SIZES), model=("", ("", *PRESETS)), objective=("masked", tuple(OBJECTIVES)),
                   format=("segment_pair", tuple(FORMATS)), data=("python_docs", tuple(CORPORA)),
                   optimizer=("bert", tuple(RECIPES)), mesh="data", init="")
    model = chosen.model or f"bert_{chosen.size}"
    config = default_config(model, chosen.objective, chosen.format, chosen.optimizer, chosen.mesh)
    config.name = model
    config.steps, config.batch_size, config.length = 1_000_000, 256, 128
    config.stages = (asdict(StageConfig(name="128", fraction=0.9)),
                     asdict(StageConfig(name="512", fraction=0.1, length=512)))
    config.data.corpus = CORPORA[chosen.data]
    config.tokenizer.vocab_size = config.model.vocab
    config.tokenizer.lowercase = not (model.endswith("cased") or model.startswith(("roberta", "spanbert", "gpt2")))
    if chosen.objective == "masked":
        config.objective.update(RULES.get(model.partition("_")[0], RULES["bert"]), masking="static")
    if "sentence_pair" in config.objective:
        config.objective.sentence_pair = chosen.format in ("segment_pair", "sentence_pair")
    if chosen.format == "stream":
        config.format.isolate = True
    config.format.duplicates = 10
    if chosen.optimizer == "lamb":
        config.optimizer.learning_rate = 1.76e-3  # ALBERT's, for 4,096 rows a step
    if chosen.optimizer != "adafactor":
        config.optimizer.schedule.warmup_fraction = 0.01  # 10,000 of a million steps
    config.checkpoint.every = 10_000
    config.evaluation.every = 10_000
    if chosen.init:
        adopt_checkpoint(config, chosen.init)
    if chosen.objective in ("masked", "span_boundary"):
        config.samples = ("The [MASK] of a list is an integer.",)
    return config
