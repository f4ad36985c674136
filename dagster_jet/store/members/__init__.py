"""Storage members: one backend per file, chosen by the scheme of a URL."""

from __future__ import annotations

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
]

_KNOWN = ("file", "memory")
_LATER = ("redis", "rediss", "s3", "dynamodb")


def member_id_of(url: str) -> str:
    """Return the member id a URL stands for: normalised, and without anything secret.

    Raises:
        ConfigurationError: the URL is not one this version can open.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return f"file://{FileMember.normalise(_folder(url))}"
    if parts.scheme == "memory":
        if not parts.netloc or parts.path.strip("/"):
            raise ConfigurationError(f"a memory member is written memory://name, not {url!r}.")
        return f"memory://{parts.netloc}"
    if parts.scheme in _LATER:
        raise ConfigurationError(
            f"store members of scheme {parts.scheme!r} are not in this version yet.",
            cure=f"Use one of: {_schemes()}.",
        )
    # The URL itself is not repeated here: what is mistyped may still hold a password.
    raise ConfigurationError(
        f"{parts.scheme!r} is not a known scheme of a store URL.",
        cure=f"Use one of: {_schemes()}.",
    )


def open_member(url: str, *, allow_memory: bool = False) -> Member:
    """Return the member of a URL, not yet connected: the first call opens it.

    Args:
        url: ``file:///absolute/folder`` or ``memory://name``.
        allow_memory: accept ``memory://``, which loses everything with the process.

    Raises:
        ConfigurationError: an unknown scheme, a scheme of a later version, a relative folder,
            or memory that was not allowed.
    """
    member_id = member_id_of(url)
    if member_id.startswith("memory://"):
        if not allow_memory:
            raise ConfigurationError(
                f"{member_id} keeps nothing beyond this process.",
                cure="Use file:///folder, or allow_memory=True in a unit test.",
            )
        return MemoryMember(member_id.removeprefix("memory://"))
    return FileMember(_folder(url))


def _folder(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/"):
        raise ConfigurationError(
            f"{url!r} does not name an absolute folder.",
            cure="Write three slashes: file:///var/jet/a.",
        )
    return path


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in _KNOWN)
