"""Checks of the text, a corpus with its splits and stores or labelled examples of a task, and of the tokenizer."""

import dataclasses
import glob
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.input_files import COMPRESSED
from lmrep.core.messages import byte_size
from lmrep.core.remote_cache import local_data_dir
from lmrep.data import corpora, sentences, tokenizers
from lmrep.data.characters import known_ids
from lmrep.data.corpora import files
from lmrep.data.mixture import Sources
from lmrep.data.records import tfds
from lmrep.data.store import token_store
from lmrep.data.store.prepare import bytes_needed, check_statistics, choose_sentences
from lmrep.doctor.findings import MAX_EPOCHS, OK, SKIPPED, WARNING, Result
from lmrep.doctor.machine import disk_space
from lmrep.experiment import build, checks
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment
from lmrep.experiment.data_sets import data_of, read_split, task_of
from lmrep.experiment.inspection import label_statistics
from lmrep.experiment.record import ALL_OBJECTIVES, UNKNOWN_STEPS, Data
from lmrep.experiment.shapes import StageShapes

DOCUMENTS, CHARACTERS = 1000, 5 * 10**7  # read from a corpus at most, besides one document of each file
FILES = 1000  # opened of a corpus at most
EXPANSION = 3  # estimated ratio of text to its compressed size
COUNTS = ("documents", "files")  # entries of a corpus's tally that are not anomalies
TRIED, TRIED_CHARACTERS = 200, 2000  # documents that are tokenized and made into examples, and characters of each
PAIRS = 16  # with fewer examples, pairs may all have the same label
CHARACTERS_PER_TOKEN, CHARACTERS_PER_SENTENCE = 4, 100  # estimates, as in `bytes_needed`
SPAN_BYTES = 20  # of a plan's table, for each sentence: `formats.base.Spans`


def sources(experiment: Experiment | None) -> list[tuple[str, corpora.Config | None]]:
    """Returns (suffix of the names of checks, config) of each corpus of a mixture, or of the only corpus."""
    if experiment is None:
        return [("", None)]
    return [(f" {source.name}" * bool(source.name), source.data) for source in experiment.data_sets()]


class Sample(NamedTuple):
    """The first documents of a corpus."""

    texts: list[str]  # the documents
    complete: bool  # whether they are the full corpus
    characters: int | None  # estimated size of the full corpus; None where it is not known without reading it
    lines: bool  # whether the corpus has one sentence a line


def corpus(data: corpora.Config) -> Result:
    """Checks that the corpus opens, and its first documents and the first of each file are text. Gives a Sample."""
    corpora.check_present(data)  # opening one that is not there would download it
    opened, tally = corpora.open_corpus(data), Counter()
    stream, texts, length = opened.documents(tally), [], 0
    for text in stream:
        texts.append(text)
        length += len(text)
        if len(texts) == DOCUMENTS or length >= CHARACTERS:
            break
    complete = next(stream, None) is None
    paths = [] if complete or not corpora.CORPORA[data.corpus].example else files.find(data.files, data.corpus, "*")
    with ThreadPoolExecutor() as pool:  # remote ones take a while each
        list(pool.map(partial(_begin, data), paths[:: -(-len(paths) // FILES) or 1]))
    anomalies = [f"{n:,} {name.replace('_', ' ')}" for name, n in sorted(tally.items()) if n and name not in COUNTS]
    remark = f"; it has {', '.join(anomalies)}" if anomalies else ""
    data, described = choose_sentences(data, opened)
    lines, remark = data.sentences == "line", f"; sentences: {described}{remark}"
    mark = WARNING if tally["replaced_characters"] or tally["damaged_lines"] else OK
    if complete:
        return Result(f"{opened.description}: {len(texts):,} documents, {length:,} characters{remark}",
                      Sample(texts, True, length, lines), mark)
    sizes = [source.size if source.store else os.path.getsize(source.path) for source in paths]
    characters = sum(size * (EXPANSION if os.path.splitext(source.path)[1] in (*COMPRESSED, ".parquet") else 1)
                     for source, size in zip(paths, sizes, strict=True))
    size = f", {byte_size(sum(sizes))} in {len(paths):,} files that begin with text" if paths else ""
    return Result(f"{opened.description}{size}; the first {len(texts):,} documents are text{remark}",
                  Sample(texts, False, characters or None, lines), mark)


def _begin(data: corpora.Config, source: files.CorpusFile) -> None:
    """Reads the first text of a file."""
    file, tally = dataclasses.replace(data, files=glob.escape(source.path), documents="line"), Counter()
    try:
        next(iter(corpora.open_corpus(file).documents(tally)))
    except UserError:
        if not tally["empty_files"]:  # a corpus of several files skips empty ones
            raise


def splits(data: corpora.Config, experiment: Experiment, sample: Sample) -> Result:
    """Checks that no configured split will be empty."""
    fractions = {"validation": data.validation, "test": data.test}
    if not sample.complete:
        shares = [f"{name} about {fraction:.3g} of the documents" for name, fraction in fractions.items() if fraction]
        return Result(", ".join(["train the rest", *shares]))
    which = corpora.assign(np.array([corpora.hash_position(text) for text in sample.texts], np.uint64), data)
    lengths = np.array([len(text) for text in sample.texts])
    documents = {name: int((which == i).sum()) for i, name in enumerate(corpora.SPLITS)}
    characters = {name: int(lengths[which == i].sum()) for i, name in enumerate(corpora.SPLITS)}
    text = "documents: " + ", ".join(f"{name} {n:,}" for name, n in reversed(documents.items()) if n)
    warnings = [warning] if (warning := corpora.imbalanced(characters, len(which), data)) else []
    tokens = int(sample.characters * documents["train"] / len(which) / CHARACTERS_PER_TOKEN)
    batch = max(stage.batch_size * stage.length for stage in experiments.resolve_stages(experiment))
    if tokens < batch:
        warnings.append(f"train has about {tokens:,} tokens, and a batch {batch:,}: give more text, or lower "
                      "batch_size or length")
    if not fractions["validation"]:
        warnings.append("without data.validation, nothing measures how well a run learns")
    return Result("; ".join([text, *warnings]), mark=WARNING if warnings else OK)


def stores(data_dir: Path, experiment: Experiment, *_: Sample) -> Result:
    """Checks that existing token stores open, and that some of their tokens can be read. The value is the `Data`; None
    where stores will be built, or read where they are."""
    checks.check_writable(local_data_dir(data_dir), "data_dir")
    try:
        data = build.existing(experiment, data_dir)
    except build.NotBuilt as error:
        if " is damaged: " in str(error):
            return Result(str(error).replace("; building it again", "; the run will build it again"), None, WARNING)
        if str(error).startswith("downloading "):
            return Result(f"in {data_dir}; the run will read it there, with a copy of its index in "
                          f"{local_data_dir(data_dir)}", None)
        return Result(f"not built yet; the run will build it in {local_data_dir(data_dir)}", None)
    for split in data.splits.values():
        for store in split.stores if isinstance(split, Sources) else (split,):
            _check_ids(store, data)
    tokens = ", ".join(f"{split} {statistics['tokens']:,}" for split, statistics in data.corpus.statistics.items())
    return Result(f"built in {local_data_dir(data_dir)}; tokens: {tokens}", data)


def epochs(experiment: Experiment, data: Data | None, *samples: Sample) -> Result:
    """Checks that the run does not read its text more than `MAX_EPOCHS` times."""
    if experiment.steps == UNKNOWN_STEPS:
        return Result(f"not counted: budget={experiment.budget} decides the steps when the run starts", mark=SKIPPED)
    tokens_read = sum(stage.steps * stage.batch_size * stage.length for stage in experiments.resolve_stages(experiment))
    if data:
        about, tokens = "", data.corpus.statistics["train"]["tokens"]
    elif any(sample.characters is None for sample in samples):
        return Result("not counted: the size of the corpus is not known before it is read", mark=SKIPPED)
    else:
        about, tokens = "about ", sum(
            sample.characters * (1 - part.data.validation - part.data.test) / CHARACTERS_PER_TOKEN
            for sample, part in zip(samples, experiment.data_sets(), strict=True))
    passes = tokens_read / max(1, tokens)
    text = (f"{experiment.steps:,} steps read {tokens_read:,} tokens: {about}{passes:,.1f} times the "
            f"{about}{tokens:,.0f} of the train split")
    if passes > MAX_EPOCHS:
        return Result(f"{text}; a network learns such a text by heart: give more text, or lower steps", mark=WARNING)
    return Result(text)


def _check_ids(store: token_store.Store, data: Data) -> None:
    """Reads the first, the last and some other tokens. Raises UserError for ids that the tokenizer does not have."""
    positions = np.random.default_rng(0).integers(0, max(store.tokens, 1), 16)
    ids = store.take(np.array([*positions, 0, store.tokens - 1] if store.tokens else [], np.int64))
    if ids.size and ids.max() >= data.tokenizer.size:
        raise UserError(f"the {store.split} store in {data.corpus.directory} has the id {ids.max():,}, and its "
                        f"tokenizer {data.tokenizer.size:,} tokens; delete that directory, and the next run rebuilds "
                        "it")


def tokenizer(experiment: Experiment, data: Data | None) -> Result:
    """Checks that the tokenizer loads or can be trained, and fits the model's embedding table. The value is the
    tokenizer; None if it is not trained yet."""
    config = experiment.tokenizer
    network = experiments.build_model(experiment, tokenizers.known_size(config))  # its table can hold the vocabulary
    rows = experiments.model_config(experiment.model, tokenizers.size(config)).vocab
    table = f"the model's embedding table has {rows:,} rows"
    if data is None and not config.vocab_file:
        return Result(f"{config.name} with {config.vocab_size:,} tokens, to be trained; {table}", None)
    loaded = data.tokenizer if data else tokenizers.from_vocab_file(config)
    capabilities = ALL_OBJECTIVES[experiments.resolve_stages(experiment)[-1].objective_name].capabilities
    checks.check_samples(experiment.samples, capabilities, loaded, network.max_length)
    roles = ", ".join(f"{loaded.specials[role]} {i}" for role, i in loaded.vocabulary.specials.items())
    return Result(f"{loaded.name} with {loaded.size:,} tokens ({roles}); {table}", loaded)


def examples(
    experiment: Experiment, loaded: tokenizers.Tokenizer | None, stages: list[StageShapes], *samples: Sample
) -> Result:
    """Checks that the sampled documents can be tokenized, and become examples of every stage's format."""
    if loaded is None:
        return Result("the tokenizer is not trained yet; the text is checked when it is", None, SKIPPED)
    split = sentences.split_verbatim if tokenizers.keeps_whitespace(experiment.tokenizer) else sentences.split
    documents = [split(text[:TRIED_CHARACTERS], sample.lines) for sample in samples for text in sample.texts[:TRIED]]
    ids = [loaded.encode_batch(document) for document in documents]
    stream = np.concatenate([x for document in ids for x in document])
    if stream.size and stream.max() >= loaded.size and loaded.characters is None:
        raise UserError(f"the tokenizer gives the id {stream.max():,}, and has {loaded.size:,}; its files are of "
                        "different tokenizers: give the files of one")
    unknown, warnings = float((known_ids(stream, loaded.vocabulary) == loaded.vocabulary.unknown).mean()), []
    with tempfile.TemporaryDirectory() as directory:
        store = token_store.write(Path(directory) / "store", ids, loaded.vocabulary)
        for stage in stages:
            plan = build.plan(stage.fields, store, experiment.seed, Path(directory))
            plan.gather(np.zeros(1, np.int64))
            paired = "pair_label" in ALL_OBJECTIVES[stage.fields.objective_name].batch_fields(stage.fields.objective)
            if paired and plan.examples >= PAIRS:
                try:
                    build.check_pairs(plan, stage.fields.objective_name, stage.fields.format_name)
                except UserError as error:
                    warnings.append(str(error))
    statistics = {"train": {"sentences": stream.size, "unknown_fraction": unknown}}
    check_statistics(statistics, experiment.tokenizer, warnings.append)
    text = f"{1 - unknown:.2%} of {stream.size:,} tokens of {len(documents):,} documents are in the vocabulary"
    return Result("; ".join([text, *warnings]), True, WARNING if warnings else OK)


def disk_space_for(
    data_dir: Path, experiment: Experiment, _: tokenizers.Tokenizer | None, data: Data | None,
    taken: Mapping[int, int] | None, *samples: Sample,
) -> Result:
    """Checks that token stores and tables of examples that are not built yet fit on the data directory's disk."""
    if data is None and any(sample.characters is None for sample in samples):
        return Result("the size of the corpus, and so of its store, is not known before it is read", mark=WARNING)
    plans = len(experiments.resolve_stages(experiment)) * SPAN_BYTES  # per sentence
    if data:
        needed = sum(split["sentences"] for split in data.corpus.statistics.values()) * plans
        return disk_space("tables of examples need about", data_dir, needed, taken or {}, "--data_dir")
    characters = sum(sample.characters for sample in samples)
    needed = (bytes_needed(characters, tokenizers.size(experiment.tokenizer))
              + characters // CHARACTERS_PER_SENTENCE * plans)
    return disk_space("token stores and tables of examples need about", data_dir, needed, taken or {}, "--data_dir")


# Labelled examples


def labelled_examples(experiment: Experiment) -> Result:
    """Checks that every split can be read and tokenized, and has the fields of the task. The value is the `Data`."""
    for data in data_of(experiment).values():
        tfds.check_present(data)
    prepared = build.prepare_data(experiment, Path())  # nothing is stored
    counts = ", ".join(f"{split} {len(records):,}" for split, records in prepared.records.items())
    steps = prepared.experiment.steps
    if sources := label_statistics(prepared)["train"].get("sources"):
        counts += " of " + ", ".join(f"{name} ({source['fraction']:.1%})" for name, source in sources.items())
    text = f"{counts}; at most {max(store.length for store in prepared.splits.values()):,} tokens; {steps:,} steps"
    if "validation" not in prepared.splits:
        return Result(f"{text}; without data.validation, nothing measures how well a run learns", prepared, WARNING)
    return Result(text, prepared, OK)


def evaluation_files(files: str, experiment: Experiment, prepared: Data) -> Result:
    """Checks that files for `lmrep evaluate` can be read, and have the fields of the task."""
    task, config = task_of(experiment), experiments.resolve_stages(prepared.experiment)[0].objective
    records = read_split(experiment, "test", files=files)
    for record in records:
        task.check(config, record)
    return Result(f"{files}: {len(records):,} examples")
