"""Selects the objects in a folder, or matching a pattern, from a store without folders."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterable, Sequence

from dagster_jet.connectors.files.places.place import (
    InputFile,
    Listing,
    is_finished,
    is_inside,
    is_read_folder,
)


def folder_of(url: str) -> str:
    """Returns the folder of a URL, or the innermost one with all matches of its pattern."""
    while glob.has_magic(url):
        url = url.rpartition("/")[0]
    return url


def found_in(
    url: str,
    files: Iterable[InputFile],
    subfolders: Sequence[str] = (),
    *,
    recursive: bool = False,
) -> Listing:
    """Returns the finished files that match `url`, of all files below `folder_of(url)`."""
    named = filter(_has_name, files)
    if recursive:
        return Listing(tuple(file for file in named if is_inside(file.path, url)))
    finished = [file for file in named if is_finished(file.path.rpartition("/")[2])]
    if folder_of(url) == url:
        depth = url.count("/") + 1
        inside = [file for file in finished if file.path.count("/") == depth]
        shown = [name for name in subfolders if is_read_folder(name.rpartition("/")[2])]
        return Listing(tuple(inside), tuple(shown))
    return Listing(tuple(file for file in finished if _fits(file.path, url)))


def may_hold(url: str, folder: str, *, recursive: bool = False) -> bool:
    """Returns whether `found_in` may return a file below a subfolder of `folder_of(url)`."""
    if recursive:
        return is_read_folder(folder.rpartition("/")[2])
    outer = url.split("/")[: folder.count("/") + 1]
    return len(outer) <= url.count("/") and _fits(folder, "/".join(outer))


def _has_name(file: InputFile) -> bool:
    """Returns False for a name that ends with a slash: some tools create folders that way."""
    return not file.path.endswith("/")


def _fits(path: str, pattern: str) -> bool:
    """Matches like a shell: `*` does not match slashes and hidden names."""
    names, wanted = path.split("/"), pattern.split("/")
    return len(names) == len(wanted) and all(
        fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
        for name, part in zip(names, wanted, strict=True)
    )
