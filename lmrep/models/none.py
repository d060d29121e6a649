"""No network: for tasks that read the vectors of frozen parts alone (`config.frozen`), and train what is above them."""

from dataclasses import dataclass

import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.layers.stack import Execution
from lmrep.models.base import Context, Encoded, Inputs, Model, ModelDef, Output, check_inputs


@dataclass(frozen=True)
class Config:
    """What texts look like; a config file sets it to what the frozen encoder reads."""

    vocab: int = setting(0, "size of the vocabulary; 0: the tokenizer's size", at_least=0)
    max_length: int = setting(0, "tokens of a sequence at most; 0: any", at_least=0)
    token_types: int = setting(0, "token types of the frozen encoder (BERT: 2)", at_least=0)


def build(c: Config, execution: Execution = Execution(), name: str = "none") -> Model:
    """Builds a network without parameters whose vectors have width 0."""
    inputs = frozenset({"tokens", "positions", "attention_mask", *(["token_type_ids"] if c.token_types > 1 else [])})

    def encode(
        params: Tree, inputs_: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
        attention: bool = False,
    ) -> Encoded:
        check_inputs(inputs_, inputs)
        hidden = jnp.zeros((*(inputs_.tokens if at is None else at).shape, 0), execution.dtype)
        return Encoded(hidden, (hidden,) if layers else None)

    return Model(name=name, specs={}, encode=encode, width=0, vocab_size=c.vocab, max_length=c.max_length,
                 inputs=inputs, conditions_on=frozenset({Context.LEFT, Context.BOTH}), output=Output(0))


DEFINITION = ModelDef(Config, build, tiny={"vocab": 0}, dropout_fields=())
