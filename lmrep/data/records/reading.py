"""Reads a split: finds its files, selects the reader, and maps labels by the config."""

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lmrep.config.record import choose, suggestion
from lmrep.core.components import described, faults_of, type_of
from lmrep.core.errors import Broken, UserError
from lmrep.data.records import files, tfds, values
from lmrep.data.records.base import FIELDS, Config, Job, Record
from lmrep.data.records.detection import READERS, detect

log = logging.getLogger(__name__)


def read(config: Config, split: str, needed: Collection[str] = ()) -> list[Record]:
    """Reads the labelled examples of a split, in the order of its files.

    Args:
      config: the files, their format and their columns.
      split: "train", "validation" or "test".
      needed: fields that every example must have; the error names the existing columns. In the test split, `TARGETS`
        may be absent.

    Raises:
      UserError: no files, no examples, or an example that cannot be read, with file and line.
    """
    pattern = files_of(config, split)
    if not pattern:
        raise UserError(f"there are no {split} files: set config.data.{split} to a path or a glob")
    if config.held_out and split != "test":
        return _hold_out(config, split, needed)
    explicit = columns_of(config, split, needed)
    records, labels, damaged, replaced, count = [], set(), [], [], -1
    for count, item in enumerate(_items(config, split, pattern, explicit, needed)):
        if not isinstance(item, UserError):
            if config.undecodable == "replace" and (clean := values.without_surrogates(item)) is not item:
                item, replaced = clean, [*replaced, item.where]
            item = values.split_labels(item, config.label_separator)
            item = values.check(item, split) or _relabel(item, config, labels)
        if isinstance(item, UserError):
            damaged.append(item)
            if len(damaged) > config.damaged_examples:
                raise UserError(f"more than {config.damaged_examples} examples of {pattern} cannot be read; the first: "
                                f"{damaged[0]}") if config.damaged_examples else item
        elif item:
            records.append(item if item.id else item._replace(id=str(count)))
    if damaged:
        log.warning("left out %d examples of %s that cannot be read; the first: %s", len(damaged), pattern, damaged[0])
    if replaced:
        log.warning("%s: what is not a character is replaced by U+FFFD in %s examples, first in %s", pattern,
                    f"{len(replaced):,}", replaced[0])
    if split == "train" and any(config.label_map.values()) and labels and not labels & set(config.label_map):
        raise UserError(f"config.data.label_map has none of the labels of {pattern}: it maps "
                        f"{values.listed(sorted(config.label_map), repr)}, and the labels are "
                        f"{values.listed(sorted(labels), repr)}")
    if not records:
        raise UserError(f"{pattern} has no examples" + f": all {count + 1} are left out" * (count >= 0))
    return records


def columns_of(config: Config, split: str, needed: Collection[str]) -> Mapping[str, str]:
    """Returns the columns that the config gives for a split. Raises UserError for a field, there or in `needed`, that
    does not exist."""
    explicit = (split == "test" and config.test_columns) or config.columns
    for field in (*explicit, *needed):
        if field != "id":
            choose(FIELDS, field, "a field of columns")
    return explicit


def files_of(config: Config, split: str) -> str:
    """Returns the path or glob of a split's files: the training files, if validation examples are held out of them."""
    return config.train if split == "validation" and config.held_out else getattr(config, split)


def check_files(config: Config, path: str) -> None:
    """Raises UserError if files for training and validation are missing; `path` is that of the config, for the
    message."""
    for split in ("train", "validation"):
        pattern = getattr(config, split)
        if pattern and not config.tfds and config.format != "tfds":
            try:
                files.find(pattern, split)
            except UserError as error:
                raise UserError(f"{error}, or give others as --{path}.{split}=FILES") from None


def other_files(config: Config, files: str, form: Mapping[str, Any] = {}) -> Config:
    """Returns the config of other files, as the test split of `config`. They have the columns of its files, or of its
    test file if they are named like it; a TFDS data set and split, such as tfds:glue/ax:test, has those of `form`,
    fields of a config. Raises UserError for another form of the latter."""
    if files.startswith(tfds.PREFIX):
        dataset, split = tfds.dataset_and_split(files)
        fields = {field: form[field] for field in ("columns", "label_map") if field in form}
        return replace(config, tfds=dataset, format="auto", test=split, test_columns={}, **fields)
    known = config if not config.tfds else replace(config, tfds="", columns={}, format="auto")
    columns = known.test_columns if known.test_columns and Path(files).name == Path(known.test).name else {}
    return replace(known, test=files, test_columns=columns)


def _hold_out(config: Config, split: str, needed: Collection[str]) -> list[Record]:
    """Reads the training examples, and returns those held out for validation, at most a fifth, or the others. The draw
    depends on the numbers of examples only."""
    if config.validation or config.phrases:
        other = "validation" if config.validation else "phrases"
        raise UserError(f"config.data.held_out is {config.held_out} and config.data.{other} is "
                        f"{getattr(config, other)!r}; set one of them alone")
    records = read(replace(config, held_out=0), "train", needed)
    if len(records) < 2:
        raise UserError(f"{config.train} has one example, and config.data.held_out is {config.held_out:,}; set it to 0")
    count = min(config.held_out, max(1, len(records) // 5))
    if count < config.held_out and split == "validation":
        log.warning("config.data.held_out is %s, and %s has %s examples: a fifth of them, %s, is held out",
                    f"{config.held_out:,}", config.train, f"{len(records):,}", f"{count:,}")
    drawn = {*np.random.default_rng(0).permutation(len(records))[:count].tolist()}
    return [record for i, record in enumerate(records) if (i in drawn) == (split == "validation")]


def fingerprint(records: Iterable[Record]) -> str:
    """Computes the SHA-256 of the fields and ids of records, in order, but not of their files."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps([record.id, sorted(record.fields.items())]).encode() + b"\n")
    return digest.hexdigest()


def _items(config: Config, split: str, pattern: str, explicit: Mapping[str, str],
           needed: Collection[str]) -> Iterator[Record | UserError]:
    if config.tfds and config.format not in ("auto", "tfds"):
        raise UserError(f"config.data.tfds is {config.tfds!r} and config.data.format is {config.format!r}; "
                        "set one of them alone")
    if config.tfds or config.format == "tfds":
        sources = [(Path(pattern), "tfds")]
    else:
        sources = ((path, detect(path, config, needed)) for path in files.find(pattern, split))
    for path, reader_name in sources:
        reader = READERS[reader_name]
        columns = {**{field: field for field in needed}, **reader.columns, **explicit}
        job = Job(path, split, columns, config)
        with faults_of(described("reader", reader_name, reader.read), reader.read):
            if not isinstance(items := reader.read(job), Iterable):
                raise Broken(f"its read returns {type_of(items)}; expected an iterable of Record of lmrep.data.records")
            for item in items:
                if isinstance(item, UserError):
                    yield item
                    continue
                if not isinstance(item, Record):
                    raise Broken(f"its read gives {type_of(item)}; expected Record of lmrep.data.records or UserError")
                if unknown := item.fields.keys() - FIELDS.keys():
                    raise Broken(f"its read gives the field {min(unknown)!r}, which does not exist"
                                 f"{suggestion(min(unknown), FIELDS)}")
                for name, value in item.fields.items():
                    types = FIELDS[name].partition(":")[0]
                    if isinstance(value, str) not in {type_ == "str" for type_ in types.split(" or ")}:
                        raise Broken(f"its read gives the {name} of {item.where} as {type_of(value)}; expected {types}")
                missing = next((name for name in needed if name not in item.fields and not job.optional(name)), "")
                yield UserError(
                    f"{item.where} has no {missing}, only {', '.join(item.fields)}, as the reader {reader_name!r} has "
                    "read it; set config.data.columns, or config.data.format for another reader") if missing else item


def _relabel(record: Record, config: Config, labels: set[str]) -> Record | UserError | None:
    """Applies `label_until` and `label_map`, and adds the label and tags before the mapping to `labels`. Returns None
    for an example to leave out, and a UserError for a label that is empty or not the number of a choice."""
    fields = dict(record.fields)
    if config.label_map and (tags := fields.get("tags")):
        labels.update(tags)
        fields["tags"] = [config.label_map.get(tag, tag) for tag in tags]
        if not all(fields["tags"]):
            where = record.where_word(fields["tags"].index(""))
            return UserError(f"{where}: config.data.label_map leaves a word without a tag; map it to another one, such "
                             "as O")
    if (target := fields.get("target")) in config.label_map:
        fields["target"] = config.label_map[target]
    if several := fields.get("labels"):
        if config.label_until:
            several = [label.split(config.label_until)[0] for label in several]
        labels.update(several)
        fields["labels"] = [*dict.fromkeys(filter(None, (config.label_map.get(label, label) for label in several)))]
    record, label = record._replace(fields=fields), fields.get("label")
    if label is None:
        return record
    if config.label_until:
        label = label.split(config.label_until)[0]
        if not label:
            return UserError(f"{record.where}: nothing precedes config.data.label_until={config.label_until!r} in the "
                             f"label {values.short(fields['label'])}; {values.CORRECT}")
    labels.add(label)
    fields["label"] = config.label_map.get(label, label)
    return (values.check_choice(record) or record) if fields["label"] else None


def spread(records: Sequence[Record], count: int | None) -> Sequence[Record]:
    """Returns `count` records at equal distances, so that files sorted by class keep all classes; all records if there
    are fewer, or if `count` is 0 or None."""
    if not count or count >= len(records):
        return records
    return [records[i * len(records) // count] for i in range(count)]
