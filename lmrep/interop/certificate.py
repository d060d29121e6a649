"""How far a network of ours is from the published implementation: the largest difference of what both say of the same
random ids, in float32.

The reference is asked where `torch` and `transformers` are installed (the `parity` extra). Where they are not, the
certificate is of the way there and back: the tensors as they are written, read again, must say exactly the same.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import RunFault
from lmrep.core.params import unflatten
from lmrep.interop import published
from lmrep.interop import settings as families
from lmrep.interop.published import Published
from lmrep.layers import lm_head
from lmrep.layers.attention import AttentionMask
from lmrep.models import transformer
from lmrep.models.base import Inputs
from lmrep.objectives import causal, replaced_token, sentence_pair

ROWS, LENGTH = 2, 64
MOST = 1e-3  # a larger difference is no rounding

# hidden [b, t, d] and, where there are such heads, masked or causal [b, t, v], discriminator [b, t], pair [b, 2]
Answers = dict[str, np.ndarray]
SAID = {"hidden": "hidden states", "masked": "masked-LM logits", "pair": "sentence-pair logits",
        "discriminator": "replaced-token logits", "causal": "next-token logits"}


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
        each = ", ".join(f"{SAID[name]} {value:.2g}" for name, value in self.differences.items())
        return (f"largest difference from {self.against}: {each} "
                f"({self.rows} rows of {self.length} random ids, {self.dtype})")


def question(checkpoint: Published, seed: int = 0) -> Question:
    """Rows of all ids but padding's; the second is padded, and has two token types where the network has."""
    config, draw = checkpoint.config, np.random.default_rng(seed)
    length = min(LENGTH, config.max_length)
    pad = families.padding(checkpoint.kind, checkpoint.settings)
    tokens = draw.integers(0, config.vocab, (ROWS, length))
    if pad is not None:
        tokens[tokens == pad] = 0 if pad else config.vocab - 1
    real = np.ones_like(tokens)
    real[1, length - length // 3 :] = 0
    tokens[real == 0] = pad or 0
    return Question(tokens, draw.integers(0, max(1, min(config.token_types, 2)), tokens.shape), real)


def ours(checkpoint: Published, asked: Question) -> Answers:
    """What our network says."""
    config, heads = checkpoint.config, checkpoint.heads
    model = transformer.build(config)
    seen = AttentionMask(jnp.asarray(asked.real), causal=checkpoint.architecture.causal)
    given = Inputs(tokens=jnp.asarray(asked.tokens, jnp.int32), attention_mask=seen,
                   token_type_ids=jnp.asarray(asked.types, jnp.int32) if config.token_types > 1 else None)

    @jax.jit
    def run(tree):
        answers = {"hidden": (hidden := model.encode(tree["encoder"], given).hidden)}
        if "masked" in heads:
            own = tree["objective"]["masked"]
            x = lm_head.transform(own, hidden, activation=model.activation, eps=model.norm_eps)
            answers["masked"] = lm_head.logits(own, model.output_embedding(tree["encoder"]), x)
        if "pair" in heads:
            answers["pair"] = sentence_pair.scores(tree["objective"]["pair"], hidden[:, 0])
        if "discriminator" in heads:
            own = tree["objective"]["discriminator"]
            answers["discriminator"] = replaced_token.replaced_logits(own, hidden, model.activation)
        if "causal" in heads:
            answers["causal"] = causal.next_token_logits(tree, hidden, model=model, c=causal.Config())
        return answers

    with jax.default_matmul_precision("highest"):
        return jax.device_get(run(unflatten(dict(checkpoint.params))))


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
        types = {"token_type_ids": torch.from_numpy(asked.types)} if checkpoint.config.token_types else {}
        with torch.no_grad():
            given = model(torch.from_numpy(asked.tokens), attention_mask=torch.from_numpy(asked.real),
                          output_hidden_states=True, **types)
    except Exception as error:  # of which other people's code has many kinds
        why = " ".join(str(error).split())[:200]
        raise LookupError(f"{version} does not take it: {type(error).__name__}: {why}") from error
    scores = given.get("prediction_logits", given.get("logits"))
    found = {"hidden": given.hidden_states[-1]} | {name: scores for name in checkpoint.heads}
    if "pair" in found:
        found["pair"] = given.get("seq_relationship_logits", given.get("sop_logits", scores))
    return version, {name: value.numpy() for name, value in found.items()}


def certify(checkpoint: Published, directory: Path) -> Certificate:
    """Compares our network with the reference, which reads the files in `directory`, or else with itself after the way
    there and back.

    Raises:
      RunFault: they differ by more than rounding, or the network's answers are not finite.
    """
    asked = question(checkpoint)
    said = ours(checkpoint, asked)
    try:
        against, expected = reference(checkpoint, directory, asked)
    except LookupError as none:
        params, _ = published.place(
            published.tensors(checkpoint), checkpoint.architecture, checkpoint.config, directory)
        again = checkpoint._replace(params=params)
        against, expected = f"itself written and read again ({none})", ours(again, asked)
    real = asked.real.astype(bool)

    def pair(name: str) -> tuple[np.ndarray, np.ndarray]:
        return (said[name], expected[name]) if name == "pair" else (said[name][real], expected[name][real])

    differences = {name: float(np.abs(np.subtract(*pair(name))).max()) for name in said}
    largest = {name: float(np.abs(pair(name)[0]).max()) for name in said}
    result = Certificate(against, differences, largest, *asked.tokens.shape)
    if not all(value <= MOST * max(1, largest[name]) for name, value in differences.items()):  # NaN is not
        raise RunFault(f"{directory} does not come out as it should: {result}; nothing is written")
    return result
