"""What the memory of Transformer-XL is worth (Dai et al., 2019): perplexity without it, with it, and with a longer one
than in training.

    python experiments/benchmarks/memory.py --train=wikitext-2/train.txt --validation=wikitext-2/valid.txt \\
        --workdir=runs/memory

The files have a text of words; each line is a document. Networks of `experiments/transformer_xl.py:size=tiny` with and
without memory are trained for equally many steps on the same batches, with each seed, and evaluated on the second file,
in the same examples, with memories of several lengths. With --clamp, distances beyond those of training count as the
longest of these. Runs that are there are not trained again: the command continues where it was stopped.

It prints a table, and writes it to WORKDIR/table.md: perplexities per word, ends of lines counted, as means over the
seeds with standard deviations, and differences of the loss with 95 % intervals, by Student's t over the pairs of runs
of one seed.
"""

import argparse
import json
import math
from pathlib import Path

from arguments import parse_flags
from runs import mean_and_deviation, paired_interval, run_lmrep, write_table

import lmrep

PAGE = Path(__file__).parents[1] / "transformer_xl.py"


def losses(memory, seed, args):
    """{length of the memory: loss on the second file} of a run that is trained with a memory of that length."""
    run = args.workdir / f"memory-{memory}-seed-{seed}"
    done = run / "losses.json"
    found = json.loads(done.read_text()) if done.exists() else {}
    if not (run / "trained").exists():
        run_lmrep(run.with_suffix(".log"), "train",
                  f"--config={PAGE}:size=tiny,data=files,memory={'yes' if memory else 'no'}", f"--workdir={run}",
                  f"--config.data.files={args.train}", "--config.data.documents=line",
                  "--config.data.validation=0.002", "--config.data.test=0.0",
                  f"--config.tokenizer.vocab_size={args.words}", f"--config.model.cutoffs={args.words // 5},",
                  f"--config.model.memory={memory}", f"--config.length={args.length}",
                  f"--config.batch_size={args.batch_size}", f"--config.steps={args.steps}",
                  f"--config.evaluation.every={args.steps}", f"--config.seed={seed}", "--config.samples=()",
                  "--config.log.report=false", "--config.log.tensorboard=false")
        (run / "trained").touch()
    for length in [memory, *args.longer] if memory else [0]:
        if str(length) not in found:
            clamp = {"clamp": args.length + memory - 1} if args.clamp and length > memory else {}
            model = {"memory": length, **clamp} if memory else {}
            found[str(length)] = lmrep.evaluate(run, files=args.validation, batch_size=args.rows, model=model)["loss"]
            done.write_text(json.dumps(found))
    return {int(length): loss for length, loss in found.items()}


def difference(own, others):
    """The mean difference of losses with its interval."""
    return "{:+.3f} ({:+.3f} to {:+.3f})".format(*paired_interval(own, others))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, type=lambda text: Path(text).absolute())
    parser.add_argument("--validation", required=True, type=lambda text: str(Path(text).absolute()))
    parser.add_argument("--workdir", required=True, type=lambda text: Path(text).absolute())
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--words", type=int, default=10_000, help="of the vocabulary")
    parser.add_argument("--length", type=int, default=32, help="of examples, and of the memory in training")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--longer", type=lambda text: [int(length) for length in text.split(",")], default=[64, 128],
                        help="lengths of the memory in evaluation, separated by commas")
    parser.add_argument("--rows", type=int, default=8, help="parts of the second file, each without a memory at first")
    parser.add_argument("--clamp", action="store_true")
    args = parse_flags(parser, seeds=1, steps=4, words=100, length=8, batch_size=8, longer=[16], rows=2)
    args.workdir.mkdir(parents=True, exist_ok=True)
    none, own = [], {length: [] for length in (args.length, *args.longer)}
    for seed in range(args.seeds):
        none.append(losses(0, seed, args)[0])
        found = losses(args.length, seed, args)
        for length, values in own.items():
            values.append(found[length])
        print(f"seed {seed}: without memory {none[-1]:.4f}, with {found}", flush=True)
    table = ["| memory in training | in evaluation | perplexity | loss less that without memory | less that with the "
             "memory of training |", "| --- | --- | --- | --- | --- |"]
    for trained, length, values in ((0, 0, none), *((args.length, *item) for item in own.items())):
        mean, deviation = mean_and_deviation([math.exp(value) for value in values])
        table.append(f"| {trained} | {length} | {mean:.1f} ± {deviation:.1f} | "
                     f"{difference(values, none) if trained else ''} | "
                     f"{difference(values, own[args.length]) if length > args.length else ''} |")
    write_table(args.workdir, table, f"{args.steps:,} steps of {args.batch_size} x {args.length} words, "
                f"{args.seeds} seeds")


if __name__ == "__main__":
    main()
