"""A table of a lake that is not there: it is created, or the start is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import sinks
from dagster_jet.errors import ConfigurationError

from .delta_table import SCHEMA
from .iceberg_rows import NAME, options_at
from .test_schema_evolution import begin


def delta(folder: Path, **options: Any) -> Any:
    return sinks.delta(f"{folder}/rows", **options)


def iceberg(folder: Path, **options: Any) -> Any:
    place: Any = options_at(folder)
    return sinks.iceberg("lake", NAME, catalog_options=place, **options)


@pytest.mark.parametrize("sink", [delta, iceberg])
def test_a_mistyped_name_is_refused_by_word(tmp_path: Path, sink: Callable[..., Any]) -> None:
    careful = sink(tmp_path, create_table=False)
    with pytest.raises(ConfigurationError, match=r"there is no table '.*rows'") as refused:
        careful.at_start("j", "out", on_one_host=True)
    assert (refused.value.job, refused.value.stage) == ("j", "out")
    assert "leave create_table=False out" in str(refused.value.cure)
    assert {one.name for one in tmp_path.iterdir()} <= {"catalog.db"}, "nothing is created"
    begin(sink(tmp_path).at_start("j", "out", on_one_host=True), SCHEMA)
    begin(careful.at_start("j", "out", on_one_host=True), SCHEMA)
