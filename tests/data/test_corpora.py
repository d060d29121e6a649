"""Corpora: documents from files, from Python and from TFDS, and splits that stay where they are."""

import dataclasses
import itertools
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lmrep.core.errors import UserError
from lmrep.data.corpora import SPLITS, Config, assign, hash_position, imbalanced, open_corpus, python_docs

TEST, VALIDATION, TRAIN = range(3)


def split_of(texts, config):
    """{text: split}"""
    positions = np.array([hash_position(t) for t in texts], np.uint64)
    return dict(zip(texts, assign(positions, config).tolist(), strict=True))


def files(path, documents="auto", **settings):
    return open_corpus(Config(corpus="text_files", files=str(path), documents=documents, **settings))


# Splits


def test_splits_have_their_fractions_and_every_document_has_one():
    splits = np.array(list(split_of([f"text {i}" for i in range(20000)], Config(validation=0.1, test=0.05)).values()))
    for split, fraction in ((TEST, 0.05), (VALIDATION, 0.1), (TRAIN, 0.85)):
        assert abs((splits == split).mean() - fraction) < 4 * np.sqrt(fraction * (1 - fraction) / 20000)
    assert SPLITS == ("test", "validation", "train")


def test_a_document_keeps_its_split_whatever_else_is_in_the_corpus():
    config = Config(validation=0.2, test=0.2)
    texts = [f"text {i}" for i in range(300)]
    first = split_of(texts, config)
    assert split_of(texts[::-1], config) == first
    more = split_of([f"new {i}" for i in range(300)] + texts, config)
    assert {text: more[text] for text in texts} == first
    hashes = np.array([hash_position(text) for text in texts * 2], np.uint64)
    splits = assign(hashes, config)
    assert (splits[:300] == splits[300:]).all()


@pytest.mark.parametrize("validation, test", [(0.02, 0.02), (0.9, 0.05), (0.05, 0.9), (0.02, 0), (0, 0.02), (0, 0)])
def test_few_documents_still_fill_the_configured_splits(validation, test):
    config = Config(validation=validation, test=test)
    for count, seed in itertools.product((3, 4, 7), range(5)):
        texts = [f"{seed} {i}" for i in range(count)]
        splits = split_of(texts, config)
        assert set(splits.values()) == {TRAIN} | ({VALIDATION} if validation else set()) | ({TEST} if test else set())
        assert split_of(texts[::-1], config) == splits
        ranked = sorted(texts, key=hash_position)  # splits are stretches of the range: who moves is who stands nearest
        assert [splits[text] for text in ranked] == sorted(splits.values())


def test_much_more_held_out_text_than_configured_is_reported():
    message = imbalanced({"train": 30, "validation": 40, "test": 30}, 3, Config(corpus="text_files"))
    assert "70% of the text is held out instead of 4%: the corpus has 3 documents" in message
    assert "data.documents=blank_line" in message
    assert "more documents" in imbalanced({"train": 1, "test": 9}, 2, Config())
    assert not imbalanced({"train": 88, "validation": 6, "test": 6}, 30, Config())  # as few documents bring about
    assert not imbalanced({"train": 100}, 1, Config(validation=0, test=0))


# Text files


def test_documents_of_one_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n one\ntwo\n\n \t\nthree\n")
    for unit, expected in {"file": ["one\ntwo\n\n \t\nthree"], "line": ["one", "two", "three"],
                           "blank_line": ["one\ntwo", "three"], "auto": ["one\ntwo", "three"]}.items():
        corpus = files(path, unit)
        assert list(corpus.documents()) == expected
        assert list(corpus.documents()) == expected  # each call starts from the first


def test_each_of_several_files_is_a_document(tmp_path):
    for name in ("b", "a", "c/d"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.txt").write_text(f"{name}\n\nmore")
    (tmp_path / "blank.txt").write_text(" \n")
    assert list(files(tmp_path / "*.txt").documents()) == ["a\n\nmore", "b\n\nmore"]
    assert list(files(tmp_path / "**/*.txt").documents()) == ["a\n\nmore", "b\n\nmore", "c/d\n\nmore"]
    assert len(list(files(tmp_path / "**" / "*.txt", "blank_line").documents())) == 6


def test_byte_order_marks_and_line_ends_have_no_effect(tmp_path):
    (tmp_path / "plain.txt").write_bytes("né\nw\n\nx".encode())
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + "né\r\nw\r\n\r\nx\r\n".encode())
    (tmp_path / "old.txt").write_bytes("né\rw\r\rx".encode())
    expected = ["né\nw", "x"]
    assert all(list(files(tmp_path / name).documents()) == expected for name in ("plain.txt", "marked.txt", "old.txt"))


def test_the_fingerprint_depends_on_the_content(tmp_path):
    def fingerprint(folder, first="a", second="b", documents="auto"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for name, text in (("1.txt", first), ("2.txt", second)):
            (tmp_path / folder / name).write_text(text)
        return files(tmp_path / folder / "*.txt", documents).fingerprint()

    first = fingerprint("x")
    assert fingerprint("elsewhere") == first == fingerprint("x")
    others = {fingerprint("x", "A"), fingerprint("x", "b", "a"), fingerprint("x", "ab", ""),
              fingerprint("x", documents="line")}
    assert len(others | {first}) == 5


# The documentation of Python


def test_python_docs_reads_docstrings_and_topics_without_running_code(tmp_path):
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text(
        "topics = {'if': 'The if statement\\n****************\\n\\nIt is used.\\n', 'x': 'Other'}")
    (tmp_path / "good.py").write_text(
        '"""Module\n\n    kept indent\n    ===\n"""\nraise SystemExit\nclass A:\n    """Class."""\n'
        '    def f(self):\n        """Method\n        text."""\ndef g():\n    "Function."\ndef h():\n    1\n')
    (tmp_path / "bad.py").write_text("def broken(:\n")
    (tmp_path / "nul.py").write_bytes(b"'''x'''\0")
    (tmp_path / "silent.py").write_text("x = 1\n")
    for skipped in ("test", "site-packages", "idlelib"):
        (tmp_path / skipped).mkdir()
        (tmp_path / skipped / "a.py").write_text('"""Not this."""')
    assert python_docs.documents(tmp_path) == ("Module\n\nkept indent\n\nClass.\n\nMethod\ntext.\n\nFunction.",
                                                "The if statement\n\nIt is used.", "Other")
    before = python_docs.fingerprint(tmp_path)
    (tmp_path / "silent.py").write_text("x = 2\n")
    assert python_docs.fingerprint(tmp_path) != before


@pytest.mark.slow
def test_the_documentation_of_this_interpreter_is_a_corpus():
    loaded = set(sys.modules)
    corpus = open_corpus(Config())
    texts = list(corpus.documents())
    assert 1.5e6 < sum(map(len, texts)) < 4e6 and 400 < len(texts) < 1500
    assert any(text.startswith('The "if" statement') for text in texts)
    assert any("argparse" in text and "command-line" in text.lower() for text in texts)
    assert not {"turtle", "this", "tkinter"} & (set(sys.modules) - loaded)
    assert corpus.fingerprint() == open_corpus(Config()).fingerprint()


# TFDS


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A prepared TFDS dataset, as any other: name, version, two features."""
    top = tmp_path_factory.mktemp("tfds")
    directory = top / "letters" / "1.0.0"
    directory.mkdir(parents=True)
    features = tfds.features.FeaturesDict({
        "text": tfds.features.Text(), "label": tfds.features.ClassLabel(num_classes=2),
        "inner": {"title": tfds.features.Text()}})
    identity = tfds.core.dataset_builder.dataset_info.DatasetIdentity(
        name="letters", version=tfds.core.Version("1.0.0"), data_dir=str(directory), module_name="")
    writer = tfds.core.SequentialWriter(tfds.core.DatasetInfo(builder=identity, features=features), 100,
                                        file_format="array_record")
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [{"text": text, "label": 0, "inner": {"title": f"title {text}"}}
                                   for text in ["é one\r\ntwo", "  ", *(f"letter {i}" for i in range(298))]]})
    writer.close_all()
    return top, directory


def test_tfds_by_directory_and_by_name(dataset, monkeypatch):
    top, directory = dataset
    config = Config(corpus="tfds", tfds_name=str(directory))
    texts = list(open_corpus(config).documents())
    assert texts == ["é one\ntwo", *(f"letter {i}" for i in range(298))]
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(top))
    by_name = open_corpus(dataclasses.replace(config, tfds_name="letters:1.0.0"))
    assert list(by_name.documents()) == texts and by_name.fingerprint() == open_corpus(config).fingerprint()
    part = open_corpus(dataclasses.replace(config, tfds_split="train[:3]", text_feature="inner/title"))
    assert list(part.documents()) == ["title é one\ntwo", "title", "title letter 0"]
    assert part.fingerprint() != by_name.fingerprint()


@pytest.mark.parametrize("settings, message", [
    ({"tfds_split": "tarin"}, "'tarin'.* train"), ({"text_feature": "txt"}, "'txt'.*text"),
    ({"text_feature": "label"}, "'label'"), ({"text_feature": "inner"}, "'inner'")])
def test_splits_and_features_that_a_data_set_lacks_are_named(dataset, settings, message):
    with pytest.raises(UserError, match=message):
        open_corpus(Config(corpus="tfds", tfds_name=str(dataset[1]), **settings))


def test_tfds_datasets_that_need_tensorflow_are_refused(dataset, tmp_path):
    for file in dataset[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    info = tmp_path / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(UserError, match="tfrecord"):
        open_corpus(Config(corpus="tfds", tfds_name=str(tmp_path)))
