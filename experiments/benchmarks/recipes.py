"""How far the numbers that tasks choose by default (`recipe=auto`) are from the best of a grid.

    python experiments/benchmarks/recipes.py --init=runs/tiny,runs/mini --data=DIR --workdir=runs/recipes

`--init` are pretrained runs. DIR has the folders sentence-classification (rt-polarity.all, subj.all, custrev.all,
mpqa.all: `label text` lines), glue (MRPC, STS-B), glue-sample (qqp.train.jsonl) and wnut17; what is missing is left
out. A run that is there is not trained again: the command continues where it was stopped. It prints, for each network
and data set, the score of the default, the best of the grid, and their difference, and writes them to WORKDIR/table.md.
Cost on two cores: an hour for a network of 2 layers of width 128, three for 4 layers of 256.
"""

import argparse
import itertools
import json
import random
from pathlib import Path
from typing import NamedTuple

from runs import best, write_table

import lmrep

RATES, UPDATES = (3e-4, 1e-3, 3e-3), (500, 2000)  # the grid
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


def score(init, name, row, setting, args):
    """The best validation score of a run."""
    label = "auto" if setting is None else f"{setting[0]:g}-{setting[1]}"
    run = args.workdir / Path(init).name / name.replace(", ", "-") / label
    if not (run / "results.json").exists():
        fields = files(name, row, args) | QUIET
        if setting:
            rate, updates = setting
            fields |= {"optimizer.learning_rate": rate, "batch_size": BATCH,
                       "epochs": float(min(30, max(1, round(updates * BATCH / row.train))))}
        lmrep.train(f"tasks/{row.page}.py:init={init}", run, **fields)
    return best(run, row.metric)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--workdir", required=True, type=Path)
    parser.add_argument("--sets", default="", help="names of sets, separated by semicolons; by default all")
    args = parser.parse_args()
    names = [name for name in args.sets.split(";") if name] or [*SETS]
    table = ["| network | data set | metric | default | best of the grid | at (rate, updates) | difference |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for name, init in itertools.product(names, args.init.split(",")):
        row = SETS[name]
        if not (Path(args.data) / row.source).exists():
            continue
        scores = {setting: score(init, name, row, setting, args) for setting in itertools.product(RATES, UPDATES)}
        default, winner = score(init, name, row, None, args), max(scores, key=scores.get)
        table.append(f"| {Path(init).name} | {name} | {row.metric} | {100 * default:.1f} | "
                     f"{100 * scores[winner]:.1f} | {winner[0]:g}, {winner[1]:,} | "
                     f"{100 * (default - scores[winner]):+.1f} |")
        print(table[-1], scores, flush=True)
    write_table(args.workdir, table, "best validation, one seed")


if __name__ == "__main__":
    main()
