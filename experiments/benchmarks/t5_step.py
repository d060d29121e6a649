"""The time of an encoder-decoder's float32 training step, beside that of Hugging Face's PyTorch implementation.

    pip install -e . torch transformers
    OMP_WAIT_POLICY=passive python experiments/benchmarks/t5_step.py --vocab=8000 --rounds=5

Both train T5 of 4 + 4 layers of width 256 with T5's dropout. lmrep's step is that of `lmrep train`, which corrupts the
spans too: sequences of 141 random tokens make sources of 128 and targets of 29. PyTorch is given the sources and
targets that lmrep drew, made outside of the measured time, and trains with the Adafactor of transformers, or fused
AdamW. Rounds alternate. The floors are the matrix products of lmrep's step alone, at the rate of [b s, d] x [d, f] of
JAX and of PyTorch. On a busy machine PyTorch's threads wait for each other; OMP_WAIT_POLICY=passive helps it.

Two cores of an AMD EPYC (load 2), jax 0.10.2, torch 2.13.0, transformers 5.23.0, 2026-11-23, Adafactor:

    vocabulary             ms, median   minimum
         8,000    lmrep          1213      1129     floor 685, at lmrep's rate
                  PyTorch        2277      2219     floor 1331, at PyTorch's
        32,128    lmrep          1545      1437     floor 908
                  PyTorch        2836      2640     floor 1798

On two cores of an Intel Xeon (load 1, same versions, 2026-11-24):

         8,000    lmrep          1247      1232     floor 675
                  PyTorch        1754      1747     floor 589
        32,128    lmrep          1580      1554     floor 874
                  PyTorch        2072      2049     floor 756

In five runs on the EPYC beside programs that slowed both down (load 13 to 19), the ratios of minima were 1.4 to 2.2.
"""

import argparse

import numpy as np
from timing import alternate, matrix_rate, print_times
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


def torch_rate(n, i, o, repeats=30):
    """As `matrix_rate`, with PyTorch."""
    import torch

    x, w = torch.ones(n, i), torch.ones(i, o)
    return 2 * n * i * o / min(alternate({"": lambda _: x @ w}, repeats)[""])


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 4, "width": 256, "heads": 4, "mlp": 1024, "vocab": 32128, "batch_size": 64,
                        "length": 141, "rounds": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--optimizer", default="adafactor", choices=("adafactor", "adamw"))
    o = parser.parse_args()
    keep_memory()
    c = encoder_decoder.Config(vocab=o.vocab, width=o.width, layers=o.layers, heads=o.heads, head_width=64, mlp=o.mlp)
    system = System(c, "span_corruption", o.optimizer, o.batch_size, o.length)
    rng = np.random.default_rng(0)
    batches = [lmrep_batch(rng.integers(3, o.vocab - SENTINELS, (o.batch_size, o.length))) for _ in range(4)]
    spans = corrupted(system, batches)
    steps = LmrepSteps(system, batches)
    shape, floors = (o.batch_size * 128, o.width, o.mlp), {"lmrep": matrix_rate}
    runs = {"lmrep": steps.run_to_end}
    try:
        runs["PyTorch"], floors["PyTorch"] = Torch(c, o.optimizer, spans).run, torch_rate
    except ImportError:
        print("PyTorch or transformers is not installed")
    sizes = [spans[0][i].shape[1] for i in (0, 2)]
    seconds = alternate(runs, o.rounds)
    print_times(f"T5 of {o.layers} + {o.layers} layers of width {o.width}, vocabulary {o.vocab:,}, {o.batch_size} x "
                f"({sizes[0]} + {sizes[1]}) tokens, {o.optimizer}", seconds)
    for name, rate in floors.items():
        print(f"floor at {name}'s rate of matrix products: {1000 * steps.flops / rate(*shape):.0f} ms")


if __name__ == "__main__":
    main()
