"""Recovery of a simulated job before data: load, restore for any number of shards, abort pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_jet.errors import JetError, SnapshotInvalidError
from dagster_jet.execution.compatibility import check_compatible
from dagster_jet.snapshot import protocol as c
from dagster_jet.snapshot.manifest import (
    ChunkSet,
    Manifest,
    Run,
    ShardState,
    checksum,
    validate_manifest,
)
from dagster_jet.snapshot.newest_output import output_to_be_there
from dagster_jet.snapshot.record import SnapshotRef
from dagster_jet.snapshot.storage.chunks import ChunkSetName

from .chunks import Delta, MissingFromStore, merge
from .oracle import Violation
from .scenario import COUNT, JOB, PARTITION_COUNT, PROMISES, SOURCE, WINDOW, Point

if TYPE_CHECKING:
    from .driver import Driver


STATEFUL = (SOURCE, WINDOW, COUNT, PROMISES)


def shard_of(row: int, shards: int) -> int:
    """Rows belong to logical partitions, and those to shards; only the latter changes."""
    return (row % PARTITION_COUNT) % shards


def load(driver: Driver, command: c.LoadManifest) -> None:
    world, deployment, ref = driver.world, driver.deployment, command.ref
    try:
        if world.chance("read_fails"):
            raise MissingFromStore("too few members answered")
        manifest = _read(driver, ref)
        state = {v: chains for v, chains in manifest.shards.items() if v in STATEFUL}
        check_compatible(JOB, replace(manifest, shards=state), deployment.plan, PARTITION_COUNT)
    except MissingFromStore as unavailable:
        driver.answer(command, c.Failed(str(unavailable), restartable=True))
    except SnapshotInvalidError as invalid:
        _missing(driver, command, ref.manifest_name, str(invalid))
    except JetError as refused:
        world.seen["a pipeline that lacks a stage was refused"] += 1
        world.refuse(driver)
        driver.answer(command, c.Failed(str(refused), restartable=False))
    else:
        driver.goes_on_from(list(manifest.sources[SOURCE]))
        driver.answer(command, c.ManifestLoaded(manifest))


def _read(driver: Driver, ref: SnapshotRef) -> Manifest:
    found = driver.world.chunks.manifests.get(ref.manifest_name)
    manifest = validate_manifest(
        None if found is None else found[1],
        job=JOB,
        name=ref.manifest_name,
        expected_checksum=ref.manifest_checksum,
    )
    return manifest.as_of(ref)


def _missing(driver: Driver, command: c.Command, manifest_name: str, what: str) -> None:
    """Handles missing data: a sleeper whose successor has moved on, or a rewind to a damaged
    snapshot, may find it missing; otherwise the owner never does."""
    world = driver.world
    if manifest_name in world.oracle.damaged:
        world.seen["going back to a damaged snapshot was refused"] += 1
    elif driver.owns_the_job:
        raise Violation(f"cannot be restored: {what}")
    driver.answer(command, c.Failed(what, restartable=False))


def bring_in(driver: Driver, command: c.ImportSnapshot) -> None:
    """Copies an export under names of this execution. What is copied counts once a record names it;
    a sleeper may do so long after its successor has looked for garbage."""
    world, deployment = driver.world, driver.deployment
    exported = world.exports[command.export]
    state = {v: chains for v, chains in exported.manifest.shards.items() if v in STATEFUL}
    try:
        if world.store_is_full() or world.chance("read_fails"):
            raise MissingFromStore("too few members answered")
        fitting = replace(exported.manifest, shards=state)
        check_compatible(JOB, fitting, deployment.plan, PARTITION_COUNT)
    except MissingFromStore as unavailable:
        driver.answer(command, c.Failed(str(unavailable), restartable=True))
        return
    except JetError as refused:
        world.seen["an export that does not fit was refused"] += 1
        driver.answer(command, c.Failed(str(refused), restartable=False))
        return
    by, snapshot_id = driver.execution_id, command.snapshot_id

    def copied(vertex: str, shard: int, place: int, one: ChunkSet) -> ChunkSet:
        name = str(ChunkSetName(vertex, snapshot_id, by, shard, f"imported.{place}"))
        world.chunks.put_chunks(vertex, name, by, exported.chunk_sets[vertex, one.name])
        return replace(one, name=name)

    shards = {
        vertex: tuple(
            tuple(copied(vertex, shard, place, one) for place, one in enumerate(chain))
            for shard, chain in enumerate(chains)
        )
        for vertex, chains in exported.manifest.shards.items()
    }
    imported = replace(
        exported.manifest,
        snapshot_id=snapshot_id,
        execution_id=by,
        timeline=command.timeline,
        artifacts=(),
        newest_output={},
        sinks=deployment.destinations,
        shards=shards,
    )
    world.oracle.on_attempt(snapshot_id, by, imported.epoch_id)
    world.chunks.manifests[imported.name] = (by, imported.to_bytes())
    world.seen["an export was brought in"] += 1
    driver.goes_on_from(list(imported.sources[SOURCE]))
    driver.answer(command, c.SnapshotImported(_ref(imported, world.now_ms), imported))


def _ref(manifest: Manifest, now_ms: int) -> SnapshotRef:
    digest = checksum(manifest.to_bytes())
    return SnapshotRef(
        manifest.snapshot_id,
        manifest.epoch_id,
        manifest.execution_id,
        manifest.name,
        digest,
        now_ms,
        manifest.state_bytes,
        committed=True,
    )


def restore(driver: Driver, command: c.Restore) -> None:
    manifest = command.manifest
    if _place_is_set_back(driver, manifest):
        driver.answer(command, c.Failed("a place does not have what it had", restartable=False))
        return
    try:
        stages = driver.deployment.stages
        shards = {vertex: _restore_vertex(driver, manifest, vertex) for vertex in stages}
        chain = manifest.shards.get(SOURCE, ((),))[0]
        driver.reader.restore(driver.world.chunks.read_chain(SOURCE, chain).came)
        shards[SOURCE] = (ShardState(chain=chain),)
    except MissingFromStore as missing:
        _missing(driver, command, manifest.name, f"{manifest.name} needs {missing}")
        return
    if COUNT in stages and COUNT not in manifest.shards:
        driver.world.seen["a stage was added"] += 1
    if driver.owns_the_job:
        driver.world.oracle.on_restored(
            manifest, {vertex: _local_state(driver, shards[vertex]) for vertex in stages}
        )
    driver.answer(command, c.Restored(shards))


def _place_is_set_back(driver: Driver, manifest: Manifest) -> bool:
    """Whether the start is refused for it; whoever starts next has brought it back."""
    world, ref = driver.world, driver.written.snapshot
    is_newest = ref is not None and ref.manifest_name == manifest.name
    expected = output_to_be_there(manifest, is_committed=not is_newest or ref.committed)
    missing = driver.snapshots.committer.missing_output(expected, manifest.sinks)
    if missing and driver.owns_the_job:
        if not any(sink.is_set_back for sink in world.sinks.values()):
            raise Violation(f"refused for {sorted(missing)}, which are as they were")
        world.seen["a place that was set back was refused"] += 1
    return bool(missing)


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
    driver: Driver, vertex: str, shard: int, state: Delta, chain: tuple[ChunkSet, ...]
) -> ShardState:
    """Restored state of a shard: with the old chain it has a copy in the store; without, the next
    set is a base."""
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


def abort_orphans(driver: Driver, command: c.AbortOrphans) -> None:
    """Sink by sink, then the store; a process may die or fall asleep between any two."""
    world = driver.world
    keep: list[Manifest] = []
    damaged: set[int] = set()
    for ref in command.keep:
        try:
            keep.append(_read(driver, ref))
        except SnapshotInvalidError as invalid:
            if ref is command.keep[0] or not driver.lives_with_damage:
                _missing(driver, command, "", str(invalid))
                return
            world.seen["a damaged older snapshot was dropped"] += 1
            damaged.add(ref.snapshot_id)
    named = {artifact.token for manifest in keep for artifact in manifest.artifacts}
    places = {sink.place for sink in driver.deployment.sinks.values()}
    places |= {there["place"] for manifest in keep for there in manifest.sinks.values()}
    sinks = sorted(places)

    def next_sink() -> None:
        if sinks:
            sink = world.sink_at(sinks.pop())
            gone = sink.roll_back(driver.may_roll_back(command.execution_id, named))
            for token in gone:
                driver.tell(f"   rolled back {token}")
            world.after(driver.process, next_sink, Point("during", "AbortOrphans"))
            return
        driver.delete_garbage(command.execution_id, keep, damaged)
        driver.answer(command, _aborted(driver, keep, damaged))

    next_sink()


def _aborted(driver: Driver, keep: list[Manifest], damaged: set[int]) -> c.OrphansAborted:
    return c.OrphansAborted(
        retained={
            manifest.snapshot_id: {v: frozenset(n) for v, n in manifest.chunk_sets().items()}
            for manifest in keep
        },
        sources={SOURCE: [0] * len(driver.world.scenario.rows)},
        watermarks={},
        now_ms=driver.world.now_ms,
        damaged=frozenset(damaged),
    )
