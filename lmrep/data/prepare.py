"""From a corpus and a tokenizer's config to token stores on disk, made once and found again.

What is made lies in one folder of the data directory, named by a fingerprint of all that decides its content:

    <corpus>-<fingerprint>/
        tokenizer/                    its pieces, tokenizer.json, tokenizer_config.json
        train/ validation/ test/      one token store a split that was asked for (`store.py`)
        counts.npy                    int64[v], how often each id occurs in the train split
        statistics.json               what `lmrep inspect` shows

It is built under another name, with a lock held, and renamed when it is whole: a killed process leaves nothing that
is taken for a store, and the next one clears it away.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import pathlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.data import corpora, sentences, store, tokenizers

LAYOUT = 1  # of the folder; raise it when a change makes older ones unreadable
BATCH = 2**20  # characters that are tokenized at once: bounds the memory
TRAINING_SAMPLE = 10**8  # characters of the train split that a tokenizer is trained on, at most

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training.

    Attributes:
      tokenizer: trained on the train split or loaded; its vocabulary carries the train split's counts.
      stores: {split: store}, for "train" and for "validation" and "test" where their share is above 0.
      statistics: {split: {documents, sentences, tokens, characters, words, unknown, tokens_per_word,
        unknown_share}}; words are what white space separates, unknown counts [UNK].
      directory: where it lies.
    """

    tokenizer: tokenizers.Tokenizer
    stores: dict[str, store.Store]
    statistics: dict[str, dict[str, float]]
    directory: pathlib.Path


def prepare(data: corpora.Config, tokenizer: tokenizers.Config, data_dir: str | pathlib.Path,
            progress: Progress | None = None) -> Prepared:
    """Opens the stores of a corpus under a tokenizer, and makes them first where they are missing.

    `progress` is called with lines that tell a person what takes long. Two processes that need the same stores build
    them once: the second waits. Raises UserError for a corpus, a vocabulary or a data directory that will not do,
    RunFault where the disk fills up.
    """
    progress = progress or (lambda line: None)
    corpus = corpora.open_corpus(data)
    loaded = tokenizers.from_vocab_file(tokenizer) if tokenizer.vocab_file else None
    cut = dataclasses.replace(tokenizer, vocab_file="") if loaded is None else loaded.fingerprint
    facts = [LAYOUT, store.RECORD, corpus.fingerprint(), data.validation, data.test, sentences.VERSION,
             tokenizers.RULES[tokenizer.kind], repr(cut)]
    content = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    directory = pathlib.Path(data_dir).expanduser() / f"{corpus.name}-{content[:16]}"
    if not directory.exists():
        progress(f"reading {corpus.description}")
        survey = _survey(corpus, data)  # finds what is wrong with the corpus before anything is written
        with _locked(directory, progress):
            if not directory.exists():
                _build(directory, corpus, survey, tokenizer, loaded, progress)
    return _open(directory, content)


def _open(directory: pathlib.Path, content: str) -> Prepared:
    """What lies in a complete folder."""
    try:
        statistics = json.loads((directory / "statistics.json").read_text(encoding="utf8"))
        tokenizer = tokenizers.load(directory / "tokenizer").with_counts(np.load(directory / "counts.npy"))
        names = {split: hashlib.sha256(f"{content} {tokenizer.fingerprint} {split}".encode()).hexdigest()
                 for split in statistics}
        stores = {split: store.Store(directory / split, split, tokenizer.vocabulary, name)
                  for split, name in names.items()}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the token store at {directory} is damaged: {error}; delete that directory, and the next run "
                        "builds it anew") from error
    return Prepared(tokenizer, stores, statistics, directory)


@contextlib.contextmanager
def _locked(directory: pathlib.Path, progress: Progress) -> Iterator[None]:
    """Holds the lock on making `directory`. The system frees it when the process ends, however it ends."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        file = open(f"{directory}.lock", "w")  # noqa: SIM115 - closed below, which also unlocks
    except OSError as error:
        raise UserError(f"cannot write to the data directory {directory.parent}: {error.strerror}; choose another with "
                        "--data_dir") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that prepares {directory}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(directory: pathlib.Path, corpus: corpora.Corpus, survey: "_Survey", config: tokenizers.Config,
           tokenizer: tokenizers.Tokenizer | None, progress: Progress) -> None:
    """Makes the folder beside its place and moves it there."""
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a killed process left
    try:
        if tokenizer is None:
            progress(f"training a tokenizer of {config.vocab_size:,} pieces")
            tokenizer = tokenizers.train(config, lambda: _sample(corpus, survey))
        statistics, counts = _tokenize(partial, corpus, survey, tokenizer, progress)
        _check(statistics, config, progress)
        tokenizer.save(partial / "tokenizer")
        np.save(partial / "counts.npy", counts)
        (partial / "statistics.json").write_text(json.dumps(statistics, indent=2) + "\n", encoding="utf8")
        partial.rename(directory)
    except (OSError, RuntimeError) as error:  # ArrayRecord says it with a RuntimeError
        if not any(sign in str(error) for sign in ("No space left", "quota exceeded")):
            raise
        raise RunFault(f"the disk of {directory.parent} is full; free space or choose another --data_dir") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class _Survey(NamedTuple):
    """What a first reading finds of each document: its place in the splits' range (uint64), its length in characters
    (int64), and its split (int8, an index into SPLITS)."""

    places: np.ndarray
    lengths: np.ndarray
    splits: np.ndarray


def _survey(corpus: corpora.Corpus, data: corpora.Config) -> _Survey:
    facts = [(corpora.place(text), len(text)) for text in corpus.documents()]
    places, lengths = zip(*facts, strict=True)
    places = np.array(places, np.uint64)
    return _Survey(places, np.array(lengths, np.int64), corpora.assign(places, data))


def _sample(corpus: corpora.Corpus, survey: _Survey) -> Iterator[str]:
    """The train split's lines; of a split of more than TRAINING_SAMPLE characters, those of documents chosen by hash.

    Lines, because the library holds what it is given at once, and a document may be a novel.
    """
    train = survey.splits == corpora.SPLITS.index("train")
    share = min(1.0, TRAINING_SAMPLE / survey.lengths[train].sum())
    chosen = train & ((survey.places & np.uint64(0xFFFFFFFF)) <= share * 2**32)
    return (line for text, keep in _together(corpus, chosen) if keep for line in text.split("\n"))


def _together(corpus: corpora.Corpus, facts: np.ndarray) -> Iterator[tuple[str, np.generic]]:
    """Each document with what the survey found for it."""
    try:
        yield from zip(corpus.documents(), facts, strict=True)
    except ValueError as error:
        raise RunFault("the corpus changed while it was read; run again when its files stand still") from error


def _tokenize(directory: pathlib.Path, corpus: corpora.Corpus, survey: _Survey, tokenizer: tokenizers.Tokenizer,
              progress: Progress) -> tuple[dict[str, dict[str, float]], np.ndarray]:
    """Writes the stores of all splits in one pass; returns the statistics and the train split's counts, int64[v]."""
    asked = [name for i, name in reversed(list(enumerate(corpora.SPLITS))) if (survey.splits == i).any()]
    tallies = {name: Counter() for name in asked}
    counts = np.zeros(tokenizer.size, np.int64)
    unknown = tokenizer.vocabulary.specials["unk"]
    report = _Report(int(survey.lengths.sum()), progress)
    with contextlib.ExitStack() as stack:
        writers = {name: stack.enter_context(store.Writer(directory / name, name, tokenizer.size)) for name in asked}
        for batch in _batches(_together(corpus, survey.splits)):
            ids = _encode(tokenizer, [tokenizer.joint * (i > 0) + sentence for _, _, found in batch
                                      for i, sentence in enumerate(found)])
            for length, split, found in batch:
                name, document = corpora.SPLITS[split], [next(ids) for _ in found]
                writers[name].add(document)
                stream = np.concatenate([np.zeros(0, np.int32), *document])
                words = sum(sentence.count(" ") + 1 for sentence in found)
                tallies[name].update(documents=int(len(stream) > 0), sentences=sum(len(s) > 0 for s in document),
                                     tokens=len(stream), characters=length, words=words,
                                     unknown=int((stream == unknown).sum()))
                if name == "train":
                    counts += np.bincount(stream, minlength=tokenizer.size)
            report.add(sum(length for length, _, _ in batch))
    return {name: _rates(tally) for name, tally in tallies.items()}, counts


def _rates(tally: Counter[str]) -> dict[str, float]:
    return {**tally, "tokens_per_word": tally["tokens"] / max(1, tally["words"]),
            "unknown_share": tally["unknown"] / max(1, tally["tokens"])}


def _batches(documents: Iterable[tuple[str, int]]) -> Iterator[list[tuple[int, int, list[str]]]]:
    """Documents as (characters, split, sentences), in lists of about BATCH characters."""
    batch, waiting = [], 0
    for text, split in documents:
        batch.append((len(text), int(split), sentences.split(text)))
        waiting += len(text)
        if waiting >= BATCH:
            yield batch
            batch, waiting = [], 0
    yield batch


def _encode(tokenizer: tokenizers.Tokenizer, texts: list[str], at_once: int = 8192) -> Iterator[np.ndarray]:
    """The ids of each text. A novel is a batch of its own, and the library wants 100 bytes a token: hence in parts."""
    for start in range(0, len(texts), at_once):
        yield from tokenizer.encode_batch(texts[start : start + at_once])


def _check(statistics: dict[str, dict[str, float]], config: tokenizers.Config, progress: Progress) -> None:
    """Refuses stores that no run could use."""
    empty = [name for name, tally in statistics.items() if not tally["sentences"]]
    if empty:
        raise UserError(f"the {empty[0]} split has no text: not one of its documents gives a token; give the corpus "
                        "more documents, or that split a larger share")
    share = statistics["train"]["unknown_share"]
    line = f"{share:.0%} of the corpus is [UNK] to {config.vocab_file or 'the trained vocabulary'}"
    if share > 0.5:
        raise UserError(f"{line}: it is not a vocabulary of this language or case; choose another with "
                        "--config.tokenizer.vocab_file, or train one with vocab_file=''")
    if share > 0.05:
        progress(f"warning: {line}; is that the vocabulary you meant?")


class _Report:
    """Says how far tokenizing is, every few seconds."""

    def __init__(self, total: int, progress: Progress, every: float = 3.0):
        self.total, self.progress, self.every = total, progress, every
        self.done, self.start = 0, time.monotonic()
        self.last = self.start

    def add(self, characters: int) -> None:
        """Counts characters as tokenized."""
        self.done += characters
        now = time.monotonic()
        if now - self.last >= self.every and self.done < self.total:
            left = (now - self.start) * (self.total - self.done) / self.done
            self.progress(f"tokenizing: {self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} million characters, "
                          f"{left // 60:.0f}:{left % 60:02.0f} left")
            self.last = now
