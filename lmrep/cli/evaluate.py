"""Prints the metrics of a trained run on a split of its corpus, or on other text files, and writes them to eval.json
in the workdir; eval.jsonl there keeps every evaluation, a line each.

With --stride, how well a run that reads from left to right foresees the text: token_perplexity; word_perplexity, which
compares runs of different tokenizers; bits_per_byte. A document (with --files, a file) is read in windows that begin
--stride tokens apart, and each token is asked for once, after the length - stride before it at least: a small stride
costs more and foresees better. Words are what white space separates, bytes are UTF-8, both of the raw text; but what
the tokenizer drops or does not know need not be foreseen: the figures of one that lower-cases are of lower-cased text,
and a run trained here, as its corpus was read, takes any white space for one space. The first token is asked for where
the run was trained with one before it, [CLS] or the end of another document; what ends a document is not."""

from lmrep.cli.arguments import Arguments, Flag

FLAGS = {
    "split": Flag(None, "train, validation or test (the default)"),
    "files": Flag("", "a glob of text files to evaluate on, in place of a split of the run's own corpus"),
    "examples": Flag(0, "how many examples, with --stride documents, from the first on; 0: all"),
    "stride": Flag(None, "tokens from one window to the next; none: the metrics of the objective", int),
    "length": Flag(None, "with --stride, tokens of a window; none: as many as the rows that it was trained on, or, "
                   "converted, as its network takes", int),
    "step": Flag(-1, "which checkpoint; -1: the newest"),
    "data_dir": Flag("", "where token stores live (default: $LMREP_DATA_DIR or ~/.cache/lmrep)"),
}


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(words=True, config=True)
    workdir = arguments.required_workdir()

    from lmrep import api
    from lmrep.training.metrics_log import show_messages

    show_messages()
    flags = arguments.flags
    values = api.evaluate(workdir, split=flags.split, data_dir=flags.data_dir or None, examples=flags.examples or None,
                          step=None if flags.step < 0 else flags.step, files=flags.files, stride=flags.stride,
                          length=flags.length)
    width = max(map(len, values))
    print("\n".join(f"{name:{width}}  {value:,}" if isinstance(value, int) else f"{name:{width}}  {value:.6g}"
                    for name, value in values.items()))
    return 0
