"""Downloads files of the Hugging Face Hub, which addresses like these name:

    hf://OWNER/NAME                                a model
    hf://OWNER/NAME@REVISION                       of a branch, a tag or a commit
    hf://datasets/OWNER/NAME/data/train-*.parquet  files of a data set

The copies are in the cache of the huggingface_hub library ($HF_HOME), by commit. Without the Hub, or with
HF_HUB_OFFLINE=1, a branch is the commit that it was when it was last read, and the library logs a warning. Tokens are
those of the library: $HF_TOKEN, or of `hf auth login`.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from lmrep.core import paths, remote
from lmrep.core.errors import RunFault, UserError

PROTOCOL = "hf://"
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.bpe")  # of a published directory
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
PINNED = re.compile(r"hf://[^\s\",]+@[0-9a-f]{40}(?![0-9a-f])[^\s\",]*")  # an address with a commit, in JSON
CACHED = re.compile(r"/(model|dataset)s--([^/]+)/snapshots/([0-9a-f]{40})(/.+)?$")  # a path in the library's cache
ADDRESS = re.compile(r"hf://[^,]+")  # one of several addresses, separated by commas


def is_address(path: str | os.PathLike) -> bool:
    """Returns whether a path is an address of the Hub."""
    return (remote.as_url(path) or "").startswith(PROTOCOL)


def local(address: str | os.PathLike, what: str) -> str:
    """Downloads the files of an address, and returns the local path, or the local glob, of the copies.

    The address of a model, or of a folder in its repository, is a published directory: its config, weights in
    safetensors and tokenizer files are downloaded. Files that the cache has are not downloaded again.

    Args:
      address: of a model, a file, a folder or a glob.
      what: the name of the setting, for error messages.

    Raises:
      UserError: huggingface_hub is not installed; there is no such repository, revision or file; the Hub cannot be
        reached and the cache lacks the files; or a model has only pickled weights.
    """
    uri = _parse(address, what)
    path = uri.path_in_repo  # a file or a glob has a name like one
    model = uri.type == "model" and not re.search(r"[*?\[]|\.[A-Za-z]\w*$", path)
    if not path and not model:
        raise UserError(f"{what} is {os.fspath(address)!r}, a whole repository; name its files, such as "
                        f"{remote.as_url(address)}/data/*.jsonl")
    folder = f"{path}/" if path else ""
    # The library's `*` matches slashes too, and its `**/` at least one folder.
    patterns = [f"{folder}{name}" for name in MODEL_FILES] if model else [path, path.replace("**/", ""), f"{path}/*"]
    with _errors(uri, what):
        from huggingface_hub import snapshot_download

        commit = _commit(uri)
        snapshot = snapshot_download(uri.id, repo_type=uri.type, revision=commit, allow_patterns=patterns,
                                     ignore_patterns=[f"{folder}*/*"] if model else None)
    copy = os.path.join(snapshot, path) if path else snapshot
    if not paths.matches(copy) or (model and not os.path.isdir(copy)):
        names = _files(uri, commit)
        raise UserError(f"{what} is {os.fspath(address)!r}, and there is no such file at commit {commit[:12]}; {uri.id}"
                        f" has {', '.join(names[:8]) or 'no files'}{', ...' * (len(names) > 8)}: check the path")
    if model and not list(Path(copy).glob("*.safetensors")):
        _refuse_pickled(uri, commit, folder)
    return copy


def origin(path: Path) -> str:
    """Returns the address, with its commit, that a local path is a copy of; the absolute path if it is of none."""
    if not (match := CACHED.search(path.absolute().as_posix())):
        return str(path.absolute())
    kind, repo, commit, name = match.groups("")
    return f"{PROTOCOL}{'datasets/' * (kind == 'dataset')}{repo.replace('--', '/', 1)}@{commit}{name}"


def with_file(path: Path) -> Path:
    """Returns a local path. If it is beside files of a data set that `local` has downloaded, downloads it too, if the
    data set has such a file. Raises UserError as `local`."""
    if is_address(address := origin(path)) and not path.exists():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        uri = _parse(address, str(path))
        with _errors(uri, str(path)), contextlib.suppress(EntryNotFoundError):
            hf_hub_download(uri.id, uri.path_in_repo, repo_type=uri.type, revision=uri.revision)
    return path


def pinned(address: str | os.PathLike, what: str, recorded: Collection[str] = ()) -> str:
    """Returns an address with the commit of its revision in place of a branch or a tag.

    Args:
      recorded: addresses with commits. An address without a revision gets the commit that it has among them.

    Raises:
      UserError: as `local`.
    """
    uri = _parse(address, what)
    if not uri.revision:
        for other in recorded:
            if dataclasses.replace(_parse(other, what), revision=None) == uri:
                return other
    with _errors(uri, what):
        return dataclasses.replace(uri, revision=_commit(uri)).to_uri().replace("hf://models/", PROTOCOL, 1)


def pin(config: Any, recorded: Collection[str] = (), what: str = "config") -> Any:
    """Returns a config, of nested mappings and sequences, whose addresses of the Hub are `pinned`."""
    if hasattr(config, "items"):  # a mapping or a ConfigDict
        return {name: pin(value, recorded, f"{what}.{name}") for name, value in config.items()}
    if isinstance(config, list | tuple):
        return type(config)(pin(value, recorded, what) for value in config)
    if isinstance(config, str) and config.startswith(PROTOCOL):
        return ADDRESS.sub(lambda match: pinned(match[0], what, recorded), config)
    return config


def recorded(workdir: str | os.PathLike | None) -> list[str]:
    """Returns the addresses with commits in the config.json of a local workdir; [] if there is none."""
    with contextlib.suppress(OSError):
        if workdir is not None:
            return PINNED.findall((Path(workdir) / "config.json").read_text(encoding="utf8", errors="replace"))
    return []


def upload(folder: Path, repo: str, private: bool, message: str, branch: str = "main") -> str:
    """Uploads the files in a folder to a branch of a model's repository; both are created if they do not exist. Returns
    the address of the commit. Raises UserError if the Hub refuses it."""
    check_installed()
    from huggingface_hub import HfApi, errors

    try:
        api = HfApi()
        api.create_repo(repo, private=private or None, exist_ok=True)
        if branch != "main":
            api.create_branch(repo, branch=branch, exist_ok=True)
        return str(api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message,
                                     revision=branch).commit_url)
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise UserError(f"the Hub refuses the upload to {repo}: log in with a token that may write there (hf auth "
                            "login, or $HF_TOKEN)") from error
        raise UserError(f"the Hub refuses the upload to {repo}: {remote.describe(error)}") from error
    except Exception as error:
        raise UserError(f"{repo} cannot be written to the Hub: {remote.describe(error)}; check the network, and run "
                        "the command again") from error


def check_installed() -> None:
    """Raises UserError if huggingface_hub is not installed, or too old."""
    try:
        from huggingface_hub import parse_hf_uri, resolve_revision  # noqa: F401 - older versions lack them
    except ImportError as error:
        raise UserError(f"the Hugging Face Hub needs huggingface_hub 2.4 or later ({error}); install the extra hub: "
                        "pip install -e '.[hub]'") from error


def _parse(address: str | os.PathLike, what: str) -> Any:
    """Parses an address to the library's `HfUri`."""
    check_installed()
    from huggingface_hub import parse_hf_uri
    from huggingface_hub.errors import HfUriError

    url = remote.as_url(address)
    try:
        uri = parse_hf_uri(url)
    except HfUriError as error:
        raise UserError(f"{what} is {url!r}: {error.msg.rstrip('. ')}; expected {PROTOCOL}OWNER/NAME of a model, or "
                        f"{PROTOCOL}datasets/OWNER/NAME/FILE") from error
    if uri.type not in ("model", "dataset"):
        raise UserError(f"{what} is {url!r}, which is a {uri.type}; expected a model or a data set")
    return uri


def _commit(uri: Any) -> str:
    """Returns the commit of an address, from the cache if the Hub cannot be reached."""
    from huggingface_hub import HfApi

    return HfApi().resolve_revision(uri.id, repo_type=uri.type, revision=uri.revision).resolved


def _files(uri: Any, commit: str) -> list[str]:
    """Returns the files of a repository, which `local` has listed."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    with contextlib.suppress(CachedRepoTreeNotFoundError):
        return sorted(file.path for file in get_cached_repo_tree(uri.id, repo_type=uri.type, revision=commit))
    return []


def _refuse_pickled(uri: Any, commit: str, folder: str) -> None:
    """Raises UserError if a model has pickled weights, and none in safetensors."""
    names = [name.removeprefix(folder) for name in _files(uri, commit) if name.startswith(folder)]
    if pickled := [name for name in names if name.endswith(PICKLED) and "/" not in name]:
        raise UserError(
            f"{PROTOCOL}{uri.id} has only pickled weights ({', '.join(pickled[:3])}), which may run code when they are "
            "loaded. Give a revision that has model.safetensors, if there is one (look at the repository's pull "
            f"requests; {PROTOCOL}{uri.id}@refs/pr/1), or download it (hf download {uri.id} --local-dir DIR), save it "
            "as safetensors with the library that wrote it, and give that directory")


@contextlib.contextmanager
def _errors(uri: Any, what: str) -> Iterator[None]:
    """Turns the errors of the library into UserErrors."""
    from huggingface_hub import errors

    kind = {"model": "model", "dataset": "data set"}[uri.type]
    try:
        yield
    except (UserError, RunFault):
        raise
    except errors.GatedRepoError as error:
        raise UserError(f"{what}: access to the {kind} {uri.id} must be granted: accept its conditions on its page, "
                        "and log in (hf auth login, or $HF_TOKEN)") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(f"{what}: the Hub has no {kind} {uri.id} that you may read; check the name"
                        + f" (data sets are {PROTOCOL}datasets/OWNER/NAME)" * (uri.type == "model")
                        + "; if it is private, log in: hf auth login, or $HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{what}: the {kind} {uri.id} has no revision {uri.revision!r}; give a branch, a tag or a "
                        "commit, or leave @ out for its main branch") from error
    except (errors.RevisionResolutionError, errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError) as error:
        at = f" at {uri.revision}" if uri.revision else ""
        raise UserError(f"{what}: the Hub cannot be reached, or HF_HUB_OFFLINE is set, and the cache lacks files of "
                        f"the {kind} {uri.id}{at}; check the network, or run this once with the Hub") from error
    except Exception as error:
        raise UserError(f"{what}: the {kind} {uri.id} cannot be read from the Hub: {remote.describe(error)}") from error
