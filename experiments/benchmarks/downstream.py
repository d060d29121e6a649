"""What pretraining is worth: one small BERT pretrained on Wikipedia, fine-tuned on tasks, against the same network from
scratch.

    python experiments/benchmarks/downstream.py --text=enwiki.txt --data=DIR --workdir=runs/downstream

`--text` is a file of articles separated by blank lines. DIR has the folders sst-trees (train.txt, dev.txt),
ud-english-ewt, wnut17, squad2-dev (dev-v2.0.json), glue/CoLA, glue/MRPC, glue/RTE and blimp; what is missing is left
out. Everything is trained by `lmrep train`, one run after another, and a run that is there is not trained again: the
command continues where it was stopped. SQuAD's file is split in two by article, one for training.

It prints a table, and writes it to WORKDIR/table.md: the mean over the seeds of the metric of each task, its standard
deviation, and a 95 % interval of the difference, by Student's t over the seeds. Cost on two cores: about an hour
of pretraining (BERT mini, --pretrain_steps batches of 32 sequences of 128 tokens), and several of fine-tuning.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import NamedTuple

from arguments import parse_flags
from runs import best, mean_and_deviation, run_lmrep, write_table
from scipy import stats

TASKS = Path(__file__).parents[1] / "tasks"


class Task(NamedTuple):
    """A row of the table: a page, its files in the data folder, and the flags of every run."""

    title: str
    page: str
    files: dict[str, str]
    metric: str
    flags: tuple[str, ...]
    judged: bool  # whether pretraining is expected to win; other rows are reported as they come


TABLE = (
    Task("SST-2, trained on phrases", "sst2_trees", {"train": "sst-trees/train.txt",
                                                     "validation": "sst-trees/dev.txt"}, "accuracy",
         ("--config.epochs=2", "--config.length=64"), True),
    Task("UD English EWT, part of speech", "ud_pos", {"train": "ud-english-ewt/*-train.conllu",
                                                      "validation": "ud-english-ewt/*-dev.conllu"},
         "token_accuracy", ("--config.epochs=3", "--config.length=128"), True),
    Task("WNUT-17", "wnut17", {"train": "wnut17/*train*", "validation": "wnut17/*dev*"}, "entity_f1",
         ("--config.epochs=6", "--config.length=128"), True),
    *(Task(f"SQuAD 2.0, half of dev, {title}", "squad2",
           {"train": "squad-train.json", "validation": "squad-validation.json"}, metric,
           ("--config.epochs=2", "--config.length=128", "--config.format.stride=64"), True)
      for title, metric in (("with the best threshold", "answer_f1"), ("answerable, always answered", "forced_f1"))),
    Task("CoLA", "cola", {"train": "glue/CoLA/train.tsv", "validation": "glue/CoLA/dev.tsv"}, "matthews",
         ("--config.epochs=5",), False),
    Task("MRPC", "mrpc", {"train": "glue/MRPC/train.tsv", "validation": "glue/MRPC/dev.tsv"}, "f1",
         ("--config.epochs=3",), False),
    Task("RTE", "rte", {"train": "glue/RTE/train.tsv", "validation": "glue/RTE/dev.tsv"}, "accuracy",
         ("--config.epochs=3",), False),
)


# BERT mini as the quick start has its network: layer norm before each block, and initial weights as wide as
# 1 / sqrt(width). From scratch the network is the same.
NETWORK = tuple(f"--config.model.{field}" for field in ("norm=pre", "activation=gelu", "init_stddev=0.0625"))


def pretrain(args, workdir):
    """The pretrained run: a fifth of its steps with next-token prediction, then masked tokens.

    Every token is a target of the first objective, so that attention forms within minutes. With masked tokens alone the
    loss on Wikipedia was still 6.4 after 1,250 steps; this way it was 5.9 after as many of both, and 4.7 after 2,000.
    """
    first = args.pretrain_steps // 5
    for name, objective, steps in (("causal", "causal", first), ("pretrained", "masked", args.pretrain_steps - first)):
        network = ("--config.model.vocab=0", *NETWORK) if name == "causal" else ()
        init = "" if name == "causal" else f",init={workdir / 'causal'}"
        page = TASKS.parent / "bert.py"
        run_lmrep(workdir / f"{name}.log", "train",
              f"--config={page}:model={args.model},data=files,format=packed,objective={objective}{init}",
              f"--workdir={workdir / name}", f"--config.data.files={args.text}", "--config.data.documents=blank_line",
              *((f"--config.tokenizer.vocab_size={args.words}",) if not init else ()), *network,
              "--config.model.dropout=0", "--config.model.attention_dropout=0", "--config.stages=()",
              "--config.length=128", "--config.batch_size=32", f"--config.steps={steps}",
              "--config.optimizer.learning_rate=2e-3", "--config.optimizer.betas=(0.9,0.98)",
              "--config.optimizer.schedule.warmup_fraction=0.1", "--config.evaluation.every=250",
              "--config.checkpoint.every=500", "--config.log.report=false")
    return workdir / "pretrained"


def split_squad(source, workdir):
    """The articles of a SQuAD file, in turn for training and for validation."""
    content = json.loads(source.read_text(encoding="utf8"))
    for name, first in (("train", 0), ("validation", 1)):
        path = workdir / f"squad-{name}.json"
        path.write_text(json.dumps({**content, "data": content["data"][first::2]}), encoding="utf8")


def fine_tune(task, start, seed, args, workdir, pretrained):
    """The metric of one run: its best on the validation file."""
    run = workdir / task.page / f"{start}-{seed}"
    result = run / "result.json"
    if result.exists():
        return best(run, task.metric)
    folder = workdir if task.page == "squad2" else Path(args.data)
    network = f"init={pretrained}" if start == "pretrained" else f"model={args.model}"
    scratch = () if start == "pretrained" else (
        f"--config.tokenizer.vocab_file={pretrained / 'tokenizer'}", *NETWORK)
    began = time.monotonic()
    run_lmrep(run.parent / f"{start}-{seed}.log", "train",
              f"--config={TASKS / task.page}.py:{network},recipe=bert_small", f"--workdir={run}",
              f"--config.seed={seed}", "--config.log.report=false", "--config.log.tensorboard=false",
              *(f"--config.data.{split}={folder / file}" for split, file in task.files.items()), *scratch, *task.flags)
    result.write_text(json.dumps({"seconds": round(time.monotonic() - began)}))
    return best(run, task.metric)


def row(task, scores):
    """A line of the table."""
    (before, low), (after, high) = (mean_and_deviation(scores[start]) for start in ("scratch", "pretrained"))
    difference, n = after - before, len(scores["scratch"])
    error = math.sqrt((low**2 + high**2) / n)
    half = stats.t.ppf(0.975, 2 * n - 2) * error if n > 1 else math.nan
    cells = [f"{100 * mean:.1f} ± {100 * deviation:.1f}" for mean, deviation in ((before, low), (after, high))]
    return (f"| {task.title} | {task.metric} | {cells[0]} | {cells[1]} | {100 * difference:+.1f} "
            f"({100 * (difference - half):+.1f} to {100 * (difference + half):+.1f}) |")


def minimal_pairs(args, workdir, run):
    """BLiMP, as a line of the table."""
    result = workdir / f"blimp-{args.pairs or 'all'}.json"
    if not result.exists():
        began = time.monotonic()
        run_lmrep(workdir / "blimp.log", "evaluate", f"--workdir={run}", f"--pairs={Path(args.data) / 'blimp'}",
                  f"--examples={args.pairs}")
        values = json.loads((run / "eval.json").read_text())["metrics"]
        result.write_text(json.dumps({"value": values["accuracy"], "seconds": round(time.monotonic() - began)}))
    found = json.loads(result.read_text())
    return (f"| BLiMP, {args.pairs or 'all'} pairs of each paradigm ({found['seconds']} s) | accuracy | | "
            f"{100 * found['value']:.1f} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--pretrain_steps", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=0, help="of each paradigm of BLiMP; 0: all")
    parser.add_argument("--tasks", default="", help="pages, separated by commas; by default all")
    parser.add_argument("--model", default="bert_mini", help="a preset")
    parser.add_argument("--words", type=int, default=8192, help="of the vocabulary")
    args = parse_flags(parser, model="bert_tiny", words=300, pretrain_steps=10, seeds=1, pairs=2)
    workdir = Path(args.workdir).absolute()
    workdir.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    pretrained = pretrain(args, workdir)
    print(f"pretrained: {pretrained}, {time.monotonic() - began:.0f} s", flush=True)
    if (squad := Path(args.data) / "squad2-dev/dev-v2.0.json").exists():
        split_squad(squad, workdir)
    table = ["| task | metric | from scratch | pretrained | difference, 95 % interval |",
             "| --- | --- | --- | --- | --- |"]
    for task in TABLE:
        folder = workdir if task.page == "squad2" else Path(args.data)
        if (args.tasks and task.page not in args.tasks.split(",")) or not list(folder.glob(task.files["train"])):
            continue
        scores = {"scratch": [], "pretrained": []}
        for seed in range(args.seeds):
            for start, values in scores.items():
                values.append(fine_tune(task, start, seed, args, workdir, pretrained))
        table.append(row(task, scores))
        print(table[-1], flush=True)
    if (Path(args.data) / "blimp").is_dir():
        table.append(minimal_pairs(args, workdir, pretrained))
        print(table[-1], flush=True)
    write_table(workdir, table, f"{args.model}, {args.pretrain_steps:,} steps of pretraining, {args.seeds} seeds")


if __name__ == "__main__":
    main()
