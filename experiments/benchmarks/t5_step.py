"""The time of an encoder-decoder's float32 training step, beside that of Hugging Face's PyTorch implementation.

    pip install -e . torch transformers
    OMP_WAIT_POLICY=passive python experiments/benchmarks/t5_step.py --vocab=8000,32128

Both train T5 of 4 + 4 layers of width 256 with T5's dropout. lmrep's step is that of `lmrep train`, which corrupts the
spans too: sequences of 141 random tokens make sources of 128 and targets of 29. PyTorch is given the sources and
targets that lmrep drew, made outside of the measured time, and trains with the Adafactor of transformers, or fused
AdamW. The matrix products of lmrep's step, each computed alone, estimate a floor of either library. Rounds alternate.
On a busy machine PyTorch's threads wait for each other; OMP_WAIT_POLICY=passive helps it.
"""

import argparse

import numpy as np
from arguments import parse_flags
from timing import Row, alternate, describe_floor, print_table
from training_steps import SENTINELS, LmrepSteps, System, corrupted, lmrep_batch, t5

from lmrep.core.host import keep_memory
from lmrep.models import encoder_decoder


class Torch:
    """Training with transformers' T5ForConditionalGeneration on batches in turn."""

    def __init__(self, c, optimizer, batches):
        import torch
        import transformers

        self._model = t5(c).train()
        make = {"adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01, fused=True),
                "adafactor": lambda p: transformers.Adafactor(p, lr=1e-2, relative_step=False, scale_parameter=True)}
        self._optimizer = make[optimizer](self._model.parameters())
        self._batches = [dict(zip(("input_ids", "attention_mask", "labels"),
                                  (torch.tensor(x.astype(np.int64)) for x in batch), strict=True)) for batch in batches]

    def run(self, i):
        """A step on batch i modulo their number."""
        self._optimizer.zero_grad(set_to_none=True)
        self._model(**self._batches[i % len(self._batches)]).loss.backward()
        self._optimizer.step()


def measure(vocab, o):
    """A row of the table."""
    c = encoder_decoder.Config(vocab=vocab, width=o.width, layers=o.layers, heads=o.heads, head_width=64, mlp=o.mlp)
    system = System(c, "span_corruption", o.optimizer, o.batch_size, o.length)
    rng = np.random.default_rng(0)
    batches = [lmrep_batch(rng.integers(3, vocab - SENTINELS, (o.batch_size, o.length))) for _ in range(4)]
    spans = corrupted(system, batches)
    steps = LmrepSteps(system, batches)
    seconds = alternate({"lmrep": steps.run_to_end, "transformers": Torch(c, o.optimizer, spans).run}, o.rounds)
    print(f"vocabulary {vocab:,}: a step of lmrep has {describe_floor(steps.products)}", flush=True)
    sizes = " + ".join(str(spans[0][i].shape[1]) for i in (0, 2))
    return Row(f"T5, {o.layers} + {o.layers} layers of width {o.width}, {o.batch_size} x ({sizes}) tokens, vocabulary "
               f"{vocab:,}", *seconds.values())


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 4, "width": 256, "heads": 4, "mlp": 1024, "batch_size": 64, "length": 141,
                        "rounds": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--vocab", default="32128", help="sizes of the vocabulary, separated by commas")
    parser.add_argument("--optimizer", default="adafactor", choices=("adafactor", "adamw"))
    o = parse_flags(parser, layers=1, width=32, heads=1, mlp=64, vocab="200,300", batch_size=2, length=30, rounds=1)
    keep_memory()
    rows = [measure(int(vocab), o) for vocab in o.vocab.split(",")]
    print_table(("system", "lmrep", "transformers"), rows, o.optimizer)


if __name__ == "__main__":
    main()
