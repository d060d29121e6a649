"""The objective is one flag, which changes nothing else."""

from pathlib import Path

import pytest

from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.objectives import OBJECTIVES

PAGE = Path(__file__).parents[2] / "experiments/bert.py"
# Bidirectional language models read two streams of sentences, each by a direction of the network; permutation language
# models have two streams, and span corruption needs a network that reads a source.
NAMES = [name for name in OBJECTIVES if name not in ("bidirectional", "permutation", "span_corruption")]
CONFIGS = {name: loading.load(PAGE, f"size=tiny,objective={name}").to_dict() for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_flag_changes_the_objective_and_nothing_else(name):
    assert {field for field, value in CONFIGS[name].items() if value != CONFIGS["masked"][field]} <= {
        "objective", "samples"}
    stages = experiments.resolve_stages(experiments.parse(CONFIGS[name]))
    assert {stage.objective_name for stage in stages} == {name}


@pytest.mark.parametrize("page", ["bert", "gpt", "gpt2"])
@pytest.mark.parametrize("form", ["stream", "packed"])
def test_documents_do_not_attend_to_each_other_by_default(page, form):
    objective = "" if page.startswith("gpt") else "objective=causal,"
    config = loading.load(PAGE.with_name(f"{page}.py"), f"{objective}format={form}")
    assert not config.objective.across and config.format.get("isolate", True)


@pytest.mark.parametrize("variant", ["two_stage", "bert"])
def test_choice_without_effect_is_refused(variant):
    with pytest.raises(UserError, match=f"tie is 'tokens', and variant={variant} has no generator beside"):
        loading.load(PAGE.with_name("electra.py"), f"tie=tokens,variant={variant}")


XLNET = PAGE.with_name("xlnet.py")
ABLATIONS = {
    "k=7": {"objective.k": 7.0}, "memory=no": {"model.memory": 0}, "spans=no": {"objective.spans": False},
    "bidirectional=no": {"format.bidirectional": False}, "nsp=yes": {"objective.sentence_pair": True},
    "reuse=32": {"format.reuse": 32, "model.reuse": 32},
}


@pytest.mark.parametrize("choice", ABLATIONS)
def test_an_ablation_of_xlnet_changes_its_fields_and_nothing_else(choice):
    plain, changed = (flat(loading.load(XLNET, f"size=tiny{more}").to_dict()) for more in ("", f",{choice}"))
    assert {name: value for name, value in changed.items() if value != plain[name]} == ABLATIONS[choice]
    experiments.parse(loading.load(XLNET, choice))


def flat(fields, prefix=""):
    """{dotted path: value} of nested fields."""
    found = {}
    for name, value in fields.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def test_xlnet_keeps_its_network_and_format_with_another_objective():
    plain, masked = (loading.load(XLNET, f"size=base{more}").to_dict() for more in ("", ",objective=masked"))
    assert {name for name, value in masked.items() if value != plain[name]} <= {"objective", "samples"}
    assert experiments.parse(masked).model["memory"] == 384


@pytest.mark.parametrize(("choice", "message"), [
    ("objective=masked,k=7", "k and spans are choices of objective=permutation"),
    ("format=packed,bidirectional=no", "bidirectional and reuse are choices of format=stream_pair"),
    ("format=packed,nsp=yes", "are no pairs")])
def test_a_choice_of_xlnet_without_effect_is_refused(choice, message):
    with pytest.raises(UserError, match=message):
        loading.load(XLNET, choice)


def test_a_memory_that_would_know_what_is_predicted_is_refused():
    """The second half of a window of stream_pair is the first half of the next one."""
    config = loading.load(XLNET, "size=base")
    config.model.reuse = 0
    with pytest.raises(UserError, match="remembers 512, and would know what it predicts"):
        experiments.parse(config)
    config.format.order = "shuffled"
    experiments.parse(config)

    stream = loading.load(XLNET, "size=base,objective=causal,format=stream")
    stream.format.order = "contiguous"  # each example follows all of the one before
    with pytest.raises(UserError, match="after 512 of 512 tokens, and network 'xlnet_base' remembers 256"):
        experiments.parse(stream)
    stream.model.reuse = 0
    experiments.parse(stream)


ABLATION_PAGES = {page: loading.load_module(PAGE.parent / f"ablations/{page}.py")
                  for page in ("bert_to_modernbert", "bert_to_neobert")}
CHANGES = {page: module.CHANGES for page, module in ABLATION_PAGES.items()}
INDEPENDENT = [(page, name) for page, names in CHANGES.items() for name in names
               if name not in ("larger", "deeper", "longer")]  # whose numbers depend on the changes before them


def with_changes(page, argument=""):
    """The fields of an ablation's config at the tiny size."""
    return flat(loading.load(PAGE.parent / f"ablations/{page}.py", f"size=tiny{argument}").to_dict())


def differing(fields, plain):
    return {name: value for name, value in fields.items() if value != plain.get(name, ...)}


@pytest.mark.parametrize(("page", "name"), INDEPENDENT)
def test_a_change_of_bert_is_the_same_alone_and_after_those_before_it(page, name):
    before = [each for each in CHANGES[page][:CHANGES[page].index(name)]
              if each not in getattr(ABLATION_PAGES[page], "DROPPED", ())]
    before = with_changes(page, f",up_to={before[-1]}" if before else "")
    alone = differing(with_changes(page, f",alone={name}"), with_changes(page))
    assert alone and differing(with_changes(page, f",up_to={name}"), before) == alone


@pytest.mark.parametrize("size", ["base", "medium", "tiny"])
def test_larger_networks_and_longer_sequences_on_the_way_to_neobert(size):
    """The deeper network is about as large as the one before, and a longer sequence takes as many tokens."""
    first, larger, deeper, batches, longer = (
        loading.load(PAGE.parent / "ablations/bert_to_neobert.py", f"size={size},data=files,up_to={name}")
        for name in ("gated", "larger", "deeper", "batches", "longer"))
    weights = [12 * config.model.layers * config.model.width**2 for config in (first, larger, deeper)]
    assert weights[1] > 1.9 * weights[0] and weights[2] == pytest.approx(weights[1], rel=0.25)
    assert all(8 * config.model.width / 3 <= config.model.mlp < 8 * config.model.width / 3 + 8
               for config in (first, larger, deeper))
    assert batches.batch_size * batches.length == longer.batch_size * longer.length
    assert longer.model.max_length >= longer.length > batches.length and batches.batch_size > first.batch_size
