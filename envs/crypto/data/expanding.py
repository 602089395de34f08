"""Compressed files, read up to a limit: a small file must not fill the memory.

What is read is counted. The sizes that headers of archives state are not trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from envs.support.errors import InputError

MOST = 2**30  # bytes of one table: 10 million bars as text
MOST_TIMES = (
    100  # bytes of all members of a large archive per byte of the archive; bars have 3 to 10
)
_CHUNK = 2**20
_FEATHER_1 = b"FEA1"  # an old format, not compressed


class Readable(Protocol):
    """What is read in chunks."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


class Budget:
    """Counts expanded bytes of a file.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.most = max(MOST, MOST_TIMES * path.stat().st_size)
        self.left = self.most

    def take(self, size: int, total: int) -> None:
        """Count `size` more bytes of a table that has `total` so far.

        Raises:
            InputError: they are more than a table, or the whole file, may have.
        """
        self.left -= size
        if total > MOST or self.left < 0:
            most = MOST if total > MOST else self.most
            raise InputError(
                f"{self.path}: expands to more than {most / 2**30:.3g} GiB, the limit for a file of "
                f"its size ({self.path.stat().st_size / 2**20:.3g} MiB); divide it into smaller "
                "files if it does hold bars"
            )


def read_stream(stream: Readable, budget: Budget) -> bytes:
    """Return what a decompressing stream holds.

    Raises:
        InputError: it is more than the budget allows.
    """
    data = bytearray()
    while chunk := stream.read(_CHUNK):
        budget.take(len(chunk), len(data) + len(chunk))
        data += chunk
    return bytes(data)


def read_feather(path: Path) -> pa.Table:
    """Read a feather file, batch by batch.

    Raises:
        InputError: it expands beyond the limit.
        pyarrow.ArrowException: it is not a feather file.
    """
    with path.open("rb") as file:
        if file.read(4) == _FEATHER_1:
            return pyarrow.feather.read_table(path, use_threads=False)
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        return pa.Table.from_batches(_counted(path, batches), reader.schema)


def read_parquet(path: Path) -> pa.Table:
    """Read a parquet file, batch by batch.

    Raises:
        InputError: it expands beyond the limit.
        pyarrow.ArrowException: it is not a parquet file.
    """
    with pyarrow.parquet.ParquetFile(path) as file:
        batches = file.iter_batches(use_threads=False)
        return pa.Table.from_batches(_counted(path, batches), file.schema_arrow)


def _counted(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    budget, total = Budget(path), 0
    for batch in batches:
        total += batch.nbytes
        budget.take(batch.nbytes, total)
        yield batch
