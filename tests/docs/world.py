"""A folder with the files and the runs that the documentation names, at a tiny size."""

import gzip
import json
import os
import random
import shutil
from pathlib import Path

from lmrep.data.corpora import babylm
from lmrep.inference import reading_times as reading
from lmrep.metrics import glue
from tests import runs, small
from tests.cli.test_score_glue import GOLD
from tests.docs.documented import ROOT
from tests.tasks import tags

RUNS = {"mine": "masked", "quickstart": "masked", "gpt2": "causal", "lstm": "recurrent", "sst2": "classification",
        "ner": "tagging", "multi30k": "text_to_text"}
QUIET = "--config.log.tensorboard=false --config.log.report=false"
SIZES = f"--config.length=32 --config.batch_size=8 --config.tokenizer.vocab_size=300 --config.model.vocab=0 {QUIET}"
PRETRAIN = ("--config.data.corpus=text_files --config.data.files=texts/*.txt --config.steps=2 --config.stages=() "
            f"--config.checkpoint.every=2 --config.evaluation.every=2 {SIZES}")


def build(home: Path) -> Path:
    """Makes the folder: everything that the pages read and no earlier command of them writes."""
    draw = random.Random(0)
    (home / "runs").mkdir(parents=True)
    (home / "experiments").symlink_to(ROOT / "experiments")
    shutil.copytree(runs.folder("masked") / "texts", home / "texts")
    shutil.copytree(runs.folder("masked") / "data", home / "cache")
    for name, run in RUNS.items():
        runs.copy(run, home / "runs" / name)
    sentences = [f"The {draw.choice(small.ADJECTIVES)} {draw.choice(small.NOUNS)} {draw.choice(small.VERBS)} the cat."
                 for _ in range(24)]
    (home / "texts.txt").write_text("\n".join(sentences) + "\n")
    texts = [path.read_text() for path in sorted((home / "texts").glob("*.txt"))]
    with gzip.open(home / "texts/texts.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    (home / "prompts.jsonl").write_text("".join(json.dumps({"text": f"{text} [MASK]"}) + "\n" for text in sentences))
    for name, count in (("train", 24), ("dev", 12), ("test", 12)):
        records = runs.labelled_texts(count, len(name))
        table(home / f"{name}.tsv", ("text", "label"), [(each["text"], each["label"]) for each in records])
        (home / f"topics_{name}.jsonl").write_text("".join(
            json.dumps({"text": each["text"], "labels": [each["label"], "words"]}) + "\n" for each in records))
        for language in ("de", "en"):
            (home / f"{name}.{language}").write_text("".join(f"{each['text']}\n" for each in records))
    shutil.copy(home / "test.en", home / "output.en")
    for name, count in (("eng.train", 24), ("eng.testa", 8), ("eng.testb", 8)):
        tags.write(home / name, tags.sentences(count, count))
    (home / "conll2003").mkdir()
    for name in ("eng.train", "eng.testa", "eng.testb"):
        shutil.copy(home / name, home / "conll2003" / name)
    (home / "UD_English-EWT").mkdir()
    for split in ("train", "dev", "test"):
        lines = ["\n".join(tree(words)) for words, _ in tags.sentences(16, len(split))]
        (home / f"UD_English-EWT/en_ewt-ud-{split}.conllu").write_text("\n\n".join(lines) + "\n\n")
    for split in ("train", "dev"):
        (home / "WiC_dataset" / split).mkdir(parents=True)
        (home / f"WiC_dataset/{split}/{split}.data.txt").write_text("".join(
            f"cat\tN\t5-1\t{text}\tThe {draw.choice(small.NOUNS)} sees\n" for text in sentences))
        (home / f"WiC_dataset/{split}/{split}.gold.txt").write_text("T\nF\n" * 12)
    (home / "glove.txt").write_text("".join(
        f"{word} {' '.join(f'{draw.random():.3f}' for _ in range(4))}\n" for word in (*tags.NAMES, *tags.CITIES)))
    questions(home, draw)
    submissions(home, draw)
    (home / "blimp/data").mkdir(parents=True)
    (home / "blimp/data/agreement.jsonl").write_text("".join(json.dumps({
        "sentence_good": f"The {noun} sees the dog.", "sentence_bad": f"The {noun} see the dog.", "UID": "agreement",
        "linguistics_term": "agreement"}) + "\n" for noun in small.NOUNS))
    suite(home / "babylm")
    (home / "evaluation_data").mkdir()
    for name in ("fast_eval", "full_eval"):
        (home / "evaluation_data" / name).symlink_to(home / "babylm")
    challenge(home / "train_10M")
    answer = small.command("convert", home / "runs/mine", home / "bert-base-uncased", "--to=huggingface")
    assert answer.code == 0, answer
    return home


def tree(words: list[str]) -> list[str]:
    """The lines of a sentence in CoNLL-U, whose words all hang on the first verb."""
    root, upos = words.index("visits") + 1, {"visits": "VERB", ".": "PUNCT"}
    arcs = [(0, "root") if i == root else (root, "dep") for i in range(1, len(words) + 1)]
    return [f"{i}\t{word}\t_\t{upos.get(word, 'PROPN')}\t_\t_\t{head}\t{relation}\t_\t_"
            for i, (word, (head, relation)) in enumerate(zip(words, arcs, strict=True), 1)]


def suite(directory: Path) -> None:
    """A line of each form of `lmrep evaluate --suite` for each noun, and reading times."""
    (directory / "reading").mkdir(parents=True)
    (directory / "reading/reading_data.csv").write_text(reading_times())
    for task, line in {
        "blimp": lambda noun: {"sentence_good": f"The {noun} sees.", "sentence_bad": f"The {noun} see."},
        "ewok": lambda noun: {"Context1": f"The {noun} is old.", "Context2": f"The {noun} is small.", "Domain": "age",
                              "Target1": "It is old.", "Target2": "It is small."},
        "comps": lambda noun: {"prefix_acceptable": f"A {noun}", "prefix_unacceptable": "A red",
                               "property_phrase": "finds the fish."},
        "entity_tracking": lambda noun: {"input_prefix": "The box has", "numops": len(noun) % 2,
                                         "options": [f" the {noun}.", " the old red.", " the box."]},
        "wug": lambda noun: {"sentences": f"the {noun} sees\tthe {noun}ness sees", "ratio": len(noun) / 10}}.items():
        (directory / task).mkdir(parents=True)
        (directory / task / f"{task}.jsonl").write_text("".join(json.dumps(line(noun)) + "\n" for noun in small.NOUNS))


def challenge(directory: Path, lines: int = 60) -> None:
    """The six files of the BabyLM challenge, of short sentences."""
    directory.mkdir()
    for name in babylm.CLEANERS:
        draw = random.Random(name)
        words = ("The", "the", *small.ADJECTIVES, *small.NOUNS, *small.VERBS)
        (directory / f"{name}.train").write_text("".join(
            f"{' '.join(draw.choice(words) for _ in range(8))} .\n" for _ in range(lines)))


def reading_times(rows: int = 40) -> str:
    """A table of random times in the form of the challenge's, of sentences such as "the old cat sees"."""
    draw, lines = random.Random(0), [",".join(["", *reading.WORD, *reading.PREVIOUS, *reading.NUMBERS])]
    for i in range(rows):
        words = ["the", draw.choice(("old", "small", "red")), draw.choice(small.NOUNS), "sees"][: 2 + i % 3]
        item, previous = (" ".join(words[:-n]) for n in (1, 2))
        numbers = [f"{draw.random():.3f}" for _ in reading.NUMBERS]
        lines.append(",".join([str(i), item, words[-1], previous, words[-2] if previous else "", *numbers]))
    return "\n".join(lines) + "\n"


def table(path: Path, header: tuple, rows: list[tuple]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in (header, *rows)))


def questions(home: Path, draw: random.Random) -> None:
    """SQuAD 2.0's files, and predictions for them."""
    (home / "squad").mkdir()
    for split, count in (("train", 16), ("dev", 8)):
        paragraphs = []
        for i in range(count):
            name, city = draw.choice(tags.NAMES), draw.choice(tags.CITIES)
            context = f"{name} lives in {city}."
            answers = [{"text": city, "answer_start": context.index(city)}] if i % 4 else []
            paragraphs.append({"context": context, "qas": [{
                "id": f"{split}{i}", "question": f"Where is {name}?", "answers": answers,
                "is_impossible": not answers}]})
        text = json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})
        (home / f"squad/{split}-v2.0.json").write_text(text)
    shutil.copy(home / "squad/dev-v2.0.json", home / "dev-v2.0.json")
    ids = [each["qas"][0]["id"] for each in paragraphs]
    (home / "predictions.json").write_text(json.dumps(dict.fromkeys(ids, "Oslo")))
    (home / "null_odds.json").write_text(json.dumps({id: draw.random() for id in ids}))


def submissions(home: Path, draw: random.Random) -> None:
    """RTE's files to train on, gold files of the other tasks, and a submission."""
    for split in ("train", "dev", "test"):
        labels = [draw.choice(("entailment", "not_entailment")) for _ in range(16)]
        rows = [(i, "the cat sees", "the dog", label) for i, label in enumerate(labels)]
        header = ("index", "sentence1", "sentence2", "label")
        table(home / f"glue/RTE/{split}.tsv", header[:3] if split == "test" else header,
              [row[:3] for row in rows] if split == "test" else rows)
    for task, (gold, predicted, _) in GOLD.items():
        if task not in ("RTE", "MNLI"):
            path = Path(glue.gold_file(str(home / "glue"), task))
            path.parent.mkdir(exist_ok=True)
            path.write_text(gold)
        if task not in ("AX", "MNLI"):
            values = ["entailment"] * 16 if task == "RTE" else predicted.split()
            table(home / f"submission/{task}.tsv", ("index", "prediction"), list(enumerate(values)))
    shutil.copy(home / "submission/MRPC.tsv", home / "MRPC.tsv")


SMALLER = {"--stride=256": "--stride=16", "--fraction=0.3": "--fraction=0.5"}  # for 32 tokens and two heads


def tiny(words: list[str]) -> list[str]:
    """A documented command line, made as small as its files."""
    words = [SMALLER.get(word, word) for word in words if not word.startswith("--config.budget=")]
    name = words[0]
    # One device: programs for eight take longer to compile, and there are more of them.
    one = [] if any("mesh" in word for word in words) else ["--config.mesh.data=1"]
    if name == "reproduce" and "--list" not in words:
        return [*("--seeds=0" if word.startswith("--seeds=") else word for word in words), "--config.steps=2",
                "--config.batch_size=8", "--config.length=32", "--config.evaluation.examples=8", *QUIET.split(), *one]
    flag = next((word for word in words if word.startswith("--config=")), "")
    config = flag.removeprefix("--config=").removeprefix("experiments/")
    if name not in ("train", "sweep", "doctor", "prepare", "plan", "probe") or not config:
        return words
    for size in ("size=mini", "size=small", "size=base", "size=large", "track=strict_small"):
        words = [word.replace(size, "size=tiny") if word == flag else word for word in words]
    words = ["--seeds=0" if word.startswith("--seeds=") else word for word in words]
    one = one if name in ("train", "sweep", "probe") and not config.startswith("chains/") else []
    if config.startswith("transformer_mt"):  # whose SentencePiece model finds few pieces in few texts
        steps = "--config.steps=2 --config.optimizer.schedule.warmup=1"
        return [*words, *one, *f"{steps} {SIZES.replace('=300', '=90')}".split()]
    if config.startswith("chains/"):  # a chain of runs
        return [*words, "--config.adapt.steps=2", "--config.adapt.batch_size=8", "--config.adapt.length=32",
                "--config.task.epochs=1", "--config.task.length=32"]
    if config.startswith("tasks/"):
        return [*words, *one, "--config.epochs=1", "--config.batch_size=8", "--config.length=32", *QUIET.split()]
    pretrain = PRETRAIN.replace("=300", "=130") if config.startswith("t5.py") else PRETRAIN  # as above
    has_text = any(name in word for word in words for name in ("data.files", "sources", "data.corpus"))
    return [*words, *one, *(word for word in pretrain.split() if not (has_text and word.startswith("--config.data.")))]


def use(home: Path, monkeypatch) -> None:
    """Makes `home` the working directory, with stores of its own."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("LMREP_DATA_DIR", os.fspath(home / "cache"))
