"""Sends decided rows that a sink's place refuses to the sink's dead-letter sink.

The epoch is committed without these rows and with a memo of them, in one transaction of the outside
system (`contract.RefusedRows`). So they are delivered exactly if the epoch is committed
without them; after a crash, by the next execution. The marker of their commit carries the execution
that staged them, beside the markers of the dead-letter sink's own epochs.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dagster_jet.contract import CommitContext, Refused, Sink, TransactionId
from dagster_jet.contract.refused import REFUSED_SHARD
from dagster_jet.errors import RowsRefusedError
from dagster_jet.execution.events import OutputRefused
from dagster_jet.operators.user.dead_letters import dead_letter_table
from dagster_jet.pipeline.graph import SinkNode
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.owed import is_same_place


@dataclass(frozen=True)
class RefusedOutput:
    """Refused rows of one sink, in one commit."""

    context: CommitContext
    """Context of the sink's commit."""
    dead_letters: SinkNode | None
    """The sink's dead-letter sink."""
    may_leave_out: bool
    references_will_not_come: bool
    destination_of: Callable[[Sink], Mapping[str, Any]]
    reopen: Callable[[Mapping[str, Any]], Sink]
    emit: Callable[[OutputRefused], None]

    def stage(self, epoch_id: int, rows: Sequence[Refused]) -> str:
        """See `RefusedRows.stage`.

        Raises:
            RowsRefusedError: the sink has no dead-letter sink.
        """
        context, node = self.context, self.dead_letters
        if node is None:
            raise RowsRefusedError(
                f"the sink refuses {len(rows)} rows of epoch {epoch_id}, and it has no "
                f"dead-letter sink for them: {rows[0].reason}: {rows[0].raw:.300}.",
                job=context.job,
                stage=context.sink,
                cure="Add a dead-letter sink: write_to(...).dead_letter_to(sink, name=...).",
            )
        by, attempt = context.execution_id, secrets.token_hex(4)
        transaction = TransactionId(
            context.job, node.name, context.timeline, by, epoch_id, REFUSED_SHARD, attempt
        )
        writer = node.sink.open_writer(transaction)
        letters = [(one.position, one.reason, one.raw) for one in rows]
        try:
            for batch in dead_letter_table(context.sink, letters).to_batches():
                writer.write(batch)
            artifacts = writer.prepare()
        except BaseException:
            writer.abort()
            raise
        finally:
            writer.close()
        return json.dumps(
            {
                "sink": node.name,
                "destination": self.destination_of(node.sink),
                "timeline": context.timeline,
                "execution": by,
                "epoch": epoch_id,
                "artifacts": [asdict(artifact) for artifact in artifacts],
                "reason": rows[0].reason,
            }
        )

    def deliver(self, memo: str) -> None:
        """See `RefusedRows.deliver`."""
        context, kept = self.context, json.loads(memo)
        artifacts = [Artifact(**one) for one in kept["artifacts"]]
        node = self.dead_letters
        if node and is_same_place(self.destination_of(node.sink), kept["destination"]):
            sink = node.sink
        else:
            sink = self.reopen(kept["destination"])
        committer = sink.open_committer(context.job, kept["sink"])
        try:
            committer.commit(
                artifacts,
                replace(
                    context,
                    sink=kept["sink"],
                    timeline=kept["timeline"],
                    execution_id=kept["execution"],
                    repeatable=True,
                ),
            )
        finally:
            committer.close()
        self.emit(
            OutputRefused(
                context.job,
                context.execution_id,
                context.sink,
                kept["epoch"],
                sum(artifact.rows for artifact in artifacts),
                kept["sink"],
                kept["reason"],
            )
        )
