"""NeoBERT's checkpoints, in and out. `test_live_neobert.py` compares outputs."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.interop import conversion, tensor_files
from lmrep.interop.huggingface import FAMILIES
from lmrep.interop.huggingface.config_json import Mismatch
from lmrep.interop.huggingface.read import read
from lmrep.models import PRESETS
from tests.interop.test_published import GOLDEN, files, same

VOCAB, WIDTH, LAYERS, HEADS, MLP = 67, 24, 3, 2, 40
CONFIG = {"architectures": ["NeoBERTLMHead"], "model_type": "neobert", "vocab_size": VOCAB, "hidden_size": WIDTH,
          "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 56, "max_length": 64,
          "norm_eps": 1e-5, "hidden_act": "SwiGLU", "pad_token_id": 0}
SHAPES = {"attention_norm": (WIDTH,), "ffn_norm": (WIDTH,), "qkv": (3 * WIDTH, WIDTH), "wo": (WIDTH, WIDTH),
          "ffn.w12": (2 * MLP, WIDTH), "ffn.w3": (WIDTH, MLP)}
DECODER = {"decoder.weight": (VOCAB, WIDTH), "decoder.bias": (VOCAB,)}


def make(directory, head, **config):
    """A directory with random tensors, those of a head by name and shape among them, and BERT's tokenizer."""
    rng = np.random.default_rng(0)
    shapes = {"model.encoder.weight": (VOCAB, WIDTH), "model.layer_norm.weight": (WIDTH,), **head} | {
        f"model.transformer_encoder.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in SHAPES.items()}
    tensors = {name: (rng.normal(0, 0.3, shape) + 0.7 * (len(shape) == 1)).astype(np.float32)
               for name, shape in shapes.items()}
    directory.mkdir()
    tensor_files.write(directory / "model.safetensors", tensors, {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    for name in ("vocab.txt", "tokenizer_config.json"):
        if (GOLDEN / "bert" / name).is_file():
            shutil.copy(GOLDEN / "bert" / name, directory)
    return tensors


@pytest.fixture
def published(tmp_path):
    """(directory, its tensors) of a masked language model."""
    tensors = make(tmp_path / "published", DECODER)
    return tmp_path / "published", tensors


@pytest.mark.slow
def test_a_converted_run_is_written_back(published, tmp_path):
    """Byte for byte, with and without the record of the files."""
    directory, tensors = published
    done = conversion.to_workdir(directory, tmp_path / "run")
    assert done.checkpoint.heads == ("masked",) and not done.checkpoint.extra_tensors
    conversion.to_published(tmp_path / "run", tmp_path / "back")
    assert same(files(tmp_path / "back"), files(directory))
    shutil.rmtree(tmp_path / "run/interop")
    conversion.to_published(tmp_path / "run", tmp_path / "again")
    assert same(files(tmp_path / "again"), tensors)
    config = json.loads((tmp_path / "again/config.json").read_text())
    assert config["architectures"] == ["NeoBERTLMHead"] and config["intermediate_size"] == 60  # as wide as 56
    assert read(tmp_path / "again").config == read(directory).config


def test_a_network_alone_is_read(tmp_path):
    make(tmp_path / "x", {}, architectures=["NeoBERT"])
    found = read(tmp_path / "x")
    assert found.heads == () and not any(path.startswith("objective/") for path in found.params)


def test_a_classifier_is_read(tmp_path):
    tensors = make(tmp_path / "x", {"dense.weight": (WIDTH, WIDTH), "dense.bias": (WIDTH,),
                                    "classifier.weight": (3, WIDTH), "classifier.bias": (3,)},
                   architectures=["NeoBERTForSequenceClassification"], classifier_dropout=0.2,
                   id2label={"0": "a", "1": "b", "2": "c"})
    found = read(tmp_path / "x")
    assert found.task.name == "classification" and found.task.labels == ("a", "b", "c")
    assert found.task.fields["dropout"] == found.task.fields["input_dropout"] == 0.2
    np.testing.assert_array_equal(found.params["objective/classification/dense/kernel"].T, tensors["dense.weight"])


def test_the_published_config_is_the_preset():
    keys = {"vocab_size": 30522, "max_length": 4096, "norm_eps": 1e-5, "hidden_act": "SwiGLU"}
    assert FAMILIES["neobert"].network(keys, "config.json") == PRESETS["neobert"].config
    written = FAMILIES["neobert"].config_json(PRESETS["neobert"].config, {"pad": 0})
    assert (written["intermediate_size"], written["hidden_act"], written["tie_word_embeddings"]) == (
        3072, "SwiGLU", False)


@pytest.mark.parametrize(("changes", "named"), [
    ({"hidden_act": "gelu"}, "hidden_act"), ({"ngpt": True}, "ngpt"), ({"rope": False}, "rope")])
def test_other_networks_of_the_code_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        FAMILIES["neobert"].network(changes, "config.json")


@pytest.mark.parametrize("changes", [{"mlp": 2049}, {"norm_kind": "layer"}, {"query_key_norm": True}])
def test_networks_that_it_cannot_hold_are_refused(changes):
    with pytest.raises(Mismatch) as error:
        FAMILIES["neobert"].config_to(replace(PRESETS["neobert"].config, **changes))
    assert error.value.fields == [*changes]
