"""Attention of sources and targets: of a run in hand, and in the report."""

import base64
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lmrep
from lmrep.analysis.report import attention, predictions, run_data
from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs
from tests import small
from tests.analysis.test_report import Page
from tests.tasks import tiny

T5 = Path(__file__).parents[2] / "experiments/t5.py"
PAIRS = [{"text": "cat dog bird", "target": "bird dog cat"}, {"text": "fish", "target": "fish"},
         {"text": "horse mouse tree stone cat", "target": "cat stone tree mouse horse"}]
NETWORKS = {"transformer": ("encoder_decoder", {"model__layers": 2, "model__head_width": 0, "model__max_length": 0}),
            "lstm": ("seq2seq_lstm", {"model__width": 16, "model__embedding": 16})}
MAPS = {"transformer": ["encoder-decoder attention", "self-attention of the encoder", "self-attention of the decoder"],
        "lstm": ["encoder-decoder attention"]}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Runs of a task, by two networks, and of pretraining."""
    home = tmp_path_factory.mktemp("attention")
    train = tiny.write(home / "train.jsonl", PAIRS * 4)
    for name, (network, fields) in NETWORKS.items():
        config = tiny.config("text_to_text", train, train, f"model={network},mesh=1x1x1", objective__max_target=8,
                             epochs=1.0, log__report=True, objective__metrics=("chrf",),
                             objective__template="reverse {text}", **fields)
        lmrep.train(config, home / name, data_dir=home / "data")
    texts = small.corpus(home / "texts")
    config = loading.load(T5, "size=tiny,data=files,mesh=1x1x1")
    config.steps, config.batch_size, config.length = 2, 8, 128
    config.model.update({"layers": 1, "width": 16, "heads": 2, "mlp": 32})
    config.tokenizer.vocab_size = 130
    config.data.update({"files": f"{texts}/*.txt", "validation": 0.3, "test": 0.0})
    config.log.update({"tensorboard": False, "report": True})
    lmrep.train(config, home / "spans", data_dir=home / "data")
    return home


@pytest.fixture(scope="module")
def runs(home):
    return {name: lmrep.load(home / name) for name in (*NETWORKS, "spans")}


@pytest.mark.parametrize("name", NETWORKS)
def test_attention_of_a_pair_is_that_of_the_network(runs, name):
    run = runs[name]
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


def test_texts_are_encoded_as_sources(runs):
    """Sources begin without a special token."""
    [encoded] = runs["transformer"].encode(["cat dog bird"], attention=True)
    [pair] = runs["transformer"].attention([("cat dog bird", "fish")])
    assert encoded.tokens == pair.source == ["cat", "dog", "bird", "[SEP]"]
    np.testing.assert_allclose(encoded.attention, pair.encoder, atol=1e-6)


def test_what_has_no_such_attention_is_refused(runs, tmp_path_factory):
    with pytest.raises(UserError, match=r"pairs of a source and a target; it was given one text, .cat."):
        runs["transformer"].attention(["cat"])
    with pytest.raises(UserError, match=r"no self-attention; leave attention out \(Run\.attention returns"):
        runs["lstm"].encode(["cat"], attention=True)
    home = tmp_path_factory.mktemp("masked")
    lmrep.train(small.config(small.corpus(home / "texts"), "causal"), home / "run", data_dir=home / "data", steps=1)
    with pytest.raises(UserError, match="objective 'causal', whose network reads no source"):
        lmrep.load(home / "run").attention([("a", "b")])


def decoded(one):
    """[l, h, t, s]."""
    weights = np.frombuffer(base64.b64decode(one["weights"]), np.uint8) / 255
    return weights.reshape(one["layers"], one["heads"], len(one["queries"]), len(one["keys"]))


@pytest.mark.parametrize("name", [*NETWORKS, "spans"])
def test_the_report_has_both_types_of_attention(home, runs, name):
    figures = Page(home / name / "report.html").figures["attention"]
    assert len(figures) >= 3
    for text in figures:
        assert [one["name"] for one in text["maps"]] == MAPS.get(name, MAPS["transformer"])
        cross, *own = text["maps"]
        assert (cross["rows"], cross["columns"]) == ("target", "source")
        for one in text["maps"]:
            np.testing.assert_allclose(decoded(one).sum(-1), 1, atol=len(one["keys"]) / 2 / 255)
            assert max(len(one["queries"]), len(one["keys"])) <= attention.MAX_TOKENS
        if own:
            assert own[0]["keys"] == own[0]["queries"] == cross["keys"]
            assert (np.triu(decoded(own[1]), 1) == 0).all() and own[1]["keys"][1:] == cross["queries"][:-1]
    if name in NETWORKS:
        words = PAIRS[0]["text"].split()
        assert figures[0]["maps"][0]["keys"][-4:] == [*words, "[SEP]"]  # after those of the template
        assert len(figures[0]["maps"][0]["keys"]) > 4
        assert figures[0]["maps"][0]["queries"] == [*PAIRS[0]["target"].split(), "[SEP]"]


def test_sources_and_targets_of_pretraining_fit_together(home, runs):
    """Each sentinel of the target stands for what the source lacks."""
    data = run_data.read(home / "spans", "spans", home / "data")
    sentinels = set(runs["spans"].tokenizer.vocabulary.sentinels)
    for source, target in predictions._pairs(data, runs["spans"].objective, 40):
        assert len(source) + len(target) <= 40 + 2 + 2 * len(sentinels & set(target.tolist()))
        assert sentinels & set(source.tolist()) == sentinels & set(target.tolist()) != set()


@pytest.mark.parametrize("max_bytes", [0, 1000, 5000])
def test_maps_fit_in_max_bytes(runs, max_bytes):
    ids = [runs["transformer"].tokenize(each["text"]).ids for each in PAIRS]
    found = attention.of_pairs(runs["transformer"], lambda length: [(each, each[::-1]) for each in ids], max_bytes)
    assert sum(len(one.weights) for each in found for one in each.maps) <= max_bytes
    assert bool(found) == (max_bytes > 0)
