"""Which objects of a store without folders are in a folder, or fit a pattern."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterable, Sequence

from dagster_jet.connectors.files.places.place import InputFile, Listing, is_finished


def folder_of(url: str) -> str:
    """The folder that a URL names, or the innermost one that its pattern cannot leave."""
    while glob.has_magic(url):
        url = url.rpartition("/")[0]
    return url


def found_in(url: str, files: Iterable[InputFile], subfolders: Sequence[str] = ()) -> Listing:
    """Of all files below `folder_of(url)`: the finished ones that `url` means."""
    finished = [file for file in files if is_finished(file.path.rpartition("/")[2])]
    if folder_of(url) == url:
        depth = url.count("/") + 1
        inside = [file for file in finished if file.path.count("/") == depth and _has_name(file)]
        shown = [name for name in subfolders if is_finished(name.rpartition("/")[2])]
        return Listing(tuple(inside), tuple(shown))
    return Listing(tuple(file for file in finished if _fits(file.path, url)))


def _has_name(file: InputFile) -> bool:
    """What ends with a slash is how some tools make a folder."""
    return not file.path.endswith("/")


def _fits(path: str, pattern: str) -> bool:
    """As a shell does it: `*` stays within a folder's name and leaves hidden names alone."""
    names, wanted = path.split("/"), pattern.split("/")
    return len(names) == len(wanted) and all(
        fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
        for name, part in zip(names, wanted, strict=True)
    )
