"""Background threads of a queue: several receive, and one renews visibility time-outs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dagster_jet.connectors.sqs.held import HeldMessages
from dagster_jet.connectors.sqs.message_table import SYSTEM_ATTRIBUTES, Message, message_of
from dagster_jet.connectors.sqs.queue import BATCH_MAX, QueueClient
from dagster_jet.contract import Backlog
from dagster_jet.errors import SourceError
from dagster_jet.system.failpoint import fail_point

_GIVE_BACK_S, _END_S = 1.0, 0.7
"""Together below 2 s, for which an execution waits for all of its sources to close."""
BACKLOG_MIN = 1_000
"""Allowance for messages that arrive while the queue counts its messages approximately."""
_AT_ONCE = 80
"""Handles returned to the queue per step: one batch for each of the client's threads."""


@dataclass(frozen=True)
class Receiving:
    """Settings of the receivers."""

    visibility_s: int
    prefetch: int
    """Maximum number of messages that are received and not deleted."""
    threads: int
    id_of: Callable[[Mapping[str, Any]], str]
    """Id of a message as the client library returns it. Raises `SourceError` if it has none."""
    attributes: tuple[str, ...] = ()
    """Publishers' attributes to receive."""
    with_system_attributes: bool = False
    in_groups: bool = False
    """True for a FIFO queue, where a held message blocks the others of its group."""


class Receivers:
    """Receivers of one queue. The source's own thread calls `poll`, `delete` and `close`.

    All threads receive while messages come in. After an empty receive only one goes on, so an idle
    queue costs one call per second. After an error all pause until the next poll, which the engine
    delays.
    """

    def __init__(self, client: QueueClient, receiving: Receiving) -> None:
        self._client, self._receiving = client, receiving
        self._held = HeldMessages(receiving.visibility_s)
        self._changed = threading.Condition()
        # `_changed` guards all of these.
        self._came: list[Message] = []
        self._failure: Exception | None = None
        self._polled_at = 0.0
        """When receiving was last resumed. Errors of calls begun earlier are ignored, because an
        error that they share was raised already."""
        self._is_paused, self._is_closing = True, False
        """Paused until the first poll, so that the deletions of an earlier process go first."""
        self._on_its_way = 0
        """Maximum number of messages that the receive calls under way may return."""
        self._asked_at: dict[int, float] = {}
        """Start of the receive calls under way, by thread."""
        self._active = 1
        self._empty_at = 0.0
        """End of the last empty receive."""
        self._empty_asked_at = 0.0
        """Start of the last empty receive."""
        self._backlog_max: int | None = None
        """Remaining number of messages after which the backlog counts as read."""
        self._threads = [
            threading.Thread(target=self._receive, args=(number,), name="jet-sqs", daemon=True)
            for number in range(receiving.threads)
        ]
        self._threads.append(threading.Thread(target=self._renew, name="jet-sqs", daemon=True))
        for thread in self._threads:
            thread.start()

    def poll(self) -> list[Message]:
        """Returns new messages. Waits until there are some, until a receive is empty, or while none
        may be received because `prefetch` are held. Raises the error of a receive call, or an
        unexpected one of a renewal."""
        begun = time.monotonic()
        return self._come(lambda: self._empty_at >= begun)

    def _come(self, has_nothing: Callable[[], bool]) -> list[Message]:
        with self._changed:
            if self._is_paused and self._failure is None:
                self._is_paused, self._polled_at = False, time.monotonic()
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._came or self._failure or has_nothing() or self._room() < 1
            )
            if self._came:
                came, self._came = self._came, []
                return came
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return []

    def poll_backlog(self) -> tuple[list[Message], Backlog]:
        """Like `poll`; also returns the state of the backlog that the first call found.

        The queue counts as empty after an empty receive that began during this call, once all
        receives are over that began before its end. SQS counts messages only approximately. So if
        others keep filling the queue, the backlog ends after twice that count plus `BACKLOG_MIN`.
        """
        if self._backlog_max is None:
            about = int(self._client.attributes().get("ApproximateNumberOfMessages", 0))
            self._backlog_max = 2 * about + BACKLOG_MIN
        begun = time.monotonic()
        came = self._come(lambda: self._has_emptied(begun))
        with self._changed:
            self._backlog_max -= len(came)
            if self._backlog_max <= 0:
                return came, Backlog.READ
            if came:
                return came, Backlog.WAITING
            is_held = self._room() < 1 or (self._receiving.in_groups and len(self._held) > 0)
            return came, Backlog.HELD if is_held else Backlog.READ

    def _has_emptied(self, begun: float) -> bool:
        before = min(self._asked_at.values(), default=math.inf)
        return self._empty_asked_at >= begun and before >= self._empty_at

    def put_back(self, messages: Iterable[Message]) -> None:
        """Returns messages to the next poll."""
        with self._changed:
            self._came[:0] = messages

    def delete(self, messages: Mapping[str, str]) -> set[str]:
        """Deletes all deliveries of messages. Returns the ids of those that are certainly gone,
        because nobody else can have received them meanwhile.

        Args:
            messages: by id, the handle to use if the message is not held.
        """
        if not messages:
            return set()
        handles = {one: self._held.handles_of(one) or [messages[one]] for one in messages}
        fail_point("sqs.acknowledge.before")
        refused = self._client.delete([handle for some in handles.values() for handle in some])
        fail_point("sqs.acknowledge.deleted")
        now = time.monotonic()
        gone = {
            one
            for one, some in handles.items()
            if self._held.is_ours(one, now) and refused.isdisjoint(some)
        }
        self._held.forget([handle for some in handles.values() for handle in some])
        with self._changed:
            self._changed.notify_all()  # there is room again
        fail_point("sqs.acknowledge.after")
        return gone

    def close(self) -> None:
        """Returns held messages to the queue, for up to one second, for immediate redelivery."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        until, handles = time.monotonic() + _GIVE_BACK_S, self._held.handles()
        with suppress(SourceError):
            while handles and time.monotonic() < until:
                self._client.hide(handles[:_AT_ONCE], 0)
                handles = handles[_AT_ONCE:]
        until = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._client.close()

    def _room(self) -> int:
        return self._receiving.prefetch - len(self._held)

    # --- on threads of its own --------------------------------------------------------------------

    def _receive(self, number: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._may_receive(number))
                if self._is_closing:
                    return
                count = min(BATCH_MAX, self._room() - self._on_its_way)
                self._on_its_way += count
                self._asked_at[number] = time.monotonic()
            self._receive_once(number, count)

    def _may_receive(self, number: int) -> bool:
        has_room = self._room() - self._on_its_way > 0
        return number < self._active and not self._is_paused and has_room

    def _receive_once(self, number: int, count: int) -> None:
        asked_at = self._asked_at[number]
        messages: list[Message] = []
        failure: Exception | None = None
        try:
            messages = self._received(count)
        except Exception as error:  # noqa: BLE001 - raised by the poll
            failure = error
        with self._changed:
            self._on_its_way -= count
            del self._asked_at[number]
            if failure is not None:
                self._pause(failure, asked_at)
            elif messages:
                self._active = self._receiving.threads
            else:
                self._active, self._empty_at = 1, time.monotonic()
                self._empty_asked_at = asked_at
            is_late = self._is_closing
            if not is_late:
                self._held.received({m.handle: m.message_id for m in messages}, asked_at)
                self._came += messages
            self._changed.notify_all()
        if is_late:
            self._give_back([message.handle for message in messages])

    def _pause(self, failure: Exception, asked_at: float) -> None:
        """Lets the next poll raise the failure of a call that began then. `_changed` is held."""
        if asked_at >= self._polled_at and not self._is_paused:
            self._failure, self._is_paused = failure, True
            self._changed.notify_all()

    def _received(self, count: int) -> list[Message]:
        wanted = self._receiving
        received = self._client.receive(
            count,
            wanted.visibility_s,
            SYSTEM_ATTRIBUTES if wanted.with_system_attributes else (),
            wanted.attributes,
        )
        try:
            return [message_of(one, wanted.id_of(one)) for one in received]
        except SourceError:
            self._give_back([one["ReceiptHandle"] for one in received])
            raise

    def _give_back(self, handles: Sequence[str]) -> None:
        with suppress(SourceError):  # they become visible later anyway
            self._client.hide(handles, 0)

    def _renew(self) -> None:
        """Renews at half of the time-out, and retries while the message is still hidden."""
        pause_s = self._receiving.visibility_s / 10
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closing, pause_s):
                    return
            asked_at = time.monotonic()
            if not (due := self._held.due(asked_at)):
                continue
            try:
                refused = self._client.hide(due, self._receiving.visibility_s)
            except SourceError:
                continue  # the receivers report it
            except Exception as error:  # noqa: BLE001 - raised by the poll
                with self._changed:
                    self._pause(error, asked_at)
                continue
            self._held.renewed([handle for handle in due if handle not in refused], asked_at)
            self._held.forget(refused)
