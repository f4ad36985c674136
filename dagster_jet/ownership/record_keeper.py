"""I/O of the execution record: claims it, writes it, renews its lease."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from dagster_jet.errors import (
    FencedError,
    JobStateError,
    LeaseHeldError,
    MembersChangedError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.ownership.activity_tracker import ActivityTracker
from dagster_jet.ownership.lease import is_owner_alive, new_lease, wall_clock_ms
from dagster_jet.snapshot.protocol import Event, Failed, Purpose, RecordAnswer, WriteOutcome
from dagster_jet.snapshot.record import (
    Doing,
    ExecutionRecord,
    JobStatus,
    Lease,
    SnapshotRef,
    StopCause,
)
from dagster_jet.store import OwnedRegister, Store
from dagster_jet.system.failpoint import FailPointError, fail_point

_logger = logging.getLogger(__name__)

JOB_DIRECTORY = "jobs"
"""Map with the name of every job, because registers cannot be listed."""


def record_register(job: str) -> str:
    return f"jobs/{job}/record"


def read_record(store: Store, job: str) -> ExecutionRecord | None:
    """Return the newest record of a majority, also after a change of the members.

    None: the job never ran, or was deleted. The register of a deleted job stays and is empty,
    so that a suspended execution is fenced.
    """
    value = store.read_register(record_register(job))
    return None if value is None or not value.value else ExecutionRecord.from_bytes(value.value)


def is_retained(store: Store, job: str, ref: SnapshotRef) -> bool:
    """Return whether the job's record names this snapshot. A running job drops old ones and deletes
    their data, also while somebody reads them."""
    record = read_record(store, job)
    named = () if record is None else record.snapshots
    return any(one.manifest_name == ref.manifest_name for one in named)


def last_execution_id(store: Store, job: str) -> int:
    """Return the id of the job's newest execution, 0 if there was none. After a deletion it is that
    of the deletion: ids go on, and requests to the deleted job keep theirs."""
    value = store.read_register(record_register(job))
    if value is None:
        return 0
    if not value.value:
        return value.ballot.number
    return ExecutionRecord.from_bytes(value.value).execution_id


class RecordKeeper:
    """Owns the record on behalf of one execution. Writes are serialised by a lock.

    The heartbeat thread renews the lease inside the record and changes nothing else.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        lease_ttl_ms: int,
        run_id: str | None,
        predecessor: RecordKeeper | None = None,
        definition: str = "",
        expired: Lease | None = None,
    ) -> None:
        """
        Args:
            predecessor: the keeper of the execution that has just ended in this process.
            definition: digest of the definition that the execution runs.
            expired: a lease that was seen to expire; the claim does not wait for it again.
        """
        self._expired = expired
        self._store, self._job, self._ttl_ms, self._run_id = store, job, lease_ttl_ms, run_id
        self._definition = definition
        self._owner = uuid.uuid4().hex
        self._earlier = predecessor.owners if predecessor is not None else frozenset()
        self._last_execution_id = predecessor.last_execution_id if predecessor is not None else None
        self._fruitless = predecessor.fruitless if predecessor is not None else None
        self._lock = threading.Lock()
        self._owned: OwnedRegister | None = None
        self._record: ExecutionRecord | None = None
        self._renewed_at = 0.0
        """Monotonic time of the last renewal: a wall clock set back would stop the heartbeat."""
        self.activity_tracker = ActivityTracker()
        """Activity of the execution; part of every write of the record."""
        self._healthy_ms = self._healthy_before_ms = 0
        self.fruitless: int | None = None
        """`ExecutionRecord.fruitless_now` before it rested; None: it does not rest."""
        self._stopping = threading.Event()
        self._heartbeat: threading.Thread | None = None
        self.fenced = threading.Event()
        """Set once a newer execution is known to own the record."""
        self.ended_because: str | None = None
        """Reason why this object cannot decide any more although it is not known to be fenced: its
        register has moved to other members, too few members have confirmed a write, perhaps of the
        heartbeat, or a write has raised an unforeseen error. A new execution can decide."""

        self._listener: Callable[[Event], None] | None = None

    def listen(self, listener: Callable[[Event], None] | None) -> None:
        """Set the listener; called, on any thread, once this object cannot decide any more."""
        self._listener = listener
        if self.is_lost:
            self._report_lost()

    @property
    def is_lost(self) -> bool:
        """Whether it can no longer decide: fenced, or its register is not to be trusted."""
        return self.fenced.is_set() or self.ended_because is not None

    def _report_lost(self) -> None:
        listener = self._listener
        if listener is None:
            return
        if self.fenced.is_set():
            listener(RecordAnswer(Purpose.LEASE, WriteOutcome.FENCED, wall_clock_ms()))
        elif self.ended_because is not None:
            listener(Failed(self.ended_because, restartable=True))

    @property
    def record(self) -> ExecutionRecord | None:
        """The record last written by this object; None before it has claimed the job."""
        return self._record

    @property
    def healthy_ms(self) -> int:
        """Time during which this execution made progress, in ms, as of the last write."""
        return self._healthy_ms - self._healthy_before_ms

    @property
    def owners(self) -> frozenset[str]:
        """The owner names of this process, one per execution."""
        return self._earlier | {self._owner}

    @property
    def last_execution_id(self) -> int | None:
        """The last execution id that this process has claimed."""
        return self._last_execution_id

    def claim(
        self,
        *,
        change: Callable[[ExecutionRecord], ExecutionRecord] | None,
        deletes: bool = False,
    ) -> ExecutionRecord:
        """Claim the record under the next execution id, which fences older executions.

        Waits until a dead owner's lease expires, but not for a lease that is being renewed.

        Args:
            change: applied to the claimed record before it is written.
            deletes: the claim is for deleting the job.

        Raises:
            JobStateError: the job is being deleted.
            LeaseHeldError: another execution is alive.
            FencedError: this process owned the job, and another process has taken it over since.
            StoreUnavailableError: no majority of members answers.
        """
        while True:
            current = read_record(self._store, self._job)
            if current is not None:
                if not deletes:
                    self._check_not_deleted(current)
                self._check_not_taken_over(current)
                self._wait_for_lease(current)
            register = self._store.register(record_register(self._job))
            highest = register.highest_ballot()
            number = max(current.execution_id if current else 0, highest.number if highest else 0)
            try:
                fail_point("claim.before")
                if current is None:
                    # First: garbage collection would miss a record that is not listed.
                    directory = self._store.map(JOB_DIRECTORY)
                    directory.put_all({directory.key(self._job): b""})
                owned = register.claim(number + 1, self._owner)
                adopted = ExecutionRecord.from_bytes(owned.value) if owned.value else None
                if adopted is not None and not deletes:
                    self._check_not_deleted(adopted)
                record = self._started(adopted, number + 1)
                if change is not None:
                    record = change(record)
                owned.write(record.to_bytes())
                fail_point("claim.after")
            except FencedError:
                # Another process claimed concurrently: check again who holds the lease.
                continue
            self._owned, self._record = owned, record
            self._healthy_ms = self._healthy_before_ms = record.healthy_ms
            self._renewed_at = time.monotonic()
            self._last_execution_id = record.execution_id
            self._heartbeat = threading.Thread(
                target=self._beat, name=f"jet-heartbeat-{self._job}", daemon=True
            )
            self._heartbeat.start()
            return record

    def _check_not_deleted(self, record: ExecutionRecord) -> None:
        if record.cause is StopCause.DELETE:
            raise JobStateError(
                "the job is being deleted, and part of its data in the store is already gone.",
                job=self._job,
                cure=f"Delete it once more (dagster-jet job {self._job} delete). Then the name "
                "can be used for a new job.",
            )

    def _check_not_taken_over(self, record: ExecutionRecord) -> None:
        """Prevent a restart in this process from reclaiming the job from a successor elsewhere."""
        if self._last_execution_id is None or record.execution_id <= self._last_execution_id:
            return
        if record.lease is None or record.lease.owner not in self._earlier:
            raise FencedError(
                f"execution {record.execution_id} has taken the job over; the last execution of "
                f"this process was {self._last_execution_id}.",
                job=self._job,
            )

    def _wait_for_lease(self, record: ExecutionRecord) -> None:
        """Watch a lease for its time to live: an owner that renews it is alive, any other is dead.

        Uses this process's monotonic clock; the owner's wall clock is not compared.
        """
        lease = record.lease
        if lease is None or lease == self._expired or lease.owner in self._earlier:
            return  # no owner, a dead one, or the execution that has just ended in this process
        watched_until = time.monotonic() + lease.ttl_ms / 1000
        while is_owner_alive(lease) is not False and time.monotonic() < watched_until:
            time.sleep(min(0.2, self._ttl_ms / 10_000))
            latest = read_record(self._store, self._job)
            if latest is None or latest.lease is None:
                return
            if latest.lease != lease:
                raise LeaseHeldError(
                    f"execution {latest.execution_id} is alive: process {latest.lease.pid} on "
                    f"{latest.lease.host}"
                    + (f", run {latest.lease.run_id}" if latest.lease.run_id else "")
                    + ", has just renewed its lease.",
                    job=self._job,
                    cure="Stop that execution first, or let it continue to run the job.",
                )

    def _started(self, record: ExecutionRecord | None, execution_id: int) -> ExecutionRecord:
        lease = new_lease(self._owner, self._ttl_ms, self._run_id)
        if record is None:
            record = ExecutionRecord(
                self._job, execution_id, JobStatus.NOT_RUNNING, first_execution_id=execution_id
            )
        died = record.status.is_live
        fruitless = record.fruitless_now if self._fruitless is None else self._fruitless
        return replace(
            record,
            execution_id=execution_id,
            status=JobStatus.STARTING,
            lease=lease,
            restarts=record.restarts + (1 if died else 0),
            fruitless=fruitless if died else 0,
            cause=None,
            failure=None,
            definition=self._definition,
        )

    def write(self, record: ExecutionRecord, purpose: Purpose) -> WriteOutcome:
        """Write `record` with the lease renewed; return the certain outcome."""
        with self._lock:
            if self.fruitless is not None:
                return WriteOutcome.FENCED
            try:
                fail_point(f"record.{purpose.value}.before")
                outcome = self._write(self._renewed(record))
                fail_point(f"record.{purpose.value}.after")
            except FailPointError:
                return WriteOutcome.UNKNOWN
            return outcome

    def rest(self, reason: str) -> None:
        """Decide nothing more, but renew the lease until `release`: its execution has failed, and
        this process begins the next one after a pause."""
        with self._lock:
            assert self._record is not None
            self.fruitless = self._record.fruitless_now  # the lease says soon that it starts
        self.activity_tracker.at(Doing.STARTING)
        self.activity_tracker.retries(reason)

    def release(self, record: ExecutionRecord | None) -> WriteOutcome:
        """Write the final status without a lease as the last write. None: nothing is written."""
        self._stopping.set()
        with self._lock:
            outcome = WriteOutcome.WRITTEN
            if record is not None and not self.fenced.is_set():
                last = replace(self._renewed(record), lease=None, updated_at_ms=wall_clock_ms())
                outcome = self._write(last)
            self._owned = None
            return outcome

    def erase(self) -> WriteOutcome:
        """Last write of a deleted job: the register stays, without a record."""
        self._stopping.set()
        with self._lock:
            try:
                return self._put(b"")
            finally:
                self._owned = None

    def abandon(self) -> None:
        """Stop renewing and never decide again, without changing the record."""
        self._stopping.set()
        self.fenced.set()
        self._report_lost()
        with self._lock:
            self._owned = None

    def _write(self, record: ExecutionRecord) -> WriteOutcome:
        outcome = self._put(record.to_bytes())
        if outcome is WriteOutcome.WRITTEN:
            self._record, self._renewed_at = record, time.monotonic()
        return outcome

    def _put(self, value: bytes) -> WriteOutcome:
        if self._owned is None:
            return WriteOutcome.FENCED
        try:
            self._owned.write(value)
        except FencedError:
            self.fenced.set()
            self._report_lost()
            return WriteOutcome.FENCED
        except MembersChangedError:
            self.ended_because = "the store's members have changed"
            self._report_lost()
            return WriteOutcome.UNKNOWN  # a member may have accepted it and passed it on
        except WriteOutcomeUnknownError as error:
            self.ended_because = f"the outcome of a write of the record is unknown: {error}"
            self._report_lost()
            return WriteOutcome.UNKNOWN
        except StoreUnavailableError:
            return WriteOutcome.UNAVAILABLE
        except Exception as error:
            _logger.exception("job %r: the record could not be written", self._job)
            self.ended_because = f"a write of the record raised {type(error).__name__}: {error}"
            self._report_lost()
            return WriteOutcome.UNKNOWN
        return WriteOutcome.WRITTEN

    def _beat(self) -> None:
        while not self._stopping.wait(self._ttl_ms / 3000):
            with self._lock:
                record = self._record
                if record is None or record.lease is None or self._owned is None:
                    continue
                if time.monotonic() - self._renewed_at < self._ttl_ms / 3000:
                    continue  # a snapshot has renewed it just now
                try:
                    self._write(self._renewed(record))
                except Exception:  # nothing was written; the next beat tries it again
                    _logger.exception("job %r: the lease could not be renewed", self._job)

    def _renewed(self, record: ExecutionRecord) -> ExecutionRecord:
        self._healthy_ms += self.activity_tracker.take_healthy_ms()
        lease = new_lease(self._owner, self._ttl_ms, self._run_id, self.activity_tracker.activity())
        return replace(record, lease=lease, healthy_ms=self._healthy_ms)
