"""Large epochs, which several tasks read: in these tests from fewer rows on than by default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from dagster_jet.execution import epoch_driver

FEW_ROWS = 20_000
"""An epoch of more rows is large, with two cores or more."""


@contextmanager
def large_from_few_rows_on() -> Iterator[None]:
    with patch.object(epoch_driver, "SPARED_ROWS", FEW_ROWS // 2):
        yield
