"""Any history of members that join, leave, die, are emptied and repaired, and are written to."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_jet.errors import ConfigurationError, StoreCorruptedError, StoreUnavailableError
from dagster_jet.store import Store
from tests.unit.store.copies import assert_copies, assert_whole, filled

NAMES = "abcdefg"
steps = st.tuples(
    st.sampled_from(["add", "remove", "empty", "take away", "put", "delete"]),
    st.sampled_from(NAMES),
    st.integers(0, 19),
)


@given(st.integers(1, 2), st.lists(steps, min_size=1, max_size=8))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_key_is_on_its_replicas_with_its_newest_value(
    places: Any, backup_count: int, history: list[tuple[str, str, int]]
) -> None:
    places.begin_anew()
    members = set("abc") if backup_count == 1 else set("abcde")
    config = places.config(NAMES, backup_count=backup_count, partition_count=8)
    with Store.open(places.config("".join(members), backup_count=backup_count, partition_count=8)):
        pass
    with Store.open(config) as store:
        items = filled(store, keys=20)
        for number, (what, name, at) in enumerate(history):
            key = store.map("m").key(f"key {at}")
            if what == "put":
                items[key] = b"newer %d" % number
                store.map("m").put_all({key: items[key]})
            elif what == "delete":
                items.pop(key, None)
                store.map("m").delete_all([key])
            elif what in ("empty", "take away"):
                if name in members and len(members) > 2:  # one of two is no majority
                    hit(store, places, name, members, gone=what == "take away")
            else:
                join_or_leave(store, places, name, members, joins=what == "add")
            assert_copies(store, places, items, "".join(members))
        assert_whole(store, places, items, "".join(members))


def hit(store: Store, places: Any, name: str, members: set[str], *, gone: bool) -> None:
    """One member is lost, and the store repaired."""
    if not gone:
        places.empty(name)
        store.repair()
        return
    places.take_away(name)
    try:
        store.repair()
        members.remove(name)
    except (ConfigurationError, StoreCorruptedError, StoreUnavailableError):
        pass  # too few would stay
    places.bring_back(name)


def join_or_leave(store: Store, places: Any, name: str, members: set[str], *, joins: bool) -> None:
    try:
        if joins:
            store.add_member(places.url(name))
            members.add(name)
        else:
            store.remove_member(places.url(name))
            members.remove(name)
    except ConfigurationError:
        pass  # it is a member already, or none, or too few would stay
