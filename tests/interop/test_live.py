"""Conversion in both directions against the reference implementation, where that is installed."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

import lmrep
from lmrep.inference import generate
from lmrep.interop import certificate, conversion, tensor_files
from lmrep.interop.huggingface.read import read
from lmrep.interop.huggingface.write import from_network, write
from lmrep.models.decoding import Sampling
from tests.interop.test_published import GOLDEN, NAMES, OWN, files, network, same

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 67, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 70,
         "max_position_embeddings": 41}
NARROW = SIZES | {"embedding_size": 26}
DISTILBERT = {"vocab_size": 67, "dim": 36, "n_layers": 2, "n_heads": 3, "hidden_dim": 70, "max_position_embeddings": 41}
GPT = {"vocab_size": 67, "n_embd": 36, "n_layer": 2, "n_head": 3, "n_positions": 41, "bos_token_id": 0,
       "eos_token_id": 2}
LEFT, UNTIED = {"is_decoder": True}, {"tie_word_embeddings": False}
MODERNBERT = SIZES | {"num_hidden_layers": 4, "local_attention": 4, "pad_token_id": 0, "bos_token_id": 1,
                      "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
DEBERTA = SIZES | {
    "relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False,
    "position_buckets": 8, "max_relative_positions": 20, "pos_att_type": ["p2c", "c2p"]}
XLNET = {"vocab_size": 67, "d_model": 36, "n_layer": 2, "n_head": 3, "d_inner": 70}
CASES = {
    "BertModel": SIZES, "BertForMaskedLM": SIZES | {"hidden_act": "gelu_new"},
    "BertForPreTraining": SIZES | {"type_vocab_size": 3},
    "BertForNextSentencePrediction": SIZES | {"hidden_act": "relu"},
    "RobertaModel": SIZES | {"type_vocab_size": 1},
    "RobertaForMaskedLM": SIZES | {"layer_norm_eps": 1e-5, "type_vocab_size": 1},
    "ElectraModel": SIZES | {"embedding_size": 36}, "ElectraForMaskedLM": NARROW,
    "ElectraForPreTraining": NARROW | {"hidden_act": "gelu_new"},
    "DistilBertModel": DISTILBERT | {"sinusoidal_pos_embds": True},
    "DistilBertForMaskedLM": DISTILBERT | {"activation": "relu"},
    "ModernBertModel": MODERNBERT | {"local_attention": 40},
    "ModernBertForMaskedLM": MODERNBERT | {"global_attn_every_n_layers": 2, "norm_eps": 1e-3},
    "ModernBertDecoderModel": MODERNBERT | {"local_attention": 40},
    "ModernBertDecoderForCausalLM": MODERNBERT | {"norm_eps": 1e-3},
    "AlbertModel": NARROW, "AlbertForMaskedLM": NARROW | {"hidden_act": "gelu"}, "AlbertForPreTraining": NARROW,
    "DebertaV2Model": DEBERTA | {"position_buckets": -1, "max_relative_positions": -1, "pos_att_type": "c2p"},
    "DebertaV2ForMaskedLM": DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"},
    "DebertaV2ForMaskedLM published head": DEBERTA | {"legacy": False, "pos_att_type": "p2c"},
    "DebertaV2ForMaskedLM untied": DEBERTA | UNTIED,
    "OpenAIGPTModel": GPT, "OpenAIGPTLMHeadModel": GPT | {"afn": "relu"},
    "XLNetModel": XLNET | {"mem_len": None},
    "XLNetLMHeadModel": XLNET | {"ff_activation": "gelu_new", "clamp_len": 11, "mem_len": 9, "reuse_len": 5},
    "GPT2Model": GPT | {"n_inner": 70}, "GPT2LMHeadModel": GPT | {"layer_norm_epsilon": 1e-6},
    "GPT2LMHeadModel by layer": GPT | {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "GPT2LMHeadModel unscaled": GPT | {"scale_attn_weights": False, "activation_function": "quick_gelu"},
    "BertForMaskedLM silu": SIZES | {"hidden_act": "silu", "num_attention_heads": 1},
    "DistilBertForMaskedLM odd": DISTILBERT | {"activation": "quick_gelu", "dim": 33},
    "BertLMHeadModel": SIZES | LEFT | {"hidden_act": "relu"}, "ElectraForCausalLM": NARROW | LEFT,
    "RobertaForCausalLM": SIZES | LEFT | {"type_vocab_size": 1}, "RobertaPreLayerNormForCausalLM": SIZES | LEFT,
    "BertForPreTraining untied": SIZES | UNTIED, "GPT2LMHeadModel untied": GPT | UNTIED,
    "ElectraForMaskedLM untied": NARROW | UNTIED, "XLNetLMHeadModel untied": XLNET | UNTIED,
    "CamembertForMaskedLM": SIZES | {"type_vocab_size": 1}, "XLMRobertaModel": SIZES, "XLMRobertaForMaskedLM": SIZES,
    "XLMRobertaForCausalLM": SIZES | LEFT, "Data2VecTextForMaskedLM": SIZES | {"layer_norm_eps": 1e-5},
    "GPT2DoubleHeadsModel": GPT, "OpenAIGPTDoubleHeadsModel": GPT,
}  # fmt: skip
# Of which golden directory; others have BERT's.
TOKENIZERS = {**dict.fromkeys(("Roberta", "Camembert", "XLMRoberta", "Data2VecText"), "roberta"),
              "GPT2": "roberta", "OpenAI": "gpt", "XLNet": "xlnet"}


def save(model, directory):
    """Saves a model of the reference, in several files, with a tokenizer."""
    model.save_pretrained(directory, max_shard_size="50KB")
    name = next((name for start, name in TOKENIZERS.items() if type(model).__name__.startswith(start)), "bert")
    for path in (GOLDEN / name).iterdir():
        if path.name.startswith(("vocab", "merges", "tokenizer", "spiece")):
            shutil.copy(path, directory)
    return directory


@pytest.fixture(scope="module", params=CASES)
def saved(request, tmp_path_factory):
    """(class of the reference, directory of a random model that it saved)."""
    cls = getattr(transformers, request.param.split()[0])
    model, generator = cls(cls.config_class(**CASES[request.param])), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + (0.7 if parameter.ndim == 1 else 0))
    return cls, save(model, tmp_path_factory.mktemp(request.param))


def test_round_trip_gives_the_same_outputs_in_the_reference(saved, tmp_path):
    cls, directory = saved
    done = conversion.to_workdir(directory, tmp_path / "run")
    back = conversion.to_published(tmp_path / "run", tmp_path / "back")
    shutil.rmtree(tmp_path / "run/interop")  # as of a run that was trained here
    written = conversion.to_published(tmp_path / "run", tmp_path / "written")
    name = re.sub("^(Camembert|XLMRoberta|Data2VecText)", "Roberta", cls.__name__).replace("DoubleHeads", "LMHead")
    assert written.checkpoint.class_name == name or not done.checkpoint.heads
    assert max(written.certificate.differences.values()) <= 1e-5
    for proof in (done.certificate, back.certificate):
        assert proof.against == f"transformers {transformers.__version__}"
        assert max(proof.differences.values()) <= 1e-5
        assert proof.differences.keys() == {"hidden", *done.checkpoint.heads}
    assert len(list(directory.glob("model-*.safetensors"))) > 1 and same(files(tmp_path / "back"), files(directory))
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads(
        (directory / "config.json").read_text())
    model, loading_info = cls.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(loading_info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before = cls.from_pretrained(directory).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("name", NAMES)
def test_golden_files_agree_with_the_reference(name):
    checkpoint = read(GOLDEN / name)
    expected, _ = tensor_files.read(GOLDEN / name / "expected.safetensors")
    batch = certificate.RandomBatch(*(np.array(expected[key]) for key in ("tokens", "types", "real")))
    _, outputs = certificate.reference_outputs(checkpoint, GOLDEN / name, batch)
    for key, value in outputs.items():
        np.testing.assert_allclose(value, expected[key][-1] if key == "hidden" else expected[key], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("pad", "changed", "heads", "name", "remarks"), OWN)
def test_exported_network_is_loaded_by_the_reference(tmp_path, pad, changed, heads, name, remarks):
    config, params = network(changed, *heads)
    published, _ = from_network(config, params, {"pad": pad, "cls": 2, "sep": 3})
    write(published, tmp_path, 10**9)
    proof = certificate.certify(read(tmp_path), tmp_path)
    assert proof.against.startswith("transformers") and max(proof.differences.values()) <= 1e-5
    assert proof.differences.keys() == {"hidden", *published.heads}
    _, loading_info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not loading_info["missing_keys"] and not loading_info["mismatched_keys"]
    assert all("pooler" in key for key in loading_info["unexpected_keys"])  # of a RoBERTa with a masked-LM head


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "OpenAIGPTLMHeadModel", "GPT2LMHeadModel by layer"])
def test_continuations_equal_the_reference(name, tmp_path):
    torch.manual_seed(1)
    cls = getattr(transformers, name.split()[0])
    model = cls(cls.config_class(**CASES[name], initializer_range=0.3)).eval()
    with torch.no_grad():  # otherwise it repeats its last word
        model.get_submodule("transformer.wpe" if "2" in name else "transformer.positions_embed").weight.mul_(4)
        model.transformer.h[-1].mlp.c_proj.weight.mul_(5)
    conversion.to_workdir(save(model, tmp_path / "published"), tmp_path / "run")
    run, greedy = lmrep.load(tmp_path / "run"), Sampling(temperature=0)
    text = "the cat. th"
    prompt, key = run.prompt(text), jax.random.key(0)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "published")
    assert prompt == reference(text, add_special_tokens=False).input_ids

    def generated(tokens, **options):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                                  pad_token_id=0, **options)[0, len(prompt) :].tolist()

    tokens = run.model.max_length - len(prompt)
    ours = generate.generate(run.params, np.array([prompt]), len(prompt), key, model=run.model,
                             objective=run.objective, sampling=greedy, tokens=tokens, capacity=run.model.max_length)
    expected = generated(tokens, eos_token_id=None)
    assert ours[0].tolist() == expected and len({*expected}) > 5
    # A line break of GPT's ends nothing, and no token is banned.
    end = run.tokenizer.vocabulary.specials.get("sep")
    expected = generated(20, eos_token_id=end, suppress_tokens=[*range(run.tokenizer.size, run.model.vocab_size)])
    expected = expected[: expected.index(end)] if end in expected else expected
    full = run.tokenizer.decode([*prompt, *expected])
    assert run.generate([text], tokens=20, sampling=greedy) == [[full[len(run.tokenizer.decode(prompt)) :]]]


def test_xlnet_fills_masks_and_encodes_as_the_reference(tmp_path):
    """Two masks, each predicted from the other tokens, by the second stream; <cls> has a token type of its own."""
    torch.manual_seed(1)
    cls = transformers.XLNetLMHeadModel
    model = cls(cls.config_class(**XLNET, initializer_range=0.3)).eval()
    conversion.to_workdir(save(model, tmp_path / "published"), tmp_path / "run")
    run, text = lmrep.load(tmp_path / "run"), "the <mask> cat. <mask> the"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "published")
    given = tokenizer(text, return_tensors="pt", return_token_type_ids=True)
    masks = given.input_ids[0] == tokenizer.mask_token_id
    length = len(masks)
    with torch.no_grad():
        logits = model(**given, perm_mask=masks.float().expand(1, length, length),
                       target_mapping=torch.eye(length)[masks][None]).logits[0]
        hidden = model.transformer(**given).last_hidden_state[0]
    for found, expected in zip(run.fill_masks([text], 3)[0], logits.softmax(-1), strict=True):
        best = expected[: run.tokenizer.size].topk(3)
        assert [word for word, _ in found] == [run.tokenizer.id_to_token(int(i)) for i in best.indices]
        np.testing.assert_allclose([p for _, p in found], best.values, rtol=1e-3)
    encoded, = run.encode([text])
    assert encoded.ids.tolist() == given.input_ids[0].tolist()
    np.testing.assert_allclose(encoded.hidden.reshape(hidden.shape), hidden, rtol=0, atol=1e-4)


@pytest.mark.parametrize("stride", [9, 40])
def test_perplexity_equals_the_reference(tmp_path, stride):
    """As its guide has it of models of fixed length: labels of a window are those of its last tokens alone."""
    torch.manual_seed(1)
    cls, length = transformers.GPT2LMHeadModel, GPT["n_positions"]
    model = cls(cls.config_class(**GPT, initializer_range=0.3)).eval()
    conversion.to_workdir(save(model, tmp_path / "published"), tmp_path / "run")
    (tmp_path / "text.txt").write_text(text := "the cat. Th\n  the dog, the " * 8 + "end")
    run = lmrep.load(tmp_path / "run")
    ids = torch.tensor([[run.start_token, *run.prompt(text)]])
    nll, before = 0.0, 1
    for start in range(0, ids.shape[1], stride):
        end = min(start + length, ids.shape[1])
        labels = ids[:, start:end].clone()
        labels[:, : before - start] = -100
        with torch.no_grad():
            nll += float(model(ids[:, start:end], labels=labels).loss) * (end - before)
        before = end
        if end == ids.shape[1]:
            break
    found = lmrep.evaluate(tmp_path / "run", files=f"{tmp_path}/text.txt", stride=stride)
    assert found["tokens"] == ids.shape[1] - 1 > 3 * length
    assert found["token_perplexity"] == pytest.approx(np.exp(nll / found["tokens"]), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nll / np.log(2) / len(text.encode()), rel=1e-5)
