"""The time of a float32 training step, compared with Hugging Face transformers on PyTorch in one process.

    pip install -e . torch transformers
    python experiments/benchmarks/step.py --systems=bert_mini,bert_small --text=wiki.txt --vocab=vocab.txt
    python experiments/benchmarks/step.py --systems=gpt2,electra_small --rounds=6

lmrep's step is that of `lmrep train`: masking on the device, the same dropout as transformers, gradient clipping and
AdamW. The step of transformers is the model in training mode with SDPA, gradient clipping and fused AdamW, with
--compile under torch.compile too. Both take the same tokens:

    bert_mini ...   `BertForMaskedLM`; 16 sequences of 128 tokens, with 19 predictions per sequence
    gpt2            `GPT2LMHeadModel`; 4 sequences of 256 tokens
    gpt2_mini       the same with 4 layers of width 256 and the full vocabulary; 8 sequences of 256 tokens
    electra_small   `ElectraForMaskedLM`, tokens sampled from its logits, and `ElectraForPreTraining` with the same
                    embeddings, in one step; 16 sequences of 128 tokens. `ElectraForMaskedLM` computes logits at all
                    positions; a second row of the table is a generator that computes them at predicted positions only
    modernbert_mini `ModernBertForMaskedLM` with 4 layers of width 256, the first and the last of which are global, and
                    windows of 128; 2 sequences of 1,024 tokens. It too has a row with logits at predicted positions
                    only. bert_mini_1024 is BERT-mini at this length

With --text and --vocab, BERT has a second row, on real text: transformers gets one sentence per sequence, padded to 128
with an attention mask, as is customary; lmrep packs the documents' tokens into sequences without padding. The ratio is
that of tokens per second without padding.

All run in one process with the memory setting of `lmrep.core.host.keep_memory`, which speeds up PyTorch too, unless
--default-malloc is given. The steps alternate, each after an unmeasured one that warms up caches and threads. The table
has the minima of wall time. The matrix rate is that of float32 products with the shape of the feed-forward block. The
matrix products of lmrep's step, each computed alone, estimate a floor of either library.
"""

import argparse
import os
import tempfile
from dataclasses import replace

import numpy as np
from arguments import parse_flags
from timing import Row, alternate, describe_floor, matrix_rate, print_table
from training_steps import LmrepSteps, System, TransformersSteps, lmrep_batch, mask_tokens

from lmrep.core.host import keep_memory
from lmrep.data import formats, loader, sentences, tokenizers
from lmrep.data.formats.packed import Packed
from lmrep.data.store import token_store
from lmrep.models import PRESETS

BERT_MINI, GPT2, MODERNBERT = (PRESETS[name].config for name in ("bert_mini", "gpt2", "modernbert_base"))
SYSTEMS = {f"bert_{size}": System(PRESETS[f"bert_{size}"].config, "masked", "bert")
           for size in ("tiny", "mini", "small", "medium")} | {
    "gpt2": System(GPT2, "causal", "adamw", 4, 256),
    "gpt2_mini": System(replace(GPT2, layers=4, width=256, heads=4, mlp=1024), "causal", "adamw", 8, 256),
    "electra_small": System(PRESETS["electra_small"].config, "replaced_token", "bert"),
    "modernbert_mini": System(replace(MODERNBERT, layers=4, width=256, heads=4, mlp=384), "masked", "bert", 2, 1024),
    "bert_mini_1024": System(replace(BERT_MINI, max_length=1024), "masked", "bert", 2, 1024),
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


def small(system):
    """The system with a network of one layer, and batches of two sequences."""
    config = replace(system.config, layers=1, width=32, heads=2, mlp=64)
    return system._replace(config=config, batch_size=2, length=32)


def measure(name, flags, text=False):
    """The rows of a system; with `text`, of sentences and packed text."""
    system, rng = small(SYSTEMS[name]) if flags.tiny else SYSTEMS[name], np.random.default_rng(0)
    batches, others = text_batches(system, flags.text, flags.vocab, rng) if text else random_batches(system, rng)
    steps = {"": LmrepSteps(system, batches)}
    for compiled in (False, True)[: 1 + flags.compile]:
        suffix = ", compiled" * compiled
        steps[f"{name}{', sentences' * text}{suffix}"] = TransformersSteps(system, others, compiled)
        if system.objective == "replaced_token" or system.config.window:
            steps[f"{name}, logits at predicted positions{suffix}"] = TransformersSteps(
                system, others, compiled, predicted_only=True)
    runs = {title: step.run_to_end for title, step in steps.items()}
    seconds = alternate(runs, flags.rounds, unmeasured=2, warm=True)
    shape = system.batch_size * system.length, system.config.width, system.config.mlp
    operations, rate, least = steps[""].flops, matrix_rate(*shape, repeats=50), min(seconds[""])
    print(f"{name}: a step of lmrep has {describe_floor(steps[''].products)}; it runs at "
          f"{operations / least / rate:.0%} of the matrix rate of {rate / 1e9:.0f} GFLOP/s", flush=True)
    work = np.mean([(batch["segment_ids"] > 0).sum() for batch in batches]) / np.mean(
        [shape[0] if mask is None else mask.sum() for _, mask, _ in others])
    return [Row(title, seconds[""], own, work) for title, own in seconds.items() if title]


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="bert_mini", help=f"separated by commas; of {', '.join(SYSTEMS)}")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--default-malloc", action="store_true", help="keep glibc's default memory settings")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile")
    parser.add_argument("--text", help="a text file with blank lines between documents")
    parser.add_argument("--vocab", help="BERT's uncased vocab.txt, for --text")
    flags = parse_flags(parser, rounds=1)
    names = flags.systems.split(",")
    if unknown := set(names) - set(SYSTEMS):
        parser.error(f"--systems has {', '.join(unknown)}; expected some of {', '.join(SYSTEMS)}")
    memory_kept = not flags.default_malloc and keep_memory()
    import torch  # after the memory setting

    torch.set_num_threads(flags.threads)
    rows = [row for text in (False, True)[: 1 + bool(flags.text)] for name in names
            if not text or SYSTEMS[name].objective == "masked" for row in measure(name, flags, text)]
    print_table(("system", "lmrep", "transformers"), rows, *["memory kept"] * memory_kept, *(
        f"{name}={os.environ[name]}" for name in ("XLA_FLAGS", "GLIBC_TUNABLES") if name in os.environ))


if __name__ == "__main__":
    main()
