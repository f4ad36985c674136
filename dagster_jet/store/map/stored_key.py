"""How a map's key is written on the members: ``map/<namespace>/<map>/<partition>/<name>``.

Namespace and map are quoted, so that they hold no slash and no two maps' keys meet; the partition
has four digits, so that the keys of one map sort by partition.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from dagster_jet.errors import ConfigurationError
from dagster_jet.store.members.member import MAX_KEY_BYTES

ALL_MAPS = b"map/"
"""What the keys of every map of every namespace begin with."""


ENTRIES, RING, BATCHES = "user", "user-journal", "user-batches"
"""What the names of maps begin with, before a slash, whose values begin with a version."""

DAMAGE = "damage"
"""What the map of notes of damaged copies is called; its values are versions and nothing else."""

VERSION_BYTES = 8
"""Length of that version; see ``ReplicatedMap.put_newer``."""


def map_prefix(namespace: str, name: str) -> str:
    """Return the prefix of a map's stored keys; any two maps have prefixes that do not meet."""
    return f"map/{quote(namespace, safe='')}/{quote(name, safe='')}"


def stored_key(prefix: str, partition: int, name: str) -> bytes:
    """Return a key as the members know it.

    Raises:
        ConfigurationError: it is longer than a member can hold.
    """
    stored = f"{prefix}/{partition:04d}/{name}".encode()
    if len(stored) > MAX_KEY_BYTES:
        raise ConfigurationError(
            f"the key {name[:40]!r}... has {len(stored)} bytes with the map's name, more "
            f"than the {MAX_KEY_BYTES} a member can hold.",
            cure="Use shorter keys, or a hash of them.",
        )
    return stored


def partition_of(stored: bytes) -> int:
    """Return the partition of a key of any map."""
    return int(stored.split(b"/", 4)[3])


def map_of(stored: bytes) -> str:
    """Return the name of the map that a key is of."""
    return unquote(stored.split(b"/", 3)[2].decode())


def described(stored: bytes) -> str:
    """Return a key as people read it: its map, partition and name."""
    _, namespace, name, partition, key = stored.decode().split("/", 4)
    of_map = f"{unquote(namespace)}:{unquote(name)}"
    return f"{of_map} [{int(partition)}] {key}"


def has_version(stored: bytes) -> bool:
    """Whether the value of a key begins with a version: of two, the higher one counts."""
    kind = unquote(stored.split(b"/", 3)[2].decode()).partition("/")[0]
    return kind in (ENTRIES, RING, BATCHES, DAMAGE)


def version_of(value: bytes) -> int:
    """Return the version that a value begins with."""
    return int.from_bytes(value[:VERSION_BYTES], "big")
