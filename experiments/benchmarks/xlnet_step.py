"""The time of XLNet's float32 training step, beside that of Hugging Face's PyTorch implementation.

    pip install -e . torch transformers
    python experiments/benchmarks/xlnet_step.py --layers=4 --width=256 --rounds=8

Both train the network of `experiments/xlnet.py` on the same batches of the Python documentation: two streams, a memory
that is carried from batch to batch and starts full, dropout, a softmax at the predicted positions, gradient clipping
and Adam with weight decay. lmrep's step is that of `lmrep train`, which draws the orders too; PyTorch is given those of
lmrep as `perm_mask` and `target_mapping`, made outside of the measured time. Its examples all read forward: the library
gives all of a batch one direction. Rounds alternate.
"""

import argparse
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from arguments import TEXT, parse_flags
from timing import Row, alternate, print_table
from training_steps import ObjectiveSteps

from lmrep.core.host import default_data_dir, keep_memory
from lmrep.experiment import build
from lmrep.experiment.config import parse
from lmrep.interop.checkpoint_config import load_config
from lmrep.training.step import prepare_keys

PAGE = Path(__file__).parents[1] / "xlnet.py"
NUM_BATCHES = 8


def stage(o):
    """The config of the network, and its only stage."""
    fields = {"model.layers": o.layers, "model.width": o.width, "model.heads": max(1, o.width // 64),
              "model.mlp": 4 * o.width, "model.memory": o.memory, "model.vocab": 0, "length": o.length,
              "batch_size": o.batch_size, "tokenizer.vocab_size": o.pieces} | (TEXT if o.tiny else {})
    experiment = parse(load_config(PAGE, "size=base,bidirectional=no", [(name, str(x)) for name, x in fields.items()]))
    data = build.prepare_data(experiment, default_data_dir())
    return experiment.model, build.stages(data, default_data_dir())[0]


class Torch:
    """Training with transformers' XLNetLMHeadModel."""

    def __init__(self, c, o, vocab_size, batches):
        import torch
        import transformers

        self._torch = torch
        self._model = transformers.XLNetLMHeadModel(transformers.XLNetConfig(
            vocab_size=vocab_size, d_model=o.width, n_layer=o.layers, n_head=c["heads"], d_inner=c["mlp"],
            ff_activation="gelu_new", dropout=c["dropout"], mem_len=o.memory or None, reuse_len=o.length // 2)).train()
        decayed = [p for name, p in self._model.named_parameters() if "bias" not in name and "layer_norm" not in name]
        others = [p for name, p in self._model.named_parameters() if "bias" in name or "layer_norm" in name]
        self._optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01},
                                             {"params": others, "weight_decay": 0.0}], lr=4e-4, eps=1e-6)
        self._mems = [torch.zeros(o.memory, o.batch_size, o.width) for _ in range(o.layers)] if o.memory else None
        self._batches = [self._inputs(batch) for batch in batches]

    def _inputs(self, batch):
        torch, t = self._torch, batch["tokens"].shape[1]
        hidden = ~(batch["revealed"][:, None, :] < batch["sees"][:, :, None])
        mapping = np.eye(t, dtype=np.float32)[batch["predicted"]]
        targets = np.where(batch["weights"] > 0, batch["targets"], -100)
        return {"input_ids": torch.tensor(batch["tokens"].astype(np.int64)),
                "token_type_ids": torch.tensor(batch["token_type_ids"].astype(np.int64)),
                "perm_mask": torch.tensor(hidden.astype(np.float32)), "target_mapping": torch.tensor(mapping),
                "labels": torch.tensor(targets.astype(np.int64))}

    def run(self, i):
        """A step on batch i modulo their number."""
        self._optimizer.zero_grad(set_to_none=True)
        out = self._model(**self._batches[i % len(self._batches)], mems=self._mems, use_mems=self._mems is not None)
        self._mems = self._mems and [each.detach() for each in out.mems]
        out.loss.backward()
        self._torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()


def lmrep_steps(built, batches):
    """Training with lmrep, from a full memory: the reference has no empty positions in it."""
    steps = ObjectiveSteps(built.objective, built.optimizer, batches)
    carry = steps.state.carry
    if jax.tree.leaves(carry.per_example):
        filled = jnp.ones_like(carry.per_example["filled"])
        steps.state = steps.state.replace(
            carry=carry._replace(per_example={**carry.per_example, "filled": filled}))
    return steps


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--memory", type=int, default=96)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--pieces", type=int, default=8000, help="of the vocabulary")
    parser.add_argument("--rounds", type=int, default=8)
    o = parse_flags(parser, layers=1, width=64, length=16, memory=16, batch_size=2, pieces=300, rounds=1)
    keep_memory()
    c, built = stage(o)
    batches = [batch | {"reset": np.zeros_like(batch["reset"])}
               for batch in islice(built.batches(np.arange(o.batch_size), 0, NUM_BATCHES), NUM_BATCHES)]
    prepare = jax.jit(lambda batch: built.objective.prepare(prepare_keys(
        built.objective, batch, 0, np.int32(0)), batch))
    prepared = [jax.device_get(prepare(batch)) for batch in batches]
    vocab = built.objective.specs["encoder"]["embedding"]["token"].shape[0]
    seconds = alternate({"lmrep": lmrep_steps(built, batches).run_to_end,
                         "transformers": Torch(c, o, vocab, prepared).run}, o.rounds)
    print_table(("system", "lmrep", "transformers"), [Row(
        f"XLNet, {o.layers} layers of width {o.width}, {o.batch_size} x {o.length} tokens, memory {o.memory}",
        *seconds.values())], f"{prepared[0]['predicted'].shape[1]} predicted, {o.pieces:,} pieces")


if __name__ == "__main__":
    main()
