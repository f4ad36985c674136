"""Phase 2 of a table: one version of its metadata names the files of all epochs, with the marker.

    look: is the marker there? -> are the files there? -> commit on the version looked at -> look

Nothing is concluded from an error of a commit: the answer may be lost, or the request may be
carried out late, by a process that died meanwhile. Such a late commit is refused by the format,
because the version that it was made for is not the newest one any more. After a commit without an
error the last look is at the file of its version only, where the format has one.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from dagster_jet.connectors.lake.data_folder import DataFolder
from dagster_jet.connectors.lake.gathering import Gathered, GatherFiles, Gathering
from dagster_jet.connectors.lake.staged_file import path_in
from dagster_jet.connectors.lake.staged_names import Owner, StagedName, line_of, marker_of
from dagster_jet.contract import CommitContext, Committer, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    FencedError,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.backoff import attempts
from dagster_jet.system.failpoint import fail_point

ATTEMPTS_MAX = 5
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Version(Protocol):
    """A table as of a look at it."""

    @property
    def id(self) -> str:
        """Identifies the table: another one at the same place has another id."""
        ...

    def marker(self, application: str) -> int:
        """Returns the newest marker of a sink; -1 before its first."""
        ...

    def paths(self) -> set[str]:
        """Returns the paths of the data files that readers may need, in the data folder."""
        ...

    def ddl(self) -> str:
        """Returns the columns as DDL.

        Raises:
            ConfigurationError: Spark has no type for one of them.
        """
        ...


V = TypeVar("V", bound=Version)


@dataclass(frozen=True)
class Change(Generic[V]):
    """Staged files that a table lacks, as of a look at it."""

    version: V
    staged: Sequence[Artifact]
    application: str
    marker: int
    facts: Mapping[str, str]
    """Shown in the table's history."""
    replaced: Sequence[Artifact] = ()
    """Staged files whose rows are in others of `staged`."""


@dataclass
class TableCommitter(Committer, Generic[V]):
    """Committer of one execution. It keeps the table as it was last looked at."""

    lost_by: ClassVar[str]
    """Command that removes staged files."""

    table: str
    """Named in errors."""
    owner: Owner
    gathering: Gathering | None = field(default=None, init=False)
    """How small staged files are written together; None: they are not."""
    _gathered: Gathered | None = field(default=None, init=False)
    """Files that were written together for the commit that is being tried."""
    _accepted: Change[V] | None = field(default=None, init=False)
    """The last change that the table has certainly taken."""
    _last: V | None = field(default=None, init=False)
    _table_id: str | None = field(default=None, init=False)
    _markers: dict[str, int] = field(default_factory=dict, init=False)
    """By application: the newest marker that this execution has found or written. A lower one
    belongs to a table that came back older."""
    _facts: Mapping[str, int | str] = field(default_factory=dict, init=False)

    # --- what the formats differ in ---

    @abstractmethod
    def errors_named(self, context: CommitContext) -> AbstractContextManager[None]:
        """Converts errors of the library and of the place to `JetError`."""

    @abstractmethod
    def open(self) -> V | None:
        """Returns the newest version; None if there is no table."""

    def go_on(self, version: V) -> V | None:
        """Returns the newest version, from an earlier one; None: it has to be opened."""
        return None

    @abstractmethod
    def folder(self, version: V | None, staged: Sequence[Artifact]) -> DataFolder | None:
        """Returns the folder of the staged files, or the one that tasks write to now; None: there
        is no table that says it."""

    @abstractmethod
    def misfit(self, version: V, staged: Sequence[Artifact], context: CommitContext) -> str | None:
        """Returns why the staged files do not fit a table that others may have changed since."""

    def plan(self, version: V, staged: Sequence[Artifact], context: CommitContext) -> None:
        """Does what a commit needs and takes long, right before `append`.

        Raises:
            JetError: a piece of it has failed.
        """

    def gather(
        self, version: V, staged: Sequence[Artifact], transaction: TransactionId
    ) -> GatherFiles:
        """Returns what writes staged files together, in the table's present layout."""
        raise NotImplementedError

    @abstractmethod
    def append(self, change: Change[V]) -> None:
        """Commits files and marker together, on the version that was looked at."""

    def taken(self, change: Change[V]) -> V | None:
        """Returns the version with a change that was committed, if it is found without a look at
        the whole table; None: the table is looked at."""
        return None

    @abstractmethod
    def facts(self, version: V) -> Mapping[str, int | str]:
        """Returns what readers name a version by, `table_history`, which is the file or folder with
        the table's versions, and `time_travel`, the query of this version."""

    def made_durable(self, version: V) -> None:
        """Called with the version that has the output, before it counts as committed."""

    def finished(self, version: V, artifacts: Collection[Artifact]) -> None:
        """Called when a version has the artifacts, maybe again: removes what is not needed now."""

    def is_orphan(self, named: StagedName, markers: Sequence[int]) -> bool:
        """Returns whether a file of an earlier execution, which no manifest names, may go.

        Args:
            markers: those of exactly-once and of at-least-once.
        """
        return not named.may_be_committed(*markers)

    # --- what they share ---

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        if not artifacts:
            return
        failure: Exception | None = None
        for _ in attempts(ATTEMPTS_MAX, budget_s=math.inf):  # a merge may take long
            change = self.lacking(artifacts, context)
            if change is None:
                return
            fail_point("lake.commit.before")
            version = None
            try:
                self.append(change)
                self.accepted(change)
                version = self.taken(change)
            except Exception as error:  # noqa: BLE001 - the table says what has happened
                failure = error
            fail_point("lake.commit.after")
            if version is not None:
                with self.errors_named(context):
                    self._has_all(version, artifacts)
                return
        raise not_taken([self.table], newest_of(artifacts), context, failure)

    def lacking(self, artifacts: Collection[Artifact], context: CommitContext) -> Change[V] | None:
        """Looks at the table. Returns what it lacks, ready to be committed; None: it lacks nothing.

        Raises:
            JetError: it must not be committed, or cannot be now.
        """
        with self.errors_named(context):
            version = self._looked_at(context)
            pending = self._pending(version, artifacts, context)
            if not pending:
                self._has_all(version, artifacts)
                return None
            there = self._those_there(version, pending, context)
            self._check_fits(version, there, context)
            gathered = self._written_together(version, there, context)
            there = list(gathered.named)
            self.plan(version, there, context)
        application = self.owner.application(repeatable=context.repeatable)
        marker = marker_of(line_of(context), newest_of(artifacts))
        facts = _history(pending, context)
        return Change(version, there, application, marker, facts, gathered.replaced)

    def accepted(self, change: Change[V]) -> None:
        """Called when the table has certainly taken a change, by this request and no other one."""
        self._accepted, self._markers[change.application] = change, change.marker

    def _written_together(
        self, version: V, staged: Sequence[Artifact], context: CommitContext
    ) -> Gathered:
        """Writes small files together, if that is asked for. A repeated try finds what the last one
        has written."""
        tokens = tuple(one.token for one in staged)
        if self.gathering is None or context.repeatable or len(staged) < 2:
            return Gathered(tokens, staged, ())
        known = self._gathered
        if known is None or known.of != tokens or not self._are_whole(version, known.named):
            by = (context.job, context.sink, context.timeline, context.execution_id)
            transaction = TransactionId(*by, newest_of(staged), 0, "gather")
            like = self.gather(version, staged, transaction)
            fail_point("lake.gather.before")
            known = self._gathered = self.gathering.gathered(like, context)
        return known

    def output_facts(self) -> Mapping[str, int | str]:
        """Returns facts about the version that has the output: those of `facts`, and files, rows
        and bytes that were staged for it. After `has_committed` it is the table's newest version,
        and `schema` has its columns."""
        return self._facts

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        newest = max((artifact.epoch_id for artifact in artifacts), default=0)
        application = self.owner.application(repeatable=context.repeatable)
        with self.errors_named(context):
            version = self.open()
            wanted = marker_of(line_of(context), newest)
            marker = -1 if version is None else version.marker(application)
            if version is None or marker < wanted:
                return False
            self._markers[application] = marker
            self._facts = {**self.facts(version), **_counts(artifacts), **_schema_of(version)}
        return True

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        with self.errors_named(context):
            version = self.open()
            folder = self.folder(version, ())
            if folder is None:
                return 0
            is_orphan = self._orphans(version, context, {path_in(token) for token in keep})
            found = {path for path in folder.paths(self.owner.beginning) if is_orphan(path)}
            if found and version is not None:
                found -= version.paths()  # in case that another program has set the marker back
            folder.remove(found)
            return len(found) + folder.remove_unfinished(is_orphan)

    def _orphans(
        self, version: V | None, context: CommitContext, kept: Collection[str]
    ) -> Callable[[str], bool]:
        """Returns whether a path is of an earlier execution that has not committed it."""
        ids = [self.owner.application(repeatable=is_so) for is_so in (False, True)]
        markers = [-1 if version is None else version.marker(id) for id in ids]

        def is_orphan(path: str) -> bool:
            named = StagedName.of(path)
            return (
                named is not None
                and named.owner == self.owner.short
                and named.execution_id < context.execution_id
                and path not in kept
                and self.is_orphan(named, markers)
            )

        return is_orphan

    def _looked_at(self, context: CommitContext) -> V:
        """Returns the newest version."""
        last, self._last = self._last, None
        version = None if last is None else self.go_on(last)
        if version is None:
            version = self.open()  # with credentials of this moment
        if version is None or self._table_id not in (None, version.id):
            raise SinkError(
                f"the table {self.table!r} is {'gone' if version is None else 'another one now'}.",
                job=context.job,
                stage=context.sink,
                cure="Bring it back. Meanwhile the job restarts. Nothing is lost: what is staged "
                "is committed then.",
            )
        self._last, self._table_id = version, version.id
        return version

    def _has_all(self, version: V, artifacts: Collection[Artifact]) -> None:
        self.made_durable(version)
        change, self._accepted, self._gathered = self._accepted, None, None
        named = artifacts if change is None or not change.replaced else change.staged
        self._facts = {**self.facts(version), **_counts(named)}
        self.finished(version, artifacts)
        if change is not None and change.replaced:
            fail_point("lake.gather.after")
            folder = self.folder(version, change.replaced)
            with suppress(OSError):  # what stays is removed by maintenance
                assert folder is not None, "they were staged there"
                folder.remove([one.target for one in change.replaced])

    def _pending(
        self, version: V, artifacts: Collection[Artifact], context: CommitContext
    ) -> list[Artifact]:
        """Returns the artifacts of epochs above the marker. What an older snapshot has held back
        was staged on the timeline in its name: by that it may be committed already."""
        application = self.owner.application(repeatable=context.repeatable)
        marker, line = version.marker(application), line_of(context)
        if marker < self._markers.get(application, marker):
            raise SinkError(
                f"the table {self.table!r} lacks epochs that this execution has committed: it was "
                "restored from an older copy, or its catalog or log was. Nothing is committed.",
                job=context.job,
                stage=context.sink,
                cure="The job restarts, and the start compares the table with the job's record.",
            )
        self._markers[application] = marker

        def marker_for(one: Artifact) -> int:
            named = None if context.repeatable else StagedName.of(one.target)
            return marker_of(line if named is None else named.timeline, one.epoch_id)

        if marker >= marker_of(line + 1, 0) and not context.repeatable:
            raise FencedError(
                f"the table {self.table!r} has commits of a later timeline than {line}.",
                job=context.job,
                stage=context.sink,
            )
        return [one for one in artifacts if marker_for(one) > marker]

    def _check_fits(self, version: V, there: Sequence[Artifact], context: CommitContext) -> None:
        why = self.misfit(version, there, context)
        if why is not None:
            raise SinkMismatchError(
                f"the table {self.table!r} has changed since the rows were staged: {why}.",
                job=context.job,
                stage=context.sink,
                cure="Undo the change. Nothing is lost: the next start commits what is staged.",
            )

    def _those_there(
        self, version: V, pending: Sequence[Artifact], context: CommitContext
    ) -> list[Artifact]:
        """Returns the artifacts whose files are there, whole. The libraries do not look."""
        there = self._whole(version, pending)
        for lost in [artifact for artifact in pending if artifact not in there]:
            if not context.accept_loss:
                raise ArtifactLostError(
                    f"epoch {lost.epoch_id}: the staged file with {lost.rows} rows is gone from "
                    f"the table {self.table!r}, or has another size.",
                    job=context.job,
                    stage=context.sink,
                    position=lost.target,
                    cure=f"Bring the file back: {self.lost_by} with a retention shorter than the "
                    "job was down removes staged files. Or continue without these rows with the "
                    "start option accept_loss=True.",
                )
            context.report_lost(lost)
        return there

    def _are_whole(self, version: V, staged: Sequence[Artifact]) -> bool:
        return len(self._whole(version, staged)) == len(staged)

    def _whole(self, version: V, staged: Sequence[Artifact]) -> list[Artifact]:
        """Returns those whose files are there with their sizes."""
        folder = self.folder(version, staged)
        paths = [artifact.target for artifact in staged]
        sizes = [None] * len(paths) if folder is None else folder.sizes(paths)
        return [a for a, size in zip(staged, sizes, strict=True) if size == a.bytes]


def not_taken(
    tables: Sequence[str], newest: int, context: CommitContext, failure: Exception | None
) -> SinkUnavailableError:
    """Returns the error of tables of which one has refused each attempt."""
    error = SinkUnavailableError(
        f"the table {' or '.join(map(repr, tables))} takes no version with epoch {newest}: "
        f"{first_line(failure) if failure else 'its marker does not appear'}.",
        job=context.job,
        stage=context.sink,
        cure="If other writers keep changing the table, let them pause. Nothing is lost: the "
        "commit is repeated.",
    )
    error.__cause__ = failure
    return error


def newest_of(artifacts: Collection[Artifact]) -> int:
    """Returns the newest epoch."""
    return max(artifact.epoch_id for artifact in artifacts)


def first_line(error: Exception) -> str:
    """Returns the first line of a library's message."""
    lines = _COLOURS.sub("", str(error)).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def time_travel(function: str, place: str, at: str) -> str:
    """Returns the query by which DuckDB reads one version of a table.

    Example:
        >>> time_travel("delta_scan", "/lake/o'hare", "version = 42")
        "SELECT * FROM delta_scan('/lake/o''hare', version = 42)"
    """
    quoted = place.replace("'", "''")
    return f"SELECT * FROM {function}('{quoted}', {at})"


def _schema_of(version: Version) -> Mapping[str, str]:
    """Returns nothing if another program has added a column that Spark has no type for."""
    try:
        return {"schema": version.ddl()}
    except ConfigurationError:
        return {}


def _counts(artifacts: Collection[Artifact]) -> Mapping[str, int]:
    return {
        "files": len(artifacts),
        "rows": sum(artifact.rows for artifact in artifacts),
        "bytes": sum(artifact.bytes for artifact in artifacts),
    }


def _history(pending: Sequence[Artifact], context: CommitContext) -> Mapping[str, str]:
    """Returns what the table's history shows."""
    epochs = {artifact.epoch_id for artifact in pending}
    return {
        "dagster_jet.job": context.job,
        "dagster_jet.sink": context.sink,
        "dagster_jet.timeline": str(context.timeline),
        "dagster_jet.execution": str(context.execution_id),
        "dagster_jet.epochs": f"{min(epochs)}-{max(epochs)}",
        "dagster_jet.rows": str(sum(artifact.rows for artifact in pending)),
    }
