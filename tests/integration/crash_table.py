"""protocol.md, section 5, as a table: which fail points stand for which row.

`name:hit=action`, as in `dagster_jet.system.failpoint`; hits count per process. Points in tasks
(`stage`, `chunks`, `files.write`, `files.prepare`, `restore.before/after`) kill the worker and
the driver; all others kill the driver. N is the second or third snapshot, so that there is an
N-1 with state and output of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

AFTER_DECISION = "record.snapshot.after:3=kill"
"""The record names staged files that nobody has committed yet (F8)."""


@dataclass(frozen=True)
class Crash:
    """One way to die: a row of the table, the point, and whether shards run as tasks of their own
    (else one task drives them all, as small epochs do)."""

    row: str
    rules: str
    sharded: bool = False

    @property
    def points(self) -> set[str]:
        return {rule.partition("=")[0].partition(":")[0] for rule in self.rules.split(";")}

    def __str__(self) -> str:
        return f"{self.row}-{self.rules.replace('=', '-').replace(':', '@')}"


KILLED = (
    # A new job, before and around the snapshot of its starting positions (section 4, step 6).
    Crash("start", "manifest.before:1=kill"),
    Crash("start", "record.snapshot.after:1=kill"),
    # Before the Spark job of N.
    Crash("F1", "epoch.before:4=kill"),
    # In a task, before its prepare.
    Crash("F2", "stage.before:3=kill", sharded=True),
    Crash("F2", "files.write.before:2=kill"),
    Crash("F2", "files.prepare.before:2=kill", sharded=True),
    # Some tasks prepared, others not; state written by some, not by others.
    Crash("F3", "files.prepare.after:2=kill", sharded=True),
    Crash("F3", "chunks.before:4=kill", sharded=True),
    Crash("F3", "chunks.after:4=kill"),
    Crash("F3", "stage.after:4=kill", sharded=True),
    # All acked, before the manifest.
    Crash("F5", "epoch.acked:3=kill"),
    Crash("F5", "manifest.before:3=kill"),
    # Between manifest and record.
    Crash("F6", "manifest.after:3=kill"),
    Crash("F6", "record.snapshot.before:3=kill"),
    # After the decision, before any commit.
    Crash("F8", "record.snapshot.after:3=kill"),
    Crash("F8", "commit.before:2=kill", sharded=True),
    # Some committed, some not.
    Crash("F9", "files.commit.file:4=kill"),
    Crash("F9", "files.commit.renamed:2=kill"),
    Crash("F9", "files.commit.marker:3=kill", sharded=True),
    # All committed, before the record says so.
    Crash("F11", "commit.after:2=kill"),
    Crash("F11", "record.committed.before:2=kill"),
    # The record says so; garbage may be half collected.
    Crash("S8", "record.committed.after:2=kill"),
    Crash("S8", "garbage.before:1=kill"),
    Crash("S8", "garbage.after:1=kill"),
)

IN_RECOVERY = {
    "claim": (
        "claim.before",
        "claim.after",
        "record.starting.before",
        "record.starting.after",
        "restore.begin",
        "restore.before",
    ),
    "restore-and-commit": (
        "restore.after",
        "restore.done",
        "commit.before",
        "files.commit.file",
        "files.commit.renamed",
        "files.commit.marker",
    ),
    "abort": (
        "commit.after",
        "record.committed.before",
        "record.committed.after",
        "abort.before",
        "abort.after",
        "record.running.before",
        "record.running.after",
    ),
}
"""Section 4: each of these dies in turn, on the way back from the death before it."""

FAILING_CALLS = (
    # The call fails, the process lives: what the job does about it within its own process. F4's
    # chunks, F7 and F10's files have tests of their own, which look closer.
    Crash("F1", "epoch.before:3=raise"),
    Crash("F4", "manifest.before:3=raise"),
    Crash("F5", "epoch.acked:3=raise"),
    Crash("F8", "commit.before:2=raise"),
    Crash("F10", "files.commit.renamed:2=raise"),
    Crash("F10", "files.commit.marker:2=raise"),
    Crash("F11", "commit.after:2=raise"),
    Crash("F11", "record.committed.before:2=raise"),
    Crash("F11", "record.committed.after:2=raise"),
    Crash("S8", "garbage.before:1=raise"),
    Crash("S8", "garbage.after:1=raise"),
    Crash("start", "claim.before:1=raise"),
    Crash("start", "claim.after:1=raise"),
    Crash("start", "record.starting.before:1=raise"),
    Crash("start", "abort.before:1=raise"),
)

FAILING_IN_TASKS = (
    Crash("F2", "stage.before:2=raise", sharded=True),
    Crash("F2", "files.write.before:2=raise"),
    Crash("F3", "files.prepare.after:1=raise", sharded=True),
    Crash("F3", "stage.after:2=raise"),
    Crash("F4", "chunks.after:2=raise", sharded=True),
)

FAILING_IN_RECOVERY = (
    "record.starting.after",
    "restore.begin",
    "restore.before",
    "restore.after",
    "restore.done",
    "abort.before",
    "abort.after",
    "record.running.before",
    "record.running.after",
)

MAPS_KILLED = (
    # `sinks.map_entries`, in test_maps.py: in a task, before and after its changes are staged ...
    Crash("F2", "staging.put.before:2=kill", sharded=True),
    Crash("F3", "staging.finished:2=kill"),
    # ... and in phase 2: before a chunk, around the decision of the map's log, behind it all.
    Crash("F8", "maps.commit.chunk:2=kill"),
    Crash("F9", "maps.decide.before:3=kill"),
    Crash("F9", "maps.decide.after:2=kill"),
    Crash("F9", "maps.apply.after:3=kill"),
    Crash("F11", "maps.commit.applied:2=kill"),
)

FOREACH_KILLED = (
    # A user's function as a sink, in test_foreach_epoch.py: in a task, before and after its rows
    # are staged; decided, and not called ...
    Crash("F2", "staging.put.before:4=kill", sharded=True),
    Crash("F3", "staging.finished:5=kill"),
    Crash("F8", AFTER_DECISION),
    Crash("F8", "foreach.before:5=kill"),
    # ... called, and no marker says so; marked, and its rows are still there; all are called.
    Crash("F9", "foreach.called:4=kill"),
    Crash("F9", "foreach.called:5=kill"),
    Crash("F9", "foreach.called:6=kill"),
    Crash("F9", "foreach.marked:5=kill"),
    Crash("F11", "commit.after:2=kill"),
    Crash("F11", "record.committed.before:2=kill"),
)

LAKE_KILLED = (
    # Tables, in test_delta.py and test_iceberg.py: in a task, around a file ...
    Crash("F2", "lake.write.before:3=kill"),
    Crash("F2", "lake.prepare.before:2=kill", sharded=True),
    Crash("F3", "lake.prepare.after:2=kill", sharded=True),
    # ... decided and not committed; around the version of the table that names the files.
    Crash("F8", AFTER_DECISION),
    Crash("F9", "lake.commit.before:3=kill"),
    Crash("F9", "lake.commit.after:2=kill"),
)

JOINT_KILLED = (
    # Several tables by one request, in connectors/test_joint_commits.py: in the task, decided,
    # around the request.
    Crash("F3", "lake.prepare.after:4=kill", sharded=True),
    Crash("F8", AFTER_DECISION),
    Crash("F9", "lake.together.before:2=kill"),
    Crash("F9", "lake.together.after:2=kill"),
    Crash("F9", "lake.merge.written:2=kill"),
    Crash("F11", "commit.after:2=kill"),
)

MERGING_KILLED = (
    # Upserts, in connectors/test_iceberg_merge.py: a change is staged; files are written anew, and
    # no snapshot names them; it does.
    Crash("F3", "lake.prepare.after:2=kill", sharded=True),
    Crash("F9", "lake.merge.written:3=kill"),
    Crash("F9", "lake.commit.before:2=kill"),
    Crash("F9", "lake.commit.after:2=kill"),
)

HOLDING_KILLED = (
    # Tables that hold rows back, in test_hold_back.py: staged; decided and held back, twice ...
    Crash("F3", "lake.prepare.after:4=kill"),
    Crash("F8", "record.snapshot.after:3=kill"),
    # ... released and not written together; written together and in no version; in one; and the
    # small files are there yet.
    Crash("F8", "lake.gather.before:1=kill"),
    Crash("F9", "lake.gather.written:1=kill"),
    Crash("F9", "lake.gather.written:2=kill"),
    Crash("F9", "lake.commit.before:2=kill"),
    Crash("F9", "lake.commit.after:1=kill"),
    Crash("F9", "lake.gather.after:1=kill"),
    Crash("F11", "commit.after:5=kill"),
)

EPOCHS_KILLED = (
    # Two tables of Delta Lake and one of Iceberg, in test_epochs_table.py: between their commits,
    # when all are committed, around the write of the cut. One after the other.
    ("lake.commit.after:4", "epochs.write.before:2"),
    ("lake.commit.after:5", "record.committed.before:2", "epochs.write.after:1"),
    ("lake.commit.after:5", "epochs.write.after:2", "lake.commit.before:5"),
    ("lake.commit.before:4", "epochs.write.before:1", "epochs.write.after:1"),
    ("record.committed.after:2", "commit.after:2", "record.snapshot.after:2"),
)

PREPARED_KILLED = (
    # Processors that commit in two phases, in test_two_phase.py: prepared, and not acknowledged ...
    Crash("F3", "stage.after:3=kill", sharded=True),
    # ... decided with the last row, and not committed; committed by one shard.
    Crash("F8", "record.snapshot.after:7=kill"),
    Crash("F9", "stage.commit.after:2=kill", sharded=True),
)

REWINDING_KILLED = (
    # Back to an older snapshot, in test_engine.py: before and after the record says so, and when
    # the new line has a snapshot, and one undecided.
    Crash("rewind", "record.rewound.before:1=kill"),
    Crash("rewind", "record.rewound.after:1=kill"),
    Crash("rewind", "record.snapshot.after:2=kill"),
)

LAKE_REWINDING_KILLED = (
    # The same with tables, in test_lake_recovery.py: the record says so; the new line has a version
    # of a table, and an epoch that is decided and not committed. One after the other.
    Crash("rewind", "record.rewound.before:1=kill"),
    Crash("rewind", "record.rewound.after:1=kill"),
    Crash("rewind", "lake.commit.after:3=kill"),
    Crash("rewind", "record.snapshot.after:2=kill"),
)

EXPORTING_KILLED = (
    # Of an export, in test_exports.py: before its first chunk, before its manifest, before and
    # after the list says that it is whole.
    Crash("export", "copy.before:1=kill"),
    Crash("export", "copy.after:1=kill"),
    Crash("export", "export.before:1=kill"),
    Crash("export", "export.after:1=kill"),
)

IMPORTING_KILLED = (
    # Of a start from it: the copy is there and no record names it; the record does.
    Crash("import", "copy.after:1=kill"),
    Crash("import", "record.rewound.after:1=kill"),
)

DELETING_KILLED = (Crash("export", "export.removed:1=kill"),)

RESERVING_KILLED = (
    # Snapshots that fail until their ids are used up, in test_killed.py.
    Crash("F4", "manifest.before:2=raise;record.reserved.before:1=kill"),
    Crash("F4", "manifest.before:2=raise;record.reserved.after:1=kill"),
)

PREPARED_IN_RECOVERY = "stage.commit.before"
"""Failpoint at which the restart dies before it has committed anything."""


IN_DELETION = {
    "files.remove.files",
    "delete.marked",
    "delete.released",
    "delete.maps",
    "delete.unlisted",
}
"""Failpoints of a job's deletion, tested in tests/unit/jobs/test_deletion.py."""

IN_DATABASES = {
    "sql.commit.before", "sql.commit.fenced", "sql.commit.rows", "sql.commit.after",
    "sql.held.begun", "sql.held.before", "sql.held.prepared",
    "sql.held.commit.before", "sql.held.commit.after",
    "sql.refused.deliver", "sql.refused.delivered",
    "postgres.advance.before", "postgres.advance.after",
}  # fmt: skip
"""Failing by turns on real servers: connectors/test_sql_sink.py, test_sql_held.py,
test_sql_refused.py and test_postgres_changes.py; killed in test_sql_job.py and
test_five_kills.py."""

IN_KAFKA = {
    "kafka.fenced", "kafka.commit.before", "kafka.commit.produced", "kafka.commit.after",
    "kafka.held.begun", "kafka.held.before", "kafka.held.prepared",
    "kafka.held.commit.before", "kafka.held.commit.after",
    "kafka.refused.found", "kafka.refused.staged",
    "kafka.refused.deliver", "kafka.refused.delivered",
}  # fmt: skip
"""Failing by turns and killed in connectors/test_kafka.py, test_kafka_held.py,
test_kafka_held_job.py and test_kafka_refused.py."""

IN_QUEUES = {
    "rabbitmq.acknowledge.before", "rabbitmq.acknowledge.sent", "rabbitmq.acknowledge.after",
    "sqs.acknowledge.before", "sqs.acknowledge.deleted", "sqs.acknowledge.after",
}  # fmt: skip
"""Killed in connectors/test_rabbitmq.py and test_sqs.py."""
IN_CLEANING = {"files.clean.before"}
"""Killed in test_input_cleaning.py."""
IN_COMPACTION = {"lake.compact.written", "lake.compact.after"}
"""Killed in unit/connectors/test_iceberg_compaction.py."""
IN_EXPIRY = {"lake.expire.before", "lake.expire.after"}
"""Killed in unit/connectors/test_iceberg_expiry.py."""


def all_points() -> set[str]:
    """Every point that some row of these tables reaches."""
    cases = (
        *KILLED,
        *FAILING_CALLS,
        *FAILING_IN_TASKS,
        *MAPS_KILLED,
        *FOREACH_KILLED,
        *LAKE_KILLED,
        *JOINT_KILLED,
        *MERGING_KILLED,
        *HOLDING_KILLED,
        *PREPARED_KILLED,
        *REWINDING_KILLED,
        *LAKE_REWINDING_KILLED,
        *EXPORTING_KILLED,
        *IMPORTING_KILLED,
        *DELETING_KILLED,
        *RESERVING_KILLED,
    )
    in_recovery = (*IN_RECOVERY.values(), FAILING_IN_RECOVERY, [PREPARED_IN_RECOVERY])
    in_tables = IN_COMPACTION | IN_EXPIRY
    elsewhere = IN_CLEANING | IN_DATABASES | IN_DELETION | in_tables
    in_brokers = IN_KAFKA | IN_QUEUES
    beside = {point.partition(":")[0] for points in EPOCHS_KILLED for point in points}
    of_cases = (case.points for case in cases)
    return set().union(*of_cases, *in_recovery, elsewhere, in_brokers, beside)


def points_wanted_by(request: pytest.FixtureRequest) -> set[str]:
    """Every point that the selected tests of the asking test's module are about."""
    wanted: set[str] = set()
    for item in request.session.items:
        if getattr(item, "module", None) is not request.module:
            continue
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "crash" in parameters:
            wanted |= parameters["crash"].points
        wanted |= set(parameters.get("points", ()))
        wanted |= {parameters[name] for name in ("point",) if name in parameters}
    return {point.partition(":")[0] for point in wanted}
