"""Unlabelled text as a source of a mixture: pieces, sentinels, and a run on it beside a task."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

import lmrep
from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.distributed import process_group
from lmrep.experiment import config as experiments
from lmrep.experiment import task_data
from lmrep.objectives import span_corruption
from lmrep.tasks import denoising
from tests import forked, small
from tests.tasks import tiny
from tests.tasks.test_text_to_text import SIZES

PAGE = Path(__file__).parents[2] / "experiments/tasks/multitask.py"
SENTINELS = tuple(range(199, 99, -1))
VOCABULARY = Vocabulary(200, {"pad": 0, "eos": 1, "unk": 2}, None, np.zeros(200, np.int64), sentinels=SENTINELS)


def restored(source, target):
    """The tokens of a piece: each sentinel of the source replaced by what follows it in the target."""
    spans, last = {}, None
    for token in target[:-1].tolist():
        if token in SENTINELS:
            last = token
            spans[last] = []
        else:
            spans[last].append(token)
    assert list(spans) == [token for token in source.tolist() if token in SENTINELS] == [*SENTINELS[: len(spans)]]
    return [each for token in source[:-1].tolist() for each in spans.get(token, [token])]


@pytest.mark.parametrize("length, piece, target", [(512, 568, 114), (256, 284, 58), (16, 17, 5)])
def test_pieces_give_sources_of_the_full_length_as_in_t5_and_lose_nothing(length, piece, target):
    tokens = np.random.default_rng(0).integers(3, 100, 3 * piece + piece // 2).astype(np.int32)
    found = denoising.pairs(tokens, length, VOCABULARY)
    assert [len(source) for source, _ in found[:3]] == [length] * 3
    assert [len(own) for _, own in found[:3]] == [target] * 3
    assert len(found) == 4 and len(found[3][0]) < length
    assert all(own[-1] == 1 for pair in found for own in pair)
    assert [token for pair in found for token in restored(*pair)] == tokens.tolist()


def test_pieces_are_always_corrupted_alike_and_each_in_its_own_way():
    tokens = np.tile(np.arange(3, 73, dtype=np.int32), 300)
    first, longer = (denoising.pairs(own, 64, VOCABULARY) for own in (tokens, np.append(tokens, tokens)))
    assert len(longer) == 600 > 2 * denoising.CHUNK
    for one, other in zip(first, longer, strict=False):
        np.testing.assert_array_equal(np.concatenate(one), np.concatenate(other))
    assert len({source.tobytes() for source, _ in first}) > 250  # of pieces of the same tokens


def test_a_last_token_alone_is_left_out():
    tokens = np.full(35, 5, np.int32)
    assert len(denoising.pairs(tokens, 16, VOCABULARY)) == 2
    assert len(denoising.pairs(tokens[:1], 16, VOCABULARY)) == 0
    [(source, target)] = denoising.pairs(tokens[:2], 16, VOCABULARY)
    assert restored(source, target) == [5, 5]


# Runs


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home, draw = tmp_path_factory.mktemp("denoising"), random.Random(0)
    for split, count in (("train", 48), ("dev", 10)):
        texts = [tiny.sentence(draw, draw.randint(1, 3)) for _ in range(count)]
        tiny.write(home / f"{split}.jsonl", [{"text": text, "target": text} for text in texts])
        documents = [tiny.sentence(draw, length) for length in (3, 200, 1, 40, 90)]
        (home / f"{split}.txt").write_text("\n\n".join(documents) + "\n")
    return home


def config(home, denoise=(), **fields):
    own = {"model__" + name: value for name, value in SIZES.items()} | {
        "objective__max_target": 16, "steps": 6, "length": 32, "format__packed": True, "tokenizer__vocab_size": 130,
        "tokenizer__name": "sentencepiece_t5", "tokenizer__lowercase": False, "temperature": 1.0,
        "format__long": "refuse"}
    c = tiny.config("text_to_text", "", None, **own | fields)
    copy, text = ({"train": f"{home}/train.{suffix}", "validation": f"{home}/dev.{suffix}"}
                  for suffix in ("jsonl", "txt"))
    c.sources = (
        {"name": "copy", "data": copy, "objective": {"template": "copy {text}", "metrics": ("chrf",)}},
        {"name": "text", "data": text | {"format": "documents"},
         "objective": {"denoise": True, "metrics": (), **dict(denoise)}})
    return c


RUN = {"batch_size": 8, "checkpoint__every": 2, "evaluation__every": 3}


def prepared(c):
    experiment = experiments.parse(c)
    return task_data.prepare_examples(experiment, experiment.tokenizer)


@pytest.fixture(scope="module")
def trained(home):
    lmrep.train(config(home, log__report=True, **RUN), home / "run")
    return home / "run"


def test_documents_of_any_length_become_sources_of_the_full_length(home):
    found = prepared(config(home))
    store, [first, last] = found.splits["train"], found.splits["train"].bounds[1:]
    own = [record for record in found.records["train"] if record.source == "text"]
    lengths = store.units.source.lengths[store.order[store.rows[first] : store.rows[last]]]
    assert sorted(lengths)[1:] == [32] * (len(own) - 1)
    sentinels = found.tokenizer.vocabulary.sentinels
    assert np.isin(store.units.tokens, sentinels).any() and np.isin(store.units.source.tokens, sentinels).any()
    assert "<extra_id_0>" in own[0].fields["text"] and own[0].fields["target"].startswith("<extra_id_0>")
    assert own[0].where.endswith("train.txt, line 1")
    counts = np.array([48, len(own)])
    shown = store.fractions() * counts / np.diff(store.bounds)
    np.testing.assert_allclose(shown / shown.sum(), counts / counts.sum(), atol=2e-4)
    capped = prepared(config(home, size_cap=12, format__packed=False)).splits["train"]
    assert capped.fractions().tolist() == [0.5, 0.5]
    limited = prepared(config(home, evaluation__examples=4)).records["validation"]
    assert [record.source for record in limited] == ["copy"] * 4 + ["text"] * 4
    assert all(each.fields in [record.fields for record in found.records["validation"]] for each in limited)


@pytest.mark.slow
def test_its_loss_is_measured_and_its_texts_are_not_generated(home, trained):
    line = small.lines(trained, "validation")[-1]
    assert {name for name in line if name.startswith("text/")} == {"text/lm_loss", "text/lm_accuracy"}
    assert line["score"] == line["copy/chrf"] and line["loss"] == pytest.approx(
        (line["copy/lm_loss"] + line["text/lm_loss"]) / 2)
    own = [json.loads(each) for each in (trained / "predictions/validation.jsonl").read_text().splitlines()]
    assert {tuple(each["prediction"]) for each in own if each["source"] == "text"} == {("loss",)}
    assert len(list((trained / "predictions").glob("*text*"))) == 0
    step = lmrep.load(trained).step
    [line] = [each for each in small.lines(trained, "validation") if each["step"] == step]
    alone = lmrep.evaluate(trained, source="text")
    assert alone["loss"] == pytest.approx(line["text/lm_loss"])
    assert lmrep.evaluate(trained, files=f"{home}/dev.txt", source="text") == pytest.approx(alone)
    page = (trained / "report.html").read_text()
    assert "text: Loss of the target" in page and "are damaged" not in page


@pytest.mark.slow
def test_predictions_fill_in_sentinels(trained):
    run = lmrep.load(trained)
    [found] = run.predict(["cat <extra_id_0> dog"], source="text")
    assert isinstance(found["text"], str) and np.isfinite(found["score"])
    with pytest.raises(UserError, match="there is no sentinel in 'cat dog'; write <extra_id_0>"):
        run.predict(["cat dog"], source="text")
    with pytest.raises(UserError, match=r"has more than 32 tokens, with its end \(config\.length\)"):
        run.predict(["cat <extra_id_0>" * 40], source="text")


@pytest.mark.slow
def test_inspect_and_doctor_show_it(home, trained):
    (home / "page.py").write_text("from tests.tasks.test_denoising import config\n\ndef get_config(argument=''):\n"
                                  f"    return config({str(home)!r})\n")
    shown = small.command("inspect", f"--config={home}/page.py", "--examples=2")
    assert "target: <extra_id_0>" in shown.out and "source tokens: " in shown.out, shown
    assert "train.txt, line 1" in shown.out
    assert all("<extra_id" not in line for line in shown.out.splitlines() if " values: " in line)
    found = small.command("doctor", f"--config={home}/page.py")
    assert "text (" in found.out and found.code == 0, found


@pytest.mark.slow
@pytest.mark.parametrize("change, message", [
    ({"objective__max_target": 5}, r"config\.objective\.max_target is 5; set it to 8"),
    ({"tokenizer__name": "wordpiece", "tokenizer__lowercase": True}, r"--config\.tokenizer\.name=sentencepiece_t5"),
])
def test_what_cannot_work_is_refused_before_anything_is_written(home, tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        lmrep.train(config(home, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def one_of_two(home, workdir):
    process_group.start()
    c = config(home, **RUN, microbatches=2)
    c.mesh.data = 2
    lmrep.train(c, workdir)


@pytest.mark.slow
def test_a_mixture_gives_the_same_losses_on_two_processes_in_microbatches(home, trained, tmp_path):
    pair = [forked.Child(one_of_two, home, tmp_path / "run", environment=environment)
            for environment in forked.addresses(2)]
    for answer in map(small.finish, pair):
        assert answer.code == 0, answer
    for split in ("train", "validation"):
        for line, other in zip(small.lines(tmp_path / "run", split), small.lines(trained, split), strict=True):
            del line["split"], other["split"]
            assert line == pytest.approx(other, rel=1e-5, abs=1e-6)


def test_the_page_adds_text_and_a_tokenizer_with_sentinels():
    page = loading.load(PAGE, "size=tiny,tasks=rte,text=a.txt,held_out=b.txt")
    assert [source["name"] for source in page.sources] == ["rte", "text"]
    assert page.sources[1]["data"] == {"train": "a.txt", "validation": "b.txt", "format": "documents"}
    assert page.tokenizer.name == "sentencepiece_t5" and not page.tokenizer.lowercase
    size = denoising.piece_length(page.length, 100)
    assert span_corruption.lengths(size, denoising.CORRUPTION, 100) == (256, 58) and page.objective.max_target >= 58


def test_the_page_refuses_text_for_validation_alone():
    with pytest.raises(UserError, match=r"held_out is 'b\.txt', .* give text=FILES, or leave held_out out"):
        loading.load(PAGE, "size=tiny,held_out=b.txt")
