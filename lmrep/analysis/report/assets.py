"""Templates and static files of the pages."""

from functools import cache
from importlib import resources

import jinja2

from lmrep.analysis import heads, probes
from lmrep.analysis.report import prose


@cache
def environment() -> jinja2.Environment:
    """Returns the Jinja environment of templates/, which escapes all texts."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals |= {"prose": prose, "heads": heads, "probes": probes}
    environment.filters["percent"] = prose.percent
    return environment


@cache
def read(name: str) -> str:
    """Reads a text file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf8")
