"""Workers of the simulated world: the engine's own blocking code, run piece by piece.

A work runs in a fiber (a greenlet). Where it would wait for the outside, a fake gives control back
to the world's scheduler, which goes on with it when its time has come, or never: its process has
died meanwhile. Nothing runs at the same time as anything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import getcurrent, greenlet

from dagster_jet.snapshot import protocol as c

from .scenario import Point

if TYPE_CHECKING:
    from .driver import Driver
    from .world import Process, World

_T = TypeVar("_T")


class Waiting:
    """Waiting of fakes, inside a fiber, on behalf of one process."""

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process = world, process

    def pause(self, point: Point | None = None, at_least: int = 0) -> None:
        """Lets others go first; the process may die here."""
        self.until(
            lambda resume: self.world.after(self.process, partial(resume, None), point, at_least)
        )

    def until(self, begin: Callable[[Callable[[_T], None]], object]) -> _T:
        """Waits for what `begin` is told, which happens later."""
        fiber = getcurrent()
        begin(fiber.switch)
        assert fiber.parent is not None, "only works wait"
        answer: _T = fiber.parent.switch()
        return answer

    def send(self, effect: Callable[[], _T], point: Point) -> _T:
        """Runs an effect outside, which lands also where the process dies meanwhile.

        Raises:
            Exception: what the effect raises.
        """

        def begin(resume: Callable[[Callable[[], _T]], None]) -> None:
            def land() -> None:
                try:
                    result = effect()
                except Exception as error:
                    failure = error
                    self.world.after(self.process, lambda: resume(partial(_raise, failure)), point)
                else:
                    self.world.after(self.process, lambda: resume(lambda: result), point)

            self.world.after(None, land)

        return self.until(begin)()


def _raise(error: Exception) -> Any:
    raise error


class Never:
    """An event, as the committer knows it, in simulated time."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting, self._is_set = waiting, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        self._waiting.pause(Point("during", "Complete"), at_least=50)
        return self._is_set


class Worker:
    """Takes the place of a thread: one work after the other, with a crash between any two steps."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.world = driver, driver.world
        self._works: deque[tuple[c.Command, Callable[[], c.Event]]] = deque()
        self._is_busy = False

    def start(self, command: c.Command, work: Callable[[], c.Event]) -> None:
        self._works.append((command, work))
        self._next()

    def _next(self) -> None:
        if self._is_busy or not self._works:
            return
        self._is_busy = True
        command, work = self._works.popleft()
        name = type(command).__name__
        # A write of the record has points of its own, where the message leaves and arrives.
        point = None if isinstance(command, c.WriteRecord) else Point("before", name)
        fiber = greenlet(partial(self._run, command, work), parent=self.world.hub)
        self.world.after(self.driver.process, fiber.switch, point)

    def _run(self, command: c.Command, work: Callable[[], c.Event]) -> None:
        event = work()
        self.driver.answer(command, event)
        self._is_busy = False
        self._next()
