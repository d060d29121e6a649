"""Checks that networks keep their contracts, by the names in their rows and by shapes alone."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from lmrep.core import params as P
from lmrep.core.components import check_build, check_built, described, faults_of, type_of
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.experiment.contracts import check_names, check_specs, fields_of
from lmrep.layers.stack import Execution
from lmrep.models import MODELS
from lmrep.models.base import Context, Encoded, Inputs, Model, ModelDef, NetworkLoss, model_inputs
from lmrep.objectives.base import Batch

STATES_OF = (Context.BOTH, Context.LEFT, Context.EACH_SIDE, Context.SOURCE)  # contexts that need no further input


def check_network(name: str, row: ModelDef) -> None:
    """Checks that the row of a network names fields of its config, which no other row has. Raises UserError."""
    what, known = described("network", name, row.config), fields_of(row.config)
    check_names(what, "its config lacks the field", ("vocab", "max_length"), known, "")
    check_names(what, "its row names the field", (
        *row.architecture_fields, *row.evaluation_fields, *row.tiny, *row.encoder,
        *({*row.dropout_fields} - {"dropout"}), *filter(None, [row.carried_field])), known)
    if others := [other for other, definition in MODELS.items() if definition.config is row.config and other != name]:
        raise UserError(f"{what}: its row has the config of network {others[0]!r}, by which a network is known; give "
                        "it one of its own, such as a subclass; correct this component")


def build_network(name: str, config: Any, execution: Execution, title: str) -> Model:
    """Builds the network `name` of `MODELS` from its config; messages call it `title`. Raises UserError if the row
    names fields that its config lacks, it refuses the config, or its code fails."""
    row = MODELS[name]
    what = described("network", name, row.config)
    check_network(name, row)
    check_build(what, row.build, ("config", "execution", "name"))
    with faults_of(what, row.config):
        row.check(config)
        model = row.build(config, execution, title)
        check_built(what, model, Model)
    check_build(what, model.encode, ("params", "inputs", "key"), "encode", ("at", "layers", "attention"))
    check_names(what, "it takes the input", sorted(model.inputs), Inputs._fields)
    check_names(what, "it can be conditioned on", sorted(model.conditions_on), [*Context])
    check_specs(what, model.specs)
    return model


def checked_network(model: Model, name: str, row: ModelDef, what: str = "") -> Model:
    """Returns `model`, of the row `name`, with an `encode` that is checked when traced: it returns `Encoded`, with
    states at the positions that were asked for, and a carry of the shapes that it was given. Its generators are checked
    likewise. Messages call it `what`. Raises UserError if its output table has another shape than its `Output` says."""
    what = what or described("network", name, row.config)
    _check_table(what, model, row)

    def encode(
        params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, **options: Any
    ) -> Encoded:
        with faults_of(what, row.config):
            encoded = model.encode(params, inputs, key, at=at, **options)
        check_built(what, encoded, Encoded, "encode")
        shape = (*(inputs.tokens if at is None else at).shape, model.width)
        if encoded.hidden.shape != shape:
            positions = "positions" if at is None else "positions of `at`"
            raise UserError(f"{what}: encode returns hidden states of shape {encoded.hidden.shape}; expected {shape} "
                            f"(examples, {positions}, width); correct this component")
        given, returned = jax.tree.map(jnp.shape, inputs.carry), jax.tree.map(jnp.shape, encoded.carry)
        if inputs.carry is not None and given != returned:
            raise UserError(f"{what}: its encode returns a carry of the shapes {returned}; expected those of "
                            f"`inputs.carry`, {given}; correct this component")
        losses = encoded.losses
        if not isinstance(losses, Mapping) or any(not isinstance(name, str) for name in losses):
            raise UserError(f"{what}: its encode returns the losses {losses!r:.200}; expected {{name: NetworkLoss}}; "
                            "correct this component")
        for name, term in losses.items():
            if not isinstance(term, NetworkLoss) or any(x is None or jnp.shape(x) != () for x in term):
                given = f"NetworkLoss{type_of(tuple(term))}" if isinstance(term, NetworkLoss) else type_of(term)
                raise UserError(f"{what}: its encode returns the loss {name!r} as {given}; expected NetworkLoss of "
                                "three scalars (sum, count, weight); correct this component")
        return encoded

    def make_generator(fraction: float, layers: int) -> Model:
        check_build(what, model.make_generator, ("fraction", "layers"), "make_generator")
        what_generator = f"{what}, make_generator({fraction:g}, {layers})"
        with faults_of(what_generator, row.config):
            generator = model.make_generator(fraction, layers)
            check_built(what, generator, Model, "make_generator")
            check_specs(what_generator, generator.specs)
        return checked_network(generator, name, row, what_generator)

    return model._replace(encode=encode, make_generator=model.make_generator and make_generator)


def _check_table(what: str, model: Model, row: ModelDef) -> None:
    if model.output.table is None:
        return
    with faults_of(what, row.config):
        table = jax.eval_shape(model.output.table, P.abstract(model.specs))
    if jnp.shape(table) != (shape := (model.vocab_size, model.output.width)):
        raise UserError(f"{what}: the table of its Output is {type_of(table)}; expected shape {shape} (vocabulary, "
                        "width of the Output); correct this component")


def _check_decode(what: str, model: Model, row: ModelDef) -> None:
    """Checks that a network that generates from left to right decodes from its cache, to one of the same shapes."""
    state = model.state
    if (state.cache is None) != (state.decode is None):
        raise UserError(f"{what}: its State has only one of `cache` and `decode`; give both, or none; correct this "
                        "component")
    if state.decode is None or Context.LEFT not in model.conditions_on or "source" in model.inputs:
        return

    def generate(params: Tree, tokens: Array, length: Array) -> tuple[Tree, Any]:
        cache = state.cache(params, 2, 3)
        return cache, state.decode(params, tokens, cache, length)

    with faults_of(what, row.config):
        cache, returned = jax.eval_shape(generate, P.abstract(model.specs), jax.ShapeDtypeStruct((2, 3), jnp.int32),
                                         jax.ShapeDtypeStruct((), jnp.int32))
    shape = 2, 3, model.width
    if not (isinstance(returned, tuple) and len(returned) == 2 and getattr(returned[0], "shape", None) == shape):
        raise UserError(f"{what}: its decode returns {type_of(returned)}; expected (hidden states of shape {shape}, "
                        "the cache) for tokens of shape (2, 3); correct this component")
    before, after = (jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree) for tree in (cache, returned[1]))
    if jax.tree.structure(before) != jax.tree.structure(after) or jax.tree.leaves(before) != jax.tree.leaves(after):
        raise UserError(f"{what}: its decode returns the cache {after!r:.300}; expected that of the shapes and types "
                        f"that it was given, {before!r:.300}; correct this component")


def check_states(
    model: Model, name: str, row: ModelDef, batch: Mapping[str, jax.ShapeDtypeStruct], layers: int | None
) -> None:
    """Checks what no loss reads, and generation, reports and `lmrep embed` do: `State.decode`; `Encoded.layers`, as
    many as the field `layers` of its config says (None: it has no such field); and the probabilities of attention that
    `model`, of the row `name`, declares. `batch` has the shapes of tokens [b, t]. Raises UserError."""
    _check_decode(described("network", name, row.config), model, row)
    context = next((c for c in STATES_OF if c in model.conditions_on), None)
    if context is None:
        return

    def encode(params: Tree, batch: Batch) -> Encoded:
        inputs = model_inputs(model, batch, conditions_on=context)
        return model.encode(params, inputs, layers=True, attention="self" in model.heads.attention)

    fields = {name: batch[name] for name in ("tokens", "segment_ids", "characters") if name in batch}
    encoded, what = jax.eval_shape(encode, P.abstract(model.specs), fields), described("network", name, row.config)
    shape = fields["tokens"].shape
    outputs = encoded.layers if isinstance(encoded.layers, tuple | list) else ()
    if not outputs or any(jnp.shape(x)[:2] != shape for x in outputs):
        raise UserError(f"{what}: its encode returns the layers {type_of(encoded.layers)}; expected with layers=True "
                        "the output [b, t, d] of the embedding and of each layer; correct this component")
    if layers is not None and len(encoded.layers) != layers + 1:
        raise UserError(f"{what}: its encode returns {len(encoded.layers)} layers; expected with layers=True "
                        f"{layers + 1}, the embedding and {layers} (the field `layers` of its config); correct this "
                        "component")
    if "self" in model.heads.attention and len(jnp.shape(encoded.attention)) != 5:
        raise UserError(f"{what}: its encode returns the attention {type_of(encoded.attention)}; expected with "
                        "attention=True probabilities [l, b, h, t, s], as its Heads declare; correct this component")
