"""What the vectors of a frozen encoder are worth to a task: without them, with each layer alone, and with all layers
mixed (Peters et al., 2018; McCann et al., 2017).

    python experiments/benchmarks/features.py --encoder=runs/elmo --data=DIR --workdir=runs/features

`--encoder` is a run or a published directory; `--untrained`, one with the same network and random parameters, of which
the last layer is read. DIR has the folders wnut17, ud-english-ewt and sst-trees; one that is missing is left out. Names
(WNUT-17) are tagged by a bidirectional LSTM with a CRF over the vectors of the encoder and a convolution over the
characters of each word, which is all that the first row has; `--vectors`, a text file of word vectors, adds these to
every row. Parts of speech (UD) are read off the vectors by a linear layer. Sentences (SST-2) are classified by CoVe's
network, which has a row without the encoder where there are word vectors. Only what is above the encoder is trained,
and the encoder runs over each text once (`cache_features`). Runs that are there are not trained again: the command
continues where it was stopped.

It prints a table, and writes it to WORKDIR/table.md: means over the seeds with standard deviations, and the difference
from the last layer alone with a 95 % interval, by Student's t over the pairs of runs of one seed.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from arguments import parse_flags
from runs import best, mean_and_deviation, paired_interval, run_lmrep, write_table

import lmrep
from lmrep.models.layer_choice import widths

UNTRAINED = "untrained"
TASKS = Path(__file__).parents[1] / "tasks"


class Task(NamedTuple):
    """A tagging task: its page, its files in the data folder, the metric, the choices and the flags of every run."""

    title: str
    page: str
    files: dict[str, str]
    metric: str
    choices: str
    flags: tuple[str, ...] = ()
    alone: bool = False  # whether it has something to read without the encoder


TABLE = (
    Task("WNUT-17, BiLSTM-CRF", "wnut17", {"train": "wnut17/*train*", "validation": "wnut17/*dev*"}, "entity_f1",
         ",network=bilstm_crf", ("--config.objective.characters.filters=100",
                                 "--config.objective.characters.dropout=0.2", "--config.objective.bilstm.dropout=0.3",
                                 "--config.objective.features.dropout=0.2"), True),
    Task("UD English EWT, linear", "ud_pos", {"train": "ud-english-ewt/*-train.conllu",
                                              "validation": "ud-english-ewt/*-dev.conllu"}, "token_accuracy", ""),
    Task("SST-2 sentences, BCN", "sst2_trees", {"train": "sst-trees/train.txt", "validation": "sst-trees/dev.txt"},
         "accuracy", ",network=bcn", ("--config.data.phrases=false", "--config.objective.bcn.width=64",
                                      "--config.objective.bcn.maxout=(64,32,16)")),
)


def layer_choices(model):
    """{title: value of features.layers} for each layer of a network and for all of them."""
    layers = len(widths(model))
    names = {i: "layer 0 (embeddings)" if not i else f"layer {i} (last)" if i == layers - 1 else f"layer {i}"
             for i in range(layers)}
    mixed = [i for i, width in enumerate(widths(model)) if width == widths(model)[-1]]  # others cannot be added to them
    title = "all layers, mixed" if len(mixed) == layers else f"layers {', '.join(map(str, mixed))}, mixed"
    return {**{title: str(i) for i, title in names.items()}, title: f"mix:{','.join(map(str, mixed))}"}


def train(task, layers, seed, args):
    """The best validation metric of a run; `layers` "" for one without the encoder, UNTRAINED for the other encoder."""
    run = args.workdir / task.page / f"{layers.replace(':', '-') or 'none'}-{seed}"
    source, layers = (args.untrained, "last") if layers == UNTRAINED else (args.encoder, layers)
    done = run / "best.json"
    if not done.exists():
        encoder = f",features={source}" if layers else ""
        own = ((f"--config.objective.features.layers={layers}", f"--config.objective.features.l2={args.l2}",
                "--config.cache_features=true") if layers else
               (f"--config.tokenizer.vocab_file={args.encoder / 'tokenizer'}",
                f"--config.tokenizer.name={args.tokenizer}", "--config.model.vocab=0"))
        vectors = f",vectors={args.vectors}" if args.vectors else ""
        run_lmrep(run.parent / f"{run.name}.log", "train",
                  f"--config={TASKS / task.page}.py:model=none{encoder}{vectors}{task.choices}", f"--workdir={run}",
                  *(f"--config.data.{split}={Path(args.data) / name}" for split, name in task.files.items()),
                  f"--config.epochs={args.epochs}", f"--config.optimizer.learning_rate={args.learning_rate}",
                  f"--config.seed={seed}", "--config.log.report=false",
                  "--config.log.tensorboard=false", *own, *task.flags)
        done.write_text(json.dumps({task.metric: best(run, task.metric)}))
    return json.loads(done.read_text())[task.metric]


def rows(task, choices, scores):
    """The lines of a task."""
    last = scores[next(layers for title, layers in choices.items() if "(last)" in title)]
    own = {title: layers for title, layers in (("no encoder", ""), ("untrained encoder, last layer", UNTRAINED))
           if layers in scores}
    for title, layers in (own | choices).items():
        (mean, deviation), interval = mean_and_deviation(scores[layers]), ""
        if scores[layers] is not last:
            more, low, high = paired_interval(scores[layers], last)
            interval = f"{100 * more:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        yield f"| {task.title} | {task.metric} | {title} | {100 * mean:.1f} ± {100 * deviation:.1f} | {interval} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True, type=lambda text: Path(text).absolute())
    parser.add_argument("--untrained", default="", type=lambda text: text and Path(text).absolute())
    parser.add_argument("--data", required=True)
    parser.add_argument("--workdir", required=True, type=lambda text: Path(text).absolute())
    parser.add_argument("--vectors", default="", help="a text file of word vectors")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    parser.add_argument("--layers", default="", help="values of features.layers, separated by commas; by default all")
    parser.add_argument("--l2", type=float, default=0.001, help="lambda of the mix")
    parser.add_argument("--tasks", default="", help="pages, separated by commas; by default all")
    args = parse_flags(parser, seeds=1, epochs=1)
    args.workdir.mkdir(parents=True, exist_ok=True)
    run = lmrep.load(args.encoder)
    args.tokenizer = run.tokenizer.name
    choices = {title: layers for title, layers in layer_choices(run.model).items()
               if not args.layers or layers in args.layers.split(",")}
    if args.tiny:
        choices = dict([*choices.items()][-2:])  # the last layer, and all layers mixed
    table = ["| task | metric | the tagger reads | validation | difference from the last layer, 95 % interval |",
             "| --- | --- | --- | --- | --- |"]
    for task in TABLE:
        if (args.tasks and task.page not in args.tasks.split(",")) or not list(
                Path(args.data).glob(task.files["train"])):
            continue
        alone = task.alone or bool(args.vectors)
        scores = {layers: [] for layers in (*[""] * alone, *[UNTRAINED] * bool(args.untrained), *choices.values())}
        for seed in range(args.seeds):  # a table of fewer seeds is complete early
            for layers, found in scores.items():
                found.append(train(task, layers, seed, args))
                print(f"{task.page}, seed {seed}, layers {layers or 'none'}: {found[-1]:.4f}", flush=True)
        table += rows(task, choices, scores)
    write_table(args.workdir, table, f"Encoder {args.encoder.name}, {args.epochs:g} epochs, {args.seeds} seeds")


if __name__ == "__main__":
    main()
