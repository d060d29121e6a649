"""Runs the commands of tutorials in their order, and writes what they print into the pages.

    python docs/record.py docs/learn/pretrain.md --folder=/tmp/pretrain

| block of a page | what is done with it |
| --- | --- |
| sh | it is run by bash in the folder |
| python with title="FILE" | it is the file, or its next lines after another block of that title |
| diff with title="FILE" | the file is changed; `...` stands for lines between two changes |
| text after a sh block | it becomes what that printed. After a comment `show: REGEX`, lines that do not match are left out; `...` stands for them |

A page that writes into lmrep/ gets a copy of the package in the folder, which its commands use. Pictures that the page
shows from images/ are copied from the files of the same name in the folder. Outputs are kept in the folder: what was
run there, after the same blocks, is not run again. The line after a comment `recorded` gets date, machine and versions.
"""  # noqa: E501

import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r'^```(sh|python|diff)(?: title="([^"]+)")?\n(.*?)^```\n'
                   r"(?:\n(?:<!-- show: (.*?) -->\n\n)?```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
RECORDED = re.compile(r"(?<=<!-- recorded -->\n\n).*")


class Block(NamedTuple):
    """A block of a page: `text` is run, or is the content or the change of the file `title`."""

    language: str
    title: str | None
    text: str
    show: str | None  # a pattern of the lines of the output that the page shows
    output: str | None  # as on the page
    span: tuple[int, int]  # of the output in the page
    more: bool = False  # whether an earlier block begins the file


def blocks(page: str) -> list[Block]:
    """The blocks of a page that are run or written, in their order. Raises ValueError for one without a title."""
    found, titles = [], set()
    for match in BLOCK.finditer(page):
        if (match[1] == "sh") == bool(match[2]):
            raise ValueError(f"a block is neither a command nor a file with a title: {match[3]}")
        found.append(Block(*match.groups(), match.span(5), match[2] in titles))
        titles.add(match[2])
    return found


def prepare(page: str, folder: Path) -> None:
    """Copies the package into the folder, for a page that changes it."""
    if any((block.title or "").startswith("lmrep/") for block in blocks(page)) and not (folder / "lmrep").exists():
        for name in ("lmrep", "experiments"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def write(block: Block, folder: Path) -> None:
    """Writes or changes a file. Raises ValueError if the lines to change are not there, or are there twice."""
    path = folder / block.title
    path.parent.mkdir(parents=True, exist_ok=True)
    if block.language == "python":
        path.write_text((path.read_text() if block.more else "") + block.text)
        return
    text, changes = path.read_text(), block.text.split("...\n")  # between which are other lines
    for change in changes:
        lines = change.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
        if text.count(old) != 1:
            raise ValueError(f"{block.title} has {text.count(old)} times, expected once:\n{old}")
        text = text.replace(old, new)
    path.write_text(text)


def run(block: Block, folder: Path) -> str:
    """Runs a block, and returns its output. Raises CalledProcessError if it fails."""
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    result = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", block.text], cwd=folder, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode:
        print(result.stdout)
        result.check_returncode()
    cache = os.environ.get("LMREP_DATA_DIR", os.path.expanduser("~/.cache/lmrep"))
    return result.stdout.replace(f"{folder}/", "").replace(cache, "~/.cache/lmrep")


def shown(output: str, show: str | None) -> str:
    """The lines of an output that a page shows."""
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    kept = [line if not show or re.search(show, line) else "..." for line in lines]
    return "".join(f"{line}\n" for i, line in enumerate(kept) if line != "..." or kept[i - 1 : i] != ["..."])


def machine() -> str:
    """Date, processor and versions."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    model = model[1] if model else platform.machine()
    return (f"Recorded on {datetime.date.today()} on {os.cpu_count()} cores ({model}), "
            f"Python {platform.python_version()}, jax {metadata.version('jax')}.")


def record(page: str, folder: Path, outputs: dict[str, str]) -> str:
    """Runs the blocks whose outputs are not known, and returns the page with the outputs of those that are."""
    done, changes = hashlib.sha256(), []
    for block in blocks(page):
        done.update(f"{block.language} {block.title}\n{block.text}".encode())
        key = done.hexdigest()
        if key not in outputs:
            print(block.text, file=sys.stderr)
            outputs[key] = write(block, folder) or "" if block.title else run(block, folder)
            (folder / "outputs.json").write_text(json.dumps(outputs))
        if block.output is not None:
            changes.append((block.span, shown(outputs[key], block.show)))
    for (start, end), output in reversed(changes):
        page = page[:start] + output + page[end:]
    return RECORDED.sub(lambda _: machine(), page)


def main():
    """Records a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    prepare(args.page.read_text(), folder)
    store = folder / "outputs.json"
    outputs = json.loads(store.read_text()) if store.exists() else {}
    record(args.page.read_text(), folder, outputs)
    args.page.write_text(page := record(args.page.read_text(), folder, outputs))  # edited meanwhile
    for name in re.findall(r"\]\(images/([^)]+)\)", page):
        if made := next(folder.rglob(name), None):
            (args.page.parent / "images").mkdir(exist_ok=True)
            shutil.copy(made, args.page.parent / "images" / name)


if __name__ == "__main__":
    main()
