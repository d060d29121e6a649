"""Templates and static files of the pages."""

from functools import cache
from importlib import resources

import jinja2

from lmrep.analysis.report import prose


@cache
def environment() -> jinja2.Environment:
    """That of templates/, where all texts are escaped."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"percent": prose.percent,
                            "known": lambda value, show: show(value) if value is not None else ""}
    return environment


@cache
def read(name: str) -> str:
    """A file beside the templates."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf8")
