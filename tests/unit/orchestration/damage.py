"""Damages a member in a folder, as a failing disk does, while nobody has the folder open."""

from pathlib import Path

PAGE_BYTES = 4096


def flip_in(folder: Path, value: bytes) -> None:
    """One bit of the copy of a value."""
    data = bytearray((folder / "data.mdb").read_bytes())
    data[data.index(value) + len(value) // 2] ^= 1
    (folder / "data.mdb").write_bytes(data)


def spoil_first_pages(folder: Path) -> None:
    """Overwrites both pages by which LMDB knows its file."""
    data = bytearray((folder / "data.mdb").read_bytes())
    data[: 2 * PAGE_BYTES] = bytes(2 * PAGE_BYTES)
    (folder / "data.mdb").write_bytes(data)


def spoil_page_of(folder: Path, value: bytes) -> None:
    """The head of the page that a value is on."""
    data = bytearray((folder / "data.mdb").read_bytes())
    begin = data.index(value) // PAGE_BYTES * PAGE_BYTES
    data[begin : begin + 16] = b"\xa5" * 16
    (folder / "data.mdb").write_bytes(data)
