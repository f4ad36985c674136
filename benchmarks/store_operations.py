"""Puts and gets of a map per second, one by one and in batches, against the same work raw.

The map is the one that programs use (`Store.map`): every write is followed by a look at the
register, whether the members are still the same. The raw counterpart of a put is one synced append
to a file, or SETs whose answers are awaited; of a get from Redis one GET. A get from a file has
none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.interleaved import OURS, PEER
from benchmarks.ratios import Ratio, ratio
from benchmarks.store_places import Places
from benchmarks.store_raw import RawRedis
from dagster_jet.store import MapKey, ReplicatedMap, Store, StoreConfig

BATCH = 100
_VALUE_BYTES = 100
_KEYS = 10_000
NAMES = ("put", f"put {BATCH}", "get", f"get {BATCH}")


class Target(Protocol):
    """Keys that are put and read; a batch of one is a single operation."""

    def put(self, items: Mapping[str, bytes]) -> None: ...
    def get(self, names: list[str]) -> list[bytes | None] | None: ...


class _OfMap:
    def __init__(self, target: ReplicatedMap) -> None:
        self._map = target
        self._keys: dict[str, MapKey] = {}

    def put(self, items: Mapping[str, bytes]) -> None:
        self._map.put_all({self._map.key(name): value for name, value in items.items()})

    def get(self, names: list[str]) -> list[bytes | None]:
        return self._map.get_all([self._map.key(name) for name in names])


class _OfFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "wb", buffering=0)

    def put(self, items: Mapping[str, bytes]) -> None:
        self._file.write(b"".join(items.values()))
        os.fdatasync(self._file.fileno())

    def get(self, names: list[str]) -> None:
        return None

    def close(self) -> None:
        self._file.close()
        self._path.unlink()


class _OfRedis:
    def __init__(self, port: int) -> None:
        self._connection = RawRedis(port)
        self.put = self._connection.set_all
        self.close = self._connection.close

    def get(self, names: list[str]) -> list[bytes | None]:
        return self._connection.get_all(names)


@dataclass(frozen=True)
class Operations:
    """Operations per second of one engine in one slot, by name; a batch of 100 counts as 100."""

    engine: str
    per_second: dict[str, float]


def run_rounds(
    places: Places, backups: int, rounds: int, seconds: float, folder: Path
) -> list[list[Operations]]:
    """Each slot spends `seconds` on every operation."""
    places.clear()
    done = []
    with Store.open(StoreConfig(places.urls, backup_count=backups)) as store:
        ours = _OfMap(store.map("operations"))
        with _raw(places, folder) as raw:
            for _ in range(rounds):
                slots = [(OURS, ours), (PEER, raw), (PEER, raw), (OURS, ours)]
                done.append([Operations(name, _measured(t, seconds)) for name, t in slots])
    places.clear()
    return done


def compare(rounds: list[list[Operations]], name: str) -> Ratio:
    def values(engine: str) -> list[list[float]]:
        return [
            [s.per_second[name] for s in slots if s.engine == engine and name in s.per_second]
            for slots in rounds
        ]

    return ratio(values(OURS), values(PEER))


@contextmanager
def _raw(places: Places, folder: Path) -> Iterator[Target]:
    raw = _OfRedis(places.ports[0]) if places.ports else _OfFile(folder / "appended")
    try:
        yield raw
    finally:
        raw.close()


def _measured(target: Target, seconds: float) -> dict[str, float]:
    """Checked: what was put last under each key is what is read."""
    found: dict[str, float] = {}
    newest: dict[str, bytes] = {}
    for size, suffix in ((1, ""), (BATCH, f" {BATCH}")):

        def put(number: int, size: int = size) -> None:
            items = {
                f"key-{(number + at) % _KEYS}": f"{number + at:0{_VALUE_BYTES}}".encode()
                for at in range(size)
            }
            target.put(items)
            newest.update(items)

        found[f"put{suffix}"] = _rate(put, size, seconds)
        if target.get(["key-0"]) is None:
            continue
        names = list(newest)

        def get(number: int, size: int = size, names: list[str] = names) -> None:
            asked = [names[(number + at) % len(names)] for at in range(size)]
            if target.get(asked) != [newest[name] for name in asked]:
                raise AssertionError("a value that was read is not the one that was put")

        found[f"get{suffix}"] = _rate(get, size, seconds)
    return found


def _rate(work: Callable[[int], None], size: int, seconds: float) -> float:
    number, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        work(number)
        number += size
    return number / spent
