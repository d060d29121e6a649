"""BERT's float32 vectors of sentences, compared with Hugging Face transformers on PyTorch in one process.

    pip install -e . torch transformers
    python experiments/benchmarks/embed.py --text=wiki.txt --vocab=vocab.txt --tokens=1_000_000

Both compute the last layer's vectors of every token from the same sentences with the same random weights, tokenization
included, in alternating chunks. Transformers is `BertModel` with SDPA under `torch.inference_mode`, in batches of 32
sentences padded to the longest, once in the order of the text and once sorted by length within a chunk. lmrep packs
several sentences into a sequence, as `lmrep embed` does. The first chunk is run once beforehand, so that compilation is
not measured. Tokens per second count [CLS] and [SEP], but no padding. The vectors are compared.

--write adds the time of `lmrep embed` from a text file to a .safetensors file.
"""

import argparse
import os
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
from arguments import parse_flags

from lmrep.core import params as P
from lmrep.core.host import keep_memory, processor
from lmrep.data import sentences, tokenizers
from lmrep.experiment import config as experiments
from lmrep.inference import export
from lmrep.inference.run import Run
from lmrep.models import PRESETS, transformer
from lmrep.objectives.uses import Uses

BATCH = 32


def make_run(size, vocab):
    """A run of BERT with random parameters. Biases are random too, so that a missing one changes the vectors."""
    tokenizer = tokenizers.from_vocab_file(tokenizers.Config(vocab_file=vocab))
    model = transformer.build(PRESETS[f"bert_{size}"].config)
    rng = np.random.default_rng(0)
    initial = P.init(model.specs, jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.02 * rng.standard_normal(x.shape, np.float32), initial)
    objective = SimpleNamespace(uses=Uses())
    experiment = experiments.parse(experiments.default_config(f"bert_{size}", "masked", "packed", layout="1x1x1"))
    run = Run(Path("."), 0, experiment, tokenizer, model, objective, {"encoder": jax.device_put(params)})
    vars(run)["converted"] = True  # which texts get [CLS] and [SEP]
    return run


def make_bert_model(size, params, threads):
    """Transformers' `BertModel` with these parameters."""
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

    def add(name, module, i=...):
        weight = module["kernel"][i].T if "kernel" in module else module["scale"][i]
        state.update({f"{name}.weight": weight, f"{name}.bias": module["bias"][i]})

    add("embeddings.LayerNorm", params["embedding_norm"])
    for i in range(c.layers):
        layer, name = params["layers"], f"encoder.layer.{i}"
        for projection in ("query", "key", "value"):
            add(f"{name}.attention.self.{projection}", layer["attention"][projection], i)
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


def lmrep_encoder(run):
    """texts -> a list of vectors [t, d]."""
    return lambda texts: [encoded.hidden[0] for encoded in run.encode(texts)]


def transformers_encoder(model, tokenizer, by_length):
    """texts -> a list of vectors [t, d]; with `by_length`, batches have texts of similar length."""
    import torch

    def encode(texts):
        vectors = [None] * len(texts)
        lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]] if by_length else None
        order = np.argsort(lengths, kind="stable") if by_length else np.arange(len(texts))
        with torch.inference_mode():
            for start in range(0, len(texts), BATCH):
                members = order[start : start + BATCH]
                batch = tokenizer([texts[i] for i in members], padding=True, return_tensors="pt")
                hidden = model(**batch).last_hidden_state.numpy()
                token_counts = batch["attention_mask"].sum(1).tolist()
                for position, i in enumerate(members):
                    vectors[i] = hidden[position, : token_counts[position]].copy()
        return vectors

    return encode


def chunks(text, run, tokens, size):
    """Chunks of `size` sentences of a text file that fit the model, about `tokens` tokens in total."""
    kept, total = [], 0
    with open(text, encoding="utf8") as file:
        for line in file:
            split = [s for s in sentences.split(line) if s.strip()]
            for sentence, ids in zip(split, run.tokenizer.encode_batch(split), strict=True):
                if len(ids) <= run.model.max_length - 2:
                    kept.append(" ".join(sentence.split()))
                    total += len(ids) + 2
            if total >= tokens:
                break
    return [kept[i : i + size] for i in range(0, len(kept), size)]


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="a text file")
    parser.add_argument("--vocab", required=True, help="BERT's uncased vocab.txt")
    parser.add_argument("--size", default="mini", choices=["tiny", "mini", "small", "medium", "base"])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--chunk", type=int, default=2048, help="sentences per chunk")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--keep-memory", action="store_true", help="as with LMREP_KEEP_MEMORY=1, for both")
    parser.add_argument("--write", action="store_true", help="also time `lmrep embed`")
    flags = parse_flags(parser, size="tiny", tokens=300, chunk=16)
    memory_kept = flags.keep_memory and keep_memory()

    from transformers import BertTokenizer

    run = make_run(flags.size, flags.vocab)
    text_chunks = chunks(flags.text, run, flags.tokens, flags.chunk)
    model = make_bert_model(flags.size, run.params["encoder"], flags.threads)
    tokenizer = BertTokenizer(flags.vocab)
    encoders = {"lmrep": lmrep_encoder(run), "Hugging Face": transformers_encoder(model, tokenizer, False),
                "Hugging Face, sorted": transformers_encoder(model, tokenizer, True)}
    seconds, tokens, largest_difference = dict.fromkeys(encoders, 0.0), 0, 0.0
    for number, texts in enumerate([text_chunks[0], *text_chunks]):
        vectors = {}
        for name, encode in encoders.items():
            start = time.perf_counter()
            vectors[name] = encode(texts)
            if number:
                seconds[name] += time.perf_counter() - start
        tokens += sum(map(len, vectors["lmrep"])) if number else 0
        for first, *others in zip(*vectors.values(), strict=True):
            differences = (float(np.abs(first - other).max()) for other in others)
            largest_difference = max([largest_difference, *differences])

    print(f"BERT-{flags.size}, {sum(map(len, text_chunks)):,} sentences, {tokens:,} tokens, float32, "
          f"{time.strftime('%Y-%m-%d')}")
    print(f"{processor()}, {flags.threads} threads; "
          + ", ".join(f"{p} {metadata.version(p)}" for p in ("jax", "torch", "transformers"))
          + ("; memory kept" if memory_kept else ""))
    print(f"\n{'':24}{'seconds':>9}{'tokens/s':>10}{'speedup of lmrep':>20}")
    for name, total in seconds.items():
        print(f"{name:24}{total:9.1f}{tokens / total:10,.0f}{total / seconds['lmrep']:20.2f}")
    print(f"\nLargest absolute difference from lmrep's vectors: {largest_difference:.1e}")
    if flags.write:
        with tempfile.TemporaryDirectory() as directory:
            source, target = Path(directory, "texts.txt"), Path(directory, "vectors.safetensors")
            source.write_text("".join(f"{text}\n" for chunk in text_chunks for text in chunk), encoding="utf8")
            start = time.perf_counter()
            export.embed(run, source, target)
            total = time.perf_counter() - start
            print(f"lmrep embed, file to file: {total:.1f} s, {tokens / total:,.0f} tokens/s, "
                  f"{target.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
