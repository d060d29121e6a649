"""Published directories as frozen parts: importing this module makes `lmrep.experiment.frozen` read them."""

from pathlib import Path

from lmrep.data import tokenizers
from lmrep.experiment import frozen
from lmrep.experiment.frozen import Trained
from lmrep.interop import conversion
from lmrep.interop.huggingface.read import read as read_published


def read(directory: Path, name: str, values: bool) -> Trained:
    """The checkpoint in a published directory; `name` is its path, for people. Raises UserError as
    `lmrep.interop.huggingface.read.read`."""
    checkpoint, tokenizer = read_published(directory), tokenizers.load(directory)
    experiment = conversion.experiment(checkpoint, tokenizer, directory.name)
    return Trained(name, experiment, 0, tokenizer, checkpoint.params if values else None)


frozen.READERS["published"] = read
