"""The values of each page are those of its paper or, where that says nothing, of the code released with it."""

import pytest

from lmrep.experiment import config as experiments
from tests.experiments.pages import FILES, get_config, load

BERT_ADAM = {"name": "adamw", "betas": (0.9, 0.999), "eps": 1e-6, "bias_correction": False, "weight_decay": 0.01,
             "clip": 1.0, "decay_skip": ("*bias", "*norm/*")}
ROBERTA_ADAM = {"name": "adamw", "betas": (0.9, 0.98), "eps": 1e-6, "bias_correction": True, "weight_decay": 0.01,
                "clip": 0.0, "decay_skip": ()}
XL_ADAM = {"name": "adamw", "betas": (0.9, 0.999), "eps": 1e-8, "bias_correction": True, "weight_decay": 0.0,
           "clip": 0.25, "schedule": {"name": "cosine", "final": 0.0}}
MASKED = {"name": "masked", "rate": 0.15, "mask": 0.8, "random": 0.1, "keep": 0.1}
DISCRIMINATOR = {"name": "replaced_token", "weight": 50.0, "generator_weight": 1.0, "mask": 0.85, "keep": 0.15,
                 "random": 0.0, "tie": "all", "temperature": 1.0}
XL = {"length": 150, "model": {"layers": 16, "width": 410, "heads": 10, "mlp": 2100, "dropout": 0.1,
                               "attention_dropout": 0.0, "memory": 150, "cutoffs": (20_000, 40_000, 200_000), "div": 1}}

# page: argument -> steps, batch size, peak rate, steps of warm-up, and other fields of the config.
PAPERS = {
    "bert.py": {"size=base": (1_000_000, 256, 1e-4, 10_000, {
        "length": 128, "optimizer": BERT_ADAM | {"schedule": {"name": "linear", "decay_from": "start", "final": 0.0}},
        "objective": MASKED | {"sentence_pair": True, "masking": "static", "count": "round"},
        "format": {"name": "segment_pair", "pairs": "nsp", "duplicates": 10, "short_sequence_probability": 0.1},
        "tokenizer": {"name": "wordpiece", "vocab_size": 30522, "lowercase": True},
        "model": {"layers": 12, "width": 768, "heads": 12, "mlp": 3072, "dropout": 0.1, "attention_dropout": 0.1,
                  "norm": "post", "norm_eps": 1e-12, "activation": "gelu_tanh", "init": "truncated_normal",
                  "init_stddev": 0.02, "max_length": 512, "token_types": 2}}),
        "size=large_cased": (1_000_000, 256, 1e-4, 10_000, {
            "model": {"layers": 24, "width": 1024, "heads": 16, "mlp": 4096},
            "tokenizer": {"vocab_size": 28996, "lowercase": False}})},
    "roberta.py": {
        "size=base": (500_000, 8192, 6e-4, 24_000, {
            "length": 512, "optimizer": ROBERTA_ADAM | {"schedule": {"name": "linear", "decay_from": "warmup"}},
            "objective": MASKED | {"masking": "dynamic", "sentence_pair": False},
            "format": {"name": "full_sentences", "duplicates": 1},
            "tokenizer": {"name": "byte_level_bpe", "vocab_size": 50265, "lowercase": False},
            "model": {"norm_eps": 1e-5, "token_types": 0, "position_offset": 2, "activation": "gelu"}}),
        "size=large": (500_000, 8192, 4e-4, 30_000, {"model": {"layers": 24}}),
        "batch=256": (1_000_000, 256, 1e-4, 10_000, {}), "batch=2k": (125_000, 2048, 7e-4, 10_000, {}),
        "batch=8k": (31_000, 8192, 1e-3, 2480, {})},
    "albert.py": {"size=base": (125_000, 4096, 1.76e-3, 3125, {
        "length": 512, "optimizer": BERT_ADAM | {"name": "lamb", "schedule": {"name": "linear", "decay_from": "start"}},
        "objective": MASKED | {"ngram": 3, "masking": "static", "sentence_pair": True, "max_predictions": 0},
        "format": {"name": "segment_pair", "pairs": "sop", "duplicates": 40},
        "tokenizer": {"name": "sentencepiece_unigram", "vocab_size": 30_000},
        "model": {"share": "all", "embedding": 128, "width": 768, "dropout": 0.1}}),
        "size=xxlarge": (125_000, 4096, 1.76e-3, 3125, {
            "model": {"layers": 12, "width": 4096, "heads": 64, "mlp": 16_384}})},
    "spanbert.py": {"size=base": (2_400_000, 256, 1e-4, 10_000, {
        "length": 512, "optimizer": BERT_ADAM | {"eps": 1e-8, "bias_correction": True, "decay_skip": ()},
        "objective": {"name": "span_boundary", "rate": 0.15, "p": 0.2, "max_span_length": 10, "position_width": 200,
                      "count": "ceil", "replace": "span", "weight": 1.0},
        "format": {"name": "doc_sentences"}, "tokenizer": {"vocab_size": 28996, "lowercase": False}})},
    "electra.py": {
        "size=small": (1_000_000, 128, 5e-4, 10_000, {
            "length": 128, "optimizer": BERT_ADAM | {"schedule": {"name": "linear", "decay_from": "both"}},
            "objective": DISCRIMINATOR | {"rate": 0.15, "generator": 0.25},
            "model": {"layers": 12, "width": 256, "heads": 4, "mlp": 1024, "embedding": 128, "activation": "gelu"}}),
        "size=small_plus": (4_000_000, 128, 5e-4, 10_000, {"objective": {"generator": 1.0}}),
        "size=base": (766_000, 256, 2e-4, 10_000, {"length": 512, "objective": DISCRIMINATOR | {"generator": 1 / 3}}),
        "size=large": (400_000, 2048, 2e-4, 10_000, {
            "length": 512, "objective": DISCRIMINATOR | {"generator": 0.25, "rate": 0.25}})},
    "distilbert.py": {"": (6300, 4000, 5e-4, 315, {
        "length": 512, "optimizer": {"name": "adamw", "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.0,
                                     "clip": 5.0, "bias_correction": True},
        "objective": {"alpha_ce": 5.0, "alpha_mlm": 2.0, "alpha_cos": 1.0, "temperature": 2.0, "smoothing": 0.7,
                      "rate": 0.15, "draw": "batch", "restrict_ce_to_mask": False},
        "model": {"layers": 6, "width": 768, "token_types": 0}})},
    "gpt.py": {"": (3_000_000, 64, 2.5e-4, 2000, {
        "length": 512, "optimizer": BERT_ADAM | {"eps": 1e-8, "bias_correction": True, "schedule": {
            "name": "cosine", "final": 0.0}},
        "objective": {"name": "causal"}, "format": {"name": "stream"},
        "tokenizer": {"name": "bpe", "vocab_size": 40478, "lowercase": True},
        "model": {"layers": 12, "width": 768, "norm": "post", "table_dropout": True, "dropout": 0.1}})},
    "gpt2.py": {"size=xl": (100_000, 512, 2.5e-4, 2000, {
        "length": 1024, "tokenizer": {"name": "byte_level_bpe", "vocab_size": 50257, "lowercase": False},
        "model": {"layers": 48, "width": 1600, "heads": 25, "mlp": 6400, "norm": "pre", "max_length": 1024}})},
    "elmo.py": {"size=original": (1_000_844, 384, 0.2, 0, {
        "length": 20, "optimizer": {"name": "adagrad", "accumulator": 1.0, "gradient_scale": 20.0, "clip": 10.0,
                                    "weight_decay": 0.0, "schedule": {"name": "constant"}},
        "objective": {"name": "bidirectional", "negatives": 8192},
        "format": {"name": "sentence_stream", "order": "independent"},
        "tokenizer": {"name": "elmo", "vocab_size": 793_471, "lowercase": False},
        "model": {"cell": 4096, "width": 512, "layers": 2, "highways": 2, "residual": True, "directions": "both"}})},
    "transformer_xl.py": {
        "size=base": (200_000, 64, 2.5e-4, 0, XL | {"optimizer": XL_ADAM, "format": {"order": "contiguous"}}),
        "size=large": (4_000_000, 128, 2.5e-4, 16_000, {"length": 384, "optimizer": XL_ADAM, "model": {
            "layers": 18, "width": 1024, "heads": 16, "mlp": 4096, "dropout": 0.2, "attention_dropout": 0.2,
            "memory": 384, "div": 4}}),
        "size=enwik8": (400_000, 24, 2.5e-4, 0, {"length": 512, "optimizer": XL_ADAM, "model": {
            "layers": 12, "width": 512, "heads": 8, "mlp": 2048, "dropout": 0.1, "memory": 512, "cutoffs": ()}}),
        "size=lm1b": (500_000, 224, 2.5e-4, 20_000, {"length": 32, "optimizer": XL_ADAM, "model": {
            "layers": 18, "width": 1024, "heads": 8, "mlp": 4096, "dropout": 0.0, "memory": 32, "div": 4}})},
    "xlnet.py": {"size=large": (500_000, 8192, 4e-4, 40_000, {
        "length": 512, "optimizer": BERT_ADAM | {"schedule": {"name": "linear", "decay_from": "warmup",
                                                              "final": 0.001}},
        "objective": {"name": "permutation", "k": 6.0, "max_span": 5, "spans": True, "sentence_pair": False},
        "format": {"name": "stream_pair", "bidirectional": True},
        "tokenizer": {"name": "sentencepiece_xlnet", "vocab_size": 32_000},
        "model": {"layers": 24, "width": 1024, "heads": 16, "mlp": 4096, "memory": 384, "dropout": 0.1,
                  "attention_dropout": 0.1, "causal": False, "untie": True, "segments": True}})},
    "t5.py": {"size=base": (524_288, 128, 0.01, 10_000, {
        "length": 568, "optimizer": {"name": "adafactor", "moment_power": 0.8, "rms_clip": 1.0, "factor_from": 128,
                                     "parameter_scale": True, "weight_decay": 0.0, "clip": 0.0,
                                     "schedule": {"name": "inverse_sqrt", "warmup_from": 1.0}},
        "objective": {"name": "span_corruption", "rate": 0.15, "mean_span": 3.0, "closing_sentinel": False},
        "tokenizer": {"name": "sentencepiece_t5", "vocab_size": 32_100},
        "model": {"vocab": 32_128, "layers": 12, "width": 768, "heads": 12, "mlp": 3072, "head_width": 64,
                  "dropout": 0.1, "buckets": 32, "max_distance": 128, "activation": "relu", "gated": False,
                  "tied": "all", "shared_dropout": True}}),
        "size=1_1_base": (524_288, 128, 0.01, 10_000, {
            "model": {"mlp": 2048, "gated": True, "activation": "gelu_tanh"}})},
    "deberta.py": {
        "size=base": (500_000, 8192, 6e-4, 10_000, {
            "length": 512, "optimizer": BERT_ADAM | {"betas": (0.9, 0.98), "bias_correction": True, "clip": 1.0},
            "objective": DISCRIMINATOR | {"rate": 0.15, "mask": 1.0, "keep": 0.0, "tie": "tokens", "generator": 1.0,
                                          "generator_layers": 6, "with_replacement": False},
            "tokenizer": {"vocab_size": 128_100, "lowercase": False},
            "model": {"layers": 12, "width": 768, "heads": 12, "mlp": 3072, "positions": "disentangled",
                      "position_buckets": 256, "max_distance": 512, "embedding_delta": True, "convolution": 0}}),
        "size=large,tie=all": (500_000, 8192, 3e-4, 10_000, {
            "objective": {"tie": "all", "generator_layers": 12}, "model": {"layers": 24, "embedding_delta": False}})},
    "modernbert.py": {
        "size=base": (371_869, 4608, 8e-4, 3421, {
            "length": 1024, "optimizer": {"name": "stable_adamw", "betas": (0.9, 0.98), "eps": 1e-6,
                                          "weight_decay": 1e-5 / 8e-4,
                                          "schedule": {"name": "warmup_stable_decay", "cooldown_fraction": 0.0}},
            "objective": {"rate": 0.3, "mask": 0.8, "random": 0.1, "keep": 0.1, "evaluation_rate": 0.15},
            "model": {"layers": 22, "width": 768, "mlp": 1152, "rotary_base": 10_000.0, "dropout": 0.0}}),
        "size=base,phase=decay": (84_771, 72, 3e-4, 0, {
            "length": 8192, "optimizer": {"schedule": {"cooldown": "sqrt", "cooldown_fraction": 1.0}},
            "model": {"rotary_base": 160_000.0}}),
        "size=large": (342_295, 4928, 5e-4, 1532, {"model": {"layers": 28, "width": 1024}})},
    "neobert.py": {
        "size=base": (1_000_000, 2048, 1e-4, 2000, {
            "length": 1024, "optimizer": {"name": "adamw", "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01,
                                          "clip": 1.0, "schedule": {"name": "cosine", "final": 0.1}},
            "objective": {"rate": 0.2, "mask": 1.0, "random": 0.0, "keep": 0.0, "head": "table"},
            "tokenizer": {"name": "wordpiece", "vocab_size": 30522, "lowercase": True},
            "model": {"layers": 28, "width": 768, "mlp": 2048, "norm_kind": "rms", "dropout": 0.0, "tied": False}}),
        "size=base,phase=extension": (50_000, 512, 1e-4, 2000, {"length": 4096})},
    "gptbert.py": {
        "": (7812, 32_768, 1.41e-2, 125, {
            "length": 128, "optimizer": {"name": "lamb", "betas": (0.9, 0.98), "eps": 1e-8, "bias_correction": True,
                                         "weight_decay": 0.1, "clip": 2.0, "decay_skip": ("*bias", "*norm/*"),
                                         "schedule": {"name": "cosine", "decay_from": "warmup", "final": 0.1}},
            "objective": {"name": "masked_next_token", "share": 15 / 16, "rate": 0.3, "final_rate": 0.15,
                          "rate_steps": 7812, "evaluation_rate": 0.15, "z_loss": 1e-4, "mask": 0.8, "random": 0.1,
                          "keep": 0.1, "count": "floor", "random_specials": False},
            "tokenizer": {"vocab_size": 8192},
            "model": {"layers": 12, "width": 384, "heads": 6, "mlp": 1280, "norm_eps": 1e-5, "gated": True,
                      "layer_weights": "dense_blocks", "dropout": 0.1, "attention_dropout": 0.1}}),
        "size=base": (15_625, 32_768, 1e-2, 250, {
            "tokenizer": {"vocab_size": 16_384}, "model": {"width": 768, "heads": 12, "mlp": 2560}})},
    "lstm_lm.py": {
        "size=medium": (50_000, 32, 1e-3, 1000, {"length": 35, "model": {
            "layers": 2, "width": 650, "dropout": 0.5, "init_range": 0.05}}),
        "size=large": (50_000, 32, 1e-3, 1000, {"length": 35, "model": {
            "layers": 2, "width": 1500, "dropout": 0.65, "init_range": 0.04}})},
    "awd_lstm.py": {
        "size=ptb": (285_500, 24, 30.0, 0, {
            "length": 70, "format": {"name": "stream", "order": "contiguous", "lengths": "normal"},
            "objective": {"bias": True},
            "optimizer": {"name": "nt_asgd", "nonmonotone": 5, "momentum": 0.0, "weight_decay": 1.2e-6, "clip": 0.25,
                          "decay_skip": (), "schedule": {"name": "constant"}},
            "tokenizer": {"name": "words", "vocab_size": 10_000},
            "model": {"layers": 3, "width": 1150, "embedding": 400, "biases": 2, "dropout": 0.4, "hidden_dropout": 0.25,
                      "input_dropout": 0.4, "embedding_dropout": 0.1, "weight_dropout": 0.5, "ar": 2.0, "tar": 1.0,
                      "ar_of": "dropped"}}),
        "size=wt2": (288_750, 80, 30.0, 0, {"tokenizer": {"vocab_size": 33_278}, "model": {
            "dropout": 0.4, "hidden_dropout": 0.2, "input_dropout": 0.65, "embedding_dropout": 0.1,
            "weight_dropout": 0.5}})},
    "ulmfit.py": {
        "stage=general": (230_000, 64, 0.005, 0, {"model": {
            "dropout": 0.01, "hidden_dropout": 0.015, "input_dropout": 0.025, "embedding_dropout": 0.002,
            "weight_dropout": 0.02}}),
        "stage=target,init=runs/general": (81_000, 64, 0.004, 0, {
            "length": 70, "format": {"name": "stream", "order": "contiguous", "lengths": "normal"},
            "objective": {"bias": False}, "tokenizer": {"name": "fastai_paper", "vocab_size": 60_002},
            "optimizer": {"name": "adamw", "betas": (0.7, 0.99), "bias_correction": True, "weight_decay": 1e-7,
                          "clip": 0.3, "schedule": {"name": "slanted_triangular", "cut_fraction": 0.1, "ratio": 32.0},
                          "multipliers": {"encoder/embedding/*": 2.6**-3, "encoder/layers/0/*": 2.6**-2,
                                          "encoder/layers/1/*": 1 / 2.6}},
            "model": {"layers": 3, "width": 1150, "embedding": 400, "dropout": 0.1, "hidden_dropout": 0.15,
                      "input_dropout": 0.25, "embedding_dropout": 0.02, "weight_dropout": 0.2, "ar": 2.0, "tar": 1.0,
                      "ar_of": "raw"}}),
        "stage=target,init=runs/general,recipe=released": (81_000, 64, 0.004, 0, {"optimizer": {
            "betas": (0.8, 0.99), "multipliers": {"encoder/embedding/*": 1 / 2, "encoder/layers/0/*": 1 / 6,
                                                  "encoder/layers/1/*": 1 / 3}}})},
    "rnn_lm.py": {"": (50_000, 32, 1e-3, 1000, {"model": {"cell": "rnn", "layers": 1, "width": 200, "dropout": 0.0}})},
    "transformer_mt.py": {
        "": (100_000, 96, (512 * 4000) ** -0.5, 4000, {
            "optimizer": {"betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.0, "clip": 0.0,
                          "schedule": {"name": "inverse_sqrt", "warmup_from": 0.0}},
            "objective": {"label_smoothing": 0.1}, "tokenizer": {"vocab_size": 37_000},
            "model": {"layers": 6, "width": 512, "heads": 8, "mlp": 2048, "dropout": 0.1, "norm": "post"}}),
        "size=big": (300_000, 96, (1024 * 4000) ** -0.5, 4000, {
            "objective": {"label_smoothing": 0.1},
            "model": {"width": 1024, "heads": 16, "mlp": 4096, "dropout": 0.3}})},
    "cove.py": {"": (300_000, 64, 1.0, 0, {
        "optimizer": {"name": "sgd", "clip": 5.0, "schedule": {"name": "plateau", "factor": 0.5, "final": 0.03}},
        "model": {"layers": 2, "width": 600, "embedding": 300, "dropout": 0.2, "init_range": 0.1,
                  "attention": "general", "input_feeding": True}})},
    "taglm.py": {"": (0, 32, 1e-3, 0, {
        "optimizer": {"clip": 5.0}, "objective": {
            "network": "bilstm_crf", "scheme": "BIOES", "bilstm": {"width": 300, "layers": 2, "dropout": 0.25}}})},
}
TASKS = ("transformer_mt.py", "cove.py", "taglm.py")


@pytest.mark.parametrize(("page", "argument"), [(page, argument) for page in PAPERS for argument in PAPERS[page]])
def test_values_are_the_published_ones(page, argument):
    steps, batch_size, rate, warmup, fields = PAPERS[page][argument]
    experiment = load(page, argument if page in TASKS else ",".join(filter(None, (argument, "data=files"))))
    stage, schedule = experiments.resolve_stages(experiment)[0], experiment.optimizer.schedule
    assert (experiment.steps, experiment.batch_size) == (steps, batch_size)
    assert experiment.optimizer.learning_rate == pytest.approx(rate)
    if steps:
        assert schedule.warmup + round(schedule.warmup_fraction * steps) == warmup
    assert differing(fields, {"objective": stage.objective_name, "format": stage.format_name}, experiment) == []


@pytest.mark.parametrize("page", [page for page in FILES if page.startswith("tasks/")])
def test_pages_of_tasks_state_their_defaults(page):
    config, page = get_config(FILES[page])(""), " ".join(FILES[page].read_text().split())
    rate = f"{config['optimizer']['learning_rate']:g}".replace("e-0", "e-")
    schedule = config["optimizer"]["schedule"]
    warmup, shape = {"linear": (0.1, "after a warm-up over a tenth of the steps, then linear to 0"),
                     "slanted_triangular": (0.0, "for the head by slanted triangles")}[schedule["name"]]
    assert (f"{config['epochs']:g} epochs, batches of {config['batch_size']}, Adam at {rate} {shape}; sequences of "
            f"{config['length']} tokens.") in page
    assert (schedule["warmup"], schedule["warmup_fraction"]) == (0, warmup)


def differing(expected, names, found, where=""):
    """(path, expected value, value) of the fields that differ."""
    result = []
    for name, value in expected.items():
        path = f"{where}{name}"
        if where in ("objective.", "format.") and name == "name":
            actual = names[where[:-1]]
        else:
            actual = found[name] if isinstance(found, dict) else getattr(found, name)
        if isinstance(value, dict):
            result += differing(value, names, actual, f"{path}.")
        elif actual != value:
            result.append((path, value, actual))
    return result


def test_one_tenth_of_berts_steps_have_512_tokens():
    stages = experiments.resolve_stages(load("bert.py", "size=base,data=files"))
    assert [(stage.steps, stage.length) for stage in stages] == [(900_000, 128), (100_000, 512)]


@pytest.mark.parametrize(("size", "batches", "tokens"), [
    ("base", range(768, 4609, 768), 50e9), ("large", range(448, 4929, 448), 10e9)])
def test_modernbert_grows_its_batches_for_equal_numbers_of_steps(size, batches, tokens):
    """The last batch is full, and stays so; 1,719 billion tokens in all."""
    c = load("modernbert.py", f"size={size},data=files")
    assert [stage.batch_size or c.batch_size for stage in c.stages] == [*batches]
    steps = [round(stage.fraction * c.steps) for stage in c.stages[:-1]]
    assert len({*steps}) == 1 and sum(batches) * steps[0] * c.length == pytest.approx(tokens, rel=1e-3)
    steps.append(c.steps - sum(steps))
    assert sum(n * batch for n, batch in zip(steps, batches, strict=True)) * c.length == pytest.approx(1719e9, rel=1e-4)
