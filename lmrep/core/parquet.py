"""Opens Parquet files, local or remote."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lmrep.core import input_files
from lmrep.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow.parquet as pq


@contextlib.contextmanager
def opened(path: str | os.PathLike, store: Any = None) -> Iterator["pq.ParquetFile"]:
    """Opens a Parquet file, whose pages are verified by their checksums.

    Args:
      path, store: as for `input_files.open_input`.

    Raises:
      UserError: the file cannot be read, is compressed as a whole, or damaged. Reads in the body raise it too.
    """
    import pyarrow.parquet as pq

    with input_files.open_input(path, store) as file:
        if not file.seekable():
            raise UserError(f"{path} is compressed or in an archive, and Parquet is read from any position; unpack it")
        try:
            yield pq.ParquetFile(file, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True)
        except UserError:
            raise
        except Exception as error:  # pyarrow raises various errors for damaged metadata
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise UserError(f"{path} is not an intact Parquet file ({reason}); copy it again, or leave it "
                            "out") from error
