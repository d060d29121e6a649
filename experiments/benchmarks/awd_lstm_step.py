"""The time of AWD-LSTM's float32 training step, beside one written with PyTorch's modules.

    pip install -e . torch
    python experiments/benchmarks/awd_lstm_step.py --rounds=5

Both train the network of `experiments/awd_lstm.py` on the same batches of the Python documentation, with the five
dropouts, the penalties of activations, states carried from batch to batch, clipping, weight decay and SGD. lmrep's step
is that of `lmrep train`, whose optimizer also keeps the averages of NT-ASGD. PyTorch's has `nn.LSTM`, whose recurrent
weights get a new mask in every step, as in the released code. Rounds alternate. The lengths of batches do not vary.
The second row is of the matrix products of that step alone, by each library: the floor of its time.
Beside other programs, set OMP_WAIT_POLICY=passive: threads of PyTorch that wait take the cores otherwise.
"""

import argparse
from functools import partial
from itertools import islice, pairwise
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

PAGE = Path(__file__).parents[1] / "awd_lstm.py"


def stage(o):
    """The config of the network, and its only stage."""
    fields = {"model.width": o.width, "model.embedding": o.embedding, "model.vocab": o.words, "length": o.length,
              "batch_size": o.batch_size, "tokenizer.vocab_size": o.words}
    fields |= TEXT if o.tiny else {}
    experiment = parse(load_config(PAGE, "size=ptb,lengths=fixed", [(name, str(value))
                                                                    for name, value in fields.items()]))
    data = build.prepare_data(experiment, default_data_dir())
    return experiment.model, build.stages(data, default_data_dir())[0]


class Torch:
    """Training with PyTorch's modules."""

    def __init__(self, c, batches):
        import torch

        self._torch, self._c, nn = torch, c, torch.nn
        self._batches = [tuple(torch.tensor(x, dtype=torch.int64) for x in (batch["tokens"], np.concatenate(
            [batch["tokens"][:, 1:], batch["following"][:, None].clip(0)], 1))) for batch in batches]
        widths = [c["embedding"], *[c["width"]] * (c["layers"] - 1), c["embedding"]]
        self._lstms = nn.ModuleList(nn.LSTM(*pair, batch_first=True)
                                    for pair in pairwise(widths))
        self._table = nn.Parameter(torch.empty(c["vocab"], c["embedding"]).uniform_(-0.1, 0.1))
        self._bias = nn.Parameter(torch.zeros(c["vocab"]))
        self._parameters = [self._table, self._bias, *self._lstms.parameters()]
        self._optimizer = torch.optim.SGD(self._parameters, lr=30, weight_decay=1.2e-6)
        self._states = [None] * c["layers"]

    def _locked(self, x, rate):
        return x * self._torch.empty(len(x), 1, x.shape[2]).bernoulli_(1 - rate).div_(1 - rate)

    def run(self, i):
        """A step on batch i modulo their number."""
        torch, c = self._torch, self._c
        tokens, targets = self._batches[i % len(self._batches)]
        self._optimizer.zero_grad(set_to_none=True)
        kept = 1 - c["embedding_dropout"]
        types = torch.empty(c["vocab"], 1).bernoulli_(kept).div_(kept)
        x = torch.nn.functional.embedding(tokens, self._table) * types[tokens]
        x = self._locked(x, c["input_dropout"])
        rates = [c["hidden_dropout"]] * (c["layers"] - 1) + [c["dropout"]]
        for layer, (lstm, rate) in enumerate(zip(self._lstms, rates, strict=True)):
            kernel = torch.nn.functional.dropout(lstm.weight_hh_l0, c["weight_dropout"])
            raw, state = torch.func.functional_call(lstm, {"weight_hh_l0": kernel}, (x, self._states[layer]))
            self._states[layer] = tuple(each.detach() for each in state)
            x = self._locked(raw, rate)
        logits = torch.nn.functional.linear(x, self._table, self._bias)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss = loss + c["ar"] * x.pow(2).mean() + c["tar"] * (raw[:, 1:] - raw[:, :-1]).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 0.25)
        self._optimizer.step()


def products(c, batch_size, length):
    """Functions that compute the matrix products of a training step alone, by JAX and by PyTorch: of layers, one of
    inputs and two of its gradients over all time steps; of recurrent weights, two at each step and one over all; and
    three of the logits."""
    import torch

    widths = [c["embedding"], *[c["width"]] * (c["layers"] - 1), c["embedding"]]
    rng = np.random.default_rng(0)
    layers = [tuple(rng.normal(size=shape).astype(np.float32) for shape in ((d, 4 * h), (h, 4 * h)))
              for d, h in pairwise(widths)]
    arrays = layers, (rng.normal(size=(c["embedding"], c["vocab"])).astype(np.float32),)
    rows = {d: rng.normal(size=(batch_size * length, d)).astype(np.float32)
            for d in {*widths, *(4 * h for h in widths), c["vocab"]}}

    def dense(w, rows):
        x, g = rows[w.shape[0]], rows[w.shape[1]]
        return x @ w, g @ w.T, x.T @ g

    def compute(layers, table, rows, steps):
        results = [dense(w, rows) for w in (*table, *(w for w, _ in layers))]
        for _, w in layers:
            x, g = rows[w.shape[0]], rows[w.shape[1]]
            results += [steps(x[:batch_size], w), steps(g[:batch_size], w.T), x.T @ g]
        return results

    def by_jax(x, w):
        return jax.lax.scan(lambda scale, _: (scale + 1, (scale * x) @ w), jnp.ones(()), length=length)

    def by_torch(x, w):
        return [x @ w for _ in range(length)]

    run = jax.jit(partial(compute, steps=by_jax))
    in_jax = jax.tree.map(jnp.asarray, (*arrays, rows))
    in_torch = jax.tree.map(torch.tensor, (*arrays, rows))
    return {"lmrep": lambda _: jax.block_until_ready(run(*in_jax)),
            "PyTorch": lambda _: compute(*in_torch, steps=by_torch)}


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1150)
    parser.add_argument("--embedding", type=int, default=400)
    parser.add_argument("--words", type=int, default=10_000, help="of the vocabulary")
    parser.add_argument("--length", type=int, default=70)
    parser.add_argument("--batch_size", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    o = parse_flags(parser, width=16, embedding=8, words=300, length=8, batch_size=2, rounds=1)
    keep_memory()
    c, built = stage(o)
    batches = list(islice(built.batches(np.arange(o.batch_size), 0, 8), 8))
    seconds = alternate({"lmrep": ObjectiveSteps(built.objective, built.optimizer, batches).run_to_end,
                         "PyTorch": Torch(c, batches).run}, o.rounds)
    floor = alternate(products(c, o.batch_size, o.length), o.rounds)
    print_table(("system", "lmrep", "PyTorch"), [
        Row(f"AWD-LSTM, {c['layers']} layers of {o.width:,}, embedding {o.embedding}, {o.batch_size} x {o.length} "
            "words", *seconds.values()),
        Row("its matrix products alone, by JAX and by PyTorch", *floor.values())],
        f"{o.words:,} words in the vocabulary")


if __name__ == "__main__":
    main()
