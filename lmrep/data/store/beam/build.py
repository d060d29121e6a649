"""Builds token stores with pipelines on Apache Beam."""

import itertools
import json
import pathlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.core.files import MANIFEST, digest, file_hashes, signed
from lmrep.core.sealed_cache import find_damage
from lmrep.data import corpora, tokenizers
from lmrep.data.store import prepare, scan, token_store
from lmrep.data.store.beam import runner as runners
from lmrep.data.store.beam import workers
from lmrep.data.store.beam.folder import Folder, transfer
from lmrep.data.store.beam.runner import Runner
from lmrep.data.store.beam.workers import File, Tokens, reader_file
from lmrep.data.store.scan import CorpusScan, Progress

BLOCK = 2**24  # characters that are tokenized at a time into one file
SUFFIX = ".beam"  # of the folder of an unfinished build


def build(data: corpora.Config, tokenizer: tokenizers.Config, data_dir: str | pathlib.Path, runner: Runner,
          progress: Progress | None = None) -> tuple[str, dict[str, dict[str, float]]]:
    """Builds the stores of `prepare_corpus` on Apache Beam, if they are missing, and in `data_dir` itself if that is
    remote. Opens nothing.

    Returns:
      (the folder or URL of the stores, the statistics of their splits).

    Raises:
      UserError: the corpus, the vocabulary or the data directory cannot be used, or workers cannot see them.
      RunFault: a pipeline failed, or the corpus changed during the build.
    """
    progress = progress or (lambda line: None)
    if tokenizers.TOKENIZERS[tokenizer.name].characters:
        raise UserError(f"stores of tokenizer.name={tokenizer.name} cannot be built on {runner.name}, since they hold "
                        "the words outside of the vocabulary; build them on one machine, without --runner")
    if not runner.local and remote.as_url(data_dir) is None:
        raise UserError(f"--data_dir is {data_dir}, on this machine, where the workers of {runner.name} cannot write; "
                        "give an object store, such as --data_dir=gs://bucket/data")
    # A TFDS dataset may itself be built by a Beam pipeline. TFDS writes ArrayRecord to local disks alone.
    if runner.local:
        corpora.CORPORA[data.corpus].prepare_files(data, runners.create(runner), runners.make_options(runner))
    else:
        corpora.check_present(data)
    corpus = corpora.open_corpus(data)
    data, described = prepare.choose_sentences(data, corpus)
    if not runner.local:
        workers.check_readable(corpus.readers, runner.name)
    loaded = tokenizers.from_vocab_file(tokenizer) if tokenizer.vocab_file else None
    content = prepare.fingerprint(corpus, data, tokenizer, loaded)
    name, url = f"{corpus.name}-{content[:16]}", remote.as_url(data_dir)
    build_here = partial(_build, content=content, corpus=corpus, data=data, config=tokenizer, loaded=loaded,
                         described=described, runner=runner, progress=progress)
    if url:
        target = Folder(f"{url}/{name}")
        with remote.user_errors(target.path):
            if target.read(MANIFEST) is None:
                build_here(Folder(target.path + SUFFIX), target)
            saved = target.read("statistics.json")
    else:
        directory = pathlib.Path(data_dir).absolute() / name
        if find_damage(directory):
            with prepare.locked(directory, progress):
                if find_damage(directory):  # not if another process has built it
                    prepare.remove_damaged(directory)
                    work = Folder(str(directory) + SUFFIX)
                    build_here(work, work / "done")
                    pathlib.Path(work.path, "done").rename(directory)
                    work.remove()
        saved, target = (directory / "statistics.json").read_bytes(), Folder(str(directory))
    totals = json.loads(saved)
    totals.pop("text", None)
    return target.path, totals


def _build(work: Folder, done: Folder, content: str, corpus: corpora.Corpus, data: corpora.Config,
           config: tokenizers.Config, loaded: tokenizers.Tokenizer | None, described: str, runner: Runner,
           progress: Progress) -> None:
    """Fills the folder `done`, with the manifest last, continuing an unfinished build in `work`."""
    key = json.dumps([prepare.build_key(content), BLOCK])
    if work.read("key.json") != key.encode():
        work.remove()
        work.write("key.json", key.encode())
    progress(f"reading {corpus.description}; sentences {described}")
    pipelines = Pipelines(corpus, work, runner, progress)
    survey = pipelines.survey(data)
    if anomalies := scan.describe_anomalies(survey.text):
        progress(f"in the text: {anomalies}")
    keep_whitespace = tokenizers.keeps_whitespace(config)
    tokenizer = pipelines.tokenizer(survey, config, keep_whitespace, loaded)
    tokenized = pipelines.tokenize(survey, tokenizer, keep_whitespace, data.sentences == "line")
    splits = prepare.splits_of(survey)
    totals = prepare.total(
        (split, block.tally) for split in splits for block in tokenized if block.split == split)
    try:
        prepare.check_statistics(totals, config, progress)
    except UserError:
        work.remove()
        raise
    files = pipelines.write(done, splits, tokenized, tokenizer.size)
    _finish(done, work, files, tokenized, totals, survey, tokenizer)
    if work.path != done.path.removesuffix("/done"):
        work.remove()


def _finish(done: Folder, work: Folder, files: list[File], tokenized: list[Tokens], totals: dict[str, dict[str, float]],
            survey: CorpusScan, tokenizer: tokenizers.Tokenizer) -> None:
    """Writes the small files of the store, and then its manifest."""
    parts = int(prepare.part_of(survey)[-1]) + 1
    with work.temporary() as temporary:
        for split in totals:
            (temporary / split).mkdir()
            tokens = workers.tokens_of_parts((block for block in tokenized if block.split == split), parts)
            shards = [records for records in token_store.records_of_parts(tokens) if records]
            size = sum(file.size for file in files if file.name.startswith(f"{split}/tokens-"))
            token_store.write_info(temporary / split, split, tokenizer.size, shards, size)
        np.save(temporary / "counts.npy", np.frombuffer(work.read("counts"), np.int64))
        prepare.write_statistics(temporary, totals, survey.text, tokenizer)
        hashes = file_hashes(temporary) | {file.name: [file.size, file.sha256] for file in files}
        for path in [path for path in temporary.rglob("*") if path.is_file()]:
            done.put(path, str(path.relative_to(temporary)))
    ordered = {name: hashes[name] for name in sorted(hashes, key=pathlib.PurePath)}
    manifest = signed({"layout": prepare.LAYOUT, "files": ordered})
    done.write(MANIFEST, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


class Pipelines:
    """The pipelines of a build. One that an earlier build completed returns the result of that build.

    Args:
      corpus: the corpus to tokenize.
      work: the folder that the workers share.
      runner: the runner of the pipelines.
      progress: called with lines for people.
    """

    def __init__(self, corpus: corpora.Corpus, work: Folder, runner: Runner, progress: Progress):
        self.corpus, self.work, self.runner, self.progress = corpus, work, runner, progress
        self._readers = list(enumerate(corpus.readers))
        self._documents: list[int] = []  # of each reader

    def survey(self, data: corpora.Config) -> CorpusScan:
        """Makes the first pass over the corpus, as `scan.survey`."""
        scans = self._once("scan.json", lambda name: self._map(
            "reading", self._readers, partial(workers.measure, work=self.work), name))
        self._documents = [documents for _, documents, _ in sorted(scans)]
        tally = sum((Counter(counts) for *_, counts in scans), Counter())
        if not any(self._documents):
            raise UserError(self.corpus.empty_message)
        if tally["damaged_lines"] > data.damaged_lines:
            raise UserError(f"{self.corpus.description}: {tally['damaged_lines']:,} lines are not JSON or lack the "
                            f"text, more than data.damaged_lines={data.damaged_lines}; correct them, or raise that")

        def measured(reader: int) -> tuple[np.ndarray, np.ndarray]:
            with self.work.arrays(reader_file("scan", reader)) as arrays:
                return arrays["positions"], arrays["lengths"]

        positions, lengths = zip(*transfer(measured, range(len(self._readers))), strict=True)
        return scan.from_measured(np.concatenate(positions), np.concatenate(lengths), tally, data)

    def _plan(self, survey: CorpusScan, repeats: np.ndarray | None = None) -> None:
        """Writes for each reader the splits, parts and repeats of its documents."""
        arrays = {"positions": survey.positions, "splits": survey.splits, "parts": prepare.part_of(survey)}
        arrays |= {} if repeats is None else {"repeats": repeats}
        ends = list(itertools.accumulate(self._documents, initial=0))
        transfer(lambda number: self.work.save(reader_file("plan", number), **{
            name: array[ends[number] : ends[number + 1]] for name, array in arrays.items()}), range(len(self._readers)))

    def sample(self, survey: CorpusScan, budget: float, keep_whitespace: bool) -> Callable[[], Iterator[str]]:
        """Returns a function that streams the lines of `scan.sample`."""
        times = scan.repeats(survey, budget)

        def run(name: str) -> Any:
            self._plan(survey, times)
            return self._map("sampling text for the tokenizer", self._readers,
                             partial(workers.sample, work=self.work), name)

        self._once("sample.json", run)

        def lines() -> Iterator[str]:
            selected = iter(times[times > 0])
            for number, _ in self._readers:
                for text in json.loads(self.work.read(reader_file("sample", number))):
                    for _ in range(next(selected)):
                        yield from scan.lines(text, keep_whitespace)

        return lines

    def tokenizer(self, survey: CorpusScan, config: tokenizers.Config, keep_whitespace: bool,
                  loaded: tokenizers.Tokenizer | None) -> tokenizers.Tokenizer:
        """Loads or trains the tokenizer, and writes it for the workers."""
        key = self.work.read("tokenizer.json")
        if key is None:
            tokenizer = loaded
            if tokenizer is None:
                budget = min(survey.characters("train"), scan.TRAINING_SAMPLE)
                lines = self.sample(survey, budget, keep_whitespace)
                self.progress(f"training a tokenizer of {config.vocab_size:,} tokens")
                tokenizer = tokenizers.train(config, lines)
            with tempfile.TemporaryDirectory() as temporary:
                tokenizer.save(temporary)
                for path in [path for path in pathlib.Path(temporary).rglob("*") if path.is_file()]:
                    self.work.write(f"tokenizer/{path.relative_to(temporary)}", path.read_bytes())
            self.work.write("tokenizer.json", json.dumps(tokenizer.fingerprint).encode())
        return workers.load_tokenizer(self.work, self._tokenizer_key())

    def _tokenizer_key(self) -> str:
        return digest([self.work.path, self.work.read("tokenizer.json").decode()])

    def tokenize(self, survey: CorpusScan, tokenizer: tokenizers.Tokenizer, keep_whitespace: bool,
                 lines: bool) -> list[Tokens]:
        """Tokenizes the corpus into files, one for each block, and returns the blocks."""
        import apache_beam as beam

        def construct(pipeline: Any, name: str) -> None:
            blocks = (pipeline | beam.Create(self._readers) | beam.Reshuffle()
                      | beam.FlatMap(workers.blocks, work=self.work, size=BLOCK))
            if not self.runner.local:  # which would hold the whole text in memory
                blocks |= "distribute" >> beam.Reshuffle()
            tokenized = blocks | beam.Map(workers.tokenize_block, work=self.work, keep_whitespace=keep_whitespace,
                                          lines=lines, key=self._tokenizer_key(), alone=self.runner.alone)
            counts = tokenized | beam.Values() | beam.CombineGlobally(workers.sum_counts)
            _ = (tokenized | beam.Keys() | beam.combiners.ToList()
                 | "write" >> beam.Map(write_tokens, beam.pvalue.AsSingleton(counts), work=self.work, name=name))

        def run(name: str) -> Any:
            self._plan(survey)
            runners.run(self.runner, "tokenizing", partial(construct, name=name), self.progress)

        return [Tokens(*row) for row in self._once("tokens.json", run)]

    def write(self, done: Folder, splits: list[str], tokenized: list[Tokens], size: int) -> list[File]:
        """Writes the records and indices to `done`."""
        parts = 1 + max(block.part for block in tokenized)
        shards = [(split, part) for split in splits for part, records in enumerate(token_store.records_of_parts(
            workers.tokens_of_parts((block for block in tokenized if block.split == split), parts))) if records]
        indices = list(itertools.product(splits, token_store.INDICES))
        work = partial(_write, work=self.work, done=done, parts=parts, size=size)
        files = self._once("files.json", lambda name: self._map("writing records", [*shards, *indices], work, name))
        return [File(*row) for row in files]

    def _once(self, name: str, run: Callable[[str], Any]) -> Any:
        """Returns the JSON of the file `name`, which `run(name)` writes at its end if no earlier build did."""
        content = self.work.read(name)
        if content is None:
            run(name)
            content = self.work.read(name)
        return json.loads(content)

    def _map(self, what: str, items: list[Any], function: Callable[[Any], Any], name: str) -> None:
        """Runs a pipeline that writes the results of `function` for all items to the file `name`."""
        import apache_beam as beam

        def construct(pipeline: Any) -> None:
            _ = (pipeline | beam.Create(items) | beam.Reshuffle() | beam.Map(_call, function=function)
                 | beam.combiners.ToList() | "write" >> beam.Map(write_results, work=self.work, name=name))

        runners.run(self.runner, what, construct, self.progress)


def _call(item: Any, function: Callable[[Any], Any]) -> Any:
    return function(item)


def _write(item: tuple[str, int | str], work: Folder, done: Folder, parts: int, size: int) -> File:
    if isinstance(item[1], int):
        return workers.write_shard(item, work, done, parts, size)
    return workers.write_index(item, work, done)


def write_results(results: list[Any], work: Folder, name: str) -> None:
    """Writes the results of all workers, sorted."""
    results = sorted(results, key=lambda result: result if isinstance(result, int) else result[0])
    work.write(name, json.dumps(results).encode())


def write_tokens(blocks: list[Tokens], counts: bytes, work: Folder, name: str) -> None:
    """Writes the descriptions of all blocks, and the counts of ids."""
    work.write("counts", counts)
    work.write(name, json.dumps(sorted(blocks, key=lambda block: block[:4])).encode())
