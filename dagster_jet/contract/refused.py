"""Rows that a sink's outside system never accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Refused:
    """A row that a sink's outside system never accepts."""

    reason: str
    """A sentence without its full stop."""
    raw: str
    """The row, as text."""
    position: str | None = None
    """Location of the row for people: its key, if it has one."""


REFUSED_SHARD = 99_999
"""`TransactionId.shard` of refused rows: no task has this number. A dead-letter sink may have rows
of its own in the same epoch and of the same execution."""

DECIDED_CURE = (
    "the decided rows are kept, and that start commits them. If the sink can never accept some "
    "of them, start with refused_to_dead_letters=True: these rows go to the sink's "
    "dead-letter sink (write_to(...).dead_letter_to(...)), and the others are committed."
)
"""Rest of the cure of a `RowsRefusedError`, after "start again;"."""


class RefusedRows(Protocol):
    """The engine's part: handles decided rows that the outside system refuses in a commit
    (`refused_to_dead_letters`)."""

    @property
    def may_leave_out(self) -> bool:
        """Whether this start may commit an epoch without such rows."""
        ...

    @property
    def references_will_not_come(self) -> bool:
        """Whether a row that references a missing row is refused, too, because no other sink of
        the snapshot will commit that row. If False, raise `ReferenceMissingError` for it."""
        ...

    def stage(self, epoch_id: int, rows: Sequence[Refused]) -> str:
        """Stages the rows for the dead-letter sink. Returns a memo: the committer keeps it in the
        outside system, in one transaction with the epoch's marker, and calls `deliver` once that
        is committed. A crash before leaves an orphan."""
        ...

    def deliver(self, memo: str) -> None:
        """Commits and reports the staged rows. Idempotent: call it for every memo that is still
        kept, at every commit, also in later executions; then remove the memo."""
        ...
