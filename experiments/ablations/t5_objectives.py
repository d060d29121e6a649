"""The objectives of T5's study (Raffel et al., 2019, tables 4 to 7) on one small network, in one report.

    python experiments/ablations/t5_objectives.py --workdir=runs/t5_objectives --sst2=glue/SST-2

trains `t5.py:size=tiny` with each of six objectives for the same number of steps, on Python's documentation or
--files='texts/*.txt', prints a table and writes a report of all runs to report.html in the workdir. Cost: about 20
minutes on two cores, and with --sst2 as much again. Finished runs are not trained again; interrupted runs are resumed.

    prefix             the second part of a text from the first (prefix language model)
    bert               noise as one sentinel or a random token, and the whole text (BERT-style)
    deshuffling        the tokens in random order, and the text
    mask               noise as one sentinel, and the whole text (MASS-style)
    replace_spans      each span of noise as a sentinel, and these with their tokens: independent noise of 15 %
    drop_tokens        the text without the noise, and the noise

--runs selects some of them, or of tables 6 and 7: rate_10, rate_25 and rate_50 (independent noise, in percent), span_2,
span_3, span_5 and span_10 (spans of that mean length).

The losses of different objectives cannot be compared: those whose target is the whole text mostly copy, and sentinels
are easy to predict. The paper compares the networks after fine-tuning, in which the objectives differ little beside the
gain over no pretraining. `--sst2`, the folder of that GLUE task, does so: each network, and one from random parameters,
is trained to answer "positive" or "negative", with the same settings, for --finetune_steps; a second report, sst2.html,
has these runs. It takes far more steps than the defaults until this says anything: after 300 steps of each, accuracies
were from 51 to 62 %, and 66 % from random parameters (one seed, 872 examples).
"""

from pathlib import Path

from common import arguments, run_script
from ml_collections import ConfigDict

import lmrep
from lmrep.analysis import report
from lmrep.interop import checkpoint_config

PAGES = Path(__file__).parents[1]
VARIANTS = ("prefix", "bert", "deshuffling", "mask", "replace_spans", "drop_tokens")
# Changes of the objective's fields.
RUNS = {**{name: {"variant": name, "noise": "tokens"} for name in VARIANTS},
        **{f"rate_{rate}": {"rate": rate / 100, "noise": "tokens"} for rate in (10, 25, 50)},
        **{f"span_{mean}": {"mean_span": float(mean)} for mean in (2, 3, 5, 10)}}


def config(name, flags):
    """The config of one of RUNS."""
    c = checkpoint_config.load_config(PAGES / "t5.py", f"size=tiny,data={'files' if flags.files else 'python_docs'}")
    c.name, c.steps = name, flags.steps
    c.data.files = flags.files
    c.objective.update(RUNS[name])
    c.checkpoint.every = c.evaluation.every = max(1, flags.steps // 4)
    c.log.every, c.log.report = max(1, flags.steps // 40), False
    return c


def fine_tuning_config(pretrained, flags, scratch=False):
    """The config of SST-2 as text to text, from the run in `pretrained` or, `scratch`, with its network and tokenizer
    alone, from random parameters."""
    c = checkpoint_config.load_config(PAGES / "tasks/generate.py", "size=tiny" if scratch else f"init={pretrained}")
    if scratch:
        own = config(pretrained.name, flags)
        c.model.update(own.model)
        c.tokenizer.update({**own.tokenizer, "vocab_file": str(pretrained / "tokenizer")})
    c.steps, c.batch_size, c.length = flags.finetune_steps, 32, 128
    c.data.update({"train": f"{flags.sst2}/train.tsv", "validation": f"{flags.sst2}/dev.tsv"})
    c.data.columns = ConfigDict({"text": "sentence", "target": "label"})
    c.data.label_map = ConfigDict({"0": "negative", "1": "positive"})
    c.objective.update({"template": "sst2 sentence: {text}", "metrics": ("accuracy",), "max_target": 8})
    c.optimizer.learning_rate = 1e-3
    c.checkpoint.every = c.evaluation.every = max(1, flags.finetune_steps // 2)
    c.log.report = False
    return c


def pretrain(names, flags):
    """Trains the runs and prints their own metrics."""
    lines = []
    for name in names:
        workdir = flags.workdir / name
        print(f"training {workdir}: {flags.steps:,} steps", flush=True)
        outcome = lmrep.train(config(name, flags), workdir, data_dir=flags.data_dir)
        before, after = outcome.before, outcome.after
        lines.append(f"{name:16}{before['denoising_loss']:13.3f}{after['denoising_loss']:9.3f}"
                     f"{after['denoising_accuracy']:11.2%}{after['most_frequent_accuracy']:15.2%}")
    print(f"\n{'objective':16}{'loss at start':>13}{'at end':>9}{'accuracy':>11}{'most frequent':>15}")
    print("\n".join(lines))


def fine_tune(names, flags):
    """Fine-tunes the runs, and a network from random parameters, and prints their accuracies."""
    lines = []
    for name in (*names, "scratch"):
        scratch = name == "scratch"
        c = fine_tuning_config(flags.workdir / (names[0] if scratch else name), flags, scratch)
        c.name, workdir = f"sst2-{name}", flags.workdir / f"sst2-{name}"
        print(f"training {workdir}: {c.steps:,} steps", flush=True)
        outcome = lmrep.train(c, workdir, data_dir=flags.data_dir)
        low, high = outcome.intervals["accuracy"]
        lines.append(f"{name:16}{outcome.after['accuracy']:11.2%}  [{low:.2%}, {high:.2%}]")
    print(f"\n{'SST-2 after':16}{'accuracy':>11}  95 % interval over the examples")
    print("\n".join(lines))


def main(argv=None):
    """Trains, fine-tunes and compares the runs; `argv` defaults to the flags of the command line."""
    parser = arguments(__doc__, steps=300)
    parser.add_argument("--runs", default=",".join(VARIANTS), help=f"some of {', '.join(RUNS)}")
    parser.add_argument("--sst2", default="", help="the folder of SST-2, to fine-tune on")
    parser.add_argument("--finetune_steps", type=int, default=300)
    flags = parser.parse_args(argv)
    names = list(dict.fromkeys(flags.runs.split(",")))
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"--runs has {', '.join(unknown)}; expected some of {', '.join(RUNS)}")
    pretrain(names, flags)
    reports = [("report.html", [flags.workdir / name for name in names])]
    if flags.sst2:
        fine_tune(names, flags)
        reports.append(("sst2.html", [flags.workdir / f"sst2-{name}" for name in (*names, "scratch")]))
    for file, workdirs in reports:
        print(report.write(workdirs, flags.workdir / file, data_dir=flags.data_dir))


if __name__ == "__main__":
    run_script(main)
