"""Groups in Spark's order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dagster_jet.operators.partials.ordering import order_in_groups


def test_maps_with_nulls_and_structs_have_an_order() -> None:
    item = pa.struct([("x", pa.int64())])
    values = [[("a", {"x": 2})], [("a", None)], None, [("a", {"x": 1})]]
    maps = pa.array(values, pa.map_(pa.string(), item))
    order = order_in_groups(np.zeros(4, np.int64), [maps])
    assert order.tolist() == [2, 1, 3, 0]
