"""Time and memory of preparing a large text: by one machine, and by Apache Beam on the cores of this machine.

    pip install -e '.[beam]'
    python experiments/benchmarks/beam.py --directory=/disk/beam --gigabytes=10

Writes JSON Lines of generated text below --directory, runs `lmrep prepare` without Beam and with its DirectRunner, and
compares the two token stores byte for byte. A table has the seconds of each, and the largest memory of the process that
was started, of one of its child processes (the workers) and of all together: proportional set sizes, read every half
second. Each message of `lmrep prepare` is printed with the seconds after which it came.

Documents have 5 to 60 sentences of 5 to 35 words, drawn by Zipf's law from 8,000 random ones of 8 to 24 letters. Such
words are three times as long as English ones, and a megabyte of them is tokenized in about a third of the time. The
tokenizer is trained on a sample. Text and stores that are there are not made again. The disk needs space for the text
and half as much again.
"""

import argparse
import hashlib
import json
import multiprocessing
import re
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import numpy as np
from arguments import parse_flags
from prepare import descendants, memory_of

from lmrep.core.host import processor

WORDS, LETTERS, FILES = 8_000, list("etaoinshrdlucmfwypvbgkqjxz"), 64


def write_text(path, size, seed):
    """Writes a file of JSON Lines of about `size` bytes, if it is not there."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(LETTERS, rng.integers(8, 25))) for _ in range(WORDS)], object)
    ends = np.cumsum(1 / np.arange(2, WORDS + 2))
    rng, written, partial = np.random.default_rng([1, seed]), 0, path.with_suffix(".partial")
    with partial.open("w", encoding="utf8") as file:
        while written < size:
            sentences = rng.integers(5, 36, rng.integers(5, 61))
            drawn = iter(words[np.searchsorted(ends, rng.random(sentences.sum()) * ends[-1])])
            text = " ".join(" ".join(next(drawn) for _ in range(n)).capitalize() + "." for n in sentences)
            written += file.write(json.dumps({"text": text}) + "\n")
    partial.rename(path)


def prepare(directory, text, flags):
    """Runs `lmrep prepare`; returns its line of the table, and the folder of the store."""
    directory.mkdir(parents=True, exist_ok=True)
    result = directory / "result.json"
    if result.exists():
        return json.loads(result.read_text())
    command = [sys.executable, "-m", "lmrep", "prepare", "--config=gpt2.py:data=jsonl",
               f"--config.data.files={text}/*.jsonl", f"--data_dir={directory}", *flags]
    start = time.perf_counter()
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peak = {"the process": 0, "a worker": 0, "all": 0}

    def watch():
        while program.poll() is None:
            own, *children = [memory_of(pid) for pid in descendants(program.pid)]
            now = {"the process": own, "a worker": max(children, default=0), "all": own + sum(children)}
            peak.update({name: max(peak[name], value) for name, value in now.items()})
            time.sleep(0.5)

    watcher = threading.Thread(target=watch)
    watcher.start()
    store = None
    for line in program.stdout:
        print(f"{time.perf_counter() - start:8.1f} s  {line.rstrip()}", flush=True)
        store = (re.findall("^Prepared in (.*)", line) or [store])[0]
    watcher.join()
    if program.returncode or not store:
        raise SystemExit(f"{' '.join(command)}\nended with code {program.returncode}")
    found = {"seconds": time.perf_counter() - start, "peak": peak, "store": store}
    result.write_text(json.dumps(found))
    return found


def content(store):
    """{name of a file of the store: SHA-256}."""
    def sha256(path):
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return {str(path.relative_to(store)): sha256(path) for path in sorted(Path(store).rglob("*")) if path.is_file()}


def main():
    """Parses flags, generates the text, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", required=True, type=lambda path: Path(path).absolute())
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=2)
    o = parse_flags(parser, gigabytes=0.002)
    text = o.directory / "text"
    text.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(o.workers) as pool:
        pool.starmap(write_text, [(path, o.gigabytes * 1e9 / FILES, i) for i in range(FILES)
                                  if not (path := text / f"{i:02}.jsonl").exists()])
    size = sum(path.stat().st_size for path in text.glob("*.jsonl"))
    beam = ["--beam_runner=DirectRunner", f"--beam_options=direct_num_workers={o.workers}"]
    found = {"one machine": prepare(o.directory / "alone", text, []),
             f"DirectRunner, {o.workers} workers": prepare(o.directory / "beam", text, beam)}
    alone, other = (content(each["store"]) for each in found.values())
    if alone != other:
        different = sorted(name for name in alone.keys() | other.keys() if alone.get(name) != other.get(name))
        raise SystemExit(f"the stores differ in {', '.join(different)}")
    print(f"\n{size / 1e9:.2f} GB of text in {FILES} files; both stores have the same {len(alone)} files\n")
    print("| prepared by | seconds | MB/s | the process | a worker | all |\n| --- | --- | --- | --- | --- | --- |")
    for name, each in found.items():
        memory = " | ".join(f"{each['peak'][key] / 1e6:,.0f} MB" for key in ("the process", "a worker", "all"))
        print(f"| {name} | {each['seconds']:,.0f} | {size / 1e6 / each['seconds']:.2f} | {memory} |")
    print(f"\n{processor()}, {time.strftime('%Y-%m-%d')}, apache-beam {metadata.version('apache-beam')}, "
          f"tokenizers {metadata.version('tokenizers')}")


if __name__ == "__main__":
    main()
