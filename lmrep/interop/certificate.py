"""How far a network of ours is from the published implementation: the largest difference of what both say of the same
random ids, in float32.

The reference is asked where `torch` and `transformers` are installed (the `parity` extra). Where they are not, the
certificate is of the way there and back: the tensors as they are written, read again, must say exactly the same.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import RunFault
from lmrep.core.params import unflatten
from lmrep.interop import published
from lmrep.interop.names import CLASSIFIER, MASKED
from lmrep.interop.published import Published
from lmrep.layers import vocabulary as head
from lmrep.layers.attention import Visibility
from lmrep.models import transformer
from lmrep.models.base import Inputs
from lmrep.objectives import sentence_pair

ROWS, LENGTH = 2, 64
MOST = 1e-3  # a larger difference is no rounding

Answers = dict[str, np.ndarray]  # hidden [b, t, d]; masked [b, t, v] and pair [b, 2] where there are such heads


class Question(NamedTuple):
    """Random ids: tokens, token types, and 1 where a token is real, int64[b, t] each."""

    tokens: np.ndarray
    types: np.ndarray
    real: np.ndarray


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What was compared and what came out.

    Attributes:
      against: the reference with its version, or the way there and back.
      differences: the largest absolute difference of each kind of answer.
      largest: the largest absolute value of each kind of answer, for comparison.
      rows, length: of the random ids.
    """

    against: str
    differences: dict[str, float]
    largest: dict[str, float]
    rows: int
    length: int
    dtype: str = "float32"

    def __str__(self) -> str:
        said = {"hidden": "hidden states", "masked": "masked-LM logits", "pair": "next-sentence logits"}
        each = ", ".join(f"{said[name]} {value:.2g}" for name, value in self.differences.items())
        return (f"largest difference from {self.against}: {each} "
                f"({self.rows} rows of {self.length} random ids, {self.dtype})")


def question(checkpoint: Published, seed: int = 0) -> Question:
    """Rows of all ids but padding's; the second is padded, and has two token types where the network has."""
    config, draw = checkpoint.config, np.random.default_rng(seed)
    length = min(LENGTH, config.length)
    pad = checkpoint.settings.get("pad_token_id", checkpoint.architecture.pad)
    tokens = draw.integers(0, config.vocab, (ROWS, length))
    tokens[tokens == pad] = 0 if pad else config.vocab - 1
    real = np.ones_like(tokens)
    real[1, length - length // 3 :] = 0
    tokens[real == 0] = pad or 0
    return Question(tokens, draw.integers(0, min(config.token_types, 2), tokens.shape), real)


def ours(config: transformer.Config, params: Mapping[str, np.ndarray], asked: Question) -> Answers:
    """What the network of `config` with these parameters, by path, says."""
    model = transformer.build(config)
    given = Inputs(tokens=jnp.asarray(asked.tokens, jnp.int32), visibility=Visibility(jnp.asarray(asked.real)),
                   token_type_ids=jnp.asarray(asked.types, jnp.int32) if config.token_types > 1 else None)

    @jax.jit
    def run(tree):
        answers = {"hidden": (hidden := model.encode(tree["encoder"], given).hidden)}
        if f"{MASKED}bias" in params:
            own = tree["objective"]["masked"]
            x = head.transform(own, hidden, activation=model.activation, eps=model.norm_eps)
            answers["masked"] = head.scores(own, model.output_table(tree["encoder"]), x)
        if f"{CLASSIFIER}bias" in params:
            answers["pair"] = sentence_pair.scores(tree["objective"]["pair"], hidden[:, 0])
        return answers

    with jax.default_matmul_precision("highest"):
        return jax.device_get(run(unflatten(dict(params))))


def reference(checkpoint: Published, directory: Path, asked: Question) -> tuple[str, Answers]:
    """(name and version of the reference, what it says with the weights in `directory`).

    Raises:
      LookupError: there is none, or it does not take the directory.
    """
    try:
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
    except ImportError:
        raise LookupError("transformers is not installed") from None
    except Exception as error:  # a broken installation
        raise LookupError(f"transformers cannot be imported: {type(error).__name__}") from error
    version = f"transformers {transformers.__version__}"
    try:
        model = getattr(transformers, checkpoint.name).from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32,
            attn_implementation="eager").eval()
        with torch.no_grad():
            given = model(torch.from_numpy(asked.tokens), attention_mask=torch.from_numpy(asked.real),
                          token_type_ids=torch.from_numpy(asked.types), output_hidden_states=True)
    except Exception as error:  # of which other people's code has many kinds
        why = " ".join(str(error).split())[:200]
        raise LookupError(f"{version} does not take it: {type(error).__name__}: {why}") from error
    found = {"hidden": given.hidden_states[-1]}
    scores = given.get("prediction_logits", given.get("logits"))
    if f"{MASKED}bias" in checkpoint.params:
        found["masked"] = scores
    if f"{CLASSIFIER}bias" in checkpoint.params:
        found["pair"] = given.get("seq_relationship_logits", scores)
    return version, {name: value.numpy() for name, value in found.items()}


def certify(checkpoint: Published, directory: Path) -> Certificate:
    """Compares our network with the reference, which reads the files in `directory`, or else with itself after the way
    there and back.

    Raises:
      RunFault: they differ by more than rounding, or the network's answers are not finite.
    """
    asked = question(checkpoint)
    said = ours(checkpoint.config, checkpoint.params, asked)
    try:
        against, expected = reference(checkpoint, directory, asked)
    except LookupError as none:
        params, _ = published.place(
            published.tensors(checkpoint), checkpoint.architecture, checkpoint.config, directory)
        against, expected = f"itself written and read again ({none})", ours(checkpoint.config, params, asked)
    real = asked.real.astype(bool)

    def pair(name: str) -> tuple[np.ndarray, np.ndarray]:
        return (said[name], expected[name]) if name == "pair" else (said[name][real], expected[name][real])

    differences = {name: float(np.abs(np.subtract(*pair(name))).max()) for name in said}
    largest = {name: float(np.abs(pair(name)[0]).max()) for name in said}
    result = Certificate(against, differences, largest, *asked.tokens.shape)
    if not all(value <= MOST * max(1, largest[name]) for name, value in differences.items()):  # NaN is not
        raise RunFault(f"{directory} does not come out as it should: {result}; nothing is written")
    return result
