"""Throughput of the data loader and statistics of the examples, for each input format.

    pip install -e .
    python experiments/benchmarks/loader.py
    python experiments/benchmarks/loader.py --files='texts/*.txt' --length=512 --batch_size=32

The corpus, by default Python's documentation, is tokenized into --data_dir. Then a plan is built for each format, and
batches are loaded as in training: shuffled, gathered from the store by two threads, checked and prefetched. Positions
per second include padding; rates are the best of --rounds. `cpu` is the processor time per batch, which does not depend
on other load of the machine. `seek` is the time to the first batch of a run that resumes after 100,000 batches,
including the start of its threads. `crossings` is the mean number, per example, of documents that begin inside a
segment. The line below the table is about corpora that are larger than the cache of a store, which is a sixteenth of
the free memory, at least 256 MB.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from arguments import parse_flags

from lmrep.api import default_data_dir
from lmrep.core.errors import UserError
from lmrep.data import corpora, formats, loader, tokenizers
from lmrep.data.formats import FORMATS
from lmrep.data.formats.stream import Stream
from lmrep.data.mixture import Mixture, Sources
from lmrep.data.store.prepare import prepare_corpus
from lmrep.data.store.token_store import RECORD, Store

SEEK_BATCHES = 100_000


def plans(store, length):
    """(name, function that builds the plan) of every format, of a contiguous stream, and of a mixture."""
    for name, definition in FORMATS.items():
        config = definition.config(duplicates=1)
        yield name, lambda name=name, config=config: formats.plan(name, config, store, length, 0)
    yield "stream, contiguous", lambda: formats.plan("stream", Stream(order="contiguous"), store, length, 0)
    yield "packed 3:1 full_sentences", lambda: Mixture(
        tuple(formats.plan(name, FORMATS[name].config(), store, length, 0) for name in ("packed", "full_sentences")),
        Sources(("packed", "full_sentences"), (store, store), (3, 1), store.vocabulary))


def crossings(plan):
    """The mean number, per example, of documents that begin inside a segment; nan for a plan without a table of spans,
    and for pairs, whose label says whether they cross documents."""
    if not isinstance(plan, formats.Plan) or plan.layout.spans_per_segment == 2:
        return float("nan")
    if plan.layout.spans_per_segment == 1:
        return 0.0
    starts, store, offsets = plan.spans.starts, plan.store, plan.spans.offsets
    begins = np.isin(starts, store.sentences[store.documents[:-1]])
    begins[offsets[:-1]] = False
    return begins.sum() / plan.rows


def load(plan, batch_size, first_step, threads=2):
    """The batches of a run from `first_step` on."""
    return loader.batches(plan, batch_size=batch_size, indices=np.arange(batch_size), seed=0, first_step=first_step,
                          last_step=10**9, threads=threads)


def rate(plan, batch_size, seconds, threads):
    """(batches per second, processor seconds per batch) of the loader, after a few batches that fill its caches."""
    batches, count = load(plan, batch_size, 0, threads), 0
    for _ in range(8):
        next(batches)
    start, cpu = time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - start) < seconds:
        next(batches)
        count += 1
    cpu = time.process_time() - cpu
    batches.close()
    return count / elapsed, cpu / count


def seek(plan, batch_size):
    """Seconds to the first batch after SEEK_BATCHES others."""
    start = time.perf_counter()
    batches = load(plan, batch_size, SEEK_BATCHES)
    next(batches)
    elapsed = time.perf_counter() - start
    batches.close()
    return elapsed


def uncached(store, batches=20):
    """Processor seconds per record that is read and decoded because it is not in the cache."""
    records = np.arange(min(-(-store.tokens // RECORD), 128))
    cpu = 0.0
    for _ in range(batches):
        opened = Store(store.directory, store.split, store.vocabulary)
        opened.take(np.array([0]))  # opens the files
        start = time.process_time()
        opened.take(records * RECORD)
        cpu += time.process_time() - start
    return cpu / batches / len(records)


def main():
    """Parses flags, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", default="", help="a glob of text files; default: the documentation of Python")
    parser.add_argument("--vocab", default="", help="a vocab.txt; default: a vocabulary of 8,192 tokens is trained")
    parser.add_argument("--data_dir", type=Path, default=default_data_dir())
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2, help="that gather batches, as in training")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    flags = parse_flags(parser, length=32, batch_size=2, seconds=0.01, rounds=1)
    data = corpora.Config(corpus="text_files" if flags.files else "python_docs", files=flags.files)
    ready = prepare_corpus(data, tokenizers.Config(vocab_file=flags.vocab), flags.data_dir, print)
    store = ready.stores["train"]
    print(f"{store.tokens:,} tokens in {len(store.documents) - 1:,} documents and {len(store.sentences) - 1:,} "
          f"sentences; batches of {flags.batch_size} sequences of {flags.length} tokens")
    print(f"{'format':27}{'examples':>10}{'tokens/ex.':>11}{'padding':>9}{'crossings':>10}{'plan s':>8}"
          f"{'batches/s':>11}{'positions/s':>13}{'cpu ms':>8}{'seek ms':>9}")
    for name, build_plan in plans(store, flags.length):
        start = time.perf_counter()
        try:
            plan = build_plan()
        except UserError as error:
            print(f"{name:27}{error}")
            continue
        seconds = time.perf_counter() - start
        statistics = plan.statistics()
        rates, cpu_times = zip(
            *(rate(plan, flags.batch_size, flags.seconds, flags.threads) for _ in range(flags.rounds)), strict=True)
        seek_time = min(seek(plan, flags.batch_size) for _ in range(flags.rounds))
        print(f"{name:27}{plan.examples:10,}{statistics['tokens_per_example']:11.1f}"
              f"{statistics['padding']:9.2%}{crossings(plan):10.2f}{seconds:8.2f}{max(rates):11,.0f}"
              f"{max(rates) * flags.batch_size * flags.length:13,.0f}{1000 * min(cpu_times):8.2f}"
              f"{1000 * seek_time:9.1f}", flush=True)
    seconds = min(uncached(store) for _ in range(flags.rounds))
    print(f"a record that is not in the cache: {1e6 * seconds:.0f} microseconds of a processor; if each example needs "
          f"one, at most {flags.length / seconds:,.0f} positions/s per processor")


if __name__ == "__main__":
    main()
