"""Reads text files: decompressed, in blocks of whole lines, as Arrow strings."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.files.slices import Slice, is_compressed
from dagster_jet.connectors.files.watched import Watched
from dagster_jet.errors import BadRowError

_BLOCK_BYTES = 4 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMPRESSED: Mapping[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open}


def is_readable(path: str) -> bool:
    """Returns whether tasks can read the file; only Spark can read some compressed ones."""
    return not is_compressed(path) or is_decompressed(path)


def is_decompressed(path: str) -> bool:
    """Returns whether tasks decompress the file, and so can only read it as a whole."""
    return path.endswith(tuple(_COMPRESSED))


@contextmanager
def open_text(place: tuple[str, StorageOptions], file: InputFile) -> Iterator[BinaryIO]:
    """Opens a file's text, decompressed according to its suffix.

    Raises:
        BadRowError: its content is damaged, or not in that compression format.
        OSError: it cannot be read now.
    """
    with open_input(*place).open(file) as stream:
        kind = next((open for end, open in _COMPRESSED.items() if file.path.endswith(end)), None)
        if kind is None:
            yield stream
            return
        watched = Watched(stream)
        try:
            yield cast(BinaryIO, kind(watched))
        except (EOFError, zlib.error, OSError) as error:
            if watched.has_failed:
                raise
            raise BadRowError(
                f"the compressed file is damaged, truncated, or not compressed: {error}.",
                position=file.path,
                cure="Replace it by the complete file, or correct its name extension.",
            ) from error


def blocks_of(place: tuple[str, StorageOptions], part: Slice) -> Iterator[bytes]:
    """Yields the lines that begin in a part of a file; raises as `open_text`."""
    with open_text(place, part.file) as stream:
        # In a compressed file `end` is not the end of the text.
        end = None if is_decompressed(part.path) else part.end
        for number, block in enumerate(blocks(stream, part.begin, end)):
            yield block.removeprefix(_BYTE_ORDER_MARK) if number == part.begin == 0 else block


def blocks(stream: BinaryIO, begin: int, end: int | None) -> Iterator[bytes]:
    """Yields the whole lines that begin in [begin, end); None: up to the end of the file."""
    at = begin
    if begin:
        stream.seek(begin - 1)
        at += len(stream.readline()) - 1
    while end is None or at < end:
        block = stream.read(_BLOCK_BYTES if end is None else min(_BLOCK_BYTES, end - at))
        if not block:
            return
        if not block.endswith(b"\n"):
            block += stream.readline()
        at += len(block)
        yield block


def lines_of(block: bytes) -> pa.StringArray:
    """Returns the lines that are not blank. Lines end with ``\\n``, ``\\r\\n`` or ``\\r``."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = pc.split_pattern(_as_text(block), "\n").flatten()
    return lines.filter(pc.not_equal(pc.ascii_trim_whitespace(lines), ""))


def _as_text(block: bytes) -> pa.StringArray:
    try:
        return pa.array([block], pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # replaces invalid UTF-8, as Spark's readers do
        return pa.array([block.decode("utf-8", "replace")])
