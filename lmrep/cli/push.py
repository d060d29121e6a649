"""Publishes a run on the Hugging Face Hub, in the layout of the transformers library, with a model card of its facts.

    lmrep push --workdir=runs/sst2 --repo=OWNER/NAME --license=apache-2.0
    lmrep push --workdir=runs/babylm --repo=OWNER/NAME --checkpoints=all

The repository is created if it does not exist. The model card, README.md, has what was trained, on what, the recipe,
evaluations with their intervals and baselines, cost, versions and the command; see it first with --dry_run. Log in
with hf auth login, or set $HF_TOKEN. Needs huggingface_hub: pip install -e '.[hub]'.

--checkpoints=all also uploads every checkpoint to a branch, which other libraries call its revision: chck_1M after a
million words, of a run with checkpoint.words, as the BabyLM challenge has them, or step_1000."""

from lmrep.cli.arguments import DATA_DIR, STEP, Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages

FLAGS = {
    "repo": Flag("", "the repository, OWNER/NAME"),
    "private": Flag(False, "make a new repository private"),
    "message": Flag("", "the message of the commit"),
    "license": Flag("", "the license, by the Hub's identifier, such as apache-2.0 (default: none is named)"),
    "language": Flag("", "the language of the text, such as en (default: none is named)"),
    "part": Flag("", "which network of a run of two to publish, for example generator (default: the main one)"),
    "step": STEP,
    "checkpoints": Flag("", "all: every checkpoint too, each in a branch of the repository"),
    "dry_run": Flag(False, "write the files, print their directory, and upload nothing"),
    "data_dir": DATA_DIR,
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    flags = arguments.flags
    workdir = arguments.required_workdir()
    if not flags.repo:
        raise UserError("lmrep push needs the repository: --repo=OWNER/NAME")

    from lmrep.analysis.publish import push

    show_messages()
    print(push(workdir, flags.repo, private=flags.private, message=flags.message, license_name=flags.license,
               language=flags.language, step=arguments.step, part=flags.part, dry_run=flags.dry_run,
               data_dir=flags.data_dir or None, checkpoints=flags.checkpoints))
