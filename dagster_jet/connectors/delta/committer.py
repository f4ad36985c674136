"""Phase 2 of a table: one version of its log names the files of all epochs, with the marker.

    look: is the marker there? -> are the files there? -> commit on the version looked at -> look

Nothing is concluded from an error of a commit: the answer may be lost, or the request may be
carried out late, by a process that died meanwhile. Such a late commit carries the marker of the
same sink, so the library refuses whichever of the two comes second.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_jet.connectors.delta.columns import Columns, columns_of_rows
from dagster_jet.connectors.delta.data_folder import DataFolder, columns_in, data_folder
from dagster_jet.connectors.delta.fitness import unfit
from dagster_jet.connectors.delta.staged_file import data_file_of, path_in
from dagster_jet.connectors.delta.staged_names import Owner, StagedName, line_of, marker_of
from dagster_jet.connectors.delta.table_log import TableLog, errors_named, text_of_error
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.contract import CommitContext, Committer
from dagster_jet.errors import (
    ArtifactLostError,
    FencedError,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.backoff import attempts
from dagster_jet.system.failpoint import fail_point

_ATTEMPTS_MAX = 5


@dataclass
class DeltaCommitter(Committer):
    """Committer of one execution. It keeps the log as it was last looked at."""

    url: str
    storage_options: StorageOptions
    owner: Owner
    columns: Columns | None
    """The table's columns as of the start, which the rows fit; None: not known."""
    _log: TableLog | None = None
    _table_id: str | None = None
    _facts: dict[str, int] = field(default_factory=dict)

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        if not artifacts:
            return
        newest = max(artifact.epoch_id for artifact in artifacts)
        failure: Exception | None = None
        for _ in attempts(_ATTEMPTS_MAX):
            with errors_named(self.url, context.job, context.sink):
                log = self._looked_at(context)
                pending = self._pending(log, artifacts, context)
                if not pending:
                    self._folder.sync_log(log.version)
                    self._facts = {
                        "table_version": log.version,
                        "files": len(artifacts),
                        "rows": sum(artifact.rows for artifact in artifacts),
                        "bytes": sum(artifact.bytes for artifact in artifacts),
                    }
                    return
                there = self._those_there(pending, context)
                self._check_fits(log, there, context)
                files = [data_file_of(artifact) for artifact in there]
            fail_point("delta.commit.before")
            try:
                application = self.owner.application(repeatable=context.repeatable)
                marker = marker_of(line_of(context), newest)
                log.append(files, application, marker, _history(pending, context))
            except Exception as error:  # noqa: BLE001 - the log says what has happened
                failure = error
            fail_point("delta.commit.after")
        raise SinkUnavailableError(
            f"the table {self.url!r} takes no version with epoch {newest}: "
            f"{text_of_error(failure) if failure else 'its marker does not appear'}.",
            job=context.job,
            stage=context.sink,
            cure="If other writers keep changing the table, let them pause. Nothing is lost: the "
            "commit is repeated.",
        ) from failure

    def output_facts(self) -> Mapping[str, int]:
        return self._facts

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        newest = max((artifact.epoch_id for artifact in artifacts), default=0)
        application = self.owner.application(repeatable=context.repeatable)
        with errors_named(self.url, context.job, context.sink):
            log = TableLog.open(self.url, self._folder.options())
        wanted = marker_of(line_of(context), newest)
        return log is not None and log.marker(application) >= wanted

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        kept = {path_in(token) for token in keep}
        mine = self.owner.short
        with errors_named(self.url, context.job, context.sink):
            log = TableLog.open(self.url, self._folder.options())
            ids = [self.owner.application(repeatable=is_so) for is_so in (False, True)]
            markers = [-1 if log is None else log.marker(id) for id in ids]

            def is_orphan(path: str) -> bool:
                named = StagedName.of(path)
                return (
                    named is not None
                    and named.owner == mine
                    and named.execution_id < context.execution_id
                    and path not in kept
                    and not named.may_be_committed(*markers)
                )

            found = {path for path in self._folder.paths(f"part-{mine}-") if is_orphan(path)}
            if found and log is not None:
                found -= log.paths()  # in case that another program has set the marker back
            self._folder.remove(found)
            return len(found) + self._folder.remove_unfinished(is_orphan)

    @property
    def _folder(self) -> DataFolder:
        return data_folder(self.url, self.storage_options)

    def _looked_at(self, context: CommitContext) -> TableLog:
        """Returns the newest version of the log."""
        log, self._log = self._log, None
        if log is None or not log.look():
            log = TableLog.open(self.url, self._folder.options())  # with credentials of this moment
        if log is None or self._table_id not in (None, log.id):
            raise SinkError(
                f"the table {self.url!r} is {'gone' if log is None else 'another one now'}.",
                job=context.job,
                stage=context.sink,
                cure="Bring it back. Meanwhile the job restarts. Nothing is lost: what is staged "
                "is committed then.",
            )
        self._log, self._table_id = log, log.id
        return log

    def _pending(
        self, log: TableLog, artifacts: Collection[Artifact], context: CommitContext
    ) -> list[Artifact]:
        """Returns the artifacts of epochs above the marker."""
        marker = log.marker(self.owner.application(repeatable=context.repeatable))
        line = line_of(context)
        if marker >= marker_of(line + 1, 0) and not context.repeatable:
            raise FencedError(
                f"the table {self.url!r} has commits of a later timeline than {line}.",
                job=context.job,
                stage=context.sink,
            )
        return [one for one in artifacts if marker_of(line, one.epoch_id) > marker]

    def _check_fits(self, log: TableLog, there: Sequence[Artifact], context: CommitContext) -> None:
        """Checks a table that others may have changed since the rows were staged."""
        why, columns = unfit(log), log.columns()
        for one in there[:1]:  # one execution has staged all of them
            by = data_file_of(one).partition.keys()
            if why is None and by != set(log.partition_by):
                why = f"it is partitioned by {', '.join(log.partition_by) or 'nothing'}"
            if why is None and (context.recovering or columns != self.columns):
                why = self._misfit(columns, one)
        if why is not None:
            raise SinkMismatchError(
                f"the table {self.url!r} has changed since the rows were staged: {why}.",
                job=context.job,
                stage=context.sink,
                cure="Undo the change. Nothing is lost: the next start commits what is staged.",
            )

    def _misfit(self, columns: Columns, staged: Artifact) -> str | None:
        """Returns why a staged file does not fit the table; its columns are in its footer. A column
        that the table has got since is null."""
        found = columns_in(self.url, self.storage_options, staged.target)
        if columns.not_null - set(found.names) - data_file_of(staged).partition.keys():
            return "it has a column more that is never null"
        known = {name: columns.types[name] for name in found.names if name in columns.types}
        return Columns(known).misfit(columns_of_rows(found))

    def _those_there(self, pending: Sequence[Artifact], context: CommitContext) -> list[Artifact]:
        """Returns the artifacts whose files are there, whole. The library does not look."""
        sizes = self._folder.sizes([artifact.target for artifact in pending])
        there = [a for a, size in zip(pending, sizes, strict=True) if size == a.bytes]
        for lost in [artifact for artifact in pending if artifact not in there]:
            if not context.accept_loss:
                raise ArtifactLostError(
                    f"epoch {lost.epoch_id}: the staged file with {lost.rows} rows is gone from "
                    f"the table {self.url!r}, or has another size.",
                    job=context.job,
                    stage=context.sink,
                    position=lost.target,
                    cure="Bring the file back: VACUUM with a retention shorter than the job was "
                    "down removes staged files. Or continue without these rows with the start "
                    "option accept_loss=True.",
                )
            context.report_lost(lost)
        return there


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
