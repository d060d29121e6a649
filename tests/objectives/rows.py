"""Every row of `OBJECTIVES`, and variants of some, on a small network and a small batch."""

from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.core.vocabulary import Vocabulary
from lmrep.models import bilstm, encoder_decoder, lstm, transformer, transformer_xl
from lmrep.models.base import Model
from lmrep.objectives import OBJECTIVES, Objective
from lmrep.objectives.base import Batch, Carry, FrozenPart, Keys
from tests import reference

V, T = 40, 24
SPECIALS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4, "bos": 5, "eos": 3}
VOCABULARY = Vocabulary(V, SPECIALS, np.arange(V) % 4 != 0, np.arange(V), sentinels=tuple(range(V - 1, V - 11, -1)))
WIDTHS = {"vocab": V, "width": 16, "layers": 1}
NETWORKS = {
    "transformer": (transformer, {"heads": 2, "mlp": 32, "max_length": T}),
    "lstm": (lstm, {"embedding": 8}),
    "bilstm": (bilstm, {"reads": "words", "cell": 16, "width": 8}),
    "transformer_xl": (transformer_xl, {"heads": 2, "mlp": 16, "memory": 8, "reuse": -1, "causal": False,
                                        "segments": True, "untie": True}),
    "encoder_decoder": (encoder_decoder, {"heads": 2, "mlp": 16}),
    "mask_decoder": (transformer, {"layers": 2, "heads": 2, "mlp": 16, "max_length": T, "positions": "disentangled",
                                   "position_buckets": 4, "max_distance": 6, "mask_decoder": 2}),
}
DEFAULTS = {"each_side": "bilstm", "order": "transformer_xl", "source": "encoder_decoder"}  # by context


class Case(NamedTuple):
    """An objective of `OBJECTIVES` with fields of its config, under a network of `NETWORKS` ("": by its context)."""

    objective: str
    fields: dict[str, Any] = {}  # noqa: RUF012
    network: str = ""


FIELDS = {"masked": {"sentence_pair": True}, "span_boundary": {"sentence_pair": True, "rate": 0.3},
          "permutation": {"sentence_pair": True, "k": 3.0}, "bidirectional": {"negatives": 12},
          "masked_next_token": {"share": 0.5, "z_loss": 0.1}, "distillation": {"draw": "batch", "alpha_mse": 1.0},
          "span_corruption": {"rate": 0.5, "z_loss": 0.1}, "sequence_autoencoder": {"chunk": 10}}
NETWORK_OF = {"sequence_autoencoder": "lstm"}  # which reads nearly twice as many positions as an example has
ROWS = {name: Case(name, FIELDS.get(name, {}), NETWORK_OF.get(name, "")) for name in OBJECTIVES}
VARIANTS = {
    "masked, whole words": Case("masked", {"whole_word": True}),
    "masked, static": Case("masked", {"masking": "static", "rate": 0.3}),
    "masked, falling rate": Case("masked", {"rate": 0.6, "final_rate": 0.2, "rate_steps": 6, "z_loss": 0.1}),
    "masked, table": Case("masked", {"head": "table"}),
    "masked, mask decoder": Case("masked", {}, "mask_decoder"),
    "masked, memory": Case("masked", {}, "transformer_xl"),
    "causal, carried": Case("causal", {"bias": True}, "lstm"),
    "causal, across": Case("causal", {"across": True, "head": "transform"}),
    "bidirectional, full": Case("bidirectional", {"negatives": 0, "shared": False}),
    "distillation, masks": Case("distillation", {"restrict_ce_to_mask": True, "alpha_mse": 0.1}),
    **{f"replaced_token, {name}": Case("replaced_token", {"variant": name})
       for name in ("electra_15", "replace_mlm", "all_tokens_mlm")},
    **{f"span_corruption, {name}": Case("span_corruption", {"variant": name}) for name in ("prefix", "bert")},
}
CASES = ROWS | VARIANTS


def network(case: Case, dropout: float = 0.0) -> Model:
    """The small network of a case; all its dropout rates are `dropout`."""
    row = OBJECTIVES[case.objective]
    module, fields = NETWORKS[case.network or DEFAULTS.get(row.conditions_on(row.config()), "transformer")]
    rates = {name: dropout for name in vars(module.Config()) if name.endswith("dropout") and name != "table_dropout"}
    return with_cloned_keys(module.build(module.Config(**WIDTHS | rates | fields)))


def with_cloned_keys(model: Model) -> Model:
    """`model`, which tells JAX's check of keys that its table has the key of `encode` on purpose: entries are dropped
    alike from both."""
    def table(params, key=None):
        return model.output.table(params, key if key is None else jax.random.clone(key))

    changes = {"output": model.output._replace(table=table)} if model.output.table else {}
    if model.make_generator:
        changes["make_generator"] = lambda *sizes: with_cloned_keys(model.make_generator(*sizes))
    return model._replace(**changes)


def build(case: Case, dropout: float = 0.0, vocabulary: Vocabulary = VOCABULARY) -> Objective:
    """The objective of a case; a teacher, where it has one, is of the same network."""
    row, model = OBJECTIVES[case.objective], network(case, dropout)
    config, parts = row.config(**case.fields), {}
    if row.teachers:
        taught = row.build(config, model, vocabulary)
        parts = {"teacher": FrozenPart("teacher", "runs/teacher", taught.specs, [], model, taught, config)}
    return row.build(config, model, vocabulary, *([parts] if parts else []))


def params(objective: Objective, seed: int = 3) -> dict:
    """Random values of all parameters, the frozen ones included."""
    frozen = {"frozen": reference.random_params(objective.frozen, seed + 1)} if objective.frozen else {}
    return reference.random_params(objective.specs, seed) | frozen


def examples(case: Case, number: int, seed: int = 0) -> Batch:
    """`number` texts of 5 to 24 tokens with the batch fields that the case's objective needs, none of which continues
    another."""
    row, rng = OBJECTIVES[case.objective], np.random.default_rng(seed)
    lengths = rng.integers(5, T + 1, number)
    segment_ids = (np.arange(T) < lengths[:, None]).astype(np.int32)
    tokens = rng.integers(6, V - 10, (number, T))
    tokens[:, 0] = SPECIALS["cls"]
    fields = {
        "tokens": (tokens * segment_ids).astype(np.int32), "segment_ids": segment_ids,
        "token_type_ids": (np.arange(T) > lengths[:, None] // 2).astype(np.int32) * segment_ids,
        "pair_label": rng.integers(0, 2, number).astype(np.int32), "example": np.arange(number, dtype=np.int32)}
    streams = {"following": np.full(number, -1, np.int32), "reset": np.ones(number, np.int32)}
    config = row.config(**case.fields)
    text = fields | streams
    if "backward/tokens" in row.batch_fields(config):
        return text | {"backward": {name: text[name] for name in ("tokens", "segment_ids", "following", "reset")}}
    return {name: value for name, value in text.items() if name in fields or name in row.batch_fields(config)}


def filled(batch: Batch, size: int):
    """The examples in batches of `size`, the last one filled with empty ones."""
    number = len(batch["example"])
    for start in range(0, number, size):
        missing = max(0, start + size - number)
        part = jax.tree.map(
            lambda x, a=start, n=missing: np.pad(x[a : a + size], [(0, n)] + [(0, 0)] * (x.ndim - 1)), batch)
        part["example"][size - missing :] = -1
        yield part


def stream(case: Case, number: int) -> Batch:
    """As `examples`, the last of them empty, of a format whose examples continue those of the batch before: the first
    half of them."""
    batch, = filled(examples(case, number - 1), number)
    reset = (np.arange(number) >= number // 2).astype(np.int32)
    following = np.where(batch["segment_ids"][:, -1] > 0, 7, -1).astype(np.int32)
    batch |= {"reset": reset, "following": following}
    if "backward" in batch:
        batch["backward"] |= {"reset": reset[::-1].copy(), "following": following}
    return batch


def carry(objective: Objective, number: int) -> Carry:
    """What a batch before may have left."""
    rng = np.random.default_rng(5)
    return jax.tree.map(lambda x: np.asarray(
        x if np.issubdtype(x.dtype, np.integer) else rng.normal(0, 0.5, x.shape), x.dtype), objective.carry(number))


def keys(number: int, seed: int = 0) -> Keys:
    """A key for each example, and a shared one."""
    return Keys(jax.random.split(jax.random.key(seed), number), jax.random.key(seed + 1))
