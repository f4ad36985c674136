"""One bounded job per partition of a pipeline's assets, independent of other partitions' jobs.

Each partition is a streaming job named ``<pipeline>@<partition key>``, beside a live job if there
is one. Its record, its state, its sinks' markers and its transactional ids use that name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.errors import ConfigurationError, JobStateError
from dagster_jet.orchestration.defined_pipeline import DefinedPipeline
from dagster_jet.orchestration.job_watch import Log
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, read_record, record_register
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.graph import SinkNode
from dagster_jet.snapshot.record import JobStatus

if TYPE_CHECKING:
    from dagster_jet.jet import Jet

PipelineOfPartition = Callable[[str], Pipeline]

_MARK = "@"
_REFUSED = re.compile(r"[^A-Za-z0-9_.\-]")
_PLACES = ("uri", "path", "table", "topic", "map")
_KEY_CHARACTERS_MAX = 100
_ID_CHARACTERS = 8
_ATTEMPT = re.compile(rf"{_MARK}(\d+)-(.+)")


def job_of_partition(pipeline: str, key: str) -> str:
    """Returns the name of a partition's job, valid in store keys, paths and transactional ids.

    Args:
        pipeline: the pipeline's name.
        key: the partition's key. Characters not valid in paths become ``_``, and a digest is added.

    Example:
        >>> job_of_partition("delays", "2024-01-01")
        'delays@2024-01-01'
        >>> job_of_partition("delays", "EU / west")
        'delays@EU___west-6dd0b054'
    """
    plain = _REFUSED.sub("_", key)[:_KEY_CHARACTERS_MAX]
    if plain != key:
        plain += f"-{hashlib.sha256(key.encode()).hexdigest()[:_ID_CHARACTERS]}"
    return f"{pipeline}{_MARK}{plain}"


@dataclass(frozen=True)
class Attempt:
    """One computation of a partition: the first, or a recomputation.

    Attributes:
        number: counts from 1.
        run: prefix of the id of the run that was launched for it; empty for a first attempt that
            no run has requested with `anew`.
    """

    number: int = 1
    run: str = ""

    def of(self, base: str) -> str:
        """Returns the job's name; `base` is the name of the first attempt."""
        return base if self.number == 1 else f"{base}{_MARK}{self.number}-{self.run}"

    @classmethod
    def read(cls, name: str, base: str) -> Attempt | None:
        """Parses the output of `of`; returns None for another job's name."""
        if name == base:
            return cls()
        found = _ATTEMPT.fullmatch(name.removeprefix(base))
        return cls(int(found[1]), found[2]) if found and name.startswith(base) else None

    def next(self, run_id: str) -> Attempt:
        """Returns the attempt that a run requests; this one if the run has requested it already."""
        run = run_id[:_ID_CHARACTERS]
        return self if run == self.run else Attempt(self.number + 1, run)


@dataclass(frozen=True)
class _Requested:
    """The newest attempt that runs with `anew` have requested: the value of a register.

    Runs that are launched at one moment request the same attempt, and the lease of its record
    admits one of them: an attempt without a record has not begun, and is as new as any other.
    """

    attempt: Attempt
    runs: tuple[str, ...]
    """Prefixes of the ids of the launched runs; their retries continue it."""

    def to_bytes(self) -> bytes:
        return " ".join((str(self.attempt.number), self.attempt.run, *self.runs)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> _Requested:
        number, run, *runs = data.decode().split(" ")
        return cls(Attempt(int(number), run), tuple(runs))


def sample_of(
    pipeline: PipelineOfPartition, partitions: dg.PartitionsDefinition, key: str | None
) -> Pipeline:
    """Returns the pipeline of one partition; the stages are the same in all partitions.

    Args:
        pipeline: builds the pipeline of a partition.
        partitions: definition of the partitions.
        key: key of the partition to use; None: the first.

    Raises:
        ConfigurationError: no key is known yet, or `pipeline` does not return a Pipeline.
    """
    key = key or _first_key(partitions)
    if key is None:
        raise ConfigurationError(
            "no partition is known yet, and the stages are read from the pipeline of a partition.",
            cure="Give the key of some partition: jet_assets(sample_partition=...).",
        )
    found = pipeline(key)
    if not isinstance(found, Pipeline):
        raise ConfigurationError(
            f"pipeline({key!r}) returned {type(found).__name__}, not a Pipeline.",
            cure="Give jet_assets a function from a partition's key to its pipeline.",
        )
    return found


def _first_key(partitions: dg.PartitionsDefinition) -> str | None:
    if isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        return partitions.start.strftime(partitions.fmt)  # may still be in the future
    try:
        return partitions.get_first_partition_key()
    except Exception:  # noqa: BLE001 - dynamic keys need an instance, which is absent at load
        return None


@dataclass(frozen=True)
class PartitionJob:
    """The job that a run of one partition executes.

    Attributes:
        key: partition key.
        pipeline: the pipeline under its own name, by which its assets are found.
        name: name of the job.
        is_completed: whether all of its rows are in its sinks.
        replaces: jobs of earlier attempts, whose rows are to be removed before this one starts.
    """

    key: str
    pipeline: Pipeline
    name: str
    is_completed: bool = False
    replaces: tuple[str, ...] = ()

    @property
    def attempt(self) -> str:
        """The attempt in its data versions; "" for the first."""
        return self.name.removeprefix(job_of_partition(self.pipeline.name, self.key))[len(_MARK) :]

    def why_not_now(self) -> str:
        """Explains why a run of a backfill fails while another run computes the partition."""
        return (
            f"Another run computes partition {self.key!r} of {self.pipeline.name!r} just now. When "
            "it has ended, launch the backfill of this partition again: a complete partition is a "
            "success without work."
        )

    def why_nothing_to_do(self) -> str:
        """Explains why a completed partition is not computed again, and how to recompute it."""
        places = sorted({place for place in map(_place, self.pipeline.graph.sinks) if place})
        where = f" ({', '.join(places)})" if places else ""
        return (
            f"Partition {self.key!r} of {self.pipeline.name!r} is complete, and there is nothing "
            f"to do: its rows are in its sinks{where}. To replace them, launch it with the op "
            "config anew: true."
        )

    def replace(self, jet: Jet, log: Log, *, accept_old_rows: bool) -> None:
        """Deletes the earlier attempts with their output.

        After a crash inside, the next run with `anew` goes on.

        Raises:
            JobStateError: a sink cannot remove its rows, or an attempt owes its sinks rows.
            LeaseHeldError: another run computes the partition.
        """
        from dagster_jet.jobs.deletion import sinks_that_keep_rows  # loads all connectors

        left = jobs_of_partition(jet, self.pipeline.name, self.key) if self.replaces else ()
        replaced = [name for name in self.replaces if name in left]
        for name in replaced:
            keep = sinks_that_keep_rows(jet.store, name)
            if keep and not accept_old_rows:
                raise JobStateError(
                    f"the rows of partition {self.key!r} in {', '.join(keep)} cannot be removed by "
                    "the sink, and would be there twice.",
                    job=name,
                    cure="Remove them, then launch it with the op config anew: true, "
                    "accept_old_rows: true.",
                )
        for name in replaced:
            emptied = jet.job(name).delete(remove_output=True).emptied
            log.info(
                f"Removed {name!r}, an earlier computation of partition {self.key!r}, with its "
                f"rows in {', '.join(emptied) or 'no sink'}."
            )


def launch_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Returns the id of the run that was launched; its retries continue its work.

    The re-execution of a run that has succeeded is a launch of its own.
    """
    while run.parent_run_id is not None:
        parent = instance.get_run_by_id(run.parent_run_id)
        if parent is None:
            return run.parent_run_id
        if parent.is_success:
            break
        run = parent
    return run.run_id


def partition_job(
    launch: str, jet: Jet, defined: DefinedPipeline, key: str, *, anew: bool
) -> PartitionJob:
    """Returns the job of a partition: the newest attempt, or a new one.

    Args:
        launch: the id of the run that was launched (`launch_of`).
        jet: gives access to the store, which lists earlier attempts.
        defined: the argument of `jet_assets`.
        key: key of the partition.
        anew: start a new attempt. A retry continues the attempt that the launched run started.

    Raises:
        ConfigurationError: the partition's pipeline differs in name or stages from the one that the
            assets were made from.
    """
    assert defined.of_partition is not None
    pipeline = sample_of(defined.of_partition, dg.StaticPartitionsDefinition([key]), key)
    _check_same_stages(pipeline, defined, key)
    base = job_of_partition(pipeline.name, key)
    attempt = _requested_attempt(jet, base, launch) if anew else _newest_attempt(jet, base)
    record = jet.job(attempt.of(base)).record()
    is_completed = record is not None and record.status is JobStatus.COMPLETED
    attempts = _attempts(jet, base)  # after the decision: those of other runs are listed by now
    earlier = tuple(each.of(base) for each in attempts if each.number < attempt.number)
    replaces = earlier if anew and record is None else ()
    return PartitionJob(key, pipeline, attempt.of(base), is_completed, replaces)


def jobs_of_partition(jet: Jet, pipeline: str, key: str) -> list[str]:
    """Returns the job names of all attempts of a partition, sorted.

    The first attempt may have a record without being listed: its deletion was killed before its
    last write. No computation meets such a rest of another attempt, whose name does not come again.
    """
    base = job_of_partition(pipeline, key)
    names = {attempt.of(base) for attempt in _attempts(jet, base)}
    return sorted(names if read_record(jet.store, base) is None else names | {base})


def partitions_of(jet: Jet, pipeline: str) -> list[str]:
    """Returns the keys of the partitions of which the store lists a job, sorted.

    A key that is not valid in paths is returned as it is in the job's name (`job_of_partition`).
    """
    base = f"{pipeline}{_MARK}"
    names = (key.name.removeprefix(base) for key in jet.store.map(JOB_DIRECTORY).keys(base))
    return sorted({name.partition(_MARK)[0] for name in names})


def _attempts(jet: Jet, base: str) -> list[Attempt]:
    """Returns the attempts that the store lists, by their numbers."""
    names = (key.name for key in jet.store.map(JOB_DIRECTORY).keys(base))
    found = [attempt for name in names if (attempt := Attempt.read(name, base)) is not None]
    return sorted(found, key=lambda attempt: attempt.number)


def _newest_attempt(jet: Jet, base: str) -> Attempt:
    """Returns the listed attempt; where none is, that which another run is about to begin.

    If all of them were deleted, the partition begins again with its first name.
    """
    listed = _attempts(jet, base)
    if listed:
        return listed[-1]
    written = jet.store.read_register(_register(base))
    requested = Attempt() if written is None else _Requested.from_bytes(written.value).attempt
    name = requested.of(base)
    is_deleted = _has_begun(jet, name) and read_record(jet.store, name) is None
    return Attempt() if is_deleted else requested


def _requested_attempt(jet: Jet, base: str, launch: str) -> Attempt:
    """Returns the attempt of a run with `anew`."""
    run = launch[:_ID_CHARACTERS]

    def request(current: bytes | None) -> bytes:
        known = _Requested(Attempt(0), ()) if current is None else _Requested.from_bytes(current)
        if current is not None and run in known.runs:
            return current
        newest = max([known.attempt, *_attempts(jet, base)], key=lambda attempt: attempt.number)
        has_begun = current is None or _has_begun(jet, known.attempt.of(base))
        if newest is known.attempt and not has_begun:
            return _Requested(newest, (*known.runs, run)).to_bytes()
        return _Requested(newest.next(launch), (run,)).to_bytes()

    written = jet.store.update_register(_register(base), request)
    assert written is not None
    return _Requested.from_bytes(written.value).attempt


def _has_begun(jet: Jet, name: str) -> bool:
    """Whether the job has ever run: the register of its record stays when it is deleted."""
    return jet.store.read_register(record_register(name)) is not None


def _register(base: str) -> str:
    """Name of the register with the newest attempt that a run with `anew` has requested."""
    return f"jobs/{base}/attempt"


def partition_keys(context: dg.OpExecutionContext, defined: DefinedPipeline) -> Sequence[str]:
    """Returns the keys of a run's partitions: one, or those of a backfill in a single run.

    Raises:
        ConfigurationError: the run has none.
    """
    if not (context.has_partition_key or context.has_partition_key_range):
        raise ConfigurationError(
            "this run has no partitions, but each partition is a job of its own.",
            job=str(defined),
            cure="Choose partitions where you launch it, or launch a backfill.",
        )
    return context.partition_keys


def _check_same_stages(pipeline: Pipeline, defined: DefinedPipeline, key: str) -> None:
    if pipeline.name != defined.pipeline.name:
        raise ConfigurationError(
            f"the pipeline of partition {key!r} is named {pipeline.name!r}, and the pipeline of "
            f"another partition {defined.pipeline.name!r}: partitions of the same assets need "
            "the same pipeline name.",
            job=str(defined),
            cure="Give the pipelines of all partitions one name; their jobs get the key added.",
        )
    if pipeline.graph.fingerprint() != defined.pipeline.graph.fingerprint():
        raise ConfigurationError(
            f"the pipeline of partition {key!r} has other stages than the pipeline of another "
            "partition.",
            job=str(defined),
            cure="A partition may differ in what it reads and where it writes, not in its stages.",
        )


def _place(sink: SinkNode) -> str | None:
    description = sink.sink.describe()
    return next((description[key] for key in _PLACES if key in description), None)
