"""Named places where a test may kill the process or make a step fail.

Every durable step of the protocol has a point before and after it. In production nothing is
configured and a point costs one dictionary lookup. The crash suite lists the points from the source
code, so every new step is tested.

Configured by the environment:

    JET_FAIL_POINTS="record.before=kill;chunks.before:2=raise"

Tasks run in children of a JVM that may be older than the driver and may serve other drivers, so
their rules are sent with the job (`Orders`).

`name[:hit]=action`; `hit` counts from 1 in each process. Actions: ``kill`` (SIGKILL of the driver
and of this process), ``raise`` (a restartable `FailPointError`), ``freeze`` (SIGSTOP of this
process, like a long pause), ``retry`` (a `FailPointError` in every task that runs for the `hit`-th
time, so that Spark runs it again).
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

_ENV_POINTS = "JET_FAIL_POINTS"
_ENV_LOG = "JET_FAIL_POINT_LOG"


class FailPointError(OSError):
    """Raised at a fail point with the action ``raise``; looks like a failed system call."""


@dataclass(frozen=True)
class _Rule:
    hit: int
    action: str


def _parse(text: str) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    for part in filter(None, text.split(";")):
        point, _, action = part.partition("=")
        name, _, hit = point.partition(":")
        rules[name.strip()] = _Rule(int(hit or 1), action.strip())
    return rules


around_freeze: Callable[[], AbstractContextManager[None]] = nullcontext
"""Entered around a freeze: a test may let other threads leave sections that must not freeze."""

task_attempt: int | None = None
"""Attempt number of the task in this process; None outside of tasks."""


@dataclass(frozen=True)
class Orders:
    """A process's configuration of fail points.

    Attributes:
        rules: in the format of the environment variable.
        log: file to log triggered points to.
        driver: process id that is killed, too; 0: none.
    """

    rules: str
    log: str | None = None
    driver: int = 0

    @classmethod
    def from_environment(cls) -> Orders:
        return cls(os.environ.get(_ENV_POINTS, ""), os.environ.get(_ENV_LOG))

    @classmethod
    def from_json(cls, text: str) -> Orders:
        return cls(*json.loads(text))

    def to_json(self) -> str:
        return json.dumps([self.rules, self.log, self.driver])


_orders = Orders.from_environment()
_rules = _parse(_orders.rules)
_hits: dict[str, int] = {}


def fail_point(name: str) -> None:
    """Do nothing unless a test has configured `name`: then raise, or kill or stop the process.

    Call it before and after each durable step.

    Raises:
        FailPointError: the test asks for it; an `OSError`.
    """
    if not _rules:
        return
    rule = _rules.get(name)
    if rule is None:
        return
    _hits[name] = _hits.get(name, 0) + 1
    if rule.hit != (task_attempt if rule.action == "retry" else _hits[name]):
        return
    if _orders.log:
        with open(_orders.log, "a", encoding="utf-8") as file:
            file.write(f"{name}={rule.action}@{os.getpid()}\n")
            file.flush()
            os.fsync(file.fileno())
    if rule.action in ("raise", "retry"):
        raise FailPointError(f"fail point {name}")
    if rule.action == "freeze":
        with around_freeze():
            # Sent to this thread, which stops the process before returning. A signal to the
            # process may be handled by another thread later, and this one would go on until then.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return
    if _orders.driver:
        os.kill(_orders.driver, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # SIGKILL is under way; run nothing further


def hits(name: str) -> int:
    """Return how often this process has reached a configured point since `configure`."""
    return _hits.get(name, 0)


def configure(text: str) -> None:
    """Replace this process's rules; for tests that cannot set the environment first."""
    _begin(replace(Orders.from_environment(), rules=text))


def for_tasks() -> Orders | None:
    """Return the configuration for tasks of this process, by its current environment; None: tasks
    use their own environment."""
    orders = Orders.from_environment()
    return replace(orders, driver=os.getpid()) if orders.rules else None


def obey(orders: Orders | None) -> None:
    """Apply the configuration from `for_tasks`. A worker serves many drivers: a changed
    configuration restarts the hit counts."""
    wanted = orders or Orders.from_environment()
    if wanted != _orders:
        _begin(wanted)


def _begin(orders: Orders) -> None:
    global _orders, _rules
    _orders, _rules = orders, _parse(orders.rules)
    _hits.clear()
