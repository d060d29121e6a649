"""Conversion of T5 in both directions against the reference implementation, where that is installed."""

import json

import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.interop import conversion
from lmrep.interop.huggingface.read import read
from tests.data import test_sentencepiece

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 207, "d_model": 36, "d_kv": 10, "d_ff": 70, "num_layers": 3, "num_heads": 3,
         "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
CASES = {"1.0": {}, "deep": {"num_decoder_layers": 5},
         "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 2}}


def save(name, directory):
    """A random model that the reference saved, with a tokenizer of 100 pieces and 100 sentinels."""
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES, **CASES[name]))
    generator = torch.Generator().manual_seed(0)
    if name == "1.1":  # the library makes it with one table, and reads it with two
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(207, 36))
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + (0.7 if parameter.ndim == 1 else 0))
    model.save_pretrained(directory, max_shard_size="50KB")
    (directory / "spiece.model").write_bytes(test_sentencepiece.model(vocab_size=100, **test_sentencepiece.T5))
    return model.state_dict()


@pytest.mark.parametrize("name", CASES)
def test_round_trip_gives_the_same_outputs_in_the_reference(name, tmp_path):
    before = save(name, tmp_path / "published")
    done = conversion.to_workdir(tmp_path / "published", tmp_path / "run")
    assert done.checkpoint.config.tied == ("embeddings" if name == "1.1" else "all")
    back = conversion.to_published(tmp_path / "run", tmp_path / "back")
    for proof in (done.certificate, back.certificate):
        assert proof.against == f"transformers {transformers.__version__}"
        assert max(proof.differences.values()) <= 1e-4
        assert proof.differences.keys() == {"hidden", "span_corruption"}
    model, loading_info = transformers.T5ForConditionalGeneration.from_pretrained(
        tmp_path / "back", output_loading_info=True)
    assert not any(loading_info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    run = lmrep.load(tmp_path / "run")
    assert run.objective.name == "span_corruption" and len(run.tokenizer.vocabulary.sentinels) == 100
    (text,) = run.encode(["the cat"])
    assert text.hidden.shape[1:] == (text.hidden.shape[1], 36)  # of the encoder


def test_a_network_of_ours_is_written_as_t5(tmp_path):
    """Without the record of the files that it was read from, and with another `tie_word_embeddings`."""
    save("1.1", tmp_path / "published")
    conversion.to_workdir(tmp_path / "published", tmp_path / "run")
    for path in (tmp_path / "run/interop").iterdir():
        path.unlink()
    written = conversion.to_published(tmp_path / "run", tmp_path / "back")
    config = json.loads((tmp_path / "back/config.json").read_text())
    assert written.certificate.against.startswith("transformers")
    assert max(written.certificate.differences.values()) <= 1e-4
    assert (config["feed_forward_proj"], config["tie_word_embeddings"]) == ("gated-gelu", False)
    assert (config["num_decoder_layers"], config["d_kv"], config["eos_token_id"]) == (2, 10, 1)
    (tmp_path / "back/config.json").write_text(json.dumps(
        config | {"tie_word_embeddings": True, "scale_decoder_outputs": True}))
    with pytest.raises(UserError, match="is not the token table"):
        read(tmp_path / "back")
