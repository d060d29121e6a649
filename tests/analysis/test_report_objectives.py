"""The report of runs with other objectives than masked LM, and of several of them on one page."""

import dataclasses
import math
import shlex
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from markupsafe import escape

import lmrep
from lmrep.analysis.report import metrics, page, predictions, prose, replaced_tokens, run_data
from lmrep.data import tokenizers
from lmrep.experiment import config as experiments
from lmrep.models.decoding import Sampling
from lmrep.objectives import OBJECTIVES, replaced_token
from lmrep.objectives.capabilities import ReplacedToken
from tests import small

GPT2 = Path(__file__).parents[1] / "interop/golden/gpt2"
RUNS = {"causal": "causal", "electra": "replaced_token"}
SAMPLES = {"causal": ("The old cat sees the red dog. The small",),
           "electra": ("The old cat sees <i>the sea</i> & caf\u00e9s.", "The [MASK] cat eats.")}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a short run of each of RUNS."""
    home = tmp_path_factory.mktemp("objectives")
    texts = small.corpus(home / "texts")
    for name, objective in RUNS.items():
        config = small.config(texts, objective)
        config.steps, config.samples = 6, SAMPLES[name]
        config.model.update({"layers": 1, "width": 16, "heads": 2, "mlp": 32})
        config.log.every = 2
        lmrep.train(config, home / name, data_dir=home / "data")
    return home


@pytest.fixture(scope="module")
def runs(home):
    return {name: run_data.read(home / name, name, home / "data") for name in RUNS}


@pytest.fixture(scope="module")
def span_run():
    """A run with spans and pairs, without its network."""
    config = small.config(Path("texts"), "span_boundary", "segment_pair")
    config.objective.sentence_pair = True
    experiment = experiments.parse(config)
    lines = [{"step": n, "loss": 9.0 - n / 4, "mlm_loss": 4.0 - n / 10, "mlm_accuracy": 0.11 + n / 40,
              "most_frequent_accuracy": 0.12, "boundary_accuracy": 0.13 + n / 40, "pair_accuracy": 0.5 + n / 40}
             for n in (0, 12)]
    plans = experiments.resolve_stages(experiment)
    return run_data.RunData(Path(), "spans", experiment, plans, (), lines, (), (), 12, None, None, ())


@pytest.fixture(scope="module")
def predicted(runs):
    return {name: predictions.predict(run, 0) for name, run in runs.items()}


@pytest.fixture(scope="module")
def html(runs, predicted):
    return page.render([(run, predicted[name]) for name, run in runs.items()])


def test_a_tokenizer_without_a_padding_token_has_its_predictions(home):
    config = small.config(home / "texts", "causal")
    config.update({"steps": 1, "samples": ()})
    config.model.update({"layers": 1, "width": 16, "heads": 2, "mlp": 32})
    config.tokenizer.update({"name": "byte_level_bpe", "vocab_file": str(GPT2), "lowercase": False})
    lmrep.train(config, home / "gpt2", data_dir=home / "data")
    run = run_data.read(home / "gpt2", "gpt2", home / "data")
    assert "pad" not in run.network.tokenizer.specials
    assert any(predictions.predict(run, 0).held_out.values())


# The summary


def test_language_model_is_evaluated_by_its_perplexity(home, runs):
    first, *_, last = small.lines(home / "causal", "validation")
    baseline = prose.perplexity(run_data.unigram_loss(runs["causal"]))
    text = prose.verdict(runs["causal"]).text
    for expected in (f"{last['lm_accuracy']:.2%}", f"(perplexity {math.exp(last['lm_loss']):,.0f})",
                 f"(perplexity {math.exp(first['lm_loss']):,.0f}) before training",
                 f"(perplexity {baseline}) for predicting by token frequency"):
        assert expected in text
    assert "the objective causal" in prose.subject(runs["causal"])


def test_electra_is_evaluated_by_the_replaced_tokens_that_it_detects(home, runs):
    last = small.lines(home / "electra", "validation")[-1]
    text = prose.verdict(runs["electra"]).text
    for name in ("replaced_accuracy", "original_accuracy", "generator_accuracy"):
        assert f"{last[name]:.2%}" in text
    assert f"(perplexity {math.exp(last['generator_loss']):,.0f})" in text


def test_every_headline_metric_of_an_objective_is_in_the_summary(span_run):
    verdict, last = prose.verdict(span_run), span_run.validation[-1]
    assert verdict.mark == "good" and all(f"{last[name]:.2%}" in verdict.text for name in (
        "mlm_accuracy", "most_frequent_accuracy", "boundary_accuracy", "pair_accuracy"))


@pytest.mark.parametrize(("detected", "kept", "mark"), [(0.5, 0.98, "good"), (0.1, 0.97, "some"), (0.9, 0.1, "bad"),
                                                       (0.0, 1.0, "bad")])
def test_constant_discriminator_is_no_better_than_chance(runs, detected, kept, mark):
    line = {"step": 6, "loss": 1.0, "replaced_accuracy": detected, "original_accuracy": kept, "replaced_fraction": 0.1}
    assert prose.verdict(dataclasses.replace(runs["electra"], validation=[line])).mark == mark


# Curves


def test_runs_with_the_same_metric_share_its_axes(runs, span_run):
    plain = dataclasses.replace(span_run, validation=[
        {name: value for name, value in line.items() if name != "pair_accuracy"} for line in span_run.validation])
    charts = metrics.charts([*runs.values(), span_run, plain])
    assert charts["mlm_accuracy"].lines == {2: "mlm_accuracy", 3: "mlm_accuracy"}
    assert charts["mlm_accuracy"].baselines == {2: "most_frequent_accuracy", 3: "most_frequent_accuracy"}
    assert charts["lm_loss"].lines == {0: "lm_loss"} and charts["lm_loss"].baselines == {0: "unigram_loss"}
    assert charts["pair_accuracy"].lines == {2: "pair_accuracy"}
    assert charts["replaced_accuracy"].lines == {1: "replaced_accuracy"} and charts["replaced_accuracy"].percent
    assert charts["gradient_norm"].lines == {0: "gradient_norm", 1: "gradient_norm"}


def test_loss_with_one_term_has_one_chart(runs):
    charts = metrics.charts([runs["causal"], runs["electra"]])
    assert charts["loss"].lines == {1: "loss"} and "most_frequent_accuracy" not in charts


def test_charts_show_the_recorded_values(runs):
    for chart in metrics.charts([*runs.values()]).values():
        for number, metric in (*chart.lines.items(), *chart.baselines.items()):
            run = run_data.curves([*runs.values()][number])
            assert any(metric in run[source] for source in ("train", "validation", "timing"))


def test_frequency_baseline_is_the_unigram_entropy(runs):
    for run in runs.values():
        found = run_data.curves(run)["validation"]
        assert found["unigram_loss"] == [pytest.approx(run_data.unigram_loss(run), rel=1e-4)] * len(found["step"])


# Predictions


def test_next_token_prediction_equals_that_of_the_network(home, predicted):
    run, found = lmrep.load(home / "causal"), predicted["causal"].held_out["next_tokens"]
    full = [sample for sample in found if not sample.prompt[0].startswith("…")]
    assert len(full) > 2 and all(sample.prompt[2] == "" for sample in found)
    for sample in full[:3]:
        [[more]] = run.generate([sample.prompt[0]], tokens=1, sampling=Sampling(temperature=0.0))
        probable = [word for word, _ in sample.now if word not in ("[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]")]
        assert probable[0].removeprefix("##") == more.strip()
        assert sample.before != sample.now


def test_texts_are_continued_before_and_after_training(html, predicted):
    [sample], continued = predicted["causal"].samples, predicted["causal"].held_out["continued"]
    assert sample.prompt[0] == SAMPLES["causal"][0] and sample.target is None
    assert 0 < len(continued) <= predictions.CONTINUED
    assert any(one.before != one.now for one in (sample, *continued))
    for one in (sample, *continued):
        assert one.prompt[0] in html and one.now.strip() in html
        assert one.target is None or one.target.strip() in html


def test_sample_texts_show_replaced_token_probabilities(home, html, predicted):
    """A text with a mask is filled by the generator."""
    text, masked = SAMPLES["electra"]
    blank, found = predicted["electra"].samples
    assert "".join(token.gap + token.word for token in found.now.tokens) + found.now.end == text
    run = lmrep.load(home / "electra")
    [tokens], [[candidates]] = run.detect_replaced([text]), run.fill_masks([masked])
    assert [(token.word, token.probability) for token in found.now.tokens] == [
        (token.word, pytest.approx(token.probability)) for token in tokens]
    assert blank.now == candidates and [blank.prompt[0], blank.prompt[2]] == masked.split("[MASK]")
    for before, now in zip(found.before.tokens, found.now.tokens, strict=True):
        assert 0 < before.probability < 1 and before.probability != now.probability
        assert f"<b>{escape(now.word)}</b><small>{100 * now.probability:.0f}</small>" in html


def test_character_of_several_bytes_is_one_token_with_the_largest_probability():
    prediction = [ReplacedToken("a", 0, 1, 0.1), ReplacedToken("\u732b", 2, 3, 0.2), ReplacedToken("\u732b", 2, 3, 0.9),
                  ReplacedToken("", 3, 3, 0.6)]
    assert replaced_tokens.shade("a \u732b!", prediction) == replaced_tokens.ShadedText(
        [replaced_tokens.ShadedToken("", "a", 0.1), replaced_tokens.ShadedToken(" ", "\u732b", 0.9)], "!")


def test_validation_text_contains_the_generator_s_tokens(home, runs, predicted):
    """The tokens are sampled with the example's own seeds, and the encoder sees the full example."""
    run, stage = lmrep.load(home / "electra"), runs["electra"].stage
    found = predicted["electra"].held_out["replaced"]
    batch = predictions.held_out_batch(runs["electra"], run.objective)
    generator = run.model.make_generator(stage.objective.generator, stage.objective.generator_layers)
    _, _, words = jax.jit(lambda params: replaced_token.generate(params, batch, None, stage.objective, generator))(
        run.params)
    shown = np.array(batch["tokens"])
    for example, *masked in zip(shown, batch["predicted"], batch["weights"], np.asarray(words), strict=True):
        for position, weight, word in zip(*masked, strict=True):
            example[position] = word if weight else example[position]
    replaced, real = shown != batch["tokens"], batch["segment_ids"] > 0
    inputs = {"tokens": shown, "segment_ids": batch["segment_ids"]}
    probabilities = np.asarray(jax.jit(run.objective.predict)(run.params, inputs)["replaced"])
    assert (found.examples, found.replaced, found.originals) == (
        len(shown), (replaced & real).sum(), (~replaced & real).sum())
    assert found.now == tuple(((probabilities > 0.5) & real & group).sum() for group in (replaced, ~replaced))
    assert found.before != found.now and 0 < len(found.texts) <= replaced_tokens.MAX_SHOWN
    pairs = {tuple(map(run.tokenizer.id_to_token, pair)) for pair in zip(
        batch["tokens"][replaced].tolist(), shown[replaced].tolist(), strict=True)}
    for _, text in found.texts:
        changed = [token for token in text.tokens if token.original is not None]
        assert changed and {(token.original, token.word) for token in changed} <= pairs
        assert all(np.abs(probabilities[replaced] - token.probability).min() < 1e-5 for token in changed)
        assert len(text.tokens) <= 2 * replaced_tokens.CONTEXT + 1


def test_page_shows_which_replaced_tokens_are_found(html, predicted):
    found = predicted["electra"].held_out["replaced"]
    for counts, when in ((found.before, "before training"), (found.now, "now")):
        assert f"{counts[0]:,} and {counts[1]:,} of these for replaced {when}" in html
    changed = [token for pair in found.texts for text in pair for token in text.tokens if token.original is not None]
    for token in changed:
        assert f"<del>{escape(token.original)}</del> → <ins>{escape(token.word)}</ins>" in html
    section = html.partition("Validation text with replaced tokens")[2].partition("<section>")[0]
    assert section.count("<del>") == len(changed)
    detected = sum(token.probability > 0.5 for token in changed)
    assert section.count(">✓<") == detected and section.count(">✗<") == len(changed) - detected


@pytest.mark.parametrize(("name", "size"), [("wordpiece", 64), ("bpe", 64), ("byte_level_bpe", 280),
                                            ("sentencepiece_unigram", 20), ("sentencepiece_bpe", 40)])
def test_tokens_are_joined_as_in_the_text(name, size):
    text = "the old cats; see the sea, the mouse"
    tokenizer = tokenizers.train(tokenizers.Config(name, size), lambda: iter([text] * 20))
    found = replaced_tokens.spaced(tokenizer.encode(text).ids.tolist(), tokenizer)
    assert "".join(map("".join, found)).strip() == text and all(word == word.strip() for _, word in found)


def test_no_prediction_before_training_if_the_first_stage_had_another_objective(runs, predicted):
    electra, network = runs["electra"], runs["electra"].network
    objective = OBJECTIVES["masked"].build(OBJECTIVES["masked"].config(), network.model, network.tokenizer.vocabulary)
    first = dataclasses.replace(electra, network=dataclasses.replace(network, objectives=[objective]))
    found = predictions.predict(first, 0)
    assert [sample.before for sample in found.samples] == [None, None]
    assert found.held_out["replaced"].before is None
    assert found.held_out["replaced"].now == predicted["electra"].held_out["replaced"].now
    assert "before training</h4>" not in page.render([(first, found)])


def test_unknown_capability_is_printed(runs, predicted, monkeypatch):
    monkeypatch.setattr(predictions, "RENDERERS", {})
    found = predictions.predict(runs["causal"], 0)
    [sample], [known] = found.samples, predicted["causal"].samples
    assert sample.view == "printed" and sample.before != sample.now
    assert sample.now.startswith(f"{SAMPLES['causal'][0]} |{known.now}")
    assert escape(sample.now) in page.render([(runs["causal"], found)])


def test_examples_of_an_objective_without_capabilities_are_described(runs, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "replaced_token", OBJECTIVES["replaced_token"]._replace(capabilities=()))
    found = predictions.predict(runs["electra"], 0)
    assert found.samples == [] and found.held_out.keys() == {"described"}
    texts = found.held_out["described"]
    assert len(texts) == predictions.DESCRIBED and any("-> [MASK]}" in text for text in texts)
    html = page.render([(runs["electra"], found)])
    assert all(escape(text) in html for text in texts)


def test_advice_contains_a_suitable_prompt(runs, predicted):
    def commands(name):
        return [command for _, command in prose.next_steps(runs[name], predicted[name])]

    for name, (first, *_) in SAMPLES.items():
        assert any("lmrep predict" in c and shlex.quote(first) in c for c in commands(name))


@pytest.mark.parametrize("view", [predictions._masked_tokens, predictions._next_tokens])
def test_batches_of_other_fields_are_said_not_to_be_shown(view):
    """An objective may prepare what it likes: one sentence instead of predictions for validation text."""
    objective = SimpleNamespace(name="mine", predict=len, next_token_logits=len)
    notes = []
    assert view(None, (None, SimpleNamespace(objective=objective)), {"tokens": np.zeros((2, 3))}, notes) == []
    assert len(notes) == 1 and "'mine'" in notes[0] and "targets" in notes[0]
