"""Training from Python, and uses of a trained run."""

import json
import shutil
from importlib import resources
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import lmrep
from lmrep import api
from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import flatten
from lmrep.experiment import build
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs
from lmrep.storage.checkpoints import Checkpoints
from tests import runs, small
from tests.tasks import tiny

STEPS = 60


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus in `texts`."""
    home = tmp_path_factory.mktemp("api")
    small.corpus(home / "texts")
    return home


def config(home, **fields):
    """The small experiment, long enough to learn something."""
    config = small.config(home / "texts")
    config.steps, config.optimizer.learning_rate, config.model.layers = STEPS, 1e-2, 1
    config.checkpoint.every = config.evaluation.every = 20
    config.update_from_flattened_dict(fields)
    return config


@pytest.fixture(scope="module")
def outcome(home):
    return lmrep.train(config(home), home / "run", data_dir=home / "data", command=["python", "mine.py"])


@pytest.fixture(scope="module")
def run(home, outcome):
    return lmrep.load(home / "run")


# Training


def test_training_lowers_the_loss_and_returns_the_outcome(home, outcome, run):
    validations = small.lines(home / "run", "validation")
    assert [line["step"] for line in validations] == [0, 20, 40, 60]
    assert outcome.steps == STEPS and outcome.before["loss"] == validations[0]["loss"]
    assert outcome.after["mlm_accuracy"] == validations[-1]["mlm_accuracy"]
    assert outcome.before["mlm_loss"] == pytest.approx(np.log(run.tokenizer.size), abs=0.1)  # all tokens alike: ln v
    assert outcome.after["mlm_loss"] < 2.8
    assert outcome.after["most_frequent_accuracy"] == pytest.approx(1 / 4, abs=0.1)  # "the", a quarter of the text


def test_the_outcome_compares_validations_of_one_length(home, tmp_path):
    staged = config(home, steps=8).unlock()
    staged.stages = ({"name": "16", "fraction": 0.75, "length": 16}, {"name": "32", "fraction": 0.25, "length": 32})
    (tmp_path / "metrics.jsonl").write_text("".join(
        json.dumps({"step": step, "split": "validation", "loss": step / 2}) + "\n" for step in (0, 6, 7, 8)))
    found = api._outcome(tmp_path, api.experiments.parse(staged))
    assert (found.before_step, found.before, found.after) == (7, {"loss": 3.5}, {"loss": 4.0})


def test_workdir_contains_the_documented_files(home, outcome):
    names = {path.name for path in (home / "run").iterdir() if not path.name.startswith(".")}
    assert names == {"config.json", "metrics.jsonl", "timing.jsonl", "provenance.jsonl", "cost.jsonl", "tokenizer",
                     "checkpoints", "results.json"}
    assert Checkpoints(home / "run/checkpoints").steps()[-1] == STEPS
    [entry] = [json.loads(line) for line in (home / "run/provenance.jsonl").open()]
    assert entry["command"] == "python mine.py" and entry["config"]["optimizer"]["learning_rate"] == 1e-2
    assert entry["devices"]["count"] == jax.device_count() and entry["versions"]["jax"] == jax.__version__
    steps = [line["step"] for line in small.lines(home / "run", "train")]
    assert steps == list(range(1, STEPS + 1))


def test_logged_learning_rate_is_the_one_used(home, outcome):
    """BERT's: decay from the first step on, to nothing."""
    rates = [line["learning_rate"] for line in small.lines(home / "run", "train")]
    np.testing.assert_allclose(rates, 1e-2 * (1 - np.arange(STEPS) / STEPS), rtol=1e-6)


@pytest.mark.slow
def test_same_config_gives_the_same_run(home, outcome, tmp_path):
    lmrep.train(config(home, **{"mesh.data": 1}), tmp_path / "again", data_dir=tmp_path / "its own data")
    assert (tmp_path / "again/metrics.jsonl").read_bytes() == (home / "run/metrics.jsonl").read_bytes()


def test_resuming_with_another_config_is_refused_before_its_data_is_prepared(home, run, tmp_path):
    with pytest.raises(UserError, match=r"config\.tokenizer\.vocab_size: 200 -> 100"):
        lmrep.train(config(home, **{"tokenizer.vocab_size": 100}), home / "run", data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_table_of_words_needs_as_many_rows_as_the_text_has_words(home, tmp_path):
    words = config(home, steps=1, **{"tokenizer.name": "words", "tokenizer.vocab_size": 1000, "model.vocab": 50})
    lmrep.train(words, tmp_path / "run", data_dir=tmp_path / "data")
    size = lmrep.load(tmp_path / "run").tokenizer.size
    words.model.vocab = size - 1
    with pytest.raises(UserError, match=f"the tokenizer has {size} ids, and the model's table {size - 1} rows"):
        lmrep.train(words, tmp_path / "other", data_dir=tmp_path / "data")


@pytest.mark.slow
def test_experiment_file_is_trained_with_choices_and_overrides(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small.experiment_file(tmp_path, home / "texts")
    outcome = lmrep.train("small.py:format=segment_pair", "run", data_dir=home / "data", steps=2,
                          **{"optimizer.learning_rate": 1e-4, "name": "other", "optimizer.betas": (0.9, 0.98),
                             "model.layers": 1})
    trained = json.loads((tmp_path / "run/config.json").read_text())["config"]
    assert outcome.steps == 2 and trained["format"]["name"] == "segment_pair" and trained["name"] == "other"
    assert trained["optimizer"]["learning_rate"] == 1e-4 and trained["optimizer"]["betas"] == [0.9, 0.98]


def test_overrides_do_not_change_the_given_config(home):
    original = config(home)
    with pytest.raises(UserError, match=r"config\.steps is -1; expected at least 1"):
        lmrep.train(original, home / "never", steps=-1)
    with pytest.raises(UserError, match="config has no field 'stepz'; did you mean 'steps'"):
        lmrep.train(original, home / "never", stepz=1)
    assert original.steps == STEPS and not (home / "never").exists()
    with pytest.raises(UserError, match="quickstrat"):
        lmrep.train("quickstrat.py", home / "never")


def test_package_exports_its_interface():
    assert {"train", "evaluate", "load", "UserError", "RunFault", "__version__"} <= set(dir(lmrep))
    assert lmrep.UserError is UserError and issubclass(lmrep.RunFault, Exception)
    assert set(lmrep.__all__) <= set(dir(lmrep)) and all(getattr(lmrep, name) for name in lmrep.__all__)
    assert not [name for name in dir(lmrep) if not name.startswith("_") and name not in lmrep.__all__]
    assert "Trains an experiment" in lmrep.train.__doc__
    assert (resources.files(lmrep) / "py.typed").is_file()


# Data in memory


def test_records_in_memory_are_trained_on_and_resumed_as_their_files_are(tmp_path):
    home = runs.folder("classification")
    data = {"train": runs.labelled_texts(120, 0), "validation": runs.labelled_texts(44, 1)}
    page = tiny.config("classification", "", epochs=3.0, checkpoint__every=0, evaluation__every=4, checkpoint__keep=2)

    def train(data):
        return lmrep.train(page, tmp_path / "run", data=data, data_dir=tmp_path / "data")

    outcome = train({split: iter(rows) for split, rows in data.items()})
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (home / "run/metrics.jsonl").read_bytes()
    before = Checkpoints(tmp_path / "run/checkpoints").steps()
    assert train(data) == outcome and Checkpoints(tmp_path / "run/checkpoints").steps() == before
    assert lmrep.evaluate(tmp_path / "run")["accuracy"] == outcome.after["accuracy"]  # reads the stored file
    with pytest.raises(UserError, match=r"data\.train: .* -> .*, with other examples"):
        train({**data, "train": data["train"][1:]})
    with pytest.raises(UserError, match=r"config\.sources names the files of a mixture; leave one out"):
        build.with_data(SimpleNamespace(sources=["a"]), data, tmp_path)


# Functions of commands


def test_inspection_of_a_run_and_of_its_config_are_the_same(home, run):
    shown = lmrep.inspect(home / "run", examples=2, data_dir=home / "data")
    assert "Stage main: packed examples of 32 tokens" in shown
    assert lmrep.inspect(config(home), examples=2, data_dir=home / "data") == shown
    with pytest.raises(UserError, match=r"steps is given, and the config of the run in .* is used unchanged"):
        lmrep.inspect(home / "run", steps=3)


def test_inspection_shows_what_a_step_reads(home, run, monkeypatch):
    """The examples that the loop reads for a step, with the masks of its update; those of the first step are the first
    ones of the stage. `batch` is what the compiled step gets, and `prepare_keys` what it calls."""
    from lmrep.experiment import inspection
    from lmrep.training import loop

    read = {}
    compiled = loop.compiled_train_step

    def recording(*args):
        step_fn = compiled(*args)

        def step(state, batch, *more):
            read[int(state.step) + 1] = [*np.asarray(batch["example"])], np.asarray(batch["tokens"])
            return step_fn(state, batch, *more)
        return step

    monkeypatch.setattr(loop, "compiled_train_step", recording)
    lmrep.train(config(home), home / "again", data_dir=home / "data")
    shown = []
    gather = inspection.loader.gather
    monkeypatch.setattr(inspection.loader, "gather", lambda plan, numbers: shown.append(
        ([*numbers], (batch := gather(plan, numbers))["tokens"])) or batch)
    for number in (1, 3):
        text = lmrep.inspect(home / "run", examples=2, step=number, data_dir=home / "data")
        assert f"Step {number}, of stage main" in text and text.count("\nExample ") == 2
        assert shown[-1][0] == read[number][0]
        np.testing.assert_array_equal(shown[-1][1], read[number][1])
    first = lmrep.inspect(home / "run", examples=2, step=1, data_dir=home / "data").partition("\n\n")[2]
    assert first in lmrep.inspect(home / "run", examples=2, data_dir=home / "data")
    with pytest.raises(UserError, match="step is 0; expected a step from 1 to"):
        lmrep.inspect(home / "run", step=0, data_dir=home / "data")


def test_sweeps_need_a_config_file(home, tmp_path):
    with pytest.raises(UserError, match="config is a config in memory, and the runs of a sweep are processes"):
        lmrep.sweep(config(home), tmp_path / "sweep", grid={"batch_size": [8, 16]})


# Evaluation


def test_evaluation_is_deterministic_and_recorded(home, run):
    first = lmrep.evaluate(home / "run", data_dir=home / "data")
    written = json.loads((home / "run/eval.json").read_text())
    assert written["metrics"] == first and written["step"] == STEPS and written["split"] == "test"
    assert lmrep.evaluate(home / "run", data_dir=home / "data") == first
    assert first["mlm_loss"] < small.lines(home / "run", "validation")[0]["mlm_loss"]


@pytest.mark.parametrize("step", [20, STEPS])
def test_evaluation_of_a_checkpoint_equals_that_during_training(home, run, step):
    [line] = [line for line in small.lines(home / "run", "validation") if line["step"] == step]
    found = lmrep.evaluate(home / "run", split="validation", data_dir=home / "data", step=step)
    expected = {name: value for name, value in line.items() if name not in ("step", "split")}
    assert found == pytest.approx(expected, rel=1e-6)  # to rounding: it is evaluated on all devices


@pytest.mark.parametrize(("arguments", "message"), [
    ({"split": "dev"}, "no split 'dev'; this run's corpus has train, validation, test"),
    ({"examples": -1}, "examples is -1; expected at least 1"),
    ({"step": 7}, "holds no checkpoint 7; it holds 20, 40, 60"),
    ({"files": "*.txt", "split": "test"}, "leave one out"),
])
def test_invalid_evaluations_are_refused(home, run, arguments, message):
    before = small.contents(home / "run")
    with pytest.raises(UserError, match=message):
        lmrep.evaluate(home / "run", data_dir=home / "data", **arguments)
    assert small.contents(home / "run") == before


def test_evaluation_refuses_a_changed_corpus(home, run, tmp_path):
    """The files changed since."""
    for name in ("run", "texts"):
        shutil.copytree(home / name, tmp_path / name)
    record = json.loads((tmp_path / "run/config.json").read_text())
    record["config"]["data"]["files"] = f"{tmp_path}/texts/*.txt"
    (tmp_path / "run/config.json").write_text(json.dumps(record))
    assert lmrep.evaluate(tmp_path / "run", data_dir=home / "data")
    (tmp_path / "texts/00.txt").write_text("The red cat sees the blue dog.\n")
    with pytest.raises(UserError, match=r"the files of the corpus have changed since .* was trained"):
        lmrep.evaluate(tmp_path / "run", data_dir=home / "data")


def test_other_files_are_evaluated_with_the_run_s_tokenizer(home, run, tmp_path):
    """The run's own documents, as other files, give about what most of them give as its split."""
    found = lmrep.evaluate(home / "run", files=f"{home}/texts/*.txt", data_dir=home / "data")
    train = lmrep.evaluate(home / "run", split="train", data_dir=home / "data")
    assert found["mlm_loss"] == pytest.approx(train["mlm_loss"], abs=0.1)
    (tmp_path / "strange.txt").write_text("Small mouse mouse mouse small. " * 300)
    strange = lmrep.evaluate(home / "run", files=str(tmp_path / "strange.txt"), data_dir=home / "data")
    assert strange["mlm_loss"] > found["mlm_loss"] + 0.2
    assert json.loads((home / "run/eval.json").read_text())["files"] == str(tmp_path / "strange.txt")
    with pytest.raises(UserError, match=r"nothing\.txt"):
        lmrep.evaluate(home / "run", files=str(tmp_path / "nothing.txt"), data_dir=home / "data")


# A loaded run

TEXTS = ["The [MASK] cat sees the old dog.", "[MASK] [MASK] horse",
         "The blue [MASK] likes the small mouse. The red fish eats the [MASK] bird."]


def test_loading_gives_the_parameters_of_the_checkpoint(home, run):
    saved, _ = Checkpoints(home / "run/checkpoints").read(STEPS, "params")
    assert run.step == STEPS
    for path, value in flatten(saved).items():
        np.testing.assert_array_equal(flatten(run.params)[path], value)


def test_masks_are_filled_with_the_model_s_probabilities(run):
    """Against the network and the published head, run on the bare text: no padding, no batch."""
    [[predictions]] = run.fill_masks(TEXTS[:1])
    special = run.tokenizer.vocabulary.specials
    ids = [special["cls"], *run.tokenizer.encode(TEXTS[0], specials=True).ids, special["sep"]]
    tokens = np.array([ids], np.int32)
    inputs = Inputs(tokens=tokens, attention_mask=AttentionMask(np.ones_like(tokens)),
                    token_type_ids=np.zeros_like(tokens))
    hidden = jax.jit(lambda params: run.model.encode(params, inputs).hidden)(run.params["encoder"])
    hidden = hidden[0, ids.index(special["mask"])]
    head = run.params["objective"]["masked"]
    x = jax.nn.gelu(hidden @ head["transform"]["kernel"] + head["transform"]["bias"], approximate=True)
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-12) * head["norm"]["scale"] + head["norm"]["bias"]
    logits = run.params["encoder"]["embedding"]["token"] @ x + head["bias"]
    expected = np.asarray(jax.nn.softmax(logits))
    best = np.argsort(-expected)[:5]
    assert [word for word, _ in predictions] == [run.tokenizer.id_to_token(int(i)) for i in best]
    np.testing.assert_allclose([p for _, p in predictions], expected[best], rtol=1e-4)


def test_each_mask_has_its_own_predictions(run):
    predictions = run.fill_masks(TEXTS, k=3)
    assert [len(masks) for masks in predictions] == [1, 2, 2]
    for mask in (mask for masks in predictions for mask in masks):
        probabilities = [p for _, p in mask]
        assert len(mask) == 3 and probabilities == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities) <= 1


@pytest.mark.slow
def test_predictions_do_not_depend_on_other_texts(run):
    together = run.fill_masks(TEXTS * 20)
    alone = [run.fill_masks([text])[0] for text in TEXTS] * 20
    for found, expected in zip(together, alone, strict=True):
        for mask, other in zip(found, expected, strict=True):
            np.testing.assert_allclose([p for _, p in mask], [p for _, p in other], rtol=1e-4)


def test_k_determines_the_number_of_predictions(run):
    [[ten]] = run.fill_masks(TEXTS[:1], k=10)
    [[every]] = run.fill_masks(TEXTS[:1], k=10_000)
    assert len(ten) == 10 and len(every) == run.tokenizer.size == len(dict(every))
    assert sum(p for _, p in every) == pytest.approx(1, abs=1e-5)


def test_no_texts_give_no_predictions(run):
    assert run.fill_masks([]) == []


@pytest.mark.parametrize(("text", "message"), [
    ("The red cat.", r"no \[MASK\] in 'The red cat.'; write \[MASK\]"),
    ("", r"no \[MASK\] in ''"),
    ("[mask]", r"no \[MASK\] in '\[mask\]'"),
    ("The [MASK] " + "cat " * 40, "has 44 tokens; the model takes 32 at most"),
    ("[MASK] \udcff", "is not UTF-8 text"),
])
def test_texts_without_a_usable_mask_are_refused(run, text, message):
    with pytest.raises(UserError, match=message):
        run.fill_masks([TEXTS[0], text])


def test_replaced_tokenizer_is_refused(home, run, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    vocabulary = tmp_path / "run/tokenizer/vocab.txt"
    tokens = vocabulary.read_text().split()
    (tmp_path / "run/tokenizer/tokenizer.json").unlink()
    vocabulary.write_text("\n".join([*tokens[:-2], tokens[-1], tokens[-2]]) + "\n")
    with pytest.raises(RunFault, match="is not the tokenizer that the run was trained with; restore it"):
        lmrep.load(tmp_path / "run")


def test_loading_missing_runs_and_checkpoints_is_refused(home, run, tmp_path):
    with pytest.raises(UserError, match=r"there is no run in .*: config\.json is missing"):
        api.load(tmp_path)
    with pytest.raises(UserError, match="holds no checkpoint 7; it holds 20, 40, 60"):
        api.load(home / "run", step=7)
    (tmp_path / "config.json").write_bytes((home / "run/config.json").read_bytes())
    (tmp_path / "tokenizer").symlink_to(home / "run/tokenizer")
    with pytest.raises(UserError, match="holds no checkpoint yet; train first"):
        api.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        api.load(tmp_path)
