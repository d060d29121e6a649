"""Attention of sources and targets: of a run in hand, and in the report."""

import base64
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lmrep
from lmrep.analysis import report
from lmrep.analysis.report import attention, predictions, run_data
from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs
from tests import runs, small
from tests.analysis.test_report import Page
from tests.tasks import tiny

T5 = Path(__file__).parents[2] / "experiments/t5.py"
PAIRS = [{"text": "cat dog bird", "target": "bird dog cat"}, {"text": "fish", "target": "fish"},
         {"text": "horse mouse tree stone cat", "target": "cat stone tree mouse horse"}]
MAPS = ["encoder-decoder attention", "self-attention of the encoder", "self-attention of the decoder"]
NAMES = ["shared", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "spans"))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of a task with a template, by an LSTM, and of pretraining, with their reports."""
    home = tmp_path_factory.mktemp("attention")
    train = tiny.write(home / "train.jsonl", PAIRS * 4)
    config = tiny.config("text_to_text", train, train, "model=seq2seq_lstm,mesh=1x1x1", objective__max_target=8,
                         epochs=1.0, log__report=True, objective__metrics=("chrf",), model__width=16,
                         objective__template="reverse {text}", model__embedding=16)
    lmrep.train(config, home / "lstm", data_dir=home / "data")
    config = loading.load(T5, "size=tiny,data=files,mesh=1x1x1")
    config.steps, config.batch_size, config.length = 2, 8, 128
    config.model.update({"layers": 1, "width": 16, "heads": 2, "mlp": 32})
    config.tokenizer.vocab_size = 130
    config.data.update({"files": f"{small.corpus(home / 'texts')}/*.txt", "validation": 0.3, "test": 0.0})
    config.log.update({"tensorboard": False, "report": True})
    lmrep.train(config, home / "spans", data_dir=home / "data")
    return home


@pytest.fixture(scope="module")
def shared():
    """The shared run of an encoder-decoder."""
    return lmrep.load(runs.folder("text_to_text") / "run")


@pytest.fixture(params=NAMES)
def workdir(request, tmp_path):
    """A workdir with its report."""
    if request.param != "shared":
        return request.getfixturevalue("trained") / request.param
    report.write([runs.copy("text_to_text", tmp_path / "shared")], data_dir=tmp_path)
    return tmp_path / "shared"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[:2])
def test_attention_of_a_pair_is_that_of_the_network(name, request):
    run = request.getfixturevalue("shared") if name == "shared" else lmrep.load(
        request.getfixturevalue("trained") / name)
    special, encode = run.tokenizer.vocabulary.specials, jax.jit(partial(run.model.encode, attention=True))
    found = run.attention([("cat dog bird fish horse", "bird dog"), ("fish", "fish cat tree")])
    for pair, (source, target) in zip(found, (("cat dog bird fish horse", "bird dog"), ("fish", "fish cat tree")),
                                      strict=True):
        assert pair.source == [*source.split(), "[SEP]"] and pair.target == [*target.split(), "[SEP]"]
        assert pair.inputs == ["[PAD]", *target.split()]
        ids = [[*run.tokenizer.encode(text).ids, special["sep"]] for text in (source, target)]
        inputs = Inputs(jnp.array([[special["pad"], *ids[1][:-1]]]), attention_mask=AttentionMask(
            jnp.ones((1, len(ids[1])), jnp.int32), causal=True), source=Inputs(jnp.array([ids[0]])))
        encoded = encode(run.params["encoder"], inputs)
        for own, expected in ((pair.cross, encoded.cross_attention), (pair.encoder, encoded.source_attention),
                              (pair.decoder, encoded.attention)):
            assert (own is None) == (expected is None)
            if own is not None:
                np.testing.assert_allclose(own, expected[:, 0], atol=1e-6)
                np.testing.assert_allclose(own.sum(-1), 1, atol=1e-5)


def test_texts_are_encoded_as_sources(shared):
    """Sources begin without a special token."""
    [encoded] = shared.encode(["cat dog bird"], attention=True)
    [pair] = shared.attention([("cat dog bird", "fish")])
    assert encoded.tokens == pair.source == ["cat", "dog", "bird", "[SEP]"]
    np.testing.assert_allclose(encoded.attention, pair.encoder, atol=1e-6)


def test_what_has_no_such_attention_is_refused(shared):
    with pytest.raises(UserError, match=r"pairs of a source and a target; it was given one text, .cat."):
        shared.attention(["cat"])
    with pytest.raises(UserError, match="objective 'masked', whose network reads no source"):
        lmrep.load(runs.folder("masked") / "run").attention([("a", "b")])


@pytest.mark.slow
def test_an_lstm_has_no_self_attention(trained):
    with pytest.raises(UserError, match=r"no self-attention; leave attention out \(Run\.attention returns"):
        lmrep.load(trained / "lstm").encode(["cat"], attention=True)


def decoded(one):
    """[l, h, t, s]."""
    weights = np.frombuffer(base64.b64decode(one["weights"]), np.uint8) / 255
    return weights.reshape(one["layers"], one["heads"], len(one["queries"]), len(one["keys"]))


def test_the_report_has_both_types_of_attention(workdir):
    figures = Page(workdir / "report.html").figures["attention"]
    assert len(figures) >= 3
    for text in figures:
        assert [one["name"] for one in text["maps"]] == MAPS[: 1 if workdir.name == "lstm" else 3]
        cross, *own = text["maps"]
        assert (cross["rows"], cross["columns"]) == ("target", "source")
        for one in text["maps"]:
            np.testing.assert_allclose(decoded(one).sum(-1), 1, atol=len(one["keys"]) / 2 / 255)
            assert max(len(one["queries"]), len(one["keys"])) <= attention.MAX_TOKENS
        if own:
            assert own[0]["keys"] == own[0]["queries"] == cross["keys"]
            assert (np.triu(decoded(own[1]), 1) == 0).all() and own[1]["keys"][1:] == cross["queries"][:-1]
    if workdir.name == "lstm":
        words = PAIRS[0]["text"].split()
        assert figures[0]["maps"][0]["keys"][-4:] == [*words, "[SEP]"]  # after those of the template
        assert len(figures[0]["maps"][0]["keys"]) > 4
        assert figures[0]["maps"][0]["queries"] == [*PAIRS[0]["target"].split(), "[SEP]"]


@pytest.mark.slow
def test_sources_and_targets_of_pretraining_fit_together(trained):
    """Each sentinel of the target stands for what the source lacks."""
    data, run = run_data.read(trained / "spans", "spans", trained / "data"), lmrep.load(trained / "spans")
    sentinels = set(run.tokenizer.vocabulary.sentinels)
    for source, target in predictions._pairs(data, run.objective, 40):
        assert len(source) + len(target) <= 40 + 2 + 2 * len(sentinels & set(target.tolist()))
        assert sentinels & set(source.tolist()) == sentinels & set(target.tolist()) != set()


def test_maps_fit_in_max_bytes(shared):
    ids = [shared.tokenize(each["text"]).ids for each in PAIRS]
    for max_bytes in (0, 500, 2000):
        found = attention.of_pairs(shared, lambda length: [(each, each[::-1]) for each in ids], max_bytes)
        assert sum(len(one["weights"]) for each in found for one in each["maps"]) <= max_bytes
        assert bool(found) == (max_bytes > 0)
