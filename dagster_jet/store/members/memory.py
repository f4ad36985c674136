"""``memory://name``: a dict, for unit tests.

Its data is lost with the process and invisible to others, so it is refused unless allowed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store.members.member import Replacement, Versioned


@dataclass
class _Room:
    """The data of one name, shared by its members in this process."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    versioned: dict[bytes, Versioned] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_rooms: dict[str, _Room] = {}
_rooms_lock = threading.Lock()


class MemoryMember:
    """A member in this process's memory; members of the same name share their data.

    ``reachable = False`` makes this object behave as a member that does not answer.
    """

    def __init__(self, name: str) -> None:
        self._member_id = f"memory://{name}"
        self._name = name
        self.reachable = True
        with _rooms_lock:
            self._kept = _rooms.setdefault(name, _Room())

    @property
    def member_id(self) -> str:
        """The URL."""
        return self._member_id

    def create(self) -> None:
        """See ``Member.create``; there is nothing to create."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Member.get_many``."""
        room = self._room()
        with room.lock:
            return [room.values.get(key) for key in keys]

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """See ``Member.put_many``; all or nothing, kept until the process ends."""
        room = self._room()
        with room.lock:
            room.values.update(items)

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """See ``Member.replace_many``."""
        room = self._room()
        with room.lock:
            unchanged = {
                key: item.value for key, item in items.items() if room.values.get(key) == item.seen
            }
            for key, value in unchanged.items():
                if value is None:
                    room.values.pop(key, None)
                else:
                    room.values[key] = value
        return len(unchanged)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """See ``Member.delete_many``."""
        room = self._room()
        with room.lock:
            for key in keys:
                room.values.pop(key, None)

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_keys``."""
        room = self._room()
        with room.lock:
            return sorted(key for key in room.values if key.startswith(prefix))

    def get_versioned(self, key: bytes) -> Versioned | None:
        """See ``Member.get_versioned``."""
        room = self._room()
        with room.lock:
            return room.versioned.get(key)

    def written_last(self, key: bytes) -> Versioned | None:
        """See ``Member.written_last``: versions are compared here, not bytes."""
        return None

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_versioned``."""
        room = self._room()
        with room.lock:
            return sorted(key for key in room.versioned if key.startswith(prefix))

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """See ``Member.compare_and_set``."""
        room = self._room()
        with room.lock:
            current = room.versioned.get(key)
            if (current.version if current else 0) != expected_version:
                return False
            room.versioned[key] = Versioned(expected_version + 1, value)
            return True

    def ping(self) -> None:
        """See ``Member.ping``."""
        self._room()

    def close(self) -> None:
        """Release nothing; the name keeps its values until ``forget``."""

    def forget(self) -> None:
        """Delete all data of this name, as if its disk had been replaced."""
        room = self._room()
        with room.lock:
            room.values.clear()
            room.versioned.clear()

    def _room(self) -> _Room:
        if not self.reachable:
            raise StoreUnavailableError(f"the store member {self._member_id} does not answer.")
        return self._kept
