"""The sources of one execution, and the watermarks that their events move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dagster_jet.contract import SourceReader
from dagster_jet.execution.source_polling import SourcePolling
from dagster_jet.execution.watermarks import WatermarkTracker


@dataclass
class PolledSources:
    """Polls the sources and tells the watermarks which partitions they have. The epochs' thread."""

    now_ms: Callable[[], int]
    partitioned: Callable[[], Mapping[str, str]]
    """`ExecutionPlan.partitioned`; the claim has made the plan before any poll."""
    polling: SourcePolling
    watermarks: WatermarkTracker
    gives_up: Callable[[], bool]
    """Whether a source that does not answer is not waited for any longer."""

    @property
    def readers(self) -> Mapping[str, SourceReader]:
        return self.polling.readers

    def poll(self, *, all_of_them: bool) -> None:
        """Accepts the poll results available now, or waits until every source has answered.

        Raises:
            JetError: a source has failed and is not retryable.
        """
        if all_of_them:
            self.polling.poll_all(self.gives_up)
        else:
            self.polling.poll()
        self.expect_partitions()

    def poll_last(self) -> None:
        """Ends the input with what is available now; later calls of `poll` read the rest of it.

        Raises:
            JetError: as `poll`.
        """
        self.polling.poll_last(self.gives_up)
        self.expect_partitions()

    def expect_partitions(self) -> None:
        """Tells the watermarks which partitions there are. Called after every poll and plan."""
        now_ms = self.now_ms()
        for node, source in self.partitioned().items():
            self.watermarks.expect(node, self.readers[source].partitions(), now_ms)
