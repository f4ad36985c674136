"""One Spark session for all tests of this process, and a fresh world for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_jet.spark.cluster.session import open_session
from dagster_jet.system import failpoint
from dagster_jet.testing.failpoints import FailPoints

from .child import SPARK
from .world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def fail_points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailPoints]:
    """Collects the points that any process of this test session has acted upon."""
    points = FailPoints(tmp_path_factory.mktemp("fail_points") / "reached.log")
    os.environ["JET_FAIL_POINT_LOG"] = str(points.log)
    yield points
    del os.environ["JET_FAIL_POINT_LOG"]


@pytest.fixture(scope="session")
def spark(fail_points: FailPoints) -> Iterator[SparkSession]:
    """Shared by everything that does not need a process of its own."""
    session = open_session(SPARK)
    yield session
    session.stop()


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession, fail_points: FailPoints) -> Iterator[World]:
    """Empty world; see `World.fill`."""
    yield World(tmp_path, fail_points, spark)
    failpoint.configure("")
