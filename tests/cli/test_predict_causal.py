"""`lmrep predict` of a causal language model: continuations."""

import json
import shutil
import sys

import pytest

import lmrep
from lmrep.cli import predict as predict_command
from lmrep.core.errors import UserError
from lmrep.inference import generate, prompts
from lmrep.interop import conversion
from lmrep.models.decoding import Sampling
from lmrep.objectives import OBJECTIVES
from tests import runs, small
from tests.cli import printed_prompts
from tests.interop.test_published import GOLDEN


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A copy of the shared run that learned the grammar of `small.corpus`."""
    return shutil.copytree(runs.folder("causal"), tmp_path_factory.mktemp("causal") / "home")


def predict(home, *words, stdin=""):
    return small.command("predict", f"--workdir={home}/run", *words, stdin=stdin)


def test_text_is_continued_like_the_training_texts(home):
    first, last = small.lines(home / "run", "validation")
    assert last["lm_accuracy"] > 2.5 * first["lm_accuracy"] and last["lm_loss"] < 0.6 * first["lm_loss"]
    found = lmrep.load(home / "run").generate(["the old", "the old cat sees", "the old cat sees the"], tokens=1,
                                            sampling=Sampling(temperature=0))
    noun, article, adjective = (text.strip() for (text,) in found)
    assert noun in small.NOUNS and article == "the" and adjective in small.ADJECTIVES


@pytest.mark.slow
def test_run_without_samples_is_tried_with_its_own_text(home):
    result = small.command("train", f"--workdir={home}/run", f"--data_dir={home}/data")
    prompts = printed_prompts(result, "causal", " |")
    assert result.code == 0 and len(prompts) == 3
    assert f"lmrep predict --workdir={home}/run '{prompts[0]}'" in result.out


@pytest.mark.slow
def test_samples_do_not_depend_on_how_many_are_generated_at_a_time(home, monkeypatch):
    run = lmrep.load(home / "run")
    together = run.generate(["the old", "a red"], tokens=6, samples=5)
    monkeypatch.setattr(generate, "BATCH_SIZE", 2)
    assert run.generate(["the old", "a red"], tokens=6, samples=5) == together
    refused = small.command("predict", f"--workdir={home}/run", "the old", "--samples=1000000000")
    assert refused.code == 2 and "--samples is 1000000000; expected" in refused.err


@pytest.mark.slow
def test_seed_repeats_its_samples(home):
    words = ("the old", "a red", "--samples=3", "--tokens=6", "--top_k=8")
    result = predict(home, *words)
    assert result.code == 0 and result == predict(home, *words) != predict(home, *words, "--seed=1")
    lines = result.out.splitlines()
    assert len(lines) == 6 and all(line.startswith("the old |") for line in lines[:3])
    assert len(set(lines[:3])) > 1


def test_samples_do_not_depend_on_how_many_lines_are_read_at_a_time(home, monkeypatch):
    words = ("--tokens=6", "--samples=2")
    together = predict(home, *words, stdin="the old\n" * 4)
    monkeypatch.setattr(predict_command, "LINES", 2)
    assert predict(home, *words, stdin="the old\n" * 4) == together
    lines = together.out.splitlines()
    assert len(lines) == 8 and len({*zip(lines[::2], lines[1::2], strict=True)}) == 4
    assert predict(home, *words, "--first=1", stdin="the old\n" * 3).out.splitlines() == lines[2:]


def test_json_lines(home):
    result = predict(home, "--jsonl", "--tokens=4", stdin='{"id": 7, "text": "the red"}\n')
    record = json.loads(result.out)
    assert record["id"] == 7 and len(record["continuations"]) == 1 and record["continuations"][0].startswith(" ")


@pytest.mark.parametrize(("words", "message"), [
    (["the cat", "--tokens=40"], "has 3 tokens, and 40 are to be generated; the model takes 32 at most"),
    (["the cat", "--tokens=0"], "--tokens is 0; expected at least 1"),
    (["the cat", "--top_p=0"], "top_p is 0"),
    (["the cat", "--temperature=-1"], "temperature is -1"),
    (["the cat", f"--seed={2**32}"], "--seed is 4294967296; expected at most 4,294,967,295"),
])
def test_generation_refuses_invalid_input(home, words, message):
    result = predict(home, *words)
    assert result.code == 2 and message in result.err, result


def test_causal_model_does_not_fill_masks(home):
    with pytest.raises(UserError, match=r"objective .causal., which has no capability 'fill_mask' .fills in "
                                        r"masked words.; objectives that have it: masked"):
        lmrep.load(home / "run").fill_masks(["the [MASK]."])


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A GPT-2, whose tokenizer has no token for a hidden word."""
    home = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)  # it takes seconds to import
        conversion.to_workdir(GOLDEN / "gpt2", home / "run")
    return home


@pytest.mark.parametrize("which", ["home", "converted"])
def test_causal_model_refuses_text_with_a_mask(request, which):
    result = predict(request.getfixturevalue(which), "--jsonl", "--tokens=2",
                   stdin='{"text": "the"}\n{"text": "the [MASK] cat"}\n')
    assert result.code == 2 and not result.out, result
    assert "line 2 of standard input: 'the [MASK] cat' has a mask, and " in result.err
    assert "trained to predict the next token continues texts from their end" in result.err


def test_samples_of_another_objective_are_omitted():
    samples = ("If the [MASK] is empty.", "The <mask>.", "Return the")
    causal, masked = (OBJECTIVES[name].capabilities for name in ("causal", "masked"))
    assert prompts.example(samples, causal) == "Return the"
    assert prompts.sample_prompts(samples, causal) == ["Return the"]
    assert prompts.sample_prompts(samples, masked) == [*samples[:2]]
    assert prompts.sample_prompts(samples[:2], causal) == [causal[-1].example] == [prompts.example(samples[:2], causal)]
    assert prompts.sample_prompts([], causal) == prompts.sample_prompts(samples, ()) == []
    assert prompts.example(samples, masked) == samples[0] and prompts.example(samples, ()) == ""
