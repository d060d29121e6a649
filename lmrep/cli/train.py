"""Trains an experiment in a workdir: prepares what is missing, trains, and goes on by itself where a run was stopped.

The workdir gets config.json, metrics.jsonl, timing.jsonl, provenance.jsonl, tokenizer/, tensorboard/, checkpoints/.
"""

import shlex

from lmrep.cli.arguments import Arguments, Flag

FLAGS = {"data_dir": Flag("", "where token stores live (default: $LMREP_DATA_DIR or ~/.cache/lmrep)")}


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(words=True)
    workdir = arguments.required_workdir()
    config = arguments.load_config()

    from lmrep import api
    from lmrep.training.logging import show_messages

    show_messages()
    outcome = api.train(config, workdir, data_dir=arguments.flags.data_dir or None)
    print(summary(outcome))
    texts = list(config.get("samples") or ())
    if texts:
        print(samples(api.load(workdir), texts))
    print(next_steps(workdir, arguments.flags.data_dir, texts[0] if texts else "The [MASK] of a list is an integer."))
    return 0


def summary(outcome) -> str:
    """What was learned, beside what it costs nothing to know."""
    before, after = outcome.before, outcome.after
    lines = [f"\nTrained to step {outcome.steps:,}."]
    if "masked_accuracy" in after:
        base = after["most_frequent"]
        lines += [
            "Held-out masked accuracy (share of hidden words of unseen documents that are guessed):",
            f"  always the most frequent word  {base:7.2%}",
            f"  this model before training     {before['masked_accuracy']:7.2%}",
            f"  this model now                 {after['masked_accuracy']:7.2%}   "
            f"{after['masked_accuracy'] / max(base, 1e-9):.1f} times the most frequent word",
        ]
    if "pair_accuracy" in after:
        lines.append(f"Held-out pair accuracy: {before['pair_accuracy']:.2%} before, {after['pair_accuracy']:.2%} now")
    return "\n".join(lines)


def samples(run, texts: list[str]) -> str:
    """What the model puts in the place of masks."""
    lines = ["\nFilled masks:"]
    for text, answers in zip(texts, run.fill_masks(texts, k=3), strict=True):
        lines.append(f"  {text}")
        for answer in answers:
            lines.append("      " + ", ".join(f"{word} {probability:.0%}" for word, probability in answer))
    return "\n".join(lines)


def next_steps(workdir: str, data_dir: str, text: str) -> str:
    """What to try next."""
    run, stores = f"--workdir={shlex.quote(workdir)}", f" --data_dir={shlex.quote(data_dir)}" if data_dir else ""
    return f"""
Next:
  lmrep predict {run} {shlex.quote(text)}
  lmrep evaluate {run}{stores}
  lmrep inspect {run}{stores}
  open {shlex.quote(workdir)}/report.html in a browser; tensorboard --logdir={shlex.quote(workdir)}"""
