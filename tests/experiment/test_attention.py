"""The implementation of attention of an experiment: what is refused, and what each stage and a loaded run use."""

import dataclasses
import logging

import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.layers import attention_backends
from lmrep.layers.attention_backends import Choice
from tests import given, small

FITTING = {"model.attention_dropout": 0.0, "execution.dtype": "bfloat16", "execution.attention": "cudnn"}


def parse(format="full_sentences", preset="roberta_base", objective="masked", **fields):
    config = experiments.default_config(preset, objective, format)
    config.length = 512
    config.update_from_flattened_dict(fields)
    return experiments.parse(config)


def choices(experiment, platform):
    return [experiments.attention_choice(experiment, stage, platform)
            for stage in experiments.resolve_stages(experiment)]


@pytest.mark.parametrize(("fields", "message"), [
    ({"format": "packed"}, "does not keep several texts in an example apart: set config.format"),
    ({"model.attention_dropout": 0.1}, r"set model\.attention_dropout=0"),
    ({"execution.dtype": "float32"}, r"set execution\.dtype=bfloat16"),
    ({"model.heads": 192}, r"not 4: set model\.heads or model\.width"),
    ({"mesh.sequence": 2}, r"does not shard a sequence: set mesh\.sequence=1"),
])
def test_a_combination_that_is_not_honoured_is_refused_before_training(fields, message):
    parse(**FITTING)
    with pytest.raises(UserError, match=rf"execution\.attention is cudnn, which .*{message}.*; or set "
                       r"execution\.attention to auto, xla, chunked"):
        parse(**FITTING | fields)


def test_a_network_without_attention_refuses_a_backend():
    parse("stream", "lstm", "causal")
    with pytest.raises(UserError, match=r"execution\.attention is chunked, and the network has no choice of attention"):
        parse("stream", "lstm", "causal", **{"execution.attention": "chunked"})


def test_only_networks_with_attention_shard_sequences():
    with pytest.raises(UserError, match=r"mesh\.sequence is 2, and the network 'lstm' does not shard .*; set mesh"):
        experiments.check_mesh(parse("stream", "lstm", "causal", **{"mesh.sequence": 2}), 8)
    longer = {"length": 4096, "model.max_length": 4096, "model.attention_dropout": 0.0}
    experiment = parse(**longer, **{"mesh.sequence": 2})
    assert experiments.check_mesh(experiment, 8) == (4, 1, 1, 2)
    [choice] = choices(experiment, "tpu")
    assert choice.name == "chunked" and "set mesh.sequence=1" in choice.ruled_out["splash"]


def test_every_stage_has_its_own_choice():
    """On short sequences all probabilities at once; on long ones the fastest, unless something rules it out."""
    stages = ({"name": "short", "fraction": 0.5, "length": 128}, {"name": "long", "fraction": 0.5})
    fields = {"length": 4096, "model.max_length": 4096, "stages": stages, "model.attention_dropout": 0.0}
    experiment = parse(**fields)
    assert choices(experiment, "cpu") == [Choice("xla", {}), Choice("chunked", {})]
    assert choices(experiment, "tpu") == [Choice("xla", {}), Choice("splash", {})]
    short, long = choices(experiment, "gpu")
    assert (short, long.name, *long.ruled_out) == (Choice("xla", {}), "chunked", "cudnn")
    line = attention_backends.describe({"short": short, "long": long})
    assert line == ("xla in stage 'short'; chunked (cudnn, which is expected to be faster, computes in "
                    "bfloat16 only: set execution.dtype=bfloat16) in stage 'long'")


@pytest.mark.slow
def test_a_run_says_what_it_uses_and_refuses_other_platforms(tmp_path, caplog):
    config = small.config(small.corpus(tmp_path / "texts"))
    config.execution.attention = "splash"
    with pytest.raises(UserError, match=r"execution\.attention is splash, which runs on tpu, not on cpu"):
        lmrep.train(config, tmp_path / "run", data_dir=tmp_path / "data")
    assert not (tmp_path / "run").exists()
    config.execution.attention, config.steps = "chunked", 1
    with caplog.at_level(logging.INFO):
        lmrep.train(config, tmp_path / "run", data_dir=tmp_path / "data")
    assert "attention: chunked" in caplog.messages


def test_a_run_of_another_platform_is_loaded(tmp_path):
    """Its vectors and attention probabilities are those of a run that was trained with `xla`."""
    directory = given.workdir(tmp_path)
    run = lmrep.load(directory)
    text = directory / "config.json"
    text.write_text(text.read_text().replace('"attention": "auto"', '"attention": "splash"'))
    other = lmrep.load(directory)
    assert other.experiment == dataclasses.replace(
        run.experiment, execution=dataclasses.replace(run.experiment.execution, attention="splash"))
    [expected], [encoded] = (each.encode(["The cat sees the dog."], attention=True) for each in (run, other))
    assert (encoded.hidden == expected.hidden).all() and (encoded.attention == expected.attention).all()
