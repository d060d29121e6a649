"""The token stores of a corpus and a tokenizer's config, which are opened if they exist, and built otherwise.

The result is a folder of the data directory, named by a fingerprint of everything that decides its content:

    <corpus>-<fingerprint>/
        tokenizer/                    the files of the tokenizer
        train/ validation/ test/      a token store for each split (`token_store.py`)
        counts.npy                    int64[v], how often each id occurs in the train split
        statistics.json               what `lmrep inspect` shows
        manifest.json                 size and SHA-256 of every file

It is built in <corpus>-<fingerprint>.partial, with a lock held: first the tokenizer, then the corpus, part by part.
Each is sealed and renamed when it is complete, so that a build that was killed, or that filled the disk, continues
after the last part that is complete and intact (`unfinished.py`). In the end the files of the parts are moved together
and the folder is renamed. The result depends neither on interruptions nor on the number of processes.

Files are compared with the manifest when the folder is opened. A folder that is damaged is built again.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import itertools
import json
import os
import pathlib
import resource
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from lmrep.config import json_files
from lmrep.config.json_files import Number
from lmrep.core import host, remote, remote_cache
from lmrep.core.errors import ConfigError, RunFault, UserError
from lmrep.core.files import MANIFEST, digest, open_lock, seal
from lmrep.core.messages import byte_size
from lmrep.core.sealed_cache import find_damage
from lmrep.data import corpora, sentences, tokenizers
from lmrep.data.store import scan, token_store, tokenize, unfinished
from lmrep.data.store.scan import CorpusScan, Progress, Report
from lmrep.data.store.tokenize import DocumentBatch, Tokenized

BUILD = 3  # version of the unfinished folder; raise it if a change cannot continue older ones
RULES = f"{corpora.splits.VERSION} {sentences.VERSION}"  # with other rules the same text gives other examples
LAYOUT = 3  # version of the folder; raise it if a change makes older ones unreadable
PART = 2**25  # characters of a part, the most that a killed process loses
MAX_PARTS = 128  # each is a file of each split; parts of larger corpora are larger
BATCH = 2**18  # characters that are sent to a process at a time
SMALL = 2**22  # characters that are tokenized without child processes
NOT_WRITTEN = "requested and"  # NumPy's "8 requested and 0 written", which does not give the reason
DISK_FULL = ("No space left", "quota exceeded", NOT_WRITTEN)
Numbers = dict[str, dict[str, Number]]  # of each split
FILE_TOO_LARGE = "File too large"


@dataclass(frozen=True)
class Prepared:
    """A corpus that is ready for training."""

    # trained on the train split or loaded; its vocabulary has the counts of the train split
    tokenizer: tokenizers.Tokenizer
    # split -> store, for "train", and for "validation" and "test" if their fractions are above 0
    stores: dict[str, token_store.Store]
    # split -> {documents, sentences, tokens, characters, words, unknown, long_words, tokens_per_word,
    # unknown_fraction}; words are separated by white space, unknown counts tokens, long_words have more than 1,000
    # characters
    statistics: dict[str, dict[str, float]]
    directory: pathlib.Path  # the folder of the stores
    # counts of anomalies of the text, such as bytes that are not UTF-8; only those that occurred
    text: dict[str, int] = field(default_factory=dict)
    sentences: str = ""  # description of how documents are divided into sentences


def prepare_corpus(data: corpora.Config, tokenizer: tokenizers.Config, data_dir: str | pathlib.Path,
                   progress: Progress | None = None) -> Prepared:
    """Opens the stores of a corpus and a tokenizer; builds them if they are missing or damaged. If the data directory
    is remote, the records of stores in it are read there, and their other files are downloaded to the default
    directory; other stores are built on this machine.

    Tokenization uses all cores, a few hundred megabytes of memory, and 17 bytes per document. If it is interrupted, the
    next call continues it. If several processes need the same stores, one builds them and the others wait. `progress`
    is called with messages for people. Raises UserError if the corpus, the vocabulary or the data directory cannot be
    used. Raises RunFault if the disk is full, a file exceeds the system's limit, the corpus changed during the build,
    or a tokenizing process died."""
    progress = progress or (lambda line: None)
    corpus = corpora.open_corpus(data)
    data, described = choose_sentences(data, corpus)
    loaded = tokenizers.from_vocab_file(tokenizer) if tokenizer.vocab_file else None
    content = fingerprint(corpus, data, tokenizer, loaded)
    directory = remote_cache.local_data_dir(data_dir) / f"{corpus.name}-{content[:16]}"
    damage = find_damage(directory)
    if damage and directory.exists():
        progress(f"the token store {directory} is damaged: {damage}; building it again")
        if remote.as_url(data_dir):
            remove_damaged(directory)
    left = token_store.RECORDS if hasattr(os, "memfd_create") else ""  # `remote_records` needs Linux
    url = damage and remote_cache.download_sealed(data_dir, directory.name, progress, left)
    if damage and not url:
        progress(f"reading {corpus.description}; sentences {described}")
        survey = scan.survey(corpus, data, progress)  # finds what is wrong before anything is written
        if fingerprint(corpus, data, tokenizer, loaded) != content:
            raise RunFault(scan.CHANGED)
        if anomalies := scan.describe_anomalies(survey.text):
            progress(f"in the text: {anomalies}")
        with locked(directory, progress):
            if find_damage(directory):  # not if another process has built it
                remove_damaged(directory)
                _build(directory, content, corpus, survey, tokenizer, loaded, data.sentences == "line", progress)
                find_damage(directory)
    return dataclasses.replace(_open(directory, content, data.damaged_records, left and url), sentences=described)


def choose_sentences(data: corpora.Config, corpus: corpora.Corpus) -> tuple[corpora.Config, str]:
    """Returns (the config with "line" or "split" in place of "auto"; which of them and why, as text for people)."""
    why, known = "data.sentences", corpora.CORPORA[data.corpus].sentences
    if data.sentences == "auto" and known != "auto":
        data, why = dataclasses.replace(data, sentences=known), data.corpus
    if data.sentences == "auto":
        by_line, why = sentences.one_a_line(corpus.beginnings())
        data = dataclasses.replace(data, sentences="line" if by_line else "split")
    lines = data.sentences == "line"
    files = lines and data.documents == "auto" and corpora.CORPORA[data.corpus].has_units and len(corpus.readers) > 1
    hint = "; each file is a document: data.documents=blank_line divides them at blank lines" if files else ""
    return data, f"{'one a line' if lines else 'by punctuation'} ({why}{hint})"


def fingerprint(corpus: corpora.Corpus, data: corpora.Config, config: tokenizers.Config,
                loaded: tokenizers.Tokenizer | None) -> str:
    """Returns the SHA-256 of everything that decides the content of the folder. `data` comes from `choose_sentences`;
    `loaded` is the tokenizer of `config.vocab_file`."""
    identity = tokenizers.settings_of_ids(config) if loaded is None else repr(loaded.fingerprint)
    return digest([LAYOUT, token_store.RECORD, corpus.fingerprint(), data.validation, data.test, RULES, data.sentences,
                   tokenizers.TOKENIZERS[config.name].rules, tokenizers.keeps_whitespace(config), identity])


def build_key(content: str) -> str:
    """Returns the key of a build; only an unfinished folder with the same key is continued."""
    return json.dumps([content, BUILD, PART, MAX_PARTS, importlib.metadata.version("tokenizers")])


def bytes_needed(characters: int, vocabulary_size: int) -> int:
    """Estimates the bytes of a text's stores on disk, at four characters per token and a hundred per sentence."""
    return int(characters * (token_store.dtype(vocabulary_size).itemsize / 4 + 2 * 8 / 100)) + 2**20


def _open(directory: pathlib.Path, content: str, damaged_records: int, url: str) -> Prepared:
    """Opens the folder, or, if its stores have their records at `url`, the copy of its other files."""
    directory = directory.with_name(f"{directory.name}.index") if url else directory
    try:
        totals = json_files.read(Numbers, directory / "statistics.json") or {}
        text = totals.pop("text", {})
        tokenizer = tokenizers.load(directory / "tokenizer").with_counts(np.load(directory / "counts.npy"))
        fingerprints = {split: hashlib.sha256(f"{content} {tokenizer.fingerprint} {split}".encode()).hexdigest()
                        for split in totals}
        stores = {split: token_store.Store(directory / split, split, tokenizer.vocabulary, split_fingerprint,
                                           damaged_records=damaged_records, url=url and f"{url}/{split}")
                  for split, split_fingerprint in fingerprints.items()}
    except (OSError, ValueError, KeyError, UserError) as error:
        raise UserError(f"the token store {directory} cannot be opened: {error}; delete that directory, and the next "
                        "run builds it again") from error
    return Prepared(tokenizer, stores, totals, directory, text)


def remove_damaged(directory: pathlib.Path) -> None:
    """Removes a damaged token store, if it exists. Raises UserError if that is not permitted."""
    try:
        if directory.exists():
            shutil.rmtree(directory)
    except OSError as error:
        raise UserError(f"the token store {directory} is damaged and cannot be removed: {error.strerror}; remove it, "
                        "or choose another --data_dir") from error


@contextlib.contextmanager
def locked(directory: pathlib.Path, progress: Progress) -> Iterator[None]:
    """Holds the lock for building `directory`, which the system releases when the process ends."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        file = open(open_lock(f"{directory}.lock"), "rb")  # noqa: SIM115 - closed below, which also unlocks
    except OSError as error:
        raise UserError(f"cannot write to the data directory {directory.parent}: {error.strerror}; choose another with "
                        "--data_dir") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that builds {directory}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# The folder


def _build(directory: pathlib.Path, content: str, corpus: corpora.Corpus, survey: CorpusScan, config: tokenizers.Config,
           tokenizer: tokenizers.Tokenizer | None, lines: bool, progress: Progress) -> None:
    """Builds the folder beside its final path, continuing an unfinished one, and renames it."""
    partial, keep_whitespace = directory.with_name(directory.name + ".partial"), tokenizers.keeps_whitespace(config)
    parts: list[pathlib.Path] = []
    try:
        unfinished.resume(partial, build_key(content), progress)
        if not (partial / "tokenizer").exists():
            if tokenizer is None:
                progress(f"training a tokenizer of {config.vocab_size:,} tokens")
                budget, passes = min(survey.characters("train"), scan.TRAINING_SAMPLE), itertools.count(1)
                tokenizer = tokenizers.train(config, lambda: scan.sample(
                    corpus, survey, budget, keep_whitespace, Report(
                        f"reading for the tokenizer, pass {next(passes)}", int(survey.lengths.sum()), progress)))
            with unfinished.complete(partial / "tokenizer") as temporary:
                tokenizer.save(temporary)
        tokenizer = tokenizers.load(partial / "tokenizer")
        parts = [partial / "parts" / f"{number:05}" for number in range(part_of(survey)[-1] + 1)]
        _tokenize(parts, corpus, survey, tokenizer, keep_whitespace, lines, progress)
        totals = total(
            item for part in parts for item in json_files.read(Numbers, part / "tallies.json").items())
        check_statistics(totals, config, progress)
        _finish(partial / "done", parts, totals, survey, tokenizer)
        (partial / "done").rename(directory)
    except UserError:
        if all(part.exists() for part in parts):  # none is tokenized yet, or all are and cannot be used
            shutil.rmtree(partial, ignore_errors=True)
        raise
    except (OSError, RuntimeError, RunFault) as error:  # ArrayRecord raises RuntimeError
        if limit := _file_size_limit(error, directory.parent):
            raise RunFault(f"a file in {partial} would be larger than {limit} and run again, which continues where "
                           "this one stopped") from error
        if not any(text in str(error) for text in DISK_FULL):
            if isinstance(error, OSError):
                raise RunFault(f"{partial} cannot be written: {error}; choose another --data_dir") from error
            raise
        remaining = survey.lengths[part_of(survey) >= sum(part.exists() for part in parts)].sum()
        needed = bytes_needed(remaining, tokenizer.size if tokenizer else config.vocab_size)
        raise RunFault(f"the disk of {directory.parent} is full: about {byte_size(needed)} more are needed, "
                       f"{byte_size(shutil.disk_usage(directory.parent).free)} are free; free space and run again, "
                       "which continues where this one stopped, or choose another --data_dir") from error
    shutil.rmtree(partial, ignore_errors=True)


def _file_size_limit(error: Exception, directory: pathlib.Path) -> str:
    """Describes the limit on the size of a file that caused `error`, and what to do; "" if another cause is likely."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    limited, text = limit != resource.RLIM_INFINITY, str(error)
    if FILE_TOO_LARGE in text or (limited and NOT_WRITTEN in text and limit < shutil.disk_usage(directory).free):
        return (f"{byte_size(limit)}, the limit of this process for files (ulimit -f); raise it" if limited
                else "its file system allows; choose another --data_dir")
    return ""


def _finish(done: pathlib.Path, parts: list[pathlib.Path], totals: dict[str, dict[str, float]], survey: CorpusScan,
            tokenizer: tokenizers.Tokenizer) -> None:
    """Fills the folder from the parts, whose records it moves, and seals it. It may be repeated after an
    interruption."""
    done.mkdir(exist_ok=True)
    (done / MANIFEST).unlink(missing_ok=True)
    for split in totals:
        token_store.join([part / split for part in parts], done / split, split, tokenizer.size)
    np.save(done / "counts.npy", sum(np.load(part / "counts.npy") for part in parts))
    write_statistics(done, totals, survey.text, tokenizer)
    seal(done, {"layout": LAYOUT})


def write_statistics(done: pathlib.Path, totals: dict[str, dict[str, float]], text: dict[str, int],
                     tokenizer: tokenizers.Tokenizer) -> None:
    """Writes the statistics and the tokenizer. `text` has the counts of anomalies from the scan."""
    content = json.dumps({**totals, "text": text}, indent=2)
    (done / "statistics.json").write_text(content + "\n", encoding="utf8")
    tokenizer.save(done / "tokenizer")


# The parts


def part_of(survey: CorpusScan) -> np.ndarray:
    """Returns the index of each document's part, int64."""
    size = max(PART, -(-int(survey.lengths.sum()) // MAX_PARTS))
    begins = np.cumsum(survey.lengths) - survey.lengths
    return np.unique(begins // size, return_inverse=True)[1]


def _tokenize(parts: list[pathlib.Path], corpus: corpora.Corpus, survey: CorpusScan, tokenizer: tokenizers.Tokenizer,
              keep_whitespace: bool, lines: bool, progress: Progress) -> None:
    first = next((number for number, part in enumerate(parts) if not part.exists()), len(parts))
    if first == len(parts):
        return
    parts[0].parent.mkdir(exist_ok=True)
    part, total = part_of(survey), int(survey.lengths.sum())
    done = int(survey.lengths[part < first].sum())
    if done:
        progress(f"continuing: {scan.describe_amount(done, total)} are tokenized")
    needed, free = bytes_needed(total - done, tokenizer.size), shutil.disk_usage(parts[0].parent).free
    if needed > free:
        progress(f"warning: the token stores need about {byte_size(needed)} more, and {byte_size(free)} are free")
    documents = zip(part, survey.splits, scan.reread(corpus, survey), strict=True)
    skipping = Report("skipping what is tokenized", done, progress)
    for _ in range(np.count_nonzero(part < first)):
        skipping.add(len(next(documents)[2]))
    report = Report("tokenizing", total, progress, done)
    splits = splits_of(survey)
    processes = host.cores() if total - done > SMALL else 0
    with contextlib.closing(tokenize.tokenize_batches(tokenizer, parts[0].parents[1] / "tokenizer", batches(documents),
                                                      processes, keep_whitespace, lines)) as stream:
        for number, tokenized in itertools.groupby(stream, lambda item: item[0].part):
            with unfinished.complete(parts[number]) as temporary:
                before = parts[number - 1] if number else None
                with contextlib.ExitStack() as stack:
                    writers = {split: stack.enter_context(token_store.Writer(
                        temporary / split, split, tokenizer.size, before and before / split, number == len(parts) - 1,
                        tokenizer.characters is not None)) for split in splits}
                    _write(temporary, writers, tokenized, tokenizer.size, report)


def _write(temporary: pathlib.Path, writers: dict[str, token_store.Writer],
           batches: Iterable[tuple[DocumentBatch, Tokenized]], size: int, report: Report) -> None:
    """Writes the stores of a part, and its counts."""
    tallies, counts = {split: Counter() for split in writers}, np.zeros(size, np.int64)
    for batch, tokenized in batches:
        writers[batch.split].add(tokenized.tokens, tokenized.sentences, tokenized.documents, tokenized.unknown)
        tallies[batch.split].update(tokenized.tally)
        if batch.split == "train":
            counts += np.bincount(tokenized.tokens, minlength=size)
        report.add(batch.characters)
    np.save(temporary / "counts.npy", counts)
    (temporary / "tallies.json").write_text(json.dumps(tallies))


def total(tallies: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, dict[str, float]]:
    """Sums the counts of (split, counts) for each split, and adds the rates computed from them."""
    totals: dict[str, Counter[str]] = {}
    for split, counts in tallies:
        totals.setdefault(split, Counter()).update(counts)
    return {split: {**counts, "tokens_per_word": counts["tokens"] / max(1, counts["words"]),
                    "unknown_fraction": counts["unknown"] / max(1, counts["tokens"])}
            for split, counts in totals.items()}


def check_statistics(statistics: dict[str, dict[str, float]], config: tokenizers.Config, progress: Progress) -> None:
    """Raises UserError for splits that no run could use; reports a warning if many tokens are unknown."""
    empty = [name for name, tally in statistics.items() if not tally["sentences"]]
    if empty:
        raise UserError(f"the {empty[0]} split has no text: none of its documents has a token; give the corpus "
                        "more documents, or that split a larger fraction")
    fraction = statistics["train"]["unknown_fraction"]
    line = f"{fraction:.0%} of the corpus's tokens are unknown to {config.vocab_file or 'the trained vocabulary'}"
    larger = "a larger --config.tokenizer.vocab_size leaves fewer unknown"
    if fraction > 0.5:
        if config.vocab_file:
            raise ConfigError(f"{line}: it is not a vocabulary of this language or case",
                              "choose another (--config.tokenizer.vocab_file), or train one (vocab_file='')")
        raise ConfigError(line, larger)
    if fraction > 0.05:
        progress(f"warning: {line}; {'check that it is the right vocabulary' if config.vocab_file else larger}")


def splits_of(survey: CorpusScan) -> list[str]:
    """Lists the splits that have documents, "train" first."""
    return [name for i, name in reversed(list(enumerate(corpora.SPLITS))) if (survey.splits == i).any()]


def batches(documents: Iterable[tuple[int, int, str]], size: int = 0) -> Iterator[DocumentBatch]:
    """Yields batches of about `size` (0: BATCH) characters, made of the (part, split, text) of each document."""
    size = size or BATCH
    for part, group in itertools.groupby(documents, lambda item: item[0]):
        waiting = {split: DocumentBatch(int(part), split, [], 0) for split in corpora.SPLITS}
        for _, i, text in group:
            batch = waiting[corpora.SPLITS[i]]
            batch.texts.append(text)
            batch = batch._replace(characters=batch.characters + len(text))
            if batch.characters >= size:
                yield batch
                batch = batch._replace(texts=[], characters=0)
            waiting[batch.split] = batch
        yield from (batch for batch in waiting.values() if batch.texts)
