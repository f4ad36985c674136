"""What our own code raises in Spark's tasks: errors of ours, whatever class they had."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from dagster_jet.errors import ExecutorLostError, JetError


@dataclass(frozen=True)
class OwnTask:
    """A function of this library's for `mapInArrow`. What it raises is never taken for a user's."""

    run: Callable[[Iterable[Any]], Iterator[Any]]
    stage: str | None = None
    """None: not known where the task is made."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        with at_stage(self.stage):
            yield from self.run(batches)


@contextmanager
def naming(stage: str, job: str | None = None) -> Iterator[None]:
    """Errors of ours that name no stage are of this one."""
    try:
        yield
    except JetError as error:
        if error.stage is not None:
            raise
        raise type(error)(
            error.message,
            job=error.job or job,
            stage=stage,
            position=error.position,
            cure=error.cure,
        ) from error


@contextmanager
def at_stage(stage: str | None) -> Iterator[None]:
    """In a task: whatever is raised becomes a `JetError` of the stage, if that is known.

    Only the text of it reaches the driver, and what is no `JetError` there is a user's.
    """
    try:
        with nullcontext() if stage is None else naming(stage):
            yield
    except JetError:
        raise
    except OSError as error:
        # Operators do no I/O; what is around them reads and writes local state.
        raise ExecutorLostError(
            f"a task could not read or write: {_said(error)}.",
            stage=stage,
            cure="The job restarts from its last snapshot.",
        ) from error
    except Exception as error:
        raise JetError(
            f"raised {_said(error)}.",
            stage=stage,
            cure="Filter out rows with values that the stage cannot work with; if there are none, "
            "this is a bug in dagster_jet. Nothing of this epoch was written.",
        ) from error


def _said(error: Exception) -> str:
    """In one line: that is what the driver reads."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
