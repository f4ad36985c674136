"""Conformance suite of a store member: a test of the ``Member`` contract.

from functools import partial
from dagster_jet.store import open_member
from dagster_jet.testing.check_member import check_member

def test_my_member(tmp_path):
    check_member(partial(open_member, f"file://{tmp_path}/a"))
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing

from dagster_jet.store.members.member import MAX_KEY_BYTES, Member, Replacement, Versioned

MakeMember = Callable[[], Member]

_WORKERS = 2
_INCREMENTS = 25
_LARGE_BATCH = 300
_RACED_KEYS = 10


def check_member(make_member: MakeMember, *, several_processes: bool = True) -> None:
    """Check that a backend keeps every clause of the ``Member`` contract.

    Args:
        make_member: returns a new ``Member`` object; every call for the **same** place, which is
            empty at the first call. Must be picklable (a module's function, or a
            ``functools.partial`` of one) unless ``several_processes`` is False.
        several_processes: also run concurrent processes. False for a place inside one process.

    Raises:
        AssertionError: names the member and the broken clause.
    """
    for clause in _CLAUSES:
        _check(make_member, clause)
    for pair_clause in _PAIR_CLAUSES:
        _check_pair(make_member, pair_clause)
    if several_processes:
        _check(make_member, _a_forked_child_uses_it_too)
        _check_pair(make_member, _processes_count)


def _check_pair(make_member: MakeMember, clause: Callable[[MakeMember, Member], None]) -> None:
    _check(make_member, lambda member: clause(make_member, member), clause.__doc__)


def _check(
    make_member: MakeMember, clause: Callable[[Member], None], described: str | None = None
) -> None:
    member = make_member()
    try:
        clause(member)
    except AssertionError as error:
        sentence = (described or clause.__doc__ or "").strip()
        message = f"{member.member_id} breaks its contract: {sentence} ({error})"
        raise AssertionError(message) from error
    finally:
        member.close()


def _expect(found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"expected {expected!r}, found {found!r}")


def _expect_equal_values(found: Sequence[bytes | None], expected: Sequence[bytes | None]) -> None:
    """Like ``_expect``, without printing megabytes."""
    _expect([at for at, value in enumerate(expected) if found[at] != value], [])


def _an_empty_member_answers(member: Member) -> None:
    """An empty member, once created, answers a ping and has no keys; creating it again is fine."""
    member.create()
    member.create()
    member.ping()
    _expect(member.list_keys(b""), [])
    _expect(member.get_many([b"absent"]), [None])
    _expect(member.get_versioned(b"absent"), None)


def _values_come_back_in_order(member: Member) -> None:
    """get_many returns the stored values in the order asked, None for absent keys."""
    values = {b"v/one": b"1", b"v/empty": b"", b"v/large": bytes(range(256)) * 2_000}
    member.put_many(values)
    asked = [b"v/large", b"v/absent", b"v/empty", b"v/one", b"v/large"]
    _expect(member.get_many(asked), [values.get(key) for key in asked])


def _large_batches_and_values_are_whole(member: Member) -> None:
    """A batch of 300 keys and a value of 2 MB are written, read, replaced and removed whole."""
    # Keys as a snapshot's shard writes them, one per partition: members may group these.
    keys = [b"map/b/m/%04d/stage/7-3-0" % partition for partition in range(_LARGE_BATCH)]
    values = {key: key * 50 for key in keys}
    first, large = keys[0], keys[150]
    values[large] = os.urandom(1_000_000) * 2
    member.put_many(values)
    _expect_equal_values(member.get_many(keys), list(values.values()))
    _expect(member.list_keys(b"map/b/m/"), keys)
    _expect(member.list_keys(b"map/b/m/01"), keys[100:200])
    other = Replacement(seen=values[large], value=b"other" + values[large][:1_900_000])
    _expect(member.replace_many({large: other, first: Replacement(b"not it", b"")}), 1)
    _expect_equal_values(member.get_many([large, first]), [other.value, values[first]])
    member.put_many({large: b"small"})
    _expect(member.get_many([large]), [b"small"])
    member.delete_many(keys[:200])
    _expect_equal_values(member.get_many(keys), [None] * 200 + [values[key] for key in keys[200:]])
    member.delete_many(keys)
    _expect(member.list_keys(b"map/b/"), [])


def _any_bytes_are_a_key(member: Member) -> None:
    """Any 1 to MAX_KEY_BYTES bytes are a key, zero bytes and slashes included."""
    keys = [b"\x00", b"\xff\xfe", b"k/\x00/\n", b"k" * MAX_KEY_BYTES]
    member.put_many({key: key[:5] for key in keys})
    _expect(member.get_many(keys), [key[:5] for key in keys])
    member.delete_many(keys)


def _a_put_replaces(member: Member) -> None:
    """put_many replaces older values and may be repeated."""
    member.put_many({b"r/a": b"old", b"r/b": b"kept"})
    for _ in range(2):
        member.put_many({b"r/a": b"new"})
    _expect(member.get_many([b"r/a", b"r/b"]), [b"new", b"kept"])


def _empty_batches_are_no_error(member: Member) -> None:
    """An empty batch does nothing."""
    member.put_many({})
    member.delete_many([])
    _expect(member.replace_many({}), 0)
    _expect(member.get_many([]), [])


def _another_object_sees_it(member: Member) -> None:
    """Values that one object wrote, another object of the same place reads."""
    _expect(member.get_many([b"r/a"]), [b"new"])


def _deleting_removes(member: Member) -> None:
    """delete_many removes present keys, ignores absent ones, and may be repeated."""
    member.put_many({b"d/a": b"1", b"d/b": b"2"})
    for _ in range(2):
        member.delete_many([b"d/a", b"d/never"])
    _expect(member.get_many([b"d/a", b"d/b"]), [None, b"2"])
    _expect(member.list_keys(b"d/"), [b"d/b"])


def _listing_is_by_prefix_and_sorted(member: Member) -> None:
    """list_keys returns the keys with the prefix, and only those, in byte order."""
    member.put_many(dict.fromkeys((b"l/b", b"l/a", b"l/a/x", b"l0", b"l", b"l/\xff"), b""))
    _expect(member.list_keys(b"l/"), [b"l/a", b"l/a/x", b"l/b", b"l/\xff"])
    _expect(member.list_keys(b"l/nothing"), [])


def _replacing_needs_what_was_seen(member: Member) -> None:
    """replace_many writes only where the stored bytes are the seen ones, and counts the writes."""
    member.put_many({b"p/bad": b"bad", b"p/newer": b"newer"})
    member.put_many({b"p/unwanted": b"seen", b"p/wanted": b"newer"})
    gone = {key: Replacement(b"seen", None) for key in (b"p/unwanted", b"p/wanted", b"p/never")}
    _expect(member.replace_many(gone), 1)
    _expect(member.get_many(list(gone)), [None, b"newer", None])
    _expect(member.list_keys(b"p/"), [b"p/bad", b"p/newer", b"p/wanted"])
    member.delete_many([b"p/wanted"])
    written = member.replace_many(
        {
            b"p/bad": Replacement(seen=b"bad", value=b"good"),
            b"p/newer": Replacement(seen=b"bad", value=b"good"),
            b"p/absent": Replacement(seen=None, value=b"good"),
            b"p/gone": Replacement(seen=b"bad", value=b"good"),
        }
    )
    _expect(written, 2)
    found = member.get_many([b"p/bad", b"p/newer", b"p/absent", b"p/gone"])
    _expect(found, [b"good", b"newer", b"good", None])


def _versions_count_sets(member: Member) -> None:
    """compare_and_set succeeds only from the current version, which then grows by one."""
    _expect(member.compare_and_set(b"c", 1, b"no"), False)
    _expect(member.compare_and_set(b"c", 0, b"first"), True)
    _expect(member.get_versioned(b"c"), Versioned(1, b"first"))
    _expect(member.compare_and_set(b"c", 0, b"no"), False)
    _expect(member.compare_and_set(b"c", 2, b"no"), False)
    _expect(member.compare_and_set(b"c", 1, b""), True)
    _expect(member.get_versioned(b"c"), Versioned(2, b""))


def _key_spaces_never_meet(member: Member) -> None:
    """A versioned value and a value of the same key are independent."""
    _expect(member.compare_and_set(b"s/key", 0, b"versioned"), True)
    _expect(member.get_many([b"s/key"]), [None])
    _expect(member.list_keys(b"s/"), [])
    member.put_many({b"s/key": b"value"})
    member.delete_many([b"s/key"])
    _expect(member.get_versioned(b"s/key"), Versioned(1, b"versioned"))


def _versioned_keys_can_be_listed(member: Member) -> None:
    """list_versioned returns the keys of versioned values with the prefix, in byte order."""
    for key in (b"lv/b", b"lv/a", b"lv0"):
        _expect(member.compare_and_set(key, 0, b""), True)
    member.put_many({b"lv/value": b""})
    _expect(member.list_versioned(b"lv/"), [b"lv/a", b"lv/b"])
    _expect(member.list_versioned(b"lv/nothing"), [])


def _replacing_is_won_by_one(make_member: MakeMember, member: Member) -> None:
    """When two objects replace the same seen values, exactly one of them writes each key."""
    keys = [b"w/%d" % number for number in range(_RACED_KEYS)]
    other = make_member()
    try:
        for number, seen in enumerate((None, b"0"), 1):
            written: list[int] = []
            wanted = {key: Replacement(seen, b"%d" % number) for key in keys}
            both = threading.Barrier(2)

            def race(
                racer: Member,
                wanted: dict[bytes, Replacement] = wanted,
                both: threading.Barrier = both,
                written: list[int] = written,
            ) -> None:
                both.wait()
                written.append(racer.replace_many(wanted))

            racers = [threading.Thread(target=race, args=(racer,)) for racer in (member, other)]
            for racer in racers:
                racer.start()
            for racer in racers:
                racer.join()
            _expect(sum(written), len(keys))
            _expect(member.get_many(keys), [b"%d" % number] * len(keys))
            member.put_many(dict.fromkeys(keys, b"0"))
    finally:
        other.close()


def _a_forked_child_uses_it_too(member: Member) -> None:
    """A member that was used works in a forked child, and still works in the parent."""
    member.put_many({b"f/parent": b"1"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised for a fork beside threads
        child = os.fork()
    if child == 0:
        is_right = False
        try:
            member.put_many({b"f/child": b"2"})
            is_right = member.get_many([b"f/parent", b"f/child"]) == [b"1", b"2"]
            is_right &= member.compare_and_set(b"f/child", 0, b"")
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(0 if is_right else 1)
    member.put_many({b"f/meanwhile": b"3"})
    _expect(os.waitpid(child, 0)[1], 0)
    _expect(member.get_many([b"f/child"]), [b"2"])
    _expect(member.get_versioned(b"f/child"), Versioned(1, b""))


def _threads_count(member: Member) -> None:
    """Threads that increment one counter by compare_and_set lose no increment."""
    threads = [threading.Thread(target=_count, args=(member, b"threads")) for _ in range(_WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _expect_counted(member, b"threads")


def _processes_count(make_member: MakeMember, member: Member) -> None:
    """Processes that increment one counter by compare_and_set lose no increment."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_count_in_process, args=(make_member,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    _expect([process.exitcode for process in processes], [0, 0])
    _expect_counted(member, b"processes")


def _closing_twice_is_no_error(member: Member) -> None:
    """close may be called twice."""
    member.close()
    member.close()


def _what_was_written_last_is_still_there_or_nothing_is_set(
    make_member: MakeMember, member: Member
) -> None:
    """A set at the version of written_last fails unless its bytes are still there."""
    key = b"w/last"
    with closing(make_member()) as other:
        _expect(member.compare_and_set(key, 0, b"ours"), True)
        last = member.written_last(key)
        if last is not None:
            _expect(last, Versioned(1, b"ours"))
        _expect(other.written_last(key), None)
        _expect(other.compare_and_set(key, 1, b"theirs"), True)
        _expect(member.compare_and_set(key, 1, b"late"), False)
        _expect(member.written_last(key), None)
        _expect(member.get_versioned(key), Versioned(2, b"theirs"))


_CLAUSES: tuple[Callable[[Member], None], ...] = (
    _an_empty_member_answers,
    _values_come_back_in_order,
    _any_bytes_are_a_key,
    _a_put_replaces,
    _empty_batches_are_no_error,
    _another_object_sees_it,
    _deleting_removes,
    _large_batches_and_values_are_whole,
    _listing_is_by_prefix_and_sorted,
    _replacing_needs_what_was_seen,
    _versions_count_sets,
    _key_spaces_never_meet,
    _versioned_keys_can_be_listed,
    _threads_count,
    _closing_twice_is_no_error,
)

_PAIR_CLAUSES: tuple[Callable[[MakeMember, Member], None], ...] = (
    _replacing_is_won_by_one,
    _what_was_written_last_is_still_there_or_nothing_is_set,
)


def _count_in_process(make_member: MakeMember) -> None:
    member = make_member()
    _count(member, b"processes")
    member.close()


def _count(member: Member, key: bytes) -> None:
    counted = 0
    while counted < _INCREMENTS:
        current = member.get_versioned(key) or Versioned(0, b"0")
        counted += member.compare_and_set(key, current.version, b"%d" % (int(current.value) + 1))


def _expect_counted(member: Member, key: bytes) -> None:
    expected = _WORKERS * _INCREMENTS
    _expect(member.get_versioned(key), Versioned(expected, b"%d" % expected))
