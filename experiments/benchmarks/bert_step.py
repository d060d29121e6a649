"""One training step of BERT, float32, beside Hugging Face's PyTorch, interleaved in one process.

    pip install -e . torch transformers
    python experiments/benchmarks/bert_step.py --size=mini --rounds=20
    python experiments/benchmarks/bert_step.py --size=mini --padded --text=wiki.txt --vocab=vocab.txt

Theirs is `BertForMaskedLM` in training mode with SDPA, gradient clipping and fused AdamW (and, with --compile, under
torch.compile). Ours is the step that `lmrep train` runs: masking on the device, dropout where theirs is, clipping and
AdamW. Both take 16 rows of 128 tokens, of which they predict 19 a row.

With --padded the text is real: theirs gets a sentence a row, padded to 128 with an attention mask, as is customary;
ours packs the documents' tokens into rows without padding. Tokens a second count real tokens alone.

Both run in one process, under the memory setting of `lmrep.core.host.keep_memory` unless --default-malloc is given;
theirs gains from it too. Steps alternate, each after an unmeasured one that lets caches and threads settle. Medians and
minima are of wall time; on a shared machine compare the minima. The matrix rate is that of float32 products of the
feed-forward block's shape.
"""

import argparse
import os
import platform
import tempfile
import time
from functools import partial
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.analysis import flops
from lmrep.core.host import keep_memory
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import loader, sentences, store, tokenizers
from lmrep.data.formats import FORMATS
from lmrep.layers.stack import Execution
from lmrep.models import PRESETS, transformer
from lmrep.objectives import masked
from lmrep.training import optimizers, state
from lmrep.training.step import train_step

ROWS, LENGTH = 16, 128
VOCABULARY = Vocabulary(30522, {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103},
                        np.ones(30522, bool), np.ones(30522, np.int64))


def ours(size, batches):
    """(step, floating-point operations of a step): step(i) trains on batches[i % n]."""
    model = transformer.build(PRESETS[f"bert_{size}"].config, Execution())
    objective = masked.build(masked.Config(), model, VOCABULARY)
    optimizer = optimizers.build(optimizers.RECIPES["bert"], objective.specs, 1_000_000)
    create = partial(state.create, objective, optimizer, ROWS)
    held = [jax.jit(create)(0)]
    step = partial(train_step, objective=objective, optimizer=optimizer, seed=0)
    compiled = jax.jit(step, donate_argnums=0).lower(held[0], batches[0]).compile()

    def run(i):
        held[0], metrics = compiled(held[0], batches[i % len(batches)])
        return float(metrics["loss"][0])

    return run, flops.count(step, jax.eval_shape(create, 0), batches[0])


def theirs(size, batches, compiled, threads):
    """As `ours`, in PyTorch; `batches` are (input_ids, attention_mask or None, labels)."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.set_num_threads(threads)
    c = PRESETS[f"bert_{size}"].config
    config = BertConfig(vocab_size=c.vocab, hidden_size=c.width, num_hidden_layers=c.layers,
                        num_attention_heads=c.heads,
                        intermediate_size=c.mlp, hidden_act="gelu_new", attn_implementation="sdpa")
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if compiled else model
    batches = [[None if x is None else torch.tensor(x, dtype=torch.int64) for x in batch] for batch in batches]

    def run(i):
        tokens, mask, labels = batches[i % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        loss = forward(input_ids=tokens, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return run


def labelled(tokens, segments, rng):
    """Tokens masked as theirs: 15 % of the real tokens of each row, all shown as [MASK]."""
    inputs, labels = tokens.copy(), np.full_like(tokens, -100)
    for row in range(len(tokens)):
        places = np.flatnonzero((segments[row] > 0) & (tokens[row] != 101) & (tokens[row] != 102))
        chosen = rng.permutation(places)[: max(1, round(0.15 * int((segments[row] > 0).sum())))]
        labels[row, chosen], inputs[row, chosen] = tokens[row, chosen], 103
    return inputs, labels


def random_batches(rng):
    """One batch of random ids without padding, for both."""
    tokens = rng.integers(1000, 30000, (ROWS, LENGTH)).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = 101, 102
    ones = np.ones_like(tokens)
    mine = {"tokens": tokens, "segment_ids": ones, "token_type_ids": ones * 0,
            "example": np.arange(ROWS, dtype=np.int32),
            "positions": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape)}
    inputs, labels = labelled(tokens, ones, rng)
    return [jax.tree.map(jnp.asarray, mine)], [(inputs, None, labels)]


def text_batches(text, vocab, rng, number=32):
    """Batches of real text: ours packed, theirs a sentence a row."""
    tokenizer = tokenizers.from_vocab_file(tokenizers.Config(vocab_file=vocab))
    with open(text, encoding="utf8") as file:
        documents = [sentences.split(d) for d in file.read(3_000_000).split("\n\n") if d.strip()]
    ids = [[s for s in tokenizer.encode_batch(d) if len(s)] for d in documents]
    with tempfile.TemporaryDirectory() as directory:
        packed = FORMATS["packed"]
        plan = packed.plan(packed.config(), store.write(directory, ids, tokenizer.vocabulary), LENGTH, 0)
        gathered = [loader.gather(plan, np.arange(i * ROWS, (i + 1) * ROWS)) for i in range(number)]
    mine = [jax.tree.map(jnp.asarray, batch) for batch in gathered]
    flat = [s for d in ids for s in d]
    rows = []
    for i in range(number):
        tokens, real = np.zeros((ROWS, LENGTH), np.int64), np.zeros((ROWS, LENGTH), np.int64)
        for row, sentence in enumerate(flat[i * ROWS : (i + 1) * ROWS]):
            whole = [101, *sentence[: LENGTH - 2], 102]
            tokens[row, : len(whole)], real[row, : len(whole)] = whole, 1
        inputs, labels = labelled(tokens, real, rng)
        rows.append((inputs, real, labels))
    return mine, rows


def matrix_rate(config):
    """Floating-point operations a second of a product [2048, d] x [d, f], the best of many."""
    x, w = jnp.ones((ROWS * LENGTH, config.width)), jnp.ones((config.width, config.mlp))
    product = jax.jit(jnp.matmul)
    seconds = []
    for _ in range(50):
        start = time.perf_counter()
        product(x, w).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * x.shape[0] * w.size / min(seconds)


def measure(steps, rounds):
    """{name: seconds of each measured step}."""
    found = {name: [] for name in steps}
    for i in range(rounds):
        for name, step in steps.items():
            step(i)
            start = time.perf_counter()
            step(i)
            found[name].append(time.perf_counter() - start)
    return found


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="mini", choices=["tiny", "mini", "small", "medium"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--default-malloc", action="store_true", help="leave glibc's memory settings as they are")
    parser.add_argument("--compile", action="store_true", help="theirs under torch.compile too")
    parser.add_argument("--padded", action="store_true", help="real text: theirs pads sentences, ours packs")
    parser.add_argument("--text", help="with --padded: a text file, blank lines between documents")
    parser.add_argument("--vocab", help="with --padded: BERT's uncased vocab.txt")
    flags = parser.parse_args()
    if flags.padded and not (flags.text and flags.vocab):
        parser.error("--padded needs --text=FILE and --vocab=FILE")

    kept = not flags.default_malloc and keep_memory()
    rng = np.random.default_rng(0)
    mine, rows = text_batches(flags.text, flags.vocab, rng) if flags.padded else random_batches(rng)
    step, operations = ours(flags.size, mine)
    steps = {"lmrep": step, "Hugging Face": theirs(flags.size, rows, False, flags.threads)}
    if flags.compile:
        steps["Hugging Face, compiled"] = theirs(flags.size, rows, True, flags.threads)
    measure(steps, 2)
    seconds = measure(steps, flags.rounds)
    used = range(flags.rounds)
    real = {"lmrep": np.mean([int((mine[i % len(mine)]["segment_ids"] > 0).sum()) for i in used])}
    for name in list(steps)[1:]:
        masks = [rows[i % len(rows)][1] for i in used]
        real[name] = np.mean([ROWS * LENGTH if mask is None else mask.sum() for mask in masks])

    config = PRESETS[f"bert_{flags.size}"].config
    rate = matrix_rate(config)
    print(f"BERT-{flags.size}, {ROWS} x {LENGTH}, float32, {'sentences' if flags.padded else 'no padding'}, "
          f"{flags.rounds} rounds, {time.strftime('%Y-%m-%d')}")
    print(f"{platform.processor() or platform.machine()}, {flags.threads} threads; "
          + ", ".join(f"{p} {metadata.version(p)}" for p in ("jax", "torch", "transformers"))
          + ("; memory kept" if kept else "")
          + "".join(f"; {name}={os.environ[name]}" for name in ("XLA_FLAGS", "GLIBC_TUNABLES") if name in os.environ))
    print(f"\n{'':24}{'ms, min':>9}{'median':>9}{'tokens/s':>10}{'ratio, min':>12}{'median':>9}")
    for name, values in seconds.items():
        low, mid = min(values), float(np.median(values))
        first, own = real["lmrep"], real[name]
        print(f"{name:24}{low * 1e3:9.0f}{mid * 1e3:9.0f}{own / mid:10,.0f}"
              f"{(first / min(seconds['lmrep'])) / (own / low):12.2f}"
              f"{(first / float(np.median(seconds['lmrep']))) / (own / mid):9.2f}")
    print(f"\nOur step is {operations / 1e9:.1f} GFLOP: {operations / min(seconds['lmrep']) / rate:.0%} of the matrix "
          f"rate, {rate / 1e9:.0f} GFLOP/s, at its fastest")


if __name__ == "__main__":
    main()
