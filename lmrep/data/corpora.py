"""Corpora: where the documents come from, and which of them train, validate and test.

A corpus is a stream of documents, each one text. Every document belongs to one split, and its text alone decides
which: SHA-256 maps it to a number in [0, 1), and the splits cut that range. So a document's copies stay together, and
neither the order of the documents nor new ones among them move any other.
"""

import glob
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data import python_docs

SPLITS = ("test", "validation", "train")  # in the order in which they cut [0, 1)


@dataclass(frozen=True)
class Config:
    """A corpus and its splits."""

    corpus: str = setting("python_docs", "where documents come from", choices=("python_docs", "text_files", "tfds"))
    files: str = setting("", "text_files: a glob of UTF-8 files; ** stands for any folders")
    documents: str = setting("auto", "text_files: what one document is; auto: a single file splits at blank lines, "
                             "several files are a document each", choices=("auto", "file", "blank_line", "line"))
    tfds_name: str = setting("", "tfds: a TFDS name or a directory, such as imdb_reviews/plain_text:1.0.0")
    tfds_split: str = setting("train", "tfds: the split whose examples are the documents")
    text_feature: str = setting("text", "tfds: the feature that holds the text")
    validation: float = setting(0.02, "share of the documents held out for validation", at_least=0, below=1)
    test: float = setting(0.02, "share of the documents held out for the test", at_least=0, below=1)


@dataclass(frozen=True)
class Corpus:
    """A stream of documents.

    Attributes:
      name: which kind of corpus it is.
      description: what it is and where it lies, for people.
      documents: each call streams the texts anew, in a fixed order, none of them blank; line breaks are `\\n`.
      fingerprint: names the content; it changes when any document does.
    """

    name: str
    description: str
    documents: Callable[[], Iterator[str]]
    fingerprint: Callable[[], str]


def open_corpus(config: Config) -> Corpus:
    """The corpus that a config names. Raises UserError where there is none."""
    return {"python_docs": _python_docs, "text_files": _text_files, "tfds": _tfds}[config.corpus](config)


def place(text: str) -> int:
    """Where a document falls in the splits' range: 64 bits of its SHA-256, a uint64."""
    return int.from_bytes(hashlib.sha256(text.encode("utf8", "surrogatepass")).digest()[:8], "big")


def assign(places: np.ndarray, config: Config) -> np.ndarray:
    """The split of each document, as int8 indices into SPLITS, from the uint64 `place` of each.

    The documents in order of place are cut at `test` and at `test + validation` of the range. A cut that would leave
    a split empty that was asked for moves by one document, the one nearest to it: only then, in corpora of few
    documents, can a new document change another's split. Raises UserError where there are too few for that.
    """
    if config.test + config.validation >= 1:
        raise UserError(f"data.validation {config.validation:g} and data.test {config.test:g} leave nothing to train "
                        "on; expected a sum below 1")
    distinct, which = np.unique(places, return_inverse=True)
    shares = np.array([config.test, config.validation], float)
    asked = (shares > 0).astype(int)
    if len(distinct) <= asked.sum():
        raise UserError(_too_few(len(places), len(distinct), config))
    limits = [int(share * 2**64) for share in np.cumsum(shares)]
    cuts = np.searchsorted(distinct, np.array(limits, np.uint64))
    cuts[0] = max(cuts[0], asked[0])
    cuts[1] = min(max(cuts[1], cuts[0] + asked[1]), len(distinct) - 1)
    cuts[0] = min(cuts[0], cuts[1] - asked[1])
    return np.searchsorted(cuts, which, side="right").astype(np.int8)


def _too_few(documents: int, distinct: int, config: Config) -> str:
    found = f"the corpus has {documents} document{'' if documents == 1 else 's'}"
    found += "" if documents == distinct else f", {distinct} of them distinct"
    mend = "--config.data.documents=blank_line or =line makes a document of each paragraph or line" \
        if config.corpus == "text_files" and config.documents != "line" else "give it more documents"
    return f"{found}: too few for the splits asked for; {mend}, or set --config.data.validation=0 and test=0"


def _python_docs(config: Config) -> Corpus:
    folder = python_docs.root()

    def documents() -> Iterator[str]:
        texts, _ = python_docs.documents(folder)
        if not texts:
            raise UserError(f"no documentation found under {folder}, where this Python should keep its standard "
                            "library; use --config.data.corpus=text_files with your own files")
        return iter(texts)

    return Corpus("python_docs", "the documentation that comes with Python", documents,
                  lambda: python_docs.fingerprint(folder))


def _text_files(config: Config) -> Corpus:
    pattern = os.path.expanduser(config.files)
    if not pattern:
        raise UserError("data.corpus is text_files but data.files is empty; expected a glob, such as "
                        "--config.data.files='books/**/*.txt'")
    found = sorted(glob.glob(pattern, recursive=True))
    paths = [pathlib.Path(path) for path in found if os.path.isfile(path)]
    if not paths:
        hint = f"it is a folder; try {os.path.join(pattern, '**', '*.txt')!r}" if os.path.isdir(pattern) else \
            "check the path, and quote the glob so that the shell leaves it alone"
        raise UserError(f"data.files {config.files!r} matches no file in {os.getcwd()}; {hint}")
    unit = config.documents
    if unit == "auto":
        unit = "blank_line" if len(paths) == 1 else "file"

    def documents() -> Iterator[str]:
        texts = (text for path in paths for text in _read(path, unit))
        return _never_empty(texts, f"data.files {config.files!r} holds no text: {len(paths)} files, all of them blank")

    def fingerprint() -> str:
        top = os.path.commonpath([path.parent for path in paths])
        digest = hashlib.sha256(unit.encode())
        for path in paths:
            try:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}") from error
            digest.update(f"{os.path.relpath(path, top)}\0{path.stat().st_size}\0{content}\n".encode())
        return digest.hexdigest()

    name = paths[0].name if len(paths) == 1 else f"{len(paths)} files of {config.files}"
    return Corpus("text_files", f"{name}, a document a {unit.replace('_line', ' line')}", documents, fingerprint)


def _read(path: pathlib.Path, unit: str) -> Iterator[str]:
    """The documents of one file. Decoding drops a byte order mark and makes every line break `\\n`."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            pieces = {"file": _whole, "line": iter, "blank_line": _blocks}[unit](file)
            yield from (text for piece in pieces if (text := piece.strip()))
    except UnicodeDecodeError as error:
        raise UserError(_undecodable(path)) from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _whole(file: TextIO) -> Iterator[str]:
    yield file.read()


def _blocks(lines: TextIO) -> Iterator[str]:
    """Lines, joined up to the next blank one."""
    block = []
    for line in lines:
        if line.isspace():
            yield "".join(block)
            block = []
        else:
            block.append(line)
    yield "".join(block)


def _undecodable(path: pathlib.Path) -> str:
    """Which line of a file is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf8")
            except UnicodeDecodeError as error:
                bad = line[error.start : error.start + 1].hex()
                return (f"{path}, line {number}: byte 0x{bad} is not UTF-8 text; "
                        "convert the file (iconv -f ENCODING -t UTF-8) or leave it out of data.files")
    return f"{path} is not UTF-8 text"


def _never_empty(texts: Iterator[str], message: str) -> Iterator[str]:
    count = 0
    for text in texts:
        count += 1
        yield text
    if not count:
        raise UserError(message)


def _tfds(config: Config) -> Corpus:
    if not config.tfds_name:
        raise UserError("data.corpus is tfds but data.tfds_name is empty; expected a TFDS name or a directory")
    builder = _builder(config.tfds_name)
    source = _source(builder, config)
    keys = config.text_feature.split("/")

    def texts() -> Iterator[str]:
        for start in range(0, len(source), 256):
            for number, value in enumerate(source.__getitems__(range(start, min(start + 256, len(source)))), start):
                for key in keys:
                    value = value[key]
                try:
                    text = value.decode("utf8")
                except UnicodeDecodeError as error:
                    raise UserError(f"{config.tfds_name}, example {number}: {config.text_feature!r} is not UTF-8 text; "
                                    "expected UTF-8") from error
                if clean := text.replace("\r\n", "\n").strip():
                    yield clean

    def fingerprint() -> str:
        splits = {name: (info.shard_lengths, info.num_bytes) for name, info in sorted(builder.info.splits.items())}
        facts = [builder.info.full_name, splits, config.tfds_split, config.text_feature]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    return Corpus("tfds", f"{builder.info.full_name}, split {config.tfds_split}",
                  lambda: _never_empty(texts(), f"{config.tfds_name} holds no text"), fingerprint)


def _builder(name: str) -> Any:
    """The TFDS builder of a prepared dataset: a directory, or a name, which is downloaded where it is missing."""
    import tensorflow_datasets as tfds

    try:
        if os.path.isdir(os.path.expanduser(name)):
            return tfds.builder_from_directory(name)
        builder = tfds.builder(name, file_format="array_record")
        if not builder.info.splits:
            builder.download_and_prepare(file_format="array_record")
        return builder
    except Exception as error:  # TFDS raises whatever a dataset's own code raises
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"no TFDS dataset {name!r}: {reason}; expected a name that TFDS knows and can download, or the "
                        "directory of a prepared one (where dataset_info.json is)") from error


def _source(builder: Any, config: Config) -> Any:
    """Random access to the examples; UserError for a split or a text that the dataset does not have."""
    import tensorflow_datasets as tfds

    features, names = builder.info.features, config.text_feature.split("/")
    for name in names:
        nested = isinstance(features, tfds.features.FeaturesDict) and name in features
        features = features[name] if nested else None
    if getattr(features, "shape", None) != () or np.dtype(features.np_dtype).kind not in "OSU":
        raise UserError(f"{config.tfds_name} has no text feature {config.text_feature!r}; it has "
                        f"{', '.join(builder.info.features)}: set --config.data.text_feature")
    try:
        return builder.as_data_source(config.tfds_split)
    except NotImplementedError as error:
        raise UserError(f"{config.tfds_name} is stored as {builder.info.file_format.value}, which only TensorFlow "
                        "reads; prepare it with file_format='array_record'") from error
    except (KeyError, ValueError) as error:
        raise UserError(f"{config.tfds_name} has no split {config.tfds_split!r}; it has "
                        f"{', '.join(builder.info.splits)}") from error
