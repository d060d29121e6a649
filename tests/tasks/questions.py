"""Questions about short contexts, their units, and logits for them."""

import numpy as np

from lmrep.data import tokenizers
from lmrep.data.records import Record
from lmrep.data.records.encoding import input_layout
from lmrep.tasks.answers import encode
from lmrep.tasks.base import Format, TextEncoder
from lmrep.tasks.span_extraction import Config

NAMES = ("Zoë", "Ada", "Kurt", "Emmy", "Alan", "Grace", "Çelik", "Noor")
CITIES = ("Bern", "Łódź", "Oslo", "Turin", "Basel", "Quito", "Lyon", "Kyoto")
TEXTS = [f"{name} lives in {city}. Where does {name} live? 1 2 3 4 5 6 7 8 9 0" for name in NAMES for city in CITIES]


def wordpiece(size=300):
    return tokenizers.train(tokenizers.Config(name="wordpiece", vocab_size=size), lambda: iter(TEXTS))


def question(question="Where does Ada live?", context="Ada lives in Bern.", answers=None, id="0"):
    fields = {"question": question, "context": context}
    if answers is not None:
        fields["answers"] = [(text, context.index(text)) for text in answers]
    return Record(fields, id, f"dev.json, question {id}")


def encoded(records, config=Config(unanswerable=True), length=64, stride=128, long="windows", tokenizer=None,
            context="both", cls_last=False):
    """(units, number of long ones, tokenizer)."""
    tokenizer = tokenizer or wordpiece()
    layout = input_layout(tokenizer.vocabulary, context, True, cls_last=cls_last)
    units, long = encode(config, records, TextEncoder(tokenizer, layout, length, Format(long, stride)))
    return units, long, tokenizer


def span_of(units, unit):
    """The characters [start, end) of a unit's target; None for no answer."""
    details = units.details
    start, end = units.columns["start"][unit], units.columns["end"][unit]
    if start == units.columns["null"][unit]:
        return None
    shift = details["begin"][unit] - details["position"][unit] + details["bounds"][details["context"][unit]]
    return int(details["offsets"][start + shift, 0]), int(details["offsets"][end + shift, 1])


def outputs_of(units, seed=0, **changes):
    """Random logits of every unit; `changes`: {name: {(unit, position): value}}."""
    draw = np.random.default_rng(seed)
    arrays = {name: [draw.normal(size=n).astype(np.float32) for n in units.lengths] for name in ("start", "end")}
    for name, values in changes.items():
        for (unit, position), value in values.items():
            arrays[name][unit][position] = value
    return arrays
