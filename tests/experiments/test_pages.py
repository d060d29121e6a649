"""Every config file builds by shapes, with every pair of its choices; documented commands are valid."""

import functools
import itertools
import re
import shlex

import pytest

from lmrep.cli import main
from lmrep.cli.arguments import parse
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.experiment import small_networks
from lmrep.experiment.resolve import resolve
from lmrep.models import PRESETS
from tests import given
from tests.experiments.pages import FILES, ROOT, TASKS, build_shapes, covering, declared, get_config, load

COMMON = ("model", "objective", "format", "data", "optimizer", "mesh")  # choices that pages share
# On other pages, pairs of common choices are the same code.
ALL_PAIRS = ("bert.py", "quickstart.py", "tasks/classify.py")
# Combinations to try a pair with: objectives that need a network and a format of their own.
BEGINNINGS = [{}, *(dict(zip(("model", "objective", "format"), names, strict=True)) for names in (
    ("gpt2", "causal", "stream"), ("elmo_small", "bidirectional", "sentence_stream"),
    ("xlnet_base", "permutation", "stream_pair"), ("t5_small", "span_corruption", "stream")))]
NETWORKS = {"bert.py": ("gpt2", "elmo_small", "xlnet_base", "t5_small", "transformer_xl_wt103_base", "lstm", "cove"),
            "tasks/classify.py": ("gpt2", "elmo_small", "xlnet_base", "t5_small", "lstm")}
QUICK = ("lstm_lm.py",)
CONTINUE = {("stage", "target"), ("training", "second")}  # choices that are refused without init


@pytest.mark.parametrize("page", FILES)
def test_page_builds(page):
    build_shapes(load(page, ""))


@pytest.mark.parametrize("page", TASKS)
def test_tiny_task_builds(page):
    build_shapes(load(page, "size=tiny"))


@pytest.mark.parametrize("size", ["base", "mini", "small", "medium", "large", "base_cased", "large_cased", "bert_tiny"])
def test_sizes_of_bert_have_the_published_number_of_parameters(size):
    experiment = load("bert.py", f"size={size}")
    [specs, *_] = [objective.specs for objective in build_shapes(experiment)]
    sizes = PRESETS[experiment.name]
    assert (P.count(specs), P.count(specs["encoder"])) == (sizes.pretraining, sizes.encoder)


@pytest.mark.parametrize("page", [
    pytest.param(page, marks=() if page in QUICK else pytest.mark.slow)
    for page in FILES if page not in TASKS or page in (*ALL_PAIRS, "taglm.py")])
def test_every_pair_of_choices_builds_or_is_refused(page):
    """A combination is refused in one line; any other error fails here."""
    defaults = declared(page)
    choices = {name: [value for value in values[1:] if value and (
        name != "model" or value in NETWORKS.get(page, ("gpt2", "elmo_small", "xlnet_base", "t5_small")))]
        for name, values in defaults.items()}
    beginnings = [{name: value for name, value in row.items() if value != defaults[name][0]}
                  for row in BEGINNINGS if row.keys() <= defaults.keys()]
    beginnings = [row for row in beginnings if all(value in choices[name] for name, value in row.items())]

    @functools.cache
    def builds(argument):
        try:
            build_shapes(load(page, argument))
        except UserError as error:
            assert len(str(error)) > 20
            return False
        return True

    def fits(row):
        init = {"init": "runs/first"} if CONTINUE & row.items() else {}
        return builds(",".join(f"{name}={value}" for name, value in {**row, **init}.items()))

    rows, refused = covering(choices, fits, beginnings, among=() if page in ALL_PAIRS else COMMON)
    built = {choice for row in rows for choice in row.items()}
    assert {(name, value) for name, values in choices.items() for value in values} - built <= {
        ("model", value) for value in choices.get("model", ())}
    # Which corpus and optimizer may be chosen depends on nothing, and neither does the mesh but for 25 heads.
    for pair in refused:
        assert not {"data", "optimizer", "mesh"} & dict(pair).keys() or ("size", "xl") in pair, pair


@pytest.mark.parametrize(("page", "choice"), [("ulmfit.py", "stage=target"), ("awd_lstm.py", "training=second")])
def test_a_training_that_continues_another_is_refused_without_it(page, choice):
    for size in ("", ",size=tiny"):
        with pytest.raises(UserError, match=f"{choice} continues .* init=WORKDIR"):
            load(page, choice + size)


def test_covering_has_every_pair_that_fits():
    choices = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (1, 2), "d": (1, 2)}
    rows, refused = covering(choices, lambda row: (row.get("a"), row.get("b")) != (1, 2))
    pairs = {frozenset(pair) for row in rows for pair in itertools.combinations(row.items(), 2)}
    assert refused == {frozenset({("a", 1), ("b", 2)})} and not refused & pairs
    assert len(pairs) == 3 * 3 + 4 * 3 * 2 + 2 * 2 - 1 and len(rows) <= 12


def test_there_are_experiments_with_choices():
    assert {"quickstart.py", "bert.py"} <= FILES.keys()
    assert set(declared("bert.py")) == {"size", "model", "objective", "format", "data", "optimizer", "mesh"}


@pytest.mark.parametrize("page", [page for page, file in FILES.items() if "\nSIZES = " in file.read_text()])
def test_docstring_has_the_sizes_of_its_networks(page):
    table = re.search(r"^    size .* parameters\n(    .*\n)+", FILES[page].read_text(), re.MULTILINE)[0]
    [(_, *names), *rows] = map(str.split, table.replace(",", "").splitlines())
    assert {size for size, *_ in rows} == {*declared(page)["size"]} - {"tiny"}
    for size, *values in rows:
        experiment = load(page, f"size={size}")
        preset = PRESETS[experiment.name]
        network = {**experiment.model, "vocab": preset.config.vocab, "parameters": preset.pretraining}
        if "embedding" in names:
            network["embedding"] = network["embedding"] or network["width"]
        assert [*map(float, values)] == [network[name] for name in names], size


@pytest.mark.parametrize("page", [page for page, file in FILES.items() if "size=tiny sets " in file.read_text()])
def test_docstring_has_the_numbers_of_the_tiny_size(page):
    sentence = re.search(r"^size=tiny sets (.+\n)+", FILES[page].read_text(), re.MULTILINE)[0]
    config = resolve(get_config(FILES[page])("size=tiny")).to_dict()
    values = {**config, **config["objective"].get("bilstm", {}), **config["model"],
              "vocab_size": config["tokenizer"]["vocab_size"], "learning_rate": config["optimizer"]["learning_rate"]}
    pairs = dict(re.findall(r"(\w+)=(\d[\d.]*\d|\d)", sentence.removeprefix("size=tiny")))
    assert {"batch_size", "length", "vocab_size", "learning_rate", "width"} <= pairs.keys()
    assert {name: float(value) for name, value in pairs.items()} == {name: float(f"{values[name]:g}") for name in pairs}
    chosen = f"{small_networks.UPDATES:,} updates take, {small_networks.EPOCHS[0]} to {small_networks.EPOCHS[1]}"
    assert "steps" in pairs or "epochs" in pairs or (not config["epochs"] and chosen in " ".join(sentence.split()))


def test_pages_state_the_numbers_of_their_tiny_size():
    unstated = [page for page, file in FILES.items() if "tiny" in declared(page).get("size", ())
                and "size=tiny sets " not in file.read_text()]
    assert unstated == ["quickstart.py"]  # it is small without


@pytest.mark.parametrize("page", FILES)
def test_docstring_has_the_command_that_runs_it(page):
    text = FILES[page].read_text()
    about = text[: text.index('"""', 3)]
    assert f"lmrep train --config=experiments/{page}" in about and "--workdir=" in about


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
COMMANDS = [words for page in (README, *FILES.values()) for words in shown(page)] + list(choices(README))


def test_there_are_commands():
    assert len(shown(README)) >= 2 and len(list(choices(README))) >= 4


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A working directory with the experiments and a run to start from."""
    home = tmp_path_factory.mktemp("home")
    (home / "experiments").symlink_to(ROOT / "experiments")
    given.workdir(home / "runs", max_length=512).rename(home / "runs/bert_base")
    for name in ("bert", "mine", "bert-tiny", "lm", "elmo-tiny", "mt-lstm", "autoencoder", "awd"):
        (home / "runs" / name).symlink_to("bert_base")
    return home


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_documented_command_is_valid(words, home, monkeypatch):
    monkeypatch.chdir(home)
    experiments.check_mesh(experiments.parse(parse("train", words, main.flags_of("train")).load_config()), 8)
