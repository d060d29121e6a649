"""The time of a float32 training step, compared with Hugging Face transformers on PyTorch in one process.

    pip install -e . torch transformers
    python experiments/benchmarks/step.py --system=bert_mini --rounds=20
    python experiments/benchmarks/step.py --system=bert_mini --padded --text=wiki.txt --vocab=vocab.txt
    python experiments/benchmarks/step.py --system=gpt2 --rounds=6

lmrep's step is that of `lmrep train`: masking on the device, the same dropout as transformers, gradient clipping and
AdamW. The step of transformers is the model in training mode with SDPA, gradient clipping and fused AdamW, with
--compile under torch.compile too. Both take the same tokens:

    bert_mini ...   `BertForMaskedLM`; 16 sequences of 128 tokens, with 19 predictions per sequence
    gpt2            `GPT2LMHeadModel`; 4 sequences of 256 tokens
    gpt2_mini       the same with 4 layers of width 256 and the full vocabulary; 8 sequences of 256 tokens
    electra_small   `ElectraForMaskedLM`, tokens sampled from its logits, and `ElectraForPreTraining` with the same
                    embeddings, in one step; 16 sequences of 128 tokens. `ElectraForMaskedLM` computes logits at all
                    positions; a second line of the table is a generator that computes them at predicted positions only

With --padded, BERT is trained on real text: transformers gets one sentence per sequence, padded to 128 with an
attention mask, as is customary; lmrep packs the documents' tokens into sequences without padding. Tokens per second do
not count padding.

All run in one process with the memory setting of `lmrep.core.host.keep_memory`, which speeds up PyTorch too, unless
--default-malloc is given. The steps alternate, each after an unmeasured one that warms up caches and threads. Minima
and medians are of wall time; on a shared machine compare the minima. The matrix rate is that of float32 products with
the shape of the feed-forward block.
"""

import argparse
import os
import platform
import tempfile
import time
from dataclasses import replace
from importlib import metadata

import numpy as np
from timing import alternate, matrix_rate
from training_steps import LmrepSteps, System, TransformersSteps, lmrep_batch, mask_tokens

from lmrep.core.host import keep_memory
from lmrep.data import formats, loader, sentences, tokenizers
from lmrep.data.formats.packed import Packed
from lmrep.data.store import token_store
from lmrep.models import PRESETS

GPT2 = PRESETS["gpt2"].config
SYSTEMS = {f"bert_{size}": System(PRESETS[f"bert_{size}"].config, "masked", "bert")
           for size in ("tiny", "mini", "small", "medium")} | {
    "gpt2": System(GPT2, "causal", "adamw", 4, 256),
    "gpt2_mini": System(replace(GPT2, layers=4, width=256, heads=4, mlp=1024), "causal", "adamw", 8, 256),
    "electra_small": System(PRESETS["electra_small"].config, "replaced_token", "bert"),
}


def random_batches(system, rng):
    """(lmrep's batches, those of transformers): one batch of random ids without padding."""
    tokens = rng.integers(1000, 30000, (system.batch_size, system.length)).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = 101, 102
    inputs, labels = (tokens, tokens) if system.objective == "causal" else mask_tokens(
        tokens, np.ones_like(tokens), rng)
    return [lmrep_batch(tokens)], [(inputs, None, labels)]


def text_batches(system, text, vocab, rng, number=32):
    """(lmrep's batches, packed; those of transformers, one sentence per sequence) of a text."""
    b, length = system.batch_size, system.length
    tokenizer = tokenizers.from_vocab_file(tokenizers.Config(vocab_file=vocab))
    with open(text, encoding="utf8") as file:
        documents = [sentences.split(d) for d in file.read(3_000_000).split("\n\n") if d.strip()]
    ids = [[s for s in tokenizer.encode_batch(d) if len(s)] for d in documents]
    with tempfile.TemporaryDirectory() as directory:
        plan = formats.plan("packed", Packed(), token_store.write(directory, ids, tokenizer.vocabulary), length, 0)
        packed = [loader.gather(plan, np.arange(i * b, (i + 1) * b)) for i in range(number)]
    flat = [s for d in ids for s in d]
    padded = []
    for i in range(number):
        tokens, real = np.zeros((b, length), np.int64), np.zeros((b, length), np.int64)
        for j, sentence in enumerate(flat[i * b : (i + 1) * b]):
            sequence = [101, *sentence[: length - 2], 102]
            tokens[j, : len(sequence)], real[j, : len(sequence)] = sequence, 1
        inputs, labels = mask_tokens(tokens, real, rng)
        padded.append((inputs, real, labels))
    return packed, padded


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="bert_mini", choices=SYSTEMS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--default-malloc", action="store_true", help="keep glibc's default memory settings")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile")
    parser.add_argument("--padded", action="store_true",
                        help="BERT on real text: transformers pads sentences, lmrep packs them")
    parser.add_argument("--text", help="with --padded: a text file with blank lines between documents")
    parser.add_argument("--vocab", help="with --padded: BERT's uncased vocab.txt")
    flags = parser.parse_args()
    system = SYSTEMS[flags.system]
    if flags.padded and not (flags.text and flags.vocab and system.objective == "masked"):
        parser.error("--padded needs a BERT, --text=FILE and --vocab=FILE")

    memory_kept = not flags.default_malloc and keep_memory()
    import torch  # after the memory setting

    torch.set_num_threads(flags.threads)
    rng = np.random.default_rng(0)
    batches, torch_batches = (text_batches(system, flags.text, flags.vocab, rng) if flags.padded
                              else random_batches(system, rng))
    steps = {"lmrep": LmrepSteps(system, batches)}
    operations = steps["lmrep"].flops
    for compiled in (False, True)[: 1 + flags.compile]:
        suffix = ", compiled" if compiled else ""
        steps[f"Hugging Face{suffix}"] = TransformersSteps(system, torch_batches, compiled)
        if system.objective == "replaced_token":
            steps[f"predicted only{suffix}"] = TransformersSteps(
                system, torch_batches, compiled, predicted_only=True)
    seconds = alternate({name: step.run_to_end for name, step in steps.items()}, flags.rounds, unmeasured=2, warm=True)
    rounds = range(flags.rounds)
    real_tokens = {"lmrep": np.mean([int((batches[i % len(batches)]["segment_ids"] > 0).sum()) for i in rounds])}
    for name in list(steps)[1:]:
        masks = [torch_batches[i % len(torch_batches)][1] for i in rounds]
        size = system.batch_size * system.length
        real_tokens[name] = np.mean([size if mask is None else mask.sum() for mask in masks])

    c = system.config
    rate = matrix_rate(system.batch_size * system.length, c.width, c.mlp, repeats=50)
    print(f"{flags.system}, {system.batch_size} x {system.length}, float32, "
          f"{'sentences' if flags.padded else 'no padding'}, {flags.rounds} rounds, {time.strftime('%Y-%m-%d')}")
    print(f"{platform.processor() or platform.machine()}, {flags.threads} threads, load {os.getloadavg()[0]:.1f}; "
          + ", ".join(f"{p} {metadata.version(p)}" for p in ("jax", "torch", "transformers"))
          + ("; memory kept" if memory_kept else "")
          + "".join(f"; {name}={os.environ[name]}" for name in ("XLA_FLAGS", "GLIBC_TUNABLES") if name in os.environ))
    print(f"\n{'':28}{'ms, min':>9}{'median':>9}{'tokens/s':>10}{'ratio, min':>12}{'median':>9}")
    for name, values in seconds.items():
        low, mid = min(values), float(np.median(values))
        first, own = real_tokens["lmrep"], real_tokens[name]
        print(f"{name:28}{low * 1e3:9.0f}{mid * 1e3:9.0f}{own / mid:10,.0f}"
              f"{(first / min(seconds['lmrep'])) / (own / low):12.2f}"
              f"{(first / float(np.median(seconds['lmrep']))) / (own / mid):9.2f}")
    print(f"\nlmrep's step has {operations / 1e9:.1f} GFLOP. The fastest runs at "
          f"{operations / min(seconds['lmrep']) / rate:.0%} of the matrix rate of {rate / 1e9:.0f} GFLOP/s, at which "
          f"it would take {operations / rate * 1e3:.0f} ms.")


if __name__ == "__main__":
    main()
