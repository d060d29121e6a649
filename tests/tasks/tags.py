"""Sentences with tags of persons and cities."""

import numpy as np

from lmrep.data import tokenizers
from lmrep.data.records import Record
from lmrep.data.records.encoding import InputLayout
from lmrep.tasks import tagging
from lmrep.tasks.base import Format, TextEncoder

NAMES = ("Ann", "Ben", "Cleo", "Dora")
CITIES = ("Rome", "Lima", "Oslo", "Bonn")
SENTENCE = ["Ann", "unbelievably", "isn't", "in", "上海", ",", "e.g.", "naïve"]


def sentences(count, seed=0):
    """[(words, tags)], persons of one or two words and cities."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        pairs = []
        for _ in range(draw.integers(1, 4)):
            name = [str(word) for word in draw.choice(NAMES, draw.integers(1, 3), replace=False)]
            city = str(draw.choice(CITIES))
            pairs += [*zip(name, ["B-PER", "I-PER"], strict=False), ("visits", "O"), (city, "B-LOC"), (".", "O")]
        found.append(tuple(map(list, zip(*pairs, strict=True))))
    return found


def write(path, pairs):
    """Writes a file of two columns."""
    path.write_text("\n".join("".join(f"{word} {tag}\n" for word, tag in zip(*pair, strict=True)) for pair in pairs))
    return path


def record(words, tags=None, where="dev.conll, line 7"):
    fields = {"words": words.split()} | ({"tags": tags.split()} if tags else {})
    return Record(fields, "0", where)


def train_tokenizer(name, vocab_size=160):
    texts = [" ".join(SENTENCE), *(" ".join(words) for words, _ in sentences(40))]
    return tokenizers.train(tokenizers.Config(name=name, vocab_size=vocab_size, lowercase=name == "bpe"), lambda: texts)


def encoder(length=64, long="windows", stride=8, name="wordpiece"):
    tokenizer = train_tokenizer(name, 320 if name == "byte_level_bpe" else 64 if name.startswith("sent") else 160)
    return TextEncoder(tokenizer, InputLayout((2,), (3,), (3,), 0), length, Format(long=long, stride=stride))


def resolved(records, **fields):
    return tagging.resolve(tagging.Config(**fields), records)
