"""Prints the metrics of a trained run on a split of its corpus, or on other text files, and writes them to eval.json
in the workdir."""

from lmrep.cli.arguments import Arguments, Flag

FLAGS = {
    "split": Flag(None, "train, validation or test (the default)"),
    "files": Flag("", "a glob of text files to evaluate on, in place of a split of the run's own corpus"),
    "examples": Flag(0, "how many examples, from the first on; 0: all"),
    "step": Flag(-1, "which checkpoint; -1: the newest"),
    "data_dir": Flag("", "where token stores live (default: $LMREP_DATA_DIR or ~/.cache/lmrep)"),
}


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(words=True, config=True)
    workdir = arguments.required_workdir()

    from lmrep import api
    from lmrep.training.logging import show_messages

    show_messages()
    flags = arguments.flags
    values = api.evaluate(workdir, split=flags.split, data_dir=flags.data_dir or None, examples=flags.examples or None,
                          step=None if flags.step < 0 else flags.step, files=flags.files)
    width = max(map(len, values))
    print("\n".join(f"{name:{width}}  {value:.6g}" for name, value in values.items()))
    return 0
