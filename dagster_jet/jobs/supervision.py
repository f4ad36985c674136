"""What the supervisor has asked for, per job: one small value in a quorum register.

The execution record says what *is*; this says what somebody *wants*, and which Dagster run was
asked to make it so. They are two registers because they have two writers: the execution owns the
record (its ballot is the fencing token), any sensor tick or cancelled run may write here.

A generation is one request for a run. Its number is in the run key, and Dagster skips a run key
that it has ever seen, so a generation is reserved here *before* the run is requested: of two
ticks that see the same dead job, one reserves and requests, the other comes away with nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from dagster_jet.errors import StoreMismatchError
from dagster_jet.store import Store

SUPERVISION_FORMAT = 1


class Intent(str, Enum):
    """What a person wants of a job."""

    ALWAYS_ON = "always-on"
    """Whenever it is down, it is started."""
    DRAINED = "drained"
    """It is started from time to time, reads what is there, and is down in between."""
    PAUSED = "paused"
    """Down until somebody resumes it or launches it by hand."""


@dataclass(frozen=True)
class Supervision:
    """What is wanted of a job, and the newest request that was made for it.

    Attributes:
        job: the streaming job's name.
        generation: number of the newest request; 0 while there was none.
        requested_at_ms: when that request was reserved, on the reserving machine's clock: for
            people, who know whether it was right.
        run_key: the run key it was made with.
        intent: what is wanted.
        before_pause: what was wanted before it was PAUSED, and is again once it is resumed.
        resumed_execution: a person has resumed the job after this execution: what its record says
            of it (suspended, on request or by a failure) keeps the job down no longer.
        attempts: requests in a row that brought no progress, this one included.
        execution_id_seen: the record's execution when the request was reserved. A greater one in
            the record means that some run has taken the job up since.
        snapshot_id_seen: the newest snapshot at that time. A greater one means progress.
        healthy_ms_seen: how long executions had got on by then, in all.
        token: names the writer of this value, so that a writer with an unclear outcome can tell.
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
    format: int = SUPERVISION_FORMAT

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
        if fields["format"] > SUPERVISION_FORMAT:
            raise StoreMismatchError(
                f"the supervision entry has format {fields['format']}, this version reads up to "
                f"{SUPERVISION_FORMAT}.",
                job=fields.get("job"),
                cure="Upgrade dagster-jet on this machine.",
            )
        intents = {name: Intent(fields[name]) for name in ("intent", "before_pause")}
        return cls(**{**fields, **intents})


def read_supervision(store: Store, job: str) -> Supervision | None:
    """Return what is wanted of `job`, None if nobody has said anything yet."""
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
    """Reserve the generation after `expected`: the decision who may request a run.

    Args:
        store: the open store.
        job: the streaming job's name.
        expected: the generation that the caller has seen (0: none yet).
        requested_at_ms: the caller's clock.
        attempts: requests in a row without progress, this one included.
        execution_id_seen: the record's execution now, 0 without a record.
        snapshot_id_seen: the newest snapshot now, 0 without one.
        healthy_ms_seen: how long executions have got on until now, in all.
        at_least: the lowest number to use, for a store that knows less than Dagster does.

    Returns:
        The reserved value, or None: another tick was faster, or a person wants the job down since.

    Raises:
        StoreError: the store could not be asked. A generation may then be reserved without a run;
            `decide` passes over it after a while.
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


def set_intent(
    store: Store, job: str, intent: Intent, *, unless_paused: bool = False
) -> Supervision | None:
    """Write what a person wants of the job; what is not a pause also forgets earlier failures.

    Args:
        store: the open store.
        job: the streaming job's name.
        intent: what is wanted.
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
    """Write that the job is wanted as it was before a pause, and that what the record says of an
    execution (suspended, on request or by a failure) keeps it down no longer.
    """

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
    the ballot decides. The token tells this writer's value from an equal one of another writer.
    """

    def changed(current: bytes | None) -> bytes | None:
        known = Supervision(job) if current is None else Supervision.from_bytes(current)
        wanted = change(known)
        return None if wanted is None else replace(wanted, token=uuid.uuid4().hex).to_bytes()

    written = store.update_register(_register(job), changed)
    return None if written is None else Supervision.from_bytes(written.value)


def _register(job: str) -> str:
    return f"supervision/{job}"
