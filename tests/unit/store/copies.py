"""Expected copies of a store's data, computed without asking the store."""

from typing import Any

from dagster_jet.store import MapKey, Store
from dagster_jet.store.values.envelope import seal

Items = dict[MapKey, bytes]


def filled(store: Store, keys: int = 40) -> Items:
    """Fills a store with some keys and a register."""
    items = {store.map("m").key(f"key {i}"): b"%d" % i for i in range(keys)}
    store.map("m").put_all(items)
    store.register("job").claim(1, "me").write(b"record")
    return items


def assert_copies(store: Store, places: Any, items: Items, members: str) -> None:
    """Every copy on exactly the members of the table, with the newest value."""
    assert sorted(store.table.members) == sorted(places.urls(members))
    for name in members:
        expected = {
            f"map/default/m/{key.partition:04d}/{key.name}".encode(): seal(value)
            for key, value in items.items()
            if places.url(name) in store.table.replicas[key.partition]
        }
        member = places.member(name)
        stored = member.list_keys(b"map/default/m/")
        assert dict(zip(stored, member.get_many(stored), strict=True)) == expected


def assert_whole(store: Store, places: Any, items: Items, members: str) -> None:
    """The same, and the store says so itself; registers have their values."""
    store.refresh()
    assert store.status().is_safe
    assert_copies(store, places, items, members)
    found = store.register("job").read()
    assert found is not None
    assert found.value == b"record"
    verified = store.verify()
    assert verified.is_whole
    assert verified.keys == len(items)
