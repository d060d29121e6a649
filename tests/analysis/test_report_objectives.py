"""The report of runs that were asked other things than hidden words, and of several such on one page."""

import dataclasses
import math
import shlex
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import lmrep
from lmrep.analysis.report import answers, doubts, facts, measures, page, prose
from lmrep.data import tokenizers
from lmrep.experiment import config as experiments
from lmrep.inference.generate import Sampling
from lmrep.objectives import OBJECTIVES, replaced_token
from lmrep.objectives.capabilities import ReplacedToken
from tests import small

RUNS = {"left": "causal", "told": "replaced_token"}
SAMPLES = {"left": ("The old cat",), "told": ("The old cat sees <i>the sea</i> & caf\u00e9s.", "The [MASK] cat eats.")}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a short run of each of RUNS."""
    home = tmp_path_factory.mktemp("objectives")
    texts = small.corpus(home / "texts")
    for name, objective in RUNS.items():
        config = small.config(texts, objective)
        config.steps, config.samples = 6, SAMPLES[name]
        config.log.every = 2
        lmrep.train(config, home / name, data_dir=home / "data")
    return home


@pytest.fixture(scope="module")
def gathered(home):
    return {name: facts.gather(home / name, name, home / "data") for name in RUNS}


@pytest.fixture(scope="module")
def spans():
    """What a run with spans and pairs leaves, without its network."""
    config = small.config(Path("texts"), "span_boundary", "segment_pair")
    config.objective.sentence_pair = True
    experiment = experiments.parse(config)
    lines = [{"step": n, "loss": 9.0 - n / 4, "mlm_loss": 4.0 - n / 10, "mlm_accuracy": 0.11 + n / 40,
              "most_frequent_accuracy": 0.12, "boundary_accuracy": 0.13 + n / 40, "pair_accuracy": 0.5 + n / 40}
             for n in (0, 12)]
    plans = experiments.resolve_stages(experiment)
    return facts.Facts(Path(), "spans", {}, experiment, plans, (), lines, (), (), 12, None, None, ())


@pytest.fixture(scope="module")
def asked(gathered):
    return {name: answers.ask(run, 0) for name, run in gathered.items()}


@pytest.fixture(scope="module")
def html(gathered, asked):
    return page.render([(run, asked[name]) for name, run in gathered.items()])


# The headline


def test_a_causal_run_is_told_by_its_perplexity(home, gathered):
    first, *_, last = small.lines(home / "left", "validation")
    blind = prose.perplexity(facts.by_frequency(gathered["left"]))
    text = prose.verdict(gathered["left"]).text
    for said in (prose.percent(last["lm_accuracy"]), f"{math.exp(last['lm_loss']):,.0f} a token",
                 f"before training it was {math.exp(first['lm_loss']):,.0f}", f"alone it would be {blind}"):
        assert said in text
    assert "to foretell each next word" in prose.subject(gathered["left"])


def test_electra_is_told_by_what_it_finds_and_lets_pass(home, gathered):
    last = small.lines(home / "told", "validation")[-1]
    text = prose.verdict(gathered["told"]).text
    for name in ("replaced_fraction", "replaced_accuracy", "original_accuracy", "generator_accuracy"):
        assert prose.percent(last[name]) in text
    assert f"{math.exp(last['generator_loss']):,.0f} equally likely" in text


def test_spans_are_told_by_both_heads_and_the_pairs(spans):
    mark, text = prose.verdict(spans)
    last = spans.validation[-1]
    assert mark == "some" and all(prose.percent(last[name]) in text for name in (
        "mlm_accuracy", "most_frequent_accuracy", "boundary_accuracy", "pair_accuracy"))
    assert "hidden spans of words and how two passages belong together" in prose.subject(
        dataclasses.replace(spans, train=spans.validation))


@pytest.mark.parametrize(("found", "passed", "mark"), [(0.5, 0.98, "good"), (0.1, 0.97, "some"), (0.9, 0.1, "bad"),
                                                       (0.0, 1.0, "bad")])
def test_who_suspects_all_alike_tells_nothing_apart(gathered, found, passed, mark):
    line = {"step": 6, "loss": 1.0, "replaced_accuracy": found, "original_accuracy": passed, "replaced_fraction": 0.1}
    assert prose.verdict(dataclasses.replace(gathered["told"], validation=[line])).mark == mark


# Curves


def test_what_questions_share_is_on_one_pair_of_axes_and_their_own_is_apart(html, gathered, spans):
    charts = measures.charts([*gathered.values(), spans])
    assert charts["nats"].lines == {0: "lm_loss", 1: "generator_loss", 2: "mlm_loss"}
    assert charts["guessed"].lines == {0: "lm_accuracy", 1: "generator_accuracy", 2: "mlm_accuracy"}
    assert [c.lines for name, c in charts.items() if name.startswith("loss")] == [{1: "loss"}, {2: "loss"}]
    assert charts["pair_accuracy"].lines == {2: "pair_accuracy"}
    assert charts["replaced_accuracy"].lines == {1: "replaced_accuracy"}
    assert "different questions" in html and "Nats of such a token" in html and "Loss: replaced_token" in html


def test_charts_draw_what_was_recorded(gathered):
    for chart in measures.charts([*gathered.values()]).values():
        for number, metric in chart.lines.items():
            run = facts.curves([*gathered.values()][number])
            assert any(metric in run[kind] for kind in ("train", "validation", "timing"))


def test_losses_of_one_question_share_their_axes(gathered):
    one = gathered["left"]
    assert measures.charts([one, one])["loss"].lines == {0: "loss", 1: "loss"}
    assert "nats" not in measures.charts([one])  # which its loss is


def test_the_dashed_line_of_frequencies_is_their_entropy(gathered):
    for run in gathered.values():
        found = facts.curves(run)["validation"]
        assert found["by_frequency"] == [pytest.approx(facts.by_frequency(run), rel=1e-4)] * len(found["step"])


# What it is asked


def test_the_next_word_is_the_network_s_own(home, asked):
    run, found = lmrep.load(home / "left"), asked["left"].held_out
    whole = [blank for blank in found if not blank.left.startswith("…")]
    assert len(whole) > 2 and all(blank.right == "" for blank in found)
    for blank in whole[:3]:
        [[more]] = run.generate([blank.left], tokens=1, sampling=Sampling(temperature=0.0))
        probable = [word for word, _ in blank.now if word not in ("[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]")]
        assert probable[0].removeprefix("##") == more.strip()
        assert blank.before != blank.now


def test_texts_are_continued_before_and_now(html, asked):
    found = asked["left"].continued
    assert found[0].text == "The old cat" and found[0].actual is None
    assert 1 < len(found) <= 1 + answers.BEGINNINGS and any(one.before != one.now for one in found)
    for one in found:
        assert one.text in html and one.now.strip() in html
        assert one.actual is None or one.actual.strip() in html


def test_sample_texts_are_doubted_piece_by_piece(home, html, asked):
    """A text with a mask is the generator's to fill."""
    text, masked = SAMPLES["told"]
    [found], [blank] = asked["told"].doubted, asked["told"].samples
    assert "".join(piece.gap + piece.word for piece in found.tokens) + found.end == text
    run = lmrep.load(home / "told")
    [given], [[guesses]] = run.detect_replaced([text]), run.fill_masks([masked])
    assert [(piece.word, piece.now) for piece in found.tokens] == [
        (doubt.word, pytest.approx(doubt.probability)) for doubt in given]
    assert blank.now == guesses and [blank.left, blank.right] == masked.split("[MASK]")
    assert all(0 < piece.before < 1 and piece.before != piece.now for piece in found.tokens)
    for piece in found.tokens:
        assert f"<b>{page.e(piece.word)}</b><small>{100 * piece.now:.0f}</small>" in html


def test_a_character_of_several_bytes_is_shown_once_by_the_byte_doubted_most():
    run = SimpleNamespace(detect_replaced=lambda texts: [[
        ReplacedToken("a", 0, 1, 0.1), ReplacedToken("\u732b", 2, 3, 0.2), ReplacedToken("\u732b", 2, 3, 0.9), ReplacedToken("", 3, 3, 0.6)]])
    assert doubts.samples([None, run], ["a \u732b!"], []) == [doubts.Doubted(
        [doubts.Piece("", "a", None, 0.1), doubts.Piece(" ", "\u732b", None, 0.9)], "!")]


def test_held_out_text_is_shown_as_the_generator_leaves_it(home, gathered, asked):
    """What it drew by the row's own seeds stands there, with the encoder's verdict on the whole row."""
    run, stage, found = lmrep.load(home / "told"), gathered["told"].stage, asked["told"].replaced
    rows = answers._rows(gathered["told"], [run])
    generator = run.model.make_generator(stage.objective.generator, stage.objective.generator_layers)
    _, _, words = jax.jit(lambda params: replaced_token.generate(params, rows, None, stage.objective, generator))(
        run.params)
    shown = np.array(rows["tokens"])
    for row, *asked_of in zip(shown, rows["predicted"], rows["weights"], np.asarray(words), strict=True):
        for place, weight, word in zip(*asked_of, strict=True):
            row[place] = word if weight else row[place]
    swapped, real = shown != rows["tokens"], rows["segment_ids"] > 0
    told = np.asarray(jax.jit(run.objective.predict)(run.params, {"tokens": shown, "segment_ids": rows["segment_ids"]})[
        "replaced"])
    assert (found.rows, found.replaced, found.others) == (len(shown), (swapped & real).sum(), (~swapped & real).sum())
    assert found.now == tuple(((told > 0.5) & real & kind).sum() for kind in (swapped, ~swapped))
    assert found.before != found.now and not found.words and 0 < len(found.texts) <= doubts.SHOWN
    named = {tuple(map(run.tokenizer.id_to_token, pair)) for pair in zip(
        rows["tokens"][swapped].tolist(), shown[swapped].tolist(), strict=True)}
    for text in found.texts:
        changed = [piece for piece in text.tokens if piece.was is not None]
        assert changed and {(piece.was, piece.word) for piece in changed} <= named
        assert all(np.abs(told[swapped] - piece.now).min() < 1e-5 for piece in changed)
        assert len(text.tokens) <= 2 * doubts.AROUND + 1


def test_the_page_says_what_was_found(html, asked):
    found = asked["told"].replaced
    for tally, when in ((found.before, "before training"), (found.now, "now")):
        assert f"{tally[0]:,} and {tally[1]:,} {when}" in html
    swaps = [piece for text in found.texts for piece in text.tokens if piece.was is not None]
    for piece in swaps:
        assert f"<del>{page.e(piece.was)}</del> → <ins>{page.e(piece.word)}</ins>" in html
    part = html.partition("Held-out text with words replaced")[2].partition("<section>")[0]
    assert part.count("<del>") == 2 * len(swaps)
    suspected = sum(p > 0.5 for piece in swaps for p in (piece.before, piece.now))
    assert part.count(">✓<") == suspected and part.count(">✗<") == 2 * len(swaps) - suspected


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 64), ("bpe", 64), ("byte_level_bpe", 280),
                                            ("sentencepiece_unigram", 20), ("sentencepiece_bpe", 40)])
def test_pieces_join_as_in_the_text(kind, size):
    text = "the old cats; see the sea, the mouse"
    tokenizer = tokenizers.train(tokenizers.Config(kind, size), lambda: iter([text] * 20))
    found = doubts._spoken(tokenizer.encode(text).ids.tolist(), tokenizer)
    assert "".join(map("".join, found)).strip() == text and all(word == word.strip() for _, word in found)


def test_a_stage_before_the_network_told_tokens_apart_answers_no_such_question(gathered, asked):
    """Nor does what stood before training, where a first stage asked other things."""
    told, masked = gathered["told"], gathered["told"].network
    objective = OBJECTIVES["masked"].build(OBJECTIVES["masked"].config(), masked.model, masked.tokenizer.vocabulary)
    first = dataclasses.replace(told, network=dataclasses.replace(masked, objectives=[objective]))
    found = answers.ask(first, 0)
    assert {piece.before for text in (*found.doubted, *found.replaced.texts) for piece in text.tokens} == {None}
    assert found.replaced.before is None and found.replaced.now == asked["told"].replaced.now
    assert [blank.before for blank in found.samples] == [None]
    assert "before training" not in page.exhibits.answers([(first, found)])


def test_rows_of_what_cannot_be_asked_in_words_are_described(gathered, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "replaced_token", OBJECTIVES["replaced_token"]._replace(capabilities=()))
    found = answers.ask(gathered["told"], 0)
    assert len(found.described) == answers.DESCRIBED and any("-> [MASK]}" in row for row in found.described)
    assert not (found.held_out or found.samples or found.continued or found.doubted or found.replaced)
    html = page.exhibits.answers([(gathered["told"], found)])
    assert all(page.e(row) in html for row in found.described)


def test_the_next_steps_ask_what_can_be_asked(gathered, asked):
    def commands(name):
        return [command for _, command in prose.next_steps(gathered[name], asked[name])]

    for name, (first, *_) in SAMPLES.items():
        assert any("lmrep predict" in c and shlex.quote(first) in c for c in commands(name))
