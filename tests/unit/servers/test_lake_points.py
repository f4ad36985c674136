"""The named points at which the soak kills, and the places of its tables."""

from __future__ import annotations

from tests.integration.crash_table import all_points
from tests.soak.__main__ import settings
from tests.soak.lake_round import POINTS, TOGETHER, WAITING
from tests.soak.round import LAKE_PLACES


def test_the_soak_kills_at_points_that_there_are() -> None:
    points = (*POINTS, *TOGETHER, *WAITING)
    assert {*points} <= all_points() and len({*points}) == len(points)


def test_the_kills_are_shared_among_the_places_with_and_without_held_transactions() -> None:
    rounds = settings(200, 1, lake=LAKE_PLACES)
    assert {(one.lake, one.held) for one in rounds} == {
        (place, held) for place in LAKE_PLACES for held in (False, True)
    }
    assert {
        place: sum(r.kills for r in rounds if r.lake == place) for place in LAKE_PLACES
    } == dict.fromkeys(LAKE_PLACES, 50)
    assert {one.lake for one in settings(8, 1, lake=LAKE_PLACES)} == {*LAKE_PLACES}


def test_rows_wait_in_each_place_and_do_not() -> None:
    for kills, places in ((200, LAKE_PLACES), (100, ("s3",))):
        rounds = settings(kills, 1, lake=places)
        assert {(one.lake, one.waits) for one in rounds} == {
            (place, waits) for place in places for waits in (False, True)
        }
    assert not any(one.waits for one in settings(200, 1, kafka=True))


def test_only_a_server_of_a_catalog_is_killed() -> None:
    of_rest = {one.lake: "catalog" in one.victims for one in settings(8, 1, lake=LAKE_PLACES)}
    assert of_rest == {"local": False, "s3": False, "rest-s3": True, "rest": True}
