"""Fine-tuning and labelling with a BERT classifier, compared with Hugging Face transformers on PyTorch in one process.

    pip install -e . torch transformers
    python experiments/benchmarks/classify.py --data=train.tsv --vocab=vocab.txt

Both start from the same random weights (written by `lmrep convert --to=huggingface`), in float32, with the network
`--model`, and read the same examples, columns `sentence` and `label`. Training is measured in steps of --batch
examples with AdamW and dropout: transformers pads each batch to its longest example, in random order; lmrep groups
examples by length and pads to the nearest bucket. Labelling is `pipeline("text-classification", batch_size=32)` against
`Run.predict`, tokenization included; the labels of some sentences are compared beforehand. Rounds alternate; the first
one of each, in which lmrep compiles, is not counted. The floor is the time of the matrix products of the tokens
without padding, at the rate of one large matrix product.
"""

import argparse
import csv
import itertools
import tempfile
import time
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from arguments import parse_flags

import lmrep
from lmrep.cli.main import main as lmrep_command
from lmrep.core.host import keep_memory, processor
from lmrep.experiment import build
from lmrep.experiment.fine_tuning import compose_task
from lmrep.training.state import create
from lmrep.training.step import train_step


def make_run(directory, args):
    """A run of one step, and its transformers directory."""
    config = compose_task(f"model={args.model}", "classification", data={
        "train": args.data, "validation": args.data, "columns": {"text": "sentence", "label": "label"}})
    config.tokenizer.vocab_file = args.vocab
    config.steps, config.batch_size, config.evaluation.examples = 1, args.batch, 64
    config.log.report = config.log.tensorboard = False
    lmrep.train(config, directory / "run")
    if lmrep_command(["convert", str(directory / "run"), str(directory / "published"), "--to=huggingface"]):
        raise SystemExit("the run could not be converted")
    return lmrep.load(directory / "run")


def examples_of(path, count):
    """(texts, labels) of the first `count` examples of a TSV file."""
    with open(path, encoding="utf8", newline="") as file:
        rows = list(itertools.islice(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE), count))
    return [row["sentence"].strip() for row in rows], [row["label"] for row in rows]


class Ours:
    """Training steps of lmrep, and the batches in the order of a run."""

    def __init__(self, run, args):
        data = build.prepare_data(run.experiment, Path("unused"))
        (stage,) = build.stages(data, Path("unused"))
        self.stage, self.train = stage, data.splits["train"]
        self.step = jax.jit(lambda state, batch: train_step(
            state, batch, objective=stage.objective, optimizer=stage.optimizer, seed=0), donate_argnums=0)
        state = create(stage.objective, stage.optimizer, args.batch, 0)
        self.state = state.replace(params=jax.tree.map(jnp.array, run.params))
        self.begin, self.indices = 0, np.arange(args.batch)

    def run(self, steps):
        """Seconds of some steps."""
        began = time.perf_counter()
        for batch in self.stage.batches(self.indices, self.begin, self.begin + steps):
            self.state, metrics = self.step(self.state, batch)
        jax.block_until_ready(metrics)
        self.begin += steps
        return time.perf_counter() - began

    def compile(self):
        """Runs a batch of every length that occurs."""
        lengths = {self.train.batch_length(np.array([number])): number for number in np.argsort(self.train.lengths)}
        for number in lengths.values():
            numbers = np.full(len(self.indices), number)
            batch = self.train.gather(numbers, self.train.batch_length(numbers))
            self.state, _ = self.step(self.state, batch)


class Theirs:
    """Training steps of transformers."""

    def __init__(self, directory, texts, labels, args):
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        torch.set_num_threads(args.threads)
        self.torch, self.batch = torch, args.batch
        self.model = AutoModelForSequenceClassification.from_pretrained(directory)
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-5)
        names = self.model.config.label2id
        self.encoded = self.tokenizer(texts, truncation=True, max_length=128)["input_ids"]
        self.labels, self.rng = [names[label] for label in labels], np.random.default_rng(0)

    def run(self, steps):
        """Seconds of some steps."""
        self.model.train()
        began = time.perf_counter()
        for _ in range(steps):
            chosen = self.rng.choice(len(self.encoded), self.batch, replace=False)
            batch = self.tokenizer.pad({"input_ids": [self.encoded[i] for i in chosen]}, return_tensors="pt")
            labels = self.torch.tensor([self.labels[i] for i in chosen])
            self.model(**batch, labels=labels).loss.backward()
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return time.perf_counter() - began

    def label(self, texts):
        """(seconds, labels)"""
        from transformers import pipeline

        classify = pipeline("text-classification", model=self.model.eval(), tokenizer=self.tokenizer)
        began = time.perf_counter()
        found = [one["label"] for one in classify(texts, batch_size=32, truncation=True, max_length=128)]
        return time.perf_counter() - began, found


def matmul_rate(seconds=2.0):
    """Floating-point operations per second of a large float32 matrix product."""
    a = jnp.ones((1536, 1536))
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        product(a).block_until_ready()
        count += 1
    return count * 2 * 1536**3 / (time.perf_counter() - began)


def floor_per_token(run):
    """Operations of the forward pass for a token: two for each weight of the layers."""
    layers = run.params["encoder"]["layers"]
    return 2 * sum(x.size for x in jax.tree.leaves(layers) if x.ndim == 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--model", default="bert_small")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parse_flags(parser, model="bert_tiny", batch=4, steps=2, sentences=8, rounds=2)
    keep_memory()
    texts, labels = examples_of(args.data, args.sentences)
    with tempfile.TemporaryDirectory() as temporary:
        run = make_run(Path(temporary), args)
        theirs = Theirs(Path(temporary) / "published", texts, labels, args)
        ours = Ours(run, args)
        ours.compile()
        mine = [one["label"] for one in run.predict(texts)]
        some = texts[:500]
        same = np.mean([a == b for a, b in zip(mine, theirs.label(some)[1], strict=False)])
        print(f"{same:.1%} of {len(some)} labels are the same", flush=True)
        pairs, labelled = [], []
        for round_ in range(args.rounds):
            pairs.append((ours.run(args.steps), theirs.run(args.steps)))
            began = time.perf_counter()
            mine = [one["label"] for one in run.predict(texts)]
            seconds = time.perf_counter() - began
            their_seconds, found = theirs.label(texts)
            labelled.append((seconds, their_seconds))
            print(f"round {round_}: {args.steps} steps {pairs[-1][0]:.1f} and {pairs[-1][1]:.1f} s, "
                  f"labelling {seconds:.1f} and {their_seconds:.1f} s", flush=True)
    rate, tokens = matmul_rate(), float(ours.train.lengths.mean())
    print("\n| | lmrep | transformers | ratio | floor |\n| --- | --- | --- | --- | --- |")
    for what, found, count, passes in (("training, examples per second", pairs, args.batch * args.steps, 3),
                                       ("labelling, sentences per second", labelled, len(texts), 1)):
        mine, other = (np.median([pair[i] for pair in found[1:]]) for i in (0, 1))
        floor = passes * floor_per_token(run) * tokens * count / rate
        print(f"| {what} | {count / mine:,.0f} | {count / other:,.0f} | {other / mine:.1f} | {count / floor:,.0f} |")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "torch", "transformers"))
    print(f"\n{args.model}, batch {args.batch}, {tokens:.1f} tokens an example; {processor()}, {versions}")


if __name__ == "__main__":
    main()
