"""The report of runs with other objectives than masked LM, and of several of them on one page."""

import dataclasses
import json
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
from lmrep.experiment.config import stage_at
from lmrep.models.base import Context
from lmrep.models.decoding import Sampling
from lmrep.objectives import OBJECTIVES, replaced_token
from lmrep.objectives.capabilities import ReplacedToken
from lmrep.objectives.uses import NextToken, Uses
from lmrep.storage.workdir import write_config
from lmrep.training.step import prepare_keys
from tests import given, runs, small

GPT2 = Path(__file__).parents[1] / "interop/golden/gpt2"
slow = pytest.mark.slow
TEXT = "The old cat sees the red dog. The small"
ELECTRA = ("The old cat sees <i>the sea</i> & caf\u00e9s.", "The [MASK] cat eats.")


def with_samples(workdir, samples):
    """The workdir with these sample texts in its config."""
    record = json.loads((workdir / "config.json").read_text())
    record["config"]["samples"] = samples
    write_config(workdir, record)
    return workdir


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    """The shared causal language model, with a sample text."""
    workdir = with_samples(runs.copy("causal", tmp_path_factory.mktemp("causal") / "run"), [TEXT])
    return run_data.read(workdir, "causal", runs.folder("causal") / "data")


@pytest.fixture(scope="module")
def electra(tmp_path_factory):
    """A short run of both networks of ELECTRA."""
    home = tmp_path_factory.mktemp("electra")
    config = small.config(small.corpus(home / "texts"), "replaced_token")
    config.steps, config.samples = 6, ELECTRA
    config.model.update({"layers": 1, "width": 16, "heads": 2, "mlp": 32})
    config.log.every = 2
    lmrep.train(config, home / "run", data_dir=home / "data")
    return run_data.read(home / "run", "electra", home / "data")


def without_network(objective, format, lines, **fields):
    """A run that has these validation lines alone."""
    config = small.config(Path("texts"), objective, format)
    config.objective.update(fields)
    experiment = experiments.parse(config)
    return run_data.RunData(Path(), objective, experiment, experiments.resolve_stages(experiment), (), lines, (), (),
                            12, None, None, ())


@pytest.fixture(scope="module")
def replacing():
    """A run of ELECTRA without its network."""
    lines = [{"step": n, "loss": 9.0 - n / 4, "generator_loss": 3.0, "discriminator_loss": 0.3,
              "generator_accuracy": 0.2 + n / 40, "replaced_accuracy": 0.4 + n / 40, "original_accuracy": 0.97,
              "replaced_fraction": 0.1} for n in (0, 12)]
    return without_network("replaced_token", "packed", lines)


@pytest.fixture(scope="module")
def span_run():
    """A run with spans and pairs, without its network."""
    lines = [{"step": n, "loss": 9.0 - n / 4, "mlm_loss": 4.0 - n / 10, "mlm_accuracy": 0.11 + n / 40,
              "most_frequent_accuracy": 0.12, "boundary_accuracy": 0.13 + n / 40, "pair_accuracy": 0.5 + n / 40}
             for n in (0, 12)]
    return without_network("span_boundary", "segment_pair", lines, sentence_pair=True)


@pytest.fixture(scope="module")
def continued(causal):
    return predictions.predict(causal, 0)


@pytest.fixture(scope="module")
def detected(electra):
    return predictions.predict(electra, 0)


@pytest.fixture(scope="module")
def electra_page(electra, detected):
    return page.render([dataclasses.replace(electra, predictions=detected)])


@slow
def test_a_tokenizer_without_a_padding_token_has_its_predictions(tmp_path):
    config = small.config(small.corpus(tmp_path / "texts"), "causal")
    config.update({"steps": 1, "samples": ()})
    config.model.update({"layers": 1, "width": 16, "heads": 2, "mlp": 32})
    config.tokenizer.update({"name": "byte_level_bpe", "vocab_file": str(GPT2), "lowercase": False})
    lmrep.train(config, tmp_path / "gpt2", data_dir=tmp_path / "data")
    run = run_data.read(tmp_path / "gpt2", "gpt2", tmp_path / "data")
    assert "pad" not in run.network.tokenizer.specials
    assert any(predictions.predict(run, 0).held_out.values())


# The summary


def test_language_model_is_evaluated_by_its_perplexity(causal):
    first, *_, last = small.lines(causal.directory, "validation")
    baseline = prose.perplexity(run_data.unigram_loss(causal))
    text = prose.verdict(causal).text
    for expected in (f"{last['lm_accuracy']:.2%}", f"(perplexity {prose.perplexity(last['lm_loss'])})",
                     f"(perplexity {prose.perplexity(first['lm_loss'])}) before training",
                     f"(perplexity {baseline}) for token frequencies (unigram)"):
        assert expected in text
    assert "the objective causal" in prose.subject(causal)


def test_electra_is_evaluated_by_the_replaced_tokens_that_it_detects(replacing):
    text = prose.verdict(replacing).text
    for expected in ("70.00%", "97.00%", "50.00%", f"(perplexity {math.exp(3):,.0f})"):
        assert expected in text


def test_every_headline_metric_of_an_objective_is_in_the_summary(span_run):
    verdict, last = prose.verdict(span_run), span_run.validation[-1]
    assert verdict.mark == "good" and all(f"{last[name]:.2%}" in verdict.text for name in (
        "mlm_accuracy", "most_frequent_accuracy", "boundary_accuracy", "pair_accuracy"))


@pytest.mark.parametrize(("detected", "kept", "mark"), [(0.5, 0.98, "good"), (0.1, 0.97, "some"), (0.9, 0.1, "bad"),
                                                       (0.0, 1.0, "bad")])
def test_constant_discriminator_is_no_better_than_chance(replacing, detected, kept, mark):
    line = {"step": 6, "loss": 1.0, "replaced_accuracy": detected, "original_accuracy": kept, "replaced_fraction": 0.1}
    assert prose.verdict(dataclasses.replace(replacing, validation=[line])).mark == mark


# Curves


def test_runs_with_the_same_metric_share_its_axes(causal, replacing, span_run):
    plain = dataclasses.replace(span_run, validation=[
        {name: value for name, value in line.items() if name != "pair_accuracy"} for line in span_run.validation])
    charts = metrics.charts([causal, replacing, span_run, plain])
    assert charts["mlm_accuracy"].lines == {2: "mlm_accuracy", 3: "mlm_accuracy"}
    assert charts["mlm_accuracy"].baselines == {2: "most_frequent_accuracy", 3: "most_frequent_accuracy"}
    assert charts["lm_loss"].lines == {0: "lm_loss"} and charts["lm_loss"].baselines == {0: "unigram_loss"}
    assert charts["pair_accuracy"].lines == {2: "pair_accuracy"}
    assert charts["replaced_accuracy"].lines == {1: "replaced_accuracy"} and charts["replaced_accuracy"].percent
    assert charts["gradient_norm"].lines == {0: "gradient_norm"}


def test_loss_with_one_term_has_one_chart(causal, replacing):
    charts = metrics.charts([causal, replacing])
    assert charts["loss"].lines == {1: "loss"} and "most_frequent_accuracy" not in charts


def test_charts_show_the_recorded_values(causal):
    curves = run_data.curves(causal)
    assert "began" not in curves["timing"]  # goodput is a sum, not a curve
    for chart in metrics.charts([causal]).values():
        for metric in (*chart.lines.values(), *chart.baselines.values()):
            assert any(metric in curves[source] for source in ("train", "validation", "timing"))


def test_frequency_baseline_is_the_unigram_entropy(causal):
    found = run_data.curves(causal)["validation"]
    assert found["unigram_loss"] == [pytest.approx(run_data.unigram_loss(causal), rel=1e-4)] * len(found["step"])


# Predictions


def test_next_token_prediction_equals_that_of_the_network(causal, continued):
    run, found = lmrep.load(causal.directory), continued.held_out["next_tokens"]
    full = [sample for sample in found if not sample.prompt[0].startswith("…")]
    assert len(full) > 2 and all(sample.prompt[2] == "" for sample in found)
    for sample in full[:3]:
        [[more]] = run.generate([sample.prompt[0]], tokens=1, sampling=Sampling(temperature=0.0))
        probable = [word for word, _ in sample.now if word not in ("[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]")]
        assert probable[0].removeprefix("##") == more.strip()
        assert sample.before != sample.now


def test_texts_are_continued_before_and_after_training(causal, continued):
    [sample], texts = continued.samples, continued.held_out["continued"]
    html = page.render([dataclasses.replace(causal, predictions=continued)])
    assert sample.prompt[0] == TEXT and sample.target is None
    assert 0 < len(texts) <= predictions.CONTINUED
    assert any(one.before != one.now for one in (sample, *texts))
    for one in (sample, *texts):
        assert one.prompt[0] in html and one.now.strip() in html
        assert one.target is None or one.target.strip() in html


@slow
def test_sample_texts_show_replaced_token_probabilities(electra, electra_page, detected):
    """A text with a mask is filled by the generator."""
    text, masked = ELECTRA
    blank, found = detected.samples
    assert "".join(token.gap + token.word for token in found.now.tokens) + found.now.end == text
    run = lmrep.load(electra.directory)
    [tokens], [[candidates]] = run.detect_replaced([text]), run.fill_masks([masked])
    assert [(token.word, token.probability) for token in found.now.tokens] == [
        (token.word, pytest.approx(token.probability)) for token in tokens]
    assert blank.now == candidates and [blank.prompt[0], blank.prompt[2]] == masked.split("[MASK]")
    for before, now in zip(found.before.tokens, found.now.tokens, strict=True):
        assert 0 < before.probability < 1 and before.probability != now.probability
        assert f"<b>{escape(now.word)}</b><small>{100 * now.probability:.0f}</small>" in electra_page


def test_character_of_several_bytes_is_one_token_with_the_largest_probability():
    prediction = [ReplacedToken("a", 0, 1, 0.1), ReplacedToken("\u732b", 2, 3, 0.2), ReplacedToken("\u732b", 2, 3, 0.9),
                  ReplacedToken("", 3, 3, 0.6)]
    assert replaced_tokens.shade("a \u732b!", prediction) == replaced_tokens.ShadedText(
        [replaced_tokens.ShadedToken("", "a", 0.1), replaced_tokens.ShadedToken(" ", "\u732b", 0.9)], "!")


def test_validation_text_contains_the_generator_s_tokens(tmp_path):
    """The tokens are sampled with the example's own seeds, and the encoder sees the full example."""
    run = lmrep.load(given.workdir(tmp_path, "replaced_token", layers=1))
    stage, draw, special = stage_at(run.experiment, 0), np.random.default_rng(0), run.tokenizer.vocabulary.specials
    tokens = draw.integers(len(special), run.tokenizer.size, (8, 32))
    tokens[:, 0], tokens[:, -4:] = special["cls"], special["pad"]
    batch = {"tokens": tokens.astype(np.int32), "segment_ids": (np.arange(32) < 28) * np.ones((8, 1), np.int32),
             "token_type_ids": np.zeros((8, 32), np.int32), "example": np.arange(8, dtype=np.int32)}
    batch = jax.device_get(jax.jit(lambda batch: run.objective.prepare(
        prepare_keys(run.objective, batch, 0, np.int32(0)), batch))(batch))
    found = replaced_tokens.held_out((None, run), batch)
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
    assert found.before is None and 0 < len(found.texts) <= replaced_tokens.MAX_SHOWN
    pairs = {tuple(map(run.tokenizer.id_to_token, pair)) for pair in zip(
        batch["tokens"][replaced].tolist(), shown[replaced].tolist(), strict=True)}
    for _, text in found.texts:
        changed = [token for token in text.tokens if token.original is not None]
        assert changed and {(token.original, token.word) for token in changed} <= pairs
        assert all(np.abs(probabilities[replaced] - token.probability).min() < 1e-5 for token in changed)
        assert len(text.tokens) <= 2 * replaced_tokens.CONTEXT + 1


@slow
def test_page_shows_which_replaced_tokens_are_found(electra_page, detected):
    found = detected.held_out["replaced"]
    assert found.before != found.now
    for counts, when in ((found.before, "before training"), (found.now, "now")):
        assert f"{counts[0]:,} and {counts[1]:,} of these for replaced {when}" in electra_page
    changed = [token for pair in found.texts for text in pair for token in text.tokens if token.original is not None]
    for token in changed:
        assert f"<del>{escape(token.original)}</del> → <ins>{escape(token.word)}</ins>" in electra_page
    section = electra_page.partition("Validation text with replaced tokens")[2].partition("<section>")[0]
    assert section.count("<del>") == len(changed)
    told = sum(token.probability > 0.5 for token in changed)
    assert section.count(">✓<") == told and section.count(">✗<") == len(changed) - told


@pytest.mark.parametrize(("name", "size"), [("wordpiece", 64), ("bpe", 64), ("byte_level_bpe", 280),
                                            ("sentencepiece_unigram", 20), ("sentencepiece_bpe", 40)])
def test_tokens_are_joined_as_in_the_text(name, size):
    text = "the old cats; see the sea, the mouse"
    tokenizer = tokenizers.train(tokenizers.Config(name, size), lambda: iter([text] * 20))
    found = replaced_tokens.spaced(tokenizer.encode(text).ids.tolist(), tokenizer)
    assert "".join(map("".join, found)).strip() == text and all(word == word.strip() for _, word in found)


@slow
def test_no_prediction_before_training_if_the_first_stage_had_another_objective(electra, detected):
    network = electra.network
    objective = OBJECTIVES["masked"].build(OBJECTIVES["masked"].config(), network.model, network.tokenizer.vocabulary)
    first = dataclasses.replace(
        electra, network=dataclasses.replace(network, objectives=[objective, *network.objectives]))
    found = predictions.predict(first, 0)
    assert [sample.before for sample in found.samples] == [None, None]
    assert found.held_out["replaced"].before is None
    assert found.held_out["replaced"].now == detected.held_out["replaced"].now
    assert "before training</h4>" not in page.render([dataclasses.replace(first, predictions=found)])


@slow
def test_unknown_capability_is_printed(causal, continued, monkeypatch):
    monkeypatch.setattr(predictions, "RENDERERS", {})
    found = predictions.predict(causal, 0)
    [sample], [known] = found.samples, continued.samples
    assert sample.view == "printed" and sample.before != sample.now
    assert sample.now.startswith(f"{TEXT} |{known.now}")
    assert escape(sample.now) in page.render([dataclasses.replace(causal, predictions=found)])


@slow
def test_examples_of_an_objective_without_capabilities_are_described(electra, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "replaced_token", OBJECTIVES["replaced_token"]._replace(capabilities=()))
    found = predictions.predict(electra, 0)
    assert found.samples == [] and found.held_out.keys() == {"described"}
    texts = found.held_out["described"]
    assert len(texts) == predictions.DESCRIBED and any("-> [MASK]}" in text for text in texts)
    html = page.render([dataclasses.replace(electra, predictions=found)])
    assert all(escape(text) in html for text in texts)


def test_advice_contains_a_suitable_prompt(causal, continued):
    commands = [command for _, command in prose.next_steps(dataclasses.replace(causal, predictions=continued))]
    assert any("lmrep predict" in command and shlex.quote(TEXT) in command for command in commands)


@slow
def test_advice_for_electra_contains_a_suitable_prompt(electra, detected):
    commands = [command for _, command in prose.next_steps(dataclasses.replace(electra, predictions=detected))]
    assert any("lmrep predict" in command and shlex.quote(ELECTRA[0]) in command for command in commands)


@pytest.mark.parametrize("view", [predictions._masked_tokens, predictions._next_tokens])
def test_batches_of_other_fields_are_said_not_to_be_shown(view):
    """An objective may prepare what it likes: one sentence instead of predictions for validation text."""
    objective = SimpleNamespace(name="mine", predict=len, uses=Uses(Context.LEFT, NextToken(len)))
    notes = []
    assert view(None, (None, SimpleNamespace(objective=objective)), {"tokens": np.zeros((2, 3))}, notes) == []
    assert len(notes) == 1 and "'mine'" in notes[0] and "held_out" in notes[0]
