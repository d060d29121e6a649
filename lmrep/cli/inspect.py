"""Shows what a model is trained on: statistics of the corpus and the tokenizer, the fraction of padding, and a few
training examples. Predicted tokens are marked {word -> input}, or {word = word} where the input keeps the word."""

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages

FLAGS = {
    "examples": Flag(5, "the number of examples"),
    "split": Flag("train", "train, validation or test"),
    "data_dir": DATA_DIR,
}


def run(arguments: Arguments) -> int:
    """Runs the command with --config, or with --workdir of a run, and returns its exit code."""
    if arguments.overrides and not arguments.config_file:
        raise UserError("--config.FIELD needs --config=FILE.py; the config of the run in --workdir is used unchanged")
    config_dict = arguments.load_config() if arguments.config_file or not arguments.workdir else None

    import dataclasses
    from pathlib import Path

    from lmrep import api
    from lmrep.experiment import config, inspection
    from lmrep.storage import remote_workdir, workdir

    show_messages()
    if config_dict is not None:
        experiment = config.parse(config_dict)
    else:
        path = remote_workdir.local_copy(arguments.workdir, checkpoints=False)
        recorded = workdir.read_config(path)
        if "train" not in recorded["data"]:
            raise UserError(f"{arguments.workdir} was converted, not trained, and has no data to inspect")
        experiment = config.parse(recorded["config"])
        experiment = dataclasses.replace(experiment, tokenizer=config.own_tokenizer(path, experiment))
    data_dir = Path(arguments.flags.data_dir or api.default_data_dir())
    print(inspection.report(experiment, data_dir, arguments.flags.split, arguments.flags.examples))
    return 0
