"""The folder of an unfinished build. Complete pieces are sealed; a later build keeps those that are intact."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from lmrep.core.files import Damaged, atomic_directory, remove, remove_leftovers, seal, verified

KEY = "key.json"


def resume(folder: Path, key: str, progress: Callable[[str], None]) -> None:
    """Makes the folder of a build, or keeps the pieces that an interrupted build with the same key completed: its
    tokenizer and its parts up to the first damaged one."""
    try:
        same = (folder / KEY).is_file() and (folder / KEY).read_bytes() == key.encode()
    except OSError:
        same = False
    if not same:
        remove(folder)
        folder.mkdir()
        (folder / KEY).write_text(key)
    parts, joining = sorted((folder / "parts").glob("[0-9]" * 5)), (folder / "done").exists()
    for number, piece in enumerate(pieces := [folder / "tokenizer", *parts]):
        try:
            if piece.exists() or parts:
                verified(piece, missing="*.array_record-*" if joining else "")  # records are moved
        except Damaged as damage:
            progress(f"{piece} is damaged: {damage}; building it again")
            for path in (*pieces[min(number, 1) if joining else number:], folder / "done"):
                remove(path)
            return


@contextlib.contextmanager
def complete(path: Path) -> Iterator[Path]:
    """Yields a folder to fill, which is sealed and becomes `path` if no error occurs."""
    remove_leftovers(path)
    with atomic_directory(path) as temporary:
        yield temporary
        seal(temporary, {})
