"""What evaluation, encoding and prediction refuse, and the flag, file or word that each message names."""

import json
import sys

import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.inference import encode
from lmrep.interop import conversion
from lmrep.models import layer_choice
from tests import runs, small
from tests.inference.test_pairs import LINE, write
from tests.interop.test_published import GOLDEN


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`causal` and `masked`, runs; `converted`, a GPT-2; and files that cannot be evaluated."""
    home = tmp_path_factory.mktemp("refusals")
    for name in ("causal", "masked"):
        runs.copy(name, home / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)  # it takes seconds to import
        conversion.to_workdir(GOLDEN / "gpt2", home / "converted")
    (home / "empty.txt").write_text("\n \n")
    (home / "unseen.txt").write_text("\u0301\u0300\n")  # accents alone, which the tokenizer drops
    (home / "latin.txt").write_bytes("Un caf\u00e9.\n".encode("latin-1"))
    (home / "foreign.txt").write_text("\u732b " * 40)
    return home


@pytest.fixture(scope="module")
def run(home):
    return lmrep.load(home / "masked")


# Arguments of `lmrep evaluate`. Row: (the arguments, what the message names).
EVALUATIONS = [
    (["--stride=0"], ("stride is 0", "1 to 31")), (["--stride=32"], ("stride is 32", "1 to 31")),
    (["--stride=half"], ("--stride", "'half'")), (["--stride=8", "--length=8"], ("stride is 8", "1 to 7")),
    (["--stride=8", "--length=33"], ("length is 33", "32")), (["--stride=1", "--length=1"], ("length is 1", "2")),
    (["--length=1"], ("length is 1", "2")), (["--length=33"], ("length is 33", "32")),
    (["--stride=8", "--batch_size=4"], ("batch_size is 4", "stride")), (["--memory=4"], ("memory", "'transformer'")),
    (["--stride=8", "--examples=-1"], ("examples is -1",)),
    (["--stride=8", "--split=dev"], ("'dev'", "train, validation, test")),
    (["--stride=8", "--split=test", "--files=a.txt"], ("split", "files")),
    (["--stride=8", "--files={home}/nothing.txt"], ("nothing.txt",)),
    (["--stride=8", "--files={home}/empty.txt"], ("empty.txt", "1 files")),
    (["--stride=8", "--files={home}/unseen.txt"], ("no token", "1 documents")),
    (["--files={home}/latin.txt"], ("latin.txt", "UTF-8")),
    (["--files={home}/latin.txt", "--stride=8"], ("latin.txt, line 1", "0xe9")),
    (["--files={home}/foreign.txt"], ("vocabulary",)),
    (["--stride=8", "--workdir={home}/converted"], ("converted",)),
    (["--stride=8", "--workdir={home}/masked"], ("'masked'",)),
    (["--end_mark"], ("end_mark",)), (["--pll=word_l2r"], ("pll", "pairs")),
    (["--pairs=nowhere"], ("nowhere",)), (["--pairs={home}/masked", "--files=b"], ("pairs", "files")),
]


@pytest.mark.parametrize(("words", "named"), EVALUATIONS, ids=[" ".join(words) for words, _ in EVALUATIONS])
def test_evaluations_are_refused(home, words, named):
    before = small.contents(home)
    data = runs.folder("causal") / "data"
    result = small.command("evaluate", f"--workdir={home}/causal", f"--data_dir={data}",
                           *(word.format(home=home) for word in words))
    assert result.code == 2 and result.err.count("lmrep: error: ") == 1 and not result.out, result
    assert all(text in result.err for text in named) and "Traceback" not in result.err, result
    assert small.contents(home) == before


# Lines of files of minimal pairs. Row: (the lines, what the message names).
PAIRS = [
    ([LINE, {"sentence_good": " "}], ("a.jsonl, line 2", "sentence_good", "' '")),
    ([LINE, "", '{"sentence_good": 1'], ("line 3",)), (["[1]"], ("line 1", "[1]", "sentence_good")),
    ([json.dumps({name: LINE[name] for name in LINE if name != "sentence_bad"})], ("line 1", "'sentence_bad'")),
    ([{"sentence_bad": 7}], ("line 1", "sentence_bad", "7")),
    ([{"sentence_bad": "a \ud800"}], ("a.jsonl, line 1", "surrogate")),
    ([LINE, {"sentence_bad": "the cat " * 40}], ("line 2", "tokens", "32")),
    ([LINE, {"linguistics_term": "syntax"}], ("line 2", "linguistics_term", "'agreement'")),
    ([LINE, {"sentence_good": "\u200b\u200b"}], ("line 2",)), ([], ("pairs",)),
]


@pytest.mark.parametrize(("lines", "named"), PAIRS)
def test_pairs_are_refused(home, tmp_path, lines, named):
    with pytest.raises(UserError) as error:
        lmrep.evaluate(home / "masked", pairs=write(tmp_path / "pairs", *lines))
    assert all(text in str(error.value) for text in named), error.value


@pytest.mark.parametrize(("name", "options", "named"), [
    ("masked", {"pll": "words"}, "pll is 'words'"), ("masked", {"end_mark": True}, "end_mark"),
    ("causal", {"pll": "word_l2r"}, "pll"), ("causal", {"pll": "pll"}, "log probability of the sentence")])
def test_scores_that_a_run_does_not_give_are_refused(home, tmp_path, name, options, named):
    with pytest.raises(UserError, match=named):
        lmrep.evaluate(home / name, pairs=write(tmp_path / "pairs", LINE), **options)


LONG = "cat " * 60
# What is asked of a loaded run. Row: (name, the call, what the message names).
CALLS = {
    "one text": (lambda run: run.encode("A cat."), ("encode(['A cat.'])",)),
    "text that is a number": (lambda run: run.encode([1]), ("number 0", "1")),
    "a number": (lambda run: run.encode(1), ("encode", "1")),
    "text that is not Unicode": (lambda run: run.encode(["A \udcff cat."]), ("UTF-8",)),
    "long text": (lambda run: run.encode(["A cat.", LONG]), ("'cat ", "62 tokens", "32", "long=windows")),
    "attention of windows": (lambda run: run.encode([LONG], attention=True, long="windows"), (
        "attention", "32 tokens")),
    "missing layer": (lambda run: run.encode(["A cat."], layers="4"), ("layer 4",)),
    "unknown pooling": (lambda run: run.encode(["A cat."])[0].pool("sum"), ("'sum'", "mean, cls, max")),
    "streams without a state": (lambda run: run.encode(["a"], streams=2), ("state",)),
    "negative streams": (lambda run: run.encode(["a"], streams=-1), ("streams is -1",)),
    "one input": (lambda run: run.inputs("A cat."), ("inputs(['A cat.'])",)),
    "pair with a number": (lambda run: run.inputs([("A cat.", 1)]), ("number 0", "('A cat.', 1)")),
    "long input": (lambda run: run.inputs([LONG]), ("62 tokens", "32")),
    "input beyond a length": (lambda run: run.inputs(["cat " * 20], length=20), ("22 tokens", "length is 20")),
    "None": (lambda run: run.predict(["A [MASK].", None]), ("predict", "number 1", "None")),
    "one text to fill": (lambda run: run.fill_masks("A [MASK]."), ("fill_masks(['A [MASK].'])",)),
    "k of 0": (lambda run: run.fill_masks(["A [MASK]."], k=0), ("k is 0",)),
    "k that is a text": (lambda run: run.fill_masks(["A [MASK]."], k="3"), ("k is '3'",)),
    "unknown option": (lambda run: run.predict(["A [MASK]."], top=3), ("'top'", "k")),
    "no mask": (lambda run: run.fill_masks(["A [MASK].", "A cat."], names=["line 1", "line 2"]), ("line 2", "[MASK]")),
    "long text to fill": (lambda run: run.fill_masks([f"{LONG}[MASK]"], names=["line 1"]), ("line 1", "63 tokens")),
    **{f"layers {layers!r}": (lambda run, layers=layers: layer_choice.parse_layers(layers, 12), named)
       for layers, named in (("13", ("13", "0 ", "12", "-13")), ("-14", ("-14",)), ("top", ("'top'",)), ("", ("''",)),
                             ("1,,2", ("'1,,2'",)), ("1.5", ("'1.5'",)), ("mean:1,2", ("'mean:1,2'",)),
                             ("sum:", ("'sum:'",)), ((), ("layers",)))},
    "windows without room": (lambda run: encode.windows(0, np.zeros(13, np.int32), (1, 1), 3, "windows"), ("3",)),
    "unknown treatment of long texts": (lambda run: encode.windows(0, np.zeros(3, np.int32), (1, 1), 12, "cut"), (
        "long is 'cut'", "refuse, windows")),
    "unknown vectors of words": (lambda run: encode.by_word(np.zeros((1, 1, 4)), [0], "max"), (
        "'max'", "mean, first, last")),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_refused(run, name):
    call, named = CALLS[name]
    with pytest.raises(UserError) as error:
        call(run)
    assert all(text in str(error.value) for text in named), error.value
