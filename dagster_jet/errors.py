"""Tree of all errors; each class defines the reaction of the job.

    JetError
    ├── ConfigurationError            fix: raised before anything runs
    │   ├── PipelineError             the pipeline itself is wrong (two stages of one name, ...)
    │   └── MissingEnvironmentError   Java or a Python package is missing
    ├── StoreError
    │   ├── StoreUnavailableError     restart: too few members answer
    │   ├── StoreUnwritableError      fix: a member cannot be created or written
    │   ├── StoreCorruptedError       fix: all copies of a value are missing or damaged
    │   ├── StoreMismatchError        fix: made with other settings, or by a newer version
    │   ├── MembersChangedError   restart: the store's members have changed; reopen it
    │   ├── WriteOutcomeUnknownError  restart: a register write may or may not have happened
    │   └── FencedError               stop: a newer execution owns the job
    ├── LeaseHeldError                stop: another execution of the job is alive
    ├── SnapshotFailedError           retry: this snapshot is discarded, the job continues
    ├── SnapshotInvalidError          fix: the snapshot to restore from is not complete
    ├── ArtifactLostError             fix: a sink lost output that it had staged
    ├── SinkError                     restart: a sink cannot be written now
    │   ├── SinkUnavailableError      retry: a sink cannot take a commit now
    │   ├── SinkMismatchError         fix: the sink's place is not the one staged for
    │   │   └── RowsRefusedError      fix: a sink refuses some of the decided rows
    │   │       └── ReferenceMissingError  fix: a row refers to a missing row
    │   └── OutputLostError           fix: committed output has disappeared
    ├── SourceError                   fix: a source is missing or its input changed
    │   ├── InputLostError            fix: input disappeared before a snapshot had it
    │   └── SourceUnavailableError    retry: a source cannot be read now (an epoch: restart)
    ├── BadRowError                   fix: a row does not fit the schema
    ├── ResultError                   fix: a result does not fit its type
    ├── UserFunctionError             fix: a user's function raised
    ├── ProcessorError                fix: a processor violated its contract, or raised
    ├── ExecutorLostError             restart: a Spark task, executor or local state file is gone
    ├── JobFailedError                fix: a job of another process ended with an error
    └── JobStateError                 fix: the call does not fit the job's status

A message names the job, stage and position if they are known, states the expectation, and ends with
the cure.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from enum import Enum

_NOT_THE_USERS = (os.path.dirname(__file__), sysconfig.get_paths()["stdlib"], "<frozen ")


def is_of_user(file: str) -> bool:
    """Whether code is the user's, by its file."""
    is_installed = f"{os.sep}site-packages{os.sep}" in file or ".zip" in file
    return not is_installed and not file.startswith(_NOT_THE_USERS)


def where_raised(error: BaseException) -> str:
    """Returns the place in the user's code at which an exception was raised: file, line and code.

    Empty if no frame of it is the user's: frames of this library, of the standard library and of
    installed packages are not.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_of_user(frame.filename):
            code = f" `{frame.line}`" if frame.line else ""
            return f"{frame.filename}:{frame.lineno}{code}: "
    return ""


class Reaction(Enum):
    """Reaction of a job to an error."""

    RETRY = "retry"
    """Retry the same step later; processing continues."""
    RESTART = "restart"
    """Start a new execution from the last snapshot."""
    FAIL = "fail"
    """End, or suspend with ``suspend_on_failure``; an operator must change something first."""
    STOP = "stop"
    """End without further effects: this execution no longer owns the job."""


class JetError(Exception):
    """Base class of all errors that this library raises deliberately."""

    reaction: Reaction = Reaction.FAIL

    def __init__(
        self,
        message: str,
        *,
        job: str | None = None,
        stage: str | None = None,
        position: str | None = None,
        cure: str | None = None,
    ) -> None:
        message = re.sub(r"(?<!\.)\.\.$", ".", message)  # it ends with another's whole sentence
        self.message, self.cure = message, cure
        self.job, self.stage, self.position = job, stage, position
        where = ", ".join(
            f"{label} {value!r}"
            for label, value in (("job", job), ("stage", stage), ("position", position))
            if value is not None
        )
        text = f"{where}: {message}" if where else message
        super().__init__(f"{text} {cure}" if cure else text)
        self.page: str | None = None

    def see(self, page: str) -> None:
        """Adds the page with more information to the message; only the first call counts."""
        if self.page is None:
            self.page = page
            self.args = (f"{self} See {page}.",)


class ConfigurationError(JetError):
    """A setting or a definition is wrong; nothing has run."""


class PipelineError(ConfigurationError):
    """The pipeline as written cannot be planned."""


class MissingEnvironmentError(ConfigurationError):
    """A requirement outside Python is missing: Java, an optional package, a folder."""


class StoreError(JetError):
    """Base class of errors between the engine and the store's members."""

    was_not_applied = False
    """True if the failed write has certainly changed nothing; otherwise that is not known."""


class StoreUnavailableError(StoreError):
    """Too few members answered; the operation had no effect that counts."""

    reaction = Reaction.RESTART


class StoreUnwritableError(StoreError):
    """A member's place cannot be created or written."""


class StoreCorruptedError(StoreError):
    """Every replica of a value is missing or fails its checksum."""


class StoreMismatchError(StoreError):
    """The store was created with other settings, or by a newer version."""


class MembersChangedError(StoreError):
    """Members have joined or left the store since it was opened; open it again.

    A write that ends with this error may or may not have taken effect.
    """

    reaction = Reaction.RESTART


class WriteOutcomeUnknownError(StoreError):
    """A register write may or may not have taken effect; neither commit nor clean up."""

    reaction = Reaction.RESTART


class FencedError(StoreError):
    """A newer execution holds the register; this one may no longer decide."""

    reaction = Reaction.STOP


class LeaseHeldError(JetError):
    """Another execution of the same job is alive."""

    reaction = Reaction.STOP


class SnapshotFailedError(JetError):
    """Phase 1 failed before the decision point: the snapshot is discarded, the job continues."""

    reaction = Reaction.RETRY


class SnapshotInvalidError(JetError):
    """The snapshot that the record names cannot be restored completely."""


class ArtifactLostError(JetError):
    """A sink has lost what phase 1 staged, and no marker shows that it was committed."""


class SinkError(JetError):
    """A sink cannot be written now; the last snapshot is intact."""

    reaction = Reaction.RESTART


class SinkUnavailableError(SinkError):
    """A sink cannot take a commit now; phase 2 is retried in place."""

    reaction = Reaction.RETRY


class SinkMismatchError(SinkError):
    """A sink's place belongs to another job, or is not the one that phase 1 staged for."""

    reaction = Reaction.FAIL


class OutputLostError(SinkError):
    """Output that was committed to a sink has disappeared from it."""

    reaction = Reaction.FAIL


class RowsRefusedError(SinkMismatchError):
    """A sink refuses some of the decided rows; it would take others."""


class ReferenceMissingError(RowsRefusedError):
    """A row refers to a missing row; retried after other sinks have committed."""


class SourceError(JetError):
    """A source is missing, or its input changed before the position already read."""


class InputLostError(SourceError):
    """Input disappeared before it was part of a decided snapshot."""


class SourceUnavailableError(SourceError):
    """A source cannot be read now; nothing indicates that its input has changed."""

    reaction = Reaction.RETRY


class BadRowError(JetError):
    """A row does not fit its schema."""


class ResultError(JetError):
    """A result, or the stored part of it, does not fit its type."""


class UserFunctionError(JetError):
    """A user's function raised."""


class ProcessorError(JetError):
    """A processor violated its contract or raised in a callback.

    If the cause is a `JetError` the job reacts to that; otherwise it fails, because the same call
    would fail again. Nothing of the snapshot in progress counts.
    """

    def __init__(
        self,
        message: str,
        *,
        vertex: str,
        index: int,
        callback: str,
        cure: str | None = None,
        job: str | None = None,
    ) -> None:
        self.vertex, self.index, self.callback = vertex, index, callback
        super().__init__(
            message, job=job, stage=vertex, position=f"processor {index}, {callback}", cure=cure
        )

    @classmethod
    def of(
        cls,
        raised: BaseException,
        *,
        vertex: str,
        index: int,
        callback: str,
        job: str | None = None,
        whose: str = "processor",
    ) -> ProcessorError:
        """Wraps an exception of a user's code, with its reaction; raise the result from it."""
        error = cls(
            f"{where_raised(raised)}raised {type(raised).__name__}: {raised}",
            vertex=vertex,
            index=index,
            callback=callback,
            cure=f"The {whose}'s own code is at the end of the traceback above.",
            job=job,
        )
        if isinstance(raised, JetError):
            error.reaction = raised.reaction
        return error

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(kind: type[JetError], args: tuple[object, ...], state: dict[str, object]) -> JetError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ExecutorLostError(JetError):
    """A task, an executor or a local state file is lost; the last snapshot is intact."""

    reaction = Reaction.RESTART


class JobFailedError(JetError):
    """A job of another process ended with an error; the message is from its record."""


class JobStateError(JetError):
    """The call does not fit the job's status."""
