"""Checks of the corpus, its splits and stores, and the tokenizer."""

import dataclasses
import glob
import os
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data import corpora, sentences, tokenizers
from lmrep.data.corpora import files
from lmrep.data.mixture import Sources
from lmrep.data.store import prepare, token_store
from lmrep.data.store.prepare import Prepared, bytes_needed
from lmrep.doctor.findings import OK, SKIPPED, WARNING, Seen, gigabytes
from lmrep.doctor.machine import Part, Taken, room
from lmrep.experiment import build, checks
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment

DOCUMENTS, CHARACTERS = 1000, 5 * 10**7  # of a corpus that are read, at most, beside one document of each file
FILES = 1000  # of a corpus that are opened, at most
EXPANSION = 3  # of compressed text, about
COUNTS = ("documents", "files")  # of a corpus's tally that are nothing odd
TRIED, TRIED_CHARACTERS = 200, 2000  # documents that are tokenized and laid out, and of each how much
CHARACTERS_A_TOKEN, CHARACTERS_A_SENTENCE = 4, 100  # about, as `bytes_needed` has it
SPAN_BYTES = 20  # of a plan's table, for each sentence: `formats.base.Spans`


def sources(experiment: Experiment | None) -> list[tuple[str, corpora.Config | None]]:
    """(what is added to the names of its checks, the corpus) of each source; of the only one where nothing is mixed."""
    if experiment is None:
        return [("", None)]
    mixed = experiments.sources(experiment)
    return [(f" {source.name}", source.data) for source in mixed] or [("", experiment.data)]


class Sample(NamedTuple):
    """The first documents of a corpus; whether they are all of it; and how many characters all of it has, about (None:
    not known without reading it)."""

    texts: list[str]
    whole: bool
    characters: int | None


def corpus(data: corpora.Config) -> Seen:
    """The corpus opens, its first documents are text, and so is the first of each of its files."""
    opened, tally = corpora.open_corpus(data), Counter()
    stream, texts, held = opened.documents(tally), [], 0
    for text in stream:
        texts.append(text)
        held += len(text)
        if len(texts) == DOCUMENTS or held >= CHARACTERS:
            break
    whole = next(stream, None) is None
    found = [] if whole or not corpora.CORPORA[data.corpus].example else files.find(data.files, data.corpus, "*")
    with ThreadPoolExecutor() as pool:  # remote ones take a while each
        list(pool.map(partial(_begin, data), found[:: -(-len(found) // FILES) or 1]))
    odd = [f"{n:,} {name.replace('_', ' ')}" for name, n in sorted(tally.items()) if n and name not in COUNTS]
    met = f"; met in it: {', '.join(odd)}" if odd else ""
    mark = WARNING if tally["replaced_characters"] or tally["damaged_lines"] else OK
    if whole:
        return Seen(f"{opened.description}: {len(texts):,} documents, {held:,} characters{met}",
                    Sample(texts, True, held), mark)
    characters = sum(_size(source) * (EXPANSION if _packed(source.path) else 1) for source in found)
    size = f", {gigabytes(sum(map(_size, found)))} in {len(found):,} files that begin with text" if found else ""
    return Seen(f"{opened.description}{size}; the first {len(texts):,} documents are text{met}",
                Sample(texts, False, characters or None), mark)


def _begin(data: corpora.Config, source: files.Source) -> None:
    """Reads the first text of a file."""
    one, tally = dataclasses.replace(data, files=glob.escape(source.path), documents="line"), Counter()
    try:
        next(iter(corpora.open_corpus(one).documents(tally)))
    except UserError:
        if not tally["empty_files"]:  # which a corpus of more files passes over
            raise


def _size(source: files.Source) -> int:
    return source.size if source.store else os.path.getsize(source.path)


def _packed(path: str) -> bool:
    return os.path.splitext(path)[1] in (*files.COMPRESSED, ".parquet")


def splits(data: corpora.Config, experiment: Experiment, sample: Sample) -> Seen:
    """No split that was asked for will be empty."""
    shares = {"validation": data.validation, "test": data.test}
    if not sample.whole:
        each = [f"{name} about {share:.3g} of the documents" for name, share in shares.items() if share]
        return Seen(", ".join(["train what is left", *each]))
    which = corpora.assign(np.array([corpora.hash_position(text) for text in sample.texts], np.uint64), data)
    sizes = {name: int((which == i).sum()) for i, name in enumerate(corpora.SPLITS)}
    each = [f"{name} {n:,}" for name, n in reversed(sizes.items()) if n]
    text = f"documents: {', '.join(each)}"
    held = {name: sum(len(text) for text, split in zip(sample.texts, which, strict=True) if split == i)
            for i, name in enumerate(corpora.SPLITS)}
    doubts = [doubt] if (doubt := corpora.imbalanced(held, len(which), data)) else []
    tokens = int(sample.characters * sizes["train"] / len(which) / CHARACTERS_A_TOKEN)
    batch = max(stage.batch_size * stage.length for stage in experiments.resolve_stages(experiment))
    if tokens < batch:
        doubts.append(f"train has about {tokens:,} tokens, and a batch {batch:,}: give more text, or lower batch_size "
                      "or length")
    if not shares["validation"]:
        doubts.append("without data.validation nothing tells how well a run learns")
    return Seen("; ".join([text, *doubts]), **{"mark": WARNING} if doubts else {})


class _Absent(Exception):
    """The stores are not built yet."""


def stores(data_dir: Path, experiment: Experiment, *_: Sample) -> Seen:
    """The token stores that are built already open, and records here and there decode; else where they will be."""
    checks.check_writable(data_dir, "data_dir")

    def absent(line: str) -> None:  # the first thing that is said where stores are missing is that text will be read
        raise _Absent

    try:
        found = build.prepared(experiment, data_dir, absent)
    except _Absent:
        return Seen(f"not built yet; the run will build it in {data_dir}", None)
    for split in found.stores.values():
        for each in split.stores if isinstance(split, Sources) else (split,):
            _decode(each, found)
    each = ", ".join(f"{split} {facts['tokens']:,}" for split, facts in found.statistics.items())
    return Seen(f"built in {data_dir}; tokens: {each}", found)


def _decode(part: token_store.Store, found: Prepared) -> None:
    """Reads the first, the last and a few other tokens."""
    places = np.random.default_rng(0).integers(0, max(part.tokens, 1), 16)
    ids = part.take(np.array([*places, 0, part.tokens - 1] if part.tokens else [], np.int64))
    if ids.size and ids.max() >= found.tokenizer.size:
        raise UserError(f"the {part.split} store in {found.directory} has the id {ids.max():,}, and its tokenizer "
                        f"{found.tokenizer.size:,} pieces; delete that directory, and the next run builds it anew")


def tokenizer(experiment: Experiment, found: Prepared | None) -> Seen:
    """The tokenizer loads or can be trained, and fits the model's table. Gives it, or None where it is to be
    trained."""
    checks.check_vocabulary(experiment)
    config = experiment.tokenizer
    table = experiments.model_config(experiment, tokenizers.size(config)).vocab
    if found is None and not config.vocab_file:
        return Seen(f"{config.name} of {config.vocab_size:,} pieces, to be trained; the model's table has {table:,} "
                    "rows", None)
    loaded = found.tokenizer if found else tokenizers.from_vocab_file(config)
    checks.check_samples(experiment, loaded)
    roles = ", ".join(f"{loaded.specials[role]} {i}" for role, i in loaded.vocabulary.specials.items())
    return Seen(f"{loaded.name} of {loaded.size:,} pieces ({roles}); the model's table has {table:,} rows", loaded)


def examples(
    experiment: Experiment, loaded: tokenizers.Tokenizer | None, parts: list[Part], *samples: Sample
) -> Seen:
    """The samples' documents become ids that the vocabulary knows, and rows of every stage's format."""
    if loaded is None:
        return Seen("the tokenizer is not trained yet; what it makes of the text is checked once it is", None, SKIPPED)
    split = sentences.split_verbatim if tokenizers.keeps_whitespace(experiment.tokenizer) else sentences.split
    documents = [split(text[:TRIED_CHARACTERS]) for sample in samples for text in sample.texts[:TRIED]]
    ids = [loaded.encode_batch(document) for document in documents]
    stream = np.concatenate([x for document in ids for x in document])
    if stream.size and stream.max() >= loaded.size:
        raise UserError(f"the tokenizer gives the id {stream.max():,}, and has {loaded.size:,}; its files do not "
                        "belong together: give those of one vocabulary")
    with tempfile.TemporaryDirectory() as place:
        tried = token_store.write(Path(place) / "store", ids, loaded.vocabulary)
        for part in parts:
            build.plan(part.plan, tried, experiment.seed, Path(place)).gather(np.zeros(1, np.int64))
    unknown, doubts = float((stream == loaded.vocabulary.specials["unk"]).mean()), []
    prepare.check({"train": {"sentences": stream.size, "unknown_share": unknown}}, experiment.tokenizer, doubts.append)
    text = f"{1 - unknown:.2%} of {stream.size:,} tokens of {len(documents):,} documents are in the vocabulary"
    return Seen("; ".join([text, *doubts]), True, WARNING if doubts else OK)


def room_for(
    data_dir: Path, experiment: Experiment, _: tokenizers.Tokenizer | None, found: Prepared | None,
    taken: Taken | None, *samples: Sample,
) -> Seen:
    """Token stores and plans that are not built yet have room on the data directory's disk."""
    if found is None and any(sample.characters is None for sample in samples):
        return Seen("how large the corpus is, and so its store, is not known before it is read", mark=WARNING)
    what = "plans, about" if found else "token stores and plans, about"
    needed = _bytes(experiment, found, sum(sample.characters or 0 for sample in samples))
    return room(what, data_dir, needed, taken, "--data_dir")


def _bytes(experiment: Experiment, found: Prepared | None, characters: int) -> int:
    """What stores and plans will take beside what is there, about."""
    stages = len(experiments.resolve_stages(experiment))
    if found:
        return sum(facts["sentences"] for facts in found.statistics.values()) * SPAN_BYTES * stages
    stores = bytes_needed(characters, tokenizers.size(experiment.tokenizer))
    return stores + characters // CHARACTERS_A_SENTENCE * SPAN_BYTES * stages
