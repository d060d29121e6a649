"""The senses that words have in training data: the candidates of each lemma and part of speech."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.data.records.values import short


def name_of(record: Record) -> str:
    """lemma#pos of a record's word, with underscores for white space."""
    return "_".join(f"{record.fields['lemma']}#{record.fields.get('pos', '')}".split())


def check(record: Record) -> None:
    """Refuses a record without a lemma, or with a sense that has white space."""
    if not record.fields["lemma"].strip():
        raise UserError(f"{record.where} has an empty lemma; expected the dictionary form of the word")
    for sense in record.fields.get("senses", ()):
        if len(sense.split()) != 1:
            raise UserError(f"{record.where} has the sense {short(sense)}; expected a name without white space")


def lines(records: Iterable[Record]) -> tuple[str, ...]:
    """A line for each lemma and part of speech of training data: lemma#pos and its senses with spaces between them, the
    most frequent one first. Of a lemma's parts of speech the most frequent one is first."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[name_of(record)].update(record.fields["senses"])

    def order(name: str) -> tuple[str, int, str]:
        return name.rpartition("#")[0], -counts[name].total(), name

    return tuple(" ".join([name, *sorted(counts[name], key=lambda sense: (-counts[name][sense], sense))])
                 for name in sorted(counts, key=order))


class Inventory(NamedTuple):
    """The candidates of words.

    Attributes:
      senses: lemma#pos -> the numbers of its senses among the labels, the most frequent one first.
      lemmas: lemma -> those of its senses as any part of speech, in the same order.
    """

    senses: dict[str, list[int]]
    lemmas: dict[str, list[int]]

    def candidates(self, record: Record) -> list[int]:
        """The senses of a record's word: those of its lemma as its part of speech; of a lemma that the training data
        lacks as that, its first sense alone; without a part of speech, all of the lemma. [] for an unknown lemma."""
        name = name_of(record)
        if name in self.senses:
            return self.senses[name]
        lemma, _, pos = name.rpartition("#")
        return self.lemmas.get(lemma, [])[: 1 if pos else None]

    @property
    def most(self) -> int:
        """The largest number of candidates of a word; 1 at least."""
        return max(map(len, (*self.senses.values(), *self.lemmas.values())), default=1)


def inventory(lines: Sequence[str], labels: Sequence[str]) -> Inventory:
    """The candidates that `lines` lists; senses that are none of the labels are left out."""
    numbers, senses, lemmas = {label: i for i, label in enumerate(labels)}, {}, {}
    for name, *found in map(str.split, lines):
        senses[name] = [numbers[sense] for sense in found if sense in numbers]
        own = lemmas.setdefault(name.rpartition("#")[0], [])
        own += [number for number in senses[name] if number not in own]
    return Inventory(senses, lemmas)
