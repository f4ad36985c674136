"""Keys of maps as stored on members: ``map/<namespace>/<map>/<partition>/<name>``.

Namespace and map are escaped: they contain no slash, and keys of two maps never collide. The
partition has four digits, so that the keys of one map sort by partition.
"""

from __future__ import annotations

from urllib.parse import unquote

from dagster_jet.errors import ConfigurationError
from dagster_jet.store.members.member import MAX_KEY_BYTES

ALL_MAPS = b"map/"
"""Prefix of the keys of all maps in all namespaces."""


ENTRIES, RING, BATCHES = "user", "user-journal", "user-batches"
"""First parts (before a slash) of the names of maps whose values begin with a version."""

DAMAGE = "damage"
"""Name of the map with notes of damaged copies; its values consist of a version only."""

VERSION_BYTES = 8
"""Length of that version in bytes; see ``ReplicatedMap.put_newer``."""


def escaped(name: str) -> str:
    """Return the name without slashes, for `unquote`.

    All other characters stay as they are: `quote` makes nine bytes of a Chinese letter, and a
    member takes keys of 511 bytes.

    Example:
        >>> escaped("jobs/заказы/record")
        'jobs%2Fзаказы%2Frecord'
    """
    return name.replace("%", "%25").replace("/", "%2F")


def map_prefix(namespace: str, name: str) -> str:
    """Return the prefix of a map's stored keys. No prefix starts with another one."""
    return f"map/{escaped(namespace)}/{escaped(name)}"


def stored_key(prefix: str, partition: int, name: str) -> bytes:
    """Return a key as stored on members.

    Raises:
        ConfigurationError: the key is longer than a member can hold.
    """
    stored = f"{prefix}/{partition:04d}/{name}".encode()
    if len(stored) > MAX_KEY_BYTES:
        raise ConfigurationError(
            f"the key {name[:40]!r}... and the name of its map have {len(stored)} bytes "
            f"together, and a member takes at most {MAX_KEY_BYTES}.",
            cure="Use shorter keys, or a hash of them.",
        )
    return stored


def partition_of(stored: bytes) -> int:
    """Return the partition of a stored key."""
    return int(stored.split(b"/", 4)[3])


def map_of(stored: bytes) -> str:
    """Return the map name of a stored key."""
    return unquote(stored.split(b"/", 3)[2].decode())


def described(stored: bytes) -> str:
    """Return a stored key for messages: its map, partition and name."""
    _, namespace, name, partition, key = stored.decode().split("/", 4)
    of_map = f"{unquote(namespace)}:{unquote(name)}"
    return f"{of_map} [{int(partition)}] {key}"


def has_version(stored: bytes) -> bool:
    """Whether the values of a key begin with a version; the higher version counts."""
    kind = unquote(stored.split(b"/", 3)[2].decode()).partition("/")[0]
    return kind in (ENTRIES, RING, BATCHES, DAMAGE)


def version_of(value: bytes) -> int:
    """Return the version at the start of a value."""
    return int.from_bytes(value[:VERSION_BYTES], "big")
