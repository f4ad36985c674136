"""`JetMap`: what is put is got back, in any process, whoever else writes."""

import pickle
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_jet.errors import ConfigurationError, StoreUnavailableError
from dagster_jet.maps import JetMap, JournalConfig, key_encoding, user_map
from dagster_jet.maps.log import MapLog
from dagster_jet.store import MemoryMember, Store, StoreConfig, key_hash
from dagster_jet.system import failpoint
from dagster_jet.system.failpoint import FailPointError
from tests.unit.store.forks import in_a_fork


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(memory_config()) as opened:
        yield opened
    failpoint.configure("")


def memory_config() -> StoreConfig:
    name = uuid.uuid4().hex
    urls = tuple(f"memory://{name}{m}" for m in "abc")
    return StoreConfig(urls, allow_memory=True, partition_count=11)


def another_process(store: Store, name: str, **options: Any) -> JetMap:
    """The map as a second process has it: a store and a log of its own."""
    return JetMap.open(Store.open(store.config), name, **options)


# --- keys -----------------------------------------------------------------------------------------

scalars = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(),
    st.booleans(),
)
any_key = st.one_of(scalars, st.lists(scalars, min_size=1, max_size=3).map(tuple))


@given(any_key)
def test_a_key_has_one_text(key: key_encoding.Key) -> None:
    again = key_encoding.decode_key(key_encoding.encode_key(key))
    assert again == key and type(again) is type(key)
    assert key_encoding.encode_key(again) == key_encoding.encode_key(key)


def test_texts_of_keys_are_part_of_the_stored_format() -> None:
    texts = {key: key_encoding.encode_key(key) for key in ("ä", "1", 7, b"\0\1", ("a", -1, False))}
    assert texts == {
        "ä": '"ä"',
        "1": '"1"',
        7: "7",
        b"\0\1": '{"b":"AAE="}',
        ("a", -1, False): '["a",-1,false]',
    }
    assert key_encoding.encode_key(True) == "true" and key_encoding.encode_key(("a",)) == '["a"]'


def test_a_key_is_placed_as_spark_places_its_columns() -> None:
    assert key_encoding.partition_of(("a", 7), 271) == key_hash("a", 7) % 271
    assert key_encoding.partition_of("a", 271) == key_hash("a") % 271


@pytest.mark.parametrize("key", [1.5, None, (), ("a", None), 2**63, "\ud800", ["a"]])
def test_what_is_no_key_is_refused(store: Store, key: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"key|Unicode"):
        JetMap.open(store, "m").put(key, 1)


def test_long_keys_are_kept_whole(store: Store) -> None:
    m = JetMap.open(store, "m")
    long = ["x" * 600 + tail for tail in "ab"]
    m.put_all({long[0]: 1, long[1]: 2, ("y" * 600, 3): 3})
    assert m.get(long[0]) == 1 and m.get(long[1]) == 2
    assert set(m.keys()) == {*long, ("y" * 600, 3)}


# --- put, get, delete ---------------------------------------------------------------------------


def test_put_and_get(store: Store) -> None:
    m = JetMap.open(store, "m")
    assert m.get("a") is None and m.get("a", 7) == 7 and m.size() == 0 and "a" not in m
    m.put("a", {"price": 1.5})
    m.put(("a", 1), [1, 2])
    m.put("a", {"price": 2.5})
    m.put(1, "one")
    m.put(True, "yes")
    assert m.get("a") == {"price": 2.5} and m.get(("a", 1)) == [1, 2]
    assert (m.get(1), m.get(True)) == ("one", "yes")
    assert "a" in m and m.size() == 4
    m.delete("a")
    m.delete("never there")
    assert m.get("a") is None and "a" not in m and m.size() == 3
    m.put("a", 0)
    assert m.get("a", 1) == 0


def test_many_items_of_a_map_that_is_not_there_yet_need_no_read_each(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: each item's format was a read of the register."""
    m, reads = JetMap.open(store, "m"), []
    read = MapLog.read

    def counted(self: MapLog) -> Any:
        reads.append(self.name)
        return read(self)

    monkeypatch.setattr(MapLog, "read", counted)
    m.put_all({n: n for n in range(300)})
    assert len(reads) <= 2
    assert dict(m.items()) == {n: n for n in range(300)}


@pytest.mark.parametrize(("one", "other"), [(1, True), (("a", 0), ("a", False))])
def test_keys_that_python_takes_for_one_are_not_read_together(
    store: Store, one: Any, other: Any
) -> None:
    """Failed before: the value of the second was returned under the first."""
    m = JetMap.open(store, "m")
    m.put_all([(one, "one"), (other, "other")])
    assert (m.get(one), m.get(other)) == ("one", "other")
    assert m.get_all([one, "x", one]) == {one: "one"}
    with pytest.raises(ConfigurationError, match=r"two keys of the map 'm'.*one at a time"):
        m.get_all([one, other])


def test_a_map_is_listed_once_for_all_partitions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: each of 11 partitions was listed and read by itself. On S3 the listing of a
    partition is one of the whole map."""
    m, items = JetMap.open(store, "m"), {n: -n for n in range(100)}
    m.put_all(items)
    m.delete(7)
    del items[7]
    calls: list[str] = []

    def counted(name: str) -> Any:
        work = getattr(MemoryMember, name)

        def call(member: MemoryMember, asked: Any) -> Any:
            calls.append(name)
            return work(member, asked)

        return call

    for name in ("list_keys", "get_many"):
        monkeypatch.setattr(MemoryMember, name, counted(name))
    assert dict(m.items()) == items and m.size() == 99
    assert calls.count("list_keys") == calls.count("get_many") == 2 * 3
    for partitions in ([4], [9, 2, 5]):
        there = {n for n in items if key_encoding.partition_of(n, 11) in partitions}
        assert dict(m.items(partitions)) == {n: -n for n in there}


def test_many_at_once_in_few_writes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand items are one decision, in small batches as many as needed."""
    m = JetMap.open(store, "m")
    decided = count_batches(monkeypatch)
    items = {f"k{n}": n for n in range(1_000)}
    m.put_all(items)
    assert len(decided) == 1
    assert dict(m.items()) == items
    monkeypatch.setattr(user_map, "BATCH_CHANGES_MAX", 300)
    m.delete_all(f"k{n}" for n in range(999))
    assert decided[1:] == [300, 300, 300, 99]
    assert dict(m.items()) == {"k999": 999}


def count_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    append = MapLog.append

    def counted(self: MapLog, changes: Any, *others: Any) -> None:
        sizes.append(len(changes))
        append(self, changes, *others)

    monkeypatch.setattr(MapLog, "append", counted)
    return sizes


def test_of_several_changes_of_a_key_the_last_one_stays(store: Store) -> None:
    m = JetMap.open(store, "m")
    m.put_all([("a", 1), ("b", 1), ("a", 2)])
    assert m.get_all(["a", "b", "c"]) == {"a": 2, "b": 1}


def test_batches_leave_two_blobs_per_owner(store: Store) -> None:
    m = JetMap.open(store, "m")
    for n in range(5):
        m.put(n, "x" * 10_000)
    assert len(blobs(store)) == 2
    another_process(store, "m").put(9, 9)
    assert len(blobs(store)) == 1, "who takes over removes them"


def blobs(store: Store) -> list[str]:
    return [key.name for key in store.map("user-batches/m").keys("")]


def test_registers_hold_nothing_of_users(store: Store) -> None:
    """Registers are not encrypted as values are."""
    m = JetMap.open(store, "m", journal=JournalConfig())
    m.put("secret key", "secret value")
    stored = store.register("map/m").read()
    assert stored is not None and b"secret" not in stored.value


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers()), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_behaves_as_a_dict(steps: list[tuple[bool, int, int]], rng: random.Random) -> None:
    """Two processes take turns; each sees what the other did."""
    store = Store.open(memory_config())
    maps = [JetMap.open(store, "m"), another_process(store, "m")]
    model: dict[int, int] = {}
    for is_put, key, value in steps:
        if is_put:
            rng.choice(maps).put(key, value)
            model[key] = value
        else:
            rng.choice(maps).delete(key)
            model.pop(key, None)
        assert rng.choice(maps).get(key) == model.get(key)
    for m in maps:
        assert dict(m.items()) == model and m.size() == len(model)
        assert set(m.keys()) == set(model)


# --- values and settings --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "value"),
    [
        ("json", {"a": [1, None, "ü"], "b": 0.1}),
        ("arrow", pa.table({"a": [1, 2], "b": ["x", None]})),
        ("bytes", b"\0\xff"),
        ("pickle", {1, (2, 3)}),
    ],
)
def test_formats(store: Store, format: str, value: Any) -> None:
    JetMap.open(store, format, format=format).put("k", value)
    assert another_process(store, format, format=format).get("k") == value


def test_pickled_values_are_read_by_those_who_ask_for_them(store: Store) -> None:
    """Failed before: the store's word was enough, so that a member could have code run."""
    early = JetMap.open(store, "m")
    JetMap.open(store, "m", format="pickle").put("k", {1, 2})
    for unasked in (early, another_process(store, "m"), pickle.loads(pickle.dumps(early))):
        for read in (lambda m=unasked: m.get("k"), lambda m=unasked: list(m.items())):
            with pytest.raises(ConfigurationError, match=r"pickled.*format=\"pickle\""):
                read()
        assert list(unasked.keys()) == ["k"] and unasked.size() == 1
    asked = pickle.loads(pickle.dumps(another_process(store, "m", format="pickle")))
    assert asked.get("k") == {1, 2}


@pytest.mark.parametrize(
    ("format", "value"),
    [("json", {1, 2}), ("json", float("nan")), ("json", None), ("bytes", "text"), ("arrow", [1])],
)
def test_a_value_that_does_not_fit_writes_nothing(store: Store, format: str, value: Any) -> None:
    m = JetMap.open(store, "m", format=format)
    good = {"json": 1, "bytes": b"1", "arrow": pa.table({"a": [1]})}[format]
    with pytest.raises(ConfigurationError):
        m.put_all({"good": good, "bad": value})
    assert m.size() == 0


def test_settings_are_the_stores(store: Store) -> None:
    options = {"format": "bytes", "journal": JournalConfig(5, "1 hour")}
    created = JetMap.open(store, "m", **options)
    found = another_process(store, "m")
    assert found.settings == created.settings and found.journal is not None
    assert another_process(store, "m", **options).settings == created.settings
    with pytest.raises(ConfigurationError, match=r"format.*'bytes'.*'json'"):
        another_process(store, "m", format="json")
    with pytest.raises(ConfigurationError, match=r"journal.*Leave the option out"):
        another_process(store, "m", journal=JournalConfig(6, "1 hour"))


def test_a_map_is_created_by_its_first_write(store: Store) -> None:
    reader = JetMap.open(store, "m")
    assert dict(reader.items()) == {} and reader.journal is None
    another_process(store, "m", format="bytes").put("a", b"1")
    assert reader.get("a") == b"1", "settings are read when there are any"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: JournalConfig(0),
        lambda: JournalConfig(time_to_live="soon"),
        lambda: JournalConfig(time_to_live="0 ms"),
        lambda: JetMap.open(Store.open(memory_config()), "m", format="xml"),
    ],
)
def test_wrong_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"capacity|time_to_live|format"):
        wrong()


def test_maps_are_separate(store: Store) -> None:
    JetMap.open(store, "m").put("a", 1)
    JetMap.open(store, "m/n").put("a", 2)
    assert JetMap.open(store, "m").get("a") == 1
    other = Store.open(replace(store.config, namespace="other"))
    assert JetMap.open(other, "m").get("a") is None


def test_in_a_task_a_map_can_be_read(store: Store) -> None:
    m = JetMap.open(store, "m")
    m.put("a", 1)
    in_task = pickle.loads(pickle.dumps(m))
    assert in_task.get("a") == 1 and dict(in_task.items()) == {"a": 1}
    with pytest.raises(ConfigurationError, match=r"sinks\.map"):
        in_task.put("a", 2)


# --- crashes and lost members ---------------------------------------------------------------------


def test_a_batch_that_was_decided_is_applied_by_the_next_writer(store: Store) -> None:
    """The writer dies between the decision and the first entry."""
    m = JetMap.open(store, "m", journal=JournalConfig(10))
    failpoint.configure("maps.decide.after:1=raise")
    with pytest.raises(FailPointError):
        m.put_all({"a": 1, "b": 1})
    failpoint.configure("")
    other = another_process(store, "m")
    assert other.get("b") == 1, "opening a map applies what is decided"
    other.put("b", 2)
    assert dict(m.items()) == {"a": 1, "b": 2}
    assert len(blobs(store)) == 1


def test_an_interrupt_between_decision_and_entries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = JetMap.open(store, "m", journal=JournalConfig(10))
    m.put("a", 0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(MapLog, "_apply", interrupt)
        m.put("a", 1)
    m.put("b", 2)
    assert dict(m.items()) == {"a": 1, "b": 2}
    state = m.log.read()
    assert state is not None and sum(state.tails.values()) == 3


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_batch_that_was_not_decided_leaves_nothing(store: Store) -> None:
    m = JetMap.open(store, "m")
    m.put("a", 1)
    failpoint.configure("maps.decide.before:1=raise")
    with pytest.raises(FailPointError):
        m.put("a", 2)
    failpoint.configure("")
    assert len(blobs(store)) == 2
    another_process(store, "m").put("b", 2)
    assert dict(m.items()) == {"a": 1, "b": 2}
    assert len(blobs(store)) == 1, "the next owner removes it"


def test_a_member_leaves_before_a_decision_reaches_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads go on; the write says so, and comes through with the next one after the return."""
    m = JetMap.open(store, "m")
    items = {n: n for n in range(50)}
    m.put_all(items)
    apply, room = MapLog._apply, MemoryMember._room
    gone: set[str] = set()

    def leave(self: MapLog, *arguments: Any) -> None:
        gone.add(store.config.member_ids[0])
        apply(self, *arguments)

    def room_if_there(self: MemoryMember) -> Any:
        if self.member_id in gone:
            raise StoreUnavailableError(f"{self.member_id} does not answer.")
        return room(self)

    monkeypatch.setattr(MemoryMember, "_room", room_if_there)
    with monkeypatch.context() as patch, pytest.raises(StoreUnavailableError):
        patch.setattr(MapLog, "_apply", leave)
        m.put_all({n: -n for n in range(50)})
    assert {abs(value) for value in dict(m.items()).values()} == set(range(50))
    gone.clear()
    m.put(100, 100)
    assert dict(m.items()) == {**{n: -n for n in range(50)}, 100: 100}


def test_two_writers_of_one_partition_race(store: Store) -> None:
    """A writer that decided, slept, and applies after its successor changes nothing."""
    first, second = JetMap.open(store, "m"), another_process(store, "m")
    slept: list[Any] = []
    apply = MapLog._apply

    def sleepy(self: MapLog, *arguments: Any) -> None:
        if self is first.log and not slept:
            slept.append(arguments)
            second.put("a", "second")
        apply(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MapLog, "_apply", sleepy)
        first.put("a", "first")
    assert slept and first.get("a") == second.get("a") == "second"
    second.delete("a")
    apply(first.log, *slept[0])
    assert first.get("a") is None, "a late put does not bring a deleted key back"


def test_on_files(tmp_path: Path) -> None:
    urls = tuple(f"file://{tmp_path}/{m}" for m in "abc")
    with Store.open(StoreConfig(urls)) as store:
        JetMap.open(store, "m", journal=JournalConfig()).put_all({n: n for n in range(100)})
    with Store.open(StoreConfig(urls)) as store:
        m = JetMap.open(store, "m")
        m.delete_all(range(50))
        assert sorted(m.items()) == [(n, n) for n in range(50, 100)]


@pytest.mark.parametrize("is_written_before", [False, True])
def test_each_forked_process_is_a_writer(tmp_path: Path, is_written_before: bool) -> None:
    """Failed before: two children numbered their batches under one name, and the second child's
    were taken for written."""
    urls = tuple(f"file://{tmp_path}/{m}" for m in "abc")
    with Store.open(StoreConfig(urls)) as store:
        m = JetMap.open(store, "m", journal=JournalConfig(100))
        if is_written_before:
            m.put("before", 0)
        in_a_fork(lambda: m.put_all({"x": 1, "first": 1}))
        in_a_fork(lambda: m.put_all({"x": 2, "second": 2}))
        m.put("after", 3)
    with Store.open(StoreConfig(urls)) as store:
        m = JetMap.open(store, "m")
        before = {"before": 0} if is_written_before else {}
        assert dict(m.items()) == {**before, "x": 2, "first": 1, "second": 2, "after": 3}
        state = m.log.read()
        assert state is not None and sum(state.tails.values()) == 5 + is_written_before


def test_a_fork_during_a_write_does_not_block_the_child(tmp_path: Path) -> None:
    """Failed before: the child inherited the lock of the thread that was writing."""
    urls = tuple(f"file://{tmp_path}/{m}" for m in "abc")
    with Store.open(StoreConfig(urls)) as store:
        m = JetMap.open(store, "m", journal=JournalConfig(100))
        with m.log._lock:
            in_a_fork(lambda: m.put("x", 1))
        assert m.get("x") == 1
