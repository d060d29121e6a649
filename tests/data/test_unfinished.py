"""An interrupted build continues from the pieces that are intact."""

import os

import pytest

from lmrep.data.store import prepare, unfinished
from tests.cases import slow_after
from tests.data.test_prepare import SETTINGS, texts, write
from tests.data.test_prepare_resumed import on_disk


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """(what a build in one go gives, its config, a data directory with all pieces of one that was interrupted)."""
    top = tmp_path_factory.mktemp("unfinished")
    config = write(top / "files", texts(60))

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "PART", 3000)
        ready = prepare.prepare_corpus(config, SETTINGS, top / "data")
        patch.setattr(prepare, "_finish", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare.prepare_corpus(config, SETTINGS, top / "partial")
    return ready, config, top / "partial"


def flipped(content):
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def cut(content):
    return content[:-2]


def removed(content):
    return None


def piped(content):
    return os.mkfifo


@pytest.mark.parametrize("file, damage, kept", slow_after(8, [
    ("key.json", flipped, 0), ("tokenizer/vocab.txt", flipped, 0), ("parts/00001/train/sentences.npy", flipped, 1),
    ("parts/00002/train/tokens-train.array_record-00000", flipped, 2), ("parts/00002/tallies.json", removed, 2),
    ("key.json", piped, 0), ("parts/00002/train/rest.npy", removed, "joining"),
    ("parts/00000/counts.npy", cut, 0), ("tokenizer/manifest.json", removed, 0),
    ("parts/00002/manifest.json", piped, 2),
    *((f"parts/00002/{name}", removed, "joining") for name in ("tallies.json", "counts.npy"))]))
def test_damaged_pieces_are_built_again(interrupted, tmp_path, monkeypatch, file, damage, kept):
    ready, config, partial = interrupted
    monkeypatch.setattr(prepare, "PART", 3000)
    [source] = partial.glob("*.partial")
    folder = tmp_path / source.name
    for name, content in on_disk(source).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        changed = damage(content) if name == file else content
        if changed is os.mkfifo:
            os.mkfifo(folder / name)
        elif changed is not None:
            (folder / name).write_bytes(changed)
    if kept == "joining":  # parts whose records are moved cannot be used on their own
        (folder / "done").mkdir()
        kept = 0
    unfinished.resume(folder, (source / "key.json").read_text(), lambda line: None)
    assert len(list(folder.glob("parts/*"))) == kept
    assert on_disk(prepare.prepare_corpus(config, SETTINGS, tmp_path).directory) == on_disk(ready.directory)
