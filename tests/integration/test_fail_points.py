"""No step of the protocol stays untested: the points come from the source code, not from a list.

That each was reached is the last test of test_killed.py and of test_crashes.py.
"""

from __future__ import annotations

from pathlib import Path

from dagster_jet.testing.failpoints import FailPoints

from .crash_table import all_points


def test_every_point_in_the_source_has_a_crash() -> None:
    source = FailPoints.in_source()
    untested = {name: place for name, place in source.items() if name not in all_points()}
    assert not untested, f"add a crash to crash_table.py for each of {untested}"
    assert all_points() <= set(source), f"gone from the source: {all_points() - set(source)}"


def test_points_are_found_in_code(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text(
        'fail_point("one")\n\ndef f(purpose):\n'
        '    failpoint.fail_point(f"x.{purpose.value}.before")\n'
    )
    (package / "b.py").write_text(
        "WriteRecord(Purpose.SNAPSHOT, r)\nWriteRecord(Purpose.STARTING, r)\n"
    )
    assert FailPoints.in_source(package) == {
        "one": "package/a.py:1",
        "x.snapshot.before": "package/a.py:4",
        "x.starting.before": "package/a.py:4",
    }
