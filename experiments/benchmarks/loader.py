"""How fast each input format feeds a trainer, with nothing else running, and what its rows hold.

    pip install -e .
    python experiments/benchmarks/loader.py
    python experiments/benchmarks/loader.py --files='texts/*.txt' --length=512 --rows=32

The corpus (the interpreter's own documentation unless files are given) is tokenized first, into --data_dir. Then each
format is planned, and batches are drawn as a run draws them: shuffled, gathered from the store by two threads, checked,
prefetched. Positions a second count padding, as a model does; the rate is the best of --rounds, `cpu` what a batch
costs in processor time, whatever else the machine does. `seek` is the time until the first batch of a run that goes on
after 100,000 batches, threads started. `crossings` are documents that begin inside a segment, a row.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from lmrep.api import default_data_dir
from lmrep.core.errors import UserError
from lmrep.data import corpora, formats, loader, tokenizers
from lmrep.data.formats import FORMATS
from lmrep.data.formats.stream import Stream
from lmrep.data.mixture import Mixture, Sources
from lmrep.data.store.prepare import prepare

FAR = 100_000  # batches


def plans(store, length):
    """(name, plan) of every format, of the stream's other order, and of a mixture."""
    for name, form in FORMATS.items():
        yield name, lambda name=name, config=form.config(duplicates=1): formats.plan(name, config, store, length, 0)
    yield "stream, contiguous", lambda: formats.plan("stream", Stream(order="contiguous"), store, length, 0)
    yield "packed 3:1 full_sentences", lambda: Mixture(
        tuple(formats.plan(name, FORMATS[name].config(), store, length, 0) for name in ("packed", "full_sentences")),
        Sources(("packed", "full_sentences"), (store, store), (3, 1), store.vocabulary))


def crossings(plan):
    """The mean number, a row, of documents that begin inside a segment."""
    if isinstance(plan, Mixture) or plan.layout.spans_per_segment == 1:
        return 0.0
    starts, store, offsets = plan.spans.starts, plan.store, plan.spans.offsets
    if plan.layout.spans_per_segment == 2:
        return float("nan")  # pairs of documents are what the label is about
    begins = np.isin(starts, store.sentences[store.documents[:-1]])
    begins[offsets[:-1]] = False
    return begins.sum() / plan.rows


def run(plan, rows, first, last):
    """The batches of steps first, ..., last - 1 of a run."""
    return loader.batches(plan, batch_size=rows, indices=np.arange(rows), seed=0, first_step=first, last_step=last)


def rate(plan, rows, seconds):
    """(batches a second, seconds of processor time a batch) of the loader, after a few that fill its caches."""
    batches, count = run(plan, rows, 0, 10**9), 0
    for _ in range(8):
        next(batches)
    start, cpu = time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - start) < seconds:
        next(batches)
        count += 1
    cpu = time.process_time() - cpu
    batches.close()
    return count / passed, cpu / count


def seek(plan, rows):
    """Seconds to the first batch after FAR others."""
    start = time.perf_counter()
    batches = run(plan, rows, FAR, 10**9)
    next(batches)
    passed = time.perf_counter() - start
    batches.close()
    return passed


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", default="", help="a glob of text files; none: the interpreter's documentation")
    parser.add_argument("--vocab", default="", help="a vocab.txt; none: 8,192 pieces are trained")
    parser.add_argument("--data_dir", type=Path, default=default_data_dir())
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    data = corpora.Config(corpus="text_files" if given.files else "python_docs", files=given.files)
    ready = prepare(data, tokenizers.Config(vocab_file=given.vocab), given.data_dir, print)
    store = ready.stores["train"]
    print(f"{store.tokens:,} tokens in {len(store.documents) - 1:,} documents and {len(store.sentences) - 1:,} "
          f"sentences; batches of {given.rows} rows of {given.length}")
    print(f"{'format':27}{'rows':>10}{'tokens/row':>11}{'padding':>9}{'crossings':>10}{'plan s':>8}{'batches/s':>11}"
          f"{'positions/s':>13}{'cpu ms':>8}{'seek ms':>9}")
    for name, make in plans(store, given.length):
        start = time.perf_counter()
        try:
            plan = make()
        except UserError as error:
            print(f"{name:27}{error}")
            continue
        made = time.perf_counter() - start
        facts = plan.statistics()
        batches, cpu = (pick(each) for pick, each in zip((max, min), zip(
            *(rate(plan, given.rows, given.seconds) for _ in range(given.rounds)), strict=True), strict=True))
        far = min(seek(plan, given.rows) for _ in range(given.rounds))
        print(f"{name:27}{plan.examples:10,}{facts['tokens_per_example']:11.1f}{facts['padding']:9.2%}"
              f"{crossings(plan):10.2f}{made:8.2f}{batches:11,.0f}"
              f"{batches * given.rows * given.length:13,.0f}{1000 * cpu:8.2f}{1000 * far:9.1f}", flush=True)


if __name__ == "__main__":
    main()
