"""The report of runs that were asked other things than hidden words, and of several such on one page."""

import dataclasses
import math
from pathlib import Path

import pytest

import lmrep
from lmrep import experiment as experiments
from lmrep.analysis.report import answers, facts, measures, page, prose
from lmrep.generation import Sampling
from tests import small

RUNS = {"left": "causal", "told": "replaced_token"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a short run of each of RUNS."""
    home = tmp_path_factory.mktemp("objectives")
    texts = small.corpus(home / "texts")
    for name, objective in RUNS.items():
        config = small.config(texts, objective)
        config.steps, config.samples = 6, ("The old cat",) if objective == "causal" else ()
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
    lines = [{"step": n, "loss": 9.0 - n / 4, "masked_nats": 4.0 - n / 10, "masked_accuracy": 0.11 + n / 40,
              "most_frequent": 0.12, "boundary_accuracy": 0.13 + n / 40, "pair_accuracy": 0.5 + n / 40}
             for n in (0, 12)]
    plans = experiments.plans(experiment)
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
    for said in (prose.percent(last["token_accuracy"]), f"{math.exp(last['token_nats']):,.0f} a token",
                 f"before training it was {math.exp(first['token_nats']):,.0f}", f"alone it would be {blind}"):
        assert said in text
    assert "to foretell each next word" in prose.subject(gathered["left"])


def test_electra_is_told_by_what_it_finds_and_lets_pass(home, gathered):
    last = small.lines(home / "told", "validation")[-1]
    text = prose.verdict(gathered["told"]).text
    for name in ("replaced_share", "replaced_accuracy", "original_accuracy", "generator_accuracy"):
        assert prose.percent(last[name]) in text
    assert f"{math.exp(last['generator_nats']):,.0f} equally likely" in text


def test_spans_are_told_by_both_heads_and_the_pairs(spans):
    mark, text = prose.verdict(spans)
    last = spans.validation[-1]
    assert mark == "some" and all(prose.percent(last[name]) in text for name in (
        "masked_accuracy", "most_frequent", "boundary_accuracy", "pair_accuracy"))
    assert "hidden spans of words and how two passages belong together" in prose.subject(
        dataclasses.replace(spans, train=spans.validation))


@pytest.mark.parametrize(("found", "passed", "mark"), [(0.5, 0.98, "good"), (0.1, 0.97, "some"), (0.9, 0.1, "bad"),
                                                       (0.0, 1.0, "bad")])
def test_who_suspects_all_alike_tells_nothing_apart(gathered, found, passed, mark):
    line = {"step": 6, "loss": 1.0, "replaced_accuracy": found, "original_accuracy": passed, "replaced_share": 0.1}
    assert prose.verdict(dataclasses.replace(gathered["told"], validation=[line])).mark == mark


# Curves


def test_what_questions_share_is_on_one_pair_of_axes_and_their_own_is_apart(html, gathered, spans):
    charts = measures.charts([*gathered.values(), spans])
    assert charts["nats"].lines == {0: "token_nats", 1: "generator_nats", 2: "masked_nats"}
    assert charts["guessed"].lines == {0: "token_accuracy", 1: "generator_accuracy", 2: "masked_accuracy"}
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
        [[more]] = run.extend([blank.left], tokens=1, how=Sampling(temperature=0.0))
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


def test_what_electra_is_asked_is_described(html, asked):
    rows = asked["told"].described
    assert len(rows) == answers.DESCRIBED and all(page.e(row) in html for row in rows)
    assert any("-> [MASK]}" in row for row in rows)
    assert not (asked["told"].held_out or asked["told"].samples or asked["told"].continued)


def test_the_next_steps_ask_what_can_be_asked(gathered, asked):
    def commands(name):
        return [command for _, command in prose.next_steps(gathered[name], asked[name])]

    assert any("lmrep predict" in c and "'The old cat'" in c for c in commands("left"))
    assert not any("lmrep predict" in c for c in commands("told"))
