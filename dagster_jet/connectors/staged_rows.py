"""Reads the rows that are staged for a commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from dagster_jet.connectors.staging import Segment, rows_of
from dagster_jet.contract import CommitContext
from dagster_jet.errors import ArtifactLostError


def staged_rows(segments: Sequence[Segment], context: CommitContext) -> Iterator[pa.RecordBatch]:
    """Yields the rows of segments; reports and skips a lost segment if losses are accepted.

    Raises:
        ArtifactLostError: a segment is lost, and losses are not accepted.
    """
    for segment in segments:
        try:
            # A whole segment is checked before the transaction of any of its rows ends.
            yield from rows_of([segment])
        except ArtifactLostError:
            if not context.accept_loss:
                raise
            context.report_lost(segment.artifact)
