"""Claims a job for an execution, before anything slow: Spark starts afterwards.

So observers see the claim at once, a superfluous start ends within a heartbeat instead of after a
JVM start, and a failed start can be noted in the record.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_jet.exports.export_list import finished_export
from dagster_jet.ownership.admission import check_admission
from dagster_jet.ownership.record_keeper import RecordKeeper, read_record
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.start_options import StartOptions
from dagster_jet.store import Store


def claim(keeper: RecordKeeper, store: Store, job: str, options: StartOptions) -> ExecutionRecord:
    """Return the record under the next execution id; its lease is renewed from here on.

    Raises:
        LeaseHeldError: another execution is alive.
        FencedError: this process owned the job, and another process has taken it over since.
        StoreUnavailableError: too few members answer.
        JetError: the `initial_snapshot` is not retained, or there is no such export.
    """
    members_max = check_admission(
        job,
        store.status(),
        read_record(store, job),
        split_brain_protection=store.config.split_brain_protection,
    )

    def admitted(record: ExecutionRecord) -> ExecutionRecord:
        wanted = options.initial_snapshot
        record.rewound(wanted)  # raises if it is not retained
        if isinstance(wanted, str) and record.imports(wanted):
            finished_export(store, wanted, job)
        return replace(record, members_max=max(record.members_max, members_max))

    return keeper.claim(change=admitted)
