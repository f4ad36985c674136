"""Partitions of topics, their first and last offsets, and where to begin.

"Last" is the last stable offset: later messages may still be aborted.
"""

from __future__ import annotations

import concurrent.futures
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar

from dagster_jet.connectors.kafka.admin_client import Administration
from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    admin_library,
    answered,
    client_library,
    error_of,
    is_lasting,
    is_unknown_topic,
    is_unsupported,
    said,
)
from dagster_jet.connectors.kafka.markers import HELD_SUFFIX, MARKER_TOPIC
from dagster_jet.errors import ConfigurationError, SourceError, SourceUnavailableError

T = TypeVar("T")
CALL_S = 5.0
_MARKERS = (MARKER_TOPIC, MARKER_TOPIC + HELD_SUFFIX)
Start: TypeAlias = Literal["earliest", "latest"] | int | Mapping[str, Mapping[int, int]]
"""Start of the partitions that exist when a job first starts. A number is a time in ms since
1970."""


@dataclass(frozen=True, order=True)
class Partition:
    """Partition of a topic."""

    topic: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.number}"

    @classmethod
    def named(cls, name: str) -> Partition:
        topic, _, number = name.rpartition("/")
        return cls(topic, int(number))


@dataclass(frozen=True)
class Topics:
    """Topics to read: a list, or all that match a pattern, without Kafka's own topics and those of
    the sinks' markers."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def __post_init__(self) -> None:
        if bool(self.names) == (self.pattern is not None):
            raise ConfigurationError(
                "topics: either topics or pattern is needed, and not both.",
                cure='topics=["bids"], or pattern="bids-.*".',
            )
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigurationError(
                    f"pattern: {self.pattern!r} is not a valid regular expression: {error}."
                ) from None

    def has(self, topic: str) -> bool:
        """True if a topic of this name would be read."""
        if self.pattern is None:
            return topic in self.names
        if topic.startswith("__") or topic in _MARKERS:
            return False
        return re.fullmatch(self.pattern, topic) is not None

    def __str__(self) -> str:
        return ", ".join(self.names) if self.pattern is None else f"/{self.pattern}/"


class Offsets:
    """Queries a cluster, on one thread. Raises the errors of `SourceReader.poll`."""

    def __init__(self, cluster: Cluster, topics: Topics, job: str, stage: str) -> None:
        self._topics, self._job, self._stage = topics, job, stage
        self._administration = Administration(cluster)

    def partitions(self) -> list[Partition]:
        """Returns all current partitions.

        Raises:
            SourceError: a named topic does not exist, or may not be read.
            SourceUnavailableError: the cluster does not answer.
        """
        found = self._call(lambda client: client.list_topics(timeout=CALL_S)).topics
        if self._topics.pattern is not None:
            wanted = [name for name in found if self._topics.has(name)]
        else:
            wanted = list(self._topics.names)
        return [partition for name in wanted for partition in self._of(name, found.get(name))]

    def _of(self, name: str, topic: Any) -> Iterable[Partition]:
        if topic is None or (topic.error is not None and is_unknown_topic(topic.error)):
            raise SourceError(
                f"the topic {name!r} does not exist, or this user may not see it.",
                job=self._job,
                stage=self._stage,
                cure="Create it, correct the name, or grant DESCRIBE on it.",
            )
        if topic.error is not None:
            raise self.error(topic.error)
        return [Partition(name, number) for number in topic.partitions]

    def ids_and_end(
        self, topics: Collection[str], partitions: Sequence[Partition]
    ) -> tuple[dict[str, str], dict[Partition, int]]:
        """Returns ids and ends, asked for together.

        An id distinguishes a topic from a later one of its name. Topics that do not exist, or whose
        broker reports none (2.7), are missing. The end of a partition is after its last message of
        all: from its last offset on, messages are in or after an open transaction.
        """

        def call(client: Any) -> tuple[dict[str, str], dict[Partition, int]]:
            ids = _ask_ids(client, topics)
            end = _ask(client, partitions, _spec("latest"), committed=False)
            return ids(), end()

        return self._call(call)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Ids as of `ids_and_end`."""
        return self._call(lambda client: _ask_ids(client, topics)())

    # The calls below omit partitions unknown to their broker: not created yet, or deleted.

    def first_and_last(
        self, partitions: Sequence[Partition]
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Returns the first offsets that retention has kept, and the offsets after the last
        readable message, asked for together."""

        def call(client: Any) -> tuple[dict[Partition, int], dict[Partition, int]]:
            first = _ask(client, partitions, _spec("earliest"))
            last = _ask(client, partitions, _spec("latest"))
            return first(), last()

        return self._call(call)

    def start(self, partitions: Sequence[Partition], start: Start) -> dict[Partition, int]:
        """Start offsets within what exists; partitions missing in `start` begin at their first
        offset."""
        first, last = self.first_and_last(partitions)
        first = {p: offset for p, offset in first.items() if p in last}
        if start == "earliest":
            return first
        if start == "latest":
            return last
        if isinstance(start, int):
            found = self._call(lambda client: _ask(client, partitions, _spec(start))())
            # No message is as new as that: start with the next one.
            return {p: found[p] if found.get(p, -1) >= 0 else last[p] for p in first}
        unknown = {Partition(t, n) for t, of in start.items() for n in of}.difference(partitions)
        if unknown:
            wrong = min(unknown)
            has, cure = f"no partition {wrong.number}", "Correct its number, or leave it out."
            raise self._wrong_start(wrong, start[wrong.topic][wrong.number], has, cure)
        given = {p: start.get(p.topic, {}).get(p.number) for p in first}
        for partition, offset in given.items():
            if offset is not None and not first[partition] <= offset <= last[partition]:
                has = f"offsets {first[partition]} to {last[partition]} there"
                cure = "Correct the offset, or leave it out to read from the beginning."
                raise self._wrong_start(partition, offset, has, cure)
        return {p: first[p] if offset is None else offset for p, offset in given.items()}

    def _wrong_start(self, partition: Partition, offset: int, has: str, cure: str) -> SourceError:
        place = f"{partition.name}@{offset}"
        return SourceError(
            f"start: the topic has {has}.",
            job=self._job,
            stage=self._stage,
            position=place,
            cure=cure,
        )

    def _call(self, call: Callable[[Any], T]) -> T:
        try:
            # The caller looks again: until then it knows that the cluster is away.
            return self._administration.call(call, repeats_s=0)
        except client_library().KafkaException as error:
            raised = error_of(error)
            if raised is None:
                raise
            raise self.error(self._administration.last_error.explain(raised)) from None
        except (TimeoutError, concurrent.futures.TimeoutError):
            raise self.error(None) from None

    def error(self, error: Any) -> SourceError:
        """Error to raise for a client's error; None: it has not answered in time."""
        text = "it does not answer" if error is None else said(error)
        if error is None or not is_lasting(error):
            return SourceUnavailableError(
                f"the cluster cannot be reached: {text}.", job=self._job, stage=self._stage
            )
        return SourceError(
            f"the cluster refuses the request: {text}.",
            job=self._job,
            stage=self._stage,
            position=str(self._topics),
            cure="Correct the credentials or the rights (READ and DESCRIBE on the topic).",
        )


def _ask(
    client: Any, partitions: Sequence[Partition], spec: Any, *, committed: bool = True
) -> Callable[[], dict[Partition, int]]:
    """Asks for offsets; returns what waits for the answer."""
    if not partitions:
        return dict
    library = client_library()
    asked = {library.TopicPartition(p.topic, p.number): spec for p in partitions}
    level = library.IsolationLevel
    seen = level.READ_COMMITTED if committed else level.READ_UNCOMMITTED
    unknown = library.KafkaError.UNKNOWN_TOPIC_OR_PART
    futures = client.list_offsets(asked, isolation_level=seen, request_timeout=CALL_S)

    def answer() -> dict[Partition, int]:
        found = {}
        for one, future in futures.items():
            try:
                offset = answered(future.result(CALL_S).offset)
            except library.KafkaException as error:
                raised = error_of(error)
                if raised is not None and raised.code() == unknown:
                    continue
                raise
            found[Partition(one.topic, one.partition)] = offset
        return found

    return answer


def _ask_ids(client: Any, topics: Collection[str]) -> Callable[[], dict[str, str]]:
    """Asks for the ids of topics; returns what waits for the answer."""
    if not topics:
        return dict
    library = client_library()
    unknown = library.KafkaError.UNKNOWN_TOPIC_OR_PART
    asked = library.TopicCollection(list(topics))
    futures = client.describe_topics(asked, request_timeout=CALL_S)

    def answer() -> dict[str, str]:
        found: dict[str, str] = {}
        for name, future in futures.items():
            try:
                id = future.result(CALL_S).topic_id
            except library.KafkaException as error:
                raised = error_of(error)
                if raised is not None and (raised.code() == unknown or is_unsupported(raised)):
                    continue
                raise
            halves = id.get_most_significant_bits(), id.get_least_significant_bits()
            if any(halves):
                found[name] = "".join(f"{half % (1 << 64):016x}" for half in halves)
        return found

    return answer


def _spec(of: Any) -> Any:
    spec = admin_library().OffsetSpec
    if isinstance(of, int):
        return spec.for_timestamp(of)
    return spec.earliest() if of == "earliest" else spec.latest()


def start_of(given: Any) -> Start:
    """Parses a user's `start=`. Raises `ConfigurationError`."""
    if given in ("earliest", "latest"):
        return given  # type: ignore[no-any-return]
    if isinstance(given, bool):
        pass
    elif isinstance(given, int):
        if given >= 0:  # Kafka gives negative times other meanings: -1 is the end
            return given
    elif isinstance(given, datetime):
        if given.tzinfo is None:
            raise ConfigurationError(
                f"start: {given.isoformat()} has no time zone.", cure="Give one: tzinfo=UTC."
            )
        return max(0, round(given.timestamp() * 1000))  # no message is older than 1970
    elif isinstance(given, str):
        try:
            return start_of(datetime.fromisoformat(given.replace("Z", "+00:00")))
        except ValueError:
            pass
    elif isinstance(given, Mapping):
        try:
            return {
                str(topic): {int(number): int(offset) for number, offset in offsets.items()}
                for topic, offsets in given.items()
            }
        except (AttributeError, TypeError, ValueError):
            pass
    raise ConfigurationError(
        f"start: {given!r} cannot be read.",
        cure='Use "earliest", "latest", a time (datetime, ISO text or milliseconds), or '
        "{topic: {partition: offset}}.",
    )
