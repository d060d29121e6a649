"""Finds the config files that come with the package, which the code calls pages."""

import ast
from collections.abc import Sequence
from pathlib import Path

# Installed, they lie beside this module; in a checkout, and so in an editable install, at its top.
FOLDERS = (Path(__file__).with_name("pages"), Path(__file__).parents[2] / "experiments")

CONFIG, CHAIN = "def get_config(", "def get_chain("  # what the files define


def installed(defines: Sequence[str] = (CONFIG,)) -> dict[str, Path]:
    """Returns {name: file} of the config files of the package that define one of these functions; the name is the path
    inside their folder."""
    folder = next((folder for folder in FOLDERS if (folder / "quickstart.py").is_file()), None)
    files = sorted(folder.rglob("*.py")) if folder else []
    return {file.relative_to(folder).as_posix(): file for file in files
            if any(text in file.read_text(encoding="utf8") for text in defines)}


def find(name: str | Path) -> Path:
    """Returns the config file at the path `name`, or else the package's file of that name (`bert.py`, `bert`), or else
    `name` itself."""
    if Path(name).exists():
        return Path(name)
    short = Path(name).as_posix().removeprefix("experiments/").removesuffix(".py")
    return installed((CONFIG, CHAIN)).get(f"{short}.py", Path(name))


def is_page(name: str | Path) -> bool:
    """Returns whether `find(name)` is a config file of the package."""
    return find(name).resolve() in {file.resolve() for file in installed().values()}


def docstring(file: Path) -> str:
    """Returns the module docstring of a config file; "" if it has none."""
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf8"))) or ""
