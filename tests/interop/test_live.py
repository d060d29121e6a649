"""Conversion, both ways, against the reference itself: it saves what we read, and reads what we write."""

import json
import shutil

import numpy as np
import pytest

from lmrep.interop import certificate, conversion, published, tensor_files
from lmrep.models import transformer
from tests.interop.test_published import GOLDEN, NAMES, files, same

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 67, "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 70,
         "max_position_embeddings": 41}
CASES = {
    "BertModel": {}, "BertForMaskedLM": {"hidden_act": "gelu_new"}, "BertForPreTraining": {"type_vocab_size": 3},
    "BertForNextSentencePrediction": {"hidden_act": "relu"}, "RobertaModel": {"type_vocab_size": 1},
    "RobertaForMaskedLM": {"layer_norm_eps": 1e-5, "type_vocab_size": 1},
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def saved(request, tmp_path_factory):
    """(class of the reference, directory of a random model that it saved, in several files)."""
    cls = getattr(transformers, request.param)
    model, generator = cls(cls.config_class(**SIZES, **CASES[request.param])), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + (0.7 if parameter.ndim == 1 else 0))
    directory = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(directory, max_shard_size="50KB")
    golden = GOLDEN / ("roberta" if request.param.startswith("Roberta") else "bert")
    for path in golden.iterdir():
        if path.name.startswith(("vocab", "merges", "tokenizer")):
            shutil.copy(path, directory)
    return cls, directory


def test_there_and_back_the_reference_says_the_same(saved, tmp_path):
    cls, directory = saved
    done = conversion.to_workdir(directory, tmp_path / "run")
    back = conversion.to_published(tmp_path / "run", tmp_path / "back")
    for proof in (done.certificate, back.certificate):
        assert proof.against == f"transformers {transformers.__version__}"
        assert max(proof.differences.values()) <= 1e-5
    assert len(list(directory.glob("model-*.safetensors"))) > 1 and same(files(tmp_path / "back"), files(directory))
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads(
        (directory / "config.json").read_text())
    model, told = cls.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    before = cls.from_pretrained(directory).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_files_are_still_what_the_reference_says(name):
    checkpoint = published.read(GOLDEN / name)
    expected, _ = tensor_files.read(GOLDEN / name / "expected.safetensors")
    asked = certificate.Question(*(np.array(expected[key]) for key in ("tokens", "types", "real")))
    _, said = certificate.reference(checkpoint, GOLDEN / name, asked)
    for key, value in said.items():
        np.testing.assert_allclose(value, expected[key][-1] if key == "hidden" else expected[key], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("pad", "changed"), [
    (0, {}), (0, {"position_offset": 2, "token_types": 0}), (1, {"position_offset": 2, "token_types": 0})])
def test_a_network_of_our_own_is_read_by_the_reference(tmp_path, pad, changed):
    sizes = {"vocab": 31, "width": 12, "layers": 2, "heads": 2, "mlp": 20, "length": 9, "activation": "gelu"}
    config, draw = transformer.Config(**sizes, **changed), np.random.default_rng(0)
    params = {path: draw.normal(size=spec.shape).astype(np.float32) for path, spec in published.specs(config).items()}
    made, _ = published.of_network(config, params, {"pad": pad, "cls": 2, "sep": 3})
    published.write(made, tmp_path, 10**9)
    proof = certificate.certify(published.read(tmp_path), tmp_path)
    assert proof.against.startswith("transformers") and max(proof.differences.values()) <= 1e-5
    _, told = getattr(transformers, made.name).from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"] and not told["mismatched_keys"]
    assert all("pooler" in key for key in told["unexpected_keys"])  # of a RoBERTa with a masked-LM head
