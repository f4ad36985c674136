"""The contract between connectors and the engine: base classes, one for each part of a connector.

Users write a *definition* (`sources.files(...)`): frozen, picklable, without secrets in its repr.
On the driver a definition opens a *reader* or a *committer*; inside Spark tasks a sink's definition
opens *writers*. A writer produces a durable, checksummed, invisible artifact (phase 1). The
committer makes it visible, idempotently (phase 2).

Abstract methods are what every connector has; all other methods are optional. Connectors classify
the errors of their systems: they raise a `JetError`, whose `reaction` says how the job reacts, or
implement `reaction` for other exceptions.
"""

from dagster_jet.contract.commit import (
    CommitContext,
    CommitPart,
    Committer,
    Piece,
    carry_out_here,
)
from dagster_jet.contract.definition import Definition
from dagster_jet.contract.part import ClassifiesErrors, ConnectorPart
from dagster_jet.contract.refused import DECIDED_CURE, Refused, RefusedRows
from dagster_jet.contract.sink_definition import Held, Sink
from dagster_jet.contract.sink_writer import SinkWriter, TransactionId
from dagster_jet.contract.source_definition import BadRowRule, Source
from dagster_jet.contract.source_reader import (
    SOURCE_PARTITION_COLUMN,
    Acknowledges,
    Backlog,
    InputFate,
    Lag,
    SourceFrame,
    SourceReader,
    SplitParameters,
)
from dagster_jet.contract.table_definition import Table, VersionedTable
from dagster_jet.core.hold_back import HoldBack

__all__ = [
    "DECIDED_CURE",
    "SOURCE_PARTITION_COLUMN",
    "Acknowledges",
    "Backlog",
    "BadRowRule",
    "ClassifiesErrors",
    "CommitContext",
    "CommitPart",
    "Committer",
    "ConnectorPart",
    "Definition",
    "Held",
    "HoldBack",
    "InputFate",
    "Lag",
    "Piece",
    "Refused",
    "RefusedRows",
    "Sink",
    "SinkWriter",
    "Source",
    "SourceFrame",
    "SourceReader",
    "SplitParameters",
    "Table",
    "TransactionId",
    "VersionedTable",
    "carry_out_here",
]
