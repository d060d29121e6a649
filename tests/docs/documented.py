"""The commands and the Python blocks of README.md, docs/ and launch/README.md. Tutorials have `test_learn.py`."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs/learn").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {*TUTORIALS}), ROOT / "launch/README.md"]


class Block(NamedTuple):
    """A fenced block of a page: its language, its text and the number of its first line."""

    page: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """Where it is."""
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """The blocks in these languages, in the order of the pages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf8")
        for match in re.finditer(r"^```([a-z]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if match[1] in languages:
                line = text[: match.start(2)].count("\n") + 1
                found.append(Block(str(page.relative_to(ROOT)), line, match[1], match[2]))
    return found


class Table(NamedTuple):
    """A table of a page: the number of its first line, the cells of its head and of its other rows, and the text that
    follows up to an empty line."""

    page: str
    line: int
    head: list[str]
    rows: list[list[str]]
    below: str

    @property
    def name(self) -> str:
        """Where it is."""
        return f"{self.page}:{self.line}"

    @property
    def measured(self) -> bool:
        """Whether most rows have a cell that begins with a number, beside the first one."""
        return 2 * sum(any(re.match(r"[+-]?[\d.]*\d", cell) for cell in row[1:]) for row in self.rows) > len(self.rows)


def tables() -> list[Table]:
    """The tables of the pages, in their order."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf8")
        for match in re.finditer(r"^(\|.*\|\n)\|[ |-]+\|\n((?:\|.*\n)+)(?:\n((?:.+\n)*))?", text, re.MULTILINE):
            head, *rows = ([cell.strip() for cell in row.strip("|").split("|")]
                           for row in (match[1] + match[2]).splitlines())
            line = text[: match.start()].count("\n") + 1
            found.append(Table(str(page.relative_to(ROOT)), line, head, rows, match[3] or ""))
    return found


def commands() -> list[tuple[Block, str]]:
    """(block, command) of every line of a shell block; a continued line is one command, `&&` stands between two."""
    return [(block, command) for block in blocks("sh") for command in lines(block.text)]


def lines(text: str) -> list[str]:
    """The commands of a shell block."""
    return [command.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines() for command in line.split(" && ")
            if command.strip()]
