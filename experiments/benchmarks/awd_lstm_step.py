"""The time of AWD-LSTM's float32 training step, beside one written with PyTorch's modules.

    pip install -e . torch
    python experiments/benchmarks/awd_lstm_step.py --rounds=5

Both train the network of `experiments/awd_lstm.py` on the same batches of the Python documentation, with the five
dropouts, the penalties of activations, states carried from batch to batch, clipping, weight decay and SGD. lmrep's step
is that of `lmrep train`, whose optimizer also keeps the averages of NT-ASGD. PyTorch's has `nn.LSTM`, whose recurrent
weights get a new mask in every step, as in the released code. Rounds alternate. The lengths of batches do not vary.
Beside other programs, set OMP_WAIT_POLICY=passive: threads of PyTorch that wait take the cores otherwise.
"""

import argparse
from itertools import islice, pairwise
from pathlib import Path

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
    print_table(("system", "lmrep", "PyTorch"), [Row(
        f"AWD-LSTM, {c['layers']} layers of {o.width:,}, embedding {o.embedding}, {o.batch_size} x {o.length} words",
        *seconds.values())], f"{o.words:,} words in the vocabulary")


if __name__ == "__main__":
    main()
