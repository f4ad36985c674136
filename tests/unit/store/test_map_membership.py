"""Maps while members come and go: other processes go on, and hear of it by themselves."""

from dagster_jet.maps import JetMap, JournalConfig
from dagster_jet.store import Store

from .conftest import Places


def test_a_map_follows_the_members(places: Places) -> None:
    """One process adds a member and removes another; a second one never opens its store again."""
    here = Store.open(places.config("abc"))
    mine = JetMap.open(here, "m", journal=JournalConfig(1_000))
    mine.put_all([(n, 0) for n in range(40)])
    there = Store.open(places.config("abcd"))
    other = JetMap.open(there, "m")
    other.put_all([(n, 1) for n in range(40)])

    admin = Store.open(places.config("abcd"))
    admin.add_member(places.url("d"))
    other.put_all([(n, 2) for n in range(0, 40, 2)])
    assert mine.get_all(range(4)) == {0: 2, 1: 1, 2: 2, 3: 1}
    mine.put(1, 3)
    admin.remove_member(places.url("a"))
    places.take_away("a")
    assert other.get(1) == 3
    other.delete(0)
    mine.put("new", 4)

    expected = {n: 2 - n % 2 for n in range(2, 40)} | {1: 3, "new": 4}
    for m in (mine, other, JetMap.open(Store.open(places.config("bcd")), "m")):
        assert dict(m.items()) == expected
        state = m.log.read_applied()
        assert state is not None and m.journal is not None
        events = [e for p, tail in state.tails.items() for e in m.journal.read(p, 0, tail)]
        assert len(events) == 40 + 40 + 20 + 1 + 1 + 1
