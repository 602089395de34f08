"""Small files that would fill the memory are refused before they do, measured in a process."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from sweepd.envs.crypto.data import expanding
from sweepd.envs.crypto.data.bar_files import COLUMNS
from sweepd.envs.crypto.data.expanding import read_feather, read_parquet
from sweepd.envs.crypto.data.importing.tables import read_tables
from sweepd.envs.support.errors import InputError
from tests.extra import with_extra

ROWS = 50_000_000  # six columns have 2.2 GiB
LARGE = 250.0  # MiB that reading may take: what pyarrow needs for small files, and room
SCRIPT = """
import resource, sys
from pathlib import Path
from sweepd.envs.crypto.data import expanding
from sweepd.envs.crypto.data.importing.tables import read_tables
from sweepd.envs.support.errors import InputError
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
expanding.MOST = int(sys.argv[2])
before = peak()
try:
    list(read_tables(Path(sys.argv[1])))
except InputError as error:
    print(peak() - before, error)
"""


def refused(path: Path, most: int = 2**30) -> tuple[float, str]:
    """Return the MiB that reading a file has taken, and the sentence that refuses it."""
    assert path.stat().st_size < 2**20
    words = [sys.executable, "-c", SCRIPT, str(path), str(most)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    taken, sentence = done.stdout.split(" ", 1)
    assert sentence.count("\n") == 1
    return float(taken), sentence


def zeros() -> pa.Table:
    column = pa.array(np.zeros(ROWS))  # pages that are only read take no memory
    return pa.table(dict.fromkeys(COLUMNS, column))


@pytest.fixture(scope="module")
def one_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parquet file with one page per column."""
    path = tmp_path_factory.mktemp("parquet") / "BTC_USDT-1h.parquet"
    most = {"data_page_size": 2**31 - 1, "write_batch_size": ROWS, "max_rows_per_page": ROWS}
    options = most | {"row_group_size": ROWS, "compression": "zstd", "use_dictionary": False}
    pyarrow.parquet.write_table(zeros(), path, **options)
    return path


def varint(value: int) -> bytes:
    """Return a number as Thrift writes it."""
    value, found = 2 * value, b""
    while value > 127:
        found, value = found + bytes([128 + value % 128]), value // 128
    return found + bytes([value])


def texts(rows: int) -> pa.Table:
    """Return a table whose only text, of 1 MiB, stands in each row."""
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), ["x" * 2**20])
    return pa.table({name: text if name == "date" else pa.array(np.ones(rows)) for name in COLUMNS})


@pytest.mark.parametrize(
    "kind",
    with_extra(["feather", "parquet", "texts.feather", "texts.parquet", "nulls"], ["parquet"]),
)
def test_a_file_of_several_gigabytes_is_refused_before_it_expands(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / f"BTC_USDT-1h.{'feather' if kind == 'nulls' else kind}"
    if kind == "feather":
        pyarrow.feather.write_feather(zeros(), path, compression="zstd", chunksize=ROWS)
    elif kind == "parquet":
        path = request.getfixturevalue("one_page")
    elif kind == "nulls":
        pyarrow.feather.write_feather(
            pa.table({"date": pa.nulls(2**33)}), path, chunksize=2**31 - 1
        )
    else:
        write = pyarrow.feather.write_feather if "feather" in kind else pyarrow.parquet.write_table
        write(texts(2_000), path)
    taken, sentence = refused(path)
    assert f"{path}: expands to more than 1 GiB" in sentence
    assert taken < LARGE


def test_sizes_of_a_parquet_file_that_are_wrong(tmp_path: Path, one_page: Path) -> None:
    """A page is expanded before it is counted, of one column at a time: here 381 MiB."""
    path = tmp_path / "BTC_USDT-1h.parquet"
    stated = pyarrow.parquet.ParquetFile(one_page).metadata.row_group(0).total_byte_size
    written = varint(stated)
    data = one_page.read_bytes()
    assert data.count(written) == 1
    path.write_bytes(data.replace(written, b"\x80" * (len(written) - 1) + b"\0"))
    assert pyarrow.parquet.ParquetFile(path).metadata.row_group(0).total_byte_size == 0
    taken, sentence = refused(path, 2**26)
    assert f"{path}: expands to more than 0.0625 GiB" in sentence
    assert taken < 8 * ROWS / 2**20 + LARGE


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_of_archives_that_expand_at_once_are_refused(tmp_path: Path, method: int) -> None:
    path = tmp_path / "BTC_USDT-1h.zip"
    with zipfile.ZipFile(path, "w", method) as archive, archive.open("BTC.csv", "w") as member:
        for _ in range(110):
            member.write(bytes(2**20))
    taken, sentence = refused(path)
    assert f"{path}: is not compressed by deflate" in sentence
    assert taken < 100  # nothing of it is read


@pytest.mark.parametrize("compression", ["zstd", "lz4", "uncompressed"])
def test_the_size_of_each_kind_of_buffer_is_known_before(tmp_path: Path, compression: str) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "some.feather"
    table = pa.table(
        {
            "noise": rng.random(5_000),  # does not become smaller
            "holes": pa.array([None, 1.0] * 2_500),
            "names": pa.array(["BTC", "ETH"] * 2_500).dictionary_encode(),
            "texts": [str(number) for number in range(5_000)],
            "none": pa.nulls(5_000),
            "empty": pa.array([[]] * 5_000, pa.list_(pa.int64())),
        }
    )
    pyarrow.feather.write_feather(table, path, compression=compression, chunksize=2_000)
    with pa.OSFile(str(path)) as source:
        source.seek(8)
        sizes = [expanding._expanded_size(one) for one in pa.ipc.MessageReader.open_stream(source)]
    with pa.ipc.open_file(path) as reader:
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    assert sum(size > 0 for size in sizes) == 1 + len(batches) == 4
    dictionary = 5_000  # its size is small; padding is at most 64 bytes a buffer
    assert sum(sizes) == pytest.approx(sum(one.nbytes for one in batches), abs=dictionary)
    found = read_feather(path)
    assert found["names"].type == pa.string()
    assert found.to_pydict() == table.to_pydict()
    plain = pa.py_buffer((-1).to_bytes(8, "little", signed=True) + bytes(100))
    assert expanding._buffer_size(plain, 0, 108) == 108


@pytest.mark.parametrize("suffix", ["feather", "parquet"])
def test_changed_bytes_are_refused_and_end_no_process(tmp_path: Path, suffix: str) -> None:
    """Of wrong offsets, pyarrow would read beyond the memory."""
    rng = np.random.default_rng(0)
    names = pa.array(["BTC", "ETH"] * 150).dictionary_encode()
    table = pa.table({"x": rng.random(300), "names": names, "texts": [str(n) for n in range(300)]})
    path = tmp_path / f"some.{suffix}"
    feather = pyarrow.feather.write_feather
    write = feather if suffix == "feather" else pyarrow.parquet.write_table
    write(table, path, compression="zstd")
    whole, found = path.read_bytes(), 0
    for _ in range(1_000):
        changed = bytearray(whole)
        for place in rng.integers(0, len(whole), 2):
            changed[place] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        try:
            list(read_tables(path))
        except InputError:
            found += 1
    assert found > 300


def test_a_cut_file_is_refused_and_columns_keep_their_names(tmp_path: Path) -> None:
    path = tmp_path / "some.feather"
    pyarrow.feather.write_feather(pa.table({"x": np.arange(10)}), path, chunksize=5)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\xff\xff\xff\xff\0\0\0\0") + 8])  # without the footer
    with pytest.raises(pa.ArrowInvalid):
        read_feather(path)
    path = tmp_path / "some.parquet"
    table = pa.table([[1, 2], [3, 4], ["a", None], [[1], [2]]], names=["a.b", "x", "x", "nested"])
    pyarrow.parquet.write_table(table, path)
    found = read_parquet(path)
    assert found.column_names == ["a.b", "x", "x"]
    assert [one.to_pylist() for one in found.columns] == [[1, 2], [3, 4], ["a", None]]
    pd.DataFrame({"x": [1.5]}).iloc[:0].to_parquet(path)
    assert read_parquet(path).num_rows == 0
