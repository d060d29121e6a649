"""A MkDocs hook: fenced blocks whose content is made when the site is built.

| block | a line of it | what it becomes |
| --- | --- | --- |
| source | `lmrep/objectives/causal.py:prepare`, and perhaps `from: TEXT` and `to: TEXT` | the code of a function, class or table without its docstring, or its lines from the first that has one text to the next that has the other |
| results | `roberta_table1`, a claim | its verdicts and figures in this repository |
| picture | `causal`, a file of docs/masks without its ending | the picture; those of a block stand side by side where there is room |
| meshes | `2x2x2`, a mesh | which part of the batch and of parameters each of its devices holds, by the sharding rules |
| packages | nothing | which package imports which, drawn from the code, and what each is |
| math | LaTeX | the formula in MathML, as $`LaTeX`$ in a line of text |
"""  # noqa: E501

import ast
import functools
import html
import itertools
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from jax.sharding import AbstractMesh
from latex2mathml import converter
from mkdocs.exceptions import PluginError

import lmrep
from lmrep.claims import claim, results
from lmrep.core.sharding import abstract_mesh, partition_spec
from lmrep.models import MODELS

PACKAGE, PICTURES = Path(lmrep.__file__).parents[1], Path(__file__).parent / "masks"
BOX = 110  # pixels, the width of a package
SHOWN = (0, 1, 2, 4)  # of the columns of `results.cells`: setting, measure, difference, verdict


def on_page_markdown(markdown, page, config, files):
    """Makes the blocks."""
    def make(match: re.Match) -> str:
        return BLOCKS[match[1]](match[2], "../" * page.file.src_uri.count("/"))

    try:
        return re.sub(rf"^```({'|'.join(BLOCKS)})\n(.*?)^```$", make, markdown, flags=re.MULTILINE | re.DOTALL)
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from None


def on_page_content(content, page, config, files):
    """Makes the formulas in lines of text."""
    return re.sub(r"\$<code>(.*?)</code>\$", lambda match: formula(html.unescape(match[1])), content)


class Excerpt(NamedTuple):
    """Lines of a file of the package."""

    place: str  # file, name and numbers of the lines
    code: str


def excerpt(block: str) -> Excerpt:
    """Finds what a `source` block names. Raises ValueError if it does not exist, or the lines do not."""
    (where, *ends) = block.strip().splitlines()
    file, _, name = where.partition(":")
    options = dict(line.split(": ", 1) for line in ends)
    if not name or options.keys() - {"from", "to"}:
        raise ValueError(f"a source block has {block!r}; expected FILE.py:NAME, and perhaps lines 'from: TEXT' and "
                         "'to: TEXT'")
    if not (PACKAGE / file).is_file():
        raise ValueError(f"there is no file {file}, of which {name} is shown; correct the source block")
    text = (PACKAGE / file).read_text(encoding="utf8")
    node = _find(ast.parse(text), name.split("."))
    if node is None:
        raise ValueError(f"{file} has no {name}, which is shown; correct the source block")
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    numbers, lines = range(first, node.end_lineno + 1), text.splitlines()
    if (document := _docstring(node)) is not None:
        numbers = [n for n in numbers if not document.lineno <= n <= document.end_lineno]
    for option, part in (("from", lambda at: slice(at, None)), ("to", lambda at: slice(at + 1))):
        if option in options:
            at = next((i for i, n in enumerate(numbers) if options[option] in lines[n - 1]), None)
            if at is None:
                raise ValueError(f"{name} of {file} has no line with {options[option]!r} where the source block looks "
                                 f"for it; correct its '{option}: TEXT'")
            numbers = numbers[part(at)]
    code = textwrap.dedent("\n".join(lines[n - 1] for n in numbers)).strip("\n")
    return Excerpt(f"{file}, {name}, lines {numbers[0]}-{numbers[-1]}", code)


def _find(tree: ast.AST, names: list[str]) -> ast.stmt | None:
    """Finds the definition of a dotted name."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        known = {getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)}
        if names[0] in known:
            return node if len(names) == 1 else _find(node, names[1:])
    return None


def _docstring(node: ast.stmt) -> ast.stmt | None:
    return node.body[0] if getattr(node, "body", None) and ast.get_docstring(node) else None


def source(block: str, root: str) -> str:
    """Shows code, with its place as the title."""
    place, code = excerpt(block)
    return f'```python title="{place}"\n{code}\n```'


def results_of(block: str, root: str) -> str:
    """Shows what came out of claims. Raises ValueError if there is no such claim."""
    known, made = claim.installed(), []
    for name in block.split():
        if name not in known:
            raise ValueError(f"a results block names {name!r}; the claims are {', '.join(known)}")
        stated, content = claim.load(known[name]), results.of_package(known[name])
        made.append(f"[`{name}`]({root}results/claims.md#{name}), {stated.paper}: {stated.statement} "
                    + (f"Here: {results.state(content)}." if content else "It was not run here yet."))
        if content:
            head, *rows = ([row[i] for i in SHOWN] for row in results.cells(content))
            made.append("\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)))
    return "\n\n".join(made)


def picture(block: str, root: str) -> str:
    """Shows pictures in the colour of the text. Raises ValueError if there is no such file."""
    files = [PICTURES / f"{name}.svg" for name in block.split()]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"docs/masks has no {', '.join(missing)}; correct the picture block, or run "
                         "docs/draw_masks.py")
    return '<div class="masks">' + "".join(file.read_text(encoding="utf8").strip() for file in files) + "</div>"


def meshes(block: str, root: str) -> str:
    """Draws the parts of arrays with the numbers of the devices that hold them; those of device 0 are filled."""
    network = MODELS["transformer"]
    layers = (specs := network.build(network.config(**network.tiny | {"vocab": 1024})).specs)["layers"]
    arrays = {"batch [b, t]": (("batch", "length"), (64, 128)), **{
        name: (spec.axes[-2:], spec.shape[-2:])
        for name, spec in {"token table [v, d]": specs["embedding"]["token"],
                           "queries [d, h k]": layers["attention"]["query"]["kernel"],
                           "feed-forward, in [d, f]": layers["mlp"]["in"]["kernel"],
                           "feed-forward, out [f, d]": layers["mlp"]["out"]["kernel"]}.items()}}
    width, height, lines = 120, 88, []
    for column, (name, (axes, shape)) in enumerate(arrays.items()):
        left = 56 + 140 * column
        lines.append(_text(left + width / 2, 12, name))
        for row, sizes in enumerate(block.split()):
            top, parts = 22 + 100 * row, _parts(mesh := abstract_mesh([*map(int, sizes.split("x"))]), axes, shape)
            lines += [_text(22, top + height / 2, sizes)] * (not column)
            rows, columns = (last + 1 for last in max(parts))
            w, h = width / columns, height / rows
            for (i, j), devices in parts.items():
                numbers = "all" if len(devices) == mesh.size else " ".join(map(str, devices))
                lines.append(f'<rect class="{"held" if 0 in devices else "other"}" x="{left + j * w:.1f}" '
                             f'y="{top + i * h:.1f}" width="{w:.1f}" height="{h:.1f}"/>' + _text(
                                 left + (j + .5) * w, top + (i + .5) * h + 3.3, numbers))
    right, bottom = 56 + 140 * len(arrays), 22 + 100 * len(block.split())
    return (f'<div class="figure"><svg class="meshes" xmlns="http://www.w3.org/2000/svg" width="{right}" '
            f'viewBox="0 0 {right} {bottom}" role="img" aria-label="which device holds which part of batch and '
            f'parameters">{"".join(lines)}</svg></div>')


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{text}</text>'


def _parts(mesh: AbstractMesh, axes: tuple[str, ...], shape: tuple[int, ...]) -> dict[tuple[int, ...], list[int]]:
    """Returns the devices that hold each part of an array, by the position of the part."""
    names = [(entry,) if isinstance(entry, str) else entry or () for entry in partition_spec(axes, shape, mesh)]
    parts = {}
    for device, at in enumerate(itertools.product(*map(range, mesh.axis_sizes))):
        at = dict(zip(mesh.axis_names, at, strict=True))
        place = tuple(functools.reduce(lambda i, name: i * mesh.shape[name] + at[name], dim, 0) for dim in names)
        parts.setdefault(place, []).append(device)
    return parts


def packages(block: str, root: str) -> str:
    """Draws the packages as rows, each above those that it imports when it is loaded; an arrow that follows from others
    is left out. A table has the first sentence of each package."""
    imports = {package.name: _imports(package) for package in sorted((PACKAGE / "lmrep").iterdir())
               if (package / "__init__.py").is_file()}

    @functools.cache
    def below(name: str) -> set[str]:
        return imports[name].union(*map(below, imports[name]))

    @functools.cache
    def rank(name: str) -> int:
        return 1 + max(map(rank, imports[name]), default=-1)

    rows = [[name for name in imports if rank(name) == number] for number in range(max(map(rank, imports)) + 1)]
    places = {name: (BOX * 1.2 * (i - (len(row) - 1) / 2) + 2.4 * BOX, 34 + 62 * (len(rows) - 1 - number))
              for number, row in enumerate(rows) for i, name in enumerate(row)}
    arrows = [(name, other) for name in imports for other in imports[name]
              if not any(other in below(between) for between in imports[name])]
    lines = [f'<path d="M{x:.0f},{y + 15} C{x:.0f},{y + 38} {to_x:.0f},{to_y - 40} {to_x:.0f},{to_y - 18}"/>'
             for (x, y), (to_x, to_y) in ((places[name], places[other]) for name, other in arrows)]
    boxes = [f'<rect x="{x - BOX / 2:.0f}" y="{y - 15}" width="{BOX}" height="30" rx="4"/>'
             f'<text x="{x:.0f}" y="{y + 5}">{name}</text>' for name, (x, y) in places.items()]
    summaries = (f"| `{name}` | {_summary(name)} |" for row in reversed(rows) for name in row)
    return "\n".join([
        f'<div class="figure"><svg class="packages" xmlns="http://www.w3.org/2000/svg" width="{4.8 * BOX:.0f}" '
        f'viewBox="0 0 {4.8 * BOX:.0f} {34 + 62 * len(rows) - 40}" role="img" aria-label="which package imports which">'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8"/></marker></defs>{"".join(lines + boxes)}</svg></div>',
        "", "| package | what it is |", "| --- | --- |", *summaries])


def _imports(package: Path) -> set[str]:
    """Returns the packages that the files of one import when they are loaded."""
    statements = (node for file in package.rglob("*.py") for node in ast.parse(file.read_text(encoding="utf8")).body)
    names = {name for node in statements if isinstance(node, ast.ImportFrom) and node.module
             for name in ([f"lmrep.{alias.name}" for alias in node.names] if node.module == "lmrep" else [node.module])}
    packages = {name.split(".")[1] for name in names if name.startswith("lmrep.")}
    return {name for name in packages - {package.name} if (PACKAGE / "lmrep" / name).is_dir()}


def _summary(name: str) -> str:
    text = ast.get_docstring(ast.parse((PACKAGE / "lmrep" / name / "__init__.py").read_text(encoding="utf8")))
    return " ".join((text or "").partition("\n\n")[0].split())


def math(block: str, root: str) -> str:
    """Shows a formula by itself."""
    return f'<div class="formula">{formula(" ".join(block.split()), "block")}</div>'


def formula(latex: str, display: str = "inline") -> str:
    """Converts LaTeX into MathML, which browsers show without a program."""
    return converter.convert(latex, display=display)


BLOCKS = {"source": source, "results": results_of, "picture": picture, "meshes": meshes,
          "packages": packages, "math": math}
