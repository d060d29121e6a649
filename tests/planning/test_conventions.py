"""Published formulas of compute: against the published figures, and against the traced programs of networks."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from lmrep import models
from lmrep.config import loading
from lmrep.core import params as P
from lmrep.experiment import config as experiments
from lmrep.models import awd_lstm, encoder_decoder, lstm, seq2seq_lstm, transformer
from lmrep.models.base import Inputs
from lmrep.objectives.uses import NetworkUse, Uses
from lmrep.planning import compute, conventions, flops, published
from tests import small

T = transformer.Config(vocab=11, width=8, heads=2, mlp=24, layers=3, max_length=16, token_types=0)


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_the_published_compute_of_electras_script(name):
    run = published.PUBLISHED[name]
    assert published.computed(run)["electra_script"] == pytest.approx(run.flops, rel=1e-5)


def test_the_script_lacks_a_factor_of_the_width_in_one_layer_norm():
    """With it, the published figures would not come out: 5 (d - 1) operations more per layer and token."""
    run = published.PUBLISHED["BERT-Small"]
    sizes = published.network(run).sizes.transformer
    more = 2 * run.length * sizes.layers * 5 * (sizes.width - 1) * run.steps * run.batch_size
    assert abs(published.computed(run)["electra_script"] + more - run.flops) > 1e-4 * run.flops


def test_what_the_script_does_not_count_is_refused():
    with pytest.raises(ValueError, match="ELECTRA's script"):
        conventions.electra_script(transformer.build(T).sizes.transformer, 16, "other")


ENCODER_DECODER = encoder_decoder.Config(vocab=11, width=8, layers=3, decoder_layers=2, heads=2, head_width=5, mlp=24)


@pytest.mark.parametrize("config", [
    T, replace(T, share="all"), replace(T, embedding=4), replace(T, norm="pre"),
    lstm.Config(vocab=11, width=8, layers=2), lstm.Config(vocab=11, width=8, layers=3, embedding=4, cell="rnn"),
    awd_lstm.Config(vocab=11, width=8, embedding=4),
    *(replace(ENCODER_DECODER, stacks=stacks) for stacks in ("encoder", "same_text")),
], ids=str)
def test_the_numbers_of_a_network_are_those_of_its_traced_program(config):
    """Forward: 2 N and 4 l d t per token; recurrent networks have no attention."""
    b, t = 2, 16
    model = models.build(config)
    tokens = Inputs(tokens=jax.ShapeDtypeStruct((b, t), jnp.int32))
    counted = flops.count(lambda p, x: model.encode(p, x).hidden, P.abstract(model.specs), tokens)
    assert 3 * counted == b * t * conventions.six_n(model.sizes.matrices, model.sizes.attention, t)
    assert 3 * counted == b * conventions.six_n_of_text(model.sizes, t)


@pytest.mark.parametrize("config", [
    ENCODER_DECODER, replace(ENCODER_DECODER, gated=True), seq2seq_lstm.Config(vocab=11, width=8, embedding=4),
    seq2seq_lstm.Config(vocab=11, width=8, embedding=4, attention="dot", input_feeding=False),
    seq2seq_lstm.Config(vocab=11, width=8, embedding=4, attention="none", input_feeding=False),
], ids=str)
def test_sources_and_targets_count_as_in_the_traced_program(config):
    b, t, s = 2, 5, 16
    model = models.build(config)
    tokens, source = (jax.ShapeDtypeStruct((b, n), jnp.int32) for n in (t, s))
    counted = flops.count(lambda p, x, y: model.encode(p, Inputs(x, source=Inputs(y))).hidden,
                          P.abstract(model.specs), tokens, source)
    assert 3 * counted == b * conventions.six_n_of_text(model.sizes, t, s)


@pytest.mark.slow
def test_the_compute_of_an_encoder_decoder_by_hand():
    """T5's baseline: 512 tokens of the source and 114 of the target, 12 layers of width 768 each."""
    [stage] = of(loading.load(Path(__file__).parents[2] / "experiments/t5.py", "size=base"))
    d, f, layers = 768, 3072, 12
    source = 512 * (6 * layers * (4 * d * d + 2 * d * f + 2 * d * d) + 12 * layers * d * 512)
    target = 114 * (6 * layers * (6 * d * d + 2 * d * f) + 12 * layers * d * (114 + 512))
    assert stage.figures["six_n"].flops == 128 * (source + target)
    output = 6 * 114 * d * 32_128
    # Beside the output layer, the exact count has the relative positions of the two stacks alone.
    assert 0 <= stage.figures["exact"].flops / (128 * (source + target + output)) - 1 < 1e-3
    assert "counts only Transformers like BERT's" in stage.figures["electra_script"].reason

def experiment(tmp_path, objective="masked", **model):
    config = small.config(tmp_path, objective)
    config.model = config.model.to_dict() | model if model.get("name") is None else model
    return config


def of(config):
    return compute.of_experiment(experiments.parse(config))


@pytest.fixture
def untraced(monkeypatch):
    """The exact figure is 1, without tracing a step."""
    monkeypatch.setattr(flops, "of_train_step", lambda *_: 1.0)


def test_the_compute_of_an_experiment(tmp_path):
    config = experiment(tmp_path)
    [stage] = of(config)
    assert (stage.steps, stage.tokens) == (12, 16 * 32)
    sizes = transformer.build(transformer.Config(**{k: v for k, v in config.model.items() if k != "name"} | {
        "vocab": 200})).sizes
    per_token = conventions.six_n(sizes.matrices, sizes.attention, 32)
    assert stage.figures["six_n"].flops == stage.tokens * per_token
    assert stage.figures["electra_script"].flops == 16 * conventions.electra_script(sizes.transformer, 32, "masked")
    assert compute.totals([stage]) == {name: 12 * figure.flops for name, figure in stage.figures.items()}
    assert stage.figures["exact"].flops > 3 * 2 * 12 * 16 * 32  # it traced a step with a backward pass


def test_more_of_what_is_computed_counts_more_in_the_exact_convention_alone(tmp_path):
    plain, rematerialized = (experiment(tmp_path) for _ in range(2))
    rematerialized.execution.remat = "full"
    [[before], [after]] = of(plain), of(rematerialized)
    assert after.figures["exact"].flops > before.figures["exact"].flops
    assert all(after.figures[name] == before.figures[name] for name in ("electra_script", "six_n"))


@pytest.mark.usefixtures("untraced")
def test_each_stage_has_its_length(tmp_path):
    config = experiment(tmp_path)
    config.stages = ({"name": "short", "fraction": 0.5, "length": 16}, {"name": "long", "fraction": 0.5})
    short, long = of(config)
    assert (short.steps, short.length, long.steps, long.length) == (6, 16, 6, 32)
    assert 2 * short.figures["six_n"].flops < long.figures["six_n"].flops


@pytest.mark.usefixtures("untraced")
def test_electra_counts_its_generator(tmp_path):
    [stage] = of(experiment(tmp_path, "replaced_token"))
    [encoder] = of(experiment(tmp_path))
    assert stage.figures["six_n"].flops > encoder.figures["six_n"].flops


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(("objective", "model", "reason"), [
    ("causal", {"name": "lstm", "width": 8, "layers": 1}, "counts only Transformers"),
    ("span_boundary", {}, "does not have the head"), ("classification", {}, "does not have the head"),
])
def test_a_convention_that_does_not_exist_is_not_guessed(tmp_path, objective, model, reason):
    config = experiment(tmp_path, **model) if model else experiment(tmp_path)
    config.objective = {"name": objective}
    if objective == "causal":
        config.format = {"name": "stream"}
    if objective == "classification":
        config = experiments.default_config("bert_tiny", objective, "examples")
    [stage] = of(config)
    assert stage.figures["electra_script"].flops is None and reason in stage.figures["electra_script"].reason
    assert stage.figures["six_n"].flops > 0 and compute.totals([stage])["electra_script"] is None
    assert reason in compute.table("run", [stage])


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("networks", [(), (NetworkUse(None, "masked"),)])
def test_a_network_that_states_no_sizes_has_an_exact_figure_alone(tmp_path, networks, monkeypatch):
    parsed = experiments.parse(experiment(tmp_path))
    without_data = compute.shapes.without_data

    def unstated(*arguments):
        return [each._replace(stage=replace(each.stage, objective=each.stage.objective._replace(
            uses=Uses(networks=networks)))) for each in without_data(*arguments)]

    monkeypatch.setattr(compute.shapes, "without_data", unstated)
    [stage] = compute.of_experiment(parsed)
    assert stage.figures["exact"].flops > 0
    assert all(stage.figures[name].flops is None and stage.figures[name].reason for name in ("electra_script", "six_n"))


@pytest.mark.usefixtures("untraced")
def test_the_command(tmp_path):
    file = small.experiment_file(tmp_path, tmp_path)
    command = partial(small.command, "flops")
    text = command(f"--config={file}")
    assert text.code == 0 and "of exact" in text.out and "12 steps of 16 x 32 tokens" in text.out
    found = json.loads(command(f"--config={file}", "--json", "--config.steps=24").out)
    assert found["total"]["exact"] == 24 * found["stages"][0]["flops"]["exact"]["per_step"]
    wider = json.loads(command(f"--config={file}", "--json", "--output_fraction=0.5", "--config.steps=24").out)
    assert wider["total"]["electra_script"] > found["total"]["electra_script"]
    table = command("--published")
    assert all(name in table.out for name in (*published.PUBLISHED, *published.PROFILED))
    assert "RoBERTa 100K *" in table.out and "RoBERTa 500K *" not in table.out
    assert json.loads(command("--published", "--json").out)["GPT"]["published"] == 3.968752e19


@pytest.mark.slow
def test_a_published_experiment_has_the_published_compute():
    found = json.loads(small.command("flops", "--config=electra.py:size=small", "--json").out)
    assert found["total"]["electra_script"] == pytest.approx(published.PUBLISHED["ELECTRA-Small"].flops, rel=1e-5)
