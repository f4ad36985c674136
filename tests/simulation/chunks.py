"""The store's map: manifests, and chunk sets with the state in them.

State is a log of changes: a `Delta` lists rows that came and rows that went, as lists, so that a
piece of state that is applied twice or never shows in the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dagster_jet.snapshot.manifest import ChunkSet, Manifest
from dagster_jet.snapshot.storage.snapshot_store import snapshot_of


@dataclass(frozen=True)
class Delta:
    came: tuple[int, ...] = ()
    went: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.came) + len(self.went)


def merge(deltas: Iterable[Delta]) -> Delta:
    """One delta that says the same as all of them."""
    net: Counter[int] = Counter()
    for delta in deltas:
        net.update(delta.came)
        net.subtract(delta.went)
    return Delta(
        tuple(row for row, n in net.items() for _ in range(n)),
        tuple(row for row, n in net.items() for _ in range(-n)),
    )


class MissingFromStore(Exception):
    """Something was read that is not (or no longer) in the store."""


@dataclass(frozen=True)
class Exported:
    """A copy of a snapshot, which nothing that becomes of the job can touch."""

    manifest: Manifest
    chunk_sets: dict[tuple[str, str], Delta]


class ChunkMap:
    """Manifests and chunk sets by name, each with the execution that wrote it."""

    def __init__(self) -> None:
        self.manifests: dict[str, tuple[int, bytes]] = {}
        self.chunk_sets: dict[tuple[str, str], tuple[int, Delta]] = {}

    def put_chunks(self, vertex: str, name: str, execution_id: int, delta: Delta) -> None:
        self.chunk_sets[vertex, name] = (execution_id, delta)

    def read_chunks(self, vertex: str, chunk_set: ChunkSet) -> Delta:
        found = self.chunk_sets.get((vertex, chunk_set.name))
        if found is None:
            raise MissingFromStore(f"chunk set {chunk_set.name}")
        return found[1]

    def read_chain(self, vertex: str, chain: tuple[ChunkSet, ...]) -> Delta:
        """The state of one shard: its chain, from the newest base onwards."""
        bases = [i for i, chunk_set in enumerate(chain) if chunk_set.is_base]
        return merge(self.read_chunks(vertex, s) for s in chain[bases[-1] if bases else 0 :])

    def read_state(self, manifest: Manifest, vertex: str) -> Delta:
        return merge(self.read_chain(vertex, chain) for chain in manifest.shards[vertex])

    def read_manifest(self, name: str) -> Manifest:
        found = self.manifests.get(name)
        if found is None:
            raise MissingFromStore(name)
        return Manifest.from_bytes(found[1])

    def exported(self, manifest: Manifest) -> Exported:
        """A copy of what a snapshot consists of; raises `MissingFromStore`."""
        sets = {
            (vertex, one.name): self.read_chunks(vertex, one)
            for vertex, chains in manifest.shards.items()
            for chain in chains
            for one in chain
        }
        return Exported(manifest, sets)

    def delete(self, manifests: Iterable[str], chunk_sets: Iterable[tuple[str, str]]) -> None:
        for name in manifests:
            self.manifests.pop(name, None)
        for key in chunk_sets:
            self.chunk_sets.pop(key, None)

    def delete_older(
        self, is_older: Callable[[int], bool], keep: Iterable[Manifest], newest_damaged: int
    ) -> None:
        """Deletes what older executions wrote and no manifest in `keep` needs.

        What a damaged manifest needs is not known: it stays, and all that it may need.
        """
        names = {manifest.name for manifest in keep}
        sets = {
            (vertex, name)
            for manifest in keep
            for vertex, needed in manifest.chunk_sets().items()
            for name in needed
        }

        def is_doomed(name: str, by: int) -> bool:
            return is_older(by) and snapshot_of(name) > newest_damaged

        self.delete(
            [n for n, (by, _) in self.manifests.items() if n not in names and is_doomed(n, by)],
            [k for k, (by, _) in self.chunk_sets.items() if k not in sets and is_doomed(k[1], by)],
        )
