"""Python and Spark put every key into the same partition.

The vectors come from Spark 4.1: ``select xxhash64(...), pmod(xxhash64(...), 271)``, session time
zone UTC.
"""

from datetime import date, datetime, timedelta, timezone

import pytest

from dagster_jet.store import key_hash, partition_id

UTC = timezone.utc

VECTORS = [
    (("abc",), 1423657621850124518, 178),
    (("",), -7444071767201028348, 197),
    (("a",), -8582455328737087284, 227),
    (("abcdefg",), 3761890393722740389, 228),
    (("abcdefghi",), -7093207067522615973, 242),
    (("Grüße, 世界",), -5804867975701851622, 112),
    (("x" * 31,), -1716462135722163746, 208),
    (("0123456789abcdef" * 5 + "xyz",), 6754285940798589868, 140),
    ((1,), -7001672635703045582, 87),
    ((0,), -5252525462095825812, 38),
    ((-1,), 3858142552250413010, 240),
    ((2**63 - 1,), -3246596055638297850, 259),
    ((-(2**63),), -8619748838626508300, 251),
    ((True,), -6698625589789238999, 84),
    ((False,), 3614696996920510707, 110),
    ((1.5,), 7738255526519901366, 127),
    ((-0.0,), -5252525462095825812, 38),
    ((0.0,), -5252525462095825812, 38),
    ((float("nan"),), -3127944061524951246, 198),
    ((-float("nan"),), -3127944061524951246, 198),
    ((datetime(2024, 1, 1, tzinfo=UTC),), 3859582417520161651, 38),
    ((datetime(2024, 1, 1, 0, 0, 0, 1),), 8890093528646052055, 119),
    ((datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),), 3858142552250413010, 240),
    ((date(2024, 2, 29),), 4183429117450946631, 214),
    ((date(1969, 12, 31),), 2017008487422258757, 73),
    ((None,), 42, 42),
    ((b"\x00\xff\x10",), 5415089035989094387, 33),
    (("", None), -7444071767201028348, 197),
    ((None, "a"), -8582455328737087284, 227),
    (("a", 2), -8186034249051070164, 72),
    ((2, "a"), 7227797915309318944, 249),
    (("a", None, 2, True), -984685210529046704, 180),
]


@pytest.mark.parametrize(("columns", "spark_hash", "spark_partition"), VECTORS)
def test_spark_computes_the_same(columns: tuple, spark_hash: int, spark_partition: int) -> None:
    assert key_hash(*columns) == spark_hash
    assert partition_id(*columns) == spark_partition


def test_an_instant_hashes_the_same_in_every_zone() -> None:
    instant = datetime(2024, 1, 1, tzinfo=UTC)
    elsewhere = instant.astimezone(timezone(timedelta(hours=-7)))
    assert key_hash(instant) == key_hash(elsewhere)


def test_partitions_are_not_negative_and_all_are_used() -> None:
    used = {partition_id(number, partition_count=7) for number in range(200)}
    assert used == set(range(7))


def test_a_value_spark_hashes_otherwise_is_refused() -> None:
    with pytest.raises(TypeError, match="list"):
        key_hash([1])
    with pytest.raises(OverflowError):
        key_hash(2**63)
