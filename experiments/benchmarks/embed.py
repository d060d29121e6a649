"""Vectors of a text's sentences from BERT, float32, beside Hugging Face's PyTorch, in one process.

    pip install -e . torch transformers
    python experiments/benchmarks/embed.py --text=wiki.txt --vocab=vocab.txt --tokens=1_000_000

Both go from the same sentences, in chunks that alternate, to the last layer's float32 vectors of every token,
tokenizing included, with the same random weights. Theirs is `BertModel` with SDPA under `torch.inference_mode`, 32
sentences a batch padded to the longest, once in the order of the text and once sorted by length within the chunk. Ours
is what `lmrep embed` runs: several sentences a row. Tokens are real ones, [CLS] and [SEP] among them. The first chunk
of each is run once more beforehand, so that compiling is not counted. The vectors are compared.

--write adds the time of `lmrep embed` itself: the whole text from a file to a .safetensors file.
"""

import argparse
import os
import platform
import tempfile
import time
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

from lmrep.core import params as P
from lmrep.core.host import keep_memory
from lmrep.data import sentences, tokenizers
from lmrep.inference import export
from lmrep.inference.load import Run
from lmrep.models import PRESETS, transformer

BATCH = 32


def run_of(size, vocab):
    """A run of BERT with random parameters; biases too are random, so that none is left out unseen."""
    tokenizer = tokenizers.from_vocab_file(tokenizers.Config(vocab_file=vocab))
    model = transformer.build(PRESETS[f"bert_{size}"].config)
    rng = np.random.default_rng(0)
    drawn = P.init(model.specs, jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.02 * rng.standard_normal(x.shape, np.float32), drawn)
    return Run(Path("."), 0, None, tokenizer, model, None, {"encoder": jax.device_put(params)})


def published(size, params, threads):
    """Hugging Face's `BertModel` with these parameters."""
    import torch
    from transformers import BertConfig, BertModel

    torch.set_num_threads(threads)
    c = PRESETS[f"bert_{size}"].config
    model = BertModel(BertConfig(
        vocab_size=c.vocab, hidden_size=c.width, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        intermediate_size=c.mlp, hidden_act="gelu_new", attn_implementation="sdpa"), add_pooling_layer=False).eval()
    params = jax.tree.map(np.asarray, params)
    tables = {"token": "word_embeddings", "position": "position_embeddings", "token_type": "token_type_embeddings"}
    state = {f"embeddings.{theirs}.weight": params["embedding"][ours] for ours, theirs in tables.items()}

    def add(name, part, i=...):
        kernel = part["kernel"][i].T if "kernel" in part else part["scale"][i]
        state.update({f"{name}.weight": kernel, f"{name}.bias": part["bias"][i]})

    add("embeddings.LayerNorm", params["embedding_norm"])
    for i in range(c.layers):
        layer, name = params["layers"], f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            add(f"{name}.attention.self.{part}", layer["attention"][part], i)
        add(f"{name}.attention.output.dense", layer["attention"]["output"], i)
        add(f"{name}.attention.output.LayerNorm", layer["attention_norm"], i)
        add(f"{name}.intermediate.dense", layer["mlp"]["in"], i)
        add(f"{name}.output.dense", layer["mlp"]["out"], i)
        add(f"{name}.output.LayerNorm", layer["mlp_norm"], i)
    with torch.no_grad():
        missing, extra = model.load_state_dict(
            {name: torch.tensor(np.array(x)) for name, x in state.items()}, strict=False)
    if extra or any("position_ids" not in name for name in missing):
        raise SystemExit(f"the models differ: {missing} {extra}")
    return model


def ours(run, layers):
    """texts -> their vectors."""
    return lambda texts: [found.hidden[0] for found in run.encode(texts)]


def theirs(model, tokenizer, by_length):
    """texts -> their vectors, by Hugging Face's."""
    import torch

    def encode(texts):
        found = [None] * len(texts)
        lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]] if by_length else None
        order = np.argsort(lengths, kind="stable") if by_length else np.arange(len(texts))
        with torch.inference_mode():
            for start in range(0, len(texts), BATCH):
                members = order[start : start + BATCH]
                batch = tokenizer([texts[i] for i in members], padding=True, return_tensors="pt")
                hidden = model(**batch).last_hidden_state.numpy()
                real = batch["attention_mask"].sum(1).tolist()
                for row, i in enumerate(members):
                    found[i] = hidden[row, : real[row]].copy()
        return found

    return encode


def chunks(text, run, tokens, size):
    """Sentences of a text file that fit the model, `size` a chunk, of about `tokens` tokens in all."""
    found, total = [], 0
    with open(text, encoding="utf8") as file:
        for line in file:
            split = [s for s in sentences.split(line) if s.strip()]
            for sentence, ids in zip(split, run.tokenizer.encode_batch(split), strict=True):
                if len(ids) <= run.model.max_length - 2:
                    found.append(" ".join(sentence.split()))
                    total += len(ids) + 2
            if total >= tokens:
                break
    return [found[i : i + size] for i in range(0, len(found), size)]


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="a text file")
    parser.add_argument("--vocab", required=True, help="BERT's uncased vocab.txt")
    parser.add_argument("--size", default="mini", choices=["tiny", "mini", "small", "medium", "base"])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--chunk", type=int, default=2048, help="sentences a chunk")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--keep-memory", action="store_true", help="as LMREP_KEEP_MEMORY=1, for both")
    parser.add_argument("--write", action="store_true", help="time `lmrep embed` too")
    flags = parser.parse_args()
    kept = flags.keep_memory and keep_memory()

    from transformers import BertTokenizer

    run = run_of(flags.size, flags.vocab)
    parts = chunks(flags.text, run, flags.tokens, flags.chunk)
    model = published(flags.size, run.params["encoder"], flags.threads)
    own = BertTokenizer(flags.vocab)
    names = ("lmrep", "Hugging Face", "Hugging Face, sorted")
    ways = dict(zip(names, (ours(run, "last"), theirs(model, own, False), theirs(model, own, True)), strict=True))
    seconds, tokens, furthest = dict.fromkeys(ways, 0.0), 0, 0.0
    for number, texts in enumerate([parts[0], *parts]):
        vectors = {}
        for name, way in ways.items():
            start = time.perf_counter()
            vectors[name] = way(texts)
            if number:
                seconds[name] += time.perf_counter() - start
        tokens += sum(map(len, vectors["lmrep"])) if number else 0
        for mine, *others in zip(*vectors.values(), strict=True):
            furthest = max([furthest, *(float(np.abs(mine - other).max()) for other in others)])

    print(f"BERT-{flags.size}, {sum(map(len, parts)):,} sentences, {tokens:,} tokens, float32, "
          f"{time.strftime('%Y-%m-%d')}")
    print(f"{platform.processor() or platform.machine()}, {flags.threads} threads; "
          + ", ".join(f"{p} {metadata.version(p)}" for p in ("jax", "torch", "transformers"))
          + ("; memory kept" if kept else ""))
    print(f"\n{'':24}{'seconds':>9}{'tokens/s':>10}{'lmrep is faster by':>20}")
    for name, total in seconds.items():
        print(f"{name:24}{total:9.1f}{tokens / total:10,.0f}{total / seconds['lmrep']:20.2f}")
    print(f"\nLargest difference of any two vectors' components: {furthest:.1e}")
    if flags.write:
        with tempfile.TemporaryDirectory() as directory:
            source, target = Path(directory, "texts.txt"), Path(directory, "vectors.safetensors")
            source.write_text("".join(f"{text}\n" for part in parts for text in part), encoding="utf8")
            start = time.perf_counter()
            export.embed(run, source, target)
            total = time.perf_counter() - start
            print(f"lmrep embed, file to file: {total:.1f} s, {tokens / total:,.0f} tokens/s, "
                  f"{target.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
