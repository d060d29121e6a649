"""What each part of AWD-LSTM is worth: small language models with and without it, at equal steps.

    python experiments/benchmarks/awd_lstm.py --text=wikitext-2/train.txt --valid=wikitext-2/valid.txt --minutes=10 \\
        --workdir=runs/awd_lstm

`--text` and `--valid` are files of words, a line a document; --lines takes the first lines of --text. The network is
that of `experiments/awd_lstm.py` with smaller layers and a smaller vocabulary, and its dropout times --dropout. A short
run measures how long a step takes; all networks then train for the steps that fit into --minutes, with --seeds seeds
each, on the same text. The rows without a part are compared with the first training of the whole recipe. The second
training has as many steps at most, and ends by its rule; where it is no better on the validation text of the run than
the first one, the first one counts.

Everything is trained by `lmrep train`, one run after another, in the order of --parts, and a run that is there is not
trained again: the command continues where it was stopped.

It prints a table, and writes it to WORKDIR/table.md: the perplexity of --valid with the best checkpoint of each run,
mean over the seeds and standard deviation, and the difference from the first training with a 95 % interval, by
Student's t over the pairs of runs of one seed. Beside it are the differences of test perplexities in the paper's
ablation, from the model that the row is compared with here (Merity et al., 2018, table 4). Time: seeds x 9 x --minutes,
at most.
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from arguments import parse_flags
from runs import lines, mean_and_deviation, paired_interval, run_lmrep, write_table

PAGE = Path(__file__).parents[1] / "awd_lstm.py"
PROBE = 40  # steps of the run that measures time
FULL = "full"
DROPOUT = {"dropout": 0.4, "hidden_dropout": 0.2, "input_dropout": 0.65, "embedding_dropout": 0.1,
           "weight_dropout": 0.5}  # of the size wt2


class Part(NamedTuple):
    """A row of the table: what is removed, and the difference in the paper, of the Penn Treebank and of WikiText-2.
    The paper removes a part from both trainings."""

    title: str
    fields: Mapping[str, float] = {}
    choices: str = ""
    paper: tuple[float, float] | None = None


PLAIN = {**{f"model.{name}": 0.0 for name in (*DROPOUT, "ar", "tar")}, "optimizer.weight_decay": 0.0}
PARTS = {
    FULL: Part("AWD-LSTM, first training"),
    "second": Part("and the second training", paper=(-1.5, -0.2)),
    "averages": Part("without averages", choices=",optimizer=sgd", paper=(6.4, 3.9)),
    "lengths": Part("without varying lengths", choices=",lengths=fixed", paper=(1.6, 0.4)),
    "types": Part("without embedding dropout", {"model.embedding_dropout": 0.0}, paper=(5.4, 2.3)),
    "decay": Part("without weight decay", {"optimizer.weight_decay": 0.0}, paper=(3.7, 2.9)),
    "penalties": Part("without AR and TAR", {"model.ar": 0.0, "model.tar": 0.0}, paper=(3.0, 4.3)),
    "weights": Part("without dropout of recurrent weights", {"model.weight_dropout": 0.0}, paper=(11.6, 9.1)),
    "plain": Part("plain LSTM, without all of these", PLAIN, ",optimizer=sgd,lengths=fixed"),
}


def train(args, run, part, seed, steps, init=None):
    """Trains a network, or from `init` a second time, and returns its loss on --valid."""
    result = run / "eval.json"
    if not result.exists():
        every = PROBE if run.name == "probe" else max(1, steps // args.validations)
        second = f",training=second,init={init}" if init else ""
        fields = {
            "data.files": args.text, "data.documents": "line", "data.test": 0.0, "seed": seed, "steps": steps,
            "length": args.length, "batch_size": args.batch_size, "optimizer.learning_rate": args.learning_rate,
            "evaluation.every": every, "checkpoint.every": every, "checkpoint.keep": 1, "log.every": 20,
            "log.report": "false", "log.tensorboard": "false"}
        if not init:
            fields |= {"tokenizer.vocab_size": args.words, "model.vocab": 0, "model.width": args.width,
                       "model.embedding": args.embedding}
        fields |= {f"model.{name}": rate * args.dropout for name, rate in DROPOUT.items()} | part.fields
        log, flags = run.parent / f"{run.name}.log", [f"--data_dir={args.data_dir}"] if args.data_dir else []
        run_lmrep(log, "train", f"--config={PAGE}:size=wt2,data=files{part.choices}{second}", f"--workdir={run}",
                  *(f"--config.{name}={value}" for name, value in fields.items()), *flags)
        run_lmrep(log, "evaluate", f"--workdir={run}", f"--files={args.valid}", *flags)
    return json.loads(result.read_text())["metrics"]["lm_loss"]


def perplexity(args, name, seed, steps, workdir):
    """The perplexity of a row of the table and a seed."""
    first = workdir / f"{FULL if name == 'second' else name}-{seed}"
    loss = train(args, first, PARTS[name], seed, steps)
    if name == "second":
        second = workdir / f"second-{seed}"
        of_second = train(args, second, PARTS[name], seed, steps, first)
        loss = of_second if least(second) < least(first) else loss  # as the released code, which keeps the better one
    return math.exp(loss)


def least(run):
    """The least loss of the validations of a run after the one before training."""
    return min(line["loss"] for line in lines(run / "metrics.jsonl", "validation") if line["step"] > 0)


def steps_for(args, workdir):
    """The steps that fit into --minutes, measured once: later starts take what is on record. Lengths do not vary in
    the run that is measured, so that it compiles one program."""
    record = workdir / "steps.json"
    if not record.exists():
        train(args, workdir / "probe", PARTS["lengths"], 0, PROBE)
        rate = lines(workdir / "probe/timing.jsonl", "train")[-1]["steps_per_second"]
        record.write_text(json.dumps({"steps": max(PROBE, round(60 * args.minutes * rate)), "rate": rate}))
    return json.loads(record.read_text())["steps"]


def row(name, scores):
    """A line of the table."""
    part, (mean, deviation) = PARTS[name], mean_and_deviation(scores[name])
    interval = ""
    if name != FULL:
        more, low, high = paired_interval(scores[name], scores[FULL])
        interval = f"{more:+.1f}" + (f" ({low:+.1f} to {high:+.1f})" if math.isfinite(low) else "")
    paper = ("", "") if part.paper is None else (f"{value:+.1f}" for value in part.paper)
    spread = f" ± {deviation:.1f}" if len(scores[name]) > 1 else ""
    return f"| {part.title} | {mean:.1f}{spread} | {interval} | {' | '.join(paper)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--lines", type=int, default=0, help="of --text; 0: all")
    parser.add_argument("--valid", required=True)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--minutes", type=float, required=True, help="of a training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--embedding", type=int, default=128)
    parser.add_argument("--words", type=int, default=10_000, help="of the vocabulary")
    parser.add_argument("--length", type=int, default=70)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=20.0)
    parser.add_argument("--dropout", type=float, default=0.5, help="factor of the published dropout")
    parser.add_argument("--validations", type=int, default=24, help="of a training; averages begin after 7 at least")
    parser.add_argument("--parts", default=",".join(PARTS), help="rows of the table, separated by commas")
    parser.add_argument("--data_dir", default="", help="of token stores")
    args = parse_flags(parser, minutes=0, seeds=1, parts="full,second,plain", width=16, embedding=8, words=2000,
                       length=8, batch_size=2)
    workdir = Path(args.workdir).absolute()
    workdir.mkdir(parents=True, exist_ok=True)
    if args.lines:
        lines_of_text = Path(args.text).read_text(encoding="utf8").splitlines(keepends=True)[:args.lines]
        args.text = workdir / "text.txt"
        args.text.write_text("".join(lines_of_text), encoding="utf8")
    names = list(dict.fromkeys([*args.parts.split(","), FULL]))
    if unknown := [name for name in names if name not in PARTS]:
        raise SystemExit(f"--parts has {', '.join(unknown)}; expected some of {', '.join(PARTS)}")
    steps = steps_for(args, workdir)
    print(f"{steps:,} steps of {args.batch_size} sequences of about {args.length} words", flush=True)
    scores = {name: [] for name in names}
    for seed in range(args.seeds):  # a table of fewer seeds is complete early
        for name, values in scores.items():
            values.append(perplexity(args, name, seed, steps, workdir))
            print(f"seed {seed}, {name}: perplexity {values[-1]:.2f}", flush=True)
    write_table(workdir, [
        "| network | perplexity | difference from the first training, 95 % interval | paper, Penn Treebank | paper, "
        "WikiText-2 |",
        "| --- | --- | --- | --- | --- |", *(row(name, scores) for name in names)],
        f"{steps:,} steps of {args.batch_size} x {args.length} words, {args.seeds} seeds; width {args.width}, "
        f"embedding {args.embedding}, {args.words:,} words")


if __name__ == "__main__":
    main()
