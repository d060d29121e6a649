"""The files and runs that the commands of `docs/results/` read, as small synthetic ones."""

import gzip
import json
import random
import shutil
from pathlib import Path

from tests import runs, small
from tests.docs import world

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def build(home: Path) -> None:
    """Makes the folder: `world`, and what the benchmarks read beside it."""
    shutil.copytree(runs.shared("world", world.build), home, symlinks=True, dirs_exist_ok=True)
    texts = [path.read_text() for path in sorted((home / "texts").glob("*.txt"))]
    for name in ("enwiki.txt", "wiki.txt"):
        (home / name).write_text("\n".join(texts))  # blank lines between documents
    lines = [line for text in texts for line in text.splitlines()]
    (home / "wikitext-2").mkdir()
    for name, part in (("train", lines[20:]), ("valid", lines[:20])):
        (home / f"wikitext-2/{name}.txt").write_text("\n".join(part) + "\n")
    words = sorted({word.strip(".").lower() for line in lines for word in line.split()})
    (home / "vocab.txt").write_text("\n".join((*SPECIALS, ".", "bad", "good", *words)) + "\n")
    world.table(home / "sst2.tsv", ("sentence", "label"),
                [(each["text"], each["label"]) for each in runs.labelled_texts(24, 0)])
    (home / "runs/downstream/sst2_trees").mkdir(parents=True)
    runs.copy("masked", home / "runs/downstream/pretrained")
    for seed in range(3):
        runs.copy("classification", home / f"runs/downstream/sst2_trees/pretrained-{seed}")
    for name in ("bert_tiny", "mini"):
        runs.copy("masked", home / f"runs/{name}")
    (home / "imdb").mkdir()
    for split in ("train", "unsup", "test"):
        with gzip.open(home / f"imdb/{split}.jsonl.gz", "wt", encoding="utf8") as file:
            file.writelines(json.dumps(record) + "\n" for record in runs.labelled_texts(48, 0))
    data_sets(home)


def data_sets(home: Path) -> None:
    """Some of the data sets that `downstream.py`, `features.py` and `recipes.py` read: sentiment trees, parts of speech
    and labelled sentences."""
    draw = random.Random(0)
    (home / "data/sst-trees").mkdir(parents=True)
    for split, count in (("train", 16), ("dev", 8)):
        trees = [f"({label} (2 {draw.choice(small.NOUNS)}) ({label} {('bad', 'good')[label > 2]}))"
                 for label in (draw.choice((0, 4)) for _ in range(count))]
        (home / f"data/sst-trees/{split}.txt").write_text("\n".join(trees) + "\n")
    (home / "data/sentence-classification").mkdir()
    (home / "data/sentence-classification/custrev.all").write_text("".join(
        f"{each['label']} {each['text']}\n" for each in runs.labelled_texts(24, 0)))
    shutil.copytree(home / "blimp/data", home / "data/blimp")
