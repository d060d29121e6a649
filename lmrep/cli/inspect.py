"""Shows what a model is trained on: statistics of the corpus and the tokenizer, the fraction of padding, and a few
training examples. Predicted tokens are marked {word -> input}, or {word = word} where the input keeps the word."""

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages

FLAGS = {
    "examples": Flag(5, "the number of examples"),
    "step": Flag(None, "show the examples that a step reads, in pretraining with its masks; by default the first ones, "
                 "of pretraining of each stage", int),
    "split": Flag("train", "train, validation or test"),
    "data_dir": DATA_DIR,
}


def run(arguments: Arguments) -> None:
    """Runs the command with --config, or with --workdir of a run."""
    if arguments.overrides and not arguments.config_file:
        raise UserError("--config.FIELD needs --config=FILE.py; the config of the run in --workdir is used unchanged")
    source = arguments.load_config() if arguments.config_file or not arguments.workdir else arguments.workdir

    from lmrep import api

    show_messages()
    flags = arguments.flags
    print(api.inspect(source, split=flags.split, examples=flags.examples, step=flags.step,
                      data_dir=flags.data_dir or None))
