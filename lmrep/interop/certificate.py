"""Compares our network with the published implementation: the largest difference of their outputs on the same random
ids, in float32.

If `torch` and `transformers` are installed (the `parity` extra), they are the reference. Otherwise the network is
compared with itself after its tensors were written and read again.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep import models
from lmrep.core.errors import RunFault
from lmrep.core.params import unflatten
from lmrep.interop.heads import HEADS
from lmrep.interop.huggingface.read import Published, assign
from lmrep.interop.huggingface.write import tensors
from lmrep.layers.attention import AttentionMask
from lmrep.models.base import Inputs

BATCH_SIZE, LENGTH = 2, 64
TOLERANCE = 1e-3  # relative; a larger difference is not rounding

Outputs = dict[str, np.ndarray]  # "hidden" [b, t, d] and the logits by the names of HEADS
TITLES = {"hidden": "hidden states"} | {name: head.title for name, head in HEADS.items()}
PER_SEQUENCE = {name for name, head in HEADS.items() if head.pooled}  # outputs without an axis t


class RandomBatch(NamedTuple):
    """Random ids, int64[b, t]."""

    tokens: np.ndarray
    token_types: np.ndarray
    attention_mask: np.ndarray  # 1 where a token is not padding

    @property
    def target(self) -> np.ndarray:
        """The tokens of the decoder, int64[b, t], in a network that reads `tokens` as its source."""
        return self.tokens[:, ::-1].copy()


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The result of a comparison."""

    against: str  # the reference with its version, or a description of what the network was compared with instead
    differences: dict[str, float]  # the largest absolute difference of each output
    largest: dict[str, float]  # the largest absolute value of each output
    batch_size: int  # of the random ids
    length: int  # likewise
    dtype: str = "float32"  # of the computation

    def __str__(self) -> str:
        figures = ", ".join(f"{TITLES[name]} {value:.2g}" for name, value in self.differences.items())
        return (f"largest difference from {self.against}: {figures} "
                f"({self.batch_size} sequences of {self.length} random ids, {self.dtype})")


def random_batch(checkpoint: Published, seed: int = 0) -> RandomBatch:
    """Draws sequences of all ids but padding. The second sequence is padded, unless the network needs an id of padding
    to find the last token and has none. Tokens have two types if the network has token types. If the head needs a token
    that ends each text, it is the last one."""
    config, draw = checkpoint.config, np.random.default_rng(seed)
    length = min(LENGTH, config.max_length or LENGTH)
    pad = checkpoint.family.pad_id(checkpoint.config_json)
    tokens = draw.integers(0, config.vocab, (BATCH_SIZE, length))
    if pad is not None:
        tokens[tokens == pad] = 0 if pad else config.vocab - 1
    mask = np.ones_like(tokens)
    if pad is not None or not (checkpoint.task and checkpoint.family.causal):
        mask[1, slice(length // 3) if checkpoint.family.specials.pads_left else slice(length - length // 3, None)] = 0
    end = checkpoint.family.tasks[checkpoint.task.name].end if checkpoint.task else None
    if end is not None:
        eos = checkpoint.config_json.get("eos_token_id")
        end = eos if type(eos) is int and 0 <= eos < config.vocab else end
        tokens[tokens == end] = (end + 1) % config.vocab
        tokens[np.arange(BATCH_SIZE), length - 1 - mask[:, ::-1].argmax(-1)] = end
    tokens[mask == 0] = pad or 0
    types = 2 if "token_type_ids" in models.build(config).inputs else 1
    return RandomBatch(tokens, draw.integers(0, types, tokens.shape), mask)


def our_outputs(checkpoint: Published, batch: RandomBatch) -> Outputs:
    """Computes the outputs of our network."""
    heads, task, model = checkpoint.heads, checkpoint.task, models.build(checkpoint.config)
    mask = AttentionMask(jnp.asarray(batch.attention_mask), causal=checkpoint.family.causal)
    types = jnp.asarray(batch.token_types, jnp.int32) if "token_type_ids" in model.inputs else None
    inputs = Inputs(tokens=jnp.asarray(batch.tokens, jnp.int32), attention_mask=mask, token_type_ids=types)
    if "source" in model.inputs and heads:
        inputs = Inputs(tokens=jnp.asarray(batch.target, jnp.int32), source=inputs)

    @jax.jit
    def run(tree):
        hidden = model.encode(tree["encoder"], inputs).hidden
        if task:
            logits = task.logits(tree, hidden, jnp.asarray(batch.attention_mask), model)
            return {"hidden": hidden, task.name: logits}
        return {"hidden": hidden} | {name: HEADS[name].logits(tree, hidden, model) for name in heads}

    with jax.default_matmul_precision("highest"):
        return jax.device_get(run(unflatten(dict(checkpoint.params))))


def reference_outputs(checkpoint: Published, directory: Path, batch: RandomBatch) -> tuple[str, Outputs]:
    """Computes (name and version of the reference, its outputs with the weights in `directory`).

    Raises:
      LookupError: the reference is not installed, or cannot load the directory.
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
        model = getattr(transformers, checkpoint.class_name).from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32,
            attn_implementation="eager").eval()
        inputs = {"input_ids": torch.from_numpy(batch.tokens),
                  "attention_mask": torch.from_numpy(batch.attention_mask)}
        if "token_type_ids" in models.build(checkpoint.config).inputs:
            inputs["token_type_ids"] = torch.from_numpy(batch.token_types)
        grouped = bool(checkpoint.task) and HEADS[checkpoint.task.name].grouped
        decodes = checkpoint.heads and any(path.startswith("encoder/decoder/") for path in checkpoint.params)
        if "source" in models.build(checkpoint.config).inputs and checkpoint.heads:
            inputs["decoder_input_ids"] = torch.from_numpy(batch.target)
        with torch.no_grad():
            if not decodes:
                hidden = model.base_model(**inputs).last_hidden_state
            if decodes:
                outputs = model(**inputs, output_hidden_states=True)
                hidden = outputs.decoder_hidden_states[-1]
            elif grouped:
                outputs = model(**{name: value[None] for name, value in inputs.items()})
            elif "conditioned_ends" in checkpoint.heads:
                outputs = {"logits": _conditioned_ends(model, hidden, inputs["attention_mask"], torch)}
            elif checkpoint.task and checkpoint.family.pad_id(checkpoint.config_json) is None:
                rows = [model(**{name: value[i : i + 1] for name, value in inputs.items()})
                        for i in range(BATCH_SIZE)]  # the class takes one sequence without the id of padding
                outputs = {name: torch.cat([row[name] for row in rows]) for name in rows[0] if name.endswith("logits")}
            else:
                outputs = model(**inputs)
    except Exception as error:  # the library raises many types
        why = " ".join(str(error).split())[:200]
        raise LookupError(f"{version} cannot load it: {type(error).__name__}: {why}") from error
    logits = outputs.get("prediction_logits", outputs.get("logits"))
    if "start_logits" in outputs:
        logits = torch.stack([outputs["start_logits"], outputs["end_logits"]], -1)
    if grouped:
        logits = logits[0][:, None]
    expected = {"hidden": hidden} | {name: logits for name in checkpoint.heads}
    if "pair" in expected:
        expected["pair"] = outputs.get("seq_relationship_logits", outputs.get("sop_logits", logits))
    return version, {name: value.numpy() for name, value in expected.items()}


def _conditioned_ends(model: Any, hidden: Any, mask: Any, torch: Any) -> Any:
    """Computes the logits of `PublishedTask.logits` from the layers of the class, whose forward pass chooses the start
    itself."""
    start = model.start_logits(hidden)
    last = mask.shape[1] - 1 - mask.flip(-1).argmax(-1)
    weights = start.masked_fill(mask == 0, -1e30).softmax(-1)
    none = model.answer_class(hidden, start_states=(weights[..., None] * hidden).sum(1), cls_index=last)
    return torch.stack([start, model.end_logits(hidden, start_positions=last), none[:, None].expand_as(start)], -1)


def certify(checkpoint: Published, directory: Path) -> Certificate:
    """Compares our network with the reference, which reads the files in `directory`, or, if the reference is not
    available, with itself after its tensors were written and read again.

    Raises:
      RunFault: they differ by more than rounding, or an output is not finite.
    """
    batch = random_batch(checkpoint)
    ours = our_outputs(checkpoint, batch)
    try:
        against, expected = reference_outputs(checkpoint, directory, batch)
    except LookupError as reason:
        params, _ = assign(tensors(checkpoint), checkpoint.family, checkpoint.config, directory, checkpoint.task)
        against = f"itself written and read again ({reason})"
        expected = our_outputs(checkpoint._replace(params=params), batch)
    real = batch.attention_mask.astype(bool)
    ours, expected = ({name: value if name in PER_SEQUENCE else value[real] for name, value in outputs.items()}
                      for outputs in (ours, expected))
    differences = {name: float(np.abs(value - expected[name]).max()) for name, value in ours.items()}
    largest = {name: float(np.abs(value).max()) for name, value in ours.items()}
    result = Certificate(against, differences, largest, *batch.tokens.shape)
    if not all(value <= TOLERANCE * max(1, largest[name]) for name, value in differences.items()):  # also for NaN
        raise RunFault(f"the outputs of {directory} differ too much: {result}; nothing is written")
    return result
