"""Object stores that emulators stand for: S3 by moto, Google Cloud Storage by gcp-storage-emulator."""

import importlib
import socket
from email.parser import BytesParser

import fsspec
import pytest


class S3:
    """An S3 server of this process, at `url`, for processes with this `environment`."""

    packages, url = ("moto.server", "s3fs"), "s3://bucket/runs"

    def __init__(self, directory):
        self._port, self._server = free_port(), None
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}", "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        self.start()
        import boto3

        boto3.client("s3", endpoint_url=self.environment["AWS_ENDPOINT_URL"], region_name="us-east-1",
                     aws_access_key_id="key", aws_secret_access_key="secret").create_bucket(Bucket="bucket")

    def start(self):
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer("127.0.0.1", self._port, verbose=False)
        self._server.start()

    def stop(self):
        """Refuses connections until `start`. What is stored stays."""
        self._server.stop()


class GoogleCloudStorage:
    """A server of Google Cloud Storage, as `S3`."""

    packages, url = ("gcp_storage_emulator.server", "gcsfs"), "gs://bucket/runs"

    def __init__(self, directory):
        self._port, self._directory, self._server = free_port(), str(directory), None
        # gcsfs would look for credentials to find out the type of the bucket.
        self.environment = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self._port}",
                            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        self.start()

    def start(self):
        from gcp_storage_emulator import server

        server.BytesParser = MultipartParser
        server.Response.write_file = write_file
        self._server = server.create_server("127.0.0.1", self._port, data_dir=self._directory, default_bucket="bucket")
        thread = self._server._api
        thread.daemon = True
        thread.start()
        assert thread.is_running.wait(60)

    def stop(self):
        self._server.stop()


def write_file(response, content, content_type=None):
    """Answers with a file and its generation, which the emulator omits and TensorStore expects beside a part of one."""
    response["Content-type"], response["x-goog-generation"] = content_type or "application/octet-stream", "1"
    response._content = content


class MultipartParser(BytesParser):
    """Reads what gcsfs uploads. It ends a file with a line feed, which the emulator's parser takes away together with a
    carriage return before it, though that is the last byte of the file."""

    def parsebytes(self, text, headersonly=False):
        content, end, rest = text.rpartition(b"\n--==0==--")
        return super().parsebytes(content + b"\r" * bool(end) + end + rest, headersonly)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def started(kind, directory):
    """An emulator, or a skipped test where its packages are missing."""
    for package in kind.packages:
        pytest.importorskip(package, reason=f"needs the package {package.partition('.')[0]}: pip install -e '.[test]'")
    importlib.invalidate_caches()
    fsspec.get_filesystem_class(kind.url.partition(":")[0]).clear_instance_cache()  # clients of earlier emulators
    return kind(directory)
