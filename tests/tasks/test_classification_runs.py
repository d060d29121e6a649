"""Runs of classification: resumed, evaluated on other files, and from checkpoints, with frozen parameters."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import lmrep
from lmrep.cli.arguments import Arguments
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.data import records
from lmrep.data.records import Record
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.inference import evaluate_task
from lmrep.tasks.known import KNOWN
from tests import given, runs, small
from tests.tasks import tiny

STEPS = 24  # three epochs of 120 examples: 7 batches of 16 and one of 8


@pytest.fixture(scope="module")
def home():
    """The folder with the examples; nothing is changed there."""
    return runs.folder("classification")


def config(home, argument="mesh=1x1x1", train="train.jsonl", **fields):
    """That of the shared run, with changes."""
    dev = None if train == "others.jsonl" else home / "dev.jsonl"
    return tiny.config("classification", home / train, dev, argument, **{
        "epochs": 3.0, "checkpoint__every": 0, "evaluation__every": 4, "checkpoint__keep": 2} | fields)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A copy of the shared run."""
    return runs.copy("classification", tmp_path_factory.mktemp("classification") / "run")


def params(workdir, step=None):
    return {path: np.asarray(value) for path, value in flatten(lmrep.load(workdir, step).params).items()}


def predicted(workdir):
    lines = (workdir / "predictions/validation.jsonl").read_text().splitlines()
    return [json.loads(line)["prediction"] for line in lines]


def test_a_run_learns_and_its_best_checkpoint_predicts(trained):
    lines = small.lines(trained, "validation")
    assert [line["step"] for line in lines] == [0, 4, 8, 12, 16, 20, 24]
    best = max(lines[1:], key=lambda line: line["accuracy"])
    assert best["accuracy"] > best["majority_accuracy"] + 0.2
    assert lmrep.load(trained).step == best["step"]  # checkpoint.every is 0: there is one at each validation
    gold = [record["label"] for record in runs.labelled_texts(44, 1)]
    assert np.mean([one["label"] == label for one, label in zip(predicted(trained), gold, strict=True)]) == \
        pytest.approx(best["accuracy"])


def test_inspection_shows_what_a_step_reads(trained):
    """The records that the trainer reads for a step of the second epoch, in their order."""
    experiment = lmrep.load(trained).experiment
    data = build.prepare_data(experiment, trained.parent, tokenizer=experiments.own_tokenizer(trained, experiment))
    [stage] = build.stages(data, trained.parent)
    batch = next(iter(stage.batches(np.arange(experiment.batch_size), 9, 10)))
    shown = lmrep.inspect(trained, step=10, examples=100).split("\n\n")
    records = [data.records["train"][number] for number in batch["example"] if number >= 0]
    assert shown[0] == f"Step 10: {len(records)} examples" and len(shown) == 1 + len(records)
    assert all(record.where in text and record.fields["text"] in text
               for record, text in zip(records, shown[1:], strict=True))
    with pytest.raises(UserError, match=f"step is {STEPS + 1}; expected a step from 1 to {STEPS}, and the split train"):
        lmrep.inspect(trained, step=STEPS + 1)


def test_a_run_predicts_from_texts_tuples_and_dicts(trained):
    run = lmrep.load(trained)
    first, *others = run.predict(["cat good dog", ("cat good dog",), {"text": "cat good dog"}])
    assert set(first["probabilities"]) == {"neg", "pos"} and sum(first["probabilities"].values()) == pytest.approx(1)
    assert all(other["probabilities"] == pytest.approx(first["probabilities"], rel=1e-5) for other in others)
    for wrong, message in (({"text": 3}, "'text' is 3; expected a string"), ({"words": ["a"]}, "has no 'text'"),
                           (" ", "expected text that is not empty")):
        with pytest.raises(UserError, match=message):
            run.predict([wrong])


def test_truncated_texts_are_counted_when_they_are_predicted(trained, caplog):
    run = lmrep.load(trained)
    form = {**run.experiment.format, "long": "truncate"}
    run = dataclasses.replace(run, experiment=dataclasses.replace(run.experiment, format=form))
    run.predict(["cat good dog", "cat " * 200])
    assert "1 of 2 examples are longer than" in caplog.text and "were truncated" in caplog.text


def test_submissions_have_the_names_that_the_benchmark_wants(trained, tmp_path):
    run = lmrep.load(trained)
    data = dataclasses.replace(run.experiment.data, test="MNLI/test_matched.tsv")
    mnli = dataclasses.replace(run.experiment, name="mnli", data=data)
    run = dataclasses.replace(run, directory=tmp_path, experiment=mnli)
    own = [Record({"text": "cat good dog"}, "7", "test_matched.tsv, line 2")]
    result = evaluate_task.predict_records(run, own)
    for name, file in (("test", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv"), ("diagnostic", "AX.tsv"),
                       ("ax", "AX.tsv"), ("validation", "validation.tsv")):
        path = evaluate_task.write(run, name, own, result)[-1]
        assert path.name == file and path.read_text() == f"index\tprediction\n7\t{result.predictions[0]['label']}\n"


@pytest.mark.slow
def test_a_split_in_tfds_is_evaluated_in_place_of_files(trained, tmp_path):
    import tensorflow_datasets as tfds  # it takes seconds to import

    directory = tmp_path / "reviews" / "1.0.0"
    directory.mkdir(parents=True)
    features = tfds.features.FeaturesDict({
        "text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=["neg", "pos"])})
    identity = tfds.core.dataset_builder.dataset_info.DatasetIdentity(
        name="reviews", version=tfds.core.Version("1.0.0"), data_dir=str(directory), module_name="")
    writer = tfds.core.SequentialWriter(tfds.core.DatasetInfo(builder=identity, features=features), 100,
                                        file_format="array_record")
    writer.initialize_splits(["validation", "test"])
    own = [{"text": each["text"], "label": ("neg", "pos").index(each["label"])} for each in runs.labelled_texts(12, 1)]
    writer.add_examples({"validation": own, "test": [each | {"label": -1} for each in own]})
    writer.close_all()
    workdir = runs.copy("classification", tmp_path / "run")
    assert lmrep.evaluate(workdir, files=f"tfds:{directory}:validation")["accuracy"] > 0.5
    assert lmrep.evaluate(workdir, files=f"tfds:{directory}:test") == {}
    for name in ("reviews-validation", "reviews"):
        assert len((workdir / f"predictions/{name}.jsonl").read_text().splitlines()) == 12
    with pytest.raises(UserError, match="'tfds:glue'; expected a TFDS data set and a split of it"):
        lmrep.evaluate(workdir, files="tfds:glue")


def test_the_diagnostic_set_in_tfds_has_the_columns_of_mnli_there(trained):
    data = records.other_files(lmrep.load(trained).experiment.data, "tfds:glue/ax:test", KNOWN["mnli"].tfds)
    assert (data.tfds, data.test, data.columns["text2"]) == ("glue/ax", "test", "hypothesis")


def test_a_resumed_run_ends_as_an_uninterrupted_one(home, trained, tmp_path):
    """With dropout, from the checkpoint before the last one."""
    workdir = runs.copy("classification", tmp_path / "run")
    last = max(workdir.glob("checkpoints/[0-9]*"), key=lambda path: int(path.name))
    assert int(last.name) == STEPS
    shutil.rmtree(last)
    shutil.rmtree(workdir / "predictions")
    lmrep.train(config(home), workdir)
    assert small.lines(workdir) == small.lines(trained)
    assert lmrep.load(workdir).step == lmrep.load(trained).step
    expected = params(trained, STEPS)
    for path, value in params(workdir, STEPS).items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)
    assert predicted(workdir) == predicted(trained)


def test_more_epochs_continue_the_run_in_a_workdir(trained):
    """The steps on record are those of the epochs before."""
    def resumed(*overrides):
        return Arguments("train", workdir=str(trained), overrides=overrides).load_config()

    assert resumed().steps == STEPS
    assert (resumed(("epochs", "5")).steps, resumed(("epochs", "5")).epochs) == (0, 5.0)
    assert resumed(("epochs", "5"), ("steps", "30")).steps == 30


# From checkpoints


@pytest.mark.slow
def test_resuming_with_other_examples_names_the_files(home, trained, tmp_path):
    workdir = runs.copy("classification", tmp_path / "run")
    other = tiny.write(tmp_path / "other.jsonl", runs.labelled_texts(44, 5))
    changed = config(home)
    changed.data.validation = str(other)
    with pytest.raises(UserError) as error:
        lmrep.train(changed, workdir)
    lines = str(error.value).splitlines()
    assert lines[1:-1] == [f"  data.validation: {home / 'dev.jsonl'} -> {other}, with other examples"]
    changed = config(home)
    changed.data.train = str(tiny.write(tmp_path / "train.jsonl", runs.labelled_texts(120, 5)))
    previous = json.loads((workdir / "config.json").read_text())
    previous["config"]["data"]["train"] = changed.data.train
    (workdir / "config.json").write_text(json.dumps(previous))
    with pytest.raises(UserError) as error:
        lmrep.train(changed, workdir)
    assert str(error.value).splitlines()[1:-1] == [
        f"  data.train: {changed.data.train} has other examples than before"]
    shutil.copy(home / "dev.jsonl", tmp_path / "copy.jsonl")
    changed = config(home)
    changed.data.validation, changed.data.train = str(tmp_path / "copy.jsonl"), str(home / "train.jsonl")
    del previous["data"]["records"]  # a run that has none of these fingerprints resumes
    (workdir / "config.json").write_text(json.dumps(previous))
    assert lmrep.train(changed, workdir).steps == STEPS


@pytest.mark.slow
def test_a_run_from_before_a_field_was_added_resumes(home, trained, tmp_path):
    """With a version that had fewer fields of the task and the format."""
    workdir = runs.copy("classification", tmp_path / "run")
    record = json.loads((workdir / "config.json").read_text())
    for section, field in (("objective", "features"), ("objective", "pooling"), ("format", "long")):
        del record["config"][section][field]
    (workdir / "config.json").write_text(json.dumps(record))
    assert lmrep.train(config(home), workdir).steps == STEPS


@pytest.mark.slow
def test_unknown_labels_of_other_files_are_errors(trained, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path / "other.jsonl", [*runs.labelled_texts(3, 6), {"text": "cat", "label": "poz"}])
    assert lmrep.evaluate(trained, files="other.jsonl")["accuracy"] <= 0.75
    assert "other.jsonl, line 4: the label is 'poz'" in caplog.text
    for name in "ab":
        tiny.write(tmp_path / f"{name}.jsonl", runs.labelled_texts(3, 6))
    lmrep.evaluate(trained, files="a.jsonl,b.jsonl")
    assert (trained / "predictions/a-b.jsonl").read_text().count("\n") == 6


@pytest.fixture(scope="module")
def pretrained(home):
    """A BERT with a pooler."""
    return given.workdir(home / "bert", format="segment_pair", objective_fields={"sentence_pair": True}, layers=1,
                         width=16, heads=2, mlp=32)


@pytest.mark.slow
def test_frozen_parameters_stay_as_they_were_pretrained(home, pretrained, tmp_path):
    """The network, and the pooler, from which the head's dense layer starts."""
    frozen = {"encoder/*": 0.0, "*/dense/*": 0.0}
    lmrep.train(config(home, f"init={pretrained},mesh=1x1x1", steps=2), tmp_path / "run",
                **{"optimizer.multipliers": frozen})
    source, found = params(pretrained), params(tmp_path / "run")
    for path, value in found.items():
        start = path.replace("classification/dense", "pair/pooler")
        if start in source:
            np.testing.assert_array_equal(value, source[start], err_msg=path)
    assert {path for path in found if path.startswith("objective")} == {
        f"objective/classification/{layer}/{name}" for layer in ("dense", "out") for name in ("kernel", "bias")}
    assert found["objective/classification/out/bias"].any()  # which is 0 at first


@pytest.mark.slow
def test_a_run_with_other_labels_needs_a_new_head(home, trained, tmp_path):
    argument = f"init={trained},mesh=1x1x1"
    message = r"has the labels no, yes, and config\.objective\.labels is neg, pos; .*--config\.head=new"
    with pytest.raises(UserError, match=message):
        lmrep.train(config(home, argument, "others.jsonl"), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    lmrep.train(config(home, f"{argument},head=new", "others.jsonl", steps=1), tmp_path / "run",
                **{"optimizer.multipliers": {"*": 0.0}})
    source, found = params(trained), params(tmp_path / "run")
    for path, value in found.items():
        assert np.array_equal(value, source[path]) == path.startswith("encoder/") or not value.any(), path


@pytest.mark.slow
def test_a_run_with_the_same_labels_continues_with_the_head(home, trained, tmp_path):
    lmrep.train(config(home, f"init={trained},mesh=1x1x1", steps=1), tmp_path / "run",
                **{"optimizer.multipliers": {"*": 0.0}})
    source = params(trained)
    for path, value in params(tmp_path / "run").items():
        np.testing.assert_array_equal(value, source[path], err_msg=path)
