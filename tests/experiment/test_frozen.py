"""Frozen parts: a run with a teacher trains, resumes and is loaded; and what is refused."""

import contextlib
import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest

from lmrep import api
from lmrep.core.errors import UserError
from lmrep.core.params import count, flatten
from lmrep.doctor import machine
from lmrep.experiment import build, checks, frozen
from lmrep.experiment import config as experiments
from lmrep.inference.load import load
from lmrep.interop import checkpoint_config, conversion
from lmrep.models import transformer
from lmrep.planning import hardware, plan
from lmrep.storage.checkpoints import Checkpoints
from lmrep.storage.workdir import write_config
from lmrep.training.state import saved
from tests import runs as shared
from tests import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `teacher` and `texts`."""
    folder = tmp_path_factory.mktemp("frozen")
    shutil.copytree(shared.folder("masked") / "texts", folder / "texts")
    shared.copy("masked", folder / "teacher")
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    """(folder with `teacher`, `student` and `texts`, the student's config)."""
    config = student(folder, **{"objective.draw": "batch"})
    api.train(config, folder / "student", data_dir=folder / "data")
    return folder, config


def student(folder, **fields):
    config = small.config(folder / "texts", "distillation")
    config.frozen = {"teacher": str(folder / "teacher")}
    config.model.update({"layers": 1, "token_types": 0})
    config.tokenizer.vocab_file = str(folder / "teacher/tokenizer")
    config.update_from_flattened_dict(fields)
    return config


def values(directory, step=12):
    with contextlib.closing(Checkpoints(directory / "checkpoints")) as checkpoints:
        return flatten(checkpoints.read(step)[0])


@pytest.mark.slow
def test_a_checkpoint_has_no_frozen_parameter(runs):
    folder, _ = runs
    assert not [path for path in values(folder / "student") if "frozen" in path]
    assert [path for path in values(folder / "student") if path.startswith("params/encoder")]


@pytest.mark.slow
def test_the_teachers_losses_are_logged_and_validated(runs):
    folder, _ = runs
    for split in ("train", "validation"):
        last = small.lines(folder / "student", split)[-1]
        terms = {"mlm_loss": 2, "distillation_loss": 5, "cosine_loss": 1}
        assert last["loss"] == pytest.approx(sum(weight * last[name] for name, weight in terms.items()), rel=1e-4)
    first, *_, last = small.lines(folder / "student", "validation")
    assert last["distillation_loss"] < first["distillation_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 5])
def test_evaluation_gives_the_loss_of_validation(runs, batch_size):
    folder, _ = runs
    found = api.evaluate(folder / "student", split="validation", data_dir=folder / "data", batch_size=batch_size)
    last = small.lines(folder / "student", "validation")[-1]
    assert found == pytest.approx({name: last[name] for name in found}, rel=1e-5) and "distillation_loss" in found


@pytest.mark.slow
def test_evaluation_without_the_teacher_says_so(runs, tmp_path):
    folder, _ = runs
    shutil.copytree(folder / "student", tmp_path / "student")
    text = (tmp_path / "student/config.json").read_text()
    (tmp_path / "student/config.json").write_text(text.replace(str(folder / "teacher"), str(tmp_path / "moved")))
    done = small.command("evaluate", f"--workdir={tmp_path / 'student'}", f"--data_dir={folder / 'data'}")
    assert done.code == 0, done.err
    assert "mlm_loss" in done.out and "distillation_loss" not in done.out
    assert "config.frozen.teacher" in done.err and "without the terms of the teacher" in done.err
    assert json.loads((tmp_path / "student/eval.json").read_text())["without"] == "teacher"


@pytest.mark.slow
def test_a_trained_run_needs_no_teacher(runs, tmp_path):
    folder, config = runs
    shutil.copytree(folder / "student", tmp_path / "student")
    config = experiments.parse(config)
    assert config.frozen["teacher"]
    shutil.move(folder / "teacher", folder / "elsewhere")
    try:
        run = load(tmp_path / "student")
        assert run.predict([small.SAMPLE]) and "frozen" not in run.params
        with pytest.raises(UserError, match=r"config\.frozen\.teacher is .* does not exist"):
            api.train(runs[1], tmp_path / "student", data_dir=folder / "data")
    finally:
        shutil.move(folder / "elsewhere", folder / "teacher")


def test_a_changed_teacher_is_refused_and_a_moved_one_is_not(folder, tmp_path):
    def config_record(teacher):
        experiment = experiments.parse(student(folder, **{"frozen.teacher": str(teacher)}))
        data = build.prepare_data(experiment, folder / "data")
        parts = frozen.load(experiment, data.tokenizer.tokens)
        stages = build.stages(data, folder / "data", parts)
        return data.experiment, checks.run_record(data, stages, frozen.fingerprints(parts))

    write_config(tmp_path, config_record(folder / "teacher")[1])
    shutil.copytree(folder / "teacher", tmp_path / "moved")
    experiment, record = config_record(tmp_path / "moved")
    checks.check_resumable(tmp_path, [12], experiment, record["data"])
    shutil.rmtree(tmp_path / "moved/checkpoints/12")
    experiment, record = config_record(tmp_path / "moved")
    with pytest.raises(UserError, match=r"config.frozen.teacher .* other parameters than those"):
        checks.check_resumable(tmp_path, [12], experiment, record["data"])


def test_a_teacher_of_another_tokenizer_is_refused(folder, tmp_path):
    other = student(folder, **{"tokenizer.vocab_file": "", "tokenizer.vocab_size": 80})
    with pytest.raises(UserError, match=r"has another tokenizer than this run: it has .* tokens"):
        api.train(other, tmp_path / "run", data_dir=folder / "data")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("parts", "objective", "message"), [
    ({}, "distillation", "reads the frozen part 'teacher', which config.frozen lacks"),
    ({"teacher": ""}, "distillation", "reads the frozen part 'teacher'"),
    ({"teacher": "{teacher}", "other": "{teacher}"}, "distillation", "'other', which no objective of this run reads"),
    ({"teacher": "{teacher}"}, "masked", "they read none"),
    ({"teacher": "{texts}"}, "distillation", "which has no config.json"),
    ({"teacher": "{texts}/none"}, "distillation", "which does not exist"),
    ({"teacher": "{vectors}"}, "distillation", "a file of word vectors; expected a run"),
])
def test_wrong_parts_are_refused(folder, tmp_path, parts, objective, message):
    (tmp_path / "vectors.txt").write_text("the 1 2\ncat 3 4\n")
    config = small.config(folder / "texts", objective)
    config.frozen = {name: path.format(teacher=folder / "teacher", texts=folder / "texts",
                                       vectors=tmp_path / "vectors.txt") for name, path in parts.items()}
    experiment = experiments.parse(config)
    with pytest.raises(UserError, match=message):
        frozen.load(experiment)


@pytest.mark.slow
def test_parts_by_type(folder, tmp_path):
    """A run, the same run as a published directory, and word vectors."""
    conversion.to_published(folder / "teacher", tmp_path / "published")
    (tmp_path / "vectors.txt").write_text("2 2\nthe 1 2\ncat 3 4\n")

    def part(path, values=True):
        experiment = experiments.parse(student(folder, **{"frozen.teacher": str(path)}))
        return frozen._part("teacher", str(path), experiment.execution, values, teacher=True)

    run, published, vectors = map(part, (folder / "teacher", tmp_path / "published", tmp_path / "vectors.txt"))
    assert run.objective.name == published.objective.name == "masked"
    assert run.tokens == published.tokens and set(flatten(run.specs)) == set(run.values)
    assert run.values.keys() == published.values.keys()
    for path in run.values:
        np.testing.assert_array_equal(run.values[path], published.values[path])
    assert vectors.tokens == ["the", "cat"] and vectors.values["vectors"].tolist() == [[1, 2], [3, 4]]
    assert len({run.fingerprint, vectors.fingerprint}) == 2 and part(folder / "teacher").fingerprint == run.fingerprint
    assert flatten(part(folder / "teacher", False).specs).keys() == run.values.keys()
    assert not part(folder / "teacher", False).values


@pytest.mark.slow
def test_stages_with_and_without_a_teacher(folder, tmp_path):
    config = student(folder)
    config.objective = {"name": "masked"}
    config.stages = ({"name": "alone", "fraction": 0.5}, {
        "name": "taught", "fraction": 0.25, "objective": {"name": "distillation"}}, {"name": "after", "fraction": 0.25})
    api.train(config, tmp_path / "run", data_dir=folder / "data")
    assert ["distillation_loss" in line for line in small.lines(tmp_path / "run", "train")] == [False] * 6 + [
        True] * 3 + [False] * 3
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for later in (9, 12):
        shutil.rmtree(tmp_path / "again/checkpoints" / str(later))
    api.train(config, tmp_path / "again", data_dir=folder / "data")  # from step 8, in the second stage
    there, here = values(tmp_path / "run"), values(tmp_path / "again")
    assert all(np.asarray(there[path]).tobytes() == np.asarray(here[path]).tobytes() for path in there)


@pytest.mark.slow
def test_doctor_and_plans_count_a_teacher_apart(runs):
    folder, config = runs
    experiment = experiments.parse(config)
    found = machine.network(experiment, None, None)
    teacher = frozen.load(experiment, values=False)["teacher"]
    assert f", and {count(teacher.specs):,} of teacher ({folder / 'teacher'}), which are not trained" in found.text
    [one] = found.value
    assert not set(flatten(saved(one.state).params)) & {f"frozen/teacher/{path}" for path in flatten(teacher.specs)}
    [planned] = plan.plan(experiment, hardware.find("cpu:1"))
    assert planned.memory.frozen == 4 * count(teacher.specs)


def test_paths_become_absolute(folder, tmp_path, monkeypatch):
    page = small.experiment_file(tmp_path, folder / "texts")
    monkeypatch.chdir(folder)
    config = checkpoint_config.load_config(page, "", [("frozen", "{'teacher': 'teacher', 'other': 'gs://bucket/run'}")])
    assert config.frozen.to_dict() == {"teacher": str(folder / "teacher"), "other": "gs://bucket/run"}


@pytest.mark.slow
def test_commands_name_the_teacher(runs):
    folder, _ = runs
    for command in ("inspect", "report"):
        where = [folder / "student"] if command == "report" else [f"--workdir={folder / 'student'}"]
        done = small.command(command, *where, f"--data_dir={folder / 'data'}")
        assert done.code == 0, done.err
    inspected = small.command("inspect", f"--workdir={folder / 'student'}", f"--data_dir={folder / 'data'}")
    assert "frozen teacher: " in inspected.out and "which are not trained" in inspected.out
    page = (folder / "student/report.html").read_text()
    assert "frozen teacher: " in page


def test_newer_fields_of_a_network_change_no_fingerprint_at_their_defaults():
    config = transformer.Config()
    fields = frozen.network_fields(config)
    assert fields.keys() == asdict(config).keys() - frozen.NEWER.keys() and "query_key_norm" in fields
    assert all(getattr(config, name) == value for name, value in frozen.NEWER.items())
    assert frozen.network_fields(replace(config, attention_cap=50.0)) == fields | {"attention_cap": 50.0}
