"""What `lmrep.data` refuses, as one table: id -> a mistake, the type of the error, and what its message must name (a
file and a line, a field, a flag, a value), so that a user can find it. Prose is not compared."""

import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmrep.config import record
from lmrep.core.errors import ConfigError, UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import corpora, formats, loader, records, tokenizers, word_vectors
from lmrep.data.formats import FORMATS
from lmrep.data.mixture import Mixture, Sources, block_counts, mixing_weights
from lmrep.data.store import prepare, token_store
from lmrep.data.store.beam import build as beam
from lmrep.data.store.beam import runner as beam_runner
from lmrep.data.store.beam import workers as beam_workers
from lmrep.experiment import config as experiments
from tests import small
from tests.data import conftest, test_prepare
from tests.data import refused_records as labelled
from tests.data import refused_tokenizers as published


class Refusal(NamedTuple):
    """`call(directory)` raises `error`, whose message has every one of `names`."""

    call: Callable[[Path], object]
    names: tuple[str, ...]
    error: type[Exception] = UserError


def refusal(call, *names, error=UserError):
    return Refusal(call, names, error)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


# --- Labelled files ---


def read_records(file, content, settings):
    needed = settings.get("needed", ())
    config = records.Config(**{"train": file} | {name: value for name, value in settings.items() if name != "needed"})

    def call(directory):
        write(directory / file, content)
        records.read(config, "train", needed)
    return call


def read_aligned(settings, german, english):
    def call(directory):
        write(directory / "a.de", "Ein Hund.\n" * german)
        write(directory / "a.en", "A dog.\n" * english)
        records.read(records.Config(format="parallel", **labelled.PAIR | settings), "train", ("text", "target"))
    return call


def read_senses(xml, keys):
    def call(directory):
        write(directory / "a.data.xml", xml)
        if keys is not None:
            write(directory / "a.gold.key.txt", keys)
        records.read(records.Config(train="a.data.xml"), "train", ("text", "span", "lemma", "senses"))
    return call


LABELLED = {
    **{id: refusal(read_records(*row[:3]), *row[3:]) for id, row in labelled.RECORDS.items()},
    **{id: refusal(read_aligned(*row[:3]), *row[3:]) for id, row in labelled.ALIGNED.items()},
    **{id: refusal(read_senses(*row[:2]), *row[2:]) for id, row in labelled.SENSES.items()},
    "parallel blank line": refusal(lambda directory: (
        write(directory / "a.de", "Ein Hund.\nZwei.\n"), write(directory / "a.en", "A dog.\n\n"),
        records.read(records.Config(format="parallel", **labelled.PAIR), "train")), "line 2", "a.en"),
    "senses needed field": refusal(lambda directory: (
        write(directory / "a.data.xml", labelled.SENTENCE), write(directory / "a.gold.key.txt", labelled.KEYS),
        records.read(records.Config(train="a.data.xml"), "train", ("pos",))), "a.data.xml, line 5", " pos"),
    "no validation files": refusal(lambda _: records.read(records.Config(train="a.tsv"), "validation"),
                                   "config.data.validation"),
    "unlabelled training": refusal(lambda directory: (
        write(directory / "a.json", labelled.squad({"id": "q3", "question": "What?"})),
        records.read(records.Config(validation="a.json"), "validation")), "question q3", "'answers'"),
    **{f"a pipe as {form}": refusal(lambda directory, form=form: (os.mkfifo(directory / "a.tsv"), records.read(
        records.Config(train="a.tsv", format=form), "train")), "a.tsv", "pipe") for form in ("auto", "tsv")},
    "no known format": refusal(read_records("a.txt", "some text\n", {}), "a.txt", *records.READERS),
    "tfds and a format": refusal(lambda _: records.read(
        records.Config(train="train", tfds="x", format="tsv"), "train"), "config.data.tfds", "config.data.format"),
    "tfds without a name": refusal(lambda _: records.read(records.Config(train="train", format="tfds"), "train"),
                                   "config.data.tfds"),
    "tfds unknown": refusal(lambda _: records.read(records.Config(train="train", tfds="/nowhere/at/all"), "train"),
                            "/nowhere/at/all")}

# --- Corpora ---


def open_corpus(path="*.txt", corpus="text_files", content=None, read=True, **settings):
    """Writes files, then opens a corpus and reads its documents."""
    def call(directory):
        for name, text in (content or {}).items():
            write(directory / name, text)
        opened = corpora.open_corpus(corpora.Config(corpus=corpus, files=path, **settings))
        return list(opened.documents()) if read else opened
    return call


def jsonl(line):
    lines = [each if isinstance(each, str) else json.dumps(each) for each in ({"text": "one"}, line, {"text": "two"})]
    return open_corpus("*.jsonl", "jsonl", {"a.jsonl": "\n".join(lines) + "\n"})


def parquet(field="text", column=None):
    def call(directory):
        pq.write_table(pa.table({"text": column} if column is not None else {
            "article": [{"body": {"text": "one", "n": 1}}], "id": [1]}), directory / "a.parquet")
        return open_corpus("*.parquet", "parquet", text_field=field)(directory)
    return call


def special_file(name, kind):
    def call(directory):
        if kind == "pipe":
            os.mkfifo(directory / name)
        else:
            (directory / name).symlink_to(kind)
        return open_corpus(name, read=False)(directory)
    return call


def vanished(read):
    def call(directory):
        write(directory / "a.txt", "one")
        opened = open_corpus(read=False)(directory)
        (directory / "a.txt").unlink()
        return read(opened)
    return call


def remote(pattern, read=lambda opened: list(opened.documents()), vanish=False):
    def call(directory):
        store = fsspec.filesystem("memory")
        store.store.clear()
        store.pipe("/bucket/a.txt", b"one")
        opened = open_corpus(pattern, read=False)(directory)
        if vanish:
            store.rm("/bucket/a.txt")
        return read(opened)
    return call


def split_of(*texts, **settings):
    def call(_):
        positions = np.array([corpora.hash_position(text) for text in texts], np.uint64)
        return corpora.assign(positions, corpora.Config(**settings))
    return call


LATIN = {"good.txt": "fine", "latin.txt": b"one\ntwo\ncaf\xe9 three\nfour\n"}
CORPORA = {
    "two documents": refusal(split_of("a", "b", corpus="text_files"), "2 documents", ".documents=blank_line"),
    "copies alone": refusal(split_of(*"aabab"), "5 documents", "2"),
    "no training text": refusal(split_of(*"abc", validation=0.5, test=0.5), "train"),
    "negative fraction": refusal(lambda _: record.read(corpora.Config, {"validation": -0.1}, "data"),
                                 "data.validation", "-0.1"),
    "misspelt corpus": refusal(lambda _: record.read(corpora.Config, {"corpus": "textfiles"}, "data"), "'text_files'"),
    "files of python_docs": refusal(open_corpus("texts/*.txt", "python_docs"), "data.files", "data.corpus"),
    "no file": refusal(open_corpus(), "'*.txt'"),
    "no file set": refusal(open_corpus(""), "data.files"),
    "a folder": refusal(open_corpus(".", content={"a.txt": "one"}), "**"),
    "blank text": refusal(open_corpus(content={"blank.txt": "\n \n"}), "*.txt"),
    "text bytes": refusal(open_corpus(content=LATIN), "latin.txt, line 3", "0xe9", "undecodable=replace",
                          error=ConfigError),
    "vanished file": refusal(vanished(lambda opened: list(opened.documents())), "a.txt"),
    "vanished file's fingerprint": refusal(vanished(lambda opened: opened.fingerprint()), "a.txt"),
    "a pipe": refusal(special_file("a.txt", "pipe"), "a.txt", "pipe"),
    "a device": refusal(special_file("a.dat", "/dev/zero"), "a.dat", "device"),
    "a file of the system": refusal(special_file("a.log", "/proc/cpuinfo"), "a.log", "system"),
    "a file without size": refusal(open_corpus("/proc/version"), "/proc/version", "size"),
    "remote: no file": refusal(remote("memory://bucket/*.json"), "memory://bucket/*.json"),
    "remote: a folder": refusal(remote("memory://bucket"), "'memory://bucket/**/*.txt'"),
    "remote: unknown store": refusal(remote("nowhere://bucket/*.txt"), "nowhere", "gs://"),
    "remote: vanished": refusal(remote("memory://bucket/*.txt", vanish=True), "memory:///bucket/a.txt"),
    "remote: vanished fingerprint": refusal(remote(
        "memory://bucket/*.txt", lambda opened: opened.fingerprint(), vanish=True), "memory:///bucket/a.txt"),
    "jsonl not JSON": refusal(jsonl("{no"), "a.jsonl, line 2", "character 2"),
    "jsonl deep": refusal(jsonl("[" * 100_000), "a.jsonl, line 2"),
    "jsonl key twice": refusal(jsonl('{"text": "a", "text": "b"}'), "line 2", "'text'"),
    "jsonl huge number": refusal(jsonl('{"text": "a", "n": ' + "9" * 5000 + "}"), "line 2"),
    "jsonl other field": refusal(jsonl({"txt": "x", "id": 1}), "line 2", "'text'", "'txt', 'id'"),
    "jsonl list": refusal(jsonl(["text"]), "line 2", "'text'", "list"),
    "jsonl number": refusal(jsonl({"text": 5}), "line 2", "'text'", "number"),
    "jsonl null": refusal(jsonl({"text": None}), "line 2", "'text'", "null"),
    "jsonl surrogate": refusal(jsonl('{"text": "half \\ud83d"}'), "a.jsonl, line 2", "surrogate",
                               error=ConfigError),
    "jsonl bytes": refusal(open_corpus("*.jsonl", "jsonl", {"a.jsonl": b'{"text": "caf\xe9"}\n'}), "a.jsonl, line 1",
                           error=ConfigError),
    "jsonl without text": refusal(open_corpus("*.jsonl", "jsonl", {"a.jsonl": '{"text": " "}\n'}), "'text'"),
    "parquet no column": refusal(parquet(), "a.parquet", "'text'", "article, id", "text_field"),
    "parquet no inner column": refusal(parquet("article.title"), "a.parquet", "text_field"),
    "parquet numbers": refusal(parquet("id"), "a.parquet", "'id'", "int64"),
    "parquet structs": refusal(parquet("article.body"), "a.parquet", "struct"),
    "parquet bytes": refusal(parquet(column=pa.array([b"ok", b"caf\xe9"], pa.binary())), "a.parquet, row 2", "0xe9",
                             error=ConfigError),
    **{f"{type_} {id}": refusal(open_corpus(path, type_, {"a.jsonl": '{"text": "a"}\n'}, **settings), *names)
       for type_ in ("jsonl", "parquet") for id, path, settings, *names in (
           ("in a folder", ".", {}, f"*.{type_}"), ("no files", "", {}, "data.files", f"*.{type_}"),
           ("no field", "a.jsonl", {"text_field": ""}, "text_field"))},
    "tfds no name": refusal(lambda _: corpora.open_corpus(corpora.Config(corpus="tfds")), "tfds_name"),
    "tfds unknown": refusal(lambda _: corpora.open_corpus(corpora.Config(corpus="tfds", tfds_name="no_such_set")),
                            "'no_such_set'"),
    "tfds no folder": refusal(lambda _: corpora.open_corpus(corpora.Config(corpus="tfds", tfds_name="/nowhere/it")),
                              "/nowhere/it")}

# --- Formats, mixtures and batches ---


def experiment(format="packed", sources=({"weight": 1.0},), **changes):
    def call(directory):
        config = small.config(directory, format=format)
        config.sources = sources
        config.update_from_flattened_dict(changes)
        return experiments.parse(config)
    return call


def store(documents, specials=conftest.SPECIALS):
    return conftest.make_store(documents, specials)


def plan(name, documents, length=24, specials=conftest.SPECIALS, **settings):
    config = record.read(FORMATS[name].config, settings)
    return lambda _: formats.plan(name, config, store(documents, specials), length, 0)


def of_mixture(*names_and_settings):
    def call(_):
        plans = tuple(plan(name, [[3, 4]], 8, **settings)(_) for name, settings in names_and_settings)
        return Mixture(plans, Sources(("a",), (plans[0].store,), (1,), plans[0].vocabulary))
    return call


FORMATTED = {
    **{f"{name} of an empty split": refusal(plan(name, []), "split") for name in FORMATS},
    **{f"{name} without a separator": refusal(plan(name, [[4, 3]], specials={"pad": 0, "cls": 1}), "sep", "pad, cls")
       for name in FORMATS},
    "sentence_stream without marks": refusal(plan("sentence_stream", [[3]], specials={"pad": 0}), "eos or sep"),
    "sentence_pair of single sentences": refusal(plan("sentence_pair", [[3], [4]]), "sentence_pair"),
    "stream_pair without room": refusal(plan("stream_pair", [[9] * 9], 20, reuse=16), "length is 20", "21"),
    "too many examples": refusal(plan("packed", [[3]], duplicates=2**31), "duplicates"),
    "mixture of ordered examples": refusal(of_mixture(("stream", {"order": "contiguous"})), "contiguous",
                                           error=ValueError),
    "mixture of sentence streams": refusal(of_mixture(("sentence_stream", {})), "contiguous", error=ValueError),
    "tiny weight": refusal(lambda _: block_counts([1.0, 3e-7]), "source 1", "3e-07", "10,000"),
    "tiny source": refusal(lambda _: block_counts(mixing_weights((1, 1), (10**6, 10), 1)), "source 1", "10,000"),
    "source without weight": refusal(experiment(sources=({"weight": 0},)), "config.sources.0.weight", "0.0"),
    "source with a misspelt field": refusal(experiment(sources=({"data": {"file": "a"}},)), "config.sources.0.data",
                                            "'file'", "'files'"),
    "source without training text": refusal(experiment(sources=({"data": {"test": 0.95}},)), "data.test"),
    "temperature below 0": refusal(experiment(temperature=-1.0), "config.temperature", "-1.0"),
    "mixture in order": refusal(experiment("stream", **{"format.order": "contiguous"}), "format.order=shuffled"),
    "lengths that vary, and positions": refusal(experiment("stream", sources=(), **{
        "format.order": "contiguous", "format.lengths": "normal"}), "model.max_length", "format.lengths=fixed"),
    "fewer examples than a batch": refusal(lambda _: loader.batches(
        plan("lines", [[3], [4]], 16)(_), batch_size=8, indices=np.arange(8), seed=0, first_step=0, last_step=1),
        "2 examples", "length", "batch_size")}

# --- Stores ---


def prepared(count=20, corpus=None, data_dir="data", **tokenizer):
    def call(directory):
        config = test_prepare.write(directory / "files", corpus or test_prepare.texts(count))
        settings = dataclasses.replace(test_prepare.SETTINGS, **tokenizer)
        try:
            prepare.prepare_corpus(config, settings, directory / data_dir)
        finally:
            assert not (directory / "data").exists() or not [*(directory / "data").glob("*/manifest.json")]
    return call


def foreign(directory):
    write(directory / "vocab.txt", "\n".join([*tokenizers.SPECIALS.values(), ".", "ж"]))
    prepared(vocab_file=str(directory / "vocab.txt"))(directory)


def index_of_another(directory):
    vocabulary = Vocabulary(10, {}, np.ones(10, bool), np.zeros(10, np.int64))
    token_store.write(directory / "a", [[[1] * (2 * token_store.RECORD)]], vocabulary)
    token_store.write(directory / "b", [[[1] * 7]], vocabulary)
    (directory / "b/sentences.npy").rename(directory / "a/sentences.npy")
    token_store.Store(directory / "a", "train", vocabulary)


def vectors(content):
    def call(directory):
        write(directory / "v.txt", content)
        word_vectors.read(directory / "v.txt")
    return call


def of_beam(directory, runner="DataflowRunner", **tokenizer):
    config = test_prepare.write(directory / "files", test_prepare.texts(20))
    beam.build(config, dataclasses.replace(test_prepare.SETTINGS, **tokenizer), directory / "data",
               beam_runner.Runner(runner))


STORES = {
    "two documents to prepare": refusal(prepared(2), "2 documents"),
    "missing vocabulary": refusal(prepared(vocab_file="nowhere.txt"), "nowhere.txt"),
    "split without text": refusal(prepared(corpus=["\x01", "\x02", "\x03"]), "split"),
    "vocabulary of another language": refusal(foreign, "vocab.txt", error=ConfigError),
    "data directory below a file": refusal(lambda directory: (write(directory / "file", ""),
                                                              prepared(data_dir="file/data")(directory)), "file/data"),
    "index of another store": refusal(index_of_another, "/a", error=ValueError),
    "vectors of other widths": refusal(vectors("a 1 2\nb 3\n"), "v.txt:2", "2 numbers"),
    "vectors with letters": refusal(vectors("a 1 2\nb 3 x\n"), "v.txt:2", "'x'"),
    "vectors with nan": refusal(vectors("a 1 2\n\nb 3 nan\n"), "v.txt:3", "nan"),
    "vectors of words alone": refusal(vectors("a\n"), "v.txt:1"),
    "vectors without lines": refusal(vectors(""), "v.txt"),
    "vectors of bytes": refusal(vectors(b"a 1 \xff\n"), "v.txt", "UTF-8"),
    "vectors without file": refusal(lambda directory: word_vectors.read(directory / "none.txt"), "none.txt"),
    "beam on other machines": refusal(of_beam, "DataflowRunner"),
    "beam of local text": refusal(lambda directory: beam_workers.check_readable(
        open_corpus(content=LATIN, read=False)(directory).readers, "DataflowRunner"), "good.txt", "Dataflow"),
    "beam with characters": refusal(lambda directory: of_beam(directory, name="elmo"), "one machine")}

# --- Tokenizers ---


def train(name, size, texts=("the being thing " * 20,), **settings):
    return lambda _: tokenizers.train(tokenizers.Config(name, size, **settings), lambda: iter(texts))


def saved_as(name, **requested):
    """Saves a small tokenizer, and loads it by another config."""
    def call(directory):
        trained = train(name, 300, (test_prepare.WORDS * 9,))(directory)
        trained.save(directory / "saved")
        return tokenizers.from_vocab_file(tokenizers.Config(vocab_file=str(directory / "saved"), **requested))
    return call


TOKENIZED = {
    **{f"{family} tokenizer.json {'.'.join(names)[:40]} {i}": refusal(
        lambda directory, family=family, change=change: published.load_changed(directory, family, change), *names)
       for family, rows in published.JSON.items() for i, (change, *names) in enumerate(rows)},
    **{f"directory {'.'.join(names)[:40]} {i}": refusal(
        lambda directory, files=files: tokenizers.load(published.write(directory, **files)), *names)
       for i, (files, *names) in enumerate(published.DIRECTORIES)},
    **{f"spiece {names[0]} {i}": refusal(
        lambda directory, facts=facts: published.load_spiece(directory, **facts), *names)
       for i, (facts, *names) in enumerate(published.SPIECE)},
    **{f"{name} vocabulary {names[0]}": refusal(
        lambda directory, name=name, lines=lines: published.load_vocabulary(directory, name, lines), *names)
       for name, rows in published.VOCABULARIES.items() for lines, *names in rows},
    "vocab.txt of bytes": refusal(lambda directory: published.load_vocabulary(directory, "wordpiece", b"\xff\xfe"),
                                  "vocab.txt", "UTF-8"),
    "damaged spiece.model": refusal(lambda directory: published.load_vocabulary(
        directory, "wordpiece", b"\n\x0e\n\x05\xff\xfe", "spm.model"), "spm.model"),
    "missing vocab.txt": refusal(lambda directory: tokenizers.from_vocab_file(
        tokenizers.Config(vocab_file=str(directory / "nowhere.txt"))), "nowhere.txt"),
    "files that contradict each other": refusal(published.contradicting, "tokenizer.json"),
    "words of another case": refusal(published.load_words, "do_lower_case", "True"),
    "unigram of another case": refusal(published.load_unigram, "do_lower_case", "True"),
    "no directory": refusal(lambda directory: tokenizers.load(directory / "nowhere"), "nowhere"),
    "another algorithm": refusal(saved_as("bpe"), "is bpe", "tokenizer.name=bpe"),
    "another case": refusal(saved_as("wordpiece", lowercase=False), "--config.tokenizer.lowercase=True"),
    "cased bpe": refusal(train("bpe", 300, lowercase=False), "--config.tokenizer.lowercase=True"),
    **{f"{name} of {size}": refusal(lambda _, name=name, size=size: tokenizers.size(tokenizers.Config(name, size)),
                                    "--config.tokenizer.vocab_size", f"{size:,}")
       for name, size in (("bpe", 5), ("byte_level_bpe", 261), ("sentencepiece_t5", 100))},
    **{f"{name} of 2,000,000,000": refusal(lambda _, name=name: record.read(tokenizers.Config, {
        "name": name, "vocab_size": 2 * 10**9}), "vocab_size", "2000000000")
       for name in ("wordpiece", "bpe", "byte_level_bpe", "words")},
    **{f"{name} of no text": refusal(train(name, 64, ("", " ")), "pieces")
       for name in ("sentencepiece_unigram", "sentencepiece_bpe")},
    "unknown tokenizer": refusal(lambda _: record.read(tokenizers.Config, {"name": "wordpeace"}), "'wordpiece'")}

REFUSALS = {f"{group}: {id}": row for group, rows in {
    "labelled": LABELLED, "corpus": CORPORA, "batches": FORMATTED, "store": STORES, "tokenizer": TOKENIZED}.items()
    for id, row in rows.items()}


@pytest.mark.parametrize("id", REFUSALS)
def test_a_refusal_names_what_to_change(id, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, names, error = REFUSALS[id]
    with pytest.raises(Exception) as caught:
        call(tmp_path)
    assert type(caught.value) is error, caught.value
    message = str(caught.value)
    assert [name for name in names if name not in message] == [], message
    assert len(message) < 900 and not re.search("[\0-\x1f\x7f]", message), message
