"""Published training recipes, one for each network and tokenizer of `lmrep.models.PRESETS` that is pretrained.

The experiment files train by them, and reports compare a run with the nearest one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

BOOKS_AND_WIKIPEDIA = "BooksCorpus and English Wikipedia, 3.3 billion words"
XLNET_TEXT = "the text of XLNet, 33 billion tokens"


class Recipe(NamedTuple):
    """The published hyperparameters of one system at one size.

    Attributes:
      objective: a name in `OBJECTIVES`.
      format: a name in `FORMATS`.
      optimizer: a name in `lmrep.training.optimizers.RECIPES`.
      optimizer_name: how experiment files call the optimizer with `fields`, where that differs.
      steps: updates.
      batch_size: sequences in a step.
      lengths: (fraction of the steps, tokens in a sequence) of each stage.
      learning_rate: at its peak.
      warmup: updates of linear warm-up.
      sentence_pair: whether the label of a pair is predicted, given a format of pairs.
      fields: every other field of the config that differs from its default, by dotted path.
      unpublished: names of those fields above, or paths in `fields`, that the paper leaves open; the values are ours.
      authors: of the paper, with its year, for reports.
      corpus: what the paper trained on, for reports.
    """

    objective: str
    format: str
    optimizer: str
    steps: int
    batch_size: int
    lengths: tuple[tuple[float, int], ...]
    learning_rate: float
    warmup: int
    optimizer_name: str = ""
    sentence_pair: bool = False
    fields: Mapping[str, Any] = {}
    unpublished: tuple[str, ...] = ()
    authors: str = ""
    corpus: str = ""


_BERT = Recipe(
    authors="Devlin et al., 2019", corpus=BOOKS_AND_WIKIPEDIA,
    objective="masked", format="segment_pair", optimizer="bert", steps=1_000_000, batch_size=256,
    lengths=((0.9, 128), (0.1, 512)), learning_rate=1e-4, warmup=10_000, sentence_pair=True,
    fields={"objective.masking": "static", "format.duplicates": 10, "format.isolate": True})
_BERT_SMALLER = _BERT._replace(authors="Devlin et al., 2019, with the network of Turc et al., 2019")

# Steps of three passes over about 4.3 billion tokens, which is our estimate of this corpus. The released code cuts the
# lines of a file, which hold a text each, where they are longer than a sequence; doc_sentences is nearest to that.
_DISTILBERT = Recipe(
    authors="Sanh et al., 2019", corpus=BOOKS_AND_WIKIPEDIA,
    objective="distillation", format="doc_sentences", optimizer="adamw", optimizer_name="distilbert", steps=6_300,
    batch_size=4000, lengths=((1.0, 512),), learning_rate=5e-4, warmup=315,
    fields={"objective.draw": "batch", "optimizer.betas": (0.9, 0.98), "optimizer.eps": 1e-6,
            "optimizer.weight_decay": 0.0, "optimizer.clip": 5.0},
    unpublished=("steps",))

_ROBERTA = Recipe(
    authors="Liu et al., 2019", corpus="160 GB of English text",
    objective="masked", format="full_sentences", optimizer="roberta", steps=500_000, batch_size=8192,
    lengths=((1.0, 512),), learning_rate=6e-4, warmup=24_000, sentence_pair=True)

_ALBERT = Recipe(
    authors="Lan et al., 2019", corpus=BOOKS_AND_WIKIPEDIA,
    objective="masked", format="segment_pair", optimizer="lamb", steps=125_000, batch_size=4096,
    lengths=((1.0, 512),), learning_rate=1.76e-3, warmup=3_125, sentence_pair=True,
    fields={"objective.masking": "static", "format.duplicates": 40, "format.pairs": "sop"})

_SPANBERT = Recipe(
    authors="Joshi et al., 2019", corpus=BOOKS_AND_WIKIPEDIA,
    objective="span_boundary", format="doc_sentences", optimizer="adamw", optimizer_name="spanbert",
    steps=2_400_000, batch_size=256, lengths=((1.0, 512),), learning_rate=1e-4, warmup=10_000, sentence_pair=True,
    fields={"objective.max_targets": 15, "optimizer.decay_skip": ()})

_ELECTRA_SMALL = Recipe(
    authors="Clark et al., 2020", corpus=BOOKS_AND_WIKIPEDIA,
    objective="replaced_token", format="doc_sentences", optimizer="bert", steps=1_000_000, batch_size=128,
    lengths=((1.0, 128),), learning_rate=5e-4, warmup=10_000,
    fields={"objective.generator": 0.25, "optimizer.schedule.decay_from": "both"})
_ELECTRA_BASE = _ELECTRA_SMALL._replace(
    steps=766_000, batch_size=256, lengths=((1.0, 512),), learning_rate=2e-4,
    fields={**_ELECTRA_SMALL.fields, "objective.generator": 1 / 3})

_GPT = Recipe(
    authors="Radford et al., 2018", corpus="BooksCorpus, 800 million words",
    objective="causal", format="stream", optimizer="adamw", optimizer_name="gpt", steps=3_000_000, batch_size=64,
    lengths=((1.0, 512),), learning_rate=2.5e-4, warmup=2_000,
    fields={"optimizer.schedule.name": "cosine", "format.isolate": True},
    unpublished=("objective.across", "format.isolate"))
_GPT2 = _GPT._replace(
    authors="Radford et al., 2019", corpus="WebText, 40 GB of web pages",
    steps=100_000, batch_size=512, lengths=((1.0, 1024),),
    unpublished=("objective.across", "format.isolate", "optimizer", "steps", "learning_rate", "warmup"))

# Ten passes over the text. Batches are those of three GPUs with 128 examples each.
_ELMO = Recipe(
    authors="Peters et al., 2018", corpus="1 Billion Word Benchmark, 768,648,884 words",
    objective="bidirectional", format="sentence_stream", optimizer="elmo", steps=1_000_844, batch_size=384,
    lengths=((1.0, 20),), learning_rate=0.2, warmup=0)

# Sizes and hyperparameters of the released scripts; of the large model, those for GPUs.
_TRANSFORMER_XL = Recipe(
    authors="Dai et al., 2019", corpus="WikiText-103, 103 million words",
    objective="causal", format="stream", optimizer="adamw", optimizer_name="transformer_xl", steps=200_000,
    batch_size=60, lengths=((1.0, 150),), learning_rate=2.5e-4, warmup=0,
    fields={"objective.bias": True, "format.order": "contiguous", "optimizer.weight_decay": 0.0,
            "optimizer.clip": 0.25, "optimizer.schedule.name": "cosine"})

# The command of the released code has 2,048 sequences in a batch, the paper 8,192.
_XLNET_LARGE = Recipe(
    authors="Yang et al., 2019", corpus=XLNET_TEXT,
    objective="permutation", format="stream_pair", optimizer="bert", optimizer_name="xlnet", steps=500_000,
    batch_size=8192, lengths=((1.0, 512),), learning_rate=4e-4, warmup=40_000,
    fields={"optimizer.schedule.decay_from": "warmup", "optimizer.schedule.final": 0.001},
    unpublished=("optimizer.schedule.final",))
_XLNET_BASE = _XLNET_LARGE._replace(
    unpublished=("steps", "batch_size", "learning_rate", "warmup", "optimizer.schedule.final"))

# The baseline of the paper's study. The last models were trained for a million steps of 2,048 sequences, on a mixture
# with labelled tasks; the released 1.1 models on text alone.
_T5 = Recipe(
    authors="Raffel et al., 2019", corpus="C4, 745 GB of web pages",
    objective="span_corruption", format="stream", optimizer="adafactor", steps=524_288, batch_size=128,
    lengths=((1.0, 568),), learning_rate=0.01, warmup=10_000)

# Of language models with recurrent networks. They have no preset, so reports compare no run with it.
RECURRENT = Recipe(
    objective="causal", format="stream", optimizer="adamw", optimizer_name="adam", steps=50_000, batch_size=32,
    lengths=((1.0, 35),), learning_rate=1e-3, warmup=1_000,
    fields={"optimizer.weight_decay": 0.0})

RECIPES: dict[str, Recipe] = {
    "bert_tiny": _BERT_SMALLER, "bert_mini": _BERT_SMALLER, "bert_small": _BERT_SMALLER, "bert_medium": _BERT_SMALLER,
    "bert_base": _BERT, "bert_large": _BERT, "bert_base_cased": _BERT, "bert_large_cased": _BERT,
    "distilbert_base": _DISTILBERT,
    "roberta_base": _ROBERTA, "roberta_large": _ROBERTA._replace(learning_rate=4e-4, warmup=30_000),
    "albert_base": _ALBERT, "albert_large": _ALBERT, "albert_xlarge": _ALBERT, "albert_xxlarge": _ALBERT,
    "spanbert_base": _SPANBERT, "spanbert_large": _SPANBERT,
    "electra_small": _ELECTRA_SMALL,
    "electra_small_plus": _ELECTRA_SMALL._replace(
        corpus=XLNET_TEXT, steps=4_000_000, fields={**_ELECTRA_SMALL.fields, "objective.generator": 1.0}),
    "electra_base": _ELECTRA_BASE,
    "electra_large": _ELECTRA_BASE._replace(
        corpus=XLNET_TEXT, steps=400_000, batch_size=2048,
        fields={**_ELECTRA_SMALL.fields, "objective.rate": 0.25}),
    "elmo_small": _ELMO, "elmo_medium": _ELMO, "elmo_original": _ELMO,
    "transformer_xl_wt103_base": _TRANSFORMER_XL,
    "transformer_xl_wt103_large": _TRANSFORMER_XL._replace(
        steps=4_000_000, batch_size=128, lengths=((1.0, 384),), warmup=16_000),
    "transformer_xl_enwik8": _TRANSFORMER_XL._replace(
        corpus="enwik8, 90 million bytes of Wikipedia", steps=400_000, batch_size=22, lengths=((1.0, 512),)),
    "transformer_xl_lm1b": _TRANSFORMER_XL._replace(
        corpus="1 Billion Word Benchmark", steps=500_000, batch_size=224, lengths=((1.0, 32),), warmup=20_000),
    "xlnet_base": _XLNET_BASE, "xlnet_large": _XLNET_LARGE,
    **dict.fromkeys(("t5_small", "t5_base", "t5_large", "t5_3b", "t5_11b"), _T5),
    **dict.fromkeys((f"t5_1_1_{size}" for size in ("small", "base", "large", "xl", "xxl")), _T5),
    "gpt": _GPT, "gpt2": _GPT2, "gpt2_medium": _GPT2, "gpt2_large": _GPT2, "gpt2_xl": _GPT2,
}
