"""What pretraining, autoencoders and linear gain are worth: small LSTMs on movie reviews (Dai and Le, 2015).

    python experiments/benchmarks/dai_le.py --train=imdb/train.jsonl.gz --unlabelled=imdb/unsup.jsonl.gz \\
        --test=imdb/test.jsonl.gz --workdir=runs/dai_le

The files have a review a line, with `text` and, but for --unlabelled, `label`. A network reads the last --length words
and punctuation marks of a review. Language models and sequence autoencoders learn from the reviews of --train and
--unlabelled, for --steps steps, and classifiers from the first --examples reviews of --train, which must not be sorted
by their labels. The error is that of the last step, on the first --test_examples reviews of --test; nothing is chosen
by it. The pages are `experiments/dai_le.py` and `experiments/tasks/dai_le.py`, with smaller layers, fewer words, and
the dropout, rates and clipping of cells in the flags. All networks have the vocabulary of the first language model.
Everything is trained by `lmrep train`, one run after another, and a run that is there is not trained again: the command
continues where it was stopped. The bag of words is the linear model that reports show, on the same reviews.

It prints a table, and writes it to WORKDIR/table.md: the test error, mean over the seeds of the classifiers and
standard deviation, and the difference from the first row with a 95 % interval, by Student's t over the pairs of runs of
one seed. With --pretrainings=1, all start from the same pretraining, and the intervals do not have its variance. Beside
it are the test errors of the paper, with all 25,000 labelled reviews and 1,024 units, as Dieng et al. (2017) report
them. Time on a core: 10 minutes for a pretraining, 2 for a classifier.
"""

import argparse
import gzip
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from arguments import parse_flags
from runs import lines, mean_and_deviation, paired_interval, run_lmrep, write_table

PAGES = Path(__file__).parents[1]
TOKEN = re.compile(r"\w+|[^\w\s]")  # as the tokenizer `words_text`, nearly
QUIET = {"log.every": 10, "log.report": "false", "log.tensorboard": "false"}
PRETRAINED = {"language_model": "causal", "autoencoder": "sequence_autoencoder"}


class Row(NamedTuple):
    """A row of the table: the pretraining that it starts from, the choices of the page, and the paper's test error."""

    title: str
    start: str = ""
    choices: str = ""
    paper: str = ""


GAIN = ",linear_gain=yes"
ROWS: Mapping[str, Row] = {
    "scratch": Row("LSTM", paper="13.50"),
    "scratch_gain": Row("LSTM, linear gain", choices=GAIN),
    "language_model": Row("from a language model", "language_model", paper="7.64"),
    "language_model_gain": Row("from a language model, linear gain", "language_model", GAIN),
    "autoencoder": Row("from an autoencoder", "autoencoder", paper="7.24"),
    "autoencoder_gain": Row("from an autoencoder, linear gain", "autoencoder", GAIN, "9.17"),
    "joint": Row("LSTM and autoencoder jointly", choices=",joint=sequence_autoencoder", paper="14.70"),
}


def reviews(path):
    """The reviews of a file."""
    with (gzip.open if str(path).endswith(".gz") else open)(path, "rt", encoding="utf8") as file:
        return [{name: value for name, value in json.loads(line).items() if name in ("label", "text")} for line in file]


def last(record, count):
    """A review with its last words and punctuation marks alone."""
    starts = [match.start() for match in TOKEN.finditer(record["text"])]
    return record | {"text": record["text"][starts[-count] if len(starts) > count else 0:]}


def write_data(args, workdir):
    """Writes the files of the runs, once, and returns their folder."""
    folder = workdir / "data"
    if not (folder / "test.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        labelled, count = reviews(args.train), args.length - 2  # two special tokens
        parts = {"corpus": labelled + reviews(args.unlabelled), "train": labelled[:args.examples],
                 "test": reviews(args.test)[:args.test_examples]}
        for name, records in parts.items():
            records = records if name == "corpus" else [last(record, count) for record in records]
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records),
                                                  encoding="utf8")
    return folder


def train(args, run, page, fields):
    """Trains a run, unless it is there, and returns its workdir."""
    if not (run / "results.json").exists():
        flags = [f"--data_dir={args.data_dir}"] if args.data_dir else []
        run_lmrep(run.parent / f"{run.name}.log", "train", f"--config={PAGES / page}", f"--workdir={run}",
                  *(f"--config.{name}={value}" for name, value in {**QUIET, **fields}.items()), *flags)
    return run


def pretrained(args, name, seed, workdir):
    """The workdir of a language model or of an autoencoder."""
    return train(args, workdir / f"{name}-{seed}", f"dai_le.py:data=jsonl,objective={PRETRAINED[name]}", {
        "data.files": workdir / "data/corpus.jsonl", "data.validation": 0.01, "data.test": 0.0, "seed": seed,
        "format.keep": "last", "length": args.length, "batch_size": args.batch_size, "steps": args.steps,
        "optimizer.learning_rate": args.rate, "model.dropout": 0.0, "model.clip_cell": args.clip_cell,
        "model.width": args.width, "model.embedding": args.width, "tokenizer.vocab_size": args.words,
        "tokenizer.lowercase": "true", "evaluation.every": args.steps, "evaluation.examples": 256,
        "checkpoint.every": max(1, args.steps // 4)})


def error(args, name, seed, workdir):
    """The test error in percent of a row of the table and a seed."""
    row, run, steps = ROWS[name], workdir / f"{name}-classifier-{seed}", args.epochs * args.examples // args.batch_size
    vocabulary = pretrained(args, "language_model", 0, workdir) / "tokenizer"
    fields = {
        "data.train": workdir / "data/train.jsonl", "data.validation": workdir / "data/test.jsonl",
        "data.format": "jsonl", "data.classes": "()", "seed": seed, "length": args.length, "epochs": 0.0,
        "batch_size": args.batch_size, "steps": steps, "evaluation.every": steps, "checkpoint.every": steps,
        "evaluation.patience": 0, "checkpoint.load": "newest", "model.dropout": args.dropout,
        "objective.dropout": args.dropout, "objective.hidden": args.width,
        "optimizer.learning_rate": args.classifier_rate}
    if not row.start:
        fields |= {"model.width": args.width, "model.embedding": args.width, "model.clip_cell": args.clip_cell,
                   "model.tied": "false", "tokenizer.vocab_file": vocabulary, "tokenizer.lowercase": "true"}
    init = f",init={pretrained(args, row.start, seed % args.pretrainings, workdir)}" if row.start else ""
    train(args, run, f"tasks/dai_le.py:set=imdb{row.choices}{init}", fields)
    return 100 * (1 - lines(run / "metrics.jsonl", "validation")[-1]["accuracy"])


def error_of_words(run):
    """The test error in percent of the bag of words that a run is compared with."""
    rows = json.loads((run / "results.json").read_text(encoding="utf8"))["comparison"]
    return next(100 * (1 - row["metrics"]["accuracy"]) for row in rows if row["kind"] == "bag_of_words")


def line(name, scores):
    """A line of the table."""
    mean, deviation = mean_and_deviation(scores[name])
    interval = ""
    if name != "scratch":
        more, low, high = paired_interval(scores[name], scores["scratch"])
        interval = f"{more:+.1f}" + (f" ({low:+.1f} to {high:+.1f})" if math.isfinite(low) else "")
    spread = f" ± {deviation:.1f}" if len(scores[name]) > 1 else ""
    return f"| {ROWS[name].title} | {mean:.1f}{spread} | {interval} | {ROWS[name].paper} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--unlabelled", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=2000, help="labelled reviews")
    parser.add_argument("--test_examples", type=int, default=2000)
    parser.add_argument("--length", type=int, default=200, help="tokens of a review")
    parser.add_argument("--width", type=int, default=128, help="of the table and of the layer")
    parser.add_argument("--words", type=int, default=8000, help="of the vocabulary")
    parser.add_argument("--steps", type=int, default=1000, help="of a pretraining")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate of pretraining")
    parser.add_argument("--pretrainings", type=int, default=3, help="of each kind; seeds take them in turn")
    parser.add_argument("--epochs", type=int, default=5, help="of a classifier")
    parser.add_argument("--classifier_rate", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--clip_cell", type=float, default=3.0)
    parser.add_argument("--rows", default=",".join(name for name in ROWS if name != "joint"), help="of the table, "
                        "separated by commas; joint takes as long as a pretraining")
    parser.add_argument("--data_dir", default="", help="of token stores")
    args = parse_flags(parser, seeds=1, pretrainings=1, examples=16, test_examples=8, length=16, width=8, words=200,
                       steps=2, epochs=1, batch_size=4, rows="scratch,autoencoder_gain")
    workdir = Path(args.workdir).absolute()
    names = list(dict.fromkeys(["scratch", *args.rows.split(",")]))
    if unknown := [name for name in names if name not in ROWS]:
        raise SystemExit(f"--rows has {', '.join(unknown)}; expected some of {', '.join(ROWS)}")
    write_data(args, workdir)
    scores = {name: [] for name in names}
    for seed in range(args.seeds):  # a table of fewer seeds is complete early
        for name, values in scores.items():
            values.append(error(args, name, seed, workdir))
            print(f"seed {seed}, {name}: test error {values[-1]:.1f} %", flush=True)
    write_table(workdir, [
        "| classifier | test error, % | difference from the first row, 95 % interval | paper |",
        "| --- | --- | --- | --- |", *(line(name, scores) for name in names),
        f"| bag of words | {error_of_words(workdir / 'scratch-classifier-0'):.1f} | | |"],
        f"{args.examples:,} labelled reviews of {args.length} tokens at most, pretraining of {args.steps:,} steps of "
        f"{args.batch_size} reviews, pretrainings of each kind: {args.pretrainings}, seeds of classifiers: "
        f"{args.seeds}; width {args.width}, {args.words:,} words")


if __name__ == "__main__":
    main()
