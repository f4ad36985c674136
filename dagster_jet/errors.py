"""One error tree; each class says how the job reacts.

    JetError
    ├── ConfigurationError            fix: raised before anything runs
    │   ├── PipelineError             the pipeline itself is wrong (two stages of one name, ...)
    │   └── MissingEnvironmentError   Java or a Python package is missing
    ├── StoreError
    │   ├── StoreUnavailableError     restart: too few members answer
    │   ├── StoreUnwritableError      fix: a member cannot be created or written
    │   ├── StoreCorruptedError       fix: no good copy of a value is left
    │   ├── StoreMismatchError        fix: made with other settings, or by a newer version
    │   ├── StaleConfigurationError   restart: the store's members have changed; open it again
    │   ├── WriteOutcomeUnknownError  restart: a register write may or may not have happened
    │   └── FencedError               stop: a newer execution owns the job
    ├── LeaseHeldError                stop: another execution of the job is alive
    ├── SnapshotFailedError           retry: this snapshot is discarded, the job lives
    ├── SnapshotInvalidError          fix: the snapshot to restore from is not whole
    ├── ArtifactLostError             fix: a sink lost what it had promised to commit
    ├── SinkError                     restart: a sink's place cannot be written now
    │   ├── SinkUnavailableError      retry: it cannot take a commit just now
    │   ├── SinkMismatchError         fix: the place is not the one that was written for
    │   │   └── RowsRefusedError      fix: the place refuses some of the rows that are decided
    │   │       └── ReferenceMissingError  fix: a row refers to one that is not there (yet)
    │   └── OutputLostError           fix: committed output is gone from the place
    ├── SourceError                   fix: a source's input is not what it was
    │   ├── InputLostError            fix: input is gone that no snapshot has yet
    │   └── SourceUnavailableError    retry: it cannot be read now (an epoch: restart)
    ├── BadRowError                   fix: a row does not fit the schema
    ├── ResultError                   fix: a result does not fit its type
    ├── UserFunctionError             fix: a user's function raised
    ├── ProcessorError                fix: a processor broke its contract, or raised
    ├── ExecutorLostError             restart: a Spark task, executor or local state file is gone
    ├── JobFailedError                fix: a job elsewhere has ended with an error
    └── JobStateError                 fix: the call does not fit the job's status

A message names the job, the stage and the position where they are known, says what was
expected, and ends with the cure.
"""

from __future__ import annotations

from enum import Enum


class Reaction(Enum):
    """What a job does when it meets an error."""

    RETRY = "retry"
    """Try the same step again later; processing continues."""
    RESTART = "restart"
    """Begin a new execution from the last snapshot."""
    FAIL = "fail"
    """End (or suspend, with ``suspend_on_failure``); a person must change something first."""
    STOP = "stop"
    """End quietly: this execution no longer owns the job and must not touch anything."""


class JetError(Exception):
    """Root of every error this library raises on purpose."""

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
        """Ends the error with the page that says more; the first one stays."""
        if self.page is None:
            self.page = page
            self.args = (f"{self} See {page}.",)


class ConfigurationError(JetError):
    """A setting or a definition is wrong; nothing has run."""


class PipelineError(ConfigurationError):
    """The pipeline as written cannot be planned."""


class MissingEnvironmentError(ConfigurationError):
    """Something outside Python is missing: Java, an optional package, a folder."""


class StoreError(JetError):
    """Root of what can go wrong between the engine and the store's members."""


class StoreUnavailableError(StoreError):
    """Too few members answered; the operation had no effect that counts."""

    reaction = Reaction.RESTART


class StoreUnwritableError(StoreError):
    """A member's place cannot be created or written to."""


class StoreCorruptedError(StoreError):
    """Every replica of a value is missing or fails its checksum."""


class StoreMismatchError(StoreError):
    """The store was created with other settings, or by a newer version."""


class StaleConfigurationError(StoreError):
    """The store's members have changed since it was opened: open it again.

    A write that ends so may or may not have taken effect.
    """

    reaction = Reaction.RESTART


class WriteOutcomeUnknownError(StoreError):
    """A register write may or may not have taken effect: neither commit nor clean up."""

    reaction = Reaction.RESTART


class FencedError(StoreError):
    """A newer execution holds the register; this one has lost its right to decide."""

    reaction = Reaction.STOP


class LeaseHeldError(JetError):
    """Another execution of the same job is alive."""

    reaction = Reaction.STOP


class SnapshotFailedError(JetError):
    """Phase 1 failed before the decision point: the snapshot is discarded, the job lives."""

    reaction = Reaction.RETRY


class SnapshotInvalidError(JetError):
    """The snapshot named by the record cannot be restored whole."""


class ArtifactLostError(JetError):
    """A sink no longer has what phase 1 left there, and no marker says it was committed."""


class SinkError(JetError):
    """A sink's place cannot be written now; the last snapshot is intact."""

    reaction = Reaction.RESTART


class SinkUnavailableError(SinkError):
    """A sink's place cannot take a commit just now: phase 2 tries again, in place."""

    reaction = Reaction.RETRY


class SinkMismatchError(SinkError):
    """A sink's place is another job's, or not where phase 1 left what is to be committed."""

    reaction = Reaction.FAIL


class OutputLostError(SinkError):
    """A sink's place has come back without output that was committed there."""

    reaction = Reaction.FAIL


class RowsRefusedError(SinkMismatchError):
    """A sink's place refuses some of the rows that are decided; it would take others."""


class ReferenceMissingError(RowsRefusedError):
    """A row refers to one that is not there: tried again once other sinks have committed."""


class SourceError(JetError):
    """A source is missing, or changed behind the position already read."""


class InputLostError(SourceError):
    """Input was taken away before a decided snapshot had what was in it."""


class SourceUnavailableError(SourceError):
    """A source's place cannot be read now; nothing says that its input has changed."""

    reaction = Reaction.RETRY


class BadRowError(JetError):
    """A row does not fit its schema."""


class ResultError(JetError):
    """A result, or what is kept of it, does not fit its type."""


class UserFunctionError(JetError):
    """A user's function raised."""


class ProcessorError(JetError):
    """A processor broke its contract or raised in a callback.

    The job reacts as to the error behind it where that is a `JetError`; otherwise it fails,
    because the same call would end the same way again. Nothing of the snapshot in progress counts.
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
        """What a user's own code raised, with its reaction; raise it from that."""
        error = cls(
            f"raised {type(raised).__name__}: {raised}",
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
    """A task, an executor or a local state file is gone; the last snapshot is intact."""

    reaction = Reaction.RESTART


class JobFailedError(JetError):
    """A job of another process has ended with an error: what its record says of it."""


class JobStateError(JetError):
    """The call does not fit the status the job is in."""
