"""The time of ELMo's float32 training step, beside one written with PyTorch's modules.

    pip install -e . torch
    python experiments/benchmarks/elmo_step.py --cell=512 --width=128 --rounds=8

Both train the network of `experiments/elmo.py` on the same batches of the Python documentation: characters of words
through 2,048 filters, highway layers and a projection, LSTM layers with projections and a residual connection in two
directions, a sampled softmax with the same number of negatives, gradient clipping and Adagrad. lmrep's step is that of
`lmrep train`, with states carried from batch to batch. PyTorch's has `nn.Conv1d`, `nn.Linear`,
`nn.LSTM(proj_size=...)`, which has no clips, and reads the characters of every word of the batch, as the released code
does; its negatives are drawn outside of the measured time. lmrep computes the vector of each distinct word of a batch
once; the last line says how many there are. Rounds alternate.
"""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np
from arguments import TEXT, parse_flags
from timing import Row, alternate, print_table
from training_steps import ObjectiveSteps

from lmrep.core.host import default_data_dir, keep_memory
from lmrep.data.characters import ROWS
from lmrep.experiment import build
from lmrep.experiment.config import parse
from lmrep.interop.checkpoint_config import load_config
from lmrep.models.base import MAX_CHARACTERS

PAGE = Path(__file__).parents[1] / "elmo.py"


def stage(o):
    """The config of the network, and its only stage."""
    fields = {"model.cell": o.cell, "model.width": o.width, "model.highways": o.highways, "length": o.window,
              "batch_size": o.batch_size, "objective.negatives": o.negatives, "tokenizer.vocab_size": o.words}
    fields |= TEXT if o.tiny else {}
    experiment = parse(load_config(PAGE, "size=small,tokenizer=elmo_text",
                                   [(name, str(value)) for name, value in fields.items()]))
    data = build.prepare_data(experiment, default_data_dir())
    return experiment.model, build.stages(data, default_data_dir())[0]


def _inputs(batch):
    """The characters [2, b, t, c] and the next words [2, b, t] of both directions."""
    def both(name):
        return np.stack([batch[name], batch["backward"][name]])

    return both("characters"), np.concatenate([both("tokens")[..., 1:], both("following")[..., None].clip(0)], -1)


class Torch:
    """Training with PyTorch's modules."""

    def __init__(self, c, o, batches):
        import torch

        self._torch, nn, n = torch, torch.nn, sum(c["filters"])
        self._batches = [tuple(torch.tensor(x, dtype=torch.int64) for x in _inputs(batch)) for batch in batches]
        self._embedding = nn.Embedding(ROWS, c["character_width"])
        self._convolutions = nn.ModuleList(nn.Conv1d(c["character_width"], number, w)
                                           for w, number in enumerate(c["filters"], 1))
        self._highways = nn.ModuleList(nn.Linear(n, 2 * n) for _ in range(o.highways))
        self._projection = nn.Linear(n, o.width)
        self._lstms = nn.ModuleList(nn.ModuleList(
            nn.LSTM(o.width, o.cell, proj_size=o.width, batch_first=True) for _ in range(2)) for _ in range(2))
        self._table, self._bias = nn.Embedding(o.words, o.width), nn.Embedding(o.words, 1)
        modules = [self._embedding, self._convolutions, self._highways, self._projection, self._lstms, self._table,
                   self._bias]
        self._parameters = [p for module in modules for p in module.parameters()]
        self._optimizer = torch.optim.Adagrad(self._parameters, lr=0.2, initial_accumulator_value=1.0)
        self._states = [[None, None], [None, None]]
        probability = np.diff(np.log(np.arange(1, o.words + 2))) / np.log(o.words + 1)
        self._log = torch.tensor(np.log(o.negatives * probability), dtype=torch.float32)
        self._drawn = torch.tensor(np.random.default_rng(0).choice(o.words, o.negatives, replace=False, p=probability))

    def _words(self, characters):
        torch = self._torch
        x = self._embedding(characters.reshape(-1, characters.shape[-1])).transpose(1, 2)
        x = torch.relu(torch.cat([convolution(x).amax(2) for convolution in self._convolutions], 1))
        for highway in self._highways:
            gate, transform = highway(x).chunk(2, 1)
            gate = torch.sigmoid(gate)
            x = gate * torch.relu(transform) + (1 - gate) * x
        return self._projection(x).reshape(*characters.shape[:-1], -1)

    def run(self, i):
        """A step on batch i modulo their number."""
        torch = self._torch
        characters, targets = self._batches[i % len(self._batches)]
        self._optimizer.zero_grad(set_to_none=True)
        words, outputs = self._words(characters), []
        for direction, x in enumerate(words):
            for layer in range(2):
                y, state = self._lstms[layer][direction](x, self._states[layer][direction])
                self._states[layer][direction] = tuple(each.detach() for each in state)
                x = x + y if layer else y
            outputs.append(x)
        x, targets = torch.cat(outputs).flatten(0, 1), targets.flatten()
        of_target = (x * self._table(targets)).sum(1) + self._bias(targets)[:, 0] - self._log[targets]
        of_drawn = x @ self._table(self._drawn).T + self._bias(self._drawn)[:, 0] - self._log[self._drawn]
        of_drawn = of_drawn.masked_fill(self._drawn == targets[:, None], -1e9)
        loss = (torch.logsumexp(torch.cat([of_target[:, None], of_drawn], 1), 1) - of_target).mean()
        (20 * loss).backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 10.0)
        self._optimizer.step()


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", type=int, default=512)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--highways", type=int, default=1)
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--words", type=int, default=20000, help="of the vocabulary")
    parser.add_argument("--negatives", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=8)
    o = parse_flags(parser, cell=16, width=8, window=8, batch_size=2, words=300, negatives=20, rounds=1)
    keep_memory()
    c, built = stage(o)
    batches = list(islice(built.batches(np.arange(o.batch_size), 0, 16), 16))
    seconds = alternate({"lmrep": ObjectiveSteps(built.objective, built.optimizer, batches).run_to_end,
                         "PyTorch": Torch(c, o, batches).run}, o.rounds)
    print_table(("system", "lmrep", "PyTorch"), [Row(
        f"ELMo, cell {o.cell}, projection {o.width}, {sum(c['filters']):,} filters, {o.batch_size} x {o.window} words",
        *seconds.values())], f"{o.highways} highway layers, {o.negatives:,} negatives of {o.words:,} words")
    words = [_inputs(batch)[0].reshape(-1, MAX_CHARACTERS) for batch in batches]
    print(f"words of a batch: {len(words[0]):,}, distinct ones "
          f"{np.mean([len(np.unique(own, axis=0)) for own in words]):,.0f}")


if __name__ == "__main__":
    main()
