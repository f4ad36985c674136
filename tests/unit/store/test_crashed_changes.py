"""A change of the members dies at any of its writes; another process finishes it.

Each test finds out how many writes a change makes, and lets it die before each of them in turn.
An addition of a member is killed in `make test` by the last test only.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dagster_jet.store import MapKey, MemoryMember, Store, StoreConfig
from tests.long import long_but_for
from tests.unit.store.copies import assert_whole, filled

CHANGING = ("put_many", "replace_many", "delete_many", "compare_and_set")


class Crash(BaseException):
    """The process is gone; nothing in the library may catch it."""


@pytest.fixture
def dies_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Returns a context in which the n-th write of any member, and all later ones, raise."""
    writes_left: list[int] = []
    lock = threading.Lock()

    def mortal(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with lock:
                if writes_left:
                    writes_left[0] -= 1
                    if writes_left[0] < 0:
                        raise Crash
            return method(*arguments)

        return call

    for name in CHANGING:
        monkeypatch.setattr(MemoryMember, name, mortal(getattr(MemoryMember, name)))

    @contextmanager
    def dying(after: int) -> Iterator[None]:
        writes_left.append(after)
        try:
            yield
        finally:
            writes_left.clear()

    return dying


CHANGES: dict[str, tuple[Callable[[Any], None], Callable[[Store, Any], object], str, bool]] = {
    # what happened before; the change; members afterwards; usable before it is repaired
    "add": (lambda p: None, lambda s, p: s.add_member(p.url("d")), "abcd", True),
    "remove": (lambda p: None, lambda s, p: s.remove_member(p.url("a")), "bc", True),
    "emptied": (lambda p: p.empty("b"), lambda s, p: s.repair(), "abc", False),
    "gone": (lambda p: p.take_away("c"), lambda s, p: s.repair(), "ab", False),
}


@pytest.mark.parametrize("name", long_but_for(CHANGES, "remove", "gone"))
def test_a_change_that_dies_anywhere_is_finished_by_another(
    places: Any, dies_at: Callable[[int], Any], name: str
) -> None:
    before, change, members, is_usable = CHANGES[name]
    for writes in count():
        places.begin_anew()
        config = places.config("abcd" if name == "add" else "abc", partition_count=4)
        with Store.open(places.config("abc", partition_count=4)) as store:
            items = filled(store, keys=8)
            before(places)
            died = False
            try:
                with dies_at(writes):
                    change(store, places)
            except Crash:
                died = True
        with Store.open(config) as other:
            if is_usable:
                use_meanwhile(other, items)
            if other.status().is_moving or died:
                other.repair()
                if name == "add" and places.url("d") not in other.table.members:
                    other.add_member(places.url("d"))
                if name == "remove" and places.url("a") in other.table.members:
                    other.remove_member(places.url("a"))
            other.drop_orphans()
            assert_whole(other, places, items, members)
        if not died:
            assert writes > 10
            return


def use_meanwhile(store: Store, items: dict[MapKey, bytes]) -> None:
    """A job that does not wait for the change to be finished."""
    assert store.map("m").get_all(list(items)) == list(items.values())
    first, second, *_ = items
    store.map("m").put_all({first: b"newer"})
    store.map("m").delete_all([second])
    items[first] = b"newer"
    del items[second]
    assert store.map("m").keys() == sorted(items)


_DYING = """
import os, sys
from dagster_jet.store import Store, StoreConfig
urls, step, done = sys.argv[1].split(), sys.argv[2], int(sys.argv[3])
def die(progress):
    if progress.step == step and progress.done >= done:
        os._exit(9)
with Store.open(StoreConfig(tuple(urls[:3]), partition_count=12)) as store:
    store.add_member(urls[3], on_progress=die)
"""


@pytest.mark.parametrize(("step", "done"), [("registers", 1), ("copy", 1), ("gc", 2)])
def test_a_killed_process_is_followed_by_another(tmp_path: Path, step: str, done: int) -> None:
    urls = tuple(f"file://{tmp_path}/{name}" for name in "abcd")
    config = StoreConfig(urls, partition_count=12)
    with Store.open(StoreConfig(urls[:3], partition_count=12)) as store:
        items = filled(store)
    died = subprocess.run(
        [sys.executable, "-c", _DYING, " ".join(urls), step, str(done)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=60,
    )
    assert died.returncode == 9
    with Store.open(config) as store:
        use_meanwhile(store, items)
        store.repair()
        assert store.status().is_safe
        assert store.status().members[3].primaries == 3
        assert store.map("m").get_all(list(items)) == list(items.values())
        assert store.verify().is_whole
