"""A sink whose output is a table of a lake, which is maintained beside the stream."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dagster_jet.connectors.lake import TARGET_FILE_BYTES
from dagster_jet.connectors.lake.gathering import Gathering
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.connectors.lake.table_maintenance import TableMaintenance
from dagster_jet.contract import Sink
from dagster_jet.core.choices import check_known
from dagster_jet.core.durations import Duration, in_words, to_ms
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.hold_back import HoldBack
from dagster_jet.errors import ConfigurationError
from dagster_jet.store import Store

S = TypeVar("S", bound="LakeSink")
EVOLUTIONS = ("stop", "extend")
LONGEST_DELAY_MS = 12 * 3_600_000
"""Longest `max_delay`. Iceberg for Spark (`remove_orphan_files`) takes files that are in no version
once they are a day old, and staged files are in none."""


@dataclass(frozen=True)
class LakeSink(Sink):
    """Sink of a table whose metadata keep the sink's marker."""

    commits_sparingly = True

    schema_evolution: str = field(default="stop", compare=False, repr=False, kw_only=True)
    """Treatment of columns that the table lacks, at the start: one of `EVOLUTIONS`."""
    target_file_bytes: int = field(
        default=TARGET_FILE_BYTES, compare=False, repr=False, kw_only=True
    )
    """Size at which a task ends a data file."""
    min_file_bytes: int | None = field(default=None, compare=False, repr=False, kw_only=True)
    """Size below which rows of epochs are held back; None: each snapshot commits them."""
    max_delay: Duration | None = field(default=None, compare=False, repr=False, kw_only=True)
    """Time for which they are held back at most."""
    creates_table: bool = field(default=True, compare=False, repr=False, kw_only=True)
    """Whether a start creates a missing table, with the columns of the stream."""
    home: tuple[str, str] = field(default=("", ""), compare=False, repr=False, kw_only=True)
    """Store id, and the namespace in the store."""

    def __post_init__(self) -> None:
        check_known("schema_evolution", self.schema_evolution, EVOLUTIONS)
        if self.target_file_bytes < 1:
            raise ConfigurationError(
                f"target_file_bytes: {self.target_file_bytes} is not positive."
            )

        self._check_hold_back()

    def _check_hold_back(self) -> None:
        if self.min_file_bytes is None and self.max_delay is None:
            return
        if self.min_file_bytes is None or self.max_delay is None:
            raise ConfigurationError(
                "min_file_bytes and max_delay: one is given without the other.",
                cure="Say both: how large files are to be, and how long rows may wait for that.",
            )
        if not 1 <= self.min_file_bytes <= self.target_file_bytes:
            raise ConfigurationError(
                f"min_file_bytes: {self.min_file_bytes} is not between 1 and target_file_bytes, "
                f"{self.target_file_bytes}."
            )
        delay_ms = to_ms(self.max_delay, "max_delay")
        if delay_ms == 0:
            raise ConfigurationError("max_delay: it is 0, so no row would wait.")
        if delay_ms > LONGEST_DELAY_MS:
            raise ConfigurationError(
                f"max_delay: {in_words(delay_ms)} is longer than {in_words(LONGEST_DELAY_MS)}. "
                "Programs that remove unknown files from a table may take staged files after a "
                "day.",
                cure="Let rows wait for less time.",
            )
        if self.max_guarantee is not Guarantee.EXACTLY_ONCE:
            raise ConfigurationError(
                "min_file_bytes: with a guarantee below exactly-once rows are visible after their "
                "epoch, so none is held back.",
                cure='Leave it out, or set guarantee="exactly-once".',
            )

    def hold_back(self) -> HoldBack | None:
        if self.min_file_bytes is None or self.max_delay is None:
            return None
        return HoldBack(self.min_file_bytes, to_ms(self.max_delay, "max_delay"))

    @property
    def _gathering(self) -> Gathering | None:
        size = self.min_file_bytes
        return None if size is None else Gathering(size, self.target_file_bytes)

    @property
    def _extends(self) -> bool:
        return self.schema_evolution == "extend"

    def _check_may_create(self, table: str, job: str, stage: str) -> None:
        """Called at a start that finds no table. Raises `ConfigurationError`."""
        if not self.creates_table:
            raise ConfigurationError(
                f"there is no table {table!r}.",
                job=job,
                stage=stage,
                cure="Correct its name, create it or bring it back, or let the sink create it: "
                "leave create_table=False out.",
            )

    def with_store(self: S, store: Store) -> S:
        """Only records the namespace, within which names of jobs are unique; stores nothing."""
        return replace(self, home=(store.store_id, store.config.namespace))

    def _owner(self, job: str, stage: str) -> Owner:
        return Owner(*self.home, job, stage)

    @abstractmethod
    def maintenance(self, job: str, stage: str) -> TableMaintenance:
        """Returns the maintenance of its table; called on the sink that `with_store` returned."""
