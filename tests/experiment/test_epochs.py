"""The examples that stages show, the limit of epochs, checkpoints by words, and their export."""

import json
import sys

import numpy as np
import pytest

import lmrep
from lmrep.config.loading import load
from lmrep.experiment import build, epochs, inspection
from lmrep.experiment import config as experiments
from lmrep.interop import convert
from lmrep.storage import remote_workdir
from tests import small
from tests.docs import world
from tests.experiments.pages import ROOT

QUIET = ["--config.log.tensorboard=false", "--config.log.report=false", "--config.mesh.data=1"]
SMALL = [*QUIET, "--config.model.layers=1", "--config.model.width=32", "--config.model.heads=2",
         "--config.model.mlp=64", "--config.tokenizer.vocab_size=300", "--config.data.validation=0.2",
         "--config.steps=12", "--config.batch_size=2", "--config.length=16", "--config.evaluation.every=12",
         "--config.checkpoint.every=12"]


def test_a_step_has_the_epochs_that_are_read_until_it():
    read = epochs.Progress([10, 30, 40], [0.1, 0.02, 0.5])
    assert [read.epochs(step) for step in (0, 5, 10, 20, 40, 50)] == pytest.approx([0, 0.5, 1, 1.2, 6.4, 6.4])
    for step in (0.5, 10, 17.3, 40):
        assert read.step(read.epochs(step)) == pytest.approx(step)
    assert read.step(6.5) == np.inf


def test_a_stage_shows_the_examples_after_those_of_earlier_stages_with_the_same(tmp_path):
    """Batches grow from 2 to 3 and 16, with a stage of another length between."""
    config = small.config(small.corpus(tmp_path / "texts"))
    config.length, config.steps, same = 8, 12, {"fraction": 0.25}
    config.stages = [same | {"batch_size": 2}, same | {"batch_size": 3, "length": 16}, same | {"batch_size": 3}, same]

    def shown(steps):
        data = build.prepare_data(experiments.parse(config), tmp_path / "data")
        return [np.concatenate([batch["example"] for batch in stage.batches(np.arange(stage.batch_size), 0, steps)])
                .tolist() for stage in build.stages(data, tmp_path / "data")]

    first, _, second, third = shown(3)
    lines = inspection.report(experiments.parse(config), tmp_path / "data", examples=1, step=11)
    assert f"Example {third[16]:,}:" in lines
    config.stages = ()
    [order] = shown(5)
    assert first == order[:6] and second == order[6:15] and third == order[16:64]  # at whole batches of the stage
    config.stages, config.overfit = [same | {"fraction": 0.5}] * 2, 1
    assert shown(2) == [order[:16] * 2] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "format", "fields"), [
    ("masked", "packed", {}), ("causal", "stream", {"order": "contiguous"})])
def test_stages_with_the_same_examples_equal_a_run_without_stages(objective, format, fields, tmp_path):
    config = small.config(small.corpus(tmp_path / "texts"), objective, format)
    config.format.update(fields)
    config.evaluation.every = 12
    lmrep.train(config, tmp_path / "whole", data_dir=tmp_path / "data")
    config.stages = [{"fraction": 0.5}] * 2
    lmrep.train(config, tmp_path / "stages", data_dir=tmp_path / "data")
    lmrep.train(config, small.interrupted(tmp_path / "stages", tmp_path / "resumed"), data_dir=tmp_path / "data")
    assert small.losses(tmp_path / "stages") == small.losses(tmp_path / "whole")
    assert small.lines(tmp_path / "resumed") == small.lines(tmp_path / "stages")


@pytest.mark.parametrize(("track", "most"), [("strict_small", 100), ("strict", 1000)])
@pytest.mark.parametrize("system", ["gpt_bert", "elc_bert", "bert", "gpt2"])
def test_the_page_has_the_limits_of_the_challenge(track, most, system):
    """10 epochs, checkpoints as its pipeline evaluates them, and as many tokens in every step."""
    experiment = experiments.parse(load(ROOT / "experiments/babylm.py", f"track={track},system={system}"))
    numbers = [*range(1, 10), *range(10, 101, 10), *range(200, 1001, 100)]
    assert experiment.checkpoint.words == tuple(number * 10**6 for number in numbers if number <= most)
    assert (experiment.data.corpus, experiment.data.max_epochs) == ("babylm", 10)
    stages = experiments.resolve_stages(experiment)
    [tokens] = {stage.batch_size * stage.length for stage in stages}
    per_word = {"strict_small": 1.5, "strict": 1.4}[track]
    assert 9.7 < experiment.steps * tokens / per_word / (most * 10**5 * 0.99) < 10
    assert getattr(stages[0].objective, "rate_steps", 0) in (0, experiment.steps)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The challenge's files, and a run of GPT-2 with checkpoints by words."""
    home = tmp_path_factory.mktemp("epochs")
    world.challenge(home / "train")
    answer = train(home, "run", "--config.checkpoint.words=(40,20,100,1000000)")
    assert answer.code == 0 and "checkpoint.words has 1,000,000, and the run reads " in answer.err, answer
    return home


def train(home, name, *flags, system="gpt2"):
    return small.command("train", f"--config=experiments/babylm.py:size=tiny,system={system}", *SMALL,
                         f"--config.data.files={home}/train", f"--workdir={home}/{name}", f"--data_dir={home}/data",
                         *flags)


def test_checkpoints_are_saved_after_words(home):
    """A step reads 2 sequences of 16 tokens, and a word has a token or more."""
    config = json.loads((home / "run/config.json").read_text())["config"]
    steps = config["checkpoint"]["steps"]
    assert len(steps) == 3 and steps[0] < steps[1] < steps[2] and 100 / 32 <= steps[2] <= 12
    assert [abs(step - steps[2] * words / 100) <= 1 for step, words in zip(steps, (20, 40), strict=False)] == [True] * 2
    assert remote_workdir.saved_steps(home / "run") == sorted({*steps, 12})
    assert convert.revisions(home / "run") == dict(zip(("chck_2e-05M", "chck_4e-05M", "chck_0.0001M"), steps,
                                                       strict=True))


def test_checkpoints_that_are_gone_have_no_revision(home, monkeypatch):
    kept = remote_workdir.saved_steps(home / "run")[1:]
    monkeypatch.setattr(remote_workdir, "saved_steps", lambda directory: kept)
    assert set(convert.revisions(home / "run").values()) < {*kept}


def test_the_run_is_resumed_with_the_same_checkpoints(home):
    assert small.command("train", f"--workdir={home}/run", f"--data_dir={home}/data").code == 0
    assert train(home, "run", "--config.checkpoint.words=(20,40,100)").code == 0


@pytest.mark.parametrize(("flags", "named"), [
    (["--config.data.max_epochs=0.01"], ("12 steps are", "data.max_epochs is 0.01", "--config.steps=")),
    (["--config.checkpoint.words=(20,)", "--config.checkpoint.steps=(3,)"], ("checkpoint.steps has 3",))])
def test_runs_are_refused_before_anything_is_written(home, flags, named):
    answer = train(home, "refused", *flags)
    assert answer.code == 2 and all(text in answer.err for text in named), answer
    assert not (home / "refused").exists()


def test_the_largest_number_of_steps_fits(home):
    answer = train(home, "refused", "--config.data.max_epochs=0.3", "--config.steps=1000")
    steps = answer.err.partition("--config.steps=")[2].split()[0]
    fits = "--config.checkpoint.words=()", "--config.data.max_epochs=0.3"
    assert train(home, "more", *fits, f"--config.steps={int(steps) + 1}").code == 2
    assert train(home, "fits", *fits, f"--config.steps={steps}").code == 0


def test_all_checkpoints_are_exported(home, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # it takes seconds to import
    answer = small.command("convert", f"{home}/run", f"{home}/published", "--to=huggingface", "--checkpoints=all")
    assert answer.code == 0 and answer.out.count("GPT2LMHeadModel") == 4, answer
    names = {path.name: (path / "model.safetensors").read_bytes() for path in (home / "published").iterdir()}
    assert names.keys() == {"main", *convert.revisions(home / "run")} and len({*names.values()}) > 2
    answer = small.command("convert", f"{home}/run", f"{home}/published", "--to=huggingface", "--checkpoints=all")
    assert answer.code == 2 and "exists already" in answer.err
    for flags in (["--checkpoints=some"], ["--checkpoints=all", "--step=1"], ["--checkpoints=all", "--to=bilm"]):
        answer = small.command("convert", f"{home}/run", f"{home}/other", "--to=huggingface", *flags)
        assert answer.code == 2 and "expected --checkpoints=all --to=huggingface" in answer.err
    assert not (home / "other").exists()


@pytest.mark.slow
def test_revisions_are_those_that_other_libraries_load(home, hub):
    """As the challenge's pipeline does: the model and its tokenizer by the name of the repository and a revision."""
    transformers = pytest.importorskip("transformers")
    push = ("push", f"--workdir={home}/run", "--repo=me/babylm", f"--data_dir={home}/data", "--checkpoints=all")
    revisions = convert.revisions(home / "run")
    for _ in range(2):  # the second adds to the branches, which exist
        answer = small.command(*push)
        assert answer.code == 0 and answer.out.startswith(hub.url), answer
    assert hub.repositories["models", "me/babylm"]["refs"].keys() == {"main", *revisions}
    assert "README.md" in hub.files("me/babylm") and "README.md" not in hub.files("me/babylm", branch=min(revisions))
    seen, text = set(), "The old cat sees the dog."
    for name, step in {"main": None, **revisions}.items():
        run = lmrep.load(home / "run", step)
        network = transformers.AutoModelForCausalLM.from_pretrained("me/babylm", revision=name)
        ids = transformers.AutoProcessor.from_pretrained("me/babylm", revision=name)(text=text)["input_ids"]
        assert ids == run.tokenizer.encode(text).ids.tolist()
        table = network.get_input_embeddings().weight.detach().numpy()
        np.testing.assert_array_equal(table, np.asarray(run.params["encoder"]["embedding"]["token"])[:len(table)])
        seen.add(table.tobytes())
    assert len(seen) == len(revisions) + 1
    assert small.command(*push, "--step=12").code == 2


def test_a_network_without_a_class_is_refused(home):
    answer = train(home, "gpt_bert", "--config.stages=()", "--config.steps=2", system="gpt_bert")
    assert answer.code == 0, answer
    answer = small.command("convert", f"{home}/gpt_bert", f"{home}/none", "--to=huggingface", "--checkpoints=all")
    assert answer.code == 2 and "no published family can hold this network" in answer.err and not (
        home / "none").exists()
