"""Where files are: a path of this machine, absolute from the moment it is named.

A relative one would follow every later `chdir`, in whichever process. What looks like another place
(`s3://bucket`, `~/x`) would be a local folder of that very name: it is refused.
"""

from __future__ import annotations

import glob
import os
import re
from urllib.parse import unquote

from dagster_jet.errors import ConfigurationError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
"""Also with one slash: that is how `pathlib` writes it."""
_MAGIC_TO_SPARK = re.compile(r"[\\{}\[\]*?]")
_LOCAL_HOSTS = ("", "localhost")


def local_path(place: str, *, may_be_pattern: bool = False) -> str:
    """The absolute path that a user means by `place`: a path, or a ``file:///`` URL of one.

    Args:
        may_be_pattern: of file names, for `glob`.

    Raises:
        ConfigurationError: it is elsewhere, or nowhere.
    """
    scheme = _SCHEME.match(place)
    path = place
    if scheme is not None and scheme[1].lower() == "file":
        path = _path_of_url(place, place[scheme.end() :])
    elif scheme is not None:
        raise ConfigurationError(
            f"path: {place!r} is not on this machine, and {scheme[1]}:// is not supported.",
            cure="Name a local folder, or one that is mounted here.",
        )
    if path.startswith("~"):
        raise ConfigurationError(
            f"path: {place!r} would be a folder named {path.partition('/')[0]!r} here.",
            cure="Shells expand '~', paths do not: write os.path.expanduser(...), or './~' where "
            "the folder is meant.",
        )
    if not path or "\0" in path:
        raise ConfigurationError(f"path: {place!r} names no place.", cure="Name a folder.")
    if may_be_pattern and is_pattern(path) and not os.path.isabs(path):
        return os.path.normpath(os.path.join(glob.escape(os.getcwd()), path))
    return os.path.abspath(path)


def is_pattern(path: str) -> bool:
    """A folder that exists under this very name is none."""
    return glob.has_magic(path) and not os.path.isdir(path)


def _path_of_url(url: str, rest: str) -> str:
    """`rest`: what is behind the scheme and its colon."""
    if not rest.startswith("//"):
        return unquote(rest)
    host, slash, path = rest[2:].partition("/")
    if host not in _LOCAL_HOSTS:
        raise ConfigurationError(
            f"path: {url!r} is on the host {host!r}.",
            cure="A local path has three slashes (file:///folder); mount what is elsewhere.",
        )
    return unquote(slash + path)


def literally(path: str) -> str:
    """As Spark's readers want it: they take every path for a pattern, `part-[1]` for `part-1`.

    Not with their option `__globPaths__`: per name that looks like a pattern, Spark 4.3 then reads
    all the others once more.
    """
    return _MAGIC_TO_SPARK.sub(r"\\\g<0>", path)
