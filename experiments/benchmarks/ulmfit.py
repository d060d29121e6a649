"""What each stage of ULMFiT and each part of its classifier's training is worth, with small networks and few labels.

    python experiments/benchmarks/ulmfit.py --imdb=imdb --text=wikitext-2/train.txt --workdir=runs/ulmfit

`--imdb` has train, unsup and test.jsonl.gz, a film review a line with `text` and, but for unsup, `label` (pos, neg).
`--text` is a file of words, a line a document. A language model is trained on it, once for all seeds; then one on
--target_words words of the reviews of train and unsup from the first model (`stage=target`, with `recipe=released`,
since few steps are too few for the paper's rates), and one on the same text from random values: --pretrainings of each,
which seeds take in turn; with 1, the intervals do not have the variance of pretraining. The bias of their output starts
at the frequencies of words, which the state would learn first otherwise.
Classifiers learn from the same --reviews reviews of train, half of each class, cut after --length tokens. The network
is that of `experiments/ulmfit.py` with fewer and smaller layers and a smaller vocabulary, and with its dropout times
--dropout in the language models and --classifier_dropout in the classifiers.

It prints two tables, and writes them to WORKDIR/stages.md and WORKDIR/parts.md: the error rate in percent on --held_out
reviews of test at the end of training, mean over the seeds and standard deviation, and the difference from the whole
recipe with a 95 % interval, by Student's t over the pairs of runs of one seed. Beside it are the error rates of the
paper on a tenth of IMDb's training data (Howard and Ruder, 2018, tables 4 and 7), with 22,500 labelled reviews and a
general model of WikiText-103. Everything is trained by `lmrep train`, one run after another, and a run that is there is
not trained again: the command continues where it was stopped.
"""

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import NamedTuple

from arguments import parse_flags
from runs import lines, mean_and_deviation, paired_interval, run_lmrep, write_table

PAGES = Path(__file__).parents[1]
MODELS = {"language": {"dropout": 0.1, "hidden_dropout": 0.15, "input_dropout": 0.25, "embedding_dropout": 0.02,
                       "weight_dropout": 0.2},
          "classifier": {"hidden_dropout": 0.3, "input_dropout": 0.4, "embedding_dropout": 0.05,
                         "weight_dropout": 0.5}}
GENERAL, ALONE, TARGET = "general", "alone", "target"  # the language models
WHOLE = "freez_discr_stlr"


class Row(NamedTuple):
    """A classifier: its name in the paper's table, the choices of its page, and the paper's error rate."""

    title: str
    choices: str
    paper: float
    init: str | None = TARGET  # the language model that it starts from


ROWS = {
    "scratch": Row("from scratch", "unfreezing=full,rates=equal,schedule=constant", 9.93, None),
    "full": Row("full", "unfreezing=full,rates=equal,schedule=constant", 6.87),
    "full_discr": Row("full + discr", "unfreezing=full,rates=discriminative,schedule=constant", 5.57),
    "last": Row("last", "unfreezing=last,rates=equal,schedule=constant", 6.49),
    "chain_thaw": Row("chain-thaw", "unfreezing=chain_thaw,schedule=constant", 5.39),
    "freez": Row("freez", "unfreezing=gradual,rates=equal,schedule=constant", 6.37),
    "freez_discr": Row("freez + discr", "unfreezing=gradual,rates=discriminative,schedule=constant", 5.39),
    "freez_stlr": Row("freez + stlr", "unfreezing=gradual,rates=equal,schedule=slanted", 5.04),
    "freez_cos": Row("freez + cos", "unfreezing=gradual,rates=equal,schedule=cosine", 5.70),
    WHOLE: Row("freez + discr + stlr", "unfreezing=gradual,rates=discriminative,schedule=slanted", 5.00),
}
STAGES = {  # of the first table
    "scratch": ROWS["scratch"]._replace(title="none: from scratch"),
    "two_stages": ROWS[WHOLE]._replace(title="of the reviews", paper=5.63, init=ALONE),
    WHOLE: ROWS[WHOLE]._replace(title="of other text, then of the reviews"),
}


def read(folder, name):
    """The reviews of a file, in a random order that is always the same."""
    with gzip.open(Path(folder) / f"{name}.jsonl.gz", "rt", encoding="utf8") as file:
        rows = [json.loads(line) for line in file]
    random.Random(0).shuffle(rows)
    return rows


def write_data(args, folder):
    """Writes the labelled reviews, train and held_out.jsonl, and the text of the second stage, target.txt."""
    if (folder / "target.txt").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    train, test = read(args.imdb, "train"), read(args.imdb, "test")
    for name, rows, count in (("train", train, args.reviews), ("held_out", test, args.held_out)):
        chosen = [row for label in ("neg", "pos")
                  for row in [row for row in rows if row["label"] == label][: count // 2]]
        (folder / f"{name}.jsonl").write_text("".join(
            json.dumps({"text": clean(row), "label": row["label"]}) + "\n" for row in chosen), encoding="utf8")
    texts, words = [], 0
    for row in read(args.imdb, "unsup") + train:
        if words < args.target_words:
            texts.append(clean(row))
            words += len(texts[-1].split())
    (folder / "target.txt").write_text("\n".join(texts) + "\n", encoding="utf8")


def clean(row):
    """The text of a review in one line."""
    return " ".join(row["text"].replace("<br />", " ").split())


def train(args, run, page, choices, **fields):
    """Trains a run, unless it has ended."""
    done = run.parent / f"{run.name}.done"
    if not done.exists():
        fields |= {"log.report": "false", "log.tensorboard": "false", "checkpoint.keep": 1}
        run_lmrep(run.parent / f"{run.name}.log", "train", f"--config={PAGES / page}:{choices}", f"--workdir={run}",
                  *(f"--config.{name}={value}" for name, value in fields.items()),
                  f"--data_dir={args.data_dir or run.parent / 'stores'}")
        done.touch()
    return run


def network(args):
    """The fields of a network with random values, and of its tokenizer."""
    return {"model.layers": args.layers, "model.width": args.width, "model.embedding": args.embedding, "model.vocab": 0,
            "tokenizer.name": "fastai_paper", "tokenizer.lowercase": "true", "tokenizer.vocab_size": args.words}


def dropout(kind, factor):
    """The dropout of a network, as fields."""
    return {f"model.{name}": round(rate * factor, 4) for name, rate in MODELS[kind].items()}


def language_model(args, workdir, name, seed):
    """The run of a language model."""
    init = language_model(args, workdir, GENERAL, 0) if name == TARGET else None
    text = args.text if name == GENERAL else workdir / "data/target.txt"
    stage = f"stage=target,recipe=released,init={init}" if init else "stage=general"
    return train(args, workdir / (name if name == GENERAL else f"{name}-{seed}"), "ulmfit.py",
                 f"data=files,lengths=fixed,{stage}", **{
                     "data.files": text, "data.documents": "line", "data.test": 0.0, "seed": seed,
                     "steps": args.general_steps if name == GENERAL else args.target_steps,
                     "batch_size": args.batch_size, "optimizer.learning_rate": args.language_rate,
                     "evaluation.every": 10**6, "checkpoint.every": 10**6,
                     "objective.unigram_bias": "true",
                     **({"tokenizer.vocab_size": args.words} if init else network(args)),
                     **dropout("language", args.dropout)})


def error(args, workdir, name, row, seed):
    """The error rate of a classifier in percent."""
    init = language_model(args, workdir, row.init, seed % args.pretrainings) if row.init else None
    rate = args.rate if "discriminative" in row.choices else args.equal_rate
    choices = row.choices + (f",init={init}" if init else "")
    run = train(args, workdir / f"{name}-{seed}", "tasks/ulmfit.py", choices, **{
        "data.train": workdir / "data/train.jsonl", "data.validation": workdir / "data/held_out.jsonl", "seed": seed,
        "epochs": args.epochs, "batch_size": args.classifier_batch, "length": args.length,
        "optimizer.learning_rate": rate, "evaluation.every": 10**6, "checkpoint.every": 10**6,
        **({} if init else network(args)), **dropout("classifier", args.classifier_dropout),
        "objective.ulmfit.dropout": round(0.4 * args.classifier_dropout, 4),
        "objective.dropout": round(0.1 * args.classifier_dropout, 4)})
    return 100 * (1 - lines(run / "metrics.jsonl", "validation")[-1]["accuracy"])


def table(rows, scores, head):
    """The lines of a table."""
    made = [f"| {head} | error rate, % | difference, 95 % interval | paper |", "| --- | --- | --- | --- |"]
    for name, row in rows.items():
        (mean, deviation), interval = mean_and_deviation(scores[name]), ""
        if name != WHOLE:
            more, low, high = paired_interval(scores[name], scores[WHOLE])
            interval = f"{more:+.1f} ({low:+.1f} to {high:+.1f})"
        made.append(f"| {row.title} | {mean:.1f} ± {deviation:.1f} | {interval} | {row.paper:.2f} |")
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imdb", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pretrainings", type=int, default=3, help="of each kind; seeds take them in turn")
    parser.add_argument("--reviews", type=int, default=500, help="labelled reviews")
    parser.add_argument("--held_out", type=int, default=1000, help="reviews that errors are counted on")
    parser.add_argument("--target_words", type=int, default=2_000_000)
    parser.add_argument("--general_steps", type=int, default=400)
    parser.add_argument("--target_steps", type=int, default=900)
    parser.add_argument("--batch_size", type=int, default=32, help="of the language models")
    parser.add_argument("--language_rate", type=float, default=0.01)
    parser.add_argument("--dropout", type=float, default=0.0, help="factor of the language models' dropout")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--embedding", type=int, default=64)
    parser.add_argument("--words", type=int, default=5000, help="of a vocabulary")
    parser.add_argument("--epochs", type=float, default=8.0)
    parser.add_argument("--classifier_batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.03, help="of the classifier's head, discriminative")
    parser.add_argument("--equal_rate", type=float, default=0.003, help="of the classifier, equal for all layers")
    parser.add_argument("--classifier_dropout", type=float, default=0.25, help="factor of the classifiers' dropout")
    parser.add_argument("--rows", default=",".join(ROWS), help="rows of the second table, separated by commas")
    parser.add_argument("--data_dir", default="", help="of token stores; default: in --workdir")
    args = parse_flags(parser, seeds=1, pretrainings=1, reviews=8, held_out=8, target_words=400, general_steps=2,
                       target_steps=2, batch_size=2, width=16, embedding=8, words=200, epochs=4.0, classifier_batch=4,
                       length=16, rows="full")
    workdir = Path(args.workdir).absolute()
    args.text = Path(args.text).absolute()
    write_data(args, workdir / "data")
    rows = {name: row for name, row in ROWS.items() if name in {*args.rows.split(","), *STAGES}}
    every = STAGES | rows
    scores = {name: [] for name in every}
    for seed in range(args.seeds):  # tables of fewer seeds are complete early
        for name, row in every.items():
            scores[name].append(error(args, workdir, name, row, seed))
            print(f"seed {seed}, {name}: error rate {scores[name][-1]:.1f} %", flush=True)
    remark = (f"{args.reviews:,} labelled reviews, {args.epochs:g} epochs, {args.seeds} seeds; {args.layers} layers of "
              f"width {args.width}, embedding {args.embedding}, {args.words:,} words")
    for head, some, file in (("language model", STAGES, "stages.md"), ("training of the classifier", rows, "parts.md")):
        write_table(workdir, table(some, scores, head), remark, file)


if __name__ == "__main__":
    main()
