"""The judge: compares rows, at the end of a history and wherever a record claims something.

Shares no line with the coordinator. It knows the input, sees every value that the record ever had
and every commit, and may look into the store and the sinks at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.snapshot.manifest import Artifact, Manifest, checksum, validate_manifest
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef

from .chunks import ChunkMap, Delta, MissingFromStore, merge
from .register import Register
from .scenario import (
    COUNT,
    JOB,
    PROMISES,
    ROW_SINK,
    SINKS,
    SOURCE,
    WINDOW,
    WINDOW_SINK,
    Scenario,
)
from .sinks import Sink

if TYPE_CHECKING:
    from .deployment import Deployment
    from .promises import Promises


class Violation(BaseException):
    """The history is wrong: a row lost or doubled, or something that must lead to it.

    No `Exception`: the engine's own code, which is above the fakes, must not take it for an outage.
    """


class Oracle:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.exactly_once = scenario.guarantee is Guarantee.EXACTLY_ONCE
        self.input = {row for rows in scenario.rows for row in rows}
        self.named: set[str] = set()
        """Tokens of all artifacts that a record ever named."""
        self.promised: set[int] = set()
        """Ids of all transactions that the state of a decided snapshot ever named."""
        self.deployments: dict[int, Deployment] = {}
        """Deployments by execution."""
        self.damaged: set[str] = set()
        """Manifests of snapshots of which something has been lost."""
        self._history: list[Manifest] = []
        """Decided manifests up to the newest, without those on timelines that were left."""
        self.left: set[str] = set()
        """Tokens of artifacts that were decided on a line that was left."""
        self._held: dict[str, Counter[int]] = {}
        """Rows that the window holds, by manifest."""
        self._manifests: dict[str, Manifest] = {}
        self._exported: dict[str, tuple[Manifest, ...]] = {}
        """History up to the exported snapshot, by the export's name."""
        self._attempts: dict[int, tuple[int, int]] = {}
        self._record: ExecutionRecord | None = None
        self._highest_claim = 0

    def watch(self, chunks: ChunkMap, sinks: Mapping[str, Sink], promises: Promises) -> None:
        self.chunks, self.sinks, self.promises = chunks, sinks, promises

    # --- during the history ---------------------------------------------------------------------

    def on_claim(self, execution_id: int, deployment: Deployment) -> None:
        if execution_id <= self._highest_claim:
            raise Violation(f"execution id {execution_id} was given out before")
        self._highest_claim = execution_id
        self.deployments[execution_id] = deployment

    def on_attempt(self, snapshot_id: int, execution_id: int, epoch_id: int) -> None:
        who = self._attempts.setdefault(snapshot_id, (execution_id, epoch_id))
        if who != (execution_id, epoch_id):
            raise Violation(
                f"snapshot id {snapshot_id} used by execution {execution_id}, epoch {epoch_id}, "
                f"and before by execution {who[0]}, epoch {who[1]}"
            )

    def on_exported(self, name: str, ref: SnapshotRef) -> None:
        kept = [one.name for one in self._history].index(ref.manifest_name) + 1
        self._exported[name] = tuple(self._history[:kept])

    def on_record(self, record: ExecutionRecord) -> None:
        """The register has a new value."""
        before, self._record = self._record, record
        if before is not None and record.execution_id < before.execution_id:
            raise Violation(f"the record fell back to execution {record.execution_id}")
        if before is not None and before.snapshot is not None:
            newest = record.snapshot
            if record.rewound_to != before.rewound_to and isinstance(record.rewound_to, str):
                self._on_imported(before, record, record.rewound_to)
            elif newest is None or newest.snapshot_id < before.snapshot.snapshot_id:
                self._on_rewound(before, record)
            elif newest.snapshot_id == before.snapshot.snapshot_id:
                kept = {ref.manifest_name for ref in record.snapshots}
                gone = {r.manifest_name for r in before.snapshots} - kept - self.damaged
                if gone:
                    raise Violation(f"the record no longer retains {sorted(gone)}")
        for ref in reversed(record.snapshots):
            if ref.manifest_name not in self._manifests:
                self._on_decided(ref)
        newest = record.snapshot
        if newest is not None and newest.committed:
            self._check_committed(self._manifests[newest.manifest_name], newest)
        if record.status is JobStatus.COMPLETED:
            self._check_last(newest)

    def _on_rewound(self, before: ExecutionRecord, record: ExecutionRecord) -> None:
        """Newer snapshots may be given up only on request, and only for a snapshot that is whole
        and fits."""
        assert before.snapshot is not None
        deployment, newest = self.deployments[record.execution_id], record.snapshot
        if newest is None or newest.snapshot_id != deployment.initial_snapshot:
            raise Violation(f"the record lost snapshot {before.snapshot.snapshot_id}")
        if newest not in before.snapshots or record.timeline <= before.timeline:
            raise Violation(f"not a rewind: {before.snapshots} became {record.snapshots}")
        if newest.manifest_name in self.damaged:
            raise Violation(f"given up for the damaged snapshot {newest.snapshot_id}")
        manifest = self._manifests[newest.manifest_name]
        if COUNT in manifest.shards and COUNT not in deployment.stages:
            raise Violation(f"given up for snapshot {newest.snapshot_id}, which does not fit")
        kept = [one.name for one in self._history].index(manifest.name) + 1
        self.left |= {a.token for one in self._history[kept:] for a in one.artifacts}
        self.left -= {a.token for a in manifest.artifacts}
        self._history = self._history[:kept]

    def _on_imported(self, before: ExecutionRecord, record: ExecutionRecord, name: str) -> None:
        """The job begins anew with an export: once, on a new line, with nothing of before."""
        deployment, newest = self.deployments[record.execution_id], record.snapshot
        if deployment.initial_snapshot != name:
            raise Violation(f"nobody wanted {name}")
        if newest is None or record.snapshots != (newest,) or not newest.committed:
            raise Violation(f"{name} was brought in as {record.snapshots}")
        if record.timeline <= before.timeline:
            raise Violation(f"{name} was brought in on timeline {record.timeline}")
        history = self._exported[name]
        if COUNT in history[-1].shards and COUNT not in deployment.stages:
            raise Violation(f"given up for {name}, which does not fit")
        kept = {one.name for one in history}
        self.left |= {
            a.token for one in self._history if one.name not in kept for a in one.artifacts
        }
        self.left -= {a.token for one in history for a in one.artifacts}
        self._history = list(history)

    def _check_last(self, newest: SnapshotRef | None) -> None:
        if self.scenario.guarantee is Guarantee.NONE:
            return
        if newest is None or not self._manifests[newest.manifest_name].completed:
            raise Violation("COMPLETED, but the newest snapshot is not the last of the input")

    def _on_decided(self, ref: SnapshotRef) -> None:
        found = self.chunks.manifests.get(ref.manifest_name)
        manifest = validate_manifest(
            None if found is None else found[1],
            job=JOB,
            name=ref.manifest_name,
            expected_checksum=ref.manifest_checksum,
        )
        self._manifests[ref.manifest_name] = manifest
        self.named.update(artifact.token for artifact in manifest.artifacts)
        self.promised.update(self.state_in_store(manifest, PROMISES).came)
        self._held[manifest.name] = Counter(self.state_in_store(manifest, WINDOW).came)
        self._history.append(manifest)
        journal = self.state_in_store(manifest, SOURCE)
        difference = _difference(Counter(journal.came), self.rows_before(manifest))
        if difference:
            raise Violation(f"the journal in {manifest.name}: {difference}")

    def _check_committed(self, manifest: Manifest, ref: SnapshotRef) -> None:
        """Phase 2 is said to be over: both sinks show the rows up to this barrier, no others. Rows
        that are held back may be missing."""
        if self.scenario.in_two_phases:
            difference = _difference(self.promises.rows, self.rows_before(manifest))
            if difference:
                raise Violation(f"kept as of snapshot {manifest.snapshot_id}: {difference}")
        if not self.exactly_once:
            return
        if self._history[-1] is not manifest:
            raise Violation(f"{manifest.name} is not what was decided last")
        for place, expected in self._expected().items():
            visible = self._visible(place)
            held = self._held_back(manifest, place) - visible.keys() if ref.holds else set()
            difference = _difference(visible, expected - held)
            if difference:
                raise Violation(f"{place} after snapshot {manifest.snapshot_id}: {difference}")

    def _expected(self) -> dict[str, set[int]]:
        """Rows of all decided epochs by place: each where its sink was when they ran."""
        expected: dict[str, set[int]] = {}
        read: set[int] = set()
        held: Counter[int] = Counter()
        for manifest in self._history:
            arrived = self.rows_before(manifest) - read
            holds = self._held[manifest.name]
            due = {ROW_SINK: arrived, WINDOW_SINK: set(held + Counter(arrived) - holds)}
            sinks = self.deployments[manifest.execution_id].sinks
            for stream, sink in sinks.items():
                expected.setdefault(sink.place, set()).update(due[stream])
            read, held = read | arrived, holds
        return expected

    def _visible(self, place: str) -> Counter[int]:
        """Rows that a reader finds at a place, without those of timelines that were left."""
        targets: set[str] = set()
        for manifest in self._history:
            sinks = self.deployments[manifest.execution_id].sinks.values()
            here = {sink.name for sink in sinks if sink.place == place}
            targets |= {a.target for a in manifest.artifacts if a.sink in here}
        rows: Counter[int] = Counter()
        for target in targets:
            rows.update(self.sinks[place].shown(target))
        return rows

    def _held_back(self, manifest: Manifest, place: str) -> set[int]:
        """The rows that a snapshot has held back from a place."""
        sinks = self.deployments[manifest.execution_id].sinks.values()
        here = {sink.name for sink in sinks if sink.place == place} & set(manifest.held)
        staged = self.sinks[place].staged
        tokens = {a.token for a in manifest.artifacts if a.sink in here} & staged.keys()
        return {row for token in tokens for row in staged[token][1]}

    def on_commit(self, artifact: Artifact, rows: tuple[int, ...]) -> None:
        """A sink has made an artifact visible."""
        if not self.exactly_once:
            return
        if artifact.token not in self.named:
            raise Violation(f"{artifact.token} was committed, no record ever named it")
        if self.scenario.rewinds:
            return  # what is written again stands beside what was written before
        place = next(sink for sink in self.sinks.values() if artifact.target in sink.committed)
        doubled = [row for row in rows if place.rows[row] != 1]
        if doubled:
            raise Violation(f"{place.name} shows rows {doubled} twice")

    def on_kept(self, number: int, rows: tuple[int, ...]) -> None:
        """A processor has committed; under every guarantee only what was decided."""
        if number not in self.promised:
            raise Violation(f"transaction {number} was committed, no snapshot ever named it")
        doubled = [row for row in rows if self.promises.rows[row] != 1]
        if doubled:
            raise Violation(f"rows {doubled} were committed twice")

    def on_restored(self, manifest: Manifest, states: Mapping[str, Delta]) -> None:
        """Local state as the tasks will see it, before the first epoch of an execution."""
        if COUNT in states:
            self._check_count(manifest, states[COUNT])
        expected = self.state_in_store(manifest, WINDOW)
        if Counter(states[WINDOW].came) != Counter(expected.came):
            raise Violation(f"restored {states[WINDOW]}, the snapshot says {expected}")

    def _check_count(self, manifest: Manifest, state: Delta) -> None:
        difference = _difference(Counter(state.came), self._counted(manifest))
        if difference or state.went:
            raise Violation(f"state of {COUNT!r} in {manifest.name}: {difference or state}")

    def _counted(self, manifest: Manifest) -> set[int]:
        """The rows since the stage is there: it begins empty."""
        if COUNT not in manifest.shards:
            return set()
        before: set[int] = set()
        for older in self._history:
            if older is manifest:
                break
            if COUNT not in older.shards:
                before = self.rows_before(older)
        return self.rows_before(manifest) - before

    def rows_before(self, manifest: Manifest) -> set[int]:
        positions = manifest.sources[SOURCE]
        return {
            row
            for partition, rows in enumerate(self.scenario.rows)
            for row in rows[: positions[partition]]
        }

    def state_in_store(self, manifest: Manifest, vertex: str) -> Delta:
        if vertex not in manifest.shards:
            return merge(())
        try:
            return self.chunks.read_state(manifest, vertex)
        except MissingFromStore as missing:
            raise Violation(f"{manifest.name} needs {missing}, which was deleted") from missing

    def output_there(self, deployment: Deployment) -> dict[str, list[Artifact]]:
        """Artifacts of a deployment's newest epochs since each sink is at its place, newest first,
        by place."""
        found: dict[str, list[Artifact]] = {}
        for stream, sink in deployment.sinks.items():
            for manifest in reversed(self._history):
                if self.deployments[manifest.execution_id].sinks.get(stream) != sink:
                    break
                known, there = found.setdefault(sink.place, []), self.sinks.get(sink.place)
                own = [
                    one
                    for one in manifest.artifacts
                    if one.sink == sink.name and one not in known
                    if there is not None and one.target in there.committed
                ]
                known.extend(sorted(own, key=lambda a: -a.epoch_id))
        return {place: artifacts for place, artifacts in found.items() if artifacts}

    # --- at its end -----------------------------------------------------------------------------

    def judge(self, register: Register) -> None:
        """Judges the state after an undisturbed execution: the job is complete and every row is
        where it belongs."""
        record = register.read()
        if record is None or record.status is not JobStatus.COMPLETED:
            raise Violation(f"the history ended with {record and record.status}")
        if self.scenario.in_two_phases:
            difference = _difference(self.promises.rows, self.input)
            if difference:
                raise Violation(f"at the end {PROMISES}: {difference}")
        if not self.exactly_once:
            for name in SINKS:
                difference = _difference(Counter(set(self.sinks[name].rows)), self.input)
                if difference:
                    raise Violation(f"at the end {name}: {difference}")
        if self.scenario.guarantee is Guarantee.NONE:
            return
        for ref in record.snapshots:
            self._check_retained(ref)
        newest = record.snapshots[0]
        manifest = self._manifests[newest.manifest_name]
        if self.rows_before(manifest) != self.input or not newest.is_all_committed:
            raise Violation("the last snapshot does not cover the whole input")
        if self.state_in_store(manifest, WINDOW).came:
            raise Violation("the last snapshot still holds rows back")
        counted = manifest.counters[COUNT].rows_in if COUNT in manifest.counters else 0
        if counted != len(self._counted(manifest)):
            raise Violation(f"{counted} rows counted, {len(self._counted(manifest))} read")
        self._check_nothing_left(record)

    def _check_retained(self, ref: SnapshotRef) -> None:
        """Every retained snapshot must be good to restart from, not only the newest."""
        if ref.manifest_name in self.damaged:
            if not self._is_manifest_whole(ref):
                raise Violation(f"{ref.manifest_name} is damaged, and the record retains it")
            return
        if ref.manifest_name not in self.chunks.manifests:
            raise Violation(f"{ref.manifest_name} is retained by the record, but was deleted")
        manifest = self._manifests[ref.manifest_name]
        self._check_count(manifest, self.state_in_store(manifest, COUNT))
        self.state_in_store(manifest, WINDOW)

    def _is_manifest_whole(self, ref: SnapshotRef) -> bool:
        _, data = self.chunks.manifests.get(ref.manifest_name, (0, b""))
        return checksum(data) == ref.manifest_checksum

    def needed_by(self, refs: Iterable[SnapshotRef]) -> set[tuple[str, str]]:
        """The chunk sets that these snapshots need."""
        return {
            (vertex, name)
            for ref in refs
            for vertex, sets in self._manifests[ref.manifest_name].chunk_sets().items()
            for name in sets
        }

    def _check_nothing_left(self, record: ExecutionRecord) -> None:
        # What is left at a place that no pipeline has any more waits there until one has it again.
        last = self.deployments[self._highest_claim]
        places = {sink.place for sink in last.sinks.values()} & self.sinks.keys()
        staged = [token for place in sorted(places) for token in self.sinks[place].staged]
        if staged:
            raise Violation(f"still open after the abort pass: {staged}")
        names = {ref.manifest_name for ref in record.snapshots}
        needed = self.needed_by(record.snapshots)
        left = [*(self.chunks.manifests.keys() - names), *(self.chunks.chunk_sets.keys() - needed)]
        if left:
            raise Violation(f"garbage that nobody collects: {left}")


def _difference(found: Counter[int], expected: set[int]) -> str:
    """Empty if `found` is `expected`, each exactly once."""
    lost = sorted(expected - found.keys())
    doubled = sorted(row for row, n in found.items() if n > 1)
    foreign = sorted(row for row in found.keys() - expected)
    parts = (("lost", lost), ("doubled", doubled), ("not due yet", foreign))
    return ", ".join(f"{word} {rows}" for word, rows in parts if rows)
