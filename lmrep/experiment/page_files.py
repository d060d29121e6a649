"""The config files that come with the package (in names of the code: pages)."""

import ast
from pathlib import Path

# Installed, they lie beside this module; in a checkout, and so in an editable install, at its top.
FOLDERS = (Path(__file__).with_name("pages"), Path(__file__).parents[2] / "experiments")


def installed() -> dict[str, Path]:
    """{name: file} of every config file of the package; a name is the path inside their folder."""
    folder = next((folder for folder in FOLDERS if (folder / "quickstart.py").is_file()), None)
    files = sorted(folder.rglob("*.py")) if folder else []
    return {file.relative_to(folder).as_posix(): file for file in files
            if "def get_config(" in file.read_text(encoding="utf8")}


def find(name: str | Path) -> Path:
    """The config file of that path, or else of that name (`bert.py`, `bert`) in the package, or else `name`."""
    if Path(name).exists():
        return Path(name)
    short = Path(name).as_posix().removeprefix("experiments/").removesuffix(".py")
    return installed().get(f"{short}.py", Path(name))


def is_page(name: str | Path) -> bool:
    """Whether `find(name)` is a config file of the package."""
    return find(name).resolve() in {file.resolve() for file in installed().values()}


def docstring(file: Path) -> str:
    """What a config file says of itself."""
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf8"))) or ""
