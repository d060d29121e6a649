"""A workdir with given parameters at step 0 instead of trained ones, as after the conversion of a published
checkpoint."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from lmrep.data import tokenizers
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.storage.checkpoints import Checkpoints
from tests import small
from tests.reference import random_params


def workdir(directory: Path, objective: str = "masked", variant: str = "", format: str = "packed",
            params: Callable = lambda specs, tokenizer: random_params(specs), objective_fields: Mapping | None = None,
            **model) -> Path:
    """Writes a run of a BERT of 3 layers of width 32 that takes 48 tokens.

    Args:
      directory: where; the run is in its folder `run`.
      objective: a name in `OBJECTIVES`.
      variant: of that objective, where it has variants.
      format: a name in `FORMATS`.
      params: (specs, tokenizer) -> the parameters; random ones by default.
      objective_fields: fields of the objective.
      **model: fields of the network's config.
    """
    texts = [path.read_text() for path in sorted(small.corpus(directory / "texts").iterdir())]
    tokenizer = tokenizers.train(tokenizers.Config(vocab_size=120), lambda: iter(texts))
    config = small.config(directory / "texts", objective, format)
    config.model.update({"layers": 3, "max_length": 48, **model})
    if variant:
        config.objective.variant = variant
    config.objective.update(objective_fields or {})
    experiment = experiments.parse(config)
    network = experiments.build_model(experiment, tokenizer.size)
    objective = build.objective(experiments.resolve_stages(experiment)[0], network, tokenizer.vocabulary)
    tokenizer.save(directory / "run/tokenizer")
    (directory / "run/config.json").write_text(json.dumps(
        {"config": dataclasses.asdict(experiment), "data": {"tokenizer": tokenizer.fingerprint}}))
    with contextlib.closing(Checkpoints(directory / "run/checkpoints")) as checkpoints:
        checkpoints.save(0, {"params": params(objective.specs, tokenizer)}, {})
        checkpoints.wait()
    return directory / "run"
