"""One epoch as one Spark job: its frames, its single action, the acks of its tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_jet.core.phases import Phase, PhaseClock
from dagster_jet.errors import ExecutorLostError, JetError
from dagster_jet.snapshot.manifest import Ack
from dagster_jet.spark.epoch_contract import EpochInput, EpochOutput
from dagster_jet.spark.frames.epoch_frames import EpochFrames
from dagster_jet.spark.frames.prepared_frames import PreparedFrames
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.runtime import SparkRuntime, collect_acks


@dataclass
class EpochRunner:
    """Runs the epochs of one execution, all from the same plan."""

    plan: ExecutionPlan
    runtime: SparkRuntime
    _prepared: PreparedFrames = field(init=False)

    def __post_init__(self) -> None:
        self._prepared = PreparedFrames(self.plan, self.runtime)

    def run(
        self, epoch: EpochInput, meanwhile: Callable[[], None], clock: PhaseClock
    ) -> EpochOutput:
        """Runs the job and returns the acks of its tasks.

        Args:
            meanwhile: starts work that runs beside the tasks. Called when the driver only waits for
                them: other threads would slow down its planning.
            clock: measures the phases.

        Raises:
            JetError: translated from Spark's error, with its reaction.
        """
        frames = None
        try:
            placement = self.runtime.placement  # first: it watches all jobs
            placement.place()
            self.runtime.tally.take()  # the check for silent sinks may have run rows once more
            frames = self._prepared.of(epoch) or EpochFrames(self.plan, epoch, self.runtime)
            action = frames.action
            meanwhile()
            clock.end(Phase.BUILDING)
            if action is None:
                return EpochOutput()
            frames.shared.fill(placement)
            clock.end(Phase.SHARING)
            acks = collect_acks(action)
            clock.end(Phase.ACTION)
            counted = self.runtime.tally.take()
            self._check_sinks(frames, acks)
            placement.check()
            seen = frames.seen(acks)
            return EpochOutput(acks, seen.event_times, seen.source_rows, seen.late_rows, counted)
        except JetError:
            raise
        except Exception as error:
            raise self.runtime.failure(error, self.plan.transforms) from error
        finally:
            if frames is not None:
                frames.release()

    def _check_sinks(self, frames: EpochFrames, acks: tuple[Ack, ...]) -> None:
        """Raises if a sink with rows has not acked; shards of stages are checked elsewhere."""
        acked = {ack.vertex for ack in acks}
        silent = [
            name
            for name, frame in frames.written_sinks.items()
            # Spark starts no task for a frame that it knows to be empty, so no ack comes.
            if name not in acked and (frame is None or not frame.isEmpty())
        ]
        if silent:
            raise ExecutorLostError(
                f"no ack from {', '.join(sorted(silent))}.",
                job=self.plan.job,
                cure="The job restarts from its last snapshot.",
            )
