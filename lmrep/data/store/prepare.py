"""From a corpus and a tokenizer's config to token stores on disk, made once and found again.

What is made lies in one folder of the data directory, named by a fingerprint of all that decides its content:

    <corpus>-<fingerprint>/
        tokenizer/                    its pieces, tokenizer.json, tokenizer_config.json
        train/ validation/ test/      one token store a split that was asked for (`store.py`)
        counts.npy                    int64[v], how often each id occurs in the train split
        statistics.json               what `lmrep inspect` shows

It is made beside its place, in <corpus>-<fingerprint>.partial, with a lock held. There the tokenizer comes first and
then the corpus, part by part; each is renamed into place when it is whole, so that whoever comes after a process that
was killed, or that found the disk full, goes on behind the last whole part. At the end the parts' files are moved
together, and one rename puts the whole where it belongs. Nothing of it depends on how often that was interrupted or on
how many processes tokenized.
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
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.data import corpora, sentences, tokenizers
from lmrep.data.store import scan, token_store, tokenize
from lmrep.data.store.scan import CorpusScan, Progress, Report
from lmrep.data.store.tokenize import Batch, Tokenized

LAYOUT = 1  # of the folder; raise it when a change makes older ones unreadable
PART = 2**25  # characters of a part, which is what a killed process loses at most
MOST_PARTS = 128  # a part is a file of each split: parts of a corpus that would have more are larger
BATCH = 2**18  # characters that a process tokenizes at once
SMALL = 2**22  # characters of a corpus that is not worth starting processes for


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training.

    Attributes:
      tokenizer: trained on the train split or loaded; its vocabulary carries the train split's counts.
      stores: {split: store}, for "train" and for "validation" and "test" where their share is above 0.
      statistics: {split: {documents, sentences, tokens, characters, words, unknown, long_words, tokens_per_word,
        unknown_share}}; words are what white space separates, unknown counts [UNK], long_words those of more than
        1,000 characters.
      directory: where it lies.
      text: what was odd about the text and how often, such as bytes that are not UTF-8; without what did not occur.
    """

    tokenizer: tokenizers.Tokenizer
    stores: dict[str, token_store.Store]
    statistics: dict[str, dict[str, float]]
    directory: pathlib.Path
    text: dict[str, int] = field(default_factory=dict)


def prepare(data: corpora.Config, tokenizer: tokenizers.Config, data_dir: str | pathlib.Path,
            progress: Progress | None = None) -> Prepared:
    """Opens the stores of a corpus under a tokenizer, and makes them first where they are missing.

    All cores tokenize. It holds a few hundred megabytes, and 17 bytes a document. Killed, it goes on where it stopped
    when it is called again. `progress` is called with lines that tell a person what takes long. Two processes that
    need the same stores build them once: the second waits.

    Raises UserError for a corpus, a vocabulary or a data directory that will not do, RunFault where the disk fills
    up, the corpus changes meanwhile or a tokenizing process dies.
    """
    progress = progress or (lambda line: None)
    corpus = corpora.open_corpus(data)
    loaded = tokenizers.from_vocab_file(tokenizer) if tokenizer.vocab_file else None
    keep = tokenizers.keeps_whitespace(tokenizer)
    cut = dataclasses.replace(tokenizer, vocab_file="", whitespace="") if loaded is None else loaded.fingerprint
    facts = [LAYOUT, token_store.RECORD, corpus.fingerprint(), data.validation, data.test, sentences.VERSION,
             tokenizers.TOKENIZERS[tokenizer.name].rules, keep, repr(cut)]
    content = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    directory = _local(data_dir) / f"{corpus.name}-{content[:16]}"
    if not directory.exists():
        progress(f"reading {corpus.description}")
        survey = scan.survey(corpus, data, progress)  # finds what is wrong before anything is written
        if odd := scan.describe_anomalies(survey.text):
            progress(f"in the text: {odd}")
        with _locked(directory, progress):
            if not directory.exists():
                _build(directory, content, corpus, survey, tokenizer, loaded, progress)
    return _open(directory, content, data.damaged_records)


def bytes_needed(characters: int, vocabulary_size: int) -> int:
    """About how much disk the stores of a text take, with four characters a token and a hundred a sentence."""
    return int(characters * (token_store.dtype(vocabulary_size).itemsize / 4 + 2 * 8 / 100)) + 2**20


def _local(data_dir: str | pathlib.Path) -> pathlib.Path:
    if remote := re.match(r"[a-z0-9]{2,}:/", str(data_dir)):
        raise UserError(f"the data directory {data_dir} is remote ({remote[0]}/), and token stores are mapped into "
                        "memory; choose one on a disk of this machine with --data_dir (the corpus may be remote)")
    return pathlib.Path(data_dir).expanduser()


def _open(directory: pathlib.Path, content: str, damaged_records: int) -> Prepared:
    """What lies in a complete folder."""
    try:
        statistics = json.loads((directory / "statistics.json").read_text(encoding="utf8"))
        text = statistics.pop("text", {})
        tokenizer = tokenizers.load(directory / "tokenizer").with_counts(np.load(directory / "counts.npy"))
        names = {split: hashlib.sha256(f"{content} {tokenizer.fingerprint} {split}".encode()).hexdigest()
                 for split in statistics}
        stores = {split: token_store.Store(directory / split, split, tokenizer.vocabulary, name,
                                     damaged_records=damaged_records) for split, name in names.items()}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the token store at {directory} is damaged: {error}; delete that directory, and the next run "
                        "builds it anew") from error
    return Prepared(tokenizer, stores, statistics, directory, text)


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


# The folder


def _build(directory: pathlib.Path, content: str, corpus: corpora.Corpus, survey: CorpusScan, config: tokenizers.Config,
           tokenizer: tokenizers.Tokenizer | None, progress: Progress) -> None:
    """Makes the folder beside its place, going on with what is there already, and moves it there."""
    partial, keep = directory.with_name(directory.name + ".partial"), tokenizers.keeps_whitespace(config)
    key = json.dumps([content, PART, MOST_PARTS, importlib.metadata.version("tokenizers")])
    parts: list[pathlib.Path] = []
    try:
        if not (partial / "key.json").exists() or (partial / "key.json").read_text() != key:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            (partial / "key.json").write_text(key)
        with _whole(partial / "tokenizer") as making:
            if making:
                if tokenizer is None:
                    progress(f"training a tokenizer of {config.vocab_size:,} pieces")
                    budget, passes = min(survey.characters("train"), scan.TRAINING_SAMPLE), itertools.count(1)
                    tokenizer = tokenizers.train(config, lambda: scan.sample(corpus, survey, budget, keep, Report(
                        f"reading for the tokenizer, pass {next(passes)}", int(survey.lengths.sum()), progress)))
                tokenizer.save(making)
        tokenizer = tokenizers.load(partial / "tokenizer")
        parts = [partial / "parts" / f"{number:05}" for number in range(_part_of(survey)[-1] + 1)]
        _tokenize(parts, corpus, survey, tokenizer, keep, progress)
        statistics = _statistics(parts)
        check(statistics, config, progress)
        with _whole(partial / "done", keep=True) as done:
            if done:
                _finish(done, parts, statistics, survey, tokenizer)
        (partial / "done").rename(directory)
    except UserError:
        if all(part.exists() for part in parts):  # nothing is tokenized yet, or all is and will not do
            shutil.rmtree(partial, ignore_errors=True)
        raise
    except (OSError, RuntimeError) as error:  # ArrayRecord says it with a RuntimeError
        if not any(sign in str(error) for sign in ("No space left", "quota exceeded")):
            raise
        left = survey.lengths[_part_of(survey) >= sum(part.exists() for part in parts)].sum()
        needed = bytes_needed(left, tokenizer.size if tokenizer else config.vocab_size)
        raise RunFault(f"the disk of {directory.parent} is full: about {needed / 1e6:,.1f} MB more are needed, "
                       f"{shutil.disk_usage(directory.parent).free / 1e6:,.1f} MB are free; free space and run again, "
                       "which goes on where this stopped, or choose another --data_dir") from error
    shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _whole(path: pathlib.Path, keep: bool = False) -> Iterator[pathlib.Path | None]:
    """Gives a folder to fill, which becomes `path` when that ends without an error; None where `path` is there. With
    `keep`, it still holds what was put into it before an interruption."""
    making = path.with_name(path.name + ".making")
    if path.exists():
        yield None
        return
    if not keep:
        shutil.rmtree(making, ignore_errors=True)
    making.mkdir(exist_ok=True)
    try:
        yield making
        for file in making.rglob("*"):  # when power fails, no name may be left without its content
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        making.rename(path)
    except BaseException:
        if not keep:
            shutil.rmtree(making, ignore_errors=True)
        raise


def _finish(done: pathlib.Path, parts: list[pathlib.Path], statistics: dict[str, dict[str, float]], survey: CorpusScan,
            tokenizer: tokenizers.Tokenizer) -> None:
    """Fills the folder from the parts, whose records it moves; what was begun before is done over."""
    for split in statistics:
        token_store.join([part / split for part in parts], done / split, split, tokenizer.size)
    np.save(done / "counts.npy", sum(np.load(part / "counts.npy") for part in parts))
    text = json.dumps({**statistics, "text": survey.text}, indent=2)
    (done / "statistics.json").write_text(text + "\n", encoding="utf8")
    tokenizer.save(done / "tokenizer")


# The parts


def _part_of(survey: CorpusScan) -> np.ndarray:
    """The number of the part that each document is in, int64."""
    size = max(PART, -(-int(survey.lengths.sum()) // MOST_PARTS))
    begins = np.cumsum(survey.lengths) - survey.lengths
    return np.unique(begins // size, return_inverse=True)[1]


def _tokenize(parts: list[pathlib.Path], corpus: corpora.Corpus, survey: CorpusScan, tokenizer: tokenizers.Tokenizer,
              keep: bool, progress: Progress) -> None:
    """Writes the parts that are missing, in order."""
    first = next((number for number, part in enumerate(parts) if not part.exists()), len(parts))
    if first == len(parts):
        return
    parts[0].parent.mkdir(exist_ok=True)
    part_of, total = _part_of(survey), int(survey.lengths.sum())
    done = int(survey.lengths[part_of < first].sum())
    if done:
        progress(f"going on where it stopped: {done / 1e6:,.1f} of {total / 1e6:,.1f} million characters are tokenized")
    needed, free = bytes_needed(total - done, tokenizer.size), shutil.disk_usage(parts[0].parent).free
    if needed > free:
        progress(f"warning: the token stores need about {needed / 1e6:,.1f} MB more, and {free / 1e6:,.1f} MB are free")
    documents = zip(part_of, survey.splits, scan.again(corpus, survey), strict=True)
    skipping = Report("reading what is tokenized", done, progress)
    for _ in range(np.count_nonzero(part_of < first)):
        skipping.add(len(next(documents)[2]))
    report = Report("tokenizing", total, progress, done)
    splits = [name for i, name in reversed(list(enumerate(corpora.SPLITS))) if (survey.splits == i).any()]
    processes = tokenize.cores() if total - done > SMALL else 0
    with contextlib.closing(tokenize.tokenize_batches(tokenizer, parts[0].parents[1] / "tokenizer", _batches(documents),
                                                    processes, keep)) as stream:
        for number, found in itertools.groupby(stream, lambda each: each[0].part):
            with _whole(parts[number]) as making:
                before = parts[number - 1] if number else None
                with contextlib.ExitStack() as stack:
                    writers = {split: stack.enter_context(token_store.Writer(
                        making / split, split, tokenizer.size, before and before / split, number == len(parts) - 1))
                        for split in splits}
                    _write(making, writers, found, tokenizer.size, report)


def _write(making: pathlib.Path, writers: dict[str, token_store.Writer], found: Iterable[tuple[Batch, Tokenized]],
           size: int, report: Report) -> None:
    """Fills the stores of a part, and writes what is counted in it."""
    tallies, counts = {split: Counter() for split in writers}, np.zeros(size, np.int64)
    for batch, ids in found:
        writers[batch.split].add(ids.tokens, ids.sentences, ids.documents)
        words, unknown, long = ids.tally.tolist()
        tallies[batch.split].update(documents=len(ids.documents), sentences=len(ids.sentences), tokens=len(ids.tokens),
                                    characters=batch.characters, words=words, unknown=unknown, long_words=long)
        if batch.split == "train":
            counts += np.bincount(ids.tokens, minlength=size)
        report.add(batch.characters)
    np.save(making / "counts.npy", counts)
    (making / "tallies.json").write_text(json.dumps(tallies))


def _batches(documents: Iterable[tuple[int, int, str]]) -> Iterator[Batch]:
    """Documents, each with its part and its split, in lists of about BATCH characters of the same part and split."""
    for part, group in itertools.groupby(documents, lambda each: each[0]):
        waiting = {split: Batch(int(part), split, [], 0) for split in corpora.SPLITS}
        for _, i, text in group:
            batch = waiting[corpora.SPLITS[i]]
            batch.texts.append(text)
            batch = batch._replace(characters=batch.characters + len(text))
            if batch.characters >= BATCH:
                yield batch
                batch = batch._replace(texts=[], characters=0)
            waiting[batch.split] = batch
        yield from (batch for batch in waiting.values() if batch.texts)


def _statistics(parts: list[pathlib.Path]) -> dict[str, dict[str, float]]:
    tallies: dict[str, Counter[str]] = {}
    for part in parts:
        for split, tally in json.loads((part / "tallies.json").read_text()).items():
            tallies.setdefault(split, Counter()).update(tally)
    return {split: {**tally, "tokens_per_word": tally["tokens"] / max(1, tally["words"]),
                    "unknown_share": tally["unknown"] / max(1, tally["tokens"])} for split, tally in tallies.items()}


def check(statistics: dict[str, dict[str, float]], config: tokenizers.Config, progress: Progress) -> None:
    """Refuses stores that no run could use."""
    empty = [name for name, tally in statistics.items() if not tally["sentences"]]
    if empty:
        raise UserError(f"the {empty[0]} split has no text: not one of its documents gives a token; give the corpus "
                        "more documents, or that split a larger share")
    share = statistics["train"]["unknown_share"]
    line = f"{share:.0%} of the corpus is [UNK] to {config.vocab_file or 'the trained vocabulary'}"
    if share > 0.5:
        raise UserError(f"{line}: it is not a vocabulary of this language or case; choose another to train with "
                        "(--config.tokenizer.vocab_file), or have one trained (vocab_file='')")
    if share > 0.05:
        progress(f"warning: {line}; is that the vocabulary you meant?")
