"""Finds the chunk sets that become garbage when a snapshot is dropped, at a cost of the changes.

A chunk set belongs to the chain of one shard and never returns once it has left that chain. So each
retained snapshot lists its chunk sets that the next one lacks: the garbage once it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dagster_jet.snapshot.manifest import ChunkSet

Names: TypeAlias = dict[str, frozenset[str]]
"""Names of chunk sets by vertex."""
Chains: TypeAlias = Mapping[str, tuple[tuple[ChunkSet, ...], ...]]
"""Chains of a manifest (`Manifest.shards`)."""


@dataclass
class Retention:
    """The retained snapshots of one execution."""

    _needed: Names = field(default_factory=dict)
    """Needed by the newest snapshot that the execution found at its start."""
    _newest: int | None = None
    _chains: Chains | None = None
    """Chains of the newest snapshot, if this execution has decided it."""
    _left: dict[int, Names] = field(default_factory=dict)
    """Chunk sets by snapshot id that no newer snapshot needs."""

    @classmethod
    def of(cls, retained: Mapping[int, Mapping[str, frozenset[str]]]) -> Retention:
        """Starts with the snapshots that an execution finds: the sets that each id needs."""
        if not retained:
            return cls()
        newest, *older = sorted(retained, reverse=True)
        begun, newer = cls(dict(retained[newest]), newest), dict(retained[newest])
        for snapshot_id in older:
            begun._left[snapshot_id] = _without(retained[snapshot_id], newer)
            newer = _both(newer, retained[snapshot_id])
        return begun

    def decided(self, snapshot_id: int, chains: Chains) -> None:
        """Adds a snapshot that the record now names as its newest."""
        if self._newest is not None:
            if self._chains is None:
                left = _without(self._needed, {v: _names(c) for v, c in chains.items()})
            else:
                left = {v: _gone(old, chains.get(v, ())) for v, old in self._chains.items()}
            self._left[self._newest] = {vertex: names for vertex, names in left.items() if names}
        self._newest, self._chains, self._needed = snapshot_id, chains, {}

    def dropped(self, snapshot_ids: Iterable[int]) -> Names:
        """Returns the sets that only these needed: the oldest snapshots, no longer in the
        record."""
        garbage: Names = {}
        for snapshot_id in snapshot_ids:
            garbage = _both(garbage, self._left.pop(snapshot_id, {}))
        return garbage


def _gone(
    old: tuple[tuple[ChunkSet, ...], ...], new: tuple[tuple[ChunkSet, ...], ...]
) -> frozenset[str]:
    """Sets that a vertex no longer needs. Most chains are the same objects."""
    if len(old) != len(new):
        return _names(old) - _names(new)
    return _names(_cut(was, is_now) for was, is_now in zip(old, new, strict=True))


def _cut(old: tuple[ChunkSet, ...], new: tuple[ChunkSet, ...]) -> tuple[ChunkSet, ...]:
    """Sets that have left a chain. A chain grows at its end and is cut at its beginning."""
    if new is old:
        return ()
    for left in range(len(old)):
        if old[left:] == new[: len(old) - left]:
            return old[:left]
    return tuple(one for one in old if one not in new)


def _names(chains: Iterable[tuple[ChunkSet, ...]]) -> frozenset[str]:
    return frozenset(chunk_set.name for chain in chains for chunk_set in chain)


def _without(names: Mapping[str, frozenset[str]], others: Mapping[str, frozenset[str]]) -> Names:
    """Names are unique, and a vertex that was renamed keeps its sets."""
    needed = frozenset().union(*others.values())
    left = {vertex: mine - needed for vertex, mine in names.items()}
    return {vertex: mine for vertex, mine in left.items() if mine}


def _both(one: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]) -> Names:
    vertices = {*one, *other}
    return {v: one.get(v, frozenset()) | other.get(v, frozenset()) for v in vertices}
