"""Every experiment file builds with all its choices, by shapes alone; every command in the documentation is valid."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from lmrep.cli import main
from lmrep.cli.arguments import parse
from lmrep.config import loading
from lmrep.core import params as P
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.tokenizers import SPECIALS
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.models import MODELS, PRESETS
from lmrep.training import optimizers
from tests import given

ENCODER_DECODERS = {"encoder_decoder", "seq2seq_lstm",
                    *(name for name, preset in PRESETS.items() if preset.model in ("encoder_decoder", "seq2seq_lstm"))}
ROOT = Path(__file__).parents[2]
TASK_PAGES = {"taglm.py", "transformer_mt.py", "cove.py"}  # beside those in tasks/
FILES = [file for file in sorted((ROOT / "experiments").rglob("*.py")) if "def get_config(" in file.read_text()]
# Choices that are refused by themselves: they say how a teacher is followed, or the page has one size.
WITHOUT_EFFECT = {("distilbert.py", "start"), ("distilbert.py", "head"), ("quickstart.py", "size")}
MESHES = ("data", "fsdp", "1x1x2", "2x2x2")


def is_task(file):
    return file.parent.name == "tasks" or file.name in TASK_PAGES


def declared(file):
    """{choice: its values} of an experiment file."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        def record(argument, **defaults):
            found.update({name: default[1] for name, default in defaults.items() if isinstance(default, tuple)})
            found.update({"mesh": MESHES} if "mesh" in defaults else {})
            return real(argument, **defaults)

        real = loading.parse_argument
        patch.setattr(loading, "parse_argument", record)
        loading.load(file)
    return found


def arguments(file):
    """Every choice of an experiment file, one at a time; of the presets, all of them for BERT's alone."""
    yield ""
    for name, choices in declared(file).items():
        if (file.name, name) in WITHOUT_EFFECT:
            continue
        for choice in filter(None, choices):
            if is_task(file):  # all have the same choices
                if choice in MODELS and MODELS[choice].tasks_only:
                    continue  # it reads frozen vectors, which no choice alone gives
                if choice in ENCODER_DECODERS:
                    continue  # it reads a source
                if file.name == "classify.py" or choice == "tiny":
                    yield f"{name}={choice}"
            elif file.name == "elmo.py" and name == "model":
                yield "model=elmo_small"
            elif choice in ENCODER_DECODERS:
                if file.name == "t5.py":
                    yield f"{name}={choice}"
                if file.name == "bert.py":
                    yield f"{name}={choice},objective=span_corruption,format=stream"
            elif file.name == "t5.py" and name == "model":
                continue  # which read no source
            elif choice == "span_corruption":
                if file.name != "t5.py":
                    yield f"{name}={choice},model=t5_small,format=stream"
            elif name == "model" and choice in MODELS and choice != "bilstm":  # some read from left to right only
                yield f"{name}={choice},objective=causal,format=stream"
            elif choice.startswith(("bilstm", "elmo")) and name == "model":
                if file.name == "bert.py":
                    yield f"{name}={choice},objective=bidirectional,format=sentence_stream"
            elif choice.startswith("transformer_xl") and name == "model":  # as those networks do
                if file.name == "bert.py":
                    yield f"{name}={choice},objective=causal,format=stream"
            elif file.name == "xlnet.py" and name == "model":  # its objective needs an order
                if choice == "xlnet_base":
                    yield f"{name}={choice}"
            elif file.name == "xlnet.py" and choice == "replaced_token":
                yield f"{name}={choice},model=electra_small"
            elif choice == "stream_pair" and "lm" in file.stem.split("_"):
                continue  # whose state is that of all of an example
            elif choice == "permutation":
                yield f"{name}={choice},model=xlnet_base,format=stream_pair"
            elif choice == "bidirectional":
                yield f"{name}={choice},model=elmo_original,format=sentence_stream"
            elif name != "model" or file.name == "bert.py" or choice in ("bert_tiny", "gpt2"):
                yield f"{name}={choice}"


ARGUMENTS = [(file, argument) for file in FILES for argument in arguments(file)]


def vocabulary(size):
    """A vocabulary of `size` tokens."""
    specials = {role: i for i, role in enumerate(SPECIALS)}
    sentinels = tuple(range(size - 1, size - 21, -1))
    return Vocabulary(size, specials | {"eos": 3}, np.ones(size, bool), np.ones(size, np.int64), sentinels=sentinels)


@pytest.mark.parametrize(("file", "argument"), ARGUMENTS, ids=lambda value: getattr(value, "name", value) or "default")
def test_experiment_builds(file, argument):
    config = loading.load(file, argument)
    if is_task(file):
        config.data.train = "train.tsv"
    experiment = experiments.parse(config)
    experiments.check_mesh(experiment, 8)
    assert experiment.evaluation.every % max(1, experiment.checkpoint.every) == 0  # so that there is a best checkpoint
    tokens = vocabulary(experiment.tokenizer.vocab_size)
    network = build.model(experiment, tokens)
    stages = experiments.resolve_stages(experiment)
    for i, stage in enumerate(stages):
        objective = build.objective(stage, network, tokens)
        optimizers.build(stage.optimizer, objective.specs, experiments.schedule_steps(stages, i))
        sizes = PRESETS.get(experiment.name)
        if sizes and stage.objective_name == "masked" and stage.objective.sentence_pair \
                and experiment.name.startswith("bert_"):
            assert P.count(objective.specs) == sizes.pretraining
            assert P.count(objective.specs["encoder"]) == sizes.encoder


def test_there_are_experiments_with_choices():
    assert {"quickstart.py", "bert.py"} <= {file.name for file in FILES}
    assert set(declared(ROOT / "experiments/bert.py")) == {
        "size", "model", "objective", "format", "data", "optimizer", "mesh"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_docstring_has_the_command_that_runs_it(file):
    text = file.read_text()
    about = text[: text.index('"""', 3)]
    assert f"lmrep train --config={file.relative_to(ROOT)}" in about and "--workdir=" in about


def shown(page):
    """The command lines of `lmrep train` that a page shows, each as its words."""
    text = re.sub(r"\\+\n", " ", page.read_text())
    return [shlex.split(words) for words in re.findall(r"lmrep train (--config=[^`\n]*)", text)]


def choices(page):
    """The flags in the README's tables of choices, some with choices after a colon; those of tasks go with a task."""
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE):
        file = "tasks/classify.py" if section.startswith("Tasks") else "bert.py"
        for start, rest in re.findall(r"^\|[^|]*\| `(:|--config\.)([^`]*)` \|$", section, re.MULTILINE):
            choice, *flags = shlex.split(start + rest)
            named = choice.startswith(":")
            yield [f"--config=experiments/{file}{choice if named else ''}", *([] if named else [choice]), *flags]


README = ROOT / "README.md"
COMMANDS = [words for page in (README, *FILES) for words in shown(page)] + list(choices(README))


def test_there_are_commands():
    assert len(shown(README)) >= 2 and len(list(choices(README))) >= 4


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working directory with the experiments and a run to start from."""
    home = tmp_path_factory.mktemp("home")
    (home / "experiments").symlink_to(ROOT / "experiments")
    given.workdir(home / "runs", max_length=512).rename(home / "runs/bert_base")
    for name in ("bert", "mine", "bert-tiny", "lm", "elmo-tiny", "mt-lstm"):
        (home / "runs" / name).symlink_to("bert_base")
    return home


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_documented_command_is_valid(words, home, monkeypatch):
    monkeypatch.chdir(home)
    experiments.check_mesh(experiments.parse(parse("train", words, main.flags_of("train")).load_config()), 8)
