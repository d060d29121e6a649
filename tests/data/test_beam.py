"""Token stores that Apache Beam builds: byte for byte those of one machine, complete or absent."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.data import corpora
from lmrep.data.store import prepare, token_store
from lmrep.data.store.beam import build, workers
from lmrep.data.store.beam import runner as runners
from lmrep.data.store.beam.runner import PROCESSES, Runner
from tests.data.test_prepare import SETTINGS, content, texts
from tests.data.test_prepare_resumed import on_disk
from tests.storage.emulators import GoogleCloudStorage, started

ONE = Runner("DirectRunner", ("direct_running_mode=in_memory",))
THREADS = Runner("DirectRunner", ("direct_running_mode=multi_threading", "direct_num_workers=3"))
TWO_PROCESSES = Runner("DirectRunner", (PROCESSES, "direct_num_workers=2"))


@pytest.fixture(scope="module", autouse=True)
def small_parts():
    """Several parts, and several blocks in each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "PART", 9000)
        patch.setattr(build, "BLOCK", 2000)
        yield


@pytest.fixture(scope="module")
def needs_beam():
    pytest.importorskip("apache_beam", reason="needs Apache Beam: pip install -e '.[beam]'")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Text in five files, of one part or of several."""
    top, documents = tmp_path_factory.mktemp("files"), texts(240)
    for number, (first, last) in enumerate([(0, 3), (3, 150), (150, 151), (151, 200), (200, 240)]):
        (top / f"{number}.txt").write_text("\n\n".join(documents[first:last]))
    (top / "5.txt").write_text("\n \n")
    return corpora.Config(corpus="text_files", files=str(top / "*.txt"), documents="blank_line", validation=0.1,
                          test=0.1)


@pytest.fixture(scope="module")
def local(files, tmp_path_factory):
    """The same, prepared without Beam."""
    return prepare.prepare_corpus(files, SETTINGS, tmp_path_factory.mktemp("local"))


def names(directory):
    return sorted(path.name for path in pathlib.Path(directory).iterdir())


def test_several_workers_build_the_same_bytes(needs_beam, files, local, tmp_path):
    directory, statistics = build.build(files, SETTINGS, tmp_path, THREADS)
    assert len(list((local.directory / "train").glob("*array_record*"))) > 1
    assert pathlib.Path(directory).name == local.directory.name and statistics == local.statistics
    assert on_disk(pathlib.Path(directory)) == on_disk(local.directory)
    assert names(tmp_path) == [local.directory.name, f"{local.directory.name}.lock"]
    opened = prepare.prepare_corpus(files, SETTINGS, tmp_path, pytest.fail)  # a message would be about building
    for split, store in local.stores.items():
        assert opened.stores[split].fingerprint == store.fingerprint


@pytest.fixture(scope="module")
def records(local, tmp_path_factory):
    """JSONL with a document of several records and parts, empty ones and copies; a loaded vocabulary."""
    top, documents = tmp_path_factory.mktemp("records"), texts(60, seed=1)
    long = " ".join(texts(300, seed=2))
    documents[7:7] = ["", long, "  \n", documents[3]]
    for number in range(3):
        lines = [json.dumps({"text": text}) for text in documents[number::3]]
        (top / f"{number}.jsonl").write_text("\n".join(lines))
    data = corpora.Config(corpus="jsonl", files=str(top / "*.jsonl"), validation=0.1, test=0)
    return data, dataclasses.replace(SETTINGS, vocab_file=str(local.directory / "tokenizer")), len(long)


def test_processes_build_the_same_bytes_of_long_and_empty_documents(needs_beam, records, tmp_path):
    data, tokenizer, characters = records
    expected = prepare.prepare_corpus(data, tokenizer, tmp_path / "local")
    assert characters > 2 * prepare.PART and expected.text == {"empty_documents": 2}
    lengths = {split: np.diff(store.sentences[store.documents]) for split, store in expected.stores.items()}
    assert max(each.max() for each in lengths.values()) > 2 * token_store.RECORD
    directory, _ = build.build(data, tokenizer, tmp_path / "beam", TWO_PROCESSES)
    assert on_disk(pathlib.Path(directory)) == on_disk(expected.directory)


@pytest.mark.parametrize("function", ["tokenize_block", "write_shard"])
def test_a_worker_that_fails_leaves_no_store_and_the_next_build_continues(
        needs_beam, files, local, tmp_path, monkeypatch, function):
    def fails(item, *arguments, **options):
        raise OSError("the disk is on fire")

    with monkeypatch.context() as patch:
        patch.setattr(workers, function, fails)
        with pytest.raises(RunFault, match=r"failed on DirectRunner: OSError: the disk is on fire.*run again"):
            build.build(files, SETTINGS, tmp_path, ONE)
    assert local.directory.name not in names(tmp_path)
    monkeypatch.setattr(workers, "measure", fails)  # what was complete is not done again
    directory, _ = build.build(files, SETTINGS, tmp_path, ONE)
    assert on_disk(pathlib.Path(directory)) == on_disk(local.directory)
    assert names(tmp_path) == [local.directory.name, f"{local.directory.name}.lock"]


def test_an_error_of_a_worker_is_one_message(needs_beam, tmp_path):
    (tmp_path / "one.txt").write_bytes(b"fine\n\nnot \xff fine")
    data = corpora.Config(corpus="text_files", files=str(tmp_path / "*.txt"))
    with pytest.raises(UserError, match=r"^\S*one.txt, line 3: byte 0xff is not UTF-8 text; convert") as error:
        build.build(data, SETTINGS, tmp_path / "data", THREADS)
    assert "\n" not in str(error.value)


def test_damaged_lines_are_counted_over_all_files(needs_beam, tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "some words"}\nnot JSON')
    data = corpora.Config(corpus="jsonl", files=str(tmp_path / "*.jsonl"), damaged_lines=1)
    with pytest.raises(UserError, match=r"2 lines are not JSON or lack the text, more than data.damaged_lines=1"):
        build.build(data, SETTINGS, tmp_path / "data", ONE)


def test_documents_that_change_during_the_build_are_a_fault(needs_beam, files, tmp_path, monkeypatch):
    changing = tmp_path / "one.txt"
    changing.write_text("\n\n".join(texts(30)))
    train = build.Pipelines.tokenizer
    monkeypatch.setattr(build.Pipelines, "tokenizer", lambda *arguments: (
        train(*arguments), changing.write_text("\n\n".join(texts(30, seed=1))))[0])
    with pytest.raises(RunFault, match="the corpus changed while it was read"):
        build.build(dataclasses.replace(files, files=str(changing)), SETTINGS, tmp_path / "data", ONE)


@pytest.fixture(scope="module")
def tfds_texts(tmp_path_factory):
    """The name of a TFDS dataset that is a Beam pipeline, which is not prepared."""
    import tensorflow_datasets as tfds

    top = tmp_path_factory.mktemp("tfds")

    class LmrepBeamTexts(tfds.core.BeamBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = top  # without metadata files

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(
                {"text": tfds.features.Text()}))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            import apache_beam as beam

            return beam.Create([(number, {"text": text}) for number, text in enumerate(texts(60))])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfds.core.constants, "DATA_DIR", str(top / "datasets"))
        yield "lmrep_beam_texts"


def test_a_tfds_dataset_that_is_a_pipeline_is_prepared_first_and_may_be_in_a_store(
        needs_beam, tfds_texts, tmp_path, monkeypatch):
    data = corpora.Config(corpus="tfds", tfds_name=tfds_texts, validation=0.1, test=0)
    with pytest.raises(UserError, match="'lmrep_beam_texts' is not prepared"):
        build.build(data, SETTINGS, "gs://bucket/data", Runner("DataflowRunner"))
    directory, _ = build.build(data, SETTINGS, tmp_path / "beam", ONE)
    local = prepare.prepare_corpus(data, SETTINGS, tmp_path / "local")
    assert on_disk(pathlib.Path(directory)) == on_disk(local.directory)
    server = started(GoogleCloudStorage, tmp_path / "bucket")
    for name, value in {**server.environment, "LMREP_DATA_DIR": str(tmp_path / "downloads")}.items():
        monkeypatch.setenv(name, value)
    prepared = pathlib.Path(corpora.tfds.open_builder(tfds_texts).data_path)
    for path in prepared.iterdir():
        remote.Store("gs://bucket/texts/1.0.0", "", "").upload(path, path.name)
    data = dataclasses.replace(data, tfds_name="gs://bucket/texts/1.0.0")
    url, _ = build.build(data, SETTINGS, "gs://bucket/data", ONE)
    assert url == f"gs://bucket/data/{local.directory.name}"
    messages = []
    opened = prepare.prepare_corpus(data, SETTINGS, "gs://bucket/data", messages.append)
    assert messages == [f"downloading the index of {url}"] and content(opened) == content(local)
    stored = remote.Store(url, "", "")
    assert {name: stored.read(name) for name in stored.names()} == on_disk(local.directory)
    assert not [name for name in remote.Store("gs://bucket/data", "", "").names() if ".beam" in name]
    server.stop()


def test_without_apache_beam_the_message_names_the_extra(monkeypatch):
    monkeypatch.setattr(runners.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"Apache Beam, which is not installed: pip install -e '\.\[beam\]'"):
        runners.parse("DirectRunner", "")


def test_runners_and_options_are_checked(needs_beam):
    with pytest.raises(UserError, match=r"'DirctRunner'.*expected one that Apache Beam knows"):
        runners.parse("DirctRunner", "")
    with pytest.raises(UserError, match="direct_num_workers=many' are not options of Apache Beam"):
        runners.parse("DirectRunner", "direct_num_workers=many")
    assert PROCESSES in runners.parse("DirectRunner", "").options
