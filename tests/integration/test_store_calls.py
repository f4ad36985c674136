"""Every call of a job to its store meets every condition of a member: what docs/guarantees.md
promises follows, and once the member is well the job goes on by itself, with every row once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any

import pytest

from dagster_jet import Jet, JobConfig, JournalConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.execution.events import ExecutionRestarting, ExecutionStarted, SnapshotFailed
from dagster_jet.jobs import restarts
from dagster_jet.jobs.pipeline_job import PipelineJob
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.snapshot.store_reactions import REACTIONS, Condition, StoreCall, StoreReaction
from dagster_jet.store.members import member_id_of
from tests.long import long
from tests.servers.failing_members import Asked, FailingMembers
from tests.servers.members import RedisServer

from . import child
from .connectors.kafka_world import KafkaWorld
from .connectors.sql_job import SqliteDatabase
from .oracle import input_rows, windowed
from .world import World, wait_until

JOB, WINDOW_MS, ROWS = "calls", 1000, 6
CONFIG = {"restart_attempts_max": 1000, "retained_snapshots": 2, "parallelism": 1}
STAGED, NOTED, STATE = f"jobs/{JOB}/staged/", f"jobs/{JOB}/undecided", f"jobs/{JOB}/state"


def is_of(call: StoreCall, asked: Asked) -> bool:
    """Whether a request of the job is this call. Notes are removed by starts alone."""
    does, map, is_manifest = asked.operation, asked.map, asked.name.startswith("manifest/")
    match call:
        case StoreCall.STAGING:
            return does == "put" and map.startswith(STAGED)
        case StoreCall.NOTE:
            return does == "replace" and map == NOTED
        case StoreCall.CHUNK:
            return does == "put" and map == STATE and not is_manifest
        case StoreCall.MANIFEST:
            return does == "put" and map == STATE and is_manifest
        case StoreCall.RECORD:
            return does == "set" and map.endswith(f"jobs/{JOB}/record")
        case StoreCall.COMMIT:
            is_write = does in ("put", "replace") and map.startswith("user")
            return is_write or (does == "get" and map.startswith(STAGED))
        case StoreCall.GARBAGE:
            return does == "delete" and (map == STATE or map.startswith(STAGED))
        case StoreCall.START:
            return does == "delete" and map == NOTED


READ_AT_A_START = (StoreCall.NOTE, StoreCall.CHUNK, StoreCall.MANIFEST, StoreCall.START)


class CallsWorld(World):
    """A job whose store's members fail, and what its sinks have."""

    members: FailingMembers
    engine: Jet
    running: PipelineJob
    files = 0

    def pipeline(self) -> Pipeline:
        raise NotImplementedError

    def make_places(self) -> None:
        raise NotImplementedError

    # --- input and output -----------------------------------------------------------------------

    def feed(self) -> None:
        rows = [
            {"id": self.files * ROWS + n, "k": f"k{n % 3}", "ts": self.files * 400 + n, "v": n}
            for n in range(ROWS)
        ]
        folder = self.folder / "in"
        folder.mkdir(exist_ok=True)
        hidden = folder / f".{self.files:05d}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        hidden.rename(folder / hidden.name[1:])
        self.files += 1

    def rows(self) -> Counter[tuple[Any, ...]]:
        """Expected rows of each sink: (id, v)."""
        return Counter((n, n % ROWS) for n in range(self.files * ROWS))

    def found(self) -> list[Counter[tuple[Any, ...]]]:
        """Rows of each sink."""
        raise NotImplementedError

    def is_right(self) -> bool:
        return all(found == self.rows() for found in self.found())

    def assert_right(self) -> None:
        for found in self.found():
            assert found == self.rows(), (found - self.rows(), self.rows() - found)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition while the job lives."""

        def holds() -> bool:
            if self.running.done.is_set():
                raise AssertionError(f"the job has ended: {self.running.result(1)}")
            return condition()

        wait_until(holds, what)

    # --- one cell of the table ------------------------------------------------------------------

    def meet(self, call: StoreCall, condition: Condition) -> None:
        """The reaction that the table promises, and no other; then all rows, each once."""
        reaction, before = REACTIONS[call][condition], len(self.events)
        where = self.needed_members(call, condition)
        meant = call
        if condition is Condition.DAMAGED:  # what is read, or removed, has to be written first
            meant = {StoreCall.GARBAGE: StoreCall.MANIFEST, StoreCall.START: StoreCall.NOTE}.get(
                call, call
            )
        with self.members.failing(lambda a: is_of(meant, a), condition, where) as fault:
            self.feed()
            if meant is StoreCall.START:
                self.running.restart()
            self.until(fault.asked.is_set, f"{call.name} meets {condition.name}")
            self.await_reaction(call, reaction, before)
        if condition is Condition.DAMAGED and call in READ_AT_A_START:
            executions = len(self.events_of(ExecutionStarted))
            self.running.restart()
            self.until(lambda: len(self.events_of(ExecutionStarted)) > executions, "it restarts")
            self.feed()  # so that it runs, and has left notes, before another cell restarts it
        if (call, condition) == (StoreCall.GARBAGE, Condition.DAMAGED):
            self.await_removal(fault.met)
        self.until(self.is_right, f"{call.name}, {condition.name}: all rows are there")
        assert not self.running.done.is_set()
        allowed = {StoreReaction.RESTART, StoreReaction.DISCARD, StoreReaction.RETRY} & {reaction}
        assert self.reactions(before) == allowed, [str(e) for e in self.events[before:]]

    def await_reaction(self, call: StoreCall, reaction: StoreReaction, before: int) -> None:
        """Waits for a reaction while the member is not well."""
        match reaction:
            case StoreReaction.WAIT:
                assert not self.reactions(before)
                # Rows are visible before what was staged for them is removed.
                assert call is StoreCall.GARBAGE or not self.is_right()
            case StoreReaction.RESTART | StoreReaction.DISCARD | StoreReaction.RETRY:
                self.until(lambda: reaction in self.reactions(before), f"{reaction.name}")
            case _:
                self.until(self.is_right, f"{reaction.name}: the rows are there")

    def reactions(self, before: int) -> set[StoreReaction]:
        """Reactions in the events since then."""
        found = set()
        for event in self.events[before:]:
            if isinstance(event, ExecutionRestarting):
                found.add(StoreReaction.RESTART)
            elif isinstance(event, SnapshotFailed):
                is_retried = "is being retried" in event.reason
                found.add(StoreReaction.RETRY if is_retried else StoreReaction.DISCARD)
        return found

    def needed_members(
        self, call: StoreCall, condition: Condition
    ) -> Callable[[Asked], Sequence[str]]:
        """Members that the call cannot do without; a damaged copy is of the one asked first."""
        return self.first_holder if condition is Condition.DAMAGED else self.one_member

    def one_member(self, asked: Asked) -> Sequence[str]:
        return self.members.urls[1:2]

    def first_holder(self, asked: Asked) -> Sequence[str]:
        """Who is asked first when it is read; of a register, one of three."""
        if asked.operation == "set":
            return self.members.urls[1:2]
        first = self.engine.store.map(asked.map).routing.holders(asked.partition)[0]
        return [url for url in self.members.urls if member_id_of(url) == first]

    def await_removal(self, written: set[Asked]) -> None:
        """Waits until later snapshots have removed the manifests that were written."""
        state = self.engine.store.map(STATE)

        def is_removed() -> bool:
            return not {one.name for one in written} & {key.name for key in state.keys("manifest/")}

        while not is_removed():
            self.feed()
            self.until(self.is_right, "one more snapshot")


class TablesAndMaps(CallsWorld):
    """A table of rows, a map of the same, and windows in a map."""

    def pipeline(self) -> Pipeline:
        p = Pipeline(JOB)
        schema = "id long, k string, ts long, v long"
        rows = p.read_from(
            sources.files(f"{self.folder}/in", format="json", schema=schema), name="read"
        ).with_timestamps("ts", allowed_lag="500 ms", idle_timeout="0 ms")
        table = sinks.sql(self.database.url, table="rows")
        rows.select("id", "v").write_to(table, name="table_out")
        rows.write_to(sinks.map_entries("rows", key="id", value="v"), name="map_out")
        rows.group_by("k").window(windows.tumbling(f"{WINDOW_MS} ms")).aggregate(
            n=agg.count(), total=agg.sum("v"), name="counts"
        ).select("k", "unix_millis(window_end) AS end", "n", "total").write_to(
            sinks.map_entries("counts", key=("k", "end")), name="counts_out"
        )
        return p

    def make_places(self) -> None:
        self.read: dict[int, int] = {}
        self.written: Counter[tuple[Any, ...]] = Counter()
        self.database = SqliteDatabase(self.folder / "table.db")
        self.database.run("create table rows (id bigint, v bigint)")
        self.engine.map("rows", journal=JournalConfig(capacity=1000))

    def found(self) -> list[Counter[tuple[Any, ...]]]:
        """The map's journal says how often each entry was written; only what is new is read."""
        rows = self.engine.map("rows")
        state = rows.log.read_applied()
        assert state is not None and rows.journal is not None
        for partition, tail in state.tails.items():
            known = self.read.get(partition, 0)
            if tail > known:
                found = list(rows.journal.read(partition, known, tail))
                self.written.update((int(event.key), int(event.value)) for event in found)
                self.read[partition] = tail
        return [Counter(self.database.run("select id, v from rows")), Counter(self.written)]

    def assert_right(self) -> None:
        self.read.clear()
        self.written.clear()
        super().assert_right()
        counted = windowed(input_rows(self.folder / "in"), WINDOW_MS)
        expected = {(k, end): {"n": n, "total": total} for k, _, end, n, total in counted}
        assert dict(self.engine.map("counts").items()) == expected


class Topics(CallsWorld):
    """A topic of rows."""

    def pipeline(self) -> Pipeline:
        p = Pipeline(JOB)
        source = sources.files(f"{self.folder}/in", format="json", schema="id long, v long")
        topic = sinks.kafka(self.kafka.servers, topic=self.topic)
        p.read_from(source, name="read").write_to(topic, name="topic_out")
        return p

    def needed_members(
        self, call: StoreCall, condition: Condition
    ) -> Callable[[Asked], Sequence[str]]:
        """Phase 2 only reads, for which any replica is enough."""
        if call is StoreCall.COMMIT and condition is not Condition.DAMAGED:
            return lambda asked: self.members.urls
        return super().needed_members(call, condition)

    def make_places(self) -> None:
        self.kafka = KafkaWorld()
        self.topic = self.kafka.topic()

    def found(self) -> list[Counter[tuple[Any, ...]]]:
        read = (json.loads(message.value()) for message in self.kafka.messages(self.topic))
        return [Counter((one["id"], one["v"]) for one in read)]


@contextmanager
def running(world: World, kind: type[CallsWorld]) -> Iterator[CallsWorld]:
    made = kind(world.folder, world.fail_points, world.spark)
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(3)]
        made.members = stack.enter_context(FailingMembers([one.port for one in servers]))
        made.engine = stack.enter_context(world.jet(made.members.urls, 2, partition_count=31))
        made.make_places()
        made.feed()
        config = JobConfig(**{**child.CONFIG, **CONFIG})
        made.running = made.engine.submit(made.pipeline(), config, on_event=made.see)
        wait_until(made.is_right, "the job runs")
        yield made


@pytest.fixture
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "_PAUSE_MAX_MS", 20)


def finish(world: CallsWorld) -> None:
    """A damaged copy of a register is silent until it is repaired: that is the last cell."""
    assert world.running.complete(120).status is JobStatus.COMPLETED
    world.assert_right()
    world.engine.store.verify(repair=True)
    assert world.engine.store.verify().is_whole


Cell = tuple[StoreCall, Condition]
QUICK: list[Cell] = [
    (StoreCall.STAGING, Condition.FULL),
    (StoreCall.STAGING, Condition.DAMAGED),
    (StoreCall.NOTE, Condition.READ_ONLY),
    (StoreCall.CHUNK, Condition.AWAY),
    (StoreCall.MANIFEST, Condition.FULL),
    (StoreCall.COMMIT, Condition.FULL),
    (StoreCall.GARBAGE, Condition.READ_ONLY),
    (StoreCall.START, Condition.SLOW),
    (StoreCall.RECORD, Condition.FULL),
]
LAST = (StoreCall.RECORD, Condition.DAMAGED)
"""See `finish`. Of three members one is silent then, and the record needs the two others."""
WHOLE: list[Cell] = sorted(product(StoreCall, Condition), key=lambda cell: cell == LAST)
STAGED_IN_TOPICS = [
    cell for cell in WHOLE if cell[0] in (StoreCall.STAGING, StoreCall.COMMIT, StoreCall.GARBAGE)
]


def parts(cells: Sequence[Cell], quick: Sequence[Cell]) -> Any:
    whole = pytest.param(cells, id="whole", marks=long)
    return pytest.mark.parametrize("cells", [pytest.param(quick, id="quick"), whole])


@pytest.mark.usefixtures("quick_restarts")
@parts(WHOLE, QUICK)
def test_a_table_and_maps(world: World, cells: Sequence[Cell]) -> None:
    with running(world, TablesAndMaps) as made:
        for cell in cells:
            made.meet(*cell)
        finish(made)


@long  # tables and maps are staged, too
@pytest.mark.usefixtures("quick_restarts")
@parts(STAGED_IN_TOPICS, STAGED_IN_TOPICS[:1])
def test_a_topic(world: World, cells: Sequence[Cell]) -> None:
    with running(world, Topics) as made:
        for cell in cells:
            made.meet(*cell)
        finish(made)
