"""Map connectors without Spark: what readers plan, what commits do, in whatever order they come."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import sinks, sources
from dagster_jet.connectors.maps.journal import JournalTask, MapJournalReader, _shares
from dagster_jet.connectors.maps.map_sink import MapSink
from dagster_jet.connectors.task_shares import FixedShares
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    SourceError,
    StoreUnavailableError,
)
from dagster_jet.execution.source_polling import poll_now
from dagster_jet.maps import JetMap, JournalConfig
from dagster_jet.maps.key_encoding import partition_of
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.store_reactions import StoreCall, StoreReaction, reaction_of
from dagster_jet.store import MapKey, Store, StoreConfig
from dagster_jet.system import failpoint
from dagster_jet.system.failpoint import FailPointError

PARTITIONS = 5


@pytest.fixture
def store() -> Iterator[Store]:
    name = uuid.uuid4().hex
    urls = tuple(f"memory://{name}{m}" for m in "abc")
    config = StoreConfig(urls, allow_memory=True, partition_count=PARTITIONS)
    with Store.open(config) as opened:
        yield opened
    failpoint.configure("")


# --- journal source -------------------------------------------------------------------------------


def journal_reader(store: Store, **options: Any) -> MapJournalReader:
    return sources.map_journal("m", **options).with_store(store).open("j", "in", None)


def read(reader: MapJournalReader, max_rows: int = 10_000) -> list[tuple[str, str, str | None]]:
    """One epoch as the engine runs it, without Spark: kind, key, value."""
    poll_now(reader)
    split = reader.plan(max_rows)
    if split is None:
        return []
    shares = FixedShares(_shares(split.observed_ranges, 2, split.rows))
    task = JournalTask(reader.journal_handle(), reader.value, shares)
    batches = list(task([pa.record_batch([pa.array([0, 1])], names=["id"])]))
    found = [row for batch in batches for row in batch.to_pylist()]
    reader.verify(split, len(found))
    return [(row["kind"], row["key"], row["value"]) for row in found]


def test_events_are_read_once_and_again_from_a_position(store: Store) -> None:
    m = JetMap.open(store, "m", journal=JournalConfig())
    m.put_all([(f"k{n}", n) for n in range(10)])
    m.put(7, "seven")
    reader = journal_reader(store)
    first = read(reader)
    assert set(first) == {*(("put", f"k{n}", str(n)) for n in range(10)), ("put", "7", '"seven"')}
    assert len(first) == 11 and read(reader) == [] and reader.waiting().items == 0
    position = reader.position()
    m.delete("k3")
    assert poll_now(reader).items == 1
    assert read(reader) == [("delete", "k3", None)]
    again = journal_reader(store)
    again.restore(position, None)
    assert read(again) == [("delete", "k3", None)]
    assert reader.take_lost() == again.take_lost() == 0


def test_small_epochs_serve_all_partitions(store: Store) -> None:
    m = JetMap.open(store, "m", journal=JournalConfig())
    m.put_all([(n, n) for n in range(60)])
    reader = journal_reader(store)
    epochs = [read(reader, 7) for _ in range(9)]
    assert [len(epoch) for epoch in epochs] == [7] * 8 + [4]
    assert {row for epoch in epochs for row in epoch} == {
        ("put", f"{n}", f"{n}") for n in range(60)
    }


def test_a_backlog_is_read_in_step_and_holds_the_watermark_back(store: Store) -> None:
    """The same fraction of every partition; when nothing waits any more, none holds back."""
    m = JetMap.open(store, "m", journal=JournalConfig())
    keys = {partition_of(f"k{n}", PARTITIONS): f"k{n}" for n in range(50)}
    (few, few_key), (many, many_key) = sorted(keys.items())[:2]
    m.put_all([(few_key, n) for n in range(10)] + [(many_key, n) for n in range(100)])
    reader = journal_reader(store)
    poll_now(reader)
    assert reader.partitions() == {str(few): 10, str(many): 100}
    split = reader.plan(55)
    assert split is not None and split.observed == (few, many)
    assert split.ranges == ((few, 0, 5), (many, 0, 50))
    assert reader.partitions() == {str(few): 5, str(many): 50}
    split = reader.plan(55)
    assert split is not None and split.observed == () and split.rows == 55
    assert reader.partitions() == {} and reader.plan(55) is None


def test_where_a_new_job_begins(store: Store) -> None:
    m = JetMap.open(store, "m", journal=JournalConfig(4))
    m.put_all([("a", n) for n in range(6)])
    newest, oldest = journal_reader(store, start="latest"), journal_reader(store)
    # The position of a source that is new in its pipeline, before it has answered.
    newest.restore(journal_reader(store, start="latest").position(), None)
    poll_now(newest)
    assert [value for _, _, value in read(oldest)] == ["2", "3", "4", "5"]
    assert oldest.take_lost() == 0, "nobody has promised the first two"
    m.put("a", 6)
    assert read(newest) == [("put", "a", "6")]


def test_an_overflow_between_epochs_is_counted(store: Store) -> None:
    m = JetMap.open(store, "m", journal=JournalConfig(4))
    reader = journal_reader(store)
    m.put("a", 0)
    assert read(reader) == [("put", "a", "0")]
    m.put_all([("a", n) for n in range(1, 11)])
    assert [value for _, _, value in read(reader)] == ["7", "8", "9", "10"]
    assert reader.take_lost() == 6 and reader.take_lost() == 0
    m.put_all([("a", n) for n in range(11, 14)])
    assert len(read(reader)) == 3 and reader.take_lost() == 0


def test_an_overflow_between_plan_and_task_is_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = JetMap.open(store, "m", journal=JournalConfig(4))
    m.put_all([("a", n) for n in range(3)])
    reader = journal_reader(store)
    handle = MapJournalReader.journal_handle

    def late(self: MapJournalReader) -> Any:
        m.put_all([("a", n) for n in range(3, 6)])
        return handle(self)

    with monkeypatch.context() as patch:
        patch.setattr(MapJournalReader, "journal_handle", late)
        assert [value for _, _, value in read(reader)] == ["2"]
    assert reader.take_lost() == 2
    assert [value for _, _, value in read(reader)] == ["3", "4", "5"]


def test_events_that_outlived_their_time_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = JetMap.open(store, "m", journal=JournalConfig(100, "1 second"))
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    reader = journal_reader(store)
    poll_now(reader)
    m.put_all([("a", n) for n in range(5)])
    monkeypatch.setattr("time.time", lambda: 1_002.0)
    m.put("a", 5)
    assert read(reader) == [("put", "a", "5")]
    assert reader.take_lost() == 5
    new = journal_reader(store)
    assert read(new) == [("put", "a", "5")] and new.take_lost() == 0


def test_sources_say_what_is_missing(store: Store) -> None:
    for source in (sources.map_journal("m"), sources.map_entries("m")):
        with pytest.raises(SourceError, match="'m' does not exist"):
            poll_now(source.with_store(store).open("j", "in", None))
    JetMap.open(store, "m", format="bytes").put("a", b"")
    with pytest.raises(SourceError, match=r"has no journal.*JournalConfig\(\)"):
        poll_now(journal_reader(store))
    with pytest.raises(SourceError, match="'bytes' values"):
        poll_now(sources.map_entries("m", schema="a int").with_store(store).open("j", "in", None))
    with pytest.raises(ConfigurationError, match="start"):
        sources.map_journal("m", start="middle")


def test_a_journal_that_is_not_the_one_that_was_read(store: Store) -> None:
    JetMap.open(store, "m", journal=JournalConfig()).put("a", 1)
    reader = journal_reader(store)
    reader.restore({"next": {"0": 99}}, None)
    with pytest.raises(SourceError, match="event 99 is next"):
        poll_now(reader)


def test_an_event_that_no_member_has(store: Store) -> None:
    m = JetMap.open(store, "m", journal=JournalConfig())
    m.put("a", 1)
    reader = journal_reader(store)
    ring = store.map("user-journal/m")
    ring.delete_all(ring.keys(""))
    with pytest.raises(StoreUnavailableError, match="event 0 of partition"):
        read(reader)


def test_schemas_of_sources() -> None:
    source = sources.map_journal("m", schema="price double, at timestamp")
    assert "value struct<price double, at timestamp>" in source.row_schema()
    assert (
        sources.map_entries("m", schema="array<int>").row_schema() == "key string, value array<int>"
    )
    assert sources.map_entries("m", schema="decimal(10, 2)").row_schema().endswith("decimal(10, 2)")
    assert sources.map_entries("m").row_schema() == "key string, value string"


# --- sink -----------------------------------------------------------------------------------------


def bound(store: Store) -> MapSink:
    sink = sinks.map_entries("m", key="k").with_store(store)
    sink.check("j", "out", is_new_job=False)
    return sink


def staged(
    sink: MapSink, epoch_id: int, rows: dict[str, str | None], *, execution: int = 1, shard: int = 0
) -> tuple[Artifact, ...]:
    """Phase 1 of one task."""
    transaction = TransactionId("j", "out", 1, execution, epoch_id, shard, f"{uuid.uuid4().hex}")
    writer = sink.open_writer(transaction)
    values = [None if value is None else value.encode() for value in rows.values()]
    batch = pa.record_batch([pa.array(rows), pa.array(values, pa.binary())], names=["k", "v"])
    writer.write(batch)
    return writer.prepare()


def context(execution: int = 1, **changes: Any) -> CommitContext:
    return replace(CommitContext("j", "out", 1, execution, recovering=False), **changes)


def orphans(store: Store) -> list[str]:
    return [key.name for key in store.map("jobs/j/staged/out").keys("")]


def events(store: Store) -> list[tuple[str, str, str | None]]:
    return read(journal_reader(store))


@pytest.fixture
def journaled(store: Store) -> JetMap:
    return JetMap.open(store, "m", journal=JournalConfig())


def test_nothing_shows_before_phase_2(store: Store, journaled: JetMap) -> None:
    sink = bound(store)
    journaled.put("gone", 1)
    artifacts = staged(sink, 1, {"a": "1", "gone": None})
    assert dict(journaled.items()) == {"gone": 1}
    sink.commit(artifacts, context())
    assert dict(journaled.items()) == {"a": 1}
    assert orphans(store) == []


def test_commits_repeated_late_and_out_of_order_change_nothing(
    store: Store, journaled: JetMap
) -> None:
    sink = bound(store)
    epochs = [staged(sink, epoch_id, {"a": str(epoch_id), "b": "0"}) for epoch_id in (1, 2, 3)]
    sink.commit(epochs[0] + epochs[1], context())
    sink.commit(epochs[2], context())
    for late in (epochs[0], epochs[1] + epochs[2], epochs[0]):
        sink.commit(late, context())
    assert dict(journaled.items()) == {"a": 3, "b": 0}
    of_a = [value for _, key, value in events(store) if key == "a"]
    assert of_a == ["1", "2", "3"], "one event per epoch and key"


@pytest.mark.parametrize(
    "point", ["maps.commit.chunk", "maps.decide.before", "maps.decide.after", "maps.apply.after"]
)
@pytest.mark.parametrize("hit", [1, 2, 3, 4])
def test_a_commit_that_fails_anywhere_is_repeated(
    store: Store, journaled: JetMap, point: str, hit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_jet.connectors.maps.map_sink.CHUNK_CHANGES_MAX", 2)
    sink = bound(store)
    rows = {f"k{n}": str(n) for n in range(5)}  # three chunks
    artifacts = staged(sink, 1, rows) + staged(sink, 1, {"x": "1"}, shard=1)
    failpoint.configure(f"{point}:{hit}=raise")
    with pytest.raises(FailPointError):
        sink.commit(artifacts, context())
    # By another process, as after a crash.
    other = sinks.map_entries("m", key="k").with_store(Store.open(store.config))
    other.commit(tuple(reversed(artifacts)), context(2, recovering=True))
    assert dict(journaled.items()) == {**{f"k{n}": n for n in range(5)}, "x": 1}
    assert len(events(store)) == 6
    assert orphans(store) == []


def test_an_outage_of_the_store_is_waited_for_in_place(store: Store, journaled: JetMap) -> None:
    sink = bound(store)
    artifacts = staged(sink, 1, {"a": "1"})
    opened: list[Any] = [*store._view.members.values()]
    away = [member._member for member in opened]
    for member in away:
        member.reachable = False
    with pytest.raises(StoreUnavailableError) as away_error:
        sink.commit(artifacts, context())
    assert reaction_of(StoreCall.COMMIT, away_error.value) is StoreReaction.RETRY
    for member in away:
        member.reachable = True
    sink.commit(artifacts, context())
    assert dict(journaled.items()) == {"a": 1}


def test_a_later_line_counts_more(store: Store, journaled: JetMap) -> None:
    sink = bound(store)
    old = staged(sink, 9, {"a": "9"})
    sink.commit(old, context())
    sink.commit(staged(sink, 3, {"a": "3"}, execution=2), context(2, timeline=2))
    sink.commit(old, context())
    assert journaled.get("a") == 3


def test_below_exactly_once_an_epoch_may_come_again(store: Store, journaled: JetMap) -> None:
    sink = bound(store)
    sink.commit(staged(sink, 1, {"a": "1"}), context(repeatable=True))
    sink.commit(staged(sink, 1, {"a": "2"}, execution=2), context(2, repeatable=True))
    assert journaled.get("a") == 2


def test_staged_changes_that_are_gone(store: Store, journaled: JetMap) -> None:
    sink = bound(store)
    lost = staged(sink, 1, {"a": "1"})
    keys = store.map("jobs/j/staged/out").keys("")
    store.map("jobs/j/staged/out").delete_all(keys)
    with pytest.raises(ArtifactLostError, match=r"epoch 1.*accept_loss"):
        sink.commit(lost, context())
    sink.commit(lost, context(accept_loss=True))
    assert sink.has_committed(lost, context()), "the next start does not miss it"
    sink.commit(lost, context())
    sink.commit(staged(sink, 2, {"b": "2"}), context())
    assert dict(journaled.items()) == {"b": 2}


def three_chunks_of_which_one_is_lost(
    store: Store, sink: MapSink
) -> tuple[tuple[Artifact, ...], dict[MapKey, bytes | None]]:
    """Returns the artifacts of one epoch, and the staged chunk that was taken away: the second."""
    artifacts = tuple(
        artifact
        for shard, key in enumerate("abc")
        for artifact in staged(sink, 1, {key: str(shard)}, shard=shard)
    )
    area = store.map("jobs/j/staged/out")
    lost = {key: area.get(key) for key in area.keys("") if key.name.startswith("1-1-1-")}
    area.delete_all(list(lost))
    return artifacts, lost


def test_a_lost_chunk_that_comes_back_is_committed(store: Store, journaled: JetMap) -> None:
    """No later chunk is decided before it, because the map would then take it for decided."""
    sink = bound(store)
    artifacts, lost = three_chunks_of_which_one_is_lost(store, sink)
    with pytest.raises(ArtifactLostError, match="Bring the store's lost members back"):
        sink.commit(artifacts, context())
    assert dict(journaled.items()) == {"a": 0}
    assert not sink.has_committed(artifacts, context())
    store.map("jobs/j/staged/out").put_all({k: v for k, v in lost.items() if v is not None})
    sink.commit(artifacts, context(2, recovering=True))
    assert dict(journaled.items()) == {"a": 0, "b": 1, "c": 2}
    assert len(events(store)) == 3
    assert orphans(store) == []


@pytest.mark.parametrize("died_after", [None, "maps.decide.after:1", "maps.decide.after:2"])
def test_an_accepted_loss_is_reported_before_later_chunks(
    store: Store, journaled: JetMap, died_after: str | None
) -> None:
    """Also after a refusal, and although the process dies once the loss or a later chunk is
    decided."""
    sink = bound(store)
    artifacts, _ = three_chunks_of_which_one_is_lost(store, sink)
    with pytest.raises(ArtifactLostError):
        sink.commit(artifacts, context())
    told: list[Artifact] = []
    accepting = context(2, accept_loss=True, report_lost=told.append)
    if died_after is not None:
        failpoint.configure(f"{died_after}=raise")
        with pytest.raises(FailPointError):
            sink.commit(artifacts, accepting)
        failpoint.configure("")
    sink.commit(artifacts, accepting)
    assert told == [artifacts[1]]
    assert dict(journaled.items()) == {"a": 0, "c": 2}
    assert orphans(store) == []


def test_orphans_of_older_executions_are_removed(store: Store) -> None:
    sink = bound(store)
    keep, own = staged(sink, 1, {"a": "1"}), staged(sink, 2, {"c": "1"}, execution=2)
    staged(sink, 2, {"b": "1"})
    assert sink.abort_orphans(context(2), [artifact.token for artifact in keep]) == 1
    assert len(orphans(store)) == 2
    sink.commit(keep + own, context(2))


def test_an_aborted_writer_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_jet.connectors.maps.map_sink.CHUNK_CHANGES_MAX", 1)
    sink = bound(store)
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "x"))
    keys, values = pa.array(["a", "b", None]), pa.array([b"1", b"2", b"3"])
    with pytest.raises(ConfigurationError, match="NoneType"):  # the sink has named it before
        writer.write(pa.record_batch([keys, values], names=["k", "v"]))
    assert orphans(store) != []
    writer.abort()
    assert orphans(store) == []


def test_sinks_that_cannot_work_are_refused(store: Store) -> None:
    sink = bound(store)
    sink.commit(staged(sink, 1, {"a": "1"}), context())
    with pytest.raises(ConfigurationError, match="earlier life"):
        sink.check("j", "out", is_new_job=True)
    sink.check("another", "out", is_new_job=True)
    JetMap.open(store, "tables", format="arrow")
    with pytest.raises(ConfigurationError, match="'arrow' values"):
        sinks.map_entries("tables", key="k").with_store(store).check("j", "out", is_new_job=True)
    with pytest.raises(ConfigurationError, match="key"):
        sinks.map_entries("m", key=[])
