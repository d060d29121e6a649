"""Training compute of language models, published by ELECTRA's script (Clark et al., 2020) and by `conventions`."""

from dataclasses import replace
from typing import NamedTuple

from lmrep.models import MODELS, PRESETS
from lmrep.models.base import Model
from lmrep.planning import conventions


class Published(NamedTuple):
    """A training run, with the numbers of the script."""

    flops: float  # published compute, in floating-point operations
    preset: str  # the network, a name in `PRESETS`
    steps: int  # number of updates
    batch_size: int  # sequences in a step
    length: int = 512  # tokens in a sequence
    vocab: int = 0  # size of the vocabulary; 0: that of the preset
    predicts: str = "masked"  # as in `NetworkUse.predicts`
    generator: float = 0.0  # width of ELECTRA's generator, as a fraction of the network's; 0: without a generator
    derived: bool = False  # whether `flops` is computed from another run, since the script does not have this one


PUBLISHED = {
    "GPT": Published(3.968752e19, "gpt", 960_800, 128, vocab=40_000, predicts="tokens"),
    "BERT-Small": Published(1.418740e18, "electra_small", 1_450_000, 128, 128),  # ELECTRA-Small's network
    "BERT-Base": Published(6.428335e19, "bert_base", 1_000_000, 256),
    "BERT-Large": Published(1.917209e20, "bert_large", 1_000_000, 256),
    "RoBERTa 100K": Published(3.187221e21 / 5, "roberta_large", 100_000, 8_000, derived=True),
    "RoBERTa 500K": Published(3.187221e21, "roberta_large", 500_000, 8_000),
    "ELECTRA-Small": Published(1.293744e18, "electra_small", 1_000_000, 128, 128, predicts="binary", generator=0.25),
    "ELECTRA-Base": Published(6.424542e19, "electra_base", 766_000, 256, predicts="binary", generator=1 / 3),
    "ELECTRA-Large 400K": Published(7.117606e20, "electra_large", 400_000, 2_048, predicts="binary", generator=0.25),
    "ELECTRA-Large 1.75M": Published(3.113953e21, "electra_large", 1_750_000, 2_048, predicts="binary", generator=0.25),
    "ALBERT": Published(3.113924e22, "albert_xxlarge", 1_500_000, 4_096),
}

# Measured by a profiler, since the script does not count their networks.
PROFILED = {"ELMo": 3.411439e18, "XLNet": 3.856582e21}


def network(run: Published) -> Model:
    """Builds the network of a published run."""
    preset = PRESETS[run.preset]
    config = replace(preset.config, vocab=run.vocab) if run.vocab else preset.config
    return MODELS[preset.model].build(config)


def computed(run: Published) -> dict[str, float]:
    """Returns the operations of a published run by `conventions.electra_script` and by `conventions.six_n`."""
    model, sequences = network(run), run.steps * run.batch_size
    uses = [(model.make_generator(run.generator).sizes, "masked")] if run.generator else []
    uses.append((model.sizes, run.predicts))
    return {
        "electra_script": sequences * sum(
            conventions.electra_script(sizes.transformer, run.length, predicts) for sizes, predicts in uses),
        "six_n": sequences * sum(conventions.six_n_of_text(sizes, run.length) for sizes, _ in uses)}
