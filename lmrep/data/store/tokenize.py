"""Tokenization of documents on all cores, in order.

Sentence splitting and tokenization run in child processes, each of which receives batches of documents and returns
arrays. They are started as new programs, not forked, because JAX may have started threads, and they import neither JAX
nor TFDS. A child exits after its batch when its input is closed, which the system does when the parent dies.
"""

import collections
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from lmrep.core.errors import RunFault
from lmrep.data import sentences, tokenizers
from lmrep.data.characters import utf8
from lmrep.data.store import token_store
from lmrep.data.store.unknown_words import UnknownWords

CALL_CHARACTERS = 2**18  # in one call of the library, which needs about 100 bytes for each
LONG_WORD = 1000  # characters; longer words are counted
MAX_PENDING = 2**26  # characters that children hold at a time


class Tokenized(NamedTuple):
    """Documents as ids."""

    tokens: np.ndarray  # uint16 or uint32 [n], the ids of all documents
    sentences: np.ndarray  # int64, the number of tokens of each sentence, without empty ones
    documents: np.ndarray  # int64, the number of sentences of each document, without empty ones
    # documents, sentences, tokens, characters, words (separated by white space), unknown (tokens), and long_words (of
    # more than LONG_WORD characters)
    tally: dict[str, int]
    unknown: UnknownWords | None = None  # the words outside of the vocabulary; None for tokenizers without characters


def tokenize(tokenizer: tokenizers.Tokenizer, texts: Sequence[str], keep_whitespace: bool = False,
             lines: bool = False) -> Tokenized:
    """Tokenizes documents sentence by sentence; if `lines`, each line is a sentence. If `keep_whitespace`, the
    tokenizer gets the exact text, in which the white space between two sentences belongs to the second; otherwise each
    run of white space is one space. A backward tokenizer gets the sentences of a document in reverse order."""
    split = sentences.split_verbatim if keep_whitespace else sentences.split
    separator = "" if keep_whitespace else tokenizer.sentence_separator
    sentence_texts, document_of, words, long = [], [], 0, 0
    for number, text in enumerate(texts):
        parts = [separator * (i > 0) + sentence for i, sentence in enumerate(split(text, lines))]
        for sentence in parts[::-1] if tokenizer.backward else parts:
            words += len(sentence.split()) if keep_whitespace else sentence.count(" ") + 1
            if len(sentence) > LONG_WORD:
                long += sum(len(word) > LONG_WORD for word in sentence.split())
            sentence_texts.append(sentence)
            document_of.append(number)
    tokens, lengths = [np.zeros(0, token_store.dtype(tokenizer.size))], [np.zeros(0, np.int64)]
    unknown_words: list[str] = []
    for chunk in _chunks(sentence_texts):
        if tokenizer.encode_known:
            ids, words_of_chunk = tokenizer.encode_known(chunk)
            unknown_words += words_of_chunk
        else:
            ids = tokenizer.encode_batch(chunk)
        lengths.append(np.fromiter(map(len, ids), np.int64, len(ids)))
        tokens.append(np.concatenate(ids).astype(tokens[0].dtype))
    stream, in_sentence = np.concatenate(tokens), np.concatenate(lengths)
    in_document = np.bincount(np.array(document_of, int)[in_sentence > 0], minlength=len(texts))
    in_sentence, in_document = in_sentence[in_sentence > 0], in_document[in_document > 0]
    unknown = np.flatnonzero(stream == tokenizer.vocabulary.unknown)
    tally = {"documents": len(in_document), "sentences": len(in_sentence), "tokens": len(stream),
             "characters": sum(map(len, texts)), "words": words, "unknown": len(unknown), "long_words": long}
    return Tokenized(stream, in_sentence, in_document, tally,
                     UnknownWords(unknown, *utf8(unknown_words)) if tokenizer.encode_known else None)


def _chunks(texts: list[str]) -> Iterator[list[str]]:
    first = characters = 0
    for i, text in enumerate(texts, 1):
        characters += len(text)
        if characters >= CALL_CHARACTERS or i == len(texts):
            yield texts[first:i]
            first, characters = i, 0


class DocumentBatch(NamedTuple):
    """Documents of one split and one part of the corpus, to be tokenized together."""

    part: int
    split: str
    texts: list[str]
    characters: int


def tokenize_batches(tokenizer: tokenizers.Tokenizer, directory: Path, batches: Iterable[DocumentBatch], processes: int,
                     keep_whitespace: bool = False, lines: bool = False) -> Iterator[tuple[DocumentBatch, Tokenized]]:
    """Yields each batch, without its texts, and its ids, in order. The ids do not depend on the number of processes.

    Args:
      tokenizer: used if `processes` is 0; then only the library's threads run in parallel.
      directory: the saved tokenizer, which the children load.
      batches: at most MAX_PENDING characters are taken from it before their ids are yielded.
      processes: number of children.
      keep_whitespace, lines: as in `tokenize`.

    Raises:
      RunFault: a child died.
    """
    if not processes:
        yield from ((batch._replace(texts=[]), tokenize(tokenizer, batch.texts, keep_whitespace, lines))
                    for batch in batches)
        return
    pending: collections.deque[tuple[DocumentBatch, Future[Tokenized]]] = collections.deque()
    characters = 0
    with _children(directory, processes, keep_whitespace, lines) as submit:
        for batch in batches:
            pending.append((batch._replace(texts=[]), submit(batch.texts)))
            characters += batch.characters
            while pending and (pending[0][1].done() or characters > MAX_PENDING or len(pending) > 4 * processes):
                done, future = pending.popleft()
                characters -= done.characters
                yield done, future.result()
        for done, future in pending:
            yield done, future.result()


@contextlib.contextmanager
def _children(directory: Path, processes: int, keep_whitespace: bool, lines: bool):
    """Yields `submit(texts) -> Future[Tokenized]`. The children end with the context."""
    idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
    paths = [path for path in sys.path if path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false",
                                "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()", str(directory),
               "keep" if keep_whitespace else "collapse", "lines" if lines else "rules"]

    def run(texts: list[str]) -> Tokenized:
        child, response = idle.get(), None
        with contextlib.suppress(OSError):  # the child died
            _send(child.stdin, texts)
            response = _receive(child.stdout)
        idle.put(child)
        if response is None:
            code, fix = child.wait(), "its error is shown above"
            end = f"exited with code {code}"
            if code < 0:
                end = f"was killed by signal {-code} ({signal.Signals(-code).name})"
                fix = "if the machine is out of memory, run with fewer cores (taskset)"
            raise RunFault(f"a tokenizing process {end}; {fix}; the next run continues where this one stopped")
        return response

    children = []
    executor = ThreadPoolExecutor(processes, "tokenizing")
    try:
        for _ in range(processes):
            children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment))
            idle.put(children[-1])
        yield lambda texts: executor.submit(run, texts)
    finally:
        for child in children:
            child.kill()
        executor.shutdown(cancel_futures=True)
        for child in children:
            child.wait()
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):  # unwritten data
                    pipe.close()


def serve() -> None:
    """Runs a child: reads batches from standard input and writes ids to standard output."""
    for number in (signal.SIGINT, signal.SIGTERM):  # handled by the parent
        signal.signal(number, signal.SIG_IGN)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints go to standard error
    tokenizer, options = tokenizers.load(Path(sys.argv[1])), (sys.argv[2] == "keep", sys.argv[3] == "lines")
    with contextlib.suppress(BrokenPipeError):  # the parent is dead
        while (request := _receive(sys.stdin.buffer)) is not None:
            _send(output, tokenize(tokenizer, request, *options))
    os._exit(0)  # without flushing what nobody reads


def _send(file: BinaryIO, message: Any) -> None:
    pickle.dump(message, file, pickle.HIGHEST_PROTOCOL)
    file.flush()


def _receive(file: BinaryIO) -> Any:
    """Reads a message; None if the other end has closed."""
    try:
        return pickle.load(file)
    except (EOFError, pickle.UnpicklingError):
        return None
