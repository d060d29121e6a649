"""Shows the documentation of this version in a browser. No network is needed: the pages are built from the installed
files by MkDocs (extra `docs`) when these have changed, kept in ~/.cache/lmrep/docs ($LMREP_DATA_DIR/docs), and served
on this machine until Ctrl-C.

    lmrep docs
    lmrep docs sweeps                # the page use/sweeps
    lmrep docs --noopen --port=8000  # only prints the address, for ssh -L 8000:localhost:8000
    lmrep docs --output=public       # writes the site into a new folder, to be served by any web server"""

import functools
import hashlib
import http.server
import importlib.util
import os
import subprocess
import sys
import webbrowser
from pathlib import Path

from lmrep.cli.arguments import Arguments, Flag, at_least
from lmrep.config.record import choose
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import write_text
from lmrep.core.host import default_data_dir
from lmrep.core.messages import install_hint
from lmrep.core.paths import as_path

FLAGS = {"open": Flag(True, "open the page in a browser"),
         "port": Flag(0, "of the address http://localhost:PORT; 0: a free one", bounds=at_least(0, 65535)),
         "output": Flag("", "a folder to write the site into, which does not exist yet", as_path)}
PACKAGE = Path(__file__).parents[1]
# Installed, the sources lie beside the config files; in a checkout, and so in an editable install, at its top.
FOLDERS = (PACKAGE / "experiment/pages", PACKAGE.parent)
STAMP = "sources.sha256"  # hash of the files that a site was built from


def run(arguments: Arguments) -> None:
    """Runs the command."""
    source = next((folder for folder in FOLDERS if (folder / "mkdocs.yml").is_file()), None)
    if source is None:
        raise UserError(f"mkdocs.yml and docs/ are not installed in {PACKAGE}; install lmrep from a complete checkout")
    if len(arguments.words) > 1:
        raise UserError(f"lmrep docs takes one page; found {len(arguments.words)}")
    pages = {path.relative_to(source / "docs").with_suffix("").as_posix(): path for path in
             sorted((source / "docs").rglob("*.md"))} | dict.fromkeys(GENERATED)
    page = next(iter(arguments.words), "index").removesuffix(".md").removesuffix(".html")
    page = next((name for name in (page, *pages) if name in pages and f"/{name}".endswith(f"/{page}")), page)
    choose(pages, page, "the page")
    if arguments.flags.output:
        from lmrep.storage.workdir import new_directory

        with new_directory(Path(arguments.flags.output)) as site:
            build(source, site)
        print(Path(arguments.flags.output) / f"{page}.html")
        return
    site = default_data_dir() / "docs"
    fingerprint = _fingerprint(source)
    if not (site / STAMP).is_file() or (site / STAMP).read_text() != fingerprint:
        build(source, site)
        write_text(site / STAMP, fingerprint)
    serve(site, f"{page}.html", arguments.flags.port, arguments.flags.open)


def serve(site: Path, page: str, port: int, open_page: bool) -> None:
    """Serves a folder on this machine until Ctrl-C. (A browser does not search pages that it opens as files.)

    Raises:
      UserError: the port is taken.
    """
    handler = functools.partial(QuietHandler, directory=str(site))
    try:
        server = http.server.ThreadingHTTPServer(("localhost", port), handler)
    except OSError as error:
        raise UserError(f"--port is {port}: {error.strerror}; give another, or 0 for a free one") from None
    with server:
        address = f"http://localhost:{server.server_port}/{page}"
        print(f"{address}\nPress Ctrl-C to end.", flush=True)
        if open_page:
            webbrowser.open(address)
        server.serve_forever()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without printing a line for each request."""

    def log_message(self, format: str, *arguments) -> None:
        pass


GENERATED = ("reference/commands", "reference/settings", "reference/pages", "reference/components")


def build(source: Path, site: Path) -> None:
    """Builds the site in `site` from mkdocs.yml and docs/ in `source`.

    Raises:
      UserError: MkDocs is not installed.
      RunFault: MkDocs fails.
    """
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings", "latex2mathml")):
        raise UserError("the documentation is built with MkDocs, which is not installed: "
                        f"{install_hint('docs')}; or read the Markdown files in {source / 'docs'}")
    print("building the documentation ...", file=sys.stderr)
    words = ["build", "--quiet", "--config-file", source / "mkdocs.yml", "--site-dir", site]
    done = subprocess.run([sys.executable, "-m", "mkdocs", *words], capture_output=True, text=True, check=False,
                          env=os.environ | {"JAX_PLATFORMS": "cpu", "NO_MKDOCS_2_WARNING": "1"})
    if done.returncode:
        raise RunFault(f"mkdocs could not build {source / 'docs'}: {done.stderr.strip()[-2000:]}")


def _fingerprint(source: Path) -> str:
    """Returns a hash of the names, sizes and times of all files that the site is made from."""
    files = [source / "mkdocs.yml", *sorted((source / "docs").rglob("*")), *sorted(PACKAGE.rglob("*.py"))]
    described = [f"{path}\0{path.stat().st_size}\0{path.stat().st_mtime_ns}" for path in files if path.is_file()]
    return hashlib.sha256("\n".join(described).encode("utf8", "surrogateescape")).hexdigest()
