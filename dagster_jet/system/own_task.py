"""Runs the library's own code in Spark tasks: it checks that versions are equal to the driver's,
converts exceptions into errors of the library, and hands these over to the driver."""

from __future__ import annotations

import importlib
import json
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from dagster_jet import errors
from dagster_jet.errors import (
    ExecutorLostError,
    JetError,
    MissingEnvironmentError,
    ProcessorError,
    Reaction,
    UserFunctionError,
    where_raised,
)


def installed() -> dict[str, str]:
    """Return the versions in this process of the packages that pickled tasks depend on."""
    versions = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in ("dagster_jet", "pyarrow"):
        versions[name] = importlib.import_module(name).__version__
    return versions


def check_same(
    drivers: Mapping[str, str], found: Mapping[str, str], host: str, job: str | None = None
) -> None:
    """Raise `MissingEnvironmentError` if the executor on a host has other versions."""
    differing = [name for name in drivers if found[name] != drivers[name]]
    if differing:
        raise MissingEnvironmentError(
            f"the executor on {host} has "
            f"{', '.join(f'{name} {found[name]}' for name in differing)}; the driver has "
            f"{', '.join(f'{name} {drivers[name]}' for name in differing)}.",
            job=job,
            cure="Install the same image, or the same packages, on the executors as on the driver.",
        )


@dataclass(frozen=True)
class OwnTask:
    """A function of this library for `mapInArrow`. Its errors are never attributed to a user.

    Each task compares the versions first: an executor may join after its cluster was checked.
    """

    run: Callable[[Iterable[Any]], Iterator[Any]]
    stage: str | None = None
    """None: not known where the task is created."""
    drivers: Mapping[str, str] = field(default_factory=installed)

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        with handing_over(), at_stage(self.stage):
            check_same(self.drivers, installed(), socket.gethostname())
            yield from self.run(batches)


class TaskError(Exception):
    """A `JetError` on its way to the driver, where only the text of a traceback arrives: as JSON in
    one line, so that no text is searched for what it says."""


_ARRIVED = re.compile(rf"{re.escape(__name__)}\.{TaskError.__name__}: (\{{.*\}})$", re.MULTILINE)


@contextmanager
def handing_over() -> Iterator[None]:
    """Turn every `JetError` into a `TaskError`, which `handed_over` reads."""
    try:
        yield
    except JetError as error:
        kind = next(one for one in type(error).__mro__ if one.__module__ == errors.__name__)
        fields: dict[str, Any] = {"kind": kind.__name__, "reaction": error.reaction.value}
        fields |= {name: getattr(error, name) for name in ("message", "job", "cure")}
        if isinstance(error, ProcessorError):
            fields |= {name: getattr(error, name) for name in ("vertex", "index", "callback")}
        else:
            fields |= {"stage": error.stage, "position": error.position}
        raise TaskError(json.dumps(fields)).with_traceback(error.__traceback__) from error


def handed_over(text: str, job: str) -> JetError | None:
    """Return the last error that tasks of a job have handed over, from the text of a failed Spark
    job; None if none was."""
    found = _ARRIVED.findall(text)
    if not found:
        return None
    fields = json.loads(found[-1])
    kind, reaction = getattr(errors, fields.pop("kind")), Reaction(fields.pop("reaction"))
    error: JetError = kind(**{**fields, "job": fields["job"] or job})
    error.reaction = reaction
    return error


@contextmanager
def naming(stage: str, job: str | None = None) -> Iterator[None]:
    """Add this stage to the library's errors that have none."""
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
    """In a task: convert every exception into a `JetError` of the stage, if that is known.

    Any other exception is attributed to a user.
    """
    try:
        with nullcontext() if stage is None else naming(stage):
            yield
    except JetError:
        raise
    except OSError as error:
        # Operators do no I/O; the code around them reads and writes local state.
        raise ExecutorLostError(
            f"a task could not read or write: {_said(error)}.",
            stage=stage,
            cure="The job restarts from its last snapshot.",
        ) from error
    except SystemExit as error:
        raise UserFunctionError(
            f"{where_raised(error)}a function has ended the process: SystemExit({error}).",
            stage=stage,
            cure="Let it raise an error instead of calling exit(). Nothing of this epoch was "
            "written.",
        ) from error
    except Exception as error:
        raise JetError(
            f"raised {_said(error)}.",
            stage=stage,
            cure="Filter out rows with values that the stage cannot work with; if there are none, "
            "this is a bug in dagster_jet. Nothing of this epoch was written.",
        ) from error


def _said(error: Exception) -> str:
    """Return the error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
