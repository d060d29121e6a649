"""Downloads files of remote stores to local caches: published checkpoints, keyed by the names, sizes and checksums of
their files, and sealed directories, such as token stores, whose names have a fingerprint."""

import base64
import fnmatch
import hashlib
import logging
import os
import posixpath
from collections.abc import Callable
from pathlib import Path

from lmrep.core import hub, remote, sealed_cache
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import MANIFEST, Damaged, atomic_directory, digest, parse_manifest, verified
from lmrep.core.host import default_data_dir
from lmrep.core.messages import byte_size

log = logging.getLogger(__name__)


def local(path: str | os.PathLike, what: str) -> Path:
    """Returns a local path unchanged. For a URL, downloads the file, or the files directly in the directory, and
    returns the path of the copy.

    The copy is in $LMREP_DATA_DIR/downloads (or ~/.cache/lmrep/downloads), in a folder whose name depends on the names,
    sizes and checksums that the store gives. If they have not changed, nothing is downloaded. Every size is compared
    after the download, and every MD5 that the store gives (Google Cloud Storage does). Files of the Hugging Face Hub
    are in its cache (`hub.local`).

    Args:
      path: a local path or a URL.
      what: the name of the setting, for error messages.

    Raises:
      UserError: the store cannot be reached, or there are no such files.
      RunFault: a downloaded file differs from the store's, or the disk cannot be written.
    """
    url = remote.as_url(path)
    if not url:
        return Path(path)
    if hub.is_address(url):
        return Path(hub.local(url, what))
    store = remote.Store(url, what, "gs://bucket/models/bert")
    with remote.user_errors(url):
        files = store.details()
    if not files:
        raise UserError(f"{what} is {url!r}, where the store has no files; check the address")
    folder, top = default_data_dir() / "downloads" / digest([url, files])[:16], posixpath.basename(url)

    def download(target: Path) -> None:
        target = target if "." in files else target / top  # "." is a file at the URL itself
        log.info("downloading %s from %s", byte_size(sum(size for size, _ in files.values())), url)
        with remote.user_errors(url):
            remote.transfer(lambda name: _download(store, name, *files[name], target), files)

    return sealed_cache.cached(folder, download, lambda directory: directory / top, {"url": url},
                               "the download", "free some space, or set another $LMREP_DATA_DIR")


def _download(store: remote.Store, name: str, size: int, checksum: str, folder: Path) -> None:
    """Downloads a file, and compares its size and MD5 with those that the store gave."""
    path = folder / (posixpath.basename(store.url) if name == "." else name)
    store.download("" if name == "." else name, path)
    if path.stat().st_size != size:
        raise RunFault(f"{store.url}/{name} arrived with {path.stat().st_size} bytes instead of {size}; try again")
    kind, _, value = checksum.partition(" ")
    if kind == "md5Hash":
        with open(path, "rb") as file:
            actual = base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()
        if actual != value:
            raise RunFault(f"{store.url}/{name} arrived with the MD5 {actual} instead of {value}; try again")


def local_data_dir(data_dir: str | os.PathLike) -> Path:
    """Returns the data directory on this machine: `data_dir`, or the default directory if `data_dir` is remote."""
    return default_data_dir() if remote.as_url(data_dir) else Path(data_dir)


def download_sealed(data_dir: str | os.PathLike, name: str, progress: Callable[[str], None], left: str = "") -> str:
    """Downloads a sealed directory of a remote data directory to the local data directory, and compares every file with
    the manifest. A copy of an earlier call is used if the manifests are equal.

    Args:
      data_dir: the data directory; if it is local, nothing is downloaded.
      name: the name of the sealed directory, which another process may download at the same time.
      progress: called with messages for users.
      left: a pattern of files that stay where they are. Then the copy has the name NAME.index.

    Returns:
      The URL of the directory; "" if the store does not have it, or `data_dir` is local.

    Raises:
      UserError: the store cannot be reached, or the directory is damaged there.
      RunFault: the disk cannot be written.
    """
    base = remote.as_url(data_dir)
    if not base:
        return ""
    url, target = f"{base}/{name}", local_data_dir(data_dir) / (f"{name}.index" if left else name)
    store = remote.Store(url, "--data_dir", "gs://bucket/data")
    with remote.user_errors(url):
        sizes, content = store.sizes(), store.read(MANIFEST)
    if content is None:
        progress(f"{url} does not exist or has no {MANIFEST}; preparing the data on this machine, in "
                 f"{local_data_dir(data_dir) / name}")
        return ""
    try:
        for file, (size, _) in parse_manifest(content)["files"].items():
            if sizes.get(file) != size:
                raise Damaged(f"{file} has {sizes[file]} bytes instead of {size}" if file in sizes else
                              f"{file} is missing")
        if not sealed_cache.find_damage(target, left) and (target / MANIFEST).read_bytes() == content:
            return url
        progress(f"downloading {f'the index of {url}' if left else url}")
        if target.exists():
            sealed_cache.remove(target, "the index")
        names = [name for name in sizes if not fnmatch.fnmatchcase(name, left)]
        with atomic_directory(target, keep_existing=True) as temporary:
            with remote.user_errors(url):
                remote.transfer(lambda name: store.download(name, temporary / name), names)
            verified(temporary, missing=left)
    except Damaged as damage:
        raise UserError(f"{url} is damaged: {damage}; copy it there again, or give another --data_dir") from None
    except OSError as error:
        raise RunFault(f"{url} could not be downloaded to {target}: {error.strerror or error}") from error
    return url
