"""`lmrep convert` of language models of fastai."""

import itertools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import lmrep
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.interop.checkpoint_config import load_config
from tests import runs, small

V1 = ["xxunk", "xxpad", "xxbos", "xxeos", "xxfld", "xxmaj", "xxup", "xxrep", "xxwrep", "the", "cat", "sees", "dog", "."]
PAPER = ["_unk_", "_pad_", "the", "cat", "sees", ".", "xbos", "dog"]
WIDTH, EMBEDDING, LAYERS = 6, 4, 3
VERSIONS = {"1.0": V1, "0.7": PAPER}


def tensors_of(version):
    """Random tensors by the names of fastai, which keeps the undropped hidden-to-hidden weights as *_raw."""
    vocab, draw = len(VERSIONS[version]), np.random.default_rng(0)

    def random(*shape):
        return draw.normal(0, 0.5, shape).astype(np.float32)

    table, widths = random(vocab, EMBEDDING), [EMBEDDING, *[WIDTH] * (LAYERS - 1), EMBEDDING]
    copy = {"1.0": "encoder_dp.emb", "0.7": "encoder_with_dropout.embed"}[version]
    found = dict.fromkeys(("0.encoder.weight", f"0.{copy}.weight", "1.decoder.weight"), table)
    found = {name: value.copy() for name, value in found.items()}
    if version == "1.0":
        found["1.decoder.bias"] = random(vocab)
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        layer, module = f"0.rnns.{i}", f"0.rnns.{i}.module"
        found |= {f"{module}.weight_ih_l0": random(4 * b, a), f"{module}.bias_ih_l0": random(4 * b),
                  f"{module}.bias_hh_l0": random(4 * b),
                  f"{layer if version == '1.0' else module}.weight_hh_l0_raw": random(4 * b, b)}
        if version == "1.0":
            found[f"{module}.weight_hh_l0"] = random(4 * b, b)  # after dropout
    return found


def published(directory, version, **config):
    directory.mkdir()
    save_file(tensors_of(version), directory / "lstm_wt103.safetensors")
    (directory / "itos.json").write_text(json.dumps(VERSIONS[version]))
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("version", VERSIONS)
def test_the_files_come_back_as_they_were(version, tmp_path):
    result = small.command("convert", published(tmp_path / "wt103", version), tmp_path / "run")
    assert result.code == 0 and "fastai's AWD-LSTM, " in result.out, result
    run = lmrep.load(tmp_path / "run")
    assert run.tokenizer.tokens == VERSIONS[version] and run.step == 0
    assert run.tokenizer.name == {"1.0": "fastai_v1", "0.7": "fastai_paper"}[version]
    result = small.command("convert", tmp_path / "run", tmp_path / "again", "--to=fastai")
    assert result.code == 0, result
    old, new = tensors_of(version), load_file(tmp_path / "again/model.safetensors")
    assert old.keys() == new.keys()
    for name, value in old.items():
        assert value.dtype == new[name].dtype
        np.testing.assert_array_equal(value, new[name], err_msg=name)
    assert json.loads((tmp_path / "again/itos.json").read_text()) == VERSIONS[version]


def test_a_trained_run_becomes_files_of_fastai(tmp_path):
    """A second model that starts from the first one, with words of its own."""
    published(tmp_path / "wt103", "1.0", direction="backward")
    lmrep.convert(tmp_path / "wt103", tmp_path / "general")
    texts = small.corpus(tmp_path / "texts")
    config = load_config("experiments/ulmfit.py", "size=tiny,data=files,mesh=1x1x1,stage=target,tokenizer=fastai_v1,"
                         f"direction=backward,init={tmp_path / 'general'}", [
        ("data.files", f"{texts}/*.txt"), ("data.documents", "file"), ("steps", "2"), ("length", "8"),
        ("batch_size", "8"), ("tokenizer.vocab_size", "64"), ("log.report", "False"), ("log.tensorboard", "False")])
    assert config.objective.bias and config.model.width == WIDTH
    lmrep.train(config, tmp_path / "run", data_dir=tmp_path / "data")
    lmrep.convert(tmp_path / "run", tmp_path / "out", to="fastai")
    run, tensors = lmrep.load(tmp_path / "run"), load_file(tmp_path / "out/model.safetensors")
    params = flatten(run.params)
    np.testing.assert_array_equal(tensors["1.decoder.weight"], params["encoder/embedding/token"])
    np.testing.assert_array_equal(tensors["1.decoder.bias"], params["objective/causal/bias"])
    np.testing.assert_array_equal(tensors["0.rnns.1.weight_hh_l0_raw"], params["encoder/layers/1/recurrent/kernel"].T)
    assert tensors.keys() == tensors_of("1.0").keys()  # fastai refuses a file that lacks one
    np.testing.assert_array_equal(tensors["0.rnns.1.module.weight_hh_l0"], tensors["0.rnns.1.weight_hh_l0_raw"])
    lmrep.convert(tmp_path / "out", tmp_path / "back")
    back = lmrep.load(tmp_path / "back")
    assert back.tokenizer.backward and back.tokenizer.tokens == run.tokenizer.tokens
    for path, value in flatten(back.params).items():
        np.testing.assert_array_equal(value, params[path], err_msg=path)


def without(name):
    return lambda tensors: tensors.pop(name)


REFUSALS = {
    "no table": (without("0.encoder.weight"), "has no 0.encoder.weight"),
    "no layers": (without("0.rnns.0.module.weight_ih_l0"), "has no 0.rnns.0.module.weight_ih_l0"),
    "no bias of a layer": (without("0.rnns.2.module.bias_hh_l0"), "lacks 0.rnns.2.module.bias_hh_l0"),
    "an output layer of its own": (lambda tensors: tensors["1.decoder.weight"].fill(1), "must be tied"),
    "a classifier": (lambda tensors: tensors.update({"1.layers.0.weight": np.ones(4, np.float32)}), "1.layers.0"),
    "another shape": (lambda tensors: tensors.update({"1.decoder.bias": np.ones(4, np.float32)}), "1.decoder.bias is"),
    "a value that is not finite": (lambda tensors: tensors["1.decoder.bias"].fill(np.nan), "not finite"),
    "integers": (lambda tensors: tensors.update({"1.decoder.bias": np.ones(14, np.int32)}), "floating-point"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_tensors_of_other_networks_are_refused(change, message, tmp_path):
    tensors = tensors_of("1.0")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "itos.json").write_text(json.dumps(V1))
    with pytest.raises(UserError) as refused:
        lmrep.convert(tmp_path, tmp_path / "run")
    assert message in str(refused.value) and not (tmp_path / "run").exists()


def test_a_longer_list_of_tokens_is_refused(tmp_path):
    published(tmp_path / "wt103", "1.0")
    (tmp_path / "wt103/itos.json").write_text(json.dumps([*V1, "more"]))
    with pytest.raises(UserError, match=r"15 tokens, and the table of .* 14 rows"):
        lmrep.convert(tmp_path / "wt103", tmp_path / "run")


@pytest.mark.parametrize("name", ["lstm_wt103.pth", "fwd_wt103.h5"])
def test_a_pickle_is_refused_with_the_way_to_convert_it(name, tmp_path):
    (tmp_path / "wt103").mkdir()
    (tmp_path / "wt103" / name).write_bytes(b"PK\3\4")
    for source in (tmp_path / "wt103", tmp_path / "wt103" / name):
        for act in (lambda source=source: lmrep.convert(source, tmp_path / "run"),
                    lambda source=source: load_config("experiments/ulmfit.py", f"stage=target,init={source}")):
            with pytest.raises(UserError, match=r"(?s)is a pickle.*torch\.load.*save_file"):
                act()


def test_init_names_the_conversion(tmp_path):
    published(tmp_path / "wt103", "0.7")
    with pytest.raises(UserError, match=r"language model of fastai.*lmrep convert"):
        load_config("experiments/ulmfit.py", f"stage=target,init={tmp_path / 'wt103'}")


def test_what_fastai_cannot_hold_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"model\.name=awd_lstm"):
        lmrep.convert(runs.folder("recurrent") / "run", tmp_path / "out", to="fastai")
