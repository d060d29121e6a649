"""`lmrep predict` of ELECTRA: which words of a text were replaced, and masks filled by the generator."""

import json

import jax
import numpy as np
import pytest
from scipy.special import expit

import lmrep
from lmrep.cli.train import samples
from lmrep.core.errors import UserError
from lmrep.core.params import is_spec
from lmrep.data import tokenizers
from lmrep.experiment import checks
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.capabilities import ReplacedToken, mark_replaced
from tests import given, small

WRONG = ("cat", "s", "##s", "[UNK]")  # tokens that the constructed network takes for replaced
LIKELY = expit(2.0)

HOSTILE = [
    "The cat's fish \u2014 CAT, cats.", "", "   ", "caf\u00e9 cat cafe\u0301cat", "\u732b cat\u732bfish",
    "a\0cat\ufeff\tcat\r\ncat", "\U0001f431\u200dcat \U0001f1e9\U0001f1ea", "[CLS] cat [SEP] cat",
    "\u05d7\u05ea\u05d5\u05dc cat \u202ecat", "\ufb01sh \u0130cat \u00dfcat", "a" * 300 + " cat", "cat " * 40]


def constructed_params(specs, tokenizer):
    """Parameters with a logit of 2 or -2 for each token, which depends on the token alone.

    The token table's rows are u or -u, of +-1 in turn; no layer adds anything, and norms leave them as they are. The
    transform is the identity, so that gelu(x) - gelu(-x) = x gives a readout of u / 16 the logit 32 / 16.
    """
    u = np.where(np.arange(32) % 2, 1.0, -1.0).astype(np.float32)
    params = jax.tree.map(lambda s: np.zeros(s.shape, np.float32), specs, is_leaf=is_spec)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: np.ones_like(x) if path[-1].key == "scale" else x, params)
    wrong = np.array([token in WRONG for token in tokenizer.tokens])
    params["encoder"]["embedding"]["token"] = np.where(wrong[:, None], u, -u).astype(np.float32)
    own = params["objective"]["discriminator"]
    own["transform"]["kernel"], own["out"]["kernel"] = np.eye(32, dtype=np.float32), u[:, None] / 8
    return params


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("replaced")
    given.workdir(home, "replaced_token", params=constructed_params, activation="gelu", layers=1)
    return home


@pytest.fixture(scope="module")
def run(home):
    return lmrep.load(home / "run")


def predict(home, *words, stdin=""):
    return small.command("predict", f"--workdir={home}/run", *words, stdin=stdin)


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_each_token_has_a_span_and_a_probability(home, run):
    result = predict(home, "--jsonl", stdin=lines(*({"id": i, "text": text} for i, text in enumerate(HOSTILE))))
    assert result.code == 0, result
    found = [json.loads(line) for line in result.out.splitlines()]
    assert [(record["id"], record["text"]) for record in found] == list(enumerate(HOSTILE))
    for record in found:
        text, replaced = record["text"], record["replaced"]
        tokens = run.tokenizer.encode(text, specials=True).tokens
        assert len(replaced) == len(tokens)
        for token, name in zip(replaced, tokens, strict=True):
            assert token["word"] == text[token["start"] : token["end"]] != ""
            if name.strip("#").isascii() and not name.startswith("["):
                assert name.removeprefix("##") in token["word"].lower() or len(token["word"]) == 1  # or a ligature
            assert token["probability"] == pytest.approx(LIKELY if name in WRONG else 1 - LIKELY, abs=1e-5)
        starts = [token["start"] for token in replaced]
        assert starts == sorted(starts)
    assert not found[1]["replaced"] and not found[2]["replaced"] and len(found[-1]["replaced"]) == 40
    assert found[-2]["replaced"][0] == {"word": "a" * 300, "start": 0, "end": 300, "probability": pytest.approx(LIKELY)}


def test_json_fields_other_than_text_are_kept(home):
    record = {"text": "A cat \u732b.", "id": "\ud800"}
    result = predict(home, "--jsonl", stdin=lines(record))
    assert result.out.encode() and record.items() <= json.loads(result.out).items()


def test_likely_replaced_tokens_are_marked_and_all_probabilities_printed(home):
    result = predict(home, "The old cat sees the fish.", "The cats fish")
    first, second = result.out.split("The *cats* fish\n")
    assert result.code == 0 and first == (
        "The old *cat* sees the fish.\n"
        "   The   old   cat  sees   the  fish     .\n"
        "   12%   12%   88%   12%   12%   12%   12%\n")
    assert second.splitlines()[1].split() == ["12%", *["88%"] * (len(second.splitlines()[0].split()) - 2), "12%"]
    result = predict(home, "cat fish " * 20)
    table = result.out.splitlines()[1:]
    assert len(table) > 2 and len(table) % 2 == 0 and max(map(len, table)) <= 110
    assert " ".join(table[::2]).split() == ["cat", "fish"] * 20
    assert " ".join(table[1::2]).split() == ["88%", "12%"] * 20


def test_marks_enclose_full_words():
    text = "It was unbelievably (dull) \U0001f431."
    replaced = [ReplacedToken("", start, end, p) for start, end, p in (
        (0, 2, 0.5), (7, 9, 0.9), (9, 14, 0.6), (14, 19, 0.7), (20, 21, 0.9), (21, 25, 0.2), (26, 26, 0.9),
        (27, 28, 0.9), (27, 28, 0.8), (28, 29, 0.51))]
    assert mark_replaced(text, replaced) == "It was *unbelievably* *(*dull) *\U0001f431.*"
    assert mark_replaced(text, []) == text


def test_generator_fills_masks_and_outputs_keep_their_order(home, run):
    texts = ["The cat.", "The [MASK] cat [MASK].", "A [MASK].", "The fish.", "[MASK]"]
    result = predict(home, "--jsonl", "--k=3", stdin=lines(*({"text": text} for text in texts)))
    found = [json.loads(line) for line in result.out.splitlines()]
    assert [record["text"] for record in found] == texts
    assert ["masks" in record for record in found] == ["[MASK]" in text for text in texts]
    assert [len(record["masks"]) for record in found if "masks" in record] == [2, 1, 1]
    words = [[candidate["word"] for candidate in record["masks"][0]] for record in found if "masks" in record]
    expected = run.fill_masks([text for text in texts if "[" in text], 3)
    assert words == [[word for word, _ in predictions[0]] for predictions in expected]
    result = predict(home, "The [MASK].", "The cat.")
    assert result.out.startswith("The [MASK].\n  [MASK]\n    ") and "\nThe *cat*.\n" in result.out


def test_training_ends_with_samples(run):
    shown = samples(run, ["The old cat.", "The [MASK] fish."])
    assert "It finds replaced tokens:\n  The old *cat*.\n" in shown
    assert "It fills in masked words:\n  The [MASK] fish.\n    [MASK]\n      " in shown
    assert "fills" not in samples(run, ["The old cat."]) and "replaced" not in samples(run, ["A [MASK]."])


def test_sample_texts_need_no_mask_but_must_fit(home):
    capabilities, tokenizer = OBJECTIVES["replaced_token"].capabilities, tokenizers.load(home / "run/tokenizer")
    checks.check_samples(["The old cat.", "The [MASK] cat."], capabilities, tokenizer, 32)
    with pytest.raises(UserError, match="has 42 tokens; the model takes 32 at most"):
        checks.check_samples(["cat " * 40], capabilities, tokenizer, 32)


@pytest.mark.parametrize(("record", "message"), [
    ({"text": "cat " * 60}, "line 2 of standard input: 'cat cat"),
    ({"text": "\ud800 cat"}, "line 2 of standard input is not UTF-8 text"),
    ({"text": ["cat"]}, 'expected {"text": "..."}'),
    ("[" * 100_000, "line 2 of standard input is not JSON: it nests deeper than 100 levels"),
])
def test_invalid_line_is_reported_by_number(home, record, message):
    second = record if isinstance(record, str) else lines(record)
    result = predict(home, "--jsonl", stdin=lines({"text": "A cat."}) + second)
    assert result.code == 2 and message in result.err and result.err.count("\n") == 1, result


@pytest.fixture(scope="module", params=[
    "masked", "replace_mlm", pytest.param("all_tokens_mlm", marks=pytest.mark.slow)])
def other(request, tmp_path_factory):
    """A run of random parameters whose encoder finds words."""
    home = tmp_path_factory.mktemp(request.param)
    variant = request.param.removeprefix("masked")
    given.workdir(home, "replaced_token" if variant else "masked", variant, layers=1)
    return home


def test_run_fills_masks_and_detects_replaced_tokens(other):
    result = predict(other, "--jsonl", stdin=lines({"text": "The [MASK] cat."}))
    probabilities = [word["probability"] for word in json.loads(result.out)["masks"][0]]
    assert len(probabilities) == 5 and 0 < sum(probabilities) <= 1
    assert probabilities == sorted(probabilities, reverse=True)
    result = predict(other, "--jsonl", stdin=lines({"text": "The cat."}))
    if "detect_replaced" in {capability.name for capability in lmrep.load(other / "run").capabilities}:
        replaced = json.loads(result.out)["replaced"]
        assert [token["word"] for token in replaced] == ["The", "cat", "."]
        assert all(0 < token["probability"] < 1 for token in replaced)
        return
    assert result.code == 2 and "there is no [MASK] in 'The cat.'" in result.err and result.err.count("\n") == 1
    with pytest.raises(UserError, match="objective 'masked', which has no capability 'detect_replaced'"):
        lmrep.load(other / "run").detect_replaced(["The cat."])
