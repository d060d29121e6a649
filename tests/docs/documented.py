"""The commands and the Python blocks of README.md, docs/ and launch/README.md."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "launch/README.md"]


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


def commands() -> list[tuple[Block, str]]:
    """(block, command) of every line of a shell block; a continued line is one command."""
    return [(block, line.strip()) for block in blocks("sh") for line in re.sub(r"\\\n\s*", "", block.text).splitlines()
            if line.strip()]
