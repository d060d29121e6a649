"""Configs of tasks: recipes, known sets, and pages."""

from pathlib import Path

import pytest

from lmrep.core.errors import UserError
from lmrep.data import records
from lmrep.experiment import config as experiments
from lmrep.experiment import page_files
from lmrep.experiment.fine_tuning import compose_known, compose_task, recipes
from lmrep.experiment.task_data import prepare_examples
from lmrep.interop import checkpoint_config
from lmrep.tasks import TASKS
from lmrep.tasks.base import Format, resolve_long
from lmrep.tasks.known import KNOWN, published

PAGES = [name for name in page_files.installed() if name.startswith("tasks/")
         and KNOWN.get(name[6:-3], KNOWN["cola"]).task in TASKS]


@pytest.mark.parametrize("name", [name for name, known in KNOWN.items() if known.task in TASKS])
@pytest.mark.parametrize("data", ["somewhere", "tfds"])
def test_known_sets_give_checked_configs(name, data):
    if data == "tfds" and not KNOWN[name].tfds:
        with pytest.raises(UserError, match="not in TFDS"):
            compose_known("data=tfds", name)
        return
    config = compose_known(f"size=tiny,data={data}", name)
    experiment = experiments.parse(config)
    assert experiment.name == name and experiment.data.train
    assert experiment.checkpoint.best in TASKS[KNOWN[name].task].objective.metrics
    if data == "tfds":
        assert experiment.data.tfds and experiment.data.train == "train"
        splits = (experiment.data.validation, experiment.data.test)
        assert (splits == ("validation_matched", "test_matched")) == (name == "mnli")  # it has two of each


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_what_they_need(page):
    experiment = experiments.parse(checkpoint_config.load_config(page_files.installed()[page]))
    with pytest.raises(UserError, match=r"data\.train is empty; give the training examples"):
        prepare_examples(experiment, experiment.tokenizer)


@pytest.mark.parametrize("recipe", recipes())
def test_recipes_give_checked_configs(recipe):
    for name in ("", *KNOWN):
        if name and KNOWN[name].task not in TASKS:
            continue
        task = KNOWN[name].task if name else "classification"
        config = compose_task(f"recipe={recipe}", task, name, data={"train": "train.tsv"})
        experiment = experiments.parse(config)
        stages = experiments.resolve_stages(experiment)
        assert stages[0].optimizer.learning_rate == config.optimizer.learning_rate


def test_mosbach_s_recipe_is_that_of_the_paper():
    """Bias correction, 20 epochs at 2e-5, a linear schedule with warm-up over a tenth (Mosbach et al., 2021)."""
    optimizer = (config := compose_task("recipe=mosbach", "classification")).optimizer
    assert (config.epochs, optimizer.learning_rate, optimizer.bias_correction) == (20, 2e-5, True)
    assert (optimizer.schedule.name, optimizer.schedule.warmup_fraction) == ("linear", 0.1)
    assert not compose_task("recipe=bert_released", "classification").optimizer.bias_correction


def test_recipes_name_known_sets():
    assert all(name in KNOWN for recipe in recipes().values() for name in recipe.rows if name)


def test_published_figures_are_of_known_sets():
    assert published("rte")["BERT base"] == 69.3 and published("wnli").keys() >= {"BERT base"}
    assert "ELECTRA small" not in published("wnli") and published("ud_pos") == {}


def test_columns_are_named_by_single_flags(tmp_path):
    config = checkpoint_config.load_config(page_files.installed()["tasks/classify.py"], "size=tiny", [
        ("data.train", str(tmp_path / "train.csv")), ("data.columns.text", "sentence"), ("data.columns.label", "2")])
    assert dict(config.data.columns) == {"text": "sentence", "label": "2"}
    (tmp_path / "train.csv").write_text("a,b,c\n")
    with pytest.raises(UserError, match="sentence"):
        records.read(experiments.parse(config).data, "train", ("text", "label"))


def test_a_task_without_a_head_of_its_own_refuses_pretraining_fields():
    config = compose_task("", "classification", data={"train": "x.tsv"})
    config.overfit = 2
    with pytest.raises(UserError, match=r"config\.overfit is set"):
        experiments.parse(config)


def test_the_original_files_of_stsb_are_read_where_a_folder_has_them(tmp_path):
    row = "news\tset\t2014\t0002\t0.500\t\"A child is asleep.\tThe price fell."
    (tmp_path / "sts-train.csv").write_text(f"{row}\n{row}\thttp://a\thttp://b\n")
    (tmp_path / "sts-test.csv").touch()
    data = experiments.parse(compose_known(f"size=tiny,data={tmp_path}", "stsb")).data
    assert (Path(data.validation).name, Path(data.test).name) == ("sts-dev.csv", "sts-test.csv")
    assert [record.fields for record in records.read(data, "train", ("text", "label"))] == 2 * [
        {"text": '"A child is asleep.', "text2": "The price fell.", "label": "0.500"}]
    assert Path(compose_known("size=tiny,data=elsewhere", "stsb").data.train).name == "train.tsv"
    (tmp_path / "sts-train.csv").unlink()  # similarities without training read the others
    assert compose_known(f"size=tiny,data={tmp_path}", "stsb").data.validation == f"{tmp_path}/sts-dev.csv"


@pytest.mark.parametrize(("task", "long"), [
    *((task, "truncate") for task in ("classification", "regression", "multiple_choice", "text_to_text")),
    ("tagging", "windows"), ("span_extraction", "windows")])
def test_what_is_done_with_long_texts_is_the_same_on_all_pages(task, long):
    pages = [compose_task("size=tiny", task), *(
        compose_known("size=tiny,data=folder", name) for name, known in KNOWN.items() if known.task == task)]
    assert {page.format.long for page in pages} == {"auto"}
    assert resolve_long(Format(), TASKS[task].reads.fields).long == long


@pytest.mark.parametrize("present", [True, False])
def test_a_folder_may_lack_the_test_file(tmp_path, present):
    for split in ("train", "dev", *["test"] * present):
        (tmp_path / f"en_ewt-ud-{split}.conllu").touch()
    data = compose_known(f"size=tiny,data={tmp_path}", "ud_pos").data
    assert data.validation == f"{tmp_path}/*-ud-dev.conllu"
    assert data.test == (f"{tmp_path}/*-ud-test.conllu" if present else "")


@pytest.mark.parametrize(("compose", "name", "meant"), [
    (compose_task, "clasification", "classification"), (compose_known, "conll203", "conll2003")])
def test_unknown_names_in_pages_are_refused(compose, name, meant):
    with pytest.raises(UserError, match=f"is '{name}'; expected .*did you mean '{meant}'"):
        compose("size=tiny", name)
