"""Linear probes: classifiers on every layer, from the data of a task to the table."""

import json
import shutil

import numpy as np
import pytest

import lmrep
from lmrep.analysis import layer_vectors, probes, report
from lmrep.interop import checkpoint_config
from tests import runs, small
from tests.tasks import tiny

LABELS = dict(zip(tiny.WORDS, ("A", "B") * 4, strict=True))


@pytest.fixture(scope="module")
def home(small_home):
    """A run, and sentences whose tags are decided by each word; an entire sentence is tagged by its first word."""
    for name, seed in (("train", 0), ("dev", 1)):
        draw = np.random.default_rng(seed)
        rows = [[str(draw.choice(tiny.WORDS)) for _ in range(6)] for _ in range(60)]
        (small_home / f"{name}.conll").write_text("\n".join("".join(f"{w} {LABELS[w]}\n" for w in row) for row in rows))
        tiny.write(small_home / f"{name}.jsonl", [{"text": " ".join(row), "label": LABELS[row[0]]} for row in rows])
    return small_home


def command(home, task="tag", suffix="conll", *flags):
    return small.command(
        "probe", f"--config=experiments/tasks/{task}.py", f"--workdir={home}/run",
        f"--config.data.train={home}/train.{suffix}", f"--config.data.validation={home}/dev.{suffix}",
        "--config.length=32", *flags)


@pytest.fixture(scope="module")
def probed(home):
    """What `lmrep probe` prints of the tags of words, and its result in the workdir."""
    answer = command(home, "tag", "conll")
    assert answer.code == 0, answer.err
    [result] = probes.read(home / "run/probes.json")
    return answer, result


@pytest.mark.slow
def test_words_are_read_from_every_layer_of_a_run(home, probed, tmp_path):
    answer, result = probed
    *_, first, second, third = answer.out.splitlines()
    assert first.startswith("0 (embeddings)") and second.startswith("1 ") and third.startswith("2 ")
    assert len(result["layers"]) == 3
    for entry in result["layers"]:  # unknown words have several tokens, the first of which is
        low, high = entry["intervals"]["token_accuracy"]     # read
        assert low <= entry["metrics"]["token_accuracy"] <= high
        assert entry["metrics"]["token_accuracy"] > entry["metrics"]["majority_accuracy"] + 0.1
    page_of = runs.copy("masked", tmp_path / "run")  # without what takes time on its page
    shutil.rmtree(page_of / "checkpoints")
    shutil.copy(home / "run/probes.json", page_of)
    page = report.write([page_of], data_dir=home).read_text()
    assert "Probes" in page and "untrained network" not in page


@pytest.mark.slow
def test_texts_are_probed_and_results_of_other_data_are_kept(home, probed):
    before = len(probes.read(home / "run/probes.json"))
    answer = command(home, "classify", "jsonl", "--examples=40", "--untrained")
    assert answer.code == 0 and "untrained network" in answer.out, answer.err
    assert "40 training and 60 validation examples" in answer.out
    found = probes.read(home / "run/probes.json")
    assert len(found[-1]["untrained"]) == len(found[-1]["layers"]) == 3
    assert len(found) == before + 1 and command(home, "classify", "jsonl").code == 0
    assert len(probes.read(home / "run/probes.json")) == before + 1  # in place of the first


@pytest.mark.slow
def test_entity_tags_are_probed_and_damaged_results_are_kept(home, tmp_path):
    for name in ("train", "dev"):
        text = (home / f"{name}.conll").read_text()
        (home / f"{name}.bio").write_text(text.replace(" A\n", " B-X\n").replace(" B\n", " O\n"))
    output = tmp_path / "probes.json"
    output.write_text(json.dumps({"probes": [{"name": "other", "layers": 3}, 4]}))
    answer = command(home, "tag", "bio", f"--output={output}")
    assert answer.code == 0 and "always the most frequent class: " in answer.out, answer.err
    assert [each if each == 4 else each["name"] for each in json.loads(output.read_text())["probes"]] == [
        "other", 4, "tagging"]
    notes = []
    [result] = probes.read(output, notes)
    assert result["best"] == "entity_f1" and len(notes) == 2 and "probes.0.task is missing" in notes[0]
    assert "probes.1 is 4" in notes[1]
    output.write_text("{")
    answer = command(home, "tag", "bio", f"--output={output}")
    assert answer.code == 2 and "probes.json is damaged" in answer.err and output.read_text() == "{"


@pytest.mark.slow
def test_all_checkpoints_are_probed_and_stored_by_step(home, probed, tmp_path):
    """Each as by --step alone; the network of random parameters once."""
    output, one = tmp_path / "all.json", tmp_path / "one.json"
    flags = ["--untrained", "--examples=20"]
    answer = command(home, "tag", "conll", "--checkpoints=all", f"--output={output}", *flags)
    assert answer.code == 0 and command(home, "tag", "conll", "--step=8", f"--output={one}", *flags).code == 0, answer
    results = probes.read(output)
    assert [result["step"] for result in results] == [4, 8, 12]
    assert ["untrained" in result for result in results] == [True, False, False]
    [alone] = probes.read(one)
    assert alone["layers"] == results[1]["layers"] and alone["untrained"] == results[0]["untrained"]
    title, head, *rows = answer.out.splitlines()
    assert title == "Token accuracy of linear classifiers on every layer:"
    assert head.split() == ["step", "layer", "0", "layer", "1", "layer", "2"]
    for row, result in zip(rows, results, strict=True):
        values = [layer["metrics"]["token_accuracy"] for layer in result["layers"]]
        assert [float(cell) for cell in row.split()] == pytest.approx([result["step"], *values], rel=1e-4)


@pytest.mark.slow
def test_a_published_directory_is_probed_as_its_run_is(home, probed):
    assert small.command("convert", home / "run", home / "published", "--to=huggingface").code == 0
    answer = small.command("probe", "--config=experiments/tasks/tag.py", f"--workdir={home}/published",
                           f"--config.data.train={home}/train.conll", f"--config.data.validation={home}/dev.conll",
                           "--config.length=32", f"--output={home}/published.json")
    assert answer.code == 0, answer.err
    [found] = probes.read(home / "published.json")
    for one, other in zip(found["layers"], probed[1]["layers"], strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], abs=1e-3)
    assert not (home / "published/probes.json").exists()
    answer = small.command("probe", "--config=experiments/tasks/tag.py", f"--workdir={home}/published", "--step=4",
                           f"--config.data.train={home}/train.conll", f"--config.data.validation={home}/dev.conll")
    assert answer.code == 2 and "which has one checkpoint; leave the step out" in answer.err


def test_the_vectors_are_those_of_encode(home):
    """Of the first tokens of words, in every layer."""
    from lmrep.experiment import config as experiments
    from lmrep.experiment.task_data import prepare_examples

    config = checkpoint_config.load_config("experiments/tasks/tag.py", f"init={home}/run", [
        ("data.train", f"{home}/train.conll"), ("length", "32")])
    prepared = prepare_examples(experiments.parse(config), experiments.parse(config).tokenizer)
    run = lmrep.load(home / "run")
    c = experiments.resolve_stages(prepared.experiment)[0].objective
    model = experiments.build_model(prepared.experiment, run.tokenizer.size)
    found = layer_vectors.vectors(run.params["encoder"], model, c, prepared.splits["train"])
    words = prepared.records["train"][7].fields["words"]
    [text] = run.encode([" ".join(words)], layers="all")
    own = np.flatnonzero(found.unit == 7)
    np.testing.assert_allclose(found.x[:, own][:, np.argsort(found.position[own])], text.by_word("first"), atol=1e-4)


@pytest.mark.parametrize("pooling", ["position", "mean", "max", "concat"])
def test_the_vectors_of_texts_are_pooled_as_the_task_says(home, pooling):
    from lmrep.experiment import config as experiments
    from lmrep.experiment.task_data import prepare_examples

    config = checkpoint_config.load_config("experiments/tasks/classify.py", f"init={home}/run", [
        ("data.train", f"{home}/train.jsonl"), ("length", "32"), ("objective.pooling", pooling)])
    config.format.packed = False
    prepared = prepare_examples(experiments.parse(config), experiments.parse(config).tokenizer)
    run = lmrep.load(home / "run")
    c = experiments.resolve_stages(prepared.experiment)[0].objective
    model = experiments.build_model(prepared.experiment, run.tokenizer.size)
    found = layer_vectors.vectors(run.params["encoder"], model, c, prepared.splits["train"])
    [text] = run.encode([prepared.records["train"][7].fields["text"]], layers="all")
    tokens = np.asarray(text.hidden)
    expected = {"position": tokens[:, 0], "max": tokens.max(1), "mean": tokens.mean(1)}
    expected["concat"] = np.concatenate(list(expected.values()), -1)
    np.testing.assert_allclose(found.x[:, np.flatnonzero(found.unit == 7)[0]], expected[pooling], atol=1e-4)


def test_pooling_that_has_weights_is_refused(home):
    answer = command(home, "classify", "jsonl", "--config.objective.pooling=attention")
    assert answer.code == 2 and "pooling is attention" in answer.err and not answer.out


def test_probes_of_two_poolings_are_kept(tmp_path):
    entry = {"metrics": {"accuracy": 0.5}, "intervals": {"accuracy": [0.4, 0.6]}}
    result = {"name": "x", "task": "classification", "source": "run", "best": "accuracy", "data": {}, "seed": 0,
              "examples": {"train": 6, "validation": 6}, "layers": [entry]}
    for pooling in ({}, {"pooling": "mean"}, {"pooling": "mean"}):
        probes.store(result | pooling, tmp_path / probes.FILE)
    first, second = probes.read(tmp_path / probes.FILE)
    assert "pooling" not in first and "mean pooling" in probes.describe(second)
    assert probes.method(second) == f"{probes.method(first)}, mean pooling"


def test_a_layer_that_holds_the_label_is_found():
    """And one of noise is not; each layer's classifier is what it is alone."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 900)
    x = draw.normal(size=(2, 900, 4)).astype(np.float32)
    x[1, :, 0] += 4 * (y == 1)
    x[1, :, 1] += 4 * (y == 2)
    x[1, :, 3] = 7.0  # constant
    predict = probes.fit(x[:, :600], y[:600], 3)
    accuracy = (predict(x[:, 600:]).argmax(-1) == y[600:]).mean(1)
    assert accuracy[0] < 0.5 < 0.9 < accuracy[1]
    alone = probes.fit(x[1:, :600], y[:600], 3)(x[1:, 600:])
    np.testing.assert_allclose(alone[0], predict(x[:, 600:])[1], atol=1e-4)
