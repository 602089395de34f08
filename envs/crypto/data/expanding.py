"""Compressed files, read up to a limit: a small file must not fill the memory.

What is read is counted, or what the reader itself goes by: a decompressed buffer of a feather file
has the size that stands before it. Other sizes that headers state only refuse a file early.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet

from sweepd.envs.support.errors import InputError

MOST = 2**30  # bytes of one table: 10 million bars as text
MOST_TIMES = (
    100  # bytes of all members of a large archive per byte of the archive; bars have 3 to 10
)
_CHUNK = 2**20
_FEATHER_1 = b"FEA1"  # an old format, not compressed
_HEAD = 8  # bytes of a feather file before its messages
_OLD_COMPRESSION = b"ARROW:experimental_compression"  # of pyarrow 0.17


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
    """Read a feather file.

    Raises:
        InputError: it expands beyond the limit.
        pyarrow.ArrowException: it is not a feather file.
    """
    with path.open("rb") as file:
        if file.read(4) == _FEATHER_1:
            return pyarrow.feather.read_table(path, use_threads=False)
    budget, total = Budget(path), 0
    # pyarrow expands a batch as a whole, so the sizes of all are added up before the first is read.
    # Both passes read the messages in turn; the footer could name other ones.
    with pa.OSFile(str(path)) as source:
        pa.ipc.open_file(source)  # refuses a file that is not whole
        source.seek(_HEAD)
        for message in pa.ipc.MessageReader.open_stream(source):
            size = _expanded_size(message)
            total += size
            budget.take(size, total)
        source.seek(_HEAD)
        return _decoded(path, pa.ipc.open_stream(source).read_all())


def read_parquet(path: Path) -> pa.Table:
    """Read the columns of a parquet file that are not nested.

    If its sizes are wrong, less than 2 GiB are expanded before they are counted: a page.

    Raises:
        InputError: it expands beyond the limit.
        pyarrow.ArrowException: it is not a parquet file.
    """
    with pyarrow.parquet.ParquetFile(path) as file:
        metadata, schema = file.metadata, file.schema
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        stated = sum(group.total_byte_size for group in groups)
        Budget(path).take(stated, stated)
        columns = [schema.column(number) for number in range(len(schema))]
    flat = [one.name for one in columns if one.path == one.name]  # a name may be repeated
    # As dictionaries, since a long text may stand in each of millions of rows.
    texts = [one.name for one in columns if one.physical_type == "BYTE_ARRAY"]
    budget, total, read = Budget(path), 0, list[pa.ChunkedArray]()
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        # One column after another, because each has a page in the memory.
        for place, name in enumerate(flat):
            chunks, number = [], flat[:place].count(name)
            for batch in file.iter_batches(columns=[name], use_threads=False):
                total += batch.nbytes
                budget.take(batch.nbytes, total)
                chunks.append(batch.column(number))
            read.append(pa.chunked_array(chunks) if chunks else pa.chunked_array([], pa.null()))
        return _decoded(path, pa.table(read, names=flat, metadata=file.schema_arrow.metadata))


def _decoded(path: Path, table: pa.Table) -> pa.Table:
    """Return the table without dictionaries, if its columns fit as text or numbers."""
    table.validate(full=True)  # pyarrow reads beyond the memory where offsets are wrong
    budget, total = Budget(path), 0
    columns = []
    for column in table.columns:
        size = max(8 * len(column), sum(map(_decoded_size, column.chunks)))
        total += size
        budget.take(size, total)
        plain = pa.types.is_dictionary(column.type)
        columns.append(column.cast(column.type.value_type) if plain else column)
    return pa.table(columns, names=table.column_names, metadata=table.schema.metadata)


def _decoded_size(chunk: pa.Array) -> int:
    """Return the bytes of a dictionary's texts, with repetitions; 0 for other arrays."""
    if not isinstance(chunk, pa.DictionaryArray):
        return 0
    try:
        lengths = pc.binary_length(chunk.dictionary)
    except pa.ArrowNotImplementedError:  # no texts
        return 0
    return int(pc.sum(lengths.take(chunk.indices)).as_py() or 0)


# ---- messages of feather files: https://arrow.apache.org/docs/format/Columnar.html ----


def _expanded_size(message: pa.Message) -> int:
    """Return the bytes of a message's buffers after decompression."""
    if message.type not in ("record batch", "dictionary"):
        return 0
    metadata = message.metadata.to_pybytes()
    batch = _followed(metadata, _field(metadata, _followed(metadata, 0), 2))
    if message.type == "dictionary":
        batch = _followed(metadata, _field(metadata, batch, 1))
    if not _field(metadata, batch, 3) and _OLD_COMPRESSION not in metadata:
        return int(message.body.size)
    buffers = _followed(metadata, _field(metadata, batch, 2))
    (count,) = struct.unpack_from("<I", metadata, buffers)
    places = struct.iter_unpack("<qq", metadata[buffers + 4 : buffers + 4 + 16 * count])
    return sum(_buffer_size(message.body, *place) for place in places)


def _buffer_size(body: pa.Buffer, offset: int, length: int) -> int:
    """Return the size of a decompressed buffer; -1 stands before one that is not compressed."""
    if length == 0:
        return 0
    # pyarrow refuses a negative offset later.
    size = int.from_bytes(body.slice(max(offset, 0), 8), "little", signed=True)
    return max(size, length)


def _field(data: bytes, table: int, number: int) -> int:
    """Return the place of a flatbuffer table's field, 0 if the table does not have it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + entry)[0] if entry < size else 0
    return table + offset if offset else 0


def _followed(data: bytes, place: int) -> int:
    """Return the place to which the offset at `place` of a flatbuffer leads."""
    return int(place + struct.unpack_from("<I", data, place)[0])
