"""What a teacher is worth: students from the layers of one teacher, with and without each loss of DistilBERT, at equal
steps.

    python experiments/benchmarks/distillation.py --text=enwiki.txt --teacher=runs/bert --minutes=10 \\
        --workdir=runs/distillation

`--text` is a file of articles separated by blank lines, `--teacher` a masked language model: a run or a published
directory. A short run of the student measures how long a step takes; all students then train for the steps that fit
into --minutes, at the same batches, with --seeds seeds each. Everything is trained by `lmrep train`, one run after
another, and a run that is there is not trained again: the command continues where it was stopped.

It prints a table, and writes it to WORKDIR/table.md: the masked-LM loss and accuracy on held-out text, means over the
seeds with standard deviations, and the difference of the loss from that of the triple loss with a 95 % interval, by
Student's t over the pairs of runs of one seed. Beside it is the change of the mean of GLUE in the paper's ablation.
Time: seeds x 7 x --minutes, at most; the students without a teacher take less.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import NamedTuple

from arguments import parse_flags
from runs import lines, mean_and_deviation, paired_interval, run_lmrep, write_table

PAGE = Path(__file__).parents[1] / "distilbert.py"
PROBE = 40  # steps of the run that measures time
TRIPLE = "triple"


class Student(NamedTuple):
    """A row of the table: choices of the page, and the change of GLUE's mean in the paper (Sanh et al., 2019, table 4),
    None where it has none."""

    title: str
    choices: str
    paper: float | None = None


STUDENTS = {
    TRIPLE: Student("triple loss, from the teacher's layers", "losses=all", 0.0),
    "no_mlm": Student("without the masked-LM loss", "losses=no_mlm", -0.31),
    "no_cos": Student("without the cosine loss", "losses=no_cos", -1.46),
    "no_ce": Student("without the divergence from the teacher", "losses=no_ce", -2.96),
    "random": Student("triple loss, from random parameters", "losses=all,start=random", -3.69),
    "alone": Student("alone, from the teacher's layers", "losses=mlm"),
    "alone_random": Student("alone, from random parameters", "losses=mlm,start=random"),
}


def train(args, name, run, seed, steps):
    """Trains a student, and returns its last validation."""
    result = run / "result.json"
    if result.exists():
        return json.loads(result.read_text())
    every = max(1, steps // 4)
    words = [
        f"--config={PAGE}:size=tiny,data=files,format=packed,teacher={args.teacher},layers={args.layers},"
        f"{STUDENTS[name].choices}",
        f"--workdir={run}", f"--config.data.files={args.text}", "--config.data.documents=blank_line",
        f"--config.data.validation={args.validation}", f"--config.length={args.length}",
        f"--config.batch_size={args.batch_size}", f"--config.steps={steps}", f"--config.seed={seed}",
        f"--config.optimizer.learning_rate={args.learning_rate}", f"--config.evaluation.every={every}",
        f"--config.evaluation.examples={args.examples}", f"--config.checkpoint.every={every}",
        "--config.checkpoint.keep=1", "--config.log.every=20", "--config.log.report=false",
        "--config.log.tensorboard=false"]
    if args.data_dir:
        words.append(f"--data_dir={args.data_dir}")
    run_lmrep(run.parent / f"{run.name}.log", "train", *words)
    last = lines(run / "metrics.jsonl", "validation")[-1]
    result.write_text(json.dumps(last))
    return last


def steps_for(args, workdir):
    """The steps that fit into --minutes, measured once: later starts take what is on record."""
    record = workdir / "steps.json"
    if not record.exists():
        train(args, TRIPLE, workdir / "probe", 0, PROBE)
        rates = [line["steps_per_second"] for line in lines(workdir / "probe/timing.jsonl", "train")]
        record.write_text(json.dumps({"steps": max(PROBE, round(60 * args.minutes * rates[-1])), "rate": rates[-1]}))
    return json.loads(record.read_text())["steps"]


def row(name, scores):
    """A line of the table."""
    student, found = STUDENTS[name], scores[name]
    losses, accuracies = ([each[metric] for each in found] for metric in ("mlm_loss", "mlm_accuracy"))
    mean, deviation = mean_and_deviation(losses)
    interval = ""
    if name != TRIPLE:
        more, low, high = paired_interval(losses, [each["mlm_loss"] for each in scores[TRIPLE]])
        interval = f"{more:+.3f} ({low:+.3f} to {high:+.3f})"
    paper = "" if student.paper is None else f"{student.paper:+.2f}" if student.paper else "0"
    return (f"| {student.title} | {mean:.3f} ± {deviation:.3f} | {100 * statistics.mean(accuracies):.1f} % | "
            f"{interval} | {paper} |")


def order(scores):
    """The ablations from the best to the worst, here and in the paper."""
    ablations = [name for name in scores if STUDENTS[name].paper is not None]
    here = sorted(ablations, key=lambda name: statistics.mean(each["mlm_loss"] for each in scores[name]))
    paper = sorted(ablations, key=lambda name: -STUDENTS[name].paper)
    return f"From the best to the worst, here: {', '.join(here)}; in the paper: {', '.join(paper)}."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--minutes", type=float, required=True, help="of training of a student with the triple loss")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=0, help="of the students; 0: half of the teacher's")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--validation", type=float, help="fraction of the articles that is held out; by default that "
                        "of the teacher's run, which so has not read them if its text is the same")
    parser.add_argument("--examples", type=int, default=256, help="sequences of a validation")
    parser.add_argument("--students", default=",".join(STUDENTS), help="rows of the table, separated by commas")
    parser.add_argument("--data_dir", default="", help="of token stores")
    args = parse_flags(parser, minutes=0, seeds=1, students="triple,no_mlm", batch_size=8, length=32, examples=16)
    workdir = Path(args.workdir).absolute()
    workdir.mkdir(parents=True, exist_ok=True)
    names = [TRIPLE, *(name for name in args.students.split(",") if name != TRIPLE)]
    if unknown := [name for name in names if name not in STUDENTS]:
        raise SystemExit(f"--students has {', '.join(unknown)}; expected some of {', '.join(STUDENTS)}")
    if args.validation is None:
        recorded = json.loads((Path(args.teacher) / "config.json").read_text()).get("config", {})
        args.validation = recorded.get("data", {}).get("validation", 0.02)
    steps = steps_for(args, workdir)
    print(f"{steps:,} steps of {args.batch_size} sequences of {args.length} tokens for each student", flush=True)
    scores = {name: [] for name in names}
    for seed in range(args.seeds):  # a table of fewer seeds is complete early
        for name, found in scores.items():
            found.append(train(args, name, workdir / f"{name}-{seed}", seed, steps))
            print(f"seed {seed}, {name}: masked-LM loss {found[-1]['mlm_loss']:.4f}", flush=True)
    write_table(workdir, [
        "| student | masked-LM loss | accuracy | difference from the triple loss, 95 % interval | paper's GLUE |",
        "| --- | --- | --- | --- | --- |", *(row(name, scores) for name in names), "", order(scores)],
        f"{steps:,} steps of {args.batch_size} x {args.length} tokens, {args.seeds} seeds")


if __name__ == "__main__":
    main()
