"""Slots of Dagster's run queue: a stream holds one for as long as it runs."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys

OTHERS = 10
"""Slots for runs that are not streams: as many as Dagster's queue has by default."""


@dataclass(frozen=True)
class RunQueue:
    """Limits of Dagster's run queue. None: no limit.

    Attributes:
        slots: number of runs that may run at the same time.
        stream_limit: number of streams among them, by `tag_concurrency_limits`.
    """

    slots: int | None = None
    stream_limit: int | None = None

    @classmethod
    def of(cls, instance: dg.DagsterInstance) -> RunQueue:
        """Reads the settings of an instance. A run coordinator without a queue has no limit."""
        queue = instance.get_concurrency_config().run_queue_config
        if queue is None:
            return cls()
        limits = [
            limit["limit"]
            for limit in queue.tag_concurrency_limits or ()
            if (limit["key"], limit.get("value"))
            in ((keys.TAG_PIPELINE, None), (keys.TAG_KIND, None), (keys.TAG_KIND, keys.KIND_STREAM))
        ]
        slots = queue.max_concurrent_runs
        return cls(None if slots < 0 else slots, min(limits, default=None))

    def shortage(self, streams: int, standbys: int = 0) -> str | None:
        """Returns what does not fit if so many streams run; None if all fits.

        Args:
            streams: number of streams.
            standbys: number of runs that stand by beside them.
        """
        if self.slots is not None and self.slots <= streams + standbys:
            each = "Each stream, and each standby," if standbys else "Each stream"
            number = f"{streams} and {standbys}" if standbys else f"{streams}"
            return (
                f"Dagster's run queue has {self.slots} slots. {each} holds one for as long as "
                f"it runs, and there are {number}: no slot is left for other runs."
            )
        if self.stream_limit is not None and self.stream_limit < streams:
            return (
                f"tag_concurrency_limits lets {self.stream_limit} streams run at the same time, "
                f"and there are {streams}: the others wait in Dagster's run queue."
            )
        return None

    def cure(self, streams: int, standbys: int = 0) -> str:
        """Returns settings of `dagster.yaml` with which so many streams, and other runs, fit."""
        held = streams + standbys
        if self.slots is not None and self.slots <= held:
            return f"concurrency: {{runs: {{max_concurrent_runs: {held + OTHERS}}}}}"
        limit = f"{{key: {keys.TAG_KIND}, value: {keys.KIND_STREAM}, limit: {streams}}}"
        return f"concurrency: {{runs: {{tag_concurrency_limits: [{limit}]}}}}"


def warn_of_few_slots(context: dg.SensorEvaluationContext) -> None:
    """Warns in the log of a tick if the streams of this code location do not fit into the queue."""
    repository = context.repository_def
    sensors = () if repository is None else repository.sensor_defs
    supervisors = [s.metadata for s in sensors if keys.META_STANDBY in s.metadata]
    streams = len(supervisors)
    standbys = sum(bool(each[keys.META_STANDBY].value) for each in supervisors)
    queue = RunQueue.of(context.instance)
    shortage = queue.shortage(streams, standbys)
    if shortage is not None:
        context.log.warning(f"{shortage} In dagster.yaml: {queue.cure(streams, standbys)}")
