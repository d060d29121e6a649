"""Converts a published checkpoint, a directory in the layout of Hugging Face or of ELMo, to a workdir;
with --to=huggingface or --to=bilm, converts a workdir to such a directory.

    lmrep convert SOURCE TARGET
    lmrep convert WORKDIR TARGET --to=huggingface [--part=generator]
    lmrep convert WORKDIR TARGET --to=bilm

Download a checkpoint first: hf download bert-base-uncased --local-dir bert-base-uncased

The largest difference between the outputs of both networks on random ids is printed, and stored as certificate.json.
The reference is the transformers library, where it is installed; otherwise the certificate compares the network with
itself, written and read again. Tensors without a counterpart in our network are listed and kept. Pickled weights, and
configs that name code to run, are refused.

ELMo's files are named as by bilm-tf: options.json, lm_weights.hdf5 (names that end in options.json and weights.hdf5 are
found too) and, if it is there, the vocabulary, vocab*.txt, with one word per line. They need h5py:
pip install -e '.[elmo]'. The softmax is not in them."""

import re
from pathlib import Path

from lmrep.cli.arguments import STEP, Arguments, Flag, at_least
from lmrep.config.record import Bounds
from lmrep.core.errors import UserError
from lmrep.core.input_files import check_plain

FLAGS = {
    "to": Flag("workdir", "what TARGET becomes: workdir, huggingface or bilm, ELMo's files",
               bounds=Bounds(choices=("workdir", "huggingface", "bilm"))),
    "part": Flag("", "which network of a run of two to write, for example generator (default: the main one)"),
    "step": STEP,
    "shard_mb": Flag(5000, "the largest size of a written file of tensors, in megabytes", bounds=at_least(1)),
}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def run(arguments: Arguments) -> int:
    """Runs the command and returns its exit code."""
    flags = arguments.flags
    if len(arguments.words) != 2:
        raise UserError("lmrep convert takes two directories: lmrep convert SOURCE TARGET [--to=huggingface|bilm]")
    if flags.part and flags.to != "huggingface":
        raise UserError(f"--part is {flags.part!r}; it needs --to=huggingface and a run that has two networks")

    from lmrep.interop import bilm, conversion
    from lmrep.storage import remote_workdir

    source, target = remote_workdir.local_copy(arguments.paths[0], arguments.step), Path(arguments.paths[1])
    is_elmo = bilm.is_published(source)
    if not is_elmo:
        check_source(source, arguments.paths[0], flags.to)
    if (not is_elmo and conversion.is_workdir(source)) != (flags.to != "workdir"):
        raise UserError(f"{source} is a workdir already; to write a published directory, add --to=huggingface or "
                        "--to=bilm" if flags.to == "workdir" else
                        f"{source} is a published directory already; to convert it to a workdir, leave --to out")
    if is_elmo or flags.to == "bilm":
        name = "ELMo"
        params, remarks = (bilm.to_workdir(source, target) if is_elmo else
                           bilm.to_published(source, target, arguments.step))
    else:
        converted = (conversion.to_workdir(source, target) if flags.to == "workdir" else
                     conversion.to_published(source, target, arguments.step, flags.shard_mb * 10**6, flags.part))
        name, params = converted.checkpoint.class_name, converted.checkpoint.params
        remarks = [*converted.remarks, str(converted.certificate)]
    print(f"{target}: {name}, {sum(value.size for value in params.values()):,} parameters, from {source}")
    for line in remarks:
        print(f"  {line}")
    return 0


def check_source(source: Path, name: str, to: str) -> None:
    """Raises UserError if `source` is no directory to convert. `name` is the path as the user gave it."""
    if (source / "config.json").is_file():
        return
    if source.is_file():
        check_plain(source)
    if to != "workdir":
        raise UserError(f"there is no run in {source}: it has no config.json; give the workdir of a run, as "
                        "lmrep train made it" if source.is_dir() else
                        f"there is no run {source}: no such directory; give the workdir of a run")
    if source.is_dir():
        raise UserError(f"{source} has no config.json; give the directory of a published checkpoint")
    if HUB_NAME.fullmatch(name):
        local = name.rpartition("/")[2]
        raise UserError(f"there is no directory {name}; if that is a model of the Hugging Face Hub, download it first: "
                        f"hf download {name} --local-dir {local}   (pip install huggingface_hub), then "
                        f"lmrep convert {local} TARGET")
    raise UserError(f"there is no directory {source}; give the directory of a published checkpoint")
