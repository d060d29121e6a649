"""Masked language modelling (Devlin et al., 2019; Liu et al., 2019; Lan et al., 2019), with or without a sentence-pair
objective.

A network with memory (Transformer-XL, XLNet) continues the examples of the batch before where the format's examples
continue each other: XLNet's ablation "DAE + Transformer-XL".

The masking rule is `masking.mask_example`, by default BERT's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.models.base import Model
from lmrep.objectives import masking, mlm_head, sentence_pair
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.capabilities import FillMask
from lmrep.objectives.causal import initial_carry, initial_state, next_carry
from lmrep.objectives.outputs import normalize_weights, sums
from lmrep.objectives.uses import NetworkUse


@dataclass(frozen=True)
class Config(masking.Config):
    """The settings of the masks, and of the sentence-pair objective."""

    # what `budget` sets for small networks: more targets a batch (Wettig et al., 2023)
    small_budget: ClassVar[Mapping[str, Any]] = MappingProxyType({"rate": 0.4})

    sentence_pair: bool = setting(False, "whether the label of a sentence pair is predicted too (NSP or SOP, by the "
                                  "format)")
    z_loss: float = setting(0.0, "factor of log(Z)^2 in the loss of training, Z being the sum of exp(logits) (PaLM, "
                            "GPT-BERT: 1e-4)", at_least=0)
    head: str = setting("transform", "output layer: BERT's transform before the table, or the table alone (NeoBERT)",
                        choices=("transform", "table"))


def check(c: Config) -> None:
    """Raises UserError if fields do not fit each other."""
    masking.check(c)
    masking.check_rates(c)


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Builds the objective, which predicts masked tokens from both sides."""
    check(c)
    masking.check_mask_token("masked", vocabulary)
    specs = {"masked": mlm_head.specs(model, c.head == "transform")}
    if c.sentence_pair:
        if model.output.encode_masked:
            raise UserError("objective.sentence_pair is True, and the network has a mask decoder, which predicts "
                            "tokens alone; set --config.objective.sentence_pair=false or --config.model.mask_decoder=0")
        specs["pair"] = sentence_pair.specs(model)
    return Objective(
        name="masked",
        specs={"encoder": model.specs, "objective": specs},
        prepare=partial(prepare, c=c, vocabulary=vocabulary),
        loss=partial(loss, c=c, model=model, most_frequent=int(np.argmax(vocabulary.counts))),
        carry=partial(initial_carry, model=model),
        predict=partial(mlm_head.predict, model=model, size=vocabulary.size),
        terms={"mlm_loss": 1.0} | ({"pair_loss": 1.0} if c.sentence_pair else {}),
        static=c.masking == "static",
        uses=mlm_head.uses(model, vocabulary, networks=(NetworkUse(model.sizes, "masked"),)),
    )


def prepare(keys: Keys, batch: Batch, *, c: Config, vocabulary: Vocabulary) -> Batch:
    """Adds `inputs` i32[b, t] and `predicted`, `targets`, `weights` [b, m] (and `pair_weights` [b]).

    `predicted` are positions; positions beyond the example's number of targets have weight 0.
    """
    mask = partial(masking.mask_example, c=c, vocabulary=vocabulary, rate=masking.rate_at(keys, c))
    inputs, predicted, targets, target_mask = jax.vmap(mask)(
        keys.per_example, batch["tokens"], batch["segment_ids"])
    batch = batch | {"inputs": inputs, "predicted": predicted, "targets": targets,
                     "weights": normalize_weights(target_mask)}
    return batch | sentence_pair.weights(batch) if c.sentence_pair else batch


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, most_frequent: int
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of the batch's masked tokens, plus the mean cross-entropy of the pairs' labels
    with `sentence_pair`, and the memory after the batch."""
    state = initial_state(batch, carry, model)
    first, encoded = mlm_head.encode_predicted(params, batch, batch["inputs"], model, key, state)
    total, metrics = mlm_head.loss_and_metrics(params, encoded.hidden, batch, model, key, c.z_loss)
    metrics |= sums(batch["weights"] > 0, most_frequent_accuracy=batch["targets"] == most_frequent)
    if c.sentence_pair:
        pair_total, pair_metrics = sentence_pair.loss(params["objective"]["pair"], first, batch)
        total, metrics = total + pair_total, metrics | pair_metrics
    return total, (metrics, next_carry(carry, state, encoded))


DEFINITION = ObjectiveDef(
    Config, build, mlm_head.METRICS | sentence_pair.METRICS, check, sentence_pair.batch_fields,
    capabilities=(FillMask(),), loss_fields=("sentence_pair", "z_loss"),
)
