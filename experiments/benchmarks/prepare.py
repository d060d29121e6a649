"""Time and memory of preparing a corpus, compared with the tokenizers library alone.

    python experiments/benchmarks/prepare.py --text='books/*.txt,wiki.txt' --vocab=vocab.txt [--megabytes=150]

Both process the same text on all cores in separate programs; the files are repeated up to --megabytes. For the library,
only `encode_batch` of the `tokenizers` package is timed, on 10,000 sentences per call, without reading and splitting.
For lmrep, `lmrep.data.store.prepare.prepare_corpus` is timed, from text files to open token stores: fingerprint,
splits, sentences, ids, indices, statistics and files on disk. Memory is the largest sum of proportional set sizes (PSS)
of a program and its children, minus that of a bare interpreter.

Two cores of an Intel Xeon, Wikipedia and novels, BERT's uncased vocabulary, tokenizers 0.23.3, 2026-11-21: 42 MB in
9.8 s, where `encode_batch` takes 9.2 s and `encode_batch_fast`, which lmrep calls, 8.0 s: ratios of 1.06 and 1.23. For
152 MB on a busy machine, the ratios were 1.22 and 1.28 in wall time and 1.13 and 1.31 in processor time, in 235 MB of
memory. Needs disk space for twice the text and takes two to three minutes.
"""

import argparse
import glob
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lmrep.core.host import processor

INTERPRETER = "import time; time.sleep(0.5)"

LIBRARY = """
import json, sys, time
import tokenizers
from lmrep.data import sentences
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[2])
encode = getattr(tokenizer, sys.argv[3])
seconds, busy, waiting = 0.0, 0.0, []
def flush():
    global seconds, busy
    start, before = time.perf_counter(), time.process_time()
    encode(waiting, add_special_tokens=False)
    seconds, busy = seconds + time.perf_counter() - start, busy + time.process_time() - before
    waiting.clear()
for text in open(sys.argv[1], encoding="utf8").read().split("\\n\\n"):
    waiting += sentences.split(text)
    if len(waiting) >= 10_000:
        flush()
flush()
print(json.dumps({"seconds": seconds, "busy": busy}))
"""

PREPARE = """
import json, resource, sys, time
from lmrep.data import corpora, tokenizers
from lmrep.data.store.prepare import prepare_corpus
start = time.perf_counter()
data = corpora.Config(corpus="text_files", files=sys.argv[1], documents="blank_line")
config = tokenizers.Config(name=sys.argv[4], vocab_file=sys.argv[2])
ready = prepare_corpus(data, config, sys.argv[3], lambda line: print(line, file=sys.stderr))
assert "tensorflow" not in sys.modules
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"seconds": time.perf_counter() - start, "busy": sum(u.ru_utime + u.ru_stime for u in used)}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="globs of UTF-8 files, separated by commas")
    parser.add_argument("--vocab", required=True, help="a vocab.txt, or a directory with a tokenizer")
    parser.add_argument("--tokenizer", default="wordpiece", help="name of the tokenizer")
    parser.add_argument("--megabytes", type=int, default=150)
    parser.add_argument("--directory", help="where to create a temporary directory")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="prepare-", dir=options.directory))
    try:
        corpus, size = home / "corpus.txt", 0
        paths = [path for pattern in options.text.split(",") for path in sorted(glob.glob(pattern, recursive=True))]
        with corpus.open("wb") as file:
            while size < options.megabytes * 10**6:
                for path in paths:
                    size += file.write(Path(path).read_bytes()[: options.megabytes * 10**6 - size] + b"\n\n")
        tokenizer = str(home / "tokenizer")
        subprocess.run([sys.executable, "-c", SAVE, options.vocab, tokenizer, options.tokenizer], check=True)
        print(f"{size / 1e6:.0f} MB; {len(os.sched_getaffinity(0))} cores of {processor()}; "
              f"tokenizers {importlib.metadata.version('tokenizers')}, numpy {importlib.metadata.version('numpy')}, "
              f"tensorflow-datasets {importlib.metadata.version('tensorflow-datasets')}, "
              f"Python {platform.python_version()}")
        _, interpreter_memory = measure([INTERPRETER])
        tokenizer_json = f"{tokenizer}/tokenizer.json"
        results = {name: measure([LIBRARY, str(corpus), tokenizer_json, name])
                   for name in ("encode_batch", "encode_batch_fast")}
        results["prepare"] = measure([PREPARE, str(corpus), tokenizer, str(home / "data"), options.tokenizer])
        for name, (times, memory) in results.items():
            ratio = results["prepare"][0]["seconds"] / times["seconds"]
            print(f"{name:18}{times['seconds']:8.1f} s{size / 1e6 / times['seconds']:8.2f} MB/s"
                  f"{times['busy']:8.1f} s of processor time{(memory - interpreter_memory) / 1e6:8.0f} MB of memory    "
                  f"time of prepare / this {ratio:.2f}")
    finally:
        shutil.rmtree(home, ignore_errors=True)


SAVE = """
import sys
from lmrep.data import tokenizers
tokenizers.from_vocab_file(tokenizers.Config(name=sys.argv[3], vocab_file=sys.argv[1])).save(sys.argv[2])
"""


def measure(arguments: list[str]) -> tuple[dict, int]:
    """(the JSON of a program's last line, the peak memory of the program and its children in bytes)."""
    program = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE, text=True)
    peak = 0
    while program.poll() is None:
        peak = max(peak, sum(map(memory_of, descendants(program.pid))))
        time.sleep(0.1)
    if program.returncode:
        raise SystemExit(program.returncode)
    lines = program.stdout.read().splitlines()
    return json.loads(lines[-1]) if lines else {}, peak


def descendants(pid: int) -> list[int]:
    """A process and its descendants."""
    pids = [pid]
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            pids += [each for child in Path(path).read_text().split() for each in descendants(int(child))]
        except OSError:  # the process has ended
            continue
    return pids


def memory_of(pid: int) -> int:
    """The proportional set size of a process in bytes."""
    try:
        content = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in content.splitlines() if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
