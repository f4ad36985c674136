"""The intent and the newest run request per job: one small value in a quorum register.

The execution record has a job's actual state. This value has the wanted state, and the Dagster run
that was requested for it. They are two registers because they have two writers: the execution owns
the record (its ballot is the fencing token), any sensor tick or cancelled run may write here.

A generation is one request for a run. Its number is in the run key, and Dagster skips a run key
that it has ever seen, so a generation is reserved here *before* the run is requested. Of two ticks
that see the same dead job, one reserves and requests, the other does nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from dagster_jet.core.stored_format import check_format
from dagster_jet.store import Store

SUPERVISION_FORMAT = 1


class Intent(str, Enum):
    """The state of a job that a person wants."""

    ALWAYS_ON = "always-on"
    """Started whenever it is down."""
    DRAINED = "drained"
    """Started from time to time; reads the input that is there, and is down in between."""
    PAUSED = "paused"
    """Down until somebody resumes it or launches it by hand."""


@dataclass(frozen=True)
class Supervision:
    """The intent for a job, and the newest request made for it.

    Attributes:
        job: the streaming job's name.
        generation: number of the newest request; 0: none.
        requested_at_ms: time of that reservation, by the reserving machine's clock. For people, who
            know whether the clock was right.
        run_key: the request's run key.
        intent: the wanted state.
        before_pause: the intent before PAUSED, restored by a resume.
        resumed_execution: a person has resumed the job after this execution. Its status in the
            record (suspended, on request or by a failure) no longer keeps the job down.
        attempts: consecutive requests without progress, this one included.
        execution_id_seen: the record's execution at the reservation. A greater one in the record
            means that a run has taken the job since.
        snapshot_id_seen: the newest snapshot at that time. A greater one means progress.
        healthy_ms_seen: total healthy time of executions at that time.
        standby: number of the newest request for a standby; 0: none.
        standby_attempts: consecutive such requests whose standby soon ended, this one included.
        standby_definition: digest of the pipeline's definition that it was requested for.
        replaced_standbys: orchestrator's ids of the runs that end in favour of that standby, or
            because none is wanted any more.
        token: identifies the writer of this value, for a writer whose outcome is unclear.
    """

    job: str
    generation: int = 0
    requested_at_ms: int = 0
    run_key: str = ""
    intent: Intent = Intent.ALWAYS_ON
    before_pause: Intent = Intent.ALWAYS_ON
    resumed_execution: int = 0
    attempts: int = 0
    execution_id_seen: int = 0
    snapshot_id_seen: int = 0
    token: str = ""
    healthy_ms_seen: int = 0
    standby: int = 0
    standby_attempts: int = 0
    standby_definition: str = ""
    replaced_standbys: tuple[str, ...] = ()
    format: int = SUPERVISION_FORMAT

    @property
    def standby_run_key(self) -> str:
        """The run key of the newest request for a standby."""
        return f"{self.job}:standby:{self.standby}"

    def to_bytes(self) -> bytes:
        """Return the value as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Supervision:
        """Read what `to_bytes` wrote.

        Raises:
            StoreMismatchError: written by a newer version.
        """
        fields: dict[str, Any] = json.loads(data)
        check_format(
            "the supervision entry", fields["format"], SUPERVISION_FORMAT, job=fields["job"]
        )
        intents = {name: Intent(fields[name]) for name in ("intent", "before_pause")}
        replaced = tuple(fields["replaced_standbys"])
        return cls(**{**fields, **intents, "replaced_standbys": replaced})


def read_supervision(store: Store, job: str) -> Supervision | None:
    """Return the supervision of `job`; None if nothing was written yet."""
    found = store.read_register(_register(job))
    return None if found is None else Supervision.from_bytes(found.value)


def reserve_generation(
    store: Store,
    job: str,
    expected: int,
    *,
    requested_at_ms: int,
    attempts: int,
    execution_id_seen: int,
    snapshot_id_seen: int,
    healthy_ms_seen: int = 0,
    at_least: int = 1,
) -> Supervision | None:
    """Reserve the generation after `expected`; decides who may request a run.

    Args:
        store: the open store.
        job: the streaming job's name.
        expected: the generation that the caller has seen (0: none yet).
        requested_at_ms: the caller's clock.
        attempts: consecutive requests without progress, this one included.
        execution_id_seen: the record's execution now, 0 without a record.
        snapshot_id_seen: the newest snapshot now, 0 without one.
        healthy_ms_seen: total healthy time of executions until now.
        at_least: the lowest number to use, for a store that is behind Dagster.

    Returns:
        The reserved value, or None: another tick was faster, or a person wants the job down since.

    Raises:
        StoreError: the store could not be asked. A generation may then be reserved without a run;
            `decide` skips it after a while.
    """
    generation = max(expected + 1, at_least)

    def reserve(current: Supervision) -> Supervision | None:
        if current.generation != expected or current.intent is not Intent.ALWAYS_ON:
            return None
        return replace(
            current,
            generation=generation,
            requested_at_ms=requested_at_ms,
            run_key=f"{job}:{generation}",
            attempts=attempts,
            execution_id_seen=execution_id_seen,
            snapshot_id_seen=snapshot_id_seen,
            healthy_ms_seen=healthy_ms_seen,
        )

    return _update(store, job, reserve)


def reserve_standby(
    store: Store,
    job: str,
    expected: int,
    *,
    attempts: int,
    definition: str,
    replaces: tuple[str, ...],
    at_least: int = 1,
) -> Supervision | None:
    """Reserve the number of a standby; decides who may request its run.

    Args:
        store: the open store.
        job: the streaming job's name.
        expected: the number of the last request that the caller has seen (0: none yet).
        attempts: consecutive requests whose standby soon ended, this one included.
        definition: digest of the pipeline's definition that the standby is to have.
        replaces: ids of the runs whose standby ends.
        at_least: the lowest number to use, for a store that is behind the orchestrator.

    Returns:
        The reserved value, or None: another tick was faster, or a person wants the job down since.

    Raises:
        StoreError: the store could not be asked. A number may then be reserved without a run.
    """

    def reserve(current: Supervision) -> Supervision | None:
        if current.standby != expected or current.intent is not Intent.ALWAYS_ON:
            return None
        return replace(
            current,
            standby=max(expected + 1, at_least),
            standby_attempts=attempts,
            standby_definition=definition,
            replaced_standbys=replaces,
        )

    return _update(store, job, reserve)


def end_standbys(store: Store, job: str, run_ids: Collection[str]) -> None:
    """Ask runs that stand by to end, because no standby is wanted any more. One that has the job
    by now goes on."""

    def end(current: Supervision) -> Supervision | None:
        if set(run_ids) <= set(current.replaced_standbys):
            return None
        return replace(current, replaced_standbys=tuple(run_ids))

    _update(store, job, end)


def set_intent(
    store: Store, job: str, intent: Intent, *, unless_paused: bool = False
) -> Supervision | None:
    """Write the intent for the job; any intent but a pause also clears earlier failures.

    Args:
        store: the open store.
        job: the streaming job's name.
        intent: the wanted state.
        unless_paused: leave a pause as it is.

    Returns:
        The new value, or None: it is paused and stays so.
    """

    def change(current: Supervision) -> Supervision | None:
        is_paused = current.intent is Intent.PAUSED
        if unless_paused and is_paused:
            return None
        return replace(
            current,
            intent=intent,
            before_pause=current.before_pause if is_paused else current.intent,
            attempts=current.attempts if intent is Intent.PAUSED else 0,
        )

    return _update(store, job, change)


def resume(store: Store, job: str, execution_id: int) -> Supervision:
    """Restore the intent before a pause. The record's status of this execution (suspended, on
    request or by a failure) no longer keeps the job down."""

    def change(current: Supervision) -> Supervision:
        is_paused = current.intent is Intent.PAUSED
        return replace(
            current,
            intent=current.before_pause if is_paused else current.intent,
            resumed_execution=max(execution_id, current.resumed_execution),
            attempts=0,
        )

    resumed = _update(store, job, change)
    assert resumed is not None
    return resumed


def _update(
    store: Store, job: str, change: Callable[[Supervision], Supervision | None]
) -> Supervision | None:
    """Apply `change` to the current value; None where `change` returns None.

    The ballot is not the generation: a writer that died between claim and write leaves its number
    promised for ever, and a generation bound to it could never be reserved. The value found *under*
    the ballot decides. The token distinguishes equal values of two writers.
    """

    def changed(current: bytes | None) -> bytes | None:
        known = Supervision(job) if current is None else Supervision.from_bytes(current)
        wanted = change(known)
        return None if wanted is None else replace(wanted, token=uuid.uuid4().hex).to_bytes()

    written = store.update_register(_register(job), changed)
    return None if written is None else Supervision.from_bytes(written.value)


def _register(job: str) -> str:
    return f"supervision/{job}"
