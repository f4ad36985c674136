"""What a start of the job does before data: load, restore for any number of shards, abort pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.snapshot import coordinator as c
from dagster_jet.snapshot.manifest import Manifest, Run, ShardState, validate_manifest
from dagster_jet.snapshot.record import SnapshotRef

from .chunks import Delta, MissingFromStore, merge
from .oracle import Violation
from .scenario import JOB, PARTITION_COUNT, SOURCE, STATEFUL, Point

if TYPE_CHECKING:
    from .driver import Driver


def shard_of(row: int, shards: int) -> int:
    """Rows belong to logical partitions, and those to shards; only the latter changes."""
    return (row % PARTITION_COUNT) % shards


def load(driver: Driver, ref: SnapshotRef) -> None:
    found = driver.world.chunks.manifests.get(ref.manifest_name)
    try:
        if driver.world.chance("read_fails"):
            raise MissingFromStore("too few members answered")
        manifest = validate_manifest(
            None if found is None else found[1],
            job=JOB,
            name=ref.manifest_name,
            expected_checksum=ref.manifest_checksum,
        )
    except MissingFromStore as unavailable:
        driver.answer("LoadManifest", c.Failed(str(unavailable), restartable=True))
    except SnapshotInvalidError as invalid:
        _missing(driver, "LoadManifest", str(invalid))
    else:
        driver.position = list(manifest.sources[SOURCE])
        driver.answer("LoadManifest", c.ManifestLoaded(manifest))


def _missing(driver: Driver, command: str, what: str) -> None:
    """To be expected by a sleeper whose successor has moved on; by the owner never."""
    if driver.owns_the_job:
        raise Violation(f"cannot be restored: {what}")
    driver.answer(command, c.Failed(what, restartable=False))


def restore(driver: Driver, manifest: Manifest) -> None:
    try:
        vertices = [vertex for vertex in STATEFUL if vertex in driver.config.shards]
        shards = {vertex: _restore_vertex(driver, manifest, vertex) for vertex in vertices}
    except MissingFromStore as missing:
        _missing(driver, "Restore", f"{manifest.name} needs {missing}")
        return
    if driver.owns_the_job:
        driver.world.oracle.on_restored(
            manifest, {vertex: _local_state(driver, states) for vertex, states in shards.items()}
        )
    driver.answer("Restore", c.Restored(shards))


def _restore_vertex(driver: Driver, manifest: Manifest, vertex: str) -> tuple[ShardState, ...]:
    world, count = driver.world, driver.config.shards[vertex]
    chains = manifest.shards.get(vertex, ())
    if len(chains) == count:
        return tuple(
            _shard(driver, vertex, shard, world.chunks.read_chain(vertex, chain), chain)
            for shard, chain in enumerate(chains)
        )
    state = world.chunks.read_state(manifest, vertex) if chains else Delta()
    if chains:
        world.seen["rescaled at a restart"] += 1
    return tuple(
        _shard(driver, vertex, shard, _part(state, shard, count), ()) for shard in range(count)
    )


def _part(state: Delta, shard: int, count: int) -> Delta:
    return Delta(
        tuple(row for row in state.came if shard_of(row, count) == shard),
        tuple(row for row in state.went if shard_of(row, count) == shard),
    )


def _shard(
    driver: Driver, vertex: str, shard: int, state: Delta, chain: tuple[c.ChunkSet, ...]
) -> ShardState:
    """With the old chain the state has its copy in the store; without, the next one is a base."""
    if not state and not chain:
        return ShardState()
    path = f"{driver.execution_id}/restored/{vertex}-{shard}"
    driver.runs[path] = state
    run = Run(path, len(state), 8 * len(state))
    return ShardState(saved=(run,), chain=chain) if chain else ShardState(unsaved=(run,))


def _local_state(driver: Driver, states: tuple[ShardState, ...]) -> Delta:
    return merge(
        driver.runs[run.path] for state in states for run in (*state.saved, *state.unsaved)
    )


def abort_leftovers(driver: Driver, command: c.AbortLeftovers) -> None:
    """Sink by sink, then the store; a process may die or fall asleep between any two."""
    world, sinks = driver.world, list(driver.world.sinks)
    try:
        keep = [world.chunks.read_manifest(ref.manifest_name) for ref in command.keep]
    except MissingFromStore as missing:
        _missing(driver, "AbortLeftovers", str(missing))
        return
    named = {artifact.token for manifest in keep for artifact in manifest.artifacts}

    def next_sink() -> None:
        if sinks:
            sink = world.sinks[sinks.pop()]
            gone = sink.roll_back(driver.may_roll_back(command.execution_id, named))
            for token in gone:
                driver.tell(f"   rolled back {token}")
            world.after(driver.process, next_sink, Point("during", "AbortLeftovers"))
            return
        world.chunks.delete_older(command.execution_id, keep)
        driver.answer("AbortLeftovers", _aborted(driver, keep))

    next_sink()


def _aborted(driver: Driver, keep: list[Manifest]) -> c.LeftoversAborted:
    return c.LeftoversAborted(
        retained={
            manifest.snapshot_id: {v: frozenset(n) for v, n in manifest.chunk_sets().items()}
            for manifest in keep
        },
        sources={SOURCE: [0] * len(driver.world.scenario.rows)},
        watermarks={},
        now_ms=driver.world.now_ms,
    )
