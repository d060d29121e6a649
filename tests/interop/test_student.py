"""Students of a teacher: the config file of DistilBERT, from a run and from a published directory."""

import re
from pathlib import Path

import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.experiment import config as experiments
from lmrep.interop import checkpoint_config, conversion, init_from, student
from tests import given, small, started

PAGE = Path(__file__).parents[2] / "experiments/distilbert.py"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with texts in `texts`, and a teacher of 4 layers in `run`."""
    return given.workdir(tmp_path_factory.mktemp("student"), layers=4).parent


@pytest.fixture(scope="module")
def published(home):
    """The teacher as a published directory."""
    conversion.to_published(home / "run", home / "published")
    return home / "published"


def flags(home, **fields):
    own = {"steps": 4, "batch_size": 8, "length": 32, "data.corpus": "text_files", "data.files": f"{home}/texts/*.txt",
           "data.validation": 0.1, "data.test": 0.1, "checkpoint.every": 2, "evaluation.every": 4, "log.report": False,
           "log.tensorboard": False, "samples": "()", "format.duplicates": 1, **fields}
    return [(name, str(value)) for name, value in own.items() if name != "format.duplicates"]


@pytest.mark.parametrize(("depth", "layers", "expected"), [
    (12, 6, [0, 2, 4, 7, 9, 11]), (4, 2, [0, 3]), (2, 1, [0]), (3, 3, [0, 1, 2]), (24, 4, [0, 8, 15, 23])])
def test_the_layers_of_a_student(depth, layers, expected):
    assert student.pick_layers(depth, layers) == expected


@pytest.mark.parametrize("source", ["run", pytest.param("published", marks=pytest.mark.slow)])
def test_a_student_starts_from_its_teachers_layers(home, tmp_path, source, request):
    source = home / "run" if source == "run" else request.getfixturevalue(source)
    config = checkpoint_config.load_config(PAGE, f"size=tiny,teacher={source}", flags(home))
    _, stages = started.stages(config, home / "data")
    teacher = flatten(lmrep.load(home / "run").params)
    values = {path: value for path, value in stages[0].init_values.items() if not path.startswith("frozen/teacher/")}
    assert not [path for path in values if "token_type" in path]
    assert set(teacher) - set(values) == {"encoder/embedding/token_type"}
    for path, value in values.items():
        expected = teacher[path][np.array([0, 3])] if "/layers/" in path else teacher[path]
        np.testing.assert_array_equal(value, expected, err_msg=path)


def test_choices(home):
    def load(choices):
        argument = f"size=tiny,teacher={home / 'run'}{choices}"
        return experiments.parse(checkpoint_config.load_config(PAGE, argument, flags(home)))

    assert load("").frozen == {"teacher": str(home / "run")} and load("").model["layers"] == 2
    assert load("").objective["draw"] == "batch" and load(",draw=sequence").objective["draw"] == "sequence"
    alone = load(",losses=mlm")
    assert not alone.frozen and alone.init and alone.objective["alpha_ce"] == alone.objective["alpha_cos"] == 0
    assert load(",losses=no_mlm").objective["alpha_mlm"] == 0
    random = load(",start=random,layers=3")
    assert not random.init and random.model["layers"] == 3 and random.tokenizer.vocab_file
    assert load(",head=random").init_mapping["objective/masked/transform"] == ""


@pytest.mark.slow
def test_what_is_taken_is_logged(home, caplog):
    argument = f"size=tiny,head=random,teacher={home / 'run'}"
    config = checkpoint_config.load_config(PAGE, argument, flags(home))
    with caplog.at_level("INFO", "lmrep"):
        started.stages(config, home / "data")
    assert re.search(r"(encoder/layers/attention/\w+/kernel) from \1\[0,3\]", caplog.text)
    assert "initialized (4): objective/masked/norm/bias" in caplog.text


def test_training_needs_a_teacher(home, tmp_path):
    config = checkpoint_config.load_config(PAGE, "size=tiny", flags(home))
    with pytest.raises(UserError, match=r"reads the frozen part 'teacher', which config.frozen lacks"):
        lmrep.train(config, tmp_path / "run", data_dir=home / "data")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_student_becomes_a_published_directory(home, published, tmp_path, caplog):
    caplog.set_level("INFO", "lmrep")
    lmrep.train(checkpoint_config.load_config(PAGE, f"size=tiny,teacher={published}", flags(home, steps=1)),
                tmp_path / "run", data_dir=home / "data")
    assert "frozen teacher: " in caplog.text
    conversion.to_published(tmp_path / "run", tmp_path / "out")
    run, again = lmrep.load(tmp_path / "run"), init_from.load(tmp_path / "out")
    for path, value in flatten(run.params).items():
        np.testing.assert_array_equal(again.params[path], value, err_msg=path)


@pytest.mark.slow
def test_a_student_of_a_causal_teacher(home, tmp_path):
    teacher = given.workdir(tmp_path, "causal", format="stream", layers=2, norm="pre", embedding_norm=False,
                            token_types=0)
    argument = f"size=tiny,objective=causal_distillation,format=stream,teacher={teacher}"
    lmrep.train(checkpoint_config.load_config(PAGE, argument, flags(home)), tmp_path / "student", data_dir=tmp_path)
    assert {"lm_loss", "distillation_loss", "cosine_loss"} <= small.lines(tmp_path / "student", "validation")[-1].keys()
    run = lmrep.load(tmp_path / "student")
    assert run.model.name and run.generate(["The cat"], tokens=3) and run.experiment.model["layers"] == 1
    wrong = checkpoint_config.load_config(PAGE, f"size=tiny,teacher={teacher}", flags(home))
    with pytest.raises(UserError, match="has objective 'causal' and no head that predicts the student's tokens; "
                       "expected a masked language model"):
        lmrep.train(wrong, tmp_path / "wrong", data_dir=home / "data")


def test_shared_layers_are_all_taken(home, tmp_path):
    config = checkpoint_config.load_config(PAGE, "size=tiny", flags(home))
    config = student.follow(config, given.workdir(tmp_path, share="all", layers=4))
    assert config.init_mapping.to_dict() == {"encoder": "encoder"} and config.model.layers == 2
