"""The two language models of ULMFiT, forward and backward, from one file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.experiment import config as experiments
from lmrep.inference import perplexity
from lmrep.interop.checkpoint_config import load_config
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs
from lmrep.optimizers.parameters import multipliers
from tests import small
from tests.experiments.pages import build_shapes, load

PAGE = "experiments/ulmfit.py"
SMALL = {"model.width": 32, "model.embedding": 16, "model.weight_dropout": 0.2, "model.dropout": 0.1, "length": 8,
         "batch_size": 8, "steps": 12, "checkpoint.every": 6, "evaluation.every": 6, "checkpoint.keep_best": 0,
         "log.every": 1, "log.tensorboard": False, "log.report": False, "data.documents": "file",
         "data.validation": 0.1, "data.test": 0.1, "tokenizer.vocab_size": 80}


def trained(argument, texts, workdir, data):
    overrides = [*SMALL.items(), ("data.files", f"{texts}/*.txt")]
    config = load_config(PAGE, f"size=tiny,data=files,mesh=1x1x1,{argument}", [(p, str(v)) for p, v in overrides])
    lmrep.train(config, workdir, data_dir=data)
    return lmrep.load(workdir)


@pytest.fixture(scope="module")
def general(tmp_path_factory):
    """{direction: the workdir of a general model}."""
    home = tmp_path_factory.mktemp("ulmfit")
    texts = small.corpus(home / "texts")
    for direction in ("forward", "backward"):
        trained(f"direction={direction}", texts, home / direction, home / "data")
    return home


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_target_model_has_its_own_words_and_is_resumed_to_the_bit(direction, general, tmp_path):
    texts = small.corpus(tmp_path / "texts", seed=1)
    for file in texts.iterdir():
        file.write_text(file.read_text().replace("mouse", "zebra").replace("red", "striped"))
    argument = f"stage=target,direction={direction},init={general / direction}"
    run = trained(argument, texts, tmp_path / "one", tmp_path / "data")
    assert {"zebra", "striped"} <= {*run.tokenizer.tokens} and "mouse" not in run.tokenizer.tokens
    assert run.tokenizer.backward == (direction == "backward") and run.experiment.init_vocabulary == "match"
    small.interrupted(tmp_path / "one", tmp_path / "two")
    again = trained(argument, texts, tmp_path / "two", tmp_path / "data")
    jax.tree.map(np.testing.assert_array_equal, run.params, again.params)
    assert small.losses(tmp_path / "one") == small.losses(tmp_path / "two")
    assert small.losses(tmp_path / "one", "validation") == small.losses(tmp_path / "two", "validation")


def test_the_perplexity_of_a_backward_model_is_of_the_words_from_the_end(general):
    run, text = lmrep.load(general / "backward"), "The cat sees the old dog. The dog eats."
    words = lmrep.load(general / "forward").tokenizer
    assert run.tokenizer.tokens == words.tokens
    ids = np.append([run.tokenizer.vocabulary.specials["eos"]], words.encode(text).ids[::-1])[None]
    inputs = Inputs(tokens=jnp.asarray(ids), attention_mask=AttentionMask(jnp.ones_like(ids), causal=True))
    hidden = run.model.encode(run.params["encoder"], inputs).hidden
    logits = run.objective.uses.next_token.logits(run.params, hidden)
    expected = -jax.nn.log_softmax(logits)[0, np.arange(ids.size - 1), ids[0, 1:]].sum()
    found = perplexity.perplexity(run, [text], length=32, stride=16)
    assert (found.tokens, found.words) == (ids.size - 1, 9) and found.nll == pytest.approx(float(expected), rel=1e-5)
    assert "lm_loss" in str(lmrep.evaluate(general / "backward", data_dir=general / "data"))


def test_the_vocabulary_of_the_general_model_can_be_kept(general):
    argument = f"size=tiny,stage=target,init={general / 'forward'}"
    own, kept = (load_config(PAGE, argument, overrides) for overrides in ([], [("init_vocabulary", "same")]))
    assert own.init_vocabulary == "match" and not own.tokenizer.vocab_file and own.model.vocab == 0
    assert kept.tokenizer.vocab_file == f"{general / 'forward'}/tokenizer"


def test_models_of_both_directions_are_not_mixed(general):
    with pytest.raises(UserError, match=r"tokenizer\.direction is 'backward', and config\.init reads text forward"):
        load_config(PAGE, f"size=tiny,stage=target,direction=backward,init={general / 'forward'}")


@pytest.mark.parametrize(("recipe", "expected"), [
    ("paper", (2.6**-3, 2.6**-2, 2.6**-1, 1)), ("released", (1 / 2, 1 / 6, 1 / 3, 1))])
def test_each_group_of_parameters_has_its_rate(recipe, expected):
    experiment = load("ulmfit.py", f"stage=target,init=runs/general,recipe={recipe},tokenizer=fastai_v1")
    [specs, *_] = [objective.specs for objective in build_shapes(experiment)]
    factors = multipliers(experiments.resolve_stages(experiment)[0].optimizer.multipliers, specs)
    for path in flatten(specs):
        group = int(path.split("/")[2]) + 1 if path.startswith("encoder/layers/") else 0
        assert factors[path] == pytest.approx(expected[group], rel=1e-6), path
