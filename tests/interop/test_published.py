"""Published checkpoints against what the reference made of them (`make_golden.py`), and read and written again."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.core.params import unflatten
from lmrep.interop import certificate, published, tensor_files
from lmrep.interop.certificate import Question
from lmrep.layers.attention import Visibility
from lmrep.models import transformer
from lmrep.models.base import Inputs

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("bert", "bert_tanh", "bert_half", "roberta")


@pytest.fixture(scope="module", params=NAMES)
def golden(request):
    """(directory, the checkpoint in it, what the reference answers)."""
    directory = GOLDEN / request.param
    return directory, published.read(directory), tensor_files.read(directory / "expected.safetensors")[0]


def files(directory):
    """Every tensor in a directory's safetensors files, by name."""
    return {name: value for path in sorted(directory.glob("model*.safetensors"))
            for name, value in tensor_files.read(path)[0].items()}


def same(a, b):
    """Whether two sets of tensors have the same names, dtypes, shapes and bytes."""
    return a.keys() == b.keys() and all(
        (a[n].dtype, a[n].shape, a[n].tobytes()) == (b[n].dtype, b[n].shape, b[n].tobytes()) for n in a)


def copy(name, to, **changed):
    """A copy of a golden directory, with keys of its config changed; None deletes one."""
    shutil.copytree(GOLDEN / name, to)
    settings = json.loads((to / "config.json").read_text()) | changed
    (to / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    return to


def rewrite(directory, change):
    """Applies `change(tensors) -> tensors` to the one tensor file of a directory."""
    tensors, metadata = tensor_files.read(directory / "model.safetensors")
    changed = change({name: value.copy() for name, value in tensors.items()})
    tensor_files.write(directory / "model.safetensors", changed, metadata)
    return directory


# --- what it computes -------------------------------------------------------------------------------------------


def test_hidden_states_and_logits_are_the_references(golden):
    _, checkpoint, expected = golden
    asked = Question(expected["tokens"], expected["types"], expected["real"])
    said, real = certificate.ours(checkpoint.config, checkpoint.params, asked), expected["real"].astype(bool)
    assert said.keys() == expected.keys() - {"tokens", "types", "real"}
    np.testing.assert_allclose(said["hidden"][real], expected["hidden"][-1][real], rtol=0, atol=1e-5)
    for name in said.keys() - {"hidden"}:
        rows = real if name == "masked" else slice(None)
        np.testing.assert_allclose(said[name][rows], expected[name][rows], rtol=0, atol=1e-5)


def test_every_layer_is_the_references(golden):
    _, checkpoint, expected = golden
    model, real = transformer.build(checkpoint.config), expected["real"].astype(bool)
    types = {"token_type_ids": jnp.asarray(expected["types"], jnp.int32)} if "token_type_ids" in model.takes else {}
    given = Inputs(tokens=jnp.asarray(expected["tokens"], jnp.int32), **types,
                   visibility=Visibility(jnp.asarray(expected["real"], jnp.int32)))
    encode = jax.jit(lambda params: model.encode(params, given, layers=True).layers)
    layers = np.asarray(encode(unflatten(dict(checkpoint.params))["encoder"]))
    np.testing.assert_allclose(layers[:, real], expected["hidden"][:, real], rtol=0, atol=1e-5)


# --- there and back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [10**9, 4000])
def test_written_again_every_tensor_is_as_it_was(golden, tmp_path, most):
    directory, checkpoint, _ = golden
    written = published.write(checkpoint, tmp_path, most)
    assert (len(written) > 1) == (most == 4000)
    assert same(files(tmp_path), files(directory))
    assert json.loads((tmp_path / "config.json").read_text()) == json.loads((directory / "config.json").read_text())
    again = published.read(tmp_path)
    assert again.config == checkpoint.config and same(again.params, checkpoint.params)


def test_the_format_of_the_library_is_ours(golden, tmp_path):
    from safetensors import safe_open

    _, checkpoint, _ = golden
    published.write(checkpoint, tmp_path, 10**9)
    tensors = files(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as theirs:
        assert set(theirs.keys()) == set(tensors)
        assert same({name: theirs.get_tensor(name) for name in tensors}, tensors)


def test_what_has_no_place_is_carried():
    carried = {name: sorted(published.read(GOLDEN / name).carried) for name in NAMES}
    assert carried == {"bert": [], "bert_tanh": ["bert.embeddings.position_ids"], "bert_half": [], "roberta": []}
    pooler = published.read(GOLDEN / "roberta").params["objective/pair/pooler/kernel"]
    theirs = files(GOLDEN / "roberta")["roberta.pooler.dense.weight"]
    np.testing.assert_array_equal(pooler, theirs.T)


def test_the_config_decides_activation_epsilon_and_offset():
    found = {name: published.config(GOLDEN / name) for name in NAMES}
    assert [found[name].activation for name in NAMES] == ["gelu", "gelu_tanh", "gelu", "gelu"]
    assert [found[name].norm_eps for name in NAMES] == [1e-12, 1e-12, 1e-12, 1e-5]
    assert (found["roberta"].position_offset, found["roberta"].length, found["roberta"].token_types) == (2, 21, 1)


# --- our own networks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pad", "changed", "kind", "remarks"), [
    (0, {}, "bert", 0),
    (1, {"position_offset": 2, "activation": "gelu", "token_types": 0}, "roberta", 2 + 1),
    (0, {"position_offset": 2, "activation": "gelu", "token_types": 0}, "bert", 2),
    (1, {"position_offset": 2, "activation": "gelu_tanh"}, "bert", 1),
])
def test_a_network_of_our_own_is_written_as_what_computes_the_same(tmp_path, pad, changed, kind, remarks):
    sizes = {"vocab": 31, "width": 12, "layers": 2, "heads": 2, "mlp": 20, "length": 9}
    config = transformer.Config(**(sizes | changed))
    draw = np.random.default_rng(0)
    params = {path: draw.normal(size=spec.shape).astype(np.float32) for path, spec in published.specs(config).items()}
    made, said = published.of_network(config, params, {"pad": pad, "cls": 2, "sep": 3})
    assert made.kind == kind and len(said) == remarks
    published.write(made, tmp_path, 10**9)
    again = published.read(tmp_path)
    assert again.name == ("BertForPreTraining" if kind == "bert" else "RobertaForMaskedLM")
    asked = certificate.question(again)
    kept = {path: value for path, value in params.items() if kind == "bert" or "classifier" not in path}
    a, b = certificate.ours(config, kept, asked), certificate.ours(again.config, again.params, asked)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("changed", [{"share": "all"}, {"norm": "pre"}, {"positions": "none"}, {"embedding": 6},
                                     {"embedding_norm": False}])
def test_a_network_that_is_neither_is_refused(changed):
    with pytest.raises(UserError, match=f"{next(iter(changed))}=.*which neither bert nor roberta has"):
        published.of_network(transformer.Config(**changed), {}, {})


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changed", "message"), [
    ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*supported are BertModel"),
    ({"model_type": "t5", "architectures": None}, "model_type 't5'; supported are bert, roberta"),
    ({"architectures": ["RobertaModel"]}, "they differ"),
    ({"architectures": ["BertForSequenceClassification"]}, "supported are BertModel, BertForMaskedLM"),
    ({"auto_map": {"AutoModel": "evil.Model"}}, "names code to be run .auto_map."),
    ({"quantization_config": {"bits": 4}}, "quantised"),
    ({"hidden_act": "silu"}, "hidden_act is 'silu'; expected one of gelu"),
    ({"hidden_size": 16}, "16, which its 3 heads do not divide"),
    ({"hidden_size": 18}, r"word_embeddings.weight is F32\[53, 15\]; by its config.json it should be \[53, 18\]"),
    ({"num_hidden_layers": 3}, "lacks bert.encoder.layer.2.attention.self.query.weight"),
    ({"num_hidden_layers": 10**6}, "of 1,000,000 layers, and there are 46 tensors"),
    ({"vocab_size": 10**30}, "vocab_size is 1.*expected at most"),
    ({"layer_norm_eps": 10**400}, "has a value of more than 100 characters at layer_norm_eps"),
    ({"layer_norm_eps": "1e-12"}, "layer_norm_eps is '1e-12'; expected a number"),
    ({"position_embedding_type": "relative_key"}, "is 'relative_key'; expected one of absolute"),
    ({"is_decoder": True}, "is_decoder is True"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings false, and there is no cls.predictions.decoder.weight"),
])
def test_a_config_that_cannot_be_read_is_refused(tmp_path, changed, message):
    with pytest.raises(UserError, match=message):
        published.read(copy("bert", tmp_path / "x", **changed))


def test_a_roberta_whose_head_has_another_activation_than_its_layers_is_refused(tmp_path):
    with pytest.raises(UserError, match="hidden_act 'relu', and RoBERTa's masked-LM head always has gelu"):
        published.read(copy("roberta", tmp_path / "x", hidden_act="relu"))


def test_what_a_config_leaves_out_or_null_is_the_references_default(tmp_path):
    copy("bert", tmp_path / "x", layer_norm_eps=None, hidden_act=None, max_position_embeddings=None)
    settings = json.loads((tmp_path / "x" / "config.json").read_text())
    (tmp_path / "x" / "config.json").write_text(json.dumps(settings | {"hidden_act": None, "is_decoder": None,
                                                                       "max_position_embeddings": 23}))
    assert published.read(tmp_path / "x").config == published.read(GOLDEN / "bert").config


def test_pickled_weights_are_refused(tmp_path):
    directory = copy("bert", tmp_path / "x")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"by unpickling \(pytorch_model.bin\), which may"):
        published.read(directory)


def test_a_tokenizer_that_names_code_is_refused(tmp_path):
    directory = copy("bert", tmp_path / "x")
    (directory / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.T", null]}}')
    with pytest.raises(UserError, match="names code to be run"):
        published.read(directory)


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: {k: v for k, v in t.items() if "layer.1.output.dense" not in k},
     "lacks bert.encoder.layer.1.output.dense.weight, bert.encoder.layer.1.output.dense.bias; by its"),
    (lambda t: {k: v for k, v in t.items() if k != "cls.predictions.bias"}, "lacks cls.predictions.bias"),
    (lambda t: {k: v for k, v in t.items() if "pooler" not in k}, "lacks bert.pooler.dense.weight"),
    (lambda t: t | {"cls.predictions.decoder.weight": t["bert.embeddings.word_embeddings.weight"] + 1},
     "decoder.weight differ; here the output layer is tied"),
    (lambda t: t | {"cls.predictions.bias": t["cls.predictions.bias"].astype(np.float64)}, r"is F64\[53\]"),
])
def test_tensors_that_do_not_make_the_network_are_refused(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        published.read(rewrite(copy("bert", tmp_path / "x"), change))


def test_heads_are_there_or_not(tmp_path):
    def without(*parts):
        return lambda t: {k: v for k, v in t.items() if not any(part in k for part in parts)}

    found = [published.read(rewrite(copy("bert", tmp_path / str(i)), without(*parts))).name
             for i, parts in enumerate([("cls.seq", "pooler"), ("cls.predictions",), ("cls", "pooler")])]
    assert found == ["BertForMaskedLM", "BertForNextSentencePrediction", "BertModel"]


@pytest.mark.parametrize(("index", "message"), [
    ({"weight_map": {"a": "../../etc/passwd"}}, "expected safetensors files beside it"),
    ({"weight_map": {"a": "../x.safetensors"}}, "expected safetensors files beside it"),
    ({"weight_map": ["a"]}, "has no weight_map"),
    ({"weight_map": {"a": "none.safetensors"}}, "none.safetensors is not there"),
    ({"weight_map": {"a": "model-00001-of-00003.safetensors"}}, "which model.safetensors.index.json does not have"),
])
def test_an_index_that_is_wrong_is_refused(tmp_path, index, message):
    directory = copy("bert_half", tmp_path / "x")
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=message):
        published.read(directory)
