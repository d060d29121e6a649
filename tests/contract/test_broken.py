"""Components that break their contracts are refused when an experiment is built, before anything is written. The
message names the component and what is wrong."""

import dataclasses
import inspect
import re
from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest

import lmrep
from lmrep.config.record import setting
from lmrep.core.components import component_table
from lmrep.core.errors import Broken, UserError
from lmrep.core.params import ParamSpec, abstract
from lmrep.data.formats import FORMATS
from lmrep.data.formats.base import Spans
from lmrep.data.formats.plans import table
from lmrep.data.tokenizers import TOKENIZERS
from lmrep.experiment import contracts, network_contracts
from lmrep.experiment.config import default_config
from lmrep.metrics import Metric, accuracy_metric
from lmrep.models import MODELS
from lmrep.models.base import Encoded, Heads, Inputs, ModelDef, NetworkLoss, Output, State
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.base import check_capabilities
from lmrep.optimizers import OPTIMIZERS, SCHEDULES, read_config
from lmrep.tasks import TASKS, networks
from lmrep.tasks.base import Result
from tests import small
from tests.contract import characters, convolution, endings, muon, similarity, skip, test_plugins, topics
from tests.tasks import tiny

ENDINGS = endings.DEFINITION


def objective(**fields):
    """The row of `skip`, whose objectives have other fields."""
    def build(*arguments):
        built = skip.build(*arguments)
        return built._replace(**{name: change(built) for name, change in fields.items()})

    return OBJECTIVES, "skip", skip.DEFINITION._replace(build=build)


def measuring(change):
    """The row of `skip`, whose loss has its metrics changed."""
    def of(built):
        def loss(*arguments):
            total, (metrics, carry) = built.loss(*arguments)
            return total, (change(metrics), carry)
        return loss

    return objective(loss=of)


def declaring(**metrics):
    return OBJECTIVES, "skip", skip.DEFINITION._replace(metrics=skip.DEFINITION.metrics | metrics)


def network(change):
    """The row of `convolution`, whose `encode` returns something else."""
    def build(*arguments):
        built = convolution.build(*arguments)
        return built._replace(encode=lambda *inputs, **options: change(built.encode(*inputs, **options)))

    return MODELS, "convolution", convolution.DEFINITION._replace(build=build)


def built(**fields):
    """The row of `convolution`, whose network has other fields."""
    return MODELS, "convolution", convolution.DEFINITION._replace(
        build=lambda *arguments: convolution.build(*arguments)._replace(**fields))


def decoding(decode):
    """The row of `convolution`, whose network generates from left to right by `decode`."""
    return built(state=State(
        cache=lambda params, examples, length: (jnp.zeros((examples, 4)), jnp.zeros((examples, length))),
        decode=decode))


def spans(change):
    """The row of `endings`, whose spans are changed."""
    return FORMATS, "endings", ENDINGS._replace(plan=table(lambda *a: map(change, endings.spans(*a))))


def unreadable(c, *_):
    return c.chanels


def fail_in_two_lines(*_):
    raise ValueError("different children\n  at encoder/layers")


def lost(*_):
    return optax.GradientTransformation(lambda params: jnp.zeros(3), lambda grads, state, params: (grads, state))


@dataclasses.dataclass(frozen=True)
class NoDuplicates:
    """A config of the format `endings` that lacks a field."""

    tokens: int = 12


@dataclasses.dataclass(frozen=True)
class NoDefault:
    """A config with a field that has no default."""

    channels: int


@dataclasses.dataclass(frozen=True)
class NoLength:
    """A config of the network `convolution` that lacks a field."""

    vocab: int = 0
    channels: int = 32


BROKEN = {
    "a misspelt term": (objective(terms=lambda _: {"skp_loss": 1.0}), "skip", "'skp_loss'"),
    "a metric without a declaration": (measuring(lambda m: m | {"top5": m["top3"]}), "skip", "'top5'"),
    "a metric that is a figure of the trainer": (measuring(lambda m: m | {"loss": m["top3"]}), "skip", "'loss'"),
    "a declared metric that is missing": (declaring(top9=accuracy_metric("Top 9")), "skip", "'top9'"),
    "a metric that is no pair": (
        measuring(lambda m: m | {"top3": m["top3"][0]}), "skip",
        "its loss returns the metric 'top3' as an array int32[]; expected (sum, count)"),
    "a metric of each example": (
        measuring(lambda m: m | {"top3": (jnp.ones(2), 1)}), "skip", "'top3'"),
    "a baseline that is no metric": (
        declaring(top3=Metric("Top 3", baseline="most_frequent_acuracy")), "skip", "'most_frequent_acuracy'"),
    "a loss of each example": (
        objective(loss=lambda built: lambda *a: (jnp.ones(2), built.loss(*a)[1])), "skip", "(2,)"),
    "tokens that are cut for the network": (
        objective(prepare=lambda built: lambda keys, batch: built.prepare(keys, batch) | {
            "tokens": batch["tokens"][:, 1:]}), "skip", "it gives the network tokens as an array int32[2, 31]; "
        "expected integers of the shape of segment_ids, [2, 32]"),
    "a loss of three values": (
        objective(loss=lambda built: lambda *a: (1.0, *built.loss(*a)[1])), "skip",
        "its loss returns (float, dict, Carry)"),
    "a prepare that returns nothing": (
        objective(prepare=lambda _: lambda keys, batch: None), "skip",
        "its prepare returns NoneType; expected the batch, a dict; correct this component"),
    "an objective with the name of another row": (
        objective(name=lambda _: "masked"), "skip", "the name of its Objective is 'masked'; give it that of its row"),
    "a row with another config's field": (
        (OBJECTIVES, "skip", skip.DEFINITION._replace(loss_fields=("distanse",))), "skip", "'distanse'"),
    "a check that reads a field that is missing": (
        (OBJECTIVES, "skip", skip.DEFINITION._replace(check=unreadable)), "skip", "'chanels'"),
    "a build that reads a field that is missing": (
        (OBJECTIVES, "skip", skip.DEFINITION._replace(build=unreadable)), "skip", "'chanels'"),
    "a build of other arguments": (
        (OBJECTIVES, "skip", skip.DEFINITION._replace(build=lambda c, model: None)), "skip",
        "expected (config, model, vocabulary)"),
    "a build that returns parts": (
        (OBJECTIVES, "skip", skip.DEFINITION._replace(build=lambda *a: tuple(skip.build(*a)))), "skip",
        "build returns a tuple of 11; expected Objective"),
    "held-out tokens without positions": (
        objective(uses=lambda built: built.uses._replace(held_out=lambda batch: batch["targets"])), "skip", "HeldOut"),
    "a network's build of other arguments": (
        (MODELS, "convolution", convolution.DEFINITION._replace(build=lambda c: None)), "convolution",
        "expected (config, execution, name)"),
    "a network's build that returns a function": (
        (MODELS, "convolution", convolution.DEFINITION._replace(build=lambda *a: len)), "convolution",
        "expected Model"),
    "a network's loss of each token": (
        network(lambda encoded: encoded._replace(losses={"activation": encoded.hidden})), "convolution",
        "'activation' as an array float32[2, "),
    "a network's loss of two arrays": (
        network(lambda encoded: encoded._replace(losses={"activation": NetworkLoss(jnp.ones(2), jnp.ones(2), 1.0)})),
        "convolution", "'activation' as NetworkLoss(an array float32[2], an array float32[2], float)"),
    "a network's loss whose weight is an array": (
        network(lambda encoded: encoded._replace(losses={"activation": NetworkLoss(1.0, 1, jnp.ones(3))})),
        "convolution", "'activation' as NetworkLoss(float, int, an array float32[3])"),
    "a network's loss without a weight": (
        network(lambda encoded: encoded._replace(losses={"activation": NetworkLoss(1.0, 1, None)})), "convolution",
        "'activation' as NetworkLoss(float, int, NoneType); expected NetworkLoss of three scalars"),
    "a network's losses in a list": (
        network(lambda encoded: encoded._replace(losses=[NetworkLoss(1.0, 1, 1.0)])), "convolution",
        "its encode returns the losses [NetworkLoss(sum=1.0"),
    "a network's loss with a number as its name": (
        network(lambda encoded: encoded._replace(losses={3: NetworkLoss(1.0, 1, 1.0)})), "convolution",
        "its encode returns the losses {3: NetworkLoss(sum=1.0"),
    "a decode without a cache": (
        built(state=State(decode=lambda params, tokens, cache, length=None: None)), "convolution",
        "its State has only one of `cache` and `decode`"),
    "a decode that returns hidden states alone": (
        decoding(lambda params, tokens, cache, length=None: jnp.zeros((2, 3, 32))), "convolution",
        "its decode returns an array float32[2, 3, 32]; expected (hidden states of shape (2, 3, 32), the cache)"),
    "a decode of other arguments": (
        decoding(lambda params, tokens: None), "convolution", "takes 2 positional arguments but 4 were given"),
    "a decode that returns another cache": (
        decoding(lambda params, tokens, cache, length=None: (jnp.zeros((2, 3, 32)), cache[:1])), "convolution",
        "its decode returns the cache ('float32[2, 4]',); expected that of the shapes and types that it was given, "
        "('float32[2, 4]', 'float32[2, 3]')"),
    "needs of attention that are no Needs": (
        (MODELS, "convolution", convolution.DEFINITION._replace(attention=lambda c: {"head_width": 8})), "convolution",
        "its attention returns dict; expected Needs of lmrep.layers.attention_backends"),
    "an encode that does not take positions": (
        built(encode=partial(lambda params, inputs, key=None, *, layers=False, attention=False, c: None, c=0)),
        "convolution", "its encode takes (params, inputs, key, *, layers, attention); expected (params, inputs, key, "
        "*, at, layers, attention)"),
    "a prepare of other arguments": (
        objective(prepare=lambda _: lambda batch: batch), "skip", "its prepare takes (batch); expected (keys, batch)"),
    "a loss of other arguments": (
        objective(loss=lambda _: lambda params, batch: None), "skip",
        "its loss takes (params, batch); expected (params, batch, key, carry)"),
    "encode does not return layers": (
        network(lambda encoded: encoded._replace(layers=None)), "convolution",
        "its encode returns the layers NoneType; expected with layers=True"),
    "encode returns one layer too few": (
        network(lambda encoded: encoded._replace(layers=encoded.layers and encoded.layers[:-1])), "convolution",
        "its encode returns 2 layers; expected with layers=True 3, the embedding and 2"),
    "encode returns layers of another shape": (
        network(lambda encoded: encoded._replace(layers=tuple(x[0] for x in encoded.layers or ()))), "convolution",
        "its encode returns the layers ("),
    "encode returns layers as one array": (
        network(lambda encoded: encoded._replace(layers=encoded.layers and jnp.stack(encoded.layers))), "convolution",
        "its encode returns the layers an array float32[3, 2, "),
    "an output table of another shape": (
        built(output=Output(32, lambda params, key=None: params["token"].T)), "convolution",
        "the table of its Output is an array float32[32, "),
    "a parameter whose shape has no number": (
        built(specs={"token": ParamSpec((None, 32), ("vocab", "embed"))}), "convolution",
        "its parameter token has shape (None, 32); expected integers"),
    "attention that is declared and not returned": (
        built(heads=Heads(attention=frozenset({"self"}))), "convolution",
        "its encode returns the attention NoneType; expected with attention=True"),
    "encode returns an array": (
        network(lambda encoded: encoded.hidden), "convolution", "its encode returns an array float32[2, "),
    "encode returns one vector": (
        network(lambda encoded: Encoded(encoded.hidden[:, 0])), "convolution", "(2, 32)"),
    "a network that reads a field that is missing": (
        (MODELS, "convolution", convolution.DEFINITION._replace(build=unreadable)), "convolution", "'chanels'"),
    "a network that fails with two lines": (
        (MODELS, "convolution", convolution.DEFINITION._replace(build=lambda c, execution, name: fail_in_two_lines())),
        "convolution", "ValueError: different children at encoder/layers (line "),
    "a network with a misspelt input": (
        built(inputs=frozenset({"tokens", "position"})), "convolution",
        "it takes the input 'position', which does not exist; correct this component; did you mean 'positions'"),
    "a network with a misspelt context": (
        built(conditions_on=frozenset({"left", "bth"})), "convolution", "'bth', which does not exist"),
    "no specs": (built(specs=None), "convolution", "its specs are NoneType; expected a nested dict of ParamSpec"),
    "a parameter that is its shape": (
        built(specs={"token": (10, 32)}), "convolution",
        "its parameter token is (int, int); expected ParamSpec(shape, axes, init)"),
    "a parameter with too few axes": (
        built(specs={"token": ParamSpec((10, 32), ("vocab",))}), "convolution",
        "its parameter token has shape (10, 32) and axes ('vocab',)"),
    "a parameter with a misspelt axis": (
        built(specs={"token": ParamSpec((10, 32), ("vocab", "embedd"))}), "convolution",
        "its parameter token has the axis 'embedd', which does not exist"),
    "an objective with a misspelt axis": (
        objective(specs=lambda built: built.specs | {"objective": {"x": ParamSpec((8,), ("emb",))}}), "skip",
        "its parameter objective/x has the axis 'emb'"),
    "a network's row with a misspelt rate of dropout": (
        (MODELS, "convolution", convolution.DEFINITION._replace(dropout_fields=("dropuot",))), "convolution",
        "'dropuot'"),
    "a network's row with another config's field": (
        (MODELS, "convolution", convolution.DEFINITION._replace(evaluation_fields=("memory",))), "convolution",
        "'memory'"),
    "a network with the config of another": (
        (MODELS, "conv", convolution.DEFINITION), "convolution", "its row has the config of network 'conv'"),
    "a network's config without max_length": (
        (MODELS, "convolution", convolution.DEFINITION._replace(config=NoLength, tiny={}, architecture_fields=())),
        "convolution", "'max_length'"),
    "a format that misspells a field": (  # which the objective, which needs it, is not to be blamed for
        (FORMATS, "endings", ENDINGS._replace(fields=lambda c: ("tokens", "segment_idz", "example"))),
        "endings", "'segment_idz', which does not exist; correct this component; did you mean 'segment_ids'"),
    "a format that does not give what it promises": (
        (FORMATS, "endings", ENDINGS._replace(fields=lambda c: (*FORMATS["packed"].fields(None), "pair_label"))),
        "endings", "'pair_label'"),
    "a format whose plan is a function of spans": (
        (FORMATS, "endings", ENDINGS._replace(plan=endings.spans)), "endings", "its plan takes"),
    "a format whose spans lack the end of the last example": (
        spans(lambda each: each._replace(offsets=each.offsets[:-1])), "endings", "offsets[-1] is 43; expected 44"),
    "a format whose spans lack a length": (
        spans(lambda each: each._replace(lengths=each.lengths[1:])), "endings", "len(lengths) is 43; expected 44"),
    "a format whose spans have a column of spans": (
        spans(lambda each: each._replace(columns={"pair_label": each.starts[1:]})), "endings",
        "len(columns['pair_label']) is 43; expected 44"),
    "a format whose spans lack columns": (
        spans(lambda each: Spans(*each[:3])), "endings", "missing 1 required positional argument: 'columns'"),
    "a format whose spans are a tuple of arrays": (spans(lambda each: tuple(each)), "endings", "expected Spans"),
    "a format whose plan is a table": (
        (FORMATS, "endings", ENDINGS._replace(plan=lambda *_: [])), "endings",
        "its plan returns list; expected Dataset"),
    "a format's config without duplicates": (
        (FORMATS, "endings", ENDINGS._replace(config=NoDuplicates)), "endings", "'duplicates'"),
    "an optimizer that returns two functions": (
        (OPTIMIZERS, "muon", muon.DEFINITION._replace(direction=lambda *a: tuple(muon.direction(*a)))), "muon",
        "its direction returns (function, function); expected GradientTransformation of optax"),
    "an optimizer's rescale that returns a function": (
        (OPTIMIZERS, "muon", muon.DEFINITION._replace(rescale=lambda *_: lost)), "muon",
        "its rescale returns function"),
    "an optimizer whose state belongs to no parameter": (
        (OPTIMIZERS, "muon", muon.DEFINITION._replace(direction=lost)), "muon", "belongs to no parameter"),
    "a schedule that gives no scalar": (
        (SCHEDULES, "stable", muon.STABLE._replace(decay=lambda *_: lambda step: jnp.ones(2))), "stable", "float32[2]"),
}


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder with a corpus; the small components of this folder are known."""
    monkeypatch.setitem(MODELS, "convolution", convolution.DEFINITION)
    monkeypatch.setitem(OBJECTIVES, "skip", skip.DEFINITION)
    monkeypatch.setitem(FORMATS, "endings", endings.DEFINITION)
    monkeypatch.setitem(TOKENIZERS, "characters", characters.DEFINITION)
    monkeypatch.setitem(OPTIMIZERS, "muon", muon.DEFINITION)
    monkeypatch.setitem(SCHEDULES, "stable", muon.STABLE)
    return small.corpus(tmp_path / "texts")


@pytest.mark.parametrize(("row", "name", "problem"), BROKEN.values(), ids=BROKEN)
def test_it_is_refused(row, name, problem, texts, tmp_path, monkeypatch):
    table, entry, definition = row
    monkeypatch.setitem(table, entry, definition)
    c = test_plugins.config(tmp_path / "texts")
    fields = {field.name for field in dataclasses.fields(definition.config)}
    for section in ("model", "objective", "format"):
        if c[section].name == name:
            c[section] = {key: value for key, value in c[section].items() if key == "name" or key in fields}
    with pytest.raises(UserError) as refused:
        lmrep.train(c, tmp_path / "run", data_dir=tmp_path / "data")
    message = str(refused.value)
    code = getattr(definition, "direction", getattr(definition, "decay", definition.config))
    assert f"'{name}' ({inspect.getsourcefile(code)})" in message
    assert problem in message and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("make", "problem"), [
    (lambda fraction: None, "its make_generator takes (fraction); expected (fraction, layers)"),
    (lambda fraction, layers: fraction, "its make_generator returns float; expected Model of lmrep.models.base"),
    (lambda fraction, layers: fraction.width,
     "make_generator(0.5, 0): AttributeError: 'float' object has no attribute 'width'"),
    (lambda fraction, layers: convolution.build(convolution.Config(vocab=10))._replace(
        specs={"token": ParamSpec((10, 0), ("vocab", "embed"))}),
     "make_generator(0.5, 0): its parameter token has shape (10, 0), and so no values"),
    (lambda fraction, layers: convolution.build(convolution.Config(vocab=10))._replace(width=64),
     "make_generator(0.5, 0): encode returns hidden states of shape (1, 3, 32); expected (1, 3, 64)")])
def test_a_broken_generator_is_the_fault_of_its_network(make, problem):
    model = convolution.build(convolution.Config(vocab=10))._replace(make_generator=make)
    checked = network_contracts.checked_network(model, "convolution", convolution.DEFINITION)
    with pytest.raises(UserError, match=r"^network 'convolution' \(.*convolution\.py\)(: |, )" + re.escape(problem)):
        generator = checked.make_generator(0.5, 0)
        jax.eval_shape(generator.encode, abstract(generator.specs), Inputs(jnp.zeros((1, 3), int)))


def test_a_carry_of_other_shapes_is_the_fault_of_its_network():
    row = MODELS["lstm"]
    model = row.build(row.config(vocab=10, width=4, layers=1))
    broken = model._replace(encode=lambda *a, **b: model.encode(*a, **b)._replace(carry=None))
    inputs = Inputs(jnp.zeros((1, 3), int), carry=model.state.carry(1))
    with pytest.raises(UserError, match=r"^network 'lstm' \(.*lstm\.py\): .* a carry of the shapes None"):
        jax.eval_shape(network_contracts.checked_network(broken, "lstm", row).encode, abstract(model.specs), inputs)


@pytest.mark.parametrize(("known", "problem"), [
    (lambda batch: batch["unit"] >= 0, "Incompatible shapes for broadcasting"), (lambda batch: 0 / 0, "division by")])
def test_targets_of_other_things_than_pairs_are_refused(known, problem, tmp_path, monkeypatch):
    row = similarity.DEFINITION
    build = networks.builder("similarity", lambda c: c.width, known, similarity.loss, similarity.predict)
    monkeypatch.setitem(TASKS, "similarity", row._replace(objective=row.objective._replace(build=build)))
    path = tiny.write(tmp_path / "train.jsonl", [{"text": "a cat", "text2": "the cat"}, {"text": "a", "text2": "the"}])
    with pytest.raises(UserError, match=rf"^objective 'similarity' \(.*similarity\.py\): .*{problem}"):
        lmrep.train(tiny.config("similarity", path), tmp_path / "run", data_dir=tmp_path / "data")


def test_a_task_that_compares_checkpoints_by_no_metric_of_its_row_is_named(monkeypatch):
    monkeypatch.setitem(TASKS, "topics", topics.DEFINITION._replace(best="micro"))
    with pytest.raises(UserError, match=r"^task 'topics' \(.*topics\.py\): it compares checkpoints by 'micro'"):
        tiny.config("topics", "train.jsonl")


@pytest.mark.parametrize(("table", "name", "row", "base"), [
    (OPTIMIZERS, "sgd", OPTIMIZERS["sgd"], "OptimizerConfig"),
    (SCHEDULES, "linear", SCHEDULES["linear"], "ScheduleConfig")])
def test_settings_that_are_not_those_of_all_are_refused(table, name, row, base, monkeypatch):
    monkeypatch.setitem(table, name, row._replace(config=NoLength))
    with pytest.raises(UserError, match=rf"'{name}' \(.*\): its config NoLength is no subclass of {base}"):
        read_config({"name": "sgd", "schedule": {"name": "linear"}})


@pytest.mark.parametrize(("entry", "problem"), [
    (convolution, "is a module; expected ModelDef, such as convolution.DEFINITION"),
    (convolution.build, "is a function; expected ModelDef"), (topics.DEFINITION, "is a TaskDef; expected ModelDef")])
def test_an_entry_of_a_table_that_is_no_row_is_refused(entry, problem):
    with pytest.raises(Broken) as refused:
        component_table(ModelDef, {"lstm": MODELS["lstm"], "convolution": entry})
    assert f"the row 'convolution' in {__file__} {problem}" in str(refused.value)


@pytest.mark.parametrize(("name", "config", "problem"), [
    (5, convolution.Config, r"the name of a row in .* is 5; expected a string"),
    ("mine", type("Undecorated", (convolution.Config,), {"shift": setting(1, "positions to the right")}),
     r"the config of the row 'mine', in .*, has the field 'shift', which @dataclass has not read; write @dataclass"),
    ("mine", NoLength, r"the config of the row 'mine', in .*test_broken\.py, has the field 'vocab' without a meaning;"
     " declare it as"),
    ("mine", dict, "is dict, which is no frozen dataclass"),
    ("mine", dataclasses.make_dataclass("Thawed", ["vocab"]), "is Thawed, which is no frozen dataclass")])
def test_a_row_of_a_table_has_a_name_and_a_config_of_settings(name, config, problem):
    with pytest.raises(Broken, match=problem):
        component_table(ModelDef, {name: convolution.DEFINITION._replace(config=config)})


@pytest.mark.parametrize(("table", "name", "kind"), [
    (MODELS, "lstm", "network"), (OBJECTIVES, "causal", "objective"), (FORMATS, "stream", "format")])
def test_a_config_without_a_default_is_the_fault_of_its_component(table, name, kind, monkeypatch):
    monkeypatch.setitem(table, name, table[name]._replace(config=NoDefault))
    with pytest.raises(UserError, match=rf"^{kind} '{name}' \(.*test_broken\.py\): TypeError: .*'channels'"):
        default_config("lstm", "causal", "stream")


def test_a_name_that_two_rows_have_is_refused():
    with pytest.raises(Broken, match=r"test_broken\.py has two rows 'lstm'; give yours a name that no other row has"):
        component_table(ModelDef, {"lstm": MODELS["lstm"], "lstm": convolution.DEFINITION})  # noqa: F601


@pytest.mark.parametrize(("given", "problem"), [
    (topics.DEFINITION.objective.capabilities[0], "are NameTopics; "), (("topics", "names"), "are (str, str); ")])
def test_capabilities_that_are_none_are_refused(given, problem):
    row = networks.definition(topics.Config, topics.DEFINITION.objective.build, {}, given)
    with pytest.raises(Broken) as refused:
        check_capabilities({"topics": row})
    what = f"objective 'topics' ({inspect.getsourcefile(topics)}): its capabilities "
    assert str(refused.value).startswith(what + problem)


@pytest.mark.parametrize(("build", "problem"), [
    (lambda c, model: None, "its build takes (c, model); expected (config, model, vocabulary)"),
    (lambda c, model, vocabulary: c.labelz, "AttributeError: 'Config' object has no attribute 'labelz'"),
    (lambda c, model, vocabulary: c, "its build returns Config; expected Objective"),
    (networks.builder("topics", lambda c: 0, topics.known, topics.loss, topics.predict), "and so no values"),
    (networks.builder("topics", lambda c: None, topics.known, topics.loss, topics.predict), "expected integers")])
def test_a_broken_build_of_a_task_is_refused(build, problem, tmp_path, monkeypatch):
    row = topics.DEFINITION
    monkeypatch.setitem(TASKS, "topics", row._replace(objective=row.objective._replace(build=build)))
    path = tiny.write(tmp_path / "train.jsonl", [{"text": "a cat", "tags": ["cat"]}, {"text": "a", "tags": ["dog"]}])
    with pytest.raises(UserError) as refused:
        lmrep.train(tiny.config("topics", path), tmp_path / "run", data_dir=tmp_path / "data")
    message = str(refused.value)
    assert message.startswith(f"objective 'topics' ({inspect.getsourcefile(topics)}): ") and problem in message


def test_a_task_that_reads_units_together_without_saying_so_is_refused(tmp_path, monkeypatch):
    row = similarity.DEFINITION
    monkeypatch.setitem(TASKS, "similarity", row._replace(reads=row.reads._replace(grouped=False)))
    path = tiny.write(tmp_path / "train.jsonl", [{"text": "a cat", "text2": "the cat"}, {"text": "a", "text2": "the"}])
    with pytest.raises(UserError, match=r"^objective 'similarity' \(.*similarity\.py\): its prepare or loss reads "
                                        r"entry 1 of an array of shape \(7, 1, 16\), .*grouped=True"):
        lmrep.train(tiny.config("similarity", path), tmp_path / "run", data_dir=tmp_path / "data")


@pytest.mark.parametrize("name", ["resolve", "check", "compare", "reads", "convert", "texts", "unlabelled"])
def test_an_error_in_a_function_of_a_task_names_the_task_and_its_file(name):
    row, failing = topics.DEFINITION, {name: lambda *arguments: {}["label"]}
    if inner := name in row.templates._fields:
        failing = {"templates": row.templates._replace(**failing)}
    checked = contracts.checked_task("topics", row._replace(**failing))
    called = getattr(checked.templates if inner else checked, name)
    with pytest.raises(UserError, match=r"^task 'topics' \(.*topics\.py\): KeyError: 'label' \(line .*correct this"):
        called(None, None)


@pytest.mark.parametrize(("measured", "missing"), [("loss", "micro_f1"), ("micro_f1", "loss")])
def test_a_task_whose_score_lacks_a_metric_of_validation_is_named(measured, missing):
    checked = contracts.checked_task("topics", topics.DEFINITION._replace(
        score=lambda c, records, units, outputs: Result({measured: 1.0}, [])))
    with pytest.raises(UserError, match=rf"^task 'topics' \(.*topics\.py\): validation needs '{missing}', which score "
                                        f"does not measure; it measures {measured}; correct this component"):
        checked.score(topics.Config(), [], None, None)


def test_a_setting_without_a_meaning_names_its_file():
    with pytest.raises(Broken, match=rf"^{__file__}, line \d+: setting\(4\) does not say what the field means"):
        setting(4, at_least=0)


def test_a_task_whose_resolve_returns_no_config_is_named():
    checked = contracts.checked_task("topics", topics.DEFINITION._replace(resolve=lambda c, records: None))
    with pytest.raises(UserError, match=r"^task 'topics' .*its resolve returns NoneType; expected Config of tests"):
        checked.resolve(topics.Config(), [])
