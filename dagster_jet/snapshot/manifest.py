"""A snapshot's contents: acks from tasks, and the manifest in the store.

The manifest lists the chunk sets with the state of every vertex and shard, and the artifacts that
phase 2 commits for every sink (docs/design/protocol.md). It is written before the record names it
(S5 before S6). Its name contains execution and snapshot, so names of dead executions differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import xxhash

from dagster_jet.core.measures import Measures
from dagster_jet.core.stored_format import check_format
from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.snapshot.record import SnapshotRef

MANIFEST_FORMAT = 1


@dataclass(frozen=True)
class Run:
    """An immutable, executor-local piece of operator state: one Arrow IPC file.

    A missing run means a lost executor; the job restarts from the snapshot.
    """

    path: str
    rows: int
    bytes: int
    earliest_ms: int | None = None
    latest_ms: int | None = None
    """Event times at which the first and the last row are due. A watermark at or beyond `latest_ms`
    makes the whole run garbage; one before `earliest_ms` leaves it untouched."""


@dataclass(frozen=True)
class ChunkSet:
    """The chunks that one task wrote into the store for one (vertex, shard) at one snapshot.

    One chunk per logical partition that changed, plus an index chunk with partitions, row counts
    and checksums. The name contains execution, snapshot and attempt. Only names of acked sets reach
    a manifest; other sets have no effect.
    """

    name: str
    index_checksum: int
    chunks: int
    rows: int
    bytes: int
    sequence: int = 0
    """Number of the set in its shard; selects the partitions that are written in full."""
    is_base: bool = False
    """True: the set has the shard's whole state, so older sets of the chain are garbage."""


@dataclass(frozen=True)
class Artifact:
    """Output that a sink's writer staged or prepared in phase 1, with everything to commit it.

    `token` is the connector's own value (a staged path, a transaction id). `checksum` lets phase 2
    distinguish "already committed" from "another writer's file".
    """

    sink: str
    epoch_id: int
    token: str
    target: str
    rows: int
    bytes: int
    checksum: int


@dataclass(frozen=True)
class NewestOutput:
    """One artifact of a committed epoch, with the key of its marker."""

    artifact: Artifact
    timeline: int
    execution_id: int = 0
    """Below exactly-once: the execution that published it. 0: committed with its snapshot."""

    @property
    def at(self) -> tuple[int, int]:
        """Timeline and epoch."""
        return self.timeline, self.artifact.epoch_id


def by_epoch(artifacts: Iterable[Artifact]) -> dict[int, list[Artifact]]:
    """Artifacts by epoch, oldest epoch first."""
    epochs: dict[int, list[Artifact]] = {}
    for artifact in sorted(artifacts, key=lambda one: one.epoch_id):
        epochs.setdefault(artifact.epoch_id, []).append(artifact)
    return epochs


@dataclass(frozen=True)
class Arrived:
    """Statistics of one input of a stage: rows, rows with event time, newest event time."""

    rows: int
    rows_with_time: int
    top_event_ms: int | None
    partition_tops_ms: tuple[tuple[int, int], ...] = ()
    """(index of the source's partition, its newest event time), if the stage's tasks know them."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Arrived:
        tops = tuple((partition, top_ms) for partition, top_ms in fields["partition_tops_ms"])
        return cls(**{**fields, "partition_tops_ms": tops})


@dataclass(frozen=True)
class Saving:
    """State upload that outlives its task: the file that will report the result, and the process on
    the driver's host that writes it."""

    path: str
    pid: int
    started: int = 0
    """Start time of the process, by `dagster_jet.system.process.start_ticks`."""


@dataclass(frozen=True)
class Ack:
    """One task's answer for one (vertex, shard) of one epoch."""

    vertex: str
    shard: int
    attempt: str
    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    rejected: int = 0
    lost: int = 0
    """Source items dropped outside before they were read."""
    groups: int = 0
    """Distinct (key, window) groups that arrived; the amount of merging."""
    arrived: tuple[Arrived, ...] = ()
    """Input statistics per input ordinal; empty unless the stage's tasks are asked for them. The
    first shard of a task has them for all of its shards."""
    watermark_ms: int | None = None
    """Watermark of the stage after the epoch, if the task has advanced it with the epoch's rows."""
    saved: tuple[Run, ...] = ()
    unsaved: tuple[Run, ...] = ()
    obsolete: tuple[str, ...] = ()
    """Local run files that this ack replaces."""
    chunk_set: ChunkSet | None = None
    chain_dropped: int = 0
    """Number of the oldest chunk sets that `chunk_set` fully supersedes."""
    snapshot_error: str | None = None
    """Why chunks could not be stored: the snapshot fails, the epoch does not."""
    saving: Saving | None = None
    """Pending state upload; `chunk_set`, `chain_dropped` and `snapshot_error` are then unset."""
    artifacts: tuple[Artifact, ...] = ()
    prepared: bool = False
    """A processor has prepared transactions of its own, so phase 2 must include its stage."""
    work_ms: float = 0.0
    """Milliseconds of a shard's step or of a sink's writing."""
    save_ms: float = 0.0
    """Milliseconds that the task waited at its end for this shard's state."""
    counted: Measures = field(default_factory=dict)
    """Counters and gauges of the stage's functions, by name."""

    def chain_after(self, chain: tuple[ChunkSet, ...]) -> tuple[ChunkSet, ...]:
        """The shard's chain once the snapshot of this ack is valid."""
        if self.chunk_set is None:
            return chain
        kept = () if self.chunk_set.is_base else chain[self.chain_dropped :]
        return (*kept, self.chunk_set)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Ack:
        fields: dict[str, Any] = json.loads(data)
        fields["saved"] = tuple(Run(**run) for run in fields["saved"])
        fields["unsaved"] = tuple(Run(**run) for run in fields["unsaved"])
        fields["obsolete"] = tuple(fields["obsolete"])
        fields["arrived"] = tuple(Arrived.from_json(arrived) for arrived in fields["arrived"])
        if fields["chunk_set"] is not None:
            fields["chunk_set"] = ChunkSet(**fields["chunk_set"])
        if fields["saving"] is not None:
            fields["saving"] = Saving(**fields["saving"])
        fields["artifacts"] = tuple(Artifact(**artifact) for artifact in fields["artifacts"])
        return cls(**fields)


@dataclass(frozen=True)
class ShardState:
    """Location of one shard's state: local runs, and chunk sets in the store."""

    saved: tuple[Run, ...] = ()
    unsaved: tuple[Run, ...] = ()
    chain: tuple[ChunkSet, ...] = ()
    """Chunk sets, oldest first. From the newest base onwards they hold the snapshot's state."""
    deciding: tuple[Run, ...] = ()
    """Runs of an undecided snapshot. Epochs read them and leave them unchanged until the
    decision."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, oldest first."""
        return (*self.saved, *self.deciding, *self.unsaved)

    def after_epoch(self, ack: Ack) -> ShardState:
        return replace(self, saved=ack.saved, unsaved=ack.unsaved)

    def at_barrier(self) -> ShardState:
        """The shard when all acks of a snapshot are in and its decision begins."""
        return replace(self, unsaved=(), deciding=self.unsaved)

    def after_snapshot(self, ack: Ack) -> ShardState:
        """The shard after a valid snapshot: the runs saved for it count as saved."""
        return ShardState((*self.saved, *self.deciding), self.unsaved, ack.chain_after(self.chain))

    def after_failure(self) -> ShardState:
        """The shard after a discarded snapshot: the next one has to save those runs again."""
        return ShardState(self.saved, (*self.deciding, *self.unsaved), self.chain)


@dataclass(frozen=True)
class Counters:
    """Totals of a vertex from the job's beginning to one barrier."""

    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    rejected: int = 0
    lost: int = 0
    counted: Measures = field(default_factory=dict)
    """Totals of what the vertex's functions have counted and measured."""

    def plus(self, ack: Ack) -> Counters:
        """Adds the rows of an ack; `counted` is added by epoch."""
        return Counters(
            self.rows_in + ack.rows_in,
            self.rows_out + ack.rows_out,
            self.late + ack.late,
            self.rejected + ack.rejected,
            self.lost + ack.lost,
            self.counted,
        )


@dataclass(frozen=True)
class Manifest:
    """Everything needed to restore a job as of one barrier and to finish its commits."""

    job: str
    snapshot_id: int
    epoch_id: int
    execution_id: int
    timeline: int
    plan_fingerprint: str
    partition_count: int
    sources: dict[str, Any]
    """Position per source (JSON, in the connector's own form)."""
    watermarks: dict[str, Any]
    """Watermark state per stage that assigns timestamps, including idle partitions."""
    shards: dict[str, tuple[tuple[ChunkSet, ...], ...]]
    """Chain of chunk sets per stateful vertex and shard, oldest first."""
    artifacts: tuple[Artifact, ...]
    counters: dict[str, Counters] = field(default_factory=dict)
    completed: bool = False
    """The inputs are over as of this snapshot."""
    plan: dict[str, Any] = field(default_factory=dict)
    """Meaning of the saved state per source and stateful stage (`snapshot.plan`)."""
    prepared: tuple[str, ...] = ()
    """Stages whose processors have prepared transactions; the ids are in the stages' state."""
    sinks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Destination per sink (`snapshot.owed.Destination`), also for a start without the sink."""
    unacknowledged: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per acknowledging source: the messages to acknowledge in phase 2. Message id to the data that
    acknowledges it (JSON, in the connector's own form)."""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per stage: the version of a table to enrich with, and whether a start reads it again."""
    newest_output: dict[str, NewestOutput] = field(default_factory=dict)
    """Per sink: output of the newest epoch with output before the epochs of `artifacts`."""
    held: tuple[str, ...] = ()
    """Sinks whose artifacts are held back: a later snapshot names them again and commits them, or
    the next start does."""
    watermarks_before: dict[str, Any] = field(default_factory=dict)
    """If output is held back: watermarks of the newest snapshot that held nothing back."""
    format: int = MANIFEST_FORMAT

    @property
    def name(self) -> str:
        return f"manifest/{self.snapshot_id:012d}-{self.execution_id}"

    def ref(self, checksum: int, now_ms: int) -> SnapshotRef:
        """The record's reference to this manifest, whose stored bytes have this checksum."""
        return SnapshotRef(
            snapshot_id=self.snapshot_id,
            epoch_id=self.epoch_id,
            execution_id=self.execution_id,
            manifest_name=self.name,
            manifest_checksum=checksum,
            taken_at_ms=now_ms,
            state_bytes=self.state_bytes,
            committed=self.is_committed,
            holds=bool(self.held),
        )

    @property
    def due(self) -> tuple[Artifact, ...]:
        """Artifacts that phase 2 of this snapshot commits."""
        return tuple(one for one in self.artifacts if one.sink not in self.held)

    @property
    def shown_watermarks(self) -> dict[str, Any]:
        """Watermarks up to which no output is held back."""
        return self.watermarks_before if self.held else self.watermarks

    def shown(self, vertex: str) -> Counters:
        """Totals of a vertex, without rows of a sink that are held back."""
        totals = self.counters.get(vertex, Counters())
        held = self.held_rows(vertex)
        return replace(totals, rows_in=totals.rows_in - held, rows_out=totals.rows_out - held)

    def held_rows(self, sink: str) -> int:
        """Number of rows of a sink that are held back."""
        named = self.artifacts if sink in self.held else ()
        return sum(artifact.rows for artifact in named if artifact.sink == sink)

    def as_of(self, ref: SnapshotRef) -> Manifest:
        """The manifest by the record's newest reference to it: phase 2 may be over by now, and what
        was held back be committed. Messages stay: their acknowledgement may be unconfirmed."""
        if not ref.committed:
            return self
        return replace(self, prepared=(), held=self.held if ref.holds else ())

    def owed(self, *, is_committed: bool) -> Manifest:
        """The manifest of what a start commits: nothing is held back any longer.

        Args:
            is_committed: phase 2 is over, so only what was held back is left.
        """
        if not is_committed:
            return replace(self, held=())
        left = tuple(one for one in self.artifacts if one.sink in self.held)
        return replace(self, artifacts=left, held=(), prepared=(), unacknowledged={})

    @property
    def is_committed(self) -> bool:
        """Whether the snapshot needs no phase 2."""
        return not (self.due or self.prepared or any(self.unacknowledged.values()))

    @property
    def state_bytes(self) -> int:
        return sum(s.bytes for chains in self.shards.values() for c in chains for s in c)

    @property
    def bytes_written(self) -> int:
        """State bytes written for this snapshot: the sets that carry its id."""
        own = f"/{self.snapshot_id:012d}-{self.execution_id}-"
        sets = (s for chains in self.shards.values() for chain in chains for s in chain[-1:])
        return sum(s.bytes for s in sets if own in s.name)

    def with_saved(self, acks: Iterable[Ack]) -> Manifest:
        """The manifest with the chunk sets that tasks have written for it."""
        shards = {vertex: list(chains) for vertex, chains in self.shards.items()}
        for ack in acks:
            if ack.vertex in shards:
                chains = shards[ack.vertex]
                chains[ack.shard] = ack.chain_after(chains[ack.shard])
        return replace(self, shards={vertex: tuple(chains) for vertex, chains in shards.items()})

    def chunk_sets(self) -> dict[str, set[str]]:
        """Names of the chunk sets that this snapshot needs, per vertex."""
        return {
            vertex: {chunk_set.name for chain in chains for chunk_set in chain}
            for vertex, chains in self.shards.items()
        }

    def to_bytes(self, texts: ChunkSetTexts | None = None) -> bytes:
        """The manifest as JSON.

        Args:
            texts: JSON of chunk sets in earlier manifests; only new sets are encoded.
        """
        fields = asdict(replace(self, shards={}))
        json_of = {name: _json(value) for name, value in fields.items()}
        json_of["shards"] = (texts or ChunkSetTexts()).take(self.shards)
        return _json_object(json_of).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        fields: dict[str, Any] = json.loads(data)
        check_format(
            "the snapshot's manifest", fields["format"], MANIFEST_FORMAT, job=fields["job"]
        )
        fields["shards"] = {
            vertex: tuple(tuple(ChunkSet(**s) for s in chain) for chain in chains)
            for vertex, chains in fields["shards"].items()
        }
        fields["artifacts"] = tuple(Artifact(**artifact) for artifact in fields["artifacts"])
        fields["counters"] = {k: Counters(**v) for k, v in fields["counters"].items()}
        fields["prepared"] = tuple(fields["prepared"])
        fields["held"] = tuple(fields.get("held", ()))
        fields["newest_output"] = {
            sink: NewestOutput(**{**newest, "artifact": Artifact(**newest["artifact"])})
            for sink, newest in fields["newest_output"].items()
        }
        return cls(**fields)


@dataclass
class ChunkSetTexts:
    """JSON of the last manifest's chains; most of them recur in the next manifest."""

    _last: dict[tuple[str, int], _ChainText] = field(default_factory=dict)

    def take(self, shards: Mapping[str, Iterable[tuple[ChunkSet, ...]]]) -> str:
        """Returns `Manifest.shards` as JSON. Forgets chains that are not in it."""
        last, self._last = self._last, {}
        json_of = {}
        for vertex, chains in shards.items():
            texts = []
            for shard, chain in enumerate(chains):
                known = last.get((vertex, shard))
                if known is None or known.chain is not chain:
                    known = _ChainText.of(chain, known.sets if known else {})
                self._last[vertex, shard] = known
                texts.append(known.text)
            json_of[vertex] = f"[{','.join(texts)}]"
        return _json_object(json_of)


@dataclass(frozen=True)
class _ChainText:
    chain: tuple[ChunkSet, ...]
    sets: Mapping[str, str]
    """JSON of each set by name; names are unique."""
    text: str

    @classmethod
    def of(cls, chain: tuple[ChunkSet, ...], known: Mapping[str, str]) -> _ChainText:
        sets = {one.name: known.get(one.name) or _json(vars(one)) for one in chain}
        return cls(chain, sets, f"[{','.join(sets.values())}]")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _json_object(json_of: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{_json(name)}:{text}' for name, text in json_of.items())}}}"


def checksum(data: bytes | memoryview) -> int:
    """xxh3 of `data`: the checksum of manifests, indexes, chunks and artifacts."""
    return int(xxhash.xxh3_64_intdigest(data))


def validate_manifest(
    data: bytes | None, *, job: str, name: str, expected_checksum: int
) -> Manifest:
    """Reads a manifest and refuses it unless it is the one that the record names.

    Raises:
        SnapshotInvalidError: the manifest is missing, or its bytes are not those that were decided
            on. The job does not run; an older retained snapshot may be chosen explicitly.
    """
    cure = "Choose an older retained snapshot with initial_snapshot=...."
    if data is None:
        raise SnapshotInvalidError(
            f"the manifest {name!r} is missing from the store.", job=job, cure=cure
        )
    if checksum(data) != expected_checksum:
        raise SnapshotInvalidError(
            f"the manifest {name!r} is not the one that the execution record names.",
            job=job,
            cure=cure,
        )
    return Manifest.from_bytes(data)
