"""Published checkpoints: outputs compared with those of the reference (`make_golden.py`), reading and writing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep import models
from lmrep.config.loading import load
from lmrep.core.errors import UserError
from lmrep.core.params import unflatten
from lmrep.data import tokenizers
from lmrep.experiment import config as experiments
from lmrep.interop import certificate, tensor_files
from lmrep.interop.certificate import RandomBatch
from lmrep.interop.huggingface import FAMILIES
from lmrep.interop.huggingface.nearest import NEAREST
from lmrep.interop.huggingface.read import describe, read, specs
from lmrep.interop.huggingface.write import from_network, write
from lmrep.interop.huggingface.write import tensors as tensors_of
from lmrep.layers.attention import AttentionMask
from lmrep.models import PRESETS, transformer
from lmrep.models.base import Inputs

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
NAMES = ("bert", "bert_tanh", "bert_half", "roberta", "electra_discriminator", "electra_generator", "albert", "xlnet",
         "gpt", "gpt2")
HEADS = (("masked", "pair"), ("masked",), (), ("masked",), ("discriminator",), ("masked",), ("masked", "pair"),
         ("permutation",), ("causal",), ("causal",))


@pytest.fixture(scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in (
    "bert", "bert_half", "electra_generator"))) for name in NAMES])
def golden(request):
    """(directory, its checkpoint, outputs of the reference)."""
    directory = GOLDEN / request.param
    return directory, read(directory), tensor_files.read(directory / "expected.safetensors")[0]


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


# --- outputs ---


def test_hidden_states_and_logits_equal_the_reference(golden):
    _, checkpoint, expected = golden
    batch = RandomBatch(expected["tokens"], expected["types"], expected["real"])
    outputs, real = certificate.our_outputs(checkpoint, batch), expected["real"].astype(bool)
    assert outputs.keys() == expected.keys() - {"tokens", "types", "real"}
    np.testing.assert_allclose(outputs["hidden"][real], expected["hidden"][-1][real], rtol=0, atol=1e-5)
    for name in outputs.keys() - {"hidden"}:
        selected = slice(None) if name == "pair" else real
        np.testing.assert_allclose(outputs[name][selected], expected[name][selected], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_every_layer_equals_the_reference(golden):
    _, checkpoint, expected = golden
    model, real = models.build(checkpoint.config), expected["real"].astype(bool)
    types = {"token_type_ids": jnp.asarray(expected["types"], jnp.int32)} if "token_type_ids" in model.inputs else {}
    inputs = Inputs(tokens=jnp.asarray(expected["tokens"], jnp.int32), **types,
                   attention_mask=AttentionMask(jnp.asarray(expected["real"], jnp.int32), checkpoint.family.causal))
    encode = jax.jit(lambda params: model.encode(params, inputs, layers=True))
    found = encode(unflatten(dict(checkpoint.params))["encoder"])
    layers = np.asarray(found.layers).copy()
    layers[-1] = found.hidden  # after the last norm, where there is one
    np.testing.assert_allclose(layers[:, real], expected["hidden"][:, real], rtol=0, atol=1e-5)


def test_heads_are_those_of_the_checkpoint():
    assert tuple(read(GOLDEN / name).heads for name in NAMES) == HEADS


# --- reading and writing ---


@pytest.mark.parametrize("max_bytes", [10**9, 4000])
def test_rewriting_a_checkpoint_keeps_every_tensor(golden, tmp_path, max_bytes):
    directory, checkpoint, _ = golden
    written = write(checkpoint, tmp_path, max_bytes)
    assert (len(written) > 1) == (max_bytes == 4000)
    assert same(files(tmp_path), files(directory))
    assert json.loads((tmp_path / "config.json").read_text()) == json.loads((directory / "config.json").read_text())
    again = read(tmp_path)
    assert again.config == checkpoint.config and same(again.params, checkpoint.params)


def test_unmatched_tensors_are_kept():
    extra = {name: sorted(read(GOLDEN / name).extra_tensors) for name in NAMES}
    assert {name: found for name, found in extra.items() if found} == {
        "bert_tanh": ["bert.embeddings.position_ids"], "electra_generator": ["electra.embeddings.position_ids"],
        "gpt2": ["h.0.attn.bias", "h.1.attn.bias"]}
    pooler = read(GOLDEN / "roberta").params["objective/pair/pooler/kernel"]
    theirs = files(GOLDEN / "roberta")["roberta.pooler.dense.weight"]
    np.testing.assert_array_equal(pooler, theirs.T)


def test_joint_query_key_value_tensors_are_split():
    for name, before in (("gpt", "transformer."), ("gpt2", "")):
        params, tensors = read(GOLDEN / name).params, files(GOLDEN / name)
        for part, theirs in (("kernel", "weight"), ("bias", "bias")):
            joined = [params[f"encoder/layers/attention/{each}/{part}"][1] for each in ("query", "key", "value")]
            np.testing.assert_array_equal(np.concatenate(joined, -1), tensors[f"{before}h.1.attn.c_attn.{theirs}"])


def test_config_determines_activation_epsilon_and_offset():
    found = {name: describe(GOLDEN / name).config for name in NAMES}
    assert [name for name in NAMES if found[name].activation == "gelu_tanh"] == ["bert_tanh", "albert", "xlnet", "gpt",
                                                                                 "gpt2"]
    assert {found[name].norm_eps for name in ("roberta", "gpt", "gpt2")} == {1e-5}
    assert {found[name].norm_eps for name in ("bert", "electra_generator", "albert", "xlnet")} == {1e-12}
    assert (found["roberta"].position_offset, found["roberta"].max_length, found["roberta"].token_types) == (2, 21, 1)
    assert (found["gpt2"].norm, found["gpt2"].mlp, found["gpt"].norm, found["gpt"].mlp) == ("pre", 22, "post", 60)
    assert (found["albert"].share, found["albert"].embedding, found["electra_generator"].embedding) == ("all", 7, 7)


DEBERTA = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p",
           "position_biased_input": False, "position_buckets": 256, "max_relative_positions": -1}  # as published
PRESETS_OF = {
    "electra_small": ("electra", {"hidden_act": "gelu"}), "gpt": ("openai-gpt", {"afn": "gelu"}),
    "electra_large": ("electra", {"hidden_size": 1024, "embedding_size": 1024, "num_attention_heads": 16,
                                  "intermediate_size": 4096, "num_hidden_layers": 24}),
    "gpt2_xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25, "activation_function": "gelu_new"}),
    "bert_base": ("bert", {"hidden_act": "gelu_new"}), "gpt2": ("gpt2", {}), "albert_xxlarge": ("albert", {}),
    "deberta_v3_base": ("deberta-v2", DEBERTA | {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                                                 "intermediate_size": 3072}),
    "deberta_v2_xlarge": ("deberta-v2", DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu",
                                                   "attention_head_size": 64}),
    "modernbert_base": ("modernbert", {}),
    "modernbert_large": ("modernbert", {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28,
                                        "num_attention_heads": 16}),
    "distilbert_base": ("distilbert", {"hidden_size": 768, "sinusoidal_pos_embds": True, "tie_weights_": True}),
}  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS_OF)
def test_published_configs_equal_the_presets(preset):
    """Keys that a config.json lacks have the reference's defaults, which give the published networks."""
    family, config_json = PRESETS_OF[preset]
    assert FAMILIES[family].network(config_json, "config.json") == PRESETS[preset].config


@pytest.mark.parametrize("changes", [
    {"share_att_key": None}, {"norm_rel_ebd": "none"}, {"position_biased_input": True}, {"pos_att_type": ["p2p"]},
    {"embedding_size": 128}, {"conv_kernel_size": 3}, {"type_vocab_size": 2}], ids=str)
def test_other_networks_of_deberta_are_refused(changes):
    """Also where a key is missing, which the reference takes to be absent from the network."""
    key = "conv_act" if "conv_kernel_size" in changes else next(iter(changes))
    with pytest.raises(UserError, match=key):
        FAMILIES["deberta-v2"].network(DEBERTA | changes, "config.json")


def test_cased_spanbert_is_loaded_as_bert(tmp_path):
    """Its config.json has keys that nothing reads, and its tokenizer keeps capitals."""
    directory = copy("bert", tmp_path / "x", directionality="bidi", pooler_fc_size=768, pooler_num_attention_heads=12,
                     pooler_num_fc_layers=3, pooler_size_per_head=128, pooler_type="first_token_transform",
                     transformers_version=None, architectures=None)
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": false, "model_max_length": 512}')
    found = read(directory)
    assert found.family.name == "bert" and same(found.params, read(GOLDEN / "bert").params)
    assert not tokenizers.load(directory).lowercase


# --- networks of ours ---


ROBERTA = {"position_offset": 2, "activation": "gelu", "token_types": 0}
PRELAYERNORM = {"norm": "pre", "activation": "gelu"}
LEFT = {"norm": "pre", "embedding_norm": False, "token_types": 0}
ALL = {"masked": "objective/masked/", "pair": "objective/pair/", "discriminator": "objective/discriminator/"}


def network(changed, *heads):
    """A small network of our own with random parameters, and these heads."""
    sizes = {"vocab": 31, "width": 12, "layers": 2, "heads": 2, "mlp": 20, "max_length": 9}
    config, draw = transformer.Config(**(sizes | changed)), np.random.default_rng(0)
    prefixes = ("encoder/", *(ALL[head] for head in heads))
    return config, {path: 0.5 * draw.normal(size=spec.shape).astype(np.float32)
                    for path, spec in specs(config).items() if path.startswith(prefixes)}


OWN = [
    (0, {}, ("masked", "pair"), "BertForPreTraining", 0),
    (1, ROBERTA, ("masked", "pair"), "RobertaForMaskedLM", 2 + 1),
    (0, ROBERTA, ("masked", "pair"), "BertForPreTraining", 2),
    (1, {"position_offset": 2, "activation": "gelu_tanh"}, ("masked", "pair"), "BertForPreTraining", 1),
    (0, {"activation": "relu"}, ("discriminator",), "ElectraForPreTraining", 0),
    (0, {"embedding": 7, "activation": "gelu"}, ("masked",), "ElectraForMaskedLM", 0),
    (0, {"embedding": 7, "token_types": 0}, (), "ElectraModel", 1),
    (0, {"positions": "disentangled", "position_buckets": 4, "convolution": 3, "activation": "gelu", "token_types": 0},
     ("masked",), "DebertaV2ForMaskedLM", 0),
    (0, {"token_types": 0}, ("masked",), "DistilBertForMaskedLM", 0),
    (0, {"token_types": 0}, ("masked", "pair"), "BertForPreTraining", 1),
    (0, {"token_types": 0, "norm_eps": 1e-5}, ("masked",), "BertForMaskedLM", 1),
    (0, {"embedding": 7, "share": "all", "position_offset": 1}, ("masked", "pair"), "AlbertForPreTraining", 1),
    (0, LEFT, (), "GPT2LMHeadModel", 0),
    (0, LEFT | {"position_offset": 3}, ("masked",), "GPT2LMHeadModel", 1 + 5),
    (0, LEFT | {"norm": "post", "mlp": 48}, (), "OpenAIGPTLMHeadModel", 0),
    (0, PRELAYERNORM, ("masked",), "RobertaPreLayerNormForMaskedLM", 1),
    (1, PRELAYERNORM | {"position_offset": 2, "token_types": 0}, ("masked",), "RobertaPreLayerNormForMaskedLM", 1),
    (0, PRELAYERNORM | {"position_offset": 3}, ("masked", "pair"), "RobertaPreLayerNormForMaskedLM", 2 + 2),
]
QUICK = {1, 7, 11, 13}  # of OWN: one whose position rows move, and one without token types


def test_a_table_in_two_parts_is_exported_as_their_sum():
    """ELECTRA's discriminator with disentangled sharing."""
    config, params = network({"embedding_delta": True})
    published, _ = from_network(config, params, {"pad": 0, "cls": 2, "sep": 3})
    np.testing.assert_array_equal(published.params["encoder/embedding/token"], params["encoder/embedding/token"]
                                  + params["encoder/embedding/delta"])
    assert published.config == replace(config, embedding_delta=False) and published.dtypes.keys() == from_network(
        *network({}), {"pad": 0})[0].dtypes.keys()


@pytest.mark.parametrize(("pad", "changed", "heads", "name", "remarks"), [
    pytest.param(*row, marks=() if number in QUICK else pytest.mark.slow) for number, row in enumerate(OWN)])
def test_network_is_exported_as_an_equivalent_family(tmp_path, pad, changed, heads, name, remarks):
    config, params = network(changed, *heads)
    published, found = from_network(config, params, {"pad": pad, "cls": 2, "sep": 3})
    assert published.class_name == name and len(found) == remarks
    write(published, tmp_path, 10**9)
    again = read(tmp_path)
    assert again.class_name == name and again.config.position_offset == (pad + 1 if name.startswith("Roberta") else 0)
    batch = certificate.random_batch(again)
    known = again.family.paths()
    kept = {path: value for path, value in params.items() if path in known}
    before = again._replace(config=config, params=kept)
    a, b = certificate.our_outputs(before, batch), certificate.our_outputs(again, batch)
    assert a.keys() == b.keys()
    for each in a:
        np.testing.assert_allclose(a[each], b[each], rtol=0, atol=1e-5)


def test_quickstart_network_is_a_published_architecture():
    config = experiments.model_config(experiments.parse(load(ROOT / "experiments/quickstart.py")).model, 64)
    params = {path: np.zeros(spec.shape, np.float32) for path, spec in specs(config).items()
              if path.startswith(("encoder/", "objective/masked/"))}
    published, remarks = from_network(config, params, {"pad": 0, "cls": 2, "sep": 3}, "masked")
    assert published.class_name == "RobertaPreLayerNormForMaskedLM" and len(remarks) == 1  # a position row for padding
    assert published.params.keys() == params.keys()


def test_family_of_the_objective_is_preferred_if_it_matches():
    config, params = network({"activation": "gelu"}, "masked")
    names = [from_network(config, params, {}, objective)[0].family.name
             for objective in ("", "replaced_token", "causal")]
    assert names == ["bert", "electra", "bert decoder"]


# --- refusals ---


UNTIED = {"gpt2": ("lm_head.weight", "wte.weight"),
          "bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight")}


@pytest.mark.parametrize("name", UNTIED)
def test_untied_output_layer_is_read_where_the_config_says_so(name, tmp_path):
    output, table = UNTIED[name]

    def untied(tensors):
        bias = {output.replace("weight", "bias"): np.ones(53, np.float32)} if name == "bert" else {}
        return tensors | {output: 2 * tensors[table]} | bias

    directory = rewrite(copy(name, tmp_path / "x", tie_word_embeddings=False), untied)
    found, tied = read(directory), read(GOLDEN / name)
    assert not found.config.tied and same(files(directory), tensors_of(found))
    batch = certificate.random_batch(tied)
    ours, before = certificate.our_outputs(found, batch), certificate.our_outputs(tied, batch)
    head = found.heads[0]
    bias = tied.params["objective/masked/bias"] if name == "bert" else 0
    expected = 2 * (before[head] - bias) + (name == "bert")  # of the two biases, the output layer's is used
    np.testing.assert_allclose(ours[head], expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(ours["hidden"], before["hidden"])
    own, _ = from_network(found.config, found.params, {"pad": 0, "cls": 2, "sep": 3})
    write(own, tmp_path, 10**9)
    assert same(read(tmp_path).params, found.params)
    with pytest.raises(UserError, match="differ, and tie_word_embeddings"):
        read(rewrite(copy(name, tmp_path / "tied"), untied))


def test_modernbert_names_the_ids_of_all_its_special_tokens():
    """Its class has defaults for them, which a smaller vocabulary lacks."""
    keys = FAMILIES["modernbert"].config_json(PRESETS["modernbert_base"].config, {"pad": 0, "cls": 2, "sep": 3})
    assert [keys[f"{role}_token_id"] for role in ("pad", "cls", "sep", "bos", "eos")] == [0, 2, 3, 2, 3]


def test_the_nearest_of_an_unknown_family_is_one_that_is_read():
    assert not NEAREST.keys() & FAMILIES.keys() and {family for family, _ in NEAREST.values()} <= {"", *FAMILIES}


def test_missing_and_null_config_keys_have_the_reference_defaults(tmp_path):
    copy("bert", tmp_path / "x", layer_norm_eps=None, hidden_act=None, max_position_embeddings=None)
    settings = json.loads((tmp_path / "x" / "config.json").read_text())
    (tmp_path / "x" / "config.json").write_text(json.dumps(settings | {"hidden_act": None, "is_decoder": None,
                                                                       "max_position_embeddings": 23}))
    assert read(tmp_path / "x").config == read(GOLDEN / "bert").config


@pytest.mark.parametrize("name", ["gpt", "gpt2"])
def test_gpt_config_accepts_the_key_names_of_bert(tmp_path, name):
    """As the reference has it: otherwise its default number of heads would be taken, which may fit and be wrong."""
    config_json = json.loads((GOLDEN / name / "config.json").read_text())
    other = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
             "max_position_embeddings": "n_positions"}
    renamed = dict.fromkeys(other.values()) | {theirs: config_json[key] for theirs, key in other.items()}
    assert read(copy(name, tmp_path / "x", **renamed)).config == read(GOLDEN / name).config


def test_class_follows_from_the_heads_present(tmp_path):
    def without(*parts):
        return lambda t: {k: v for k, v in t.items() if not any(part in k for part in parts)}

    found = [read(rewrite(copy("bert", tmp_path / str(i)), without(*parts))).class_name
             for i, parts in enumerate([("cls.seq", "pooler"), ("cls.predictions",), ("cls", "pooler")])]
    assert found == ["BertForMaskedLM", "BertForNextSentencePrediction", "BertModel"]
