"""Phase 2 that cannot go on: retried, and given up in order; of sinks that left, finished."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import sinks
from dagster_jet.connectors import reopening
from dagster_jet.connectors.files import FilesSink
from dagster_jet.connectors.files.checksum import file_checksum
from dagster_jet.contract import Committer, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    FencedError,
    JetError,
    MembersChangedError,
    Reaction,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
    StoreCorruptedError,
    StoreUnavailableError,
    StoreUnwritableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.execution import retrying
from dagster_jet.execution.commit_reports import CommitReports
from dagster_jet.execution.events import JobEvent, OutputLost, SinkReopened
from dagster_jet.execution.retrying import Retrying
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.maps import JetMap
from dagster_jet.pipeline.graph import SinkNode
from dagster_jet.snapshot.manifest import Artifact, Manifest, NewestOutput
from dagster_jet.snapshot.owed import SinkChange
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus
from dagster_jet.start_options import StartOptions
from dagster_jet.store import Store, StoreConfig

FULL = SinkUnavailableError("the disk is full.")


class Full(Committer):
    """A sink whose disk is full, until it has been tried `tries` times."""

    def __init__(self, tries: int = 10**9, error: BaseException = FULL) -> None:
        self.left, self.error = tries, error
        self.closed = 0

    def open_committer(self, job: str, stage: str) -> Full:
        return self

    def close(self) -> None:
        self.closed += 1

    def commit(self, artifacts: Any, context: Any) -> None:
        self.left -= 1
        if self.left >= 0:
            raise self.error

    def abort_orphans(self, context: Any, keep: Any) -> int:
        return 0

    def describe(self) -> dict[str, str]:
        return {"kind": "full", "path": "/out"}

    def destination(self) -> None:
        return None


@dataclass
class Phase2:
    """A committer for some sinks, and what it tells."""

    sinks: Mapping[str, Any]
    stop: StopKind | None = None
    accept_loss: bool = False
    store: Any = None
    told: list[str] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    fenced: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        record: Any = ExecutionRecord("j", 5, JobStatus.RUNNING)
        self.retrying = Retrying("j", self.fenced, StopSignal(self.stop), self.told.append)
        self.committer = SinkCommitter(
            "j",
            [SinkNode(name, (), sink) for name, sink in self.sinks.items()],
            {name: reopening.destination_of(sink) for name, sink in self.sinks.items()},
            lambda destination: reopening.reopen_sink(destination, self.store),
            StartOptions(accept_loss=self.accept_loss),
            lambda: record,
            self.retrying,
            CommitReports("j", lambda: record, self.events.append),
        )

    def commit(self, artifacts: Any, named: Any = None, *, recovering: bool = False) -> None:
        named = self.committer.destinations if named is None else named
        self.committer.commit(artifacts, named, recovering=recovering)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreConfig((f"file://{tmp_path}/m",), backup_count=0)) as store:
        yield store


ARTIFACT = Artifact("out", 9, "token", "target", rows=3, bytes=8, checksum=7)


# --- commits that fail ----------------------------------------------------------------------------


def test_it_is_retried_until_there_is_room_although_a_stop_is_wanted_that_commits() -> None:
    phase2 = Phase2({"out": Full(2)}, StopKind.SUSPEND)
    phase2.commit([ARTIFACT])
    assert len(phase2.told) == 2 and "out (/out): commit is being retried" in phase2.told[0]


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (SinkError("the folder is gone."), Reaction.RESTART),
        (MembersChangedError("the store's members have changed."), Reaction.RESTART),
        (StoreCorruptedError("no good copy is left."), Reaction.FAIL),
        (ArtifactLostError("the rows are gone."), Reaction.FAIL),
        (OSError(errno.ENOSPC, "No space left on device"), Reaction.RESTART),
        (TypeError("what a connector never foresaw"), Reaction.RESTART),
    ],
)
def test_what_the_sink_does_not_want_to_be_retried_is_not(
    error: Exception, reaction: Reaction
) -> None:
    phase2 = Phase2({"out": Full(1, error)})
    with pytest.raises(JetError) as raised:
        phase2.commit([ARTIFACT])
    assert raised.value.reaction is reaction and str(error) in str(raised.value)
    assert not phase2.told
    phase2.commit([ARTIFACT], recovering=True)


@pytest.mark.parametrize(
    "kind, reaction", [(StopKind.CANCEL, Reaction.FAIL), (StopKind.SHUTDOWN, Reaction.RESTART)]
)
def test_a_stop_at_once_ends_it(
    kind: StopKind, reaction: Reaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "_LAST_PATIENCE_S", 0.0)
    phase2 = Phase2({"out": Full()}, kind)
    with pytest.raises(SinkError, match="the next start tries it again") as given_up:
        phase2.commit([ARTIFACT], recovering=True)
    assert given_up.value.reaction is reaction and given_up.value.stage == "out"


@pytest.mark.parametrize(
    "error",
    [
        StoreUnwritableError("the disk of a member is full."),
        StoreUnavailableError("no member answers."),
        WriteOutcomeUnknownError("fewer than 2 of 3 members have confirmed."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_store_that_fails_is_waited_for(error: Exception) -> None:
    """Phase 2 of some sinks reads staged rows from the store and writes a map there."""
    phase2 = Phase2({"out": Full(2, error)})
    phase2.commit([ARTIFACT])
    assert len(phase2.told) == 2


def test_a_cancel_leaves_it_some_tries() -> None:
    """Nobody starts a cancelled job to commit what it has decided."""
    phase2 = Phase2({"out": Full(2)}, StopKind.CANCEL)
    phase2.commit([ARTIFACT])
    assert len(phase2.told) == 2


def test_the_end_of_the_execution_ends_it() -> None:
    phase2 = Phase2({"out": Full()})
    threading.Timer(0.05, phase2.retrying.ending.set).start()
    with pytest.raises(SinkError, match="Nothing is lost"):
        phase2.commit([ARTIFACT])


def test_a_fenced_one_leaves_it_to_its_successor() -> None:
    phase2 = Phase2({"out": Full()})
    phase2.fenced.set()
    with pytest.raises(FencedError):
        phase2.commit([ARTIFACT])


# --- several sinks, and what their connectors say of errors ---------------------------------------

OTHER = replace(ARTIFACT, sink="other")


class Meeting(Committer):
    """Sinks that commit only while all of them do."""

    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties)

    def open_committer(self, job: str, stage: str) -> Meeting:
        return self

    def commit(self, artifacts: Any, context: Any) -> None:
        self.barrier.wait(10)

    def abort_orphans(self, context: Any, keep: Any) -> int:
        return 0

    def describe(self) -> dict[str, str]:
        return {"kind": "meeting"}

    def destination(self) -> None:
        return None


def test_sinks_commit_beside_each_other() -> None:
    together = Meeting(2)
    Phase2({"out": together, "other": together}).commit([ARTIFACT, OTHER])


def test_a_sink_that_fails_ends_the_waiting_of_the_others_and_is_the_cause() -> None:
    gone = SinkError("the folder is gone.")
    phase2 = Phase2({"out": Full(), "other": Full(1, gone)})
    with pytest.raises(SinkError) as raised:
        phase2.commit([ARTIFACT, OTHER])
    assert raised.value is gone
    phase2.committer.close()
    assert [sink.closed for sink in phase2.sinks.values()] == [1, 1]


class Panic(BaseException):
    """As a library in Rust raises it (pyo3), and SystemExit or CancelledError are."""


def test_one_of_several_sinks_that_panics_has_committed_nothing() -> None:
    phase2 = Phase2({"out": Full(), "other": Full(1, Panic())})
    with pytest.raises(Panic):
        phase2.commit([ARTIFACT, OTHER])  # "out" is waited for no longer
    assert not phase2.committer.pending(0) and "other" not in phase2.committer.took_ms


class Classifying(Full):
    """Sink whose client library raises errors of its own."""

    def reaction(self, error: Exception) -> Reaction:
        meant = {TimeoutError: Reaction.RETRY, PermissionError: Reaction.STOP}
        return meant.get(type(error), Reaction.FAIL)


def test_the_connector_says_what_its_librarys_errors_mean() -> None:
    phase2 = Phase2({"out": Classifying(2, TimeoutError("no route"))})
    phase2.commit([ARTIFACT])
    assert len(phase2.told) == 2 and "no route" in phase2.told[0]
    with pytest.raises(FencedError, match="fenced"):
        Phase2({"out": Classifying(1, PermissionError("fenced"))}).commit([ARTIFACT])
    with pytest.raises(SinkError, match="no such table") as raised:
        Phase2({"out": Classifying(1, LookupError("no such table"))}).commit([ARTIFACT])
    assert raised.value.reaction is Reaction.FAIL


# --- sinks that left the pipeline, or write elsewhere ---------------------------------------------


def staged(sink: FilesSink, name: str, execution_id: int, text: str) -> Artifact:
    """Leaves an artifact of epoch 9, as a task of a dead execution does."""
    sink.claim_place("j", name)
    token = Path(sink.path) / ".staging" / "j" / name / f"{execution_id}-9-0-a0.json"
    token.write_text(text, "utf-8")
    size = token.stat().st_size
    return Artifact(name, 9, str(token), "part-9.json", 1, size, file_checksum(token))


@pytest.mark.parametrize("today", ["dropped", "renamed", "moved"])
def test_it_is_committed_where_it_was_staged_for(tmp_path: Path, store: Store, today: str) -> None:
    old, new = (sinks.files(f"{tmp_path}/{place}", format="json") for place in ("old", "new"))
    artifact = staged(old, "out", 4, '{"a": 1}\n')
    leftover = Path(staged(old, "out", 3, "never decided").token)
    named = Phase2({"out": old}).committer.destinations
    phase2 = Phase2(
        {"dropped": {}, "renamed": {"out2": new}, "moved": {"out": new}}[today], store=store
    )
    phase2.commit([artifact], named, recovering=True)
    phase2.committer.abort_orphans([artifact.token], [named, named])
    assert (tmp_path / "old" / "part-9.json").read_text("utf-8") == '{"a": 1}\n'
    assert [p.name for p in (tmp_path / "old" / "_epochs").glob("*.json")] == ["0000000009.json"]
    assert not list((tmp_path / "new").rglob("part-*")) and not leftover.exists()
    change = SinkChange.MOVED if today == "moved" else SinkChange.LEFT
    assert phase2.events == [SinkReopened("j", 5, "out", change, f"{tmp_path}/old", (9,), 1)]


def test_a_map_that_left_the_pipeline_is_committed(store: Store) -> None:
    sink = sinks.map_entries("prices", key="k").with_store(store)
    sink.check("j", "out", is_new_job=True)
    writer = sink.open_writer(TransactionId("j", "out", 1, 4, 9, 0, "a0"))
    writer.write(pa.record_batch({"__key0": ["x"], "__value": [b"1"]}))
    phase2 = Phase2({}, store=store)
    phase2.commit(writer.prepare(), Phase2({"out": sink}).committer.destinations)
    assert JetMap(store, "prices", None).get("x") == 1


@pytest.mark.parametrize(
    "named, why",
    [
        ({"out": {"kind": "queue", "path": "q"}}, "no connector can open a sink of kind 'queue'"),
        ({"out": {"kind": "files"}}, "kind 'files' cannot be opened from"),
    ],
)
def test_what_cannot_be_reopened_is_refused_or_reported(named: Any, why: str) -> None:
    with pytest.raises(SinkMismatchError, match=why) as refused:
        Phase2({"other": Full(0)}).commit([ARTIFACT], named, recovering=True)
    said = str(refused.value)
    assert "job 'j', stage 'out'" in said and "3 rows of epochs 9 are decided" in said
    assert "Start once with the former pipeline" in said and "accept_loss=True" in said
    assert refused.value.reaction is Reaction.FAIL

    phase2 = Phase2({"other": Full(0)}, accept_loss=True)
    phase2.commit([ARTIFACT], named, recovering=True)
    [lost] = phase2.events
    assert isinstance(lost, OutputLost) and why in lost.reason
    assert (lost.sink, lost.epoch_ids, lost.rows, lost.artifacts) == ("out", (9,), 3, ("token",))


def test_the_place_of_a_sink_that_left_may_be_gone_too(tmp_path: Path, store: Store) -> None:
    old = sinks.files(f"{tmp_path}/old", format="json")
    artifact = staged(old, "out", 4, '{"a": 1}\n')
    shutil.rmtree(tmp_path / "old")
    named = Phase2({"out": old}).committer.destinations
    with pytest.raises(SinkError, match="old' is gone"):
        Phase2({}, store=store).commit([artifact], named, recovering=True)
    phase2 = Phase2({}, accept_loss=True, store=store)
    phase2.commit([artifact], named, recovering=True)
    [lost] = phase2.events
    assert isinstance(lost, OutputLost) and (lost.sink, lost.rows) == ("out", 1)


def test_rows_that_a_sink_lost_are_reported_where_that_is_accepted(tmp_path: Path) -> None:
    out = sinks.files(f"{tmp_path}/out", format="json")
    kept, gone = (staged(out, "out", number, '{"a": 1}\n') for number in (3, 4))
    gone = replace(gone, target="part-10.json")
    Path(gone.token).unlink()
    with pytest.raises(ArtifactLostError):
        Phase2({"out": out}).commit([kept, gone])
    phase2 = Phase2({"out": out}, accept_loss=True)
    for _ in range(2):
        phase2.commit([kept, gone])
    [lost] = phase2.events
    assert isinstance(lost, OutputLost) and lost.artifacts == (gone.token,)


def test_a_sink_that_cannot_be_reopened_is_committed_by_a_pipeline_that_has_it() -> None:
    full = Full(0)
    named = {"out": full.describe()}
    Phase2({"out": full}).commit([ARTIFACT], named, recovering=True)
    assert full.left == -1
    elsewhere = {"out": {**full.describe(), "path": "/elsewhere"}}
    with pytest.raises(SinkMismatchError, match="the sink writes elsewhere"):
        Phase2({"out": full}).commit([ARTIFACT], elsewhere, recovering=True)


# --- output that going back would repeat ----------------------------------------------------------


class Marked(Full):
    """A sink whose place has the markers of these epochs."""

    def __init__(self, *epochs: int) -> None:
        super().__init__(0)
        self.epochs = epochs

    def has_committed(self, artifacts: Any, context: Any) -> bool:
        return all(artifact.epoch_id in self.epochs for artifact in artifacts)


@pytest.mark.parametrize(
    "epochs, has_later",
    [
        ((10,), False),
        ((10, 11), True),
        ((10, 11, 12), True),
        ((10, 11, 12, 13, 14), True),
        ((14,), True),
    ],
    ids=["set back", "decided", "interrupted", "committed", "old markers removed"],
)
@pytest.mark.parametrize("held", [(), ("out",)], ids=["due", "held back"])
def test_a_place_has_later_output_however_far_phase_2_of_the_newest_snapshot_came(
    epochs: tuple[int, ...], has_later: bool, held: tuple[str, ...]
) -> None:
    """The newest snapshot is of epochs 12 to 14, the one before of epoch 11; back to epoch 10."""
    phase2 = Phase2({"out": Marked(*epochs)})
    before, *staged = (replace(ARTIFACT, epoch_id=epoch_id) for epoch_id in (11, 12, 13, 14))
    newest = Manifest(
        *("j", 3, 14, 4, 1, "", 7, {}, {}, {}, tuple(staged)),
        sinks={name: dict(where) for name, where in phase2.committer.destinations.items()},
        newest_output={"out": NewestOutput(before, 1)},
        held=held,
    )
    assert phase2.committer.sinks_with_output(newest, (1, 10)) == ["out"] * has_later
