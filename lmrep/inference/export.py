"""Writes the vectors of a text file, line by line, in bounded memory, and completely or not at all.

The safetensors library writes tensors that are in memory. These may not fit there, so this module writes the file: the
length of the header in 8 bytes, the header as JSON (dtype, shape and offsets of each tensor), and the tensors. The
header comes first but is known last, so lines are counted beforehand, and space is reserved for it.
"""

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lmrep.core import text_files
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import check_output
from lmrep.inference import encode
from lmrep.inference.run import Run
from lmrep.inference.streams import Streams
from lmrep.models.layer_choice import Layers

LINES, CHARACTERS = 4096, 2**20  # the most in memory at once
LONGEST_LINE = 2**20  # bytes
HEADER = 100_000_000  # bytes; the library reads no longer header
DIGITS = 7, 15  # the most digits of the number of tokens in a line, and of an offset


def count_lines(path: str | os.PathLike) -> int:
    """Counts the lines of a text file. Lines end with "\\n"; the last one may lack it.

    Raises:
      UserError: it cannot be read twice, is empty, is not UTF-8, or has a line of more than LONGEST_LINE bytes.
    """
    lines = sum(1 for _ in text_files.lines(path, limit=LONGEST_LINE))
    if not lines:
        raise UserError(f"{path} is empty; give a file with a text on each line")
    return lines


def read_lines(path: str | os.PathLike) -> Iterator[list[str]]:
    """Yields the lines of a UTF-8 file without their line ends, in chunks of at most LINES lines."""
    lines, characters = [], 0
    for line in text_files.lines(path):
        lines.append(line)
        characters += len(line) + 1
        if len(lines) == LINES or characters >= CHARACTERS:
            yield lines
            lines, characters = [], 0
    if lines:
        yield lines


# Vectors


def embed(
    run: Run, source: str | os.PathLike, target: str | os.PathLike, *, layers: str = "last", words: str = "",
    pool: str = "", long: str = "refuse", pretokenized: bool = False, streams: int = 0,
    progress: Callable[[int, int, int], None] = lambda lines, tokens, total: None,
) -> list[Path]:
    """Writes the vectors of each line of a text file: line i, counted from 0, as the tensor named `i`, float32 [n, t,
    d]; with `pool`, one array float32 [lines, d], whose row i is the vector of line i.

    Vectors and special tokens are those of `run.encode`. A text of more lines than the library reads in one file of
    tensors (about a million) becomes several files, such as "vectors-00001-of-00003.safetensors".

    Args:
      run: the trained run.
      source: a UTF-8 text file.
      target: the .safetensors file to write; with `pool`, the .npy file. It must not exist, and appears when it is
        complete.
      layers: as in `run.encode`.
      words: "mean", "first" or "last" for one vector per word, [n, w, d], as in `encode.by_word`; "" for one per token,
        special tokens included.
      pool: "mean", "max" or "cls" for one vector per line, as in `encode.pool_tokens`; "" for one per token or word.
      long: "refuse" or "windows", for lines longer than the model.
      pretokenized: whether lines are words separated by spaces, which are kept as they are.
      streams: as in `run.encode`: line i continues the state of line i - streams.
      progress: called with (1, number of tokens, lines in all) after each line.

    Returns:
      The files written.

    Raises:
      UserError: an argument is invalid, or a line is too long.
      RunFault: writing failed.
    """
    target, chosen = Path(target), run.layers(layers)
    check(target, words, long, pool)
    if pool:
        encode.check_one_layer(chosen)
    states = Streams(run, streams) if streams else None
    total = count_lines(source)
    writers, most = _writers(run, target, total, chosen, words, pool)
    lines = 0
    with contextlib.ExitStack() as stack:
        try:
            for file in writers:
                # The exit comes first: a signal may end this process as soon as the file is there.
                stack.push(file).open()
            for texts in read_lines(source):
                if lines + len(texts) > total:
                    break
                locations = [(writers[i // most], str(i)) for i in range(lines, lines + len(texts))]
                for new in _embed(run, texts, locations, chosen, words, pool, long, pretokenized, states, source):
                    progress(1, new, total)
                for file in writers[lines // most : (lines + len(texts)) // most]:
                    file.finish()  # now, for its header takes memory
                lines += len(texts)
            if lines != total:
                raise RunFault(f"{source} changed while it was read; nothing was written")
            for file in writers[lines // most :]:
                file.finish()
            for file in writers:
                file.publish()
        except OSError as error:
            raise RunFault(f"cannot write {target}: {error.strerror}; nothing is written") from None
    return [file.path for file in writers]


def _writers(
    run: Run, target: Path, total: int, layers: Layers, words: str, pool: str
) -> tuple[list["_Tensors | _Rows"], int]:
    """Returns (the files to write, lines in each). Raises UserError if one exists."""
    n, d = _shape(run, layers)
    if pool:
        writers, most = [_Rows(target, (total, d))], total
    else:
        # A tensor's entry in the header takes at most `entry` bytes.
        tokens, offset = (10**digits - 1 for digits in DIGITS)
        entry, about = len(_entry(str(total), (n, tokens, d), (offset, offset))), _about(run, layers, words)
        most = (HEADER - len(about) - 8) // entry
        number = -(-total // most) or 1
        targets = [target] if number == 1 else [
            target.with_stem(f"{target.stem}-{i:05}-of-{number:05}") for i in range(1, number + 1)]
        writers = [_Tensors(path, about, min(most, total - most * k) * entry) for k, path in enumerate(targets)]
    for file in writers:
        if file.path.exists():
            raise UserError(f"{file.path} exists; remove it, or give another --output")
    return writers, most


def check(target: Path, words: str, long: str, pool: str = "") -> None:
    """Raises UserError for invalid arguments of `embed`."""
    encode.check_choice("long", long, encode.LONG)
    if words:
        encode.check_choice("words", words, encode.WORD_POOLINGS)
    if pool:
        encode.check_choice("pool", pool, encode.POOLINGS)
        if words:
            raise UserError("pool gives one vector a line, and words one a word; leave one of them out")
    suffix, form = (".npy", "one NumPy array") if pool else (".safetensors", "safetensors")
    if target.suffix != suffix:
        raise UserError(f"the output is {target}; vectors are written as {form}, so give a name that ends in {suffix}")
    check_output(target)


def _embed(
    run: Run, texts: list[str], locations: list[tuple["_Tensors | _Rows", str]], layers: Layers, words: str, pool: str,
    long: str, pretokenized: bool, states: Streams | None, source: str | os.PathLike,
) -> Iterator[int]:
    """Writes the vectors of a chunk of lines, and yields the number of tokens of each."""
    names = [f"line {int(name) + 1:,} of {source}" for _, name in locations]
    tokenized = [run.tokenize(text, name, pretokenized) for text, name in zip(texts, names, strict=True)]
    vectors = (run.vectors(tokenized, layers, long, names=names) if states is None else
               states.vectors(tokenized, layers, names))  # refuses what is too long
    n, d = _shape(run, layers)
    for (file, name), text in zip(locations, tokenized, strict=True):
        file.reserve(name, (n, len(text.word_offsets) if words else len(text.ids), d))
    for i, hidden, *_ in vectors:
        file, name = locations[i]
        words_of = tokenized[i].words
        file.write(name, encode.pool_tokens(hidden, words_of, pool) if pool else
                   encode.by_word(hidden, words_of, words) if words else hidden)
        yield len(tokenized[i].ids)


def _shape(run: Run, layers: Layers) -> tuple[int, int]:
    """Returns n and d of the tensors."""
    number = len(layers.numbers)
    return {"stack": (number, run.model.width), "sum": (1, run.model.width),
            "concat": (1, number * run.model.width)}[layers.join]


def _about(run: Run, layers: Layers, words: str) -> bytes:
    """Returns the metadata entry of the header."""
    numbers = ",".join(map(str, layers.numbers))
    return json.dumps({"__metadata__": {
        "layers": numbers if layers.join == "stack" else f"{layers.join}:{numbers}",
        "vectors": f"words, {words} of their tokens" if words else "tokens", "step": str(run.step)}})[1:-1].encode()


def _entry(name: str, shape: tuple[int, ...], offsets: tuple[int, int]) -> bytes:
    """Returns a tensor's entry in the header."""
    tensor = json.dumps({"dtype": "F32", "shape": shape, "data_offsets": offsets}, separators=(",", ":"))
    return f',"{name}":{tensor}'.encode()


class _Output:
    """A file that is written under a temporary name until `publish`; removed on exit without it."""

    def __init__(self, path: Path):
        self.path, self._partial = path, path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Creates the file."""
        self._file = open(self._partial, "xb")  # noqa: SIM115 (closed by __exit__)

    def __exit__(self, *_) -> None:
        with contextlib.suppress(OSError):  # it flushes, which fails on a full disk
            if self._file:
                self._file.close()
        self._partial.unlink(missing_ok=True)

    def _write_at(self, offset: int, values: np.ndarray) -> None:
        self._file.seek(offset)
        self._file.write(np.ascontiguousarray(values, "<f4").data)

    def publish(self) -> None:
        """Gives the file its final name."""
        os.replace(self._partial, self.path)


class _Tensors(_Output):
    """A safetensors file."""

    def __init__(self, path: Path, about: bytes, entries: int):
        super().__init__(path)
        self._header, self._starts = [b"{" + about], {}
        self._header_size = -(-(len(about) + 2 + entries) // 8) * 8  # so that the data are aligned
        self._end = 0

    def reserve(self, name: str, shape: tuple[int, ...]) -> None:
        """Reserves space for a tensor, after the previous ones."""
        start, self._end = self._end, self._end + 4 * int(np.prod(shape))
        self._starts[name] = start
        self._header.append(_entry(name, shape, (start, self._end)))

    def write(self, name: str, values: np.ndarray) -> None:
        """Writes the values of a tensor as float32."""
        self._write_at(8 + self._header_size + self._starts.pop(name), values)

    def finish(self) -> None:
        """Writes the header, and closes the file."""
        header = b"".join(self._header) + b"}"
        self._header.clear()
        self._file.seek(0)
        self._file.write(self._header_size.to_bytes(8, "little"))
        self._file.write(header.ljust(self._header_size))
        self._file.close()


class _Rows(_Output):
    """A .npy file of an array float32 [n, d]."""

    def __init__(self, path: Path, shape: tuple[int, int]):
        super().__init__(path)
        self._shape, self._start = shape, 0

    def open(self) -> None:
        """Creates the file, with its header."""
        super().open()
        np.lib.format.write_array_header_1_0(
            self._file, {"descr": "<f4", "fortran_order": False, "shape": self._shape})
        self._start = self._file.tell()

    def reserve(self, name: str, shape: tuple[int, ...]) -> None:
        """Does nothing: the place of a row depends on its number alone."""

    def write(self, name: str, values: np.ndarray) -> None:
        """Writes row `name`, [1, d]."""
        self._write_at(self._start + 4 * self._shape[1] * int(name), values)

    def finish(self) -> None:
        """Closes the file."""
        self._file.close()
