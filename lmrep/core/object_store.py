"""Access to files in object stores by TensorStore, which has drivers for `gs://` and `s3://`."""

import contextlib
import errno
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorstore as ts

from lmrep.core.files import Damaged
from lmrep.core.remote import Store, describe

log = logging.getLogger(__name__)

SECONDS = 300.0  # the longest time for a read or a write
FEW_RETRIES = {"max_retries": 4, "initial_delay": "100ms", "max_delay": "2s"}  # `remote.persistent` retries for longer
DAMAGE = {"DATA_LOSS", "NOT_FOUND", "OUT_OF_RANGE"}  # of a checksum, a missing file, and one that ends too early
REQUESTS = {"limit": 128}  # at a time


def native(store: Store) -> dict[str, Any] | None:
    """Returns TensorStore's description of the folder of a store; None if it has no driver for it. Endpoint, region and
    credentials are those of fsspec."""
    protocol, _, address = store.url.partition("://")
    bucket, _, path = address.partition("/")
    if protocol in ("gs", "gcs"):
        if host := os.environ.get("STORAGE_EMULATOR_HOST"):
            os.environ["TENSORSTORE_GCS_HTTP_URL"] = host if "://" in host else f"http://{host}"
        return {"driver": "gcs", "bucket": bucket, "path": f"{path}/", "gcs_request_retries": FEW_RETRIES}
    if protocol not in ("s3", "s3a"):
        return None
    system = store._system
    kind = "anonymous" if system.anon else "environment" if os.environ.get("AWS_ACCESS_KEY_ID") else "default"
    spec = {"driver": "s3", "bucket": bucket, "path": f"{path}/", "s3_request_retries": FEW_RETRIES,
            "aws_credentials": {"type": kind}}
    if not (endpoint := system.s3.meta.endpoint_url).rstrip("/").endswith(".amazonaws.com"):
        spec |= {"endpoint": endpoint, "aws_region": system.s3.meta.region_name or "us-east-1"}
    return spec


def refusal(spec: Mapping[str, Any], name: str, writes: bool) -> str:
    """Returns why TensorStore cannot write and remove a small file or, not `writes`, read this one; "" if it can."""
    try:
        with errors():
            files = ts.KvStore.open(dict(spec)).result()
            for content in (b"-", None) if writes else ():
                files.write(name, content).result(SECONDS)
            if not writes:
                files.read(name).result(SECONDS)
    except OSError as error:
        return describe(error)
    return ""


@contextlib.contextmanager
def errors(damage: Collection[str] = ()) -> Iterator[None]:
    """Turns TensorStore's errors of a status in `damage` into Damaged, and others into OSErrors, with short texts."""
    try:
        yield
    except ValueError as error:
        status, _, text = re.split(r" \[\w+='", str(error))[0].partition(": ")
        if status in damage:
            raise Damaged(text) from error
        denied = status in ("PERMISSION_DENIED", "UNAUTHENTICATED")
        raise OSError(errno.EACCES if denied else errno.EIO, text or status) from error


class RangeReader:
    """Reads byte ranges of the files of a store, many at a time: by TensorStore, or else by fsspec.

    Args:
      store: the store.
      probe: the name of a small file of it, which is read to find out whether TensorStore has access.
    """

    def __init__(self, store: Store, probe: str):
        self._store, spec = store, native(store)
        if spec and (reason := refusal(spec, probe, writes=False)):
            log.warning("TensorStore cannot read %s, but fsspec can: %s; files are read by fsspec, which is slower",
                        store.url, reason)
            spec = None
        self._files = spec and ts.KvStore.open(dict(spec), context=ts.Context(
            {"gcs_request_concurrency": REQUESTS, "s3_request_concurrency": REQUESTS})).result()

    def read(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Returns the bytes of each range (name, start, stop). Neighbouring ranges are read by one request.

        Raises:
          Damaged: a file is missing or ends too early.
          OSError: the store fails.
        """
        if not self._files:
            contents = self._store.read_ranges(ranges)
        else:
            with errors(DAMAGE):
                with ts.Batch() as batch:
                    futures = [self._files.read(name, byte_range=slice(start, stop), batch=batch)
                               for name, start, stop in ranges]
                contents = [future.result(SECONDS).value for future in futures]
        for (name, start, stop), content in zip(ranges, contents, strict=True):
            if len(content) != stop - start:
                raise Damaged(f"{name} has {start + len(content)} bytes; expected at least {stop}"
                              if content else f"{name} is missing or ends before byte {stop}")
        return contents
