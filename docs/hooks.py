"""MkDocs hooks: the reference pages that are generated from the code.

commands.md comes from the commands' help, settings.md from `setting()`, pages.md from the docstrings of the config
files, components.md from the tables of components. results/claims.md gets the results of claims in this repository.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping

from mkdocs.structure.files import File

from lmrep.claims import claim, results
from lmrep.claims.page import figure
from lmrep.cli import main
from lmrep.cli.fields import describe_bounds
from lmrep.experiment import fields, page_files

# Of folders in the search; others have 1.
BOOSTS = {"coming_from": 0.3, "reference": 0.3, "results": 0.5, "extend": 0.4, "field": 0.6}


def on_page_markdown(markdown, page, config, files):
    """Puts pages on how to use lmrep before others in the results of a search, and adds the results of claims."""
    page.meta["search"] = {"boost": BOOSTS.get(page.file.src_uri.partition("/")[0], 1.0)}
    return "\n".join([markdown, *claims()]) if page.file.src_uri == "results/claims.md" else markdown


def on_files(files, config):
    """Adds the generated pages."""
    for name, make in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(make()) + "\n"))
    return files


def cell(text: object) -> str:
    """Text in a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def table(header: tuple[str, ...], rows: Iterable[tuple]) -> Iterator[str]:
    """The lines of a table, with an empty line before and after it."""
    yield ""
    yield "| " + " | ".join(header) + " |"
    yield "| " + " | ".join("---" for _ in header) + " |"
    for row in rows:
        yield "| " + " | ".join(map(cell, row)) + " |"
    yield ""


def commands() -> Iterator[str]:
    yield "# Commands\n"
    yield "`lmrep help COMMAND` prints the same. A flag is written `--name=value`; a config field, which every command "
    yield "with `--config` takes, `--config.FIELD=VALUE` ([Settings](settings.md)).\n"
    yield from table(("command", "what it does"), ((f"[`{name}`](#{name})", command.summary)
                                                   for name, command in main.COMMANDS.items()))
    for name, command in main.COMMANDS.items():
        module = sys.modules.get(f"lmrep.cli.{name}") or __import__(f"lmrep.cli.{name}", fromlist=["run"])
        flags = main.flags_of(name)
        yield f"\n## {name}\n\n```text\n{inspect.cleandoc(module.__doc__ or command.summary)}\n```\n"
        yield f"```sh\n{command.example}\n```\n"
        if flags:
            yield from table(("flag", "default", "meaning"), (
                (f"`{flag.spelling(key)}`", "" if flag.default in (None, "") else f"`{flag.default}`", flag.help)
                for key, flag in flags.items()))


def settings() -> Iterator[str]:
    yield "# Settings\n"
    yield "Every field of a config, with its default, what is allowed and its meaning. Set one with "
    yield "`--config.FIELD=VALUE`. `lmrep fields WORD` searches this list, and `lmrep fields --config=bert.py` shows "
    yield "the values of a config file.\n"
    grouped: dict[str, list[fields.Field]] = {}
    for field in fields.list_fields(None):
        head = field.path.partition(".")[0] if "." in field.path else "top level"
        group = field.choice if " " in field.choice else f"{head} of {field.choice}" if field.choice else head
        grouped.setdefault(group, []).append(field)
    for group, entries in grouped.items():
        yield f"\n## {group}\n"
        yield from table(("field", "default", "allowed", "meaning"), map(_setting, entries))


def _setting(field: fields.Field) -> tuple:
    value = ",".join(map(str, field.value)) if isinstance(field.value, tuple | list) else field.value
    allowed = "; ".join(text for text in (field.type_name, describe_bounds(field.bounds)) if text)
    return f"`{field.path}`", f"`{value}`" if value not in ("", None) else "", allowed, field.bounds.help


def pages() -> Iterator[str]:
    yield "# Config files\n"
    yield "The files of `experiments/`, which are installed with the package: `--config=bert.py` works in any folder, "
    yield "and `lmrep pages bert.py --copy` writes one to edit.\n"
    known = page_files.installed((page_files.CONFIG, page_files.CHAIN))
    texts = {name: page_files.docstring(file) for name, file in known.items()}
    yield from table(("file", "what it trains"), ((f"[`{name}`](#{_anchor(name)})", text.partition("\n\n")[0])
                                                  for name, text in texts.items()))
    for name, text in texts.items():
        yield f"\n## {name} {{ #{_anchor(name)} }}\n\n```text\n{text}\n```\n"


def _anchor(name: str) -> str:
    return name.removesuffix(".py").replace("/", "-")


def claims() -> Iterator[str]:
    known = {name: (claim.load(file), results.of_package(file)) for name, file in claim.installed().items()}
    yield from table(("claim", "paper", "what it states", "here"), (
        (f"[`{name}`](#{name})" if content else f"`{name}`{{ #{name} }}", stated.paper, stated.statement,
         results.state(content))
        for name, (stated, content) in known.items()))
    for name, (stated, content) in known.items():
        if content:
            yield f"\n## {stated.paper} {{ #{name} }}\n\n{content['statement']}"
            head, *rows = results.cells(content)
            yield from table(tuple(head), map(tuple, rows))
            yield f'<div class="figure">\n{figure(content)}</div>\n'
            yield from (f"- {cell(note)}" for note in results.notes(content))
            yield f"\nMade by: `{content['command']}`\n"


def components() -> Iterator[str]:
    from lmrep.data.formats import FORMATS
    from lmrep.data.records import FIELDS, READERS
    from lmrep.data.tokenizers import TOKENIZERS
    from lmrep.interop.huggingface import FAMILIES
    from lmrep.models import MODELS
    from lmrep.objectives import OBJECTIVES
    from lmrep.optimizers import OPTIMIZERS
    from lmrep.tasks import TASKS

    tables: Mapping[str, Mapping] = {
        "Networks": MODELS, "Objectives": OBJECTIVES, "Tasks": TASKS, "Input formats": FORMATS,
        "Tokenizers": TOKENIZERS, "Labelled files": READERS, "Optimizers": OPTIMIZERS,
        "Published checkpoints": FAMILIES}
    yield "# Components\n"
    yield "The rows of the tables from which a config chooses. [Extend](../extend/index.md) shows how to add one.\n"
    for title, rows in tables.items():
        yield f"\n## {title}\n"
        modules: dict[str, list[str]] = {}  # rows that one module defines share its description
        for name, row in rows.items():
            modules.setdefault(_module(name, row), []).append(f"`{name}`")
        yield from table(("name", "what it is", "defined in"), (
            (", ".join(names), _first_sentence(module), f"`{module}`" if module else "")
            for module, names in modules.items()))
    yield "\n## Fields of records\n\nWhat readers of labelled files give, and tasks read."
    yield from table(("field", "what it is"), ((f"`{name}`", text) for name, text in FIELDS.items()))


def _module(name: str, row) -> str:
    """The module of a component: the one of its name, or else the first that its row has a function or class of."""
    values = (row, *(row if isinstance(row, tuple) else getattr(row, "__dict__", {}).values()))
    modules = [value.__module__ for value in values if getattr(value, "__module__", "").startswith("lmrep.")
               and (inspect.isfunction(value) or inspect.isclass(value))]
    return next((module for module in modules if module.rpartition(".")[2] == name), modules[0] if modules else "")


def _first_sentence(module: str) -> str:
    return (inspect.getdoc(sys.modules[module]) or "").partition("\n\n")[0] if module else ""


PAGES = {"commands": commands, "settings": settings, "pages": pages, "components": components}
