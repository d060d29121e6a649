"""How far the numbers that tasks choose by default (`recipe=auto`) are from the best of a grid.

    python experiments/benchmarks/recipes.py --init=runs/tiny,runs/mini --data=DIR --workdir=runs/recipes

`--init` are pretrained runs. DIR has the folders sentence-classification (rt-polarity.all, subj.all, custrev.all,
mpqa.all: `label text` lines), glue (MRPC, STS-B), glue-sample (qqp.train.jsonl) and wnut17; what is missing is left
out. A run that is there is not trained again: the command continues where it was stopped. It prints, for each network
and data set, the score of a bag of words, of the default and of the best of the grid, and writes them to
WORKDIR/table.md. The best of many runs is partly the luckiest: default and best setting are trained again with
`--seeds` further seeds, whose means are the columns "again". Cost on one core: about 40 s a run for a network of 2
layers of width 128.
"""

import argparse
import itertools
import json
import random
import statistics
from pathlib import Path
from typing import NamedTuple

from arguments import parse_flags
from runs import best, write_table

import lmrep

BATCH = 16
QUIET = {"log.report": False, "log.tensorboard": False}


class Set(NamedTuple):
    """A data set: a page, where its examples are, and how many of them are trained on."""

    page: str
    source: str
    train: int
    metric: str
    columns: tuple[str, ...] = ()  # the fields of a JSON line, and those of the task


SETS = {
    "MR, 500": Set("classify", "sentence-classification/rt-polarity.all", 500, "accuracy"),
    "MR, 2,500": Set("classify", "sentence-classification/rt-polarity.all", 2500, "accuracy"),
    "MR, 9,000": Set("classify", "sentence-classification/rt-polarity.all", 9000, "accuracy"),
    "SUBJ, 2,500": Set("classify", "sentence-classification/subj.all", 2500, "accuracy"),
    "CR, 2,500": Set("classify", "sentence-classification/custrev.all", 2500, "accuracy"),
    "MPQA, 5,000": Set("classify", "sentence-classification/mpqa.all", 5000, "accuracy"),
    "QQP, 8,000": Set("classify", "glue-sample/qqp.train.jsonl", 8000, "accuracy", ("question1", "question2")),
    "MRPC": Set("mrpc", "glue/MRPC", 3668, "accuracy"),
    "STS-B": Set("stsb", "glue/STS-B", 5749, "pearson"),
    "WNUT-17": Set("wnut17", "wnut17", 3394, "entity_f1"),
}
HELD_OUT = 1000


def examples(path, columns):
    """The records of a file: `label text` lines, or JSON lines with two texts."""
    lines = path.read_text(encoding="latin-1" if path.suffix == ".all" else "utf8").strip().split("\n")
    if not columns:
        return [{"label": label, "text": text} for label, _, text in (line.partition(" ") for line in lines)]
    return [{"label": str(record["label"]), "text": record[columns[0]], "text2": record[columns[1]]}
            for record in map(json.loads, lines)]


def files(name, row, args):
    """The config fields of a set's files, which are written once: the last examples of a fixed order are held out."""
    data = Path(args.data)
    if row.page == "wnut17":
        return {f"data.{split}": str(next((data / row.source).glob(f"*{part}*")))
                for split, part in (("train", "train"), ("validation", "dev"))}
    if (data / row.source).is_dir():
        return {f"data.{split}": str(data / row.source / f"{part}.tsv")
                for split, part in (("train", "train"), ("validation", "dev"))}
    folder = args.workdir / "data"
    folder.mkdir(parents=True, exist_ok=True)
    records = examples(data / row.source, row.columns)
    records = [record for record in records if all(text.strip() for text in record.values())]
    random.Random(0).shuffle(records)
    parts = {"train": records[:row.train], "validation": records[-HELD_OUT:]}
    paths = {split: folder / f"{name.replace(', ', '-')}-{split}.jsonl" for split in parts}
    for split, path in paths.items():
        if not path.exists():
            path.write_text("".join(json.dumps(record) + "\n" for record in parts[split]), encoding="utf8")
    return {f"data.{split}": str(path) for split, path in paths.items()}


def trained(init, name, row, setting, args, seed=0):
    """The workdir of a run with a setting of the grid, or with the default (None)."""
    label = "auto" if setting is None else "-".join(f"{value:g}" for value in setting)
    label += f"-seed{seed}" if seed else ""
    run = args.workdir / Path(init).name / name.replace(", ", "-") / label
    if not (run / "results.json").exists():
        fields = files(name, row, args) | QUIET | {"seed": seed}
        if setting:
            rate, updates, dropout = setting
            fields |= {"optimizer.learning_rate": rate, "batch_size": BATCH,
                       "epochs": float(min(30, max(1, round(updates * BATCH / row.train)))),
                       "model.dropout": dropout, "model.attention_dropout": dropout}
        lmrep.train(f"tasks/{row.page}.py:init={init}", run, **fields)
    return run


def bag_of_words(run, metric):
    """The score of the bag of words that a run is compared with, as text; "" if there is none."""
    rows = json.loads((run / "results.json").read_text())["comparison"]
    return next((f"{100 * row['metrics'][metric]:.1f}" for row in rows if row["kind"] == "bag_of_words"), "")


def again(init, name, row, setting, args):
    """The mean score of a setting over further seeds, as text; "" without any."""
    scores = [best(trained(init, name, row, setting, args, seed), row.metric) for seed in range(1, 1 + args.seeds)]
    return f"{100 * statistics.mean(scores):.1f}" if scores else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--workdir", required=True, type=Path)
    parser.add_argument("--sets", default="", help="names of sets, separated by semicolons; by default all")
    parser.add_argument("--rates", default="3e-4,1e-3,3e-3", help="learning rates of the grid")
    parser.add_argument("--updates", default="500,2000", help="numbers of updates of the grid")
    parser.add_argument("--dropouts", default="0,0.1", help="dropouts of the grid")
    parser.add_argument("--seeds", type=int, default=3, help="further seeds of the default and the best setting")
    args = parse_flags(parser, rates="1e-3", updates="10", dropouts="0.1", seeds=1)
    grid = [*itertools.product(*(map(float, text.split(",")) for text in (args.rates, args.updates, args.dropouts)))]
    names = [name for name in args.sets.split(";") if name] or [*SETS]
    table = ["| network | data set | metric | bag of words | default | best of the grid | at (rate, updates, dropout) "
             "| difference | default again | best again |", f"|{' --- |' * 10}"]
    for name, init in itertools.product(names, args.init.split(",")):
        row = SETS[name]
        if not (Path(args.data) / row.source).exists():
            continue
        default = trained(init, name, row, None, args)
        score = best(default, row.metric)
        scores = {setting: best(trained(init, name, row, setting, args), row.metric) for setting in grid}
        winner = max(scores, key=scores.get)
        setting, best_score = "{:g}, {:,.0f}, {:g}".format(*winner), scores[winner]
        table.append(f"| {Path(init).name} | {name} | {row.metric} | {bag_of_words(default, row.metric)} | "
                     f"{100 * score:.1f} | {100 * best_score:.1f} | {setting} | {100 * (score - best_score):+.1f} | "
                     f"{again(init, name, row, None, args)} | {again(init, name, row, winner, args)} |")
        print(table[-1], scores, flush=True)
    write_table(args.workdir, table, "best validation, one seed but for the last two columns")


if __name__ == "__main__":
    main()
