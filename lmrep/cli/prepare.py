"""Prepares the token stores of an experiment's corpus, as lmrep train does before its first step: trains or loads the
tokenizer, splits and tokenizes the text, and writes the stores to --data_dir, unless they are there.

With --beam_runner, pipelines on Apache Beam do that, on the cores of this machine (DirectRunner) or on others
(DataflowRunner, FlinkRunner, SparkRunner). The stores are the same, byte for byte. Files and --data_dir must be where
all workers see them, such as gs://bucket/..., and lmrep must be installed on the workers."""

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages

FLAGS = {
    "data_dir": DATA_DIR,
    "beam_runner": Flag("", "the runner of Apache Beam, which is used if this is set: DirectRunner, DataflowRunner, "
                        "FlinkRunner, SparkRunner"),
    "beam_options": Flag("", "options of Apache Beam, separated by commas, as in project=NAME,region=us-central1"),
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    config_dict, flags = arguments.load_config(), arguments.flags
    if flags.beam_options and not flags.beam_runner:
        raise UserError("--beam_options needs --beam_runner, such as --beam_runner=DataflowRunner")

    import logging
    from pathlib import Path

    from lmrep.core.host import default_data_dir
    from lmrep.experiment import build, config

    experiment, log = config.parse(config_dict), logging.getLogger(__name__)
    if experiment.labelled:
        raise UserError("lmrep prepare is for text to pretrain on; labelled examples are read when lmrep train starts")
    show_messages()
    data_dir = flags.data_dir or str(default_data_dir())
    if flags.beam_runner:
        from lmrep.data.store.beam import build as beam
        from lmrep.data.store.beam import runner as runners

        runner = runners.parse(flags.beam_runner, flags.beam_options)
        if sources := experiment.sources:
            raise UserError(f"--beam_runner prepares one corpus, and the config mixes {len(sources)} sources; train a "
                            "tokenizer first, set --config.tokenizer.vocab_file to it, and prepare each source alone")
        stores = dict([beam.build(experiment.data, experiment.tokenizer, data_dir, runner, log.info)])
    else:
        prepared = build.prepare_data(experiment, Path(data_dir), log.info).corpus
        stores = {str(prepared.directory): prepared.statistics}
    for directory, statistics in stores.items():
        print(f"\nPrepared in {directory}")
        for split, counts in statistics.items():
            print(f"  {split:10} {counts['documents']:>15,} documents {counts['tokens']:>19,} tokens "
                  f"{counts['unknown_fraction']:>8.2%} unknown")
