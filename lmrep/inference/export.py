"""Vectors of a whole text file, line by line, into safetensors: in bounded memory, and whole or not at all.

A safetensors file is the length of a header in 8 bytes, the header as JSON (each tensor's dtype, shape and place), and
the tensors' bytes. The header comes first and is known last; so the lines are counted beforehand, and room is left.
"""

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.data import tokenized_text
from lmrep.inference import encode
from lmrep.inference.encode import Layers
from lmrep.inference.load import Run

LINES, CHARACTERS = 4096, 2**20  # as many lines, or as much text, are in memory at once; their order is free
LONGEST_LINE = 2**20  # bytes
HEADER = 100_000_000  # bytes that a header may have for the format's own library to read it
DIGITS = 7, 15  # of a number of tokens in a line, of an offset


class CorpusScan(NamedTuple):
    """What a text file holds."""

    lines: int
    size: int  # bytes


class Progress(NamedTuple):
    """How far it has come."""

    lines: int
    of: int
    tokens: int
    seconds: float


# Text


def survey(path: str | os.PathLike) -> CorpusScan:
    """Reads a text file once through. Lines end with "\\n"; the last one may lack it.

    Raises:
      UserError: it cannot be read twice, is not UTF-8, or has a line of more than LONGEST_LINE bytes.
    """
    lines = 0
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path} is not a file that can be read twice; write the text into a file")
            while line := file.readline(LONGEST_LINE + 1):
                lines += 1
                if len(line) > LONGEST_LINE:
                    raise UserError(f"line {lines:,} of {path} has more than {LONGEST_LINE:,} bytes; break it up")
                line.decode("utf8")
            return CorpusScan(lines, file.tell())
    except UnicodeDecodeError as error:
        raise UserError(f"line {lines:,} of {path} is not UTF-8 text: byte 0x{error.object[error.start]:02x}; "
                        "convert it") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def read_lines(path: str | os.PathLike) -> Iterator[list[str]]:
    """The lines of a UTF-8 file without their ends, some thousands at a time."""
    found, characters = [], 0
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        for line in file:
            found.append(line.removesuffix("\n").removesuffix("\r"))
            characters += len(line)
            if len(found) == LINES or characters >= CHARACTERS:
                yield found
                found, characters = [], 0
    if found:
        yield found


# Vectors


def embed(
    run: Run, source: str | os.PathLike, target: str | os.PathLike, *, layers: str = "last", words: str = "",
    long: str = "refuse", tell: Callable[[Progress], None] = lambda progress: None,
) -> list[Path]:
    """Writes the vectors of each line of a text file: line i, from 0, as the float32 tensor named `i`, [n, t, d].

    A line has the vectors that `run.encode` gives of it. Files of more lines than the format's library reads in one
    (about a million) become several, named as in "vectors-00001-of-00003.safetensors".

    Args:
      run: the trained run.
      source: a UTF-8 text file.
      target: the .safetensors file to write. Must not exist; appears when it is whole.
      layers: as `run.encode`.
      words: "mean", "first" or "last" for one vector a word, [n, w, d], made so of its pieces'; "" for one a token,
        special tokens included.
      long: "refuse" or "windows", for lines longer than the model.
      tell: is told of the progress after each batch of lines.

    Returns:
      The files written.

    Raises:
      UserError: something does not fit, or a line is too long.
      RunFault: writing failed.
    """
    target, chosen = Path(target), run.layers(layers)
    encode.check_choice("long", long, encode.LONG)
    if words:
        encode.check_choice("words", words, encode.PIECES)
    if target.suffix != ".safetensors":
        raise UserError(f"the output is {target}, and vectors are written as safetensors; give a name that ends in "
                        ".safetensors")
    if not target.parent.is_dir():
        raise UserError(f"there is no directory {target.parent} for the output; make it, or give another --output")
    found = survey(source)
    entry, about = _entry_room(run, chosen, found.lines), _about(run, chosen, words)
    most = (HEADER - len(about) - 8) // entry  # lines a file
    targets = _targets(target, -(-found.lines // most) or 1)
    for path in targets:
        if path.exists():
            raise UserError(f"{path} exists; remove it, or give another --output")

    began, lines, done, tokens = time.monotonic(), 0, 0, 0
    with contextlib.ExitStack() as stack:
        try:
            files = [stack.enter_context(_Writer(path, about, min(most, found.lines - most * k) * entry))
                     for k, path in enumerate(targets)]
            for texts in read_lines(source):
                if lines + len(texts) > found.lines:
                    break
                places = [(files[i // most], str(i)) for i in range(lines, lines + len(texts))]
                for new in _embed(run, texts, places, chosen, words, long, source):
                    done, tokens = done + 1, tokens + new
                    tell(Progress(done, found.lines, tokens, time.monotonic() - began))
                for file in files[lines // most : (lines + len(texts)) // most]:
                    file.finish()  # now, for its header takes memory
                lines += len(texts)
            if lines != found.lines:
                raise RunFault(f"{source} changed while it was read; nothing was written")
            for file in files[lines // most :]:
                file.finish()
            for file in files:
                file.publish()
        except OSError as error:
            raise RunFault(f"cannot write {target}: {error.strerror}; nothing of it is left") from None
    return targets


def _embed(
    run: Run, texts: list[str], places: list[tuple["_Writer", str]], layers: Layers, words: str, long: str,
    source: str | os.PathLike,
) -> Iterator[int]:
    """Writes the vectors of some lines, and yields for each the number of its tokens."""
    names = [f"line {int(name) + 1:,} of {source}" for _, name in places]
    pieces = [tokenized_text.tokenize_text(text, run.tokenizer) for text in texts]
    vectors = run.vectors(pieces, layers, long, names=names)  # refuses what is too long
    n, d = _shape(run, layers)
    for (file, name), p in zip(places, pieces, strict=True):
        file.reserve(name, (n, len(p.word_offsets) if words else len(p.ids), d))
    for i, hidden, _ in vectors:
        file, name = places[i]
        file.write(name, encode.by_word(hidden, pieces[i].words, words) if words else hidden)
        yield len(pieces[i].ids)


def _shape(run: Run, layers: Layers) -> tuple[int, int]:
    """n and d of the tensors."""
    number = len(layers.numbers)
    return {"stack": (number, run.model.width), "sum": (1, run.model.width),
            "concat": (1, number * run.model.width)}[layers.join]


def _about(run: Run, layers: Layers, words: str) -> bytes:
    """The header's entry about the file as a whole."""
    numbers = ",".join(map(str, layers.numbers))
    return json.dumps({"__metadata__": {
        "layers": numbers if layers.join == "stack" else f"{layers.join}:{numbers}",
        "vectors": f"words, {words} of their pieces" if words else "tokens", "step": str(run.step)}})[1:-1].encode()


def _targets(target: Path, number: int) -> list[Path]:
    """The files that the lines go to."""
    if number == 1:
        return [target]
    return [target.with_name(f"{target.stem}-{i:05}-of-{number:05}{target.suffix}") for i in range(1, number + 1)]


def _entry_room(run: Run, layers: Layers, lines: int) -> int:
    """Bytes that a tensor's entry in the header may need."""
    (n, d), (tokens, offset) = _shape(run, layers), (10**digits - 1 for digits in DIGITS)
    return len(_entry(str(lines), (n, tokens, d), (offset, offset)))


def _entry(name: str, shape: tuple[int, ...], places: tuple[int, int]) -> bytes:
    """A tensor's entry in the header."""
    tensor = json.dumps({"dtype": "F32", "shape": shape, "data_offsets": places}, separators=(",", ":"))
    return f',"{name}":{tensor}'.encode()


class _Writer:
    """A safetensors file in the making, under another name until `publish`; removed where it does not come to that.

    Args:
      path: of the file.
      about: the header's first entry.
      room: bytes to leave for the others.
    """

    def __init__(self, path: Path, about: bytes, room: int):
        self._path, self._partial = path, path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._header, self._places = [b"{" + about], {}
        self._room = -(-(len(about) + 2 + room) // 8) * 8  # so that the data are aligned
        self._end = 0

    def __enter__(self) -> "_Writer":
        self._file: BinaryIO = open(self._partial, "xb")
        return self

    def __exit__(self, *_) -> None:
        with contextlib.suppress(OSError):  # it holds what a full disk did not take
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def reserve(self, name: str, shape: tuple[int, ...]) -> None:
        """Gives a tensor its place, after those before it."""
        start, self._end = self._end, self._end + 4 * int(np.prod(shape))
        self._places[name] = start
        self._header.append(_entry(name, shape, (start, self._end)))

    def write(self, name: str, values: np.ndarray) -> None:
        """Writes float32 values to the place of a tensor."""
        self._file.seek(8 + self._room + self._places.pop(name))
        self._file.write(np.ascontiguousarray(values, "<f4").data)

    def finish(self) -> None:
        """Writes the header, and closes the file."""
        header = b"".join(self._header) + b"}"
        self._header.clear()
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little"))
        self._file.write(header.ljust(self._room))
        self._file.close()

    def publish(self) -> None:
        """Gives the file its name."""
        os.replace(self._partial, self._path)
