"""Storage members: one backend per file, selected by the scheme of a URL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from dagster_jet.errors import ConfigurationError
from dagster_jet.store.members.file import FileMember
from dagster_jet.store.members.member import MAX_KEY_BYTES, Member, Replacement, Versioned
from dagster_jet.store.members.memory import MemoryMember

__all__ = [
    "MAX_KEY_BYTES",
    "FileMember",
    "Member",
    "MemoryMember",
    "Replacement",
    "Versioned",
    "member_id_of",
    "open_member",
    "refuse_memory",
]


@dataclass(frozen=True, slots=True)
class _Scheme:
    """Functions of a URL scheme: they return a URL's member id and its member."""

    member_id: Callable[[str], str]
    open: Callable[[str], Member]


def member_id_of(url: str) -> str:
    """Return the member id of a URL: normalised, without secrets.

    Raises:
        ConfigurationError: the URL is not valid.
    """
    return _scheme_of(url).member_id(url)


def open_member(url: str, *, allow_memory: bool = False) -> Member:
    """Return the member of a URL, not yet connected: the first call connects it.

    Args:
        url: ``file:///absolute/folder``, ``redis://host:6379/0``, ``rediss://``,
            ``s3://bucket/prefix``, ``dynamodb://table`` or ``memory://name``.
        allow_memory: accept ``memory://``, whose data is lost with the process.

    Raises:
        ConfigurationError: the scheme is unknown, the URL is not valid, memory was not
            allowed, or a package is not installed.
    """
    refuse_memory(member_id_of(url), allow_memory=allow_memory)
    return _scheme_of(url).open(url)


def refuse_memory(member_id: str, *, allow_memory: bool) -> None:
    """Refuse a member whose data is lost with the process, unless a test allows it.

    Raises:
        ConfigurationError: the member is in memory.
    """
    if member_id.startswith("memory://") and not allow_memory:
        raise ConfigurationError(
            f"{member_id} keeps its data in this process's memory only.",
            cure="Use file:///folder; in a test a temporary folder, or dagster_jet.testing's "
            "run_pipeline.",
        )


def _scheme_of(url: str) -> _Scheme:
    name = url.partition(":")[0].lower()
    if name not in _SCHEMES:
        # The URL is not repeated here: a mistyped one may contain a password.
        known = [f"{scheme}://" for scheme in _SCHEMES if scheme != _MEMORY]
        raise ConfigurationError(
            f"{name!r} is not a known scheme of a store URL."
            if name.isalnum() and "://" in url
            else "a URL of the store has no known scheme.",
            cure=f"Use one of: {', '.join(known)}. A folder is file:///var/jet/a, with %20 for a "
            "space.",
        )
    return _SCHEMES[name]()


def _file() -> _Scheme:
    return _Scheme(
        lambda url: FileMember.id_of(FileMember.normalise(_folder(url))),
        lambda url: FileMember(_folder(url)),
    )


def _memory() -> _Scheme:
    return _Scheme(lambda url: f"memory://{_room(url)}", lambda url: MemoryMember(_room(url)))


# Imported on demand: boto3 takes longer to import than the whole store.


def _redis() -> _Scheme:
    from dagster_jet.store.members import redis, redis_client

    return _Scheme(lambda url: redis_client.member_id(redis_client.parsed(url)), redis.RedisMember)


def _s3() -> _Scheme:
    from dagster_jet.store.members import s3

    return _Scheme(lambda url: s3.member_id(s3.parsed_url(url)), s3.S3Member)


def _dynamodb() -> _Scheme:
    from dagster_jet.store.members import dynamodb

    return _Scheme(
        lambda url: dynamodb.member_id(dynamodb.parsed_url(url)), dynamodb.DynamoDbMember
    )


_MEMORY = "memory"
"""Scheme of this library's own tests."""
_SCHEMES: dict[str, Callable[[], _Scheme]] = {
    "file": _file,
    "redis": _redis,
    "rediss": _redis,
    "s3": _s3,
    "dynamodb": _dynamodb,
    _MEMORY: _memory,
}


def _folder(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/"):
        raise ConfigurationError(
            f"{url!r} does not name an absolute folder.",
            cure="Write three slashes: file:///var/jet/a.",
        )
    if "?" in url or "#" in url:
        raise ConfigurationError(
            f"{url!r} has a '?' or '#', and a file:// store URL has no options.",
            cure="Remove what follows it. If it is part of a folder's name, write %3F for '?' and "
            "%23 for '#'.",
        )
    return path


def _room(url: str) -> str:
    parts = urlsplit(url)
    if not parts.netloc or parts.path.strip("/"):
        raise ConfigurationError(f"a memory member is written memory://name, not {url!r}.")
    return parts.netloc
