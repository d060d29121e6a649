"""Trains an experiment in a workdir: prepares what is missing, trains, and goes on by itself where a run was stopped.

With --workdir alone, a run that is there goes on with its own config; --config.FIELD=VALUE changes what may change.
The workdir gets config.json, metrics.jsonl, timing.jsonl, provenance.jsonl, tokenizer/, tensorboard/, checkpoints/.

Started several times, on one host or many, by srun, mpirun, a Kubernetes Job or on the hosts of a TPU slice, the
processes train as one; elsewhere JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES and JAX_PROCESS_ID say so.
See launch/README.md. Process 0 prints; errors are printed by the process that meets them.
"""

import math
import shlex
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.distributed import process_group

FLAGS = {
    "data_dir": Flag("", "where token stores live (default: $LMREP_DATA_DIR or ~/.cache/lmrep)"),
    "profile": Flag(0, "trace this many steps, after a few to warm up, into WORKDIR/profile"),
}


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(words=True)
    workdir, flags = arguments.required_workdir(), arguments.flags
    if flags.profile < 0:
        raise UserError(f"--profile is {flags.profile}; expected how many steps to trace")
    process_group.start()
    config = process_group.agreed(lambda: config_of(arguments))

    from lmrep import api
    from lmrep.inference import prompts
    from lmrep.training.metrics_log import show_messages

    if process_group.first():  # warnings of the others reach their standard error all the same
        show_messages()
    outcome = api.train(config, workdir, data_dir=flags.data_dir or None, profile=flags.profile)
    if not process_group.first():
        return 0
    print(summary(outcome))
    experiment = api.experiments.parse(config)
    capabilities = api.experiments.capabilities(experiment)
    texts = prompts.sample_prompts(experiment.samples, capabilities)
    if texts and not process_group.joined():  # one of several does not keep the others waiting
        print(samples(api.load(workdir), texts))
    print(next_steps(workdir, flags.data_dir, prompts.example(experiment.samples, capabilities), experiment.log.report))
    return 0


def config_of(arguments: Arguments) -> Any:
    """The experiment's, or that of the run that is there."""
    workdir, alone = arguments.workdir, arguments.workdir and arguments.config_file is None
    if alone and (remote.address(workdir) or (Path(workdir) / "config.json").is_file()):
        from lmrep.config.loading import overridden
        from lmrep.storage import mirror
        from lmrep.storage.workdir import read_config

        there = mirror.here(workdir, checkpoints=False)
        return overridden(read_config(there)["config"], arguments.overrides)
    return arguments.load_config()


def summary(outcome) -> str:
    """What was learned, beside what it costs nothing to know."""
    before, after = outcome.before, outcome.after
    lines = [f"\nTrained to step {outcome.steps:,}."]
    base = after.get("most_frequent_accuracy")  # unknown to ELECTRA's kinds
    if "mlm_accuracy" in after:
        now = after["mlm_accuracy"]
        lines += ["Held-out masked accuracy (share of hidden words of unseen documents that are guessed):",
                  *_row("always the most frequent word", base),
                  *_row("this model before training", before.get("mlm_accuracy")),
                  *_row("this model now", now, f"   {now / max(base, 1e-9):.1f} times the most frequent word" if base
                        is not None else "")]
    if "lm_accuracy" in after:
        lines += [
            "Held-out text, token by token from the left:",
            f"  perplexity {_before(before, 'lm_loss', _perplexity)}now {_perplexity(after['lm_loss'])}",
            f"  tokens foretold: always the most frequent one {base:.2%}, "
            f"{_before(before, 'lm_accuracy', _share)}now {after['lm_accuracy']:.2%}",
        ]
    if "replaced_accuracy" in after:
        lines += [f"Held-out text in which {after['replaced_fraction']:.1%} of the tokens were replaced:",
                  f"  replaced ones found {after['replaced_accuracy']:.2%}, others let pass "
                  f"{after['original_accuracy']:.2%}"]
    if "copied_fraction" in after:
        lines += [f"Held-out text in which {after['replaced_fraction']:.1%} of the tokens were replaced:",
                  f"  {after['copied_fraction']:.1%} of the tokens are left as they are; the text's own take "
                  f"{after['lm_loss']:.3f} nats each"]
    if "pair_accuracy" in after:
        lines.append(f"Held-out pair accuracy: {_before(before, 'pair_accuracy', _share)}now "
                     f"{after['pair_accuracy']:.2%}")
    return "\n".join(lines)


def _row(what: str, share: float | None, more: str = "") -> list[str]:
    return [] if share is None else [f"  {what:30} {share:7.2%}{more}"]


def _before(metrics: Mapping[str, float], name: str, form: Callable[[float], str]) -> str:
    """What was measured before training, where the first stage has the same question."""
    return f"before training {form(metrics[name])}, " if name in metrics else ""


def _share(x: float) -> str:
    return f"{x:.2%}"


def _perplexity(nats: float) -> str:
    return f"{math.exp(min(nats, 700)):,.1f}"


def samples(run, texts: list[str]) -> str:
    """What the model predicts for sample texts, by capability."""
    lines = []
    for capability in run.capabilities:
        own = [text for text in texts if run.capability_of(text) is capability]
        if own:
            lines.append(f"\nIt {capability.summary}:")
            predictions = capability.predict(run, own, capability.sample_options, [None] * len(own))
            lines += [textwrap.indent(capability.to_text(text, prediction, run.tokenizer), "  ")
                      for text, prediction in zip(own, predictions, strict=True)]
    return "\n".join(lines)


def next_steps(workdir: str, data_dir: str, text: str, report: bool = True) -> str:
    """What to try next; `report` says whether there is one."""
    from lmrep.storage import mirror

    url = remote.address(workdir)
    page = f"{shlex.quote(str(mirror.own(url) if url else workdir))}/report.html"
    look = f"open {page} in a browser" if report else f"lmrep report {shlex.quote(workdir)}"
    run, stores = f"--workdir={shlex.quote(workdir)}", f" --data_dir={shlex.quote(data_dir)}" if data_dir else ""
    asking = f"\n  lmrep predict {run} {shlex.quote(text)}" if text else ""
    return f"""
Next:{asking}
  lmrep evaluate {run}{stores}
  lmrep inspect {run}{stores}
  {look}; tensorboard --logdir={shlex.quote(workdir)}"""
