"""One training step, float32, beside Hugging Face's PyTorch, interleave in one process.

    pip install -e . torch transformers
    python experiments/benchmarks/step.py --system=bert_mini --rounds=20
    python experiments/benchmarks/step.py --system=bert_mini --padded --text=wiki.txt --vocab=vocab.txt
    python experiments/benchmarks/step.py --system=gpt2 --rounds=6

Ours is the step that `lmrep train` runs: questions made on the device, dropout where theirs is, clipping and AdamW.
Theirs is the model in training mode with SDPA, gradient clipping and fused AdamW (and, with --compile, under
torch.compile too). Both take the same tokens:

    bert_mini ...   `BertForMaskedLM`; 16 rows of 128 tokens, of which both predict 19 a row
    gpt2            `GPT2LMHeadModel`; 4 rows of 256
    gpt2_mini       the same with 4 layers of width 256 and the whole vocabulary; 8 rows of 256
    electra_small   `ElectraForMaskedLM`, words drawn from its scores, and `ElectraForPreTraining` on the same
                    embeddings, in one step; 16 rows of 128. Theirs scores all positions in the generator, as
                    `ElectraForMaskedLM` does; a second row calls its parts one by one, and scores those that are asked

With --padded BERT's text is real: theirs gets a sentence a row, padded to 128 with an attention mask, as is customary;
ours packs the documents' tokens into rows without padding. Tokens a second count real tokens alone.

All run in one process, under the memory setting of `lmrep.core.host.keep_memory` unless --default-malloc is given;
theirs gains from it too. Steps alternate, each after an unmeasured one that lets caches and threads settle. Medians and
minima are of wall time; on a shared machine compare the minima. The matrix rate is that of float32 products of the
feed-forward block's shape.
"""

import argparse
import os
import platform
import tempfile
import time
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.host import keep_memory
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import formats, loader, sentences, tokenizers
from lmrep.data.formats.packed import Packed
from lmrep.data.store import token_store
from lmrep.layers.stack import Execution
from lmrep.models import PRESETS, transformer
from lmrep.objectives import OBJECTIVES
from lmrep.planning import flops
from lmrep.training import optimizers, state
from lmrep.training.step import train_step

SPECIALS = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}


class System(NamedTuple):
    """What is trained."""

    config: transformer.Config
    objective: str
    recipe: str
    rows: int = 16
    length: int = 128


GPT2 = PRESETS["gpt2"].config
SYSTEMS = {f"bert_{size}": System(PRESETS[f"bert_{size}"].config, "masked", "bert")
           for size in ("tiny", "mini", "small", "medium")} | {
    "gpt2": System(GPT2, "causal", "adamw", 4, 256),
    "gpt2_mini": System(replace(GPT2, layers=4, width=256, heads=4, mlp=1024), "causal", "adamw", 8, 256),
    "electra_small": System(PRESETS["electra_small"].config, "replaced_token", "bert"),
}


def ours(system, batches):
    """(step, floating-point operations of a step): step(i) trains on batches[i % n]."""
    vocab = system.config.vocab
    vocabulary = Vocabulary(vocab, SPECIALS, np.ones(vocab, bool), np.ones(vocab, np.int64))
    kind = OBJECTIVES[system.objective]
    objective = kind.build(kind.config(), transformer.build(system.config, Execution()), vocabulary)
    optimizer = optimizers.build(optimizers.RECIPES[system.recipe], objective.specs, 1_000_000)
    create = partial(state.create, objective, optimizer, system.rows)
    held = [jax.jit(create)(0)]
    step = partial(train_step, objective=objective, optimizer=optimizer, seed=0)
    compiled = jax.jit(step, donate_argnums=0).lower(held[0], batches[0]).compile()

    def run(i):
        held[0], metrics = compiled(held[0], batches[i % len(batches)])
        return float(metrics["loss"][0])

    return run, flops.count(step, jax.eval_shape(create, 0), batches[0])


def theirs(system, batches, compiled, gathered=False):
    """As `ours`, in PyTorch; `batches` are (input_ids, attention_mask or None, labels)."""
    import torch
    from transformers import logging

    logging.set_verbosity_error()
    batches = [[None if x is None else torch.tensor(x, dtype=torch.int64) for x in batch] for batch in batches]
    build = {"masked": _bert, "causal": _gpt2, "replaced_token": partial(_electra, gathered=gathered)}[system.objective]
    parameters, loss = build(system.config, torch.compile if compiled else lambda f: f)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

    def run(i):
        optimizer.zero_grad(set_to_none=True)
        total = loss(*batches[i % len(batches)])
        total.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return total.item()

    return run


def _bert(c, compiled):
    """(parameters, a batch's loss) of `BertForMaskedLM`."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(
        vocab_size=c.vocab, hidden_size=c.width, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        intermediate_size=c.mlp, hidden_act="gelu_new", attn_implementation="sdpa")).train()
    forward = compiled(model)
    return list(model.parameters()), lambda tokens, mask, labels: forward(
        input_ids=tokens, attention_mask=mask, labels=labels).loss


def _gpt2(c, compiled):
    """As `_bert`, of `GPT2LMHeadModel`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=c.vocab, n_positions=c.max_length, n_embd=c.width, n_layer=c.layers, n_head=c.heads, n_inner=c.mlp,
        use_cache=False, attn_implementation="sdpa")).train()
    forward = compiled(model)
    return list(model.parameters()), lambda tokens, mask, labels: forward(
        input_ids=tokens, attention_mask=mask, labels=labels).loss


def _electra(c, compiled, gathered):
    """As `_bert`, of both networks; `gathered`: the generator scores words where they are asked for alone."""
    import torch
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    def config(share):
        return ElectraConfig(
            vocab_size=c.vocab, embedding_size=c.table_width, hidden_size=int(share * c.width),
            num_hidden_layers=c.layers, num_attention_heads=int(share * c.heads), intermediate_size=int(share * c.mlp),
            attn_implementation="sdpa")

    generator, encoder = ElectraForMaskedLM(config(0.25)).train(), ElectraForPreTraining(config(1)).train()
    encoder.electra.embeddings = generator.electra.embeddings
    parameters = list({id(p): p for model in (generator, encoder) for p in model.parameters()}.values())

    def loss(inputs, mask, labels):
        asked = labels != -100
        targets = labels[asked]
        if gathered:
            hidden = generator.electra(input_ids=inputs, attention_mask=mask).last_hidden_state[asked]
            scores = generator.generator_lm_head(generator.generator_predictions(hidden))
            nats = torch.nn.functional.cross_entropy(scores, targets)
        else:
            found = generator(input_ids=inputs, attention_mask=mask, labels=labels)
            nats, scores = found.loss, found.logits[asked]
        with torch.no_grad():  # a word of each distribution, where its cumulative sum passes a uniform number
            sums = scores.softmax(-1).cumsum(-1)
            words = torch.searchsorted(sums, sums[:, -1:] * torch.rand(len(sums), 1)).clamp_(max=c.vocab - 1)[:, 0]
        shown = inputs.masked_scatter(asked, words)
        replaced = torch.zeros_like(inputs).masked_scatter(asked, (words != targets).long())
        return nats + 50 * encoder(input_ids=shown, attention_mask=mask, labels=replaced).loss

    return parameters, compiled(loss)


def labelled(tokens, segments, rng):
    """Tokens masked as theirs: 15 % of the real tokens of each row, all shown as [MASK]."""
    inputs, labels = tokens.copy(), np.full_like(tokens, -100)
    for row in range(len(tokens)):
        places = np.flatnonzero((segments[row] > 0) & (tokens[row] != 101) & (tokens[row] != 102))
        chosen = rng.permutation(places)[: max(1, round(0.15 * int((segments[row] > 0).sum())))]
        labels[row, chosen], inputs[row, chosen] = tokens[row, chosen], 103
    return inputs, labels


def random_batches(system, rng):
    """One batch of random ids without padding, for both."""
    tokens = rng.integers(1000, 30000, (system.rows, system.length)).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = 101, 102
    ones = np.ones_like(tokens)
    mine = {"tokens": tokens, "segment_ids": ones, "token_type_ids": ones * 0,
            "example": np.arange(system.rows, dtype=np.int32),
            "positions": np.broadcast_to(np.arange(system.length, dtype=np.int32), tokens.shape)}
    inputs, labels = (tokens, tokens) if system.objective == "causal" else labelled(tokens, ones, rng)
    return [jax.tree.map(jnp.asarray, mine)], [(inputs, None, labels)]


def text_batches(system, text, vocab, rng, number=32):
    """Batches of real text: ours packed, theirs a sentence a row."""
    rows_, length = system.rows, system.length
    tokenizer = tokenizers.from_vocab_file(tokenizers.Config(vocab_file=vocab))
    with open(text, encoding="utf8") as file:
        documents = [sentences.split(d) for d in file.read(3_000_000).split("\n\n") if d.strip()]
    ids = [[s for s in tokenizer.encode_batch(d) if len(s)] for d in documents]
    with tempfile.TemporaryDirectory() as directory:
        plan = formats.plan("packed", Packed(), token_store.write(directory, ids, tokenizer.vocabulary), length, 0)
        gathered = [loader.gather(plan, np.arange(i * rows_, (i + 1) * rows_)) for i in range(number)]
    mine = [jax.tree.map(jnp.asarray, batch) for batch in gathered]
    flat = [s for d in ids for s in d]
    rows = []
    for i in range(number):
        tokens, real = np.zeros((rows_, length), np.int64), np.zeros((rows_, length), np.int64)
        for row, sentence in enumerate(flat[i * rows_ : (i + 1) * rows_]):
            whole = [101, *sentence[: length - 2], 102]
            tokens[row, : len(whole)], real[row, : len(whole)] = whole, 1
        inputs, labels = labelled(tokens, real, rng)
        rows.append((inputs, real, labels))
    return mine, rows


def matrix_rate(system):
    """Floating-point operations a second of a product [b t, d] x [d, f], the best of many."""
    c = system.config
    x, w = jnp.ones((system.rows * system.length, c.width)), jnp.ones((c.width, c.mlp))
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
    parser.add_argument("--system", default="bert_mini", choices=SYSTEMS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--default-malloc", action="store_true", help="leave glibc's memory settings as they are")
    parser.add_argument("--compile", action="store_true", help="theirs under torch.compile too")
    parser.add_argument("--padded", action="store_true", help="BERT on real text: theirs pads sentences, ours packs")
    parser.add_argument("--text", help="with --padded: a text file, blank lines between documents")
    parser.add_argument("--vocab", help="with --padded: BERT's uncased vocab.txt")
    flags = parser.parse_args()
    system = SYSTEMS[flags.system]
    if flags.padded and not (flags.text and flags.vocab and system.objective == "masked"):
        parser.error("--padded needs a BERT, --text=FILE and --vocab=FILE")

    kept = not flags.default_malloc and keep_memory()
    import torch  # after the memory is set

    torch.set_num_threads(flags.threads)
    rng = np.random.default_rng(0)
    mine, rows = text_batches(system, flags.text, flags.vocab, rng) if flags.padded else random_batches(system, rng)
    step, operations = ours(system, mine)
    steps = {"lmrep": step}
    for compiled in (False, True)[: 1 + flags.compile]:
        end = ", compiled" if compiled else ""
        steps[f"Hugging Face{end}"] = theirs(system, rows, compiled)
        if system.objective == "replaced_token":
            steps[f"the same, gathered{end}"] = theirs(system, rows, compiled, gathered=True)
    measure(steps, 2)
    seconds = measure(steps, flags.rounds)
    used = range(flags.rounds)
    real = {"lmrep": np.mean([int((mine[i % len(mine)]["segment_ids"] > 0).sum()) for i in used])}
    for name in list(steps)[1:]:
        masks = [rows[i % len(rows)][1] for i in used]
        real[name] = np.mean([system.rows * system.length if mask is None else mask.sum() for mask in masks])

    rate = matrix_rate(system)
    print(f"{flags.system}, {system.rows} x {system.length}, float32, {'sentences' if flags.padded else 'no padding'}, "
          f"{flags.rounds} rounds, {time.strftime('%Y-%m-%d')}")
    print(f"{platform.processor() or platform.machine()}, {flags.threads} threads, load {os.getloadavg()[0]:.1f}; "
          + ", ".join(f"{p} {metadata.version(p)}" for p in ("jax", "torch", "transformers"))
          + ("; memory kept" if kept else "")
          + "".join(f"; {name}={os.environ[name]}" for name in ("XLA_FLAGS", "GLIBC_TUNABLES") if name in os.environ))
    print(f"\n{'':28}{'ms, min':>9}{'median':>9}{'tokens/s':>10}{'ratio, min':>12}{'median':>9}")
    for name, values in seconds.items():
        low, mid = min(values), float(np.median(values))
        first, own = real["lmrep"], real[name]
        print(f"{name:28}{low * 1e3:9.0f}{mid * 1e3:9.0f}{own / mid:10,.0f}"
              f"{(first / min(seconds['lmrep'])) / (own / low):12.2f}"
              f"{(first / float(np.median(seconds['lmrep']))) / (own / mid):9.2f}")
    print(f"\nOur step is {operations / 1e9:.1f} GFLOP: {operations / min(seconds['lmrep']) / rate:.0%} of the matrix "
          f"rate, {rate / 1e9:.0f} GFLOP/s, at its fastest; in products alone {operations / rate * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
