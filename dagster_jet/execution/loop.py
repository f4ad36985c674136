"""The loop of one execution: one thread feeds the coordinator from one queue.

    queue ──▶ Loop.receive ──▶ Coordinator.handle ──▶ commands ──▶ Drivers.start
      ▲                                                               │ beside the loop
      └────────────────────── answers ────────────────────────────────┘

The loop does no work itself and reads only the clock that it is given, so the simulator can run it
(``tests/simulation``) and choose the order in which the work beside it runs and posts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from dagster_jet.execution.epoch_planner import EpochPlanner, PollRequest
from dagster_jet.execution.notifications import Died, Emitted, Notification, Polled, Woken
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.exports.exporting import Exporting
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.coordinator import Coordinator
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.protocol import StopKind


class Drivers(Protocol):
    """Carries out commands beside the loop, and posts the answers."""

    def start(self, command: protocol.Command, view: CoordinatorView) -> None:
        """Starts a command and returns at once. Writes of the record are made in the order of the
        calls.

        Args:
            view: the coordinator's state at this command.
        """

    def poll(self, request: PollRequest) -> None:
        """Starts a poll of the sources, which answers with `Polled`. Called between two epochs
        only."""


class Observer(Protocol):
    """Observer of loop events; called on the loop's thread."""

    def polls(self, view: CoordinatorView) -> None:
        """The sources are being asked."""

    def heard(
        self, event: protocol.Event, commands: Sequence[protocol.Command], view: CoordinatorView
    ) -> None:
        """The coordinator has handled an event and returned `commands`."""

    def idles(self) -> None:
        """The loop has nothing to do."""

    def emit(self, event: Emitted) -> None:
        """Another thread has emitted an event."""


class Loop:
    """Loop of one execution. One thread calls it; all threads may read `view`."""

    def __init__(
        self,
        coordinator: Coordinator,
        planner: EpochPlanner,
        drivers: Drivers,
        stop: StopSignal,
        observer: Observer,
        now_ms: Callable[[], int],
        exporting: Exporting,
    ) -> None:
        self._coordinator, self._planner, self._drivers = coordinator, planner, drivers
        self._stop, self._observer, self._now_ms = stop, observer, now_ms
        self._exporting = exporting
        self.view = CoordinatorView()
        """The coordinator's state after the last event."""
        self.ended: protocol.Stop | None = None
        """How the execution ends; later notifications are ignored."""
        self._input_ended = planner.until.input_ends
        self._looking = False
        self._next_look_ms = 0
        self._started_ms = now_ms()
        """Time at which a poll has last led to an epoch or another command."""
        self._passed_on: StopKind | None = None

    @property
    def running_ms(self) -> int | None:
        """Time since the first epoch could begin; None: it could not yet."""
        started_ms = self._planner.started_ms
        return None if started_ms is None else self._now_ms() - started_ms

    def begin(self) -> None:
        self._carry_out(self._coordinator.begin())

    def receive(self, notification: Notification | None) -> None:
        """Handles one entry of the queue; None if the time of `wait_ms` has passed.

        Raises:
            BaseException: an unexpected error of a thread beside the loop.
        """
        self._pass_on_stop()
        match notification:
            case Emitted():
                self._observer.emit(notification)
                return
            case _ if self.ended is not None:
                return
            case None | Woken():
                pass
            case Died(error):
                raise error
            case Polled():
                self._decide(notification)
            case _:
                self._feed(notification)
        self._perhaps_look()

    def wait_ms(self) -> int | None:
        """Returns the ms until the loop must act without a notification; None for never."""
        if not self.view.is_ready or self._looking:
            return None
        return max(0, self._next_look_ms - self._now_ms())

    # --- stops ----------------------------------------------------------------------------------

    def _pass_on_stop(self) -> None:
        """Passes a stop request on before other notifications, so that a failure caused by a cancel
        counts as a cancel."""
        asked = self._stop.kind
        if asked is self._passed_on or self.ended is not None:
            return
        self._passed_on = asked
        self._next_look_ms = 0
        if asked is StopKind.CANCEL:
            self._feed(protocol.CancelRequested())

    # --- between epochs -------------------------------------------------------------------------

    def _perhaps_look(self) -> None:
        if self.ended is not None or self._looking or not self.view.is_ready:
            return
        if self._now_ms() < self._next_look_ms:
            return
        self._looking = True
        self._observer.polls(self.view)
        request = self._planner.poll_request(self._stop.kind, input_ended=self._input_ended)
        self._input_ended |= request.waits_for_all
        self._drivers.poll(request)

    def _decide(self, polled: Polled) -> None:
        self._looking = False
        if not self.view.is_ready:
            return
        if self._planner.started_ms is None:
            self._planner = replace(self._planner, started_ms=self._now_ms())
        tick = self._planner.tick(
            polled.inputs,
            self._stop.kind,
            self.view,
            wants_snapshot=self._exporting.wants_snapshot,
        )
        if self._feed(tick):
            self._started_ms = self._now_ms()
            return
        # Nothing to start: there is no input, or the pending snapshot must complete first.
        if not self.view.is_pending:
            self._observer.idles()
        now_ms = self._now_ms()
        idle_ms = now_ms - self._started_ms
        self._next_look_ms = now_ms + self._planner.wait_ms(self.view, now_ms, idle_ms=idle_ms)

    # --- the coordinator ------------------------------------------------------------------------

    def _feed(self, event: protocol.Event) -> list[protocol.Command]:
        before = self.view
        commands = self._coordinator.handle(event)
        view = self.view = self._coordinator.view()
        if (view.cycle, view.is_pending, view.pending.is_decided) != (
            before.cycle,
            before.is_pending,
            before.pending.is_decided,
        ):
            self._next_look_ms = 0
        self._observer.heard(event, commands, view)
        self._carry_out(commands)
        return commands

    def _carry_out(self, commands: Sequence[protocol.Command]) -> None:
        for command in commands:
            if isinstance(command, protocol.Stop):
                self.ended = self.ended or command
            else:
                self._drivers.start(command, self.view)
