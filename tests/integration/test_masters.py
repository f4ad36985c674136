"""Rows of large and of small epochs, and the origin of errors, are the same on threads of one
process and on executors of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pytest

from dagster_jet.errors import JetError, MissingEnvironmentError, ProcessorError, UserFunctionError
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long

from . import differential, prepared_cases, small_epochs, whose_error
from .crash_table import KILLED, Crash
from .differential import CASES
from .large_crash_child import LargeWorld
from .other_spark import Run, here, on_a_cluster
from .standalone import standalone

QUICK = {"map_stateful", "windows over windows", "race q5"}
"""Cases of `differential.CASES` that run on a cluster: rows to functions, stages in a row, shared
frames."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Run]:
    with on_a_cluster() as run:
        yield run


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("standalone") / "spark"
    with standalone(folder) as settings, on_a_cluster(settings) as run:
        yield run


@pytest.fixture(params=["local", "cluster"])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "local":
        request.getfixturevalue("spark")
        return here
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that all cases share, with their input."""
    return tmp_path_factory.mktemp("cases")


@long  # test_large_files.py and test_function_order.py have large epochs, test_cluster.py executors
@pytest.mark.parametrize(
    ("case", "run"),
    [
        *((case, "cluster") for case in CASES),
        *((case, "local") for case in CASES),
        *((case, "real_cluster") for case in sorted(QUICK)),
    ],
    indirect=["run"],
)
def test_large_epochs_give_the_rows_of_an_independent_computation(
    folder: Path, request: pytest.FixtureRequest, case: str, run: Run
) -> None:
    master = request.node.callspec.params["run"]
    run(differential.run, case, folder / f"{master}-{case.replace(' ', '-')}")


@long  # those of the local master are below
def test_frames_of_small_epochs_are_made_once(tmp_path: Path, cluster: Run) -> None:
    for epochs, made in cluster(small_epochs.run, tmp_path).values():
        assert made <= 3 < small_epochs.FILES <= epochs, "with rows, without, and the last"


def on_both(cases: Iterable[str], *quick: str, alike: Collection[str] = ()) -> pytest.MarkDecorator:
    """All cases on both masters; of the cluster's `make test` runs those that are quick, of the
    local one's all but those that are like another."""
    return pytest.mark.parametrize(
        ("case", "run"),
        [
            *(pytest.param(case, "local", marks=long if case in alike else []) for case in cases),
            *(pytest.param(case, "cluster", marks=[] if case in quick else long) for case in cases),
        ],
        indirect=["run"],
    )


# On a cluster: test_frames_of_small_epochs_are_made_once. Early results are like late rows.
@on_both(prepared_cases.CASES, alike={"early results"})
def test_a_watermark_is_no_part_of_a_small_epochs_frames(
    tmp_path: Path, case: str, run: Run
) -> None:
    """Neither are early results, nor the time of reading."""
    epochs, made = run(prepared_cases.run, case, tmp_path)
    assert made <= prepared_cases.CASES[case].kinds < prepared_cases.FILES <= epochs


# Like JSON, items and map_journal.
@on_both(whose_error.OURS, alike={"CSV", "nexmark", "map_entries"})
def test_what_our_own_code_raises_in_a_task_is_ours(tmp_path: Path, case: str, run: Run) -> None:
    error: JetError = run(whose_error.of_ours, case, tmp_path / "job")
    assert type(error) is JetError
    assert "raised IndexError: list index out of range" in str(error)
    assert "bug in dagster_jet" in str(error)
    assert "users" not in str(error) and "Correct the function" not in str(error)


@on_both(whose_error.THEIRS)
def test_what_a_users_function_raises_is_the_users(tmp_path: Path, case: str, run: Run) -> None:
    error: JetError = run(whose_error.of_theirs, case, tmp_path / "job")
    kind = ProcessorError if case == "apply_processor" else UserFunctionError
    assert type(error) is kind and error.stage == "users"
    assert "LookupError: oops" in str(error) and "bug in dagster_jet" not in str(error)


@long  # a cluster of three JVMs for one sentence
def test_executors_that_cannot_run_python_are_named_as_such(tmp_path: Path, cluster: Run) -> None:
    error: JetError = cluster(whose_error.of_executors, tmp_path / "job")
    assert type(error) is MissingEnvironmentError and "no pyarrow" in str(error)


@long  # an executor is killed in test_cluster.py, the driver at each point on the local master
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("crash", KILLED, ids=str)
def test_killed_with_large_epochs_on_executors(
    tmp_path: Path, fail_points: FailPoints, crash: Crash
) -> None:
    world = LargeWorld(tmp_path, fail_points).fill()
    world.kill(crash.rules)
    world.assert_nothing_doubled()
    world.finish()
    world.assert_exactly_once()
    assert world.staged() == []
