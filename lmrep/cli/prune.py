"""Removes attention heads of a trained run for good, and writes a new run with the smaller network.

--fraction removes the least important heads (see lmrep heads), a fraction of all; --heads names the heads to remove:
1:2,5;3:0 are heads 2 and 5 of layer 1 and head 0 of layer 3. Layers and heads are numbered from 0; heads keep the
numbers of the unpruned network. Every layer keeps at least one head. The new network has the same outputs as the old
one with these heads gated off.

Every command except train takes the new run, and a new run starts from it with init=OUTPUT, to train it further. Where
layers share parameters (ALBERT), the same heads are removed from every layer. Published layouts have no such networks,
so lmrep convert refuses them."""

from pathlib import Path

from lmrep.cli.arguments import DATA_DIR, STEP, Arguments, Flag, at_least
from lmrep.config.record import Bounds
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages
from lmrep.core.paths import as_path

FLAGS = {
    "output": Flag("", "the directory to write", as_path),
    "fraction": Flag(0.0, "of the heads, the least important first", bounds=Bounds(at_least=0, below=1)),
    "heads": Flag("", "the heads to remove, by layer: 1:2,5;3:0"),
    "examples": Flag(1000, "with --fraction, the number of training examples for importance; 0: all",
                     bounds=at_least(0)),
    "normalize": Flag(True, "with --fraction, divide the importance of a layer's heads by its L2 norm"),
    "at_least": Flag(1, "with --fraction, heads that every layer keeps", bounds=at_least(1)),
    "step": STEP,
    "data_dir": DATA_DIR,
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    source, flags = arguments.required_workdir(), arguments.flags
    if not flags.output:
        raise UserError("lmrep prune needs --output, the directory to write")
    if bool(flags.heads) == bool(flags.fraction):
        raise UserError("lmrep prune needs either --fraction=0.3, of the least important heads, or --heads=1:2,5;3:0")

    from lmrep.analysis import pruning
    from lmrep.inference.load import load
    from lmrep.storage import workdir

    show_messages()
    target = Path(flags.output)
    workdir.check_free(target)
    loaded = load(source, arguments.step)
    removed = pruning.parse(flags.heads, loaded) if flags.heads else pruning.least_important(
        loaded, flags.fraction, flags.examples, flags.normalize, flags.at_least, flags.data_dir or None)
    print(pruning.describe(pruning.prune(loaded, target, removed), loaded, target))
