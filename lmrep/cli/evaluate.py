"""Prints the metrics of a trained run on a split of its corpus, or on other text files. They are also written to
eval.json in the workdir, and added to eval.jsonl, which keeps every evaluation.

A run of a task predicts its validation data, another --split, or other labelled or unlabelled --files of the same form,
with the columns of the run's config, and prints bootstrap 95 % intervals beside the metrics. Its predictions are
written to predictions/ in the workdir, also in the form that the benchmark takes.

With --stride, it prints the sliding-window perplexity of a model that predicts from left to right: token_perplexity;
word_perplexity, which compares models of different tokenizers; and bits_per_byte. A document (with --files, a file) is
read in windows that begin --stride tokens apart. Each token is predicted once, from at least length - stride tokens
before it, or all that there are. A smaller stride costs more and gives a lower perplexity.

Words are separated by white space, bytes are of UTF-8, and both are counted in the raw text. The tokenizer may
still lose something of the text: a model that lower-cases is evaluated on lower-cased text, unknown words count as
[UNK], and a run trained here reads any white space as one space, like its corpus. The first token is predicted if the
model was trained with a token before it, such as [CLS] or the end of another document. The token that ends a document
is not predicted.

A network with a memory (Transformer-XL) continues from example to example, where its format does. Its published
figures are of a longer memory than in training: --length=64 --memory=640 --clamp=400 --same_length. The loss of bytes
(`tokenizer.name=bytes`) in bits per token is in bits per byte.

With --pointer_window, a recurrent language model, whose state continues from example to example, is also evaluated with
a cache of its outputs (Grave et al., 2017): pointer_loss. AWD-LSTM's published figures are of --pointer_window=2000
--pointer_weight=0.1 --pointer_theta=1 on the Penn Treebank, with --batch_size=1.

With --pairs, it prints how often the model gives the acceptable sentence of a minimal pair the higher score: for each
paradigm and phenomenon, and the mean over paradigms. The score is the objective's own: the log probability of the
sentence for a model that predicts from left to right (with --end_mark, of the token that ends a document too, which
the published figures of GPT-2 leave out: Salazar et al., 2020); the pseudo-log-likelihood (PLL) for one that fills
masks; for one that detects replaced tokens, the sum of the log probabilities that each token is original.

With --suite, it scores all files *.jsonl of a directory and its subdirectories, each of which is a task, by the fields
of their lines, and prints the accuracy of each task with that of chance, and the mean. BLiMP: sentence_good,
sentence_bad. EWoK: Context1, Context2, Target1, Target2; the targets are compared given Context1. COMPS:
prefix_acceptable, prefix_unacceptable, property_phrase. Entity tracking: input_prefix, options, of which the first is
right. WUG: sentences, with a tab between two, and the ratio of people who prefer the first: the rank correlation. Only
what follows a context is scored, by the score of --pairs, which must then be one of tokens. Files *.csv with the
columns of the challenge's reading_data.csv are reading times: how much of their variance surprisal explains. A file
with a text that is longer than the network takes is not scored, and a line below the table says which text it is."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from lmrep.cli import over_time
from lmrep.cli.arguments import DATA_DIR, ENSEMBLE, Arguments, Flag
from lmrep.config.record import Bounds
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages
from lmrep.core.paths import as_path, as_paths

FLAGS = {
    "split": Flag(None, "train, validation or test (by default test; of a task, validation)"),
    "files": Flag("", "a glob of text files (of a task, labelled or unlabelled files, or a split of a TFDS data set, "
                  "as tfds:glue/ax:test) to evaluate on, instead of a split of the run's own data", as_paths),
    "examples": Flag(0, "the number of examples, from the first on (of a task, at equal distances; with --stride, "
                     "documents; with --pairs, pairs of each paradigm; with --suite, lines of each part); 0: all"),
    "stride": Flag(None, "tokens between the starts of two windows; by default, the metrics of the objective", int),
    "length": Flag(None, "tokens in an example or, with --stride, in a window; by default the length that the run was "
                   "trained with, or, for windows of a converted checkpoint, the longest that the network takes", int,
                   Bounds(at_most=2**24)),
    "batch_size": Flag(None, "examples in a batch; by default as in training. Where examples continue each other, the "
                       "text is split into as many parts, each of which starts without a memory", int,
                       Bounds(at_most=2**20)),
    "memory": Flag(None, "positions of earlier batches that a network with a memory attends to; by default as in "
                   "training", int, Bounds(at_most=2**24)),
    "clamp": Flag(None, "the distance from which on such a network treats all positions as equally far; 0: none; by "
                  "default as in training", int),
    "same_length": Flag(False, "whether each position attends to as many others, the length of the memory"),
    "beams": Flag(None, "of texts that are generated from others: beams of beam search; 1: greedy search; by default "
                  "as in validation", int),
    "length_penalty": Flag(None, "their scores are divided by (the number of tokens) ** length_penalty, or Wu et al.'s "
                           "((5 + tokens) / 6) ** length_penalty (--penalty=gnmt); 0: none", float),
    "penalty": Flag(None, "power or gnmt", str),
    "pointer_window": Flag(None, "of a recurrent language model, positions in a cache pointer; by default, no "
                           "pointer is used", int, Bounds(at_most=2**24)),
    "pointer_weight": Flag(None, "the weight of the cache's distribution, lambda in the paper; 0.1 by default", float),
    "pointer_theta": Flag(None, "factor of the products of outputs in the cache; 1 by default", float),
    "source": Flag("", "of a run on a mixture of labelled data sets, the one whose split is evaluated (by default "
                   "all), or that --files are like"),
    "ensemble": ENSEMBLE,
    "pairs": Flag("", "a directory of minimal pairs, such as BLiMP's: JSON Lines with sentence_good, sentence_bad and, "
                  "where the file's name is not the paradigm, UID and linguistics_term", as_path),
    "end_mark": Flag(False, "with --pairs, whether the token that ends a document, such as GPT-2's <|endoftext|>, is "
                     "scored too, of a model that predicts from left to right"),
    "suite": Flag("", "a directory of zero-shot tasks, such as those of the BabyLM challenge: JSON Lines in "
                  "subdirectories, in the forms of BLiMP, EWoK, COMPS, entity tracking and WUG, and reading times in "
                  "CSV", as_path),
    "predictions": Flag("", "with --suite, a directory for the choices of each task and the surprisals of words, in "
                        "files predictions.json as of the BabyLM challenge's pipeline", as_path),
    "pll": Flag("", "with --pairs or --suite, another score than the default; word_l2r: mask the later tokens of a "
                "word too (Kauf and Ivanova, 2023); log_probability: from left to right (XLNet, GPT-BERT)"),
    **over_time.FLAGS,
    "data_dir": DATA_DIR,
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    workdir = arguments.required_workdir()

    from lmrep.core.host import use_devices_per_core
    from lmrep.inference import pairs, suite
    from lmrep.inference.evaluate import measure

    show_messages()
    flags = arguments.flags
    if flags.pairs or flags.suite:
        use_devices_per_core()

    def given(*names: str, prefix: str = "") -> dict[str, Any]:
        values = {name: getattr(flags, prefix + name) for name in names}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    evaluate = partial(
        measure, workdir, split=flags.split, data_dir=flags.data_dir or None, examples=flags.examples or None,
        files=flags.files, stride=flags.stride, length=flags.length, pairs=flags.pairs,
        pll=flags.pll, end_mark=flags.end_mark, batch_size=flags.batch_size, source=flags.source,
        ensemble=flags.ensemble, suite=flags.suite, predictions=flags.predictions,
        model=given("memory", "clamp", "same_length"), search=given("beams", "length_penalty", "penalty"),
        pointer=given("window", "weight", "theta", prefix="pointer_"))
    if steps := over_time.checkpoints(arguments, workdir):
        if flags.predictions:
            raise UserError("--predictions is a directory for one checkpoint, and --checkpoints=all is given; give "
                            "--step instead, and a directory for each")
        values = over_time.measure(steps, evaluate)
        if flags.suite and values["unscored"]:
            print("", *suite.not_scored(values), sep="\n", flush=True)
        return
    measured = evaluate(step=arguments.step)
    if flags.pairs:
        print(pairs.table(measured.values), flush=True)
    elif flags.suite:
        print(suite.table(measured.values), flush=True)
    elif measured.values:  # a task has none for examples without targets
        _print(measured.values, measured.intervals)
    measured.store()


def _print(values: Mapping[str, Any], intervals: Mapping[str, Any]) -> None:
    """Prints a line for each metric."""
    from lmrep.experiment.record import ALL_OBJECTIVES
    from lmrep.inference import pointer
    from lmrep.metrics import COMMON

    width, known = max(map(len, values)), COMMON | pointer.METRICS
    for definition in ALL_OBJECTIVES.values():
        known |= definition.metrics
    # Metrics of a source of a mixture are named SOURCE/METRIC.
    known |= {name: known[last] for name in values if (last := name.rpartition("/")[2]) in known}
    for name, value in values.items():
        form = "," if isinstance(value, int) else known[name].format if name in known else ".6g"
        low, high = intervals.get(name, (None, None))
        interval = "" if low is None else f"   95 % interval {low:{form}} to {high:{form}}"
        details = ""
        if name in known and known[name].perplexity:
            details = f"   perplexity {math.exp(min(value, 700)):,.1f}, {value / math.log(2):.3f} bits per token"
        print(f"{name:{width}}  {value:{form}}{interval}{details}", flush=True)
