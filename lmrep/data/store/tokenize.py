"""Text to token ids on every core, in the order of the text.

Sentence splitting is Python and tokenizing a library's; both run in child processes, each of which is given a batch of
documents and answers with arrays. They are started as new programs, not forked, because JAX may hold threads by then;
they import no JAX, no TFDS; what they are told and what they answer are plain bytes. A child ends the moment its input
does, and the system closes that when the parent dies, however it dies.
"""

import collections
import contextlib
import os
import queue
import re
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from lmrep.core.errors import RunFault
from lmrep.data import sentences, tokenizers
from lmrep.data.store import token_store

AT_ONCE = 2**18  # characters in one call of the library, which needs about 100 bytes for each
LONG_WORD = 1000  # characters; longer words are counted
AHEAD = 2**26  # characters that may be with the children at a time


class Tokenized(NamedTuple):
    """Documents as ids.

    Attributes:
      tokens: uint16 or uint32 [n], the ids of all documents.
      sentences: int64, the tokens of each sentence that has any.
      documents: int64, the sentences of each document that has any.
      tally: int64[3]: words (what white space separates), [UNK]s, words of more than LONG_WORD characters.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    tally: np.ndarray


def tokenize(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> Tokenized:
    """The ids of documents, sentence by sentence."""
    found, document_of, words, long = [], [], 0, 0
    for number, text in enumerate(texts):
        for i, sentence in enumerate(sentences.split(text)):
            words += sentence.count(" ") + 1
            if len(sentence) > LONG_WORD:
                long += sum(len(word) > LONG_WORD for word in sentence.split(" "))
            found.append(tokenizer.sentence_separator * (i > 0) + sentence)
            document_of.append(number)
    tokens, lengths = [np.zeros(0, token_store.dtype(tokenizer.size))], [np.zeros(0, np.int64)]
    for chunk in _chunks(found):
        ids = tokenizer.encode_batch(chunk)
        lengths.append(np.fromiter(map(len, ids), np.int64, len(ids)))
        tokens.append(np.concatenate(ids).astype(tokens[0].dtype))
    stream, in_sentence = np.concatenate(tokens), np.concatenate(lengths)
    in_document = np.bincount(np.array(document_of, int)[in_sentence > 0], minlength=len(texts))
    unknown = np.count_nonzero(stream == tokenizer.vocabulary.specials["unk"])
    return Tokenized(stream, in_sentence[in_sentence > 0], in_document[in_document > 0],
                     np.array([words, unknown, long], np.int64))


def _chunks(found: list[str]) -> Iterator[list[str]]:
    """Lists of about AT_ONCE characters."""
    first = waiting = 0
    for i, sentence in enumerate(found, 1):
        waiting += len(sentence)
        if waiting >= AT_ONCE or i == len(found):
            yield found[first:i]
            first, waiting = i, 0


class Batch(NamedTuple):
    """Documents that are tokenized together, of one part of the corpus and one split."""

    part: int
    split: str
    texts: list[str]
    characters: int


def tokenized(tokenizer: tokenizers.Tokenizer, directory: Path, batches: Iterable[Batch],
              processes: int) -> Iterator[tuple[Batch, Tokenized]]:
    """Each batch, its texts let go, with its ids, in order; the same for any number of processes.

    Args:
      tokenizer: what cuts the text where there are 0 processes: then the library's threads are what runs at once.
      directory: where the tokenizer is saved, for the children to load.
      batches: what to tokenize; at most AHEAD characters more are taken from it than were given back.
      processes: how many children to start.

    Raises RunFault where a child dies.
    """
    if not processes:
        yield from ((batch._replace(texts=[]), tokenize(tokenizer, batch.texts)) for batch in batches)
        return
    waiting: collections.deque[tuple[Batch, Future[Tokenized]]] = collections.deque()
    ahead = 0
    with _children(directory, processes, token_store.dtype(tokenizer.size)) as submit:
        for batch in batches:
            waiting.append((batch._replace(texts=[]), submit(batch.texts)))
            ahead += batch.characters
            while waiting[0][1].done() or ahead > AHEAD or len(waiting) > 4 * processes:
                done, future = waiting.popleft()
                ahead -= done.characters
                yield done, future.result()
                if not waiting:
                    break
        for done, future in waiting:
            yield done, future.result()


@contextlib.contextmanager
def _children(directory: Path, processes: int, dtype: np.dtype):
    """Gives `submit(texts)`, which has a child tokenize them. The children end with the context."""
    idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
    paths = [path for path in sys.path if path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false",
                                "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()", str(directory)]

    def ask(texts: list[str]) -> Tokenized:
        child, answer = idle.get(), None
        with contextlib.suppress(OSError):  # it is gone
            _send(child.stdin, [text.encode("utf8", "surrogatepass") for text in texts])
            answer = _receive(child.stdout)
        idle.put(child)
        if answer is None:
            raise RunFault(_ended(child.wait()))
        tokens, *rest = answer
        return Tokenized(np.frombuffer(tokens, dtype), *(np.frombuffer(block, np.int64) for block in rest))

    started = []
    executor = ThreadPoolExecutor(processes, "tokenizing")
    try:
        for _ in range(processes):
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment))
            idle.put(started[-1])
        yield lambda texts: executor.submit(ask, texts)
    finally:
        for child in started:
            child.kill()
        executor.shutdown(cancel_futures=True)
        for child in started:
            child.wait()
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):  # what could not be written any more
                    pipe.close()


def _ended(code: int) -> str:
    how = f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
    mend = "if the machine is out of memory, run with fewer cores (taskset)" if code < 0 else "what it said is above"
    return f"a process that tokenized {how}; {mend}; the next run goes on where this stopped"


def serve() -> None:
    """What a child does: answers batches from standard input on standard output until the input ends."""
    for stop in (signal.SIGINT, signal.SIGTERM):  # whoever stops the run stops its parent
        signal.signal(stop, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not answer
    requests: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()

    def work() -> None:
        try:
            tokenizer = tokenizers.load(Path(sys.argv[1]))
            while True:
                found = tokenize(tokenizer, [text.decode("utf8", "surrogatepass") for text in requests.get()])
                _send(answers, [column.tobytes() for column in found])
        except BrokenPipeError:
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    threading.Thread(target=work, daemon=True).start()
    while (request := _receive(sys.stdin.buffer)) is not None:
        requests.put(request)
    os._exit(0)  # the parent is done or dead: there is nobody to finish for


def _send(file: BinaryIO, blocks: Sequence[bytes]) -> None:
    file.write(struct.pack(f"<{1 + len(blocks)}q", len(blocks), *map(len, blocks)))
    file.writelines(blocks)
    file.flush()


def _receive(file: BinaryIO) -> list[bytes] | None:
    """The blocks that were sent; None where the other end closed."""
    head = file.read(8)
    if len(head) < 8:
        return None
    count = 8 * struct.unpack("<q", head)[0]
    sizes = file.read(count)
    if len(sizes) < count:
        return None
    blocks = [file.read(size) for size in np.frombuffer(sizes, np.int64).tolist()]
    return blocks if sum(map(len, blocks)) == np.frombuffer(sizes, np.int64).sum() else None


def cores() -> int:
    """How many this process may use: those it is bound to, and no more than a container's quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError):
        quota = re.match(r"(\d+) (\d+)", Path("/sys/fs/cgroup/cpu.max").read_text())
        if quota:
            return max(1, min(bound, int(quota[1]) // int(quota[2])))
    return bound
