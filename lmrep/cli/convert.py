"""Reads a published checkpoint of BERT, RoBERTa, ELECTRA, ALBERT, GPT or GPT-2, a directory as Hugging Face lays them
out, into a workdir that the other commands take; or with --to=huggingface writes a workdir as such a directory.

    lmrep convert SOURCE TARGET
    lmrep convert WORKDIR TARGET --to=huggingface [--part=generator]

A certificate says how far our logits are from those of the reference (where transformers is installed) on random ids;
it is printed, and stored as certificate.json. Tensors that have no place in the network are named and carried along.
Pickled weights, and configs that name code, are refused."""

from pathlib import Path

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {
    "to": Flag("workdir", "what TARGET becomes: workdir or huggingface"),
    "part": Flag("", "which network of a run of replaced_token is written: discriminator (as without it) or generator"),
    "step": Flag(-1, "which checkpoint of a workdir; -1: the newest"),
    "shard_mb": Flag(5000, "megabytes that a written file of tensors has at most"),
}


def run(arguments: Arguments) -> int:
    """The command."""
    flags = arguments.flags
    if len(arguments.words) != 2 or arguments.workdir or arguments.config_file or arguments.overrides:
        raise UserError("lmrep convert takes two directories: lmrep convert SOURCE TARGET [--to=huggingface]")
    if flags.to not in ("workdir", "huggingface"):
        raise UserError(f"--to is {flags.to!r}; expected workdir or huggingface")
    if flags.shard_mb < 1:
        raise UserError(f"--shard_mb is {flags.shard_mb}; expected at least 1")
    if flags.part and flags.to != "huggingface":
        raise UserError(f"--part is {flags.part!r}; it is for --to=huggingface, of a run that has two networks")

    from lmrep.interop import conversion
    from lmrep.storage import mirror

    source = mirror.here(arguments.words[0], None if flags.step < 0 else flags.step)
    target = Path(arguments.words[1])

    if conversion.is_workdir(source) != (flags.to == "huggingface"):
        raise UserError(
            f"{source} is a workdir already; to write it as a published directory, say --to=huggingface"
            if flags.to == "workdir" else
            f"{source} is a published directory already; to read it into a workdir, leave --to out")
    if flags.to == "workdir":
        done = conversion.to_workdir(source, target)
    else:
        step = None if flags.step < 0 else flags.step
        done = conversion.to_published(source, target, step, flags.shard_mb * 10**6, flags.part)
    count = sum(value.size for value in done.checkpoint.params.values())
    print(f"{target}: {done.checkpoint.name}, {count:,} parameters, from {source}")
    for line in (*done.remarks, str(done.certificate)):
        print(f"  {line}")
    return 0
