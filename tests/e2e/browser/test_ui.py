"""A day of the demo's stream as a person sees it in Dagster's UI, in the order of the day.

`make dev` on a fresh clone, one browser; each test goes on where the one before it has stopped. The
rows are compared at the end, after a kill, a cancel and a run too many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from selenium.webdriver.common.by import By

from dagster_jet import JobStatus, StopKind
from dagster_jet.ownership.supervision import read_supervision
from demo.observer import PIPELINE, Run
from demo.oracle import check_outputs
from tests.long import long
from tests.servers.chromium import start_chromium

from .page import Page
from .project import BAD_LINES, FLIGHTS, Project, started_project

pytestmark = pytest.mark.timeout(3600)

SENSOR = "/locations/jet/sensors/airport_delays_supervisor"
LAUNCHPAD = "/locations/jet/jobs/airport_delays_job/playground"
CONTROL = "/locations/jet/jobs/airport_delays_control/playground"
SINK = "/assets/airport_delays/badly_delayed_out"
SOURCES, STAGES = ("flights", "airlines", "weather"), ("hourly_delays",)
SINKS = ("hourly_out", "badly_delayed_out", "bad_rows")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with started_project(tmp_path_factory.mktemp("project")) as project:
        yield project


@pytest.fixture(scope="module")
def page(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    browser = start_chromium(tmp_path_factory.mktemp("profile"), 1600, 900)
    try:
        yield Page(browser, project.url)
    finally:
        browser.quit()


def intent(project: Project) -> str:
    supervision = read_supervision(project.jet.store, PIPELINE)
    assert supervision is not None
    return supervision.intent


def rows_read(page: Page) -> int:
    """Number of rows on an asset's page, in its table of metadata."""
    shown = re.search(r"^rows_read\n.*\n(\d+)$", page.text, re.MULTILINE)
    return int(shown[1]) if shown else 0


def fly_and_see(project: Project, page: Page) -> None:
    """More flights depart, and the page tells of them; nobody reloads it."""
    page.open(SINK).wait_for("Row count", "rows_read")
    rows = project.fly()
    page.wait_until(lambda: rows_read(page) == rows, f"{rows} rows are read")


@long
def test_lineage_from_sources_by_stages_to_sinks(project: Project, page: Page) -> None:
    page.open("/asset-groups").wait_for(*SOURCES, *STAGES, *SINKS, "Materialize all (4)")
    place = {name: page.left_of(name) for name in (*SOURCES, *STAGES, *SINKS)}
    assert max(place[name] for name in SOURCES) < place["hourly_delays"] < place["hourly_out"]
    assert place["badly_delayed_out"] > place["flights"]


def test_the_sensor_starts_it_and_numbers_and_plots_are_live(project: Project, page: Page) -> None:
    page.open("/runs").wait_for("airport_delays_supervisor", "Started")
    project.wait_for("the first files are committed", lambda: project.rows_committed() > 0)
    fly_and_see(project, page)
    page.click("Plots")
    page.wait_for("dagster/row_count", "rows_read", "snapshot_ms")
    page.wait_until(
        lambda: len(page.browser.find_elements(By.TAG_NAME, "canvas")) >= 4, "a plot of each number"
    )


@long
def test_checks_are_green(project: Project, page: Page) -> None:
    """Below one of them is red."""
    page.open(f"{SINK}?view=checks").wait_for("store_safe").click("Execute all")
    page.wait_until(lambda: page.text.count("Succeeded") == 6, "all checks succeed")
    assert "Failed" not in page.text


def test_a_killed_run_turns_failed_and_the_asset_goes_on(project: Project, page: Page) -> None:
    first = project.record().execution_id
    kill_and_see(project, page)
    page.click("Done")
    project.wait_for("it is running again", lambda: project.is_running(first))
    fly_and_see(project, page)
    assert project.run_statuses() == ["FAILURE", "STARTED"]
    assert project.record().restarts == 1
    dead, _ = project.observer.runs()
    page.open(f"/runs/{dead.run_id}").wait_for("Failure", "RUN_FAILURE")


def kill_and_see(project: Project, page: Page) -> None:
    """The log of the tick that has noticed it; it stays open."""
    killed, runs = project.record().execution_id, len(project.observer.runs())
    project.kill_the_run()
    # Soon: the page has the newest ticks only.
    project.wait_for("another run is requested", lambda: len(project.observer.runs()) > runs)

    def said() -> bool:
        page.click_in_row("1 run requested", "View logs").wait_for("requesting run")
        if f"restart: execution {killed} is dead: process" in page.text:
            return True
        page.click("Done")  # an earlier one: this tick is not over yet
        return False

    page.open(SENSOR).wait_until(said, "the tick says why")


@long  # `tests/e2e/test_interrupt.py` cancels a run as the button does, without a browser
def test_a_cancelled_run_takes_its_snapshot_and_stays_down(project: Project, page: Page) -> None:
    project.wait_for("it is running", project.is_running)
    before = project.observer.runs()
    terminate(page, before[-1])
    record = project.record()
    assert record.status is JobStatus.NOT_RUNNING
    assert record.lease is None
    assert record.snapshot is not None and record.snapshot.committed
    supervision = read_supervision(project.jet.store, PIPELINE)
    assert supervision is not None
    assert (supervision.intent, supervision.generation) == ("paused", len(before))

    # The sensor is on and leaves it: a person has said so.
    page.open(SENSOR).wait_until(lambda: "paused" in last_skip_reason(page), "the sensor says why")
    assert len(project.observer.runs()) == len(before)


def terminate(page: Page, run: Run) -> None:
    page.open(f"/runs/{run.run_id}").click("Terminate").click("Terminate 1 run")
    page.wait_for("Canceled")


def last_skip_reason(page: Page) -> str:
    """Returns the skip reason of the newest tick, from the dialog that its result opens."""
    page.click_in_row("View logs", "0 runs requested").wait_for("Skip reason")
    said = page.text[page.text.index("Skip reason") :]
    page.click("Close")
    return said


@long
def test_reexecuted_it_goes_on_and_is_supervised(project: Project, page: Page) -> None:
    """`tests/unit/orchestration/test_surplus_runs.py` re-executes one, without a browser."""
    before, statuses = project.record().execution_id, project.run_statuses()
    (cancelled,) = [run for run in project.observer.runs() if run.status == "CANCELED"]
    # With the tags of the sensor's run; until it has its lease the sensor requests nothing beside.
    page.open(f"/runs/{cancelled.run_id}").wait_for("Canceled").click("Re-execute all (*)")
    project.wait_for("it is running again", lambda: project.is_running(before))
    fly_and_see(project, page)
    assert intent(project) == "always-on"
    page.open(SENSOR).wait_until(lambda: "adopt" in last_skip_reason(page), "it is adopted")
    assert project.run_statuses() == [*statuses, "STARTED"]


def ask(page: Page, action: str) -> None:
    """Submits the form of the control job: its launchpad."""
    asked = f"ops:\n  ask_airport_delays:\n    config:\n      action: {action}\n"
    page.open(CONTROL).write(asked).wait_for("No errors").click("Launch Run")
    page.wait_for("Success")


def suspend(project: Project, page: Page) -> None:
    ask(page, "suspend")
    assert project.record().status is JobStatus.SUSPENDED
    page.open(SENSOR).wait_until(
        lambda: "paused" in last_skip_reason(page), "the tick says it is paused"
    )


@long
def test_suspended_by_the_form_it_is_launched(project: Project, page: Page) -> None:
    before = project.record().execution_id
    suspend(project, page)
    page.open(LAUNCHPAD).wait_for("No errors").click("Launch Run")
    project.wait_for("it is launched", lambda: project.is_running(before))
    fly_and_see(project, page)
    assert intent(project) == "always-on"


@long
def test_suspended_by_the_form_it_is_resumed(project: Project, page: Page) -> None:
    """`tests/unit/orchestration/test_intent.py` asks for both, without a browser."""
    before = project.record().execution_id
    suspend(project, page)
    ask(page, "resume")
    project.wait_for("it is resumed", lambda: project.is_running(before))
    fly_and_see(project, page)
    assert intent(project) == "always-on"


@long
def test_one_too_many_from_the_launchpad_ends_softly(project: Project, page: Page) -> None:
    has_it, statuses = project.record().execution_id, project.run_statuses()
    page.open(LAUNCHPAD).wait_for("No errors").click("Launch Run")
    page.wait_for("Success", "Already running")
    assert project.run_statuses() == [*statuses, "SUCCESS"]
    fly_and_see(project, page)
    assert project.record().execution_id == has_it


@long  # `tests/e2e/test_same_run.py` runs what the button runs, without a browser
def test_materialize_all_reads_what_is_there_and_ends(project: Project, page: Page) -> None:
    (running,) = [run for run in project.observer.runs() if run.status == "STARTED"]
    terminate(page, running)
    rows, record = project.fly(), project.record()
    before = len(batches(project))  # of the checks
    page.open("/asset-groups").click("Materialize all (4)")
    project.wait_for("its run is there", lambda: len(batches(project)) == before + 1)
    page.open(f"/runs/{batches(project)[-1].run_id}").wait_for("Success", "RUN_SUCCESS")
    assert project.rows_committed() == rows
    assert project.record().execution_id == record.execution_id + 1
    assert intent(project) == "paused", "as before"
    page.open(LAUNCHPAD).wait_for("No errors").click("Launch Run")
    project.wait_for("it runs again", lambda: project.is_running(record.execution_id + 1))


def batches(project: Project) -> list[Run]:
    return project.observer.runs("__ASSET_JOB")


def test_every_row_is_there_once(project: Project) -> None:
    complete(project)


def complete(project: Project) -> None:
    """All flights depart, the job ends, and its rows are compared."""
    rows = project.fly(len(project.waiting))
    assert rows == FLIGHTS + BAD_LINES
    project.wait_for("all rows are committed", lambda: project.rows_committed() == rows)
    project.jet.job(PIPELINE).request_stop(StopKind.COMPLETE)
    project.wait_for("the job is completed", lambda: project.record().status is JobStatus.COMPLETED)
    verdict = check_outputs(project.folder / "csv", project.data / "inbox", project.data / "out")
    assert verdict.is_exact, verdict
    assert (verdict.flights, verdict.bad_lines) == (FLIGHTS, BAD_LINES)


@long
def test_a_check_is_red_when_the_store_has_lost_a_member(project: Project, page: Page) -> None:
    """`tests/unit/orchestration/test_asset_checks.py` looks at all checks, and test_true_pages.py
    opens one."""
    if project.record().status is not JobStatus.COMPLETED:  # without the test of the rows
        complete(project)
    member = project.data / "store" / "c"
    member.rename(project.data / "store-c-is-away")
    page.open(f"{SINK}?view=checks").wait_for("store_safe").click("Execute all")
    page.click("store_safe", "*").wait_for("Failed", "does not answer", "Bring it back")


def test_ctrl_c_ends_all_of_it(project: Project) -> None:
    family = project.family()
    assert len(family) > 4, "make dev, dagster dev, webserver, daemon, code server"
    assert project.interrupt() == 0
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert Path(project.data / "store").exists()
