"""Shows what a model is trained on: statistics of corpus and tokenizer, the share of padding, and a few examples as
the model is asked them, with what is asked for marked {word -> what is shown} or {word = word} where it stays."""

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {
    "examples": Flag(5, "how many examples"),
    "split": Flag("train", "train, validation or test"),
    "data_dir": Flag("", "where token stores live (default: $LMREP_DATA_DIR or ~/.cache/lmrep)"),
}


def run(arguments: Arguments) -> int:
    """The command. Takes --config, or --workdir of a run."""
    arguments.refuse(words=True)
    if arguments.overrides and not arguments.config_file:
        raise UserError("--config.FIELD goes with --config=FILE.py; the config of a --workdir stands as it is")
    given = arguments.load_config() if arguments.config_file or not arguments.workdir else None

    import dataclasses
    from pathlib import Path

    from lmrep import api
    from lmrep.experiment import config, inspection
    from lmrep.storage import mirror, workdir
    from lmrep.training.metrics_log import show_messages

    show_messages()
    if given is not None:
        record = config.parse(given)
    else:
        place = mirror.here(arguments.workdir, checkpoints=False)
        former = workdir.read_config(place)
        if "train" not in former["data"]:
            raise UserError(f"{arguments.workdir} was converted, not trained, and has no data to inspect")
        record = config.parse(former["config"])
        record = dataclasses.replace(record, tokenizer=config.own_tokenizer(place, record))
    data_dir = Path(arguments.flags.data_dir or api.default_data_dir())
    print(inspection.report(record, data_dir, arguments.flags.split, arguments.flags.examples))
    return 0
