"""Reads phrase trees with a label at each node, as in the Stanford Sentiment Treebank (Socher et al., 2013):
`(3 (2 It) (4 works))`."""

import re
from collections.abc import Iterator

from lmrep.core.errors import UserError
from lmrep.data.records import files
from lmrep.data.records.base import Job, ReaderDef, Record
from lmrep.data.records.values import CORRECT, short

ESCAPED = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", r"\/": "/", r"\*": "*"}
MAX_DEPTH = 1000  # of nodes; the texts of all phrases together have up to as many words as the sentence times the depth
_ESCAPED = re.compile("|".join(map(re.escape, ESCAPED)))


def read(job: Job) -> Iterator[Record | UserError]:
    """Yields the sentence of each line: the words of its tree, joined by spaces, and the label of the root.

    With `phrases`, the training split has every phrase, including sentences and single words. Of phrases with equal
    words and label in a file, the first is used, so that frequent words do not outweigh sentences (SST: 318,582 phrases
    in training, 159,274 distinct). Words are unescaped: -LRB- is a parenthesis.
    """
    seen = set()
    for where, line in files.filled_lines(job.path, job.config):
        every = job.config.phrases and job.split == "train"
        try:
            phrases = parse(line, every)
        except ValueError as error:
            yield UserError(f"{where}: {error}; expected a tree such as (3 (2 It) (4 works)): {CORRECT}")
            continue
        for label, words in phrases:
            if not every or (label, words) not in seen:
                seen.add((label, words))
                yield Record({"text": words, "label": label}, "", where)


def parse(line: str, every: bool = True) -> list[tuple[str, str]]:
    """Parses a tree into (label, text) of every node, children before their parent, or (not `every`) of the root.
    Raises ValueError if the line is not one tree, or, with `every`, if it is nested more than `MAX_DEPTH` deep."""
    phrases, words, nodes = [], [], []  # phrases: label, first and last word; nodes: label and first word of open ones
    tokens = re.findall(r"[()]|[^ \t()]+", line.strip())
    for number, token in enumerate(tokens):
        if phrases and not nodes:
            raise ValueError(f"{short(token)} follows the closing parenthesis of the root")
        if token == "(":
            nodes.append([None, len(words)])
            if every and len(nodes) > MAX_DEPTH:
                raise ValueError(f"nodes are nested more than {MAX_DEPTH:,} deep")
        elif not nodes:
            raise ValueError(f"found {short(token)} in front of the first parenthesis" if number == 0 else "unbalanced")
        elif token == ")":
            label, first = nodes.pop()
            if label is None or first == len(words):
                raise ValueError("a node has no words" if label else "a node has no label")
            phrases.append((label, first, len(words)))
        elif nodes[-1][0] is None:
            nodes[-1][0] = token
        else:
            words.append(_ESCAPED.sub(lambda match: ESCAPED[match[0]], token))
    if nodes:
        raise ValueError(f"{len(nodes)} parentheses are not closed")
    return [(label, " ".join(words[first:last])) for label, first, last in phrases[0 if every else -1:]]


def detects(beginning: str) -> bool:
    """Returns whether the first line begins a tree with numbers as labels."""
    return re.match(r"\s*\([0-9]+\s+\([0-9]+\s", beginning) is not None


DEFINITION = ReaderDef(read, (".tree", ".trees"), detects)
