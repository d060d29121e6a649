"""Runs that start from another run's parameters."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

import lmrep
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.core.params import ParamSpec, flatten, init, unflatten
from lmrep.experiment import config as experiments
from lmrep.experiment import resolve
from lmrep.interop import checkpoint_config, conversion, init_from
from lmrep.interop.init_from import SourceCheckpoint
from lmrep.layers.stack import Execution
from lmrep.models import MODELS
from lmrep.storage.checkpoints import Checkpoints
from tests import runs, small, started
from tests.reference import random_params

OLD = ["[PAD]", "a", "b", "c"]
TABLE = np.arange(8, dtype=np.float32).reshape(4, 2) ** 2
SOURCE = SourceCheckpoint("elsewhere", OLD, {"encoder/table": TABLE, "encoder/w": np.ones(3, np.float32),
                                   "objective/bias": np.arange(4, dtype=np.float32), "objective/pair": np.zeros(2)},
                {})


def specs(v, width=3, extra=False):
    found = {"encoder/table": ParamSpec((v, 2), ("vocab", "embed")), "encoder/w": ParamSpec((width,), (None,)),
             "objective/bias": ParamSpec((v,), ("vocab",))}
    return unflatten(found | ({"objective/new": ParamSpec((1,), (None,))} if extra else {}))


def test_common_parameters_are_copied_and_the_rest_is_reported():
    found = init_from.match(specs(4, extra=True), SOURCE, OLD)
    assert found.missing == ["objective/new"] and found.unused == ["objective/pair"] and not found.extended
    for path in ("encoder/table", "encoder/w", "objective/bias"):
        np.testing.assert_array_equal(found.values[path], SOURCE.params[path])
    message = init_from.describe(found, SOURCE)
    assert all(path in message for path in (*found.values, "objective/new", "objective/pair"))


@pytest.mark.parametrize("tokens", [[*OLD, "d", "e"], ["e", "c", "[PAD]", "d"], ["b", "a"]], ids=" ".join)
def test_embeddings_follow_their_tokens_and_new_ones_are_the_mean(tokens):
    size = len(tokens) + 2  # a table may be larger than the vocabulary
    found = init_from.match(specs(size), SOURCE, tokens)
    table, bias = found.values["encoder/table"], found.values["objective/bias"]
    assert table.shape == (size, 2) and table.dtype == np.float32
    for i, token in enumerate([*tokens, None, None]):
        row, single = (TABLE[OLD.index(token)], OLD.index(token)) if token in OLD else (TABLE.mean(0), 1.5)
        np.testing.assert_allclose(table[i], row)
        assert bias[i] == single
    new = sum(token not in OLD for token in tokens)
    assert found.extended == ({"encoder/table": new, "objective/bias": new} if new else {})


@pytest.fixture(scope="module")
def home():
    return runs.folder("masked")


def config_from_run(home, **fields):
    """The small experiment, from the parameters of its run."""
    config = small.config(home / "texts")
    config = started.from_checkpoint(config, home / "run")
    config.steps = 4  # in all tests, since the schedule is part of the compiled step
    config.update_from_flattened_dict(fields)
    return config


@pytest.mark.slow
def test_run_starts_from_the_parameters_of_another(home, tmp_path, caplog):
    caplog.set_level("INFO", "lmrep")
    lmrep.train(config_from_run(home), tmp_path / "second", data_dir=home / "data")
    first, second = (small.lines(workdir, "validation") for workdir in (home / "run", tmp_path / "second"))
    assert second[0]["step"] == 0 and second[0]["loss"] == pytest.approx(first[-1]["loss"], rel=1e-6)
    [message] = [line for line in caplog.messages if line.startswith("parameters start from")]
    assert f"{home / 'run'}, step 12" in message and "initialized" not in message and "unused" not in message
    for path in flatten(lmrep.load(home / "run").params):
        assert path in message


def test_run_starts_from_a_published_directory(home, tmp_path):
    """With the network, tokenizer and parameters that the run itself would have given."""
    conversion.to_published(home / "run", tmp_path / "published")
    config = small.config(home / "texts")
    config = started.from_checkpoint(config, tmp_path / "published")
    assert config.model.width == 32 and config.model.layers == 2
    _, stages = started.stages(config, home / "data")
    found, expected = stages[0].init_values, init_from.load(home / "run").params
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def test_incompatible_network_settings_are_refused(home, tmp_path):
    with pytest.raises(UserError, match=r"model\.heads is 2 in this run and 4 in .*; set --config\.model\.heads=4"):
        lmrep.train(config_from_run(home, **{"model.heads": 2}), tmp_path / "run", data_dir=home / "data")
    assert not (tmp_path / "run").exists()
    source, network = init_from.load(home / "run"), experiments.model_config(experiments.parse(
        config_from_run(home, **{"model.activation": "relu"})).model)
    assert init_from.check_network(network, source) == ["  the network differs: activation 'gelu_tanh' -> 'relu'"]


def test_a_run_with_its_own_vocabulary_takes_the_rows_of_words_that_the_checkpoint_knows(tmp_path, caplog):
    caplog.set_level("INFO", "lmrep")
    home, source = runs.folder("recurrent"), init_from.load(runs.folder("recurrent") / "run")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/new.txt").write_text("\n".join(["The old zebra sees the gnu.", "A cat finds the zebra."] * 30))
    config = experiments.read_run(home / "run")[0]
    config = resolve.with_checkpoint({
        **dataclasses.asdict(config), "init_vocabulary": "match", "tokenizer": {"name": "words", "vocab_size": 64},
        "data": {**dataclasses.asdict(config.data), "files": f"{tmp_path}/texts/*.txt", "validation": 0, "test": 0},
    }, checkpoint_config.facts(home / "run"))
    assert config.model.vocab == 0 and "vocab_file" not in config.tokenizer
    data, (stage,) = started.stages(config, tmp_path / "data")
    tokens, old = data.tokenizer.tokens, list(source.tokens)
    assert {"zebra", "The"} <= {*tokens} or {"zebra", "the"} <= {*tokens}
    tables = [path for path, value in source.params.items() if len(old) in value.shape]
    assert tables
    for path in tables:
        axis, value = source.params[path].shape.index(len(old)), stage.init_values[path]
        rows, new = (np.moveaxis(array, axis, 0) for array in (source.params[path], value))
        assert len(new) == len(tokens)
        for token, row in zip(tokens, new, strict=True):
            expected = rows[old.index(token)] if token in old else rows.mean(0, dtype=np.float64).astype(np.float32)
            np.testing.assert_array_equal(row, expected, err_msg=token)
    known = len({*tokens} & {*old})
    assert 5 < known < len(tokens)
    assert (f"vocabulary: {known} tokens start from their rows in the checkpoint, {len(tokens) - known} new ones from "
            "the mean row") in caplog.text


def test_a_vocabulary_is_matched_with_a_checkpoint_alone(home):
    config = small.config(home / "texts")
    config.init_vocabulary = "match"
    with pytest.raises(UserError, match=r"config\.init_vocabulary.*config\.init is empty"):
        experiments.parse(config)


def test_vocabulary_can_be_extended(home, tmp_path):
    words = (home / "run/tokenizer/vocab.txt").read_text().split()
    (tmp_path / "vocab.txt").write_text("\n".join([*words, "zebra", "gnu"]) + "\n")
    config = config_from_run(home, **{"tokenizer.vocab_file": str(tmp_path / "vocab.txt")})
    _, stages = started.stages(config, home / "data")
    old = np.asarray(lmrep.load(home / "run").params["encoder"]["embedding"]["token"])
    new = stages[0].init_values["encoder/embedding/token"]
    assert new.shape[0] == old.shape[0] + 2
    np.testing.assert_array_equal(new[:-2], old)
    np.testing.assert_allclose(new[-2:], np.broadcast_to(np.mean(old, 0), (2, old.shape[1])), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_resuming_does_not_need_the_source_checkpoint(home, tmp_path):
    """Bit for bit what one run would have given; another source is refused."""
    shutil.copytree(home / "run", tmp_path / "source")
    config = config_from_run(home)
    config.init = str(tmp_path / "source")
    config.tokenizer.vocab_file = str(home / "run/tokenizer/vocab.txt")
    config.checkpoint.every = 2
    lmrep.train(config, tmp_path / "full", data_dir=home / "data")
    shutil.copytree(tmp_path / "full", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/checkpoints/4")
    shutil.rmtree(tmp_path / "source")
    lmrep.train(config, tmp_path / "cut", data_dir=home / "data")
    a, b = (Checkpoints(tmp_path / name / "checkpoints").read(4)[0] for name in ("full", "cut"))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert (tmp_path / "full/metrics.jsonl").read_text() == (tmp_path / "cut/metrics.jsonl").read_text()
    config.init = ""
    with pytest.raises(UserError, match="init"):
        lmrep.train(config, tmp_path / "cut", data_dir=home / "data")


def test_source_with_values_that_are_not_finite_is_refused(home, monkeypatch):
    real = init_from.flatten
    monkeypatch.setattr(init_from, "flatten", lambda tree: {path: value * np.nan for path, value in real(tree).items()})
    with pytest.raises(UserError, match=r"run, step \d+ has values that are not finite in encoder"):
        init_from.load(home / "run")


def test_training_refuses_a_source_that_is_not_a_run(home, tmp_path):
    config = small.config(home / "texts")
    config.init = str(home / "texts")
    with pytest.raises(UserError, match=r"init is '.*texts', which has no config.json"):
        lmrep.train(config, tmp_path / "run", data_dir=home / "data")
    assert not (tmp_path / "run").exists()


def test_network_of_another_size_is_refused(home, tmp_path):
    config = config_from_run(home, **{"model.mlp": 32})
    with pytest.raises(UserError, match=r"mlp/.* is \(2, .*\) in this run and \(2, .*\) in .*run"):
        lmrep.train(config, tmp_path / "run", data_dir=home / "data")
    assert not (tmp_path / "run").exists()
    assert json.loads((home / "run/config.json").read_text())["config"]["init"] == ""
    assert P.count(lmrep.load(home / "run").objective.specs) > 0


@pytest.mark.slow
def test_top_layers_can_start_anew():
    """The rest keeps its values; the new ones are those of a run from scratch with that seed."""
    definition = MODELS["transformer"]
    config = dataclasses.replace(definition.config(), vocab=11, layers=3, width=8, heads=2, mlp=8)
    specs = {"encoder": definition.build(config, Execution(), "model").specs}
    old, scratch = flatten(random_params(specs)), flatten(jax.jit(lambda key: init(specs, key))(jax.random.key(2)))
    values = init_from.fresh_layers(old, specs, 1, 2)
    for path, value in values.items():
        if path.startswith("encoder/layers/"):
            np.testing.assert_array_equal(value[:2], old[path][:2])
            np.testing.assert_array_equal(value[2:], scratch[path][2:])
        else:
            np.testing.assert_array_equal(value, old[path])
    with pytest.raises(UserError, match="the network has 3 layers"):
        init_from.fresh_layers(old, specs, 4, 2)
