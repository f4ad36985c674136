"""Phase 2 of an Iceberg table: its catalog gets metadata with one more snapshot, on condition that
the branch has none since the look at it. Tables of one job are committed by one request, where
their catalog has it."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, cast

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.iceberg.catalog import CatalogPlace, errors_named
from dagster_jet.connectors.iceberg.snapshot_expiry import expire_surplus
from dagster_jet.connectors.iceberg.storage import folder_at, place_of
from dagster_jet.connectors.iceberg.table_request import (
    NoRouteError,
    TableRequest,
    commits_several,
    is_rest,
    send_together,
)
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.data_folder import DataFolder
from dagster_jet.connectors.lake.gathering import GatherFiles
from dagster_jet.connectors.lake.lake_committer import (
    ATTEMPTS_MAX,
    Change,
    TableCommitter,
    first_line,
    newest_of,
    not_taken,
)
from dagster_jet.connectors.lake.staged_file import kept_in
from dagster_jet.contract import CommitContext, CommitPart, TransactionId
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.backoff import attempts
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_logger = logging.getLogger(__name__)

_AT_ONCE_MAX = 8
"""Tables that are looked at in parallel."""


@dataclass
class IcebergCommitter(TableCommitter[TableVersion]):
    """Committer of one execution; `table` is the name in the catalog."""

    lost_by: ClassVar[str] = "remove_orphan_files"

    catalog: CatalogPlace
    storage_options: StorageOptions
    branch: str
    is_alone: bool = field(default=False, init=False)
    """Whether the catalog was found to commit one table at a time."""
    _opened: Catalog | None = field(default=None, init=False)

    def errors_named(self, context: CommitContext) -> AbstractContextManager[None]:
        return errors_named(self.table, context.job, context.sink)

    def open(self) -> TableVersion | None:
        """Opens the catalog, too, with the credentials of this moment."""
        self.close()
        return TableVersion.open(self._catalog(), self.table, self.branch)

    def go_on(self, version: TableVersion) -> TableVersion | None:
        try:
            return TableVersion.open(version.table.catalog, self.table, self.branch)
        except Exception:  # noqa: BLE001 - opening the catalog says what is wrong
            return None

    def folder(self, version: TableVersion | None, staged: Sequence[Artifact]) -> DataFolder | None:
        if staged:  # one execution has staged all of them
            return folder_at(kept_in(staged[0])["data"], self.storage_options)
        return None if version is None else folder_at(version.data, self.storage_options)

    def misfit(
        self, version: TableVersion, staged: Sequence[Artifact], context: CommitContext
    ) -> str | None:
        if any(kept_in(one)["table"] != version.id for one in staged):
            return "it is another one now"
        return version.unfit() or version.lacks(staged)

    def gather(
        self, version: TableVersion, staged: Sequence[Artifact], transaction: TransactionId
    ) -> GatherFiles:
        url = place_of(version.data) or version.data
        where = (self.table, url, self.storage_options, self.owner)
        return GatherFiles(*where, version.layout(), transaction, tuple(staged))

    def append(self, change: Change[TableVersion]) -> None:
        self.request(change).send()

    def request(self, change: Change[TableVersion]) -> TableRequest:
        """Returns what commits the change, and writes the manifests for it."""
        version, facts = change.version, change.facts
        return version.append(change.staged, change.application, change.marker, facts)

    def together_with(self) -> CatalogPlace | None:
        return None if self.is_alone else self.catalog

    def commit_together(self, parts: Sequence[CommitPart]) -> bool:
        """Commits all tables by one request of the REST protocol, if the catalog has it, on
        condition that each is as it was looked at. After any error all are looked at again. A
        catalog that has the request by its own word is believed to lack it at the second answer."""
        committers = [cast(IcebergCommitter, one.committer) for one in parts]
        with self.errors_named(parts[0].context):
            why_alone = self._unable()
        if why_alone is not None:
            return self._one_by_one(committers, why_alone)
        failure: Exception | None = None
        with ThreadPoolExecutor(min(len(parts), _AT_ONCE_MAX), "jet-tables") as pool:
            for _ in attempts(ATTEMPTS_MAX, budget_s=math.inf):
                looked = zip(committers, pool.map(_looked_at, parts), strict=True)
                lacking = [(one, change) for one, change in looked if change is not None]
                if not lacking:
                    return True
                if len({change.version.id for _, change in lacking}) < len(lacking):
                    return self._one_by_one(committers, "two sinks write to one table")
                fail_point("lake.together.before")
                try:
                    requests = list(pool.map(lambda it: it[0].request(it[1]), lacking))
                    send_together(self._catalog(), requests)
                    for one, change in lacking:
                        one.accepted(change)
                except NoRouteError as error:
                    if isinstance(failure, NoRouteError):
                        why_alone = f"its server does not know the request: {first_line(error)}"
                        return self._one_by_one(committers, why_alone)
                    failure = error
                    self.close()  # a gateway may have said it, or a token may be over
                except Exception as error:  # noqa: BLE001 - the tables say what has happened
                    failure = error
                fail_point("lake.together.after")
        newest = max(newest_of(one.artifacts) for one in parts)
        raise not_taken([one.table for one in committers], newest, parts[0].context, failure)

    def _unable(self) -> str | None:
        """Returns why the catalog commits one table at a time; None if it does not. "": it is of a
        kind that always does."""
        catalog = self._catalog()
        if not is_rest(catalog):
            return ""
        if not commits_several(catalog):
            return "its server does not name transactions/commit among its endpoints"
        return None

    def _one_by_one(self, committers: Sequence[IcebergCommitter], why: str) -> bool:
        for one in committers:
            one.is_alone = True
        if why:
            _logger.warning(
                "the catalog %s does not commit the tables %s in one step: %s. Readers may see "
                "them at different epochs for a moment",
                self.catalog.name,
                ", ".join(one.table for one in committers),
                why,
            )
        return False

    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = self.catalog.open(self.storage_options)
        return self._opened

    def finished(self, version: TableVersion, artifacts: Collection[Artifact]) -> None:
        """Lets old snapshots expire. A failure is none of the commit's."""
        failure = expire_surplus(version)
        if failure is not None:
            _logger.info(
                "old snapshots of the table %s have not expired: %s. The next commit tries it "
                "again",
                self.table,
                first_line(failure),
            )

    def facts(self, version: TableVersion) -> Mapping[str, int | str]:
        return version.facts()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None


def _looked_at(part: CommitPart) -> Change[TableVersion] | None:
    return cast(IcebergCommitter, part.committer).lacking(part.artifacts, part.context)
