"""Conversion of T5 in both directions against the reference implementation, where that is installed."""

import json
import shutil

import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.experiment.fine_tuning import compose_task
from lmrep.interop import conversion
from lmrep.interop.huggingface.read import read
from tests import started
from tests.data import test_sentencepiece
from tests.tasks import tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 207, "d_model": 36, "d_kv": 10, "d_ff": 70, "num_layers": 2, "num_heads": 3,
         "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
CASES = {"1.0": {}, "deep": {"num_decoder_layers": 3},
         "UL2": {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False},
         "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1}}


def save(name, directory):
    """A random model that the reference saved, with a tokenizer of 100 pieces and 100 sentinels."""
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES, **CASES[name]))
    generator = torch.Generator().manual_seed(0)
    if name in ("1.1", "UL2"):  # the library makes it with one table, and reads it with two
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
    assert done.checkpoint.config.tied == ("embeddings" if name in ("1.1", "UL2") else "all")
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


@pytest.mark.parametrize("tied", [True, False])
def test_mt5_is_read_with_its_own_defaults_and_written_as_it_was(tied, tmp_path):
    model = transformers.MT5ForConditionalGeneration(transformers.MT5Config(**SIZES))
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(207, 36))
    model.save_pretrained(tmp_path / "published")
    config = json.loads((tmp_path / "published/config.json").read_text())
    (tmp_path / "published/config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    sentinels = ["\u2581<extra_id_1>", "\u2581<extra_id_0>"]  # mT5's are pieces of its model
    (tmp_path / "published/spiece.model").write_bytes(test_sentencepiece.model(
        vocab_size=100, user_defined_symbols=sentinels, **test_sentencepiece.T5))
    (tmp_path / "published/tokenizer_config.json").write_text('{"extra_ids": 0}')
    done = conversion.to_workdir(tmp_path / "published", tmp_path / "run")
    run = lmrep.load(tmp_path / "run")
    ids = [run.tokenizer.tokens.index(name) for name in reversed(sentinels)]
    assert run.tokenizer.vocabulary.sentinels == tuple(ids)
    assert [i for i in run.tokenizer.encode("the <extra_id_0> cat", specials=True).ids if i in ids] == ids[:1]
    assert done.checkpoint.config.gated and not done.checkpoint.config.scaled_output
    back = conversion.to_published(tmp_path / "run", tmp_path / "back")
    assert json.loads((tmp_path / "back/config.json").read_text()) == json.loads(
        (tmp_path / "published/config.json").read_text())
    assert (tmp_path / "back/model.safetensors").read_bytes() == (
        tmp_path / "published/model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run/interop")
    written = conversion.to_published(tmp_path / "run", tmp_path / "written")
    assert written.checkpoint.class_name == "T5ForConditionalGeneration"
    for each in (done, back, written):
        assert each.certificate.against.startswith("transformers") and max(each.certificate.differences.values()) < 1e-4


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
    assert (config["num_decoder_layers"], config["d_kv"], config["eos_token_id"]) == (1, 10, 1)
    (tmp_path / "back/config.json").write_text(json.dumps(
        config | {"tie_word_embeddings": True, "scale_decoder_outputs": True}))
    with pytest.raises(UserError, match="is not the token table"):
        read(tmp_path / "back")


def vectors(directory, ids):
    """Of the reference's encoder, [t, d]."""
    model = transformers.T5EncoderModel.from_pretrained(directory).eval()
    with torch.no_grad():
        return model(torch.tensor(np.asarray(ids)[None])).last_hidden_state[0].numpy()


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * max(1, np.abs(expected).max()))


def fine_tune(home, task, argument, **fields):
    """A run whose parameters are those that it starts from, up to one step at a rate of 1e-30."""
    base = "encoder_decoder" if task == "text_to_text" else "bert_base"
    config = compose_task(f"mesh=1x1x1,{argument}", task, base=base)
    if config.init:
        config = started.from_checkpoint(config, config.init)
    else:
        config = started.from_features(config, config.frozen["features"])
    config.update({"steps": 1, "batch_size": 4, "length": 32})
    config.data.update({"train": str(home / "train.jsonl"), "validation": ""})
    config.optimizer.update({"learning_rate": 1e-30, "weight_decay": 0.0})
    config.log.update({"tensorboard": False, "report": False})
    config.checkpoint.best = ""
    config.update_from_flattened_dict(fields)
    lmrep.train(config, home / task / argument[:4])
    return lmrep.load(home / task / argument[:4])


@pytest.fixture
def examples(tmp_path):
    """A folder with examples to train on."""
    tiny.write(tmp_path / "train.jsonl", [{"text": "the cat", "label": str(i % 2), "target": "the"} for i in range(8)])
    return tmp_path


@pytest.mark.parametrize("name", ["1.0", "1.1"])
def test_generators_start_from_a_published_directory(name, examples):
    """The vectors of its encoder are those of the reference's."""
    save(name, directory := examples / "published")
    generator = fine_tune(examples, "text_to_text", f"init={directory}", **{"objective.max_target": 8})
    assert "decoder" in generator.params["encoder"] and ("objective" in generator.params) == (name == "1.1")
    inputs = generator.inputs(["the cat"])
    ids = np.asarray(inputs.tokens[0, np.asarray(inputs.attention_mask.segment_ids[0]) > 0])
    close(generator.apply(generator.params, inputs).hidden[0, : len(ids)], vectors(directory, ids))
    written = conversion.to_published(generator.directory, examples / "written")
    assert written.checkpoint.class_name == "T5ForConditionalGeneration" and not written.remarks
    assert written.certificate.differences.keys() == {"hidden", "span_corruption"}


def test_classifiers_start_from_a_published_directory(examples):
    """The vectors of its encoder, trained or frozen, are those of the reference's."""
    save("1.1", directory := examples / "published")
    classifier = fine_tune(examples, "classification", f"init={directory}")
    (text,) = classifier.encode(["the cat"])
    assert text.ids[-1] == classifier.tokenizer.vocabulary.specials["eos"]
    expected = vectors(directory, text.ids)
    close(text.hidden[0], expected)
    assert classifier.params["encoder"].keys() == {"embedding", "encoder"}
    assert classifier.experiment.objective["pooling"] == "mean"
    frozen = fine_tune(examples, "classification", f"features={directory}", **{"objective.features.layers": "last"})
    own = frozen.params["frozen"]["features"]["encoder"]
    assert own.keys() == {"embedding", "encoder"} and frozen.experiment.objective["pooling"] == "mean"
    close(classifier.model.encode(own, classifier.inputs(["the cat"])).hidden[0, : len(text.ids)], expected)
    conversion.to_workdir(directory, examples / "run")
    (again,) = lmrep.load(examples / "run").encode(["the cat"])
    np.testing.assert_array_equal(again.ids, text.ids)
    close(again.hidden[0], expected)


def test_files_of_the_encoder_alone_have_its_vectors_and_no_decoder(tmp_path):
    save("1.0", tmp_path / "published")
    transformers.T5EncoderModel.from_pretrained(tmp_path / "published").save_pretrained(tmp_path / "encoder")
    (tmp_path / "encoder/spiece.model").write_bytes((tmp_path / "published/spiece.model").read_bytes())
    done = conversion.to_workdir(tmp_path / "encoder", tmp_path / "run")
    assert done.certificate.differences.keys() == {"hidden"} and done.certificate.differences["hidden"] <= 1e-4
    assert any("it has no decoder" in remark for remark in done.remarks)
    run = lmrep.load(tmp_path / "run")
    (text,) = run.encode(["the cat"])
    close(text.hidden[0], vectors(tmp_path / "published", text.ids))
    with pytest.raises(UserError, match="has no decoder/"):
        run.predict(["the <extra_id_0>"])
    back = conversion.to_published(tmp_path / "run", tmp_path / "back")
    assert back.checkpoint.class_name == "T5EncoderModel"
    assert (tmp_path / "back/model.safetensors").read_bytes() == (tmp_path / "encoder/model.safetensors").read_bytes()
    tiny.write(tmp_path / "train.jsonl", [{"text": "the cat", "label": str(i % 2)} for i in range(8)])
    classifier = fine_tune(tmp_path, "classification", f"init={tmp_path / 'encoder'}")
    close(classifier.encode(["the cat"])[0].hidden[0], text.hidden[0])


@pytest.mark.parametrize("cls", ["T5ForTokenClassification", "T5Model"])
def test_other_classes_of_both_directions(cls, tmp_path):
    """Token classification on the encoder; both stacks without an output layer, which is the token table."""
    labels = {"id2label": {0: "O", 1: "B-x", 2: "I-x"}, "label2id": {"O": 0, "B-x": 1, "I-x": 2}}
    config = transformers.T5Config(**SIZES, classifier_dropout=0.2, **(labels if "Token" in cls else {}))
    model = getattr(transformers, cls)(config)
    model.save_pretrained(tmp_path / "published", max_shard_size="50KB")
    (tmp_path / "published/spiece.model").write_bytes(test_sentencepiece.model(
        vocab_size=100, **test_sentencepiece.T5))
    done = conversion.to_workdir(tmp_path / "published", tmp_path / "run")
    assert done.certificate.differences.keys() == {"hidden", "tagging" if "Token" in cls else "span_corruption"}
    back = conversion.to_published(tmp_path / "run", tmp_path / "back")
    shutil.rmtree(tmp_path / "run/interop")
    written = conversion.to_published(tmp_path / "run", tmp_path / "written")
    for each in (done, back, written):
        assert each.certificate.against.startswith("transformers") and not each.checkpoint.extra_tensors
        assert max(each.certificate.differences.values()) <= 1e-4
    for directory in ("back", *(["written"] if "Token" in cls else [])):
        again, info = type(model).from_pretrained(tmp_path / directory, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        for key, value in again.state_dict().items():
            assert torch.equal(value, model.state_dict()[key]), key
    if "Token" in cls:
        run = lmrep.load(tmp_path / "run")
        assert run.experiment.model["stacks"] == "encoder" and run.experiment.objective["dropout"] == 0.2
        assert len(run.predict(["the cat"])[0]["tags"]) == 2
