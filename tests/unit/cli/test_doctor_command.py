"""``dagster-jet doctor``: what it says of an instance's settings, and its exit codes."""

import json
import re
from pathlib import Path

import dagster as dg
import pytest
from click.testing import Result
from dagster import DagsterRunStatus
from dagster._core.test_utils import create_run_for_test
from typer.testing import CliRunner

from dagster_jet import build_jet_supervisor_sensor
from dagster_jet.cli import app
from dagster_jet.orchestration.run_queue import RunQueue, warn_of_few_slots

PAGE = Path(__file__).parents[3] / "docs" / "production.md"
BAD = """
run_monitoring: {enabled: true, cancel_timeout_seconds: 20, max_runtime_seconds: 3600}
run_retries: {enabled: true, max_retries: 3}
retention: {sensor: {purge_after_days: {skipped: 30}}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of one instance for all tests: making its databases takes longer than the tests."""
    return tmp_path_factory.mktemp("home")


def doctor(home: Path, settings: str, *options: str) -> Result:
    (home / "dagster.yaml").write_text(settings, encoding="utf-8")
    return CliRunner().invoke(app, ["doctor", *options], env={"DAGSTER_HOME": str(home)})


def refused(shown: Result) -> dict[str, str]:
    """The questions that were answered by no, and their cures."""
    found = json.loads(shown.stdout)["answers"]
    return {one["question"]: one["cure"] for one in found if one["verdict"] == "no"}


def test_what_is_wrong_has_a_setting_and_the_pages_settings_are_good(home: Path) -> None:
    wrong = doctor(home, BAD, "--streams", "12", "--json")
    assert wrong.exit_code == 1, wrong.output
    assert refused(wrong) == {
        "The run queue has a slot for every stream, and more": (
            "concurrency: {runs: {max_concurrent_runs: 22}}"
        ),
        "A cancelled stream has time for its terminal snapshot": (
            "run_monitoring: {cancel_timeout_seconds: 60}"
        ),
        "Runs have no maximum duration": "run_monitoring: {max_runtime_seconds: 0}",
        "Dagster does not retry runs by itself": "run_retries: {max_retries: 0}",
        "A slow tick does not delay the ticks of other sensors": (
            "sensors: {use_threads: true, num_workers: 8}"
        ),
        "Ticks that request nothing are deleted soon": (
            "retention: {sensor: {purge_after_days: {skipped: 1}}}"
        ),
        "Failed ticks are deleted": "retention: {sensor: {purge_after_days: {failure: 30}}}",
    }
    (settings,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    good = doctor(home, settings, "--streams", "12")
    assert good.exit_code == 0, good.output
    assert "The instance suits its streams." in good.stdout
    assert "unknown" in good.stdout, "no daemon has run"


def test_streams_that_wait_in_the_queue_count(home: Path) -> None:
    (home / "dagster.yaml").write_text("", encoding="utf-8")
    tags = {"dagster_jet/kind": "stream"}
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for number in range(2):
            of = {**tags, "dagster_jet/pipeline": f"p{number}"}
            create_run_for_test(instance, "a", status=DagsterRunStatus.STARTED, tags=of)
            create_run_for_test(instance, "a", tags=of)
        other = {"dagster_jet/kind": "partition", "dagster_jet/pipeline": "p@*"}
        create_run_for_test(instance, "a", status=DagsterRunStatus.STARTED, tags=other)
    shown = doctor(home, "concurrency: {runs: {max_concurrent_runs: 2}}")
    assert shown.exit_code == 1
    said = " ".join(shown.stdout.split())
    assert "Dagster instance, 2 streams" in said
    assert "run_monitoring: {enabled: true" in said


def test_standbys_hold_slots_too(home: Path) -> None:
    (home / "dagster.yaml").write_text("", encoding="utf-8")
    tags = {"dagster_jet/kind": "standby", "dagster_jet/pipeline": "p0"}
    with dg.DagsterInstance.from_config(str(home)) as instance:
        create_run_for_test(instance, "a", status=DagsterRunStatus.STARTED, tags=tags)
    settings = "concurrency: {runs: {max_concurrent_runs: 3}}"
    shown = json.loads(doctor(home, settings, "--streams", "2", "--json").stdout)
    assert (shown["streams"], shown["standbys"]) == (2, 1)
    (slots,) = [one for one in shown["answers"] if "run queue" in one["question"]]
    assert slots["verdict"] == "no" and "there are 2 and 1" in slots["meaning"], slots
    assert slots["cure"] == "concurrency: {runs: {max_concurrent_runs: 13}}"
    enough = doctor(home, settings, "--streams", "2", "--standbys", "0", "--json")
    assert "The run queue has a slot for every stream, and more" not in refused(enough)


def test_no_instance_is_a_sentence(home: Path) -> None:
    shown = CliRunner().invoke(app, ["doctor"], env={"DAGSTER_HOME": ""})
    assert shown.exit_code == 2 and "DAGSTER_HOME is not set" in shown.stderr
    unknown = doctor(home, "run_queue: {password: hunter2}")
    assert unknown.exit_code == 2 and "cannot be opened" in unknown.stderr
    assert "hunter2" not in unknown.output


@pytest.mark.parametrize(
    ("queue", "streams", "said", "cure"),
    [
        (RunQueue(), 1_000, None, ""),
        (RunQueue(slots=11, stream_limit=10), 10, None, ""),
        (RunQueue(slots=10), 10, "no slot is left", "max_concurrent_runs: 20"),
        (RunQueue(slots=0), 0, "has 0 slots", "max_concurrent_runs: 10"),
        (RunQueue(slots=30, stream_limit=5), 6, "the others wait", "value: stream, limit: 6"),
    ],
)
def test_slots_and_limits_of_streams(
    queue: RunQueue, streams: int, said: str | None, cure: str
) -> None:
    shortage = queue.shortage(streams)
    assert shortage is None if said is None else said in (shortage or "")
    assert cure in queue.cure(streams)


def test_the_first_tick_warns_of_a_queue_with_fewer_slots_than_streams(home: Path) -> None:
    @dg.job
    def idle() -> None: ...

    streams = [build_jet_supervisor_sensor(job=idle, pipeline=name) for name in "ab"]
    definitions = dg.Definitions(jobs=[idle], sensors=streams, resources={"jet": 1})
    settings = "concurrency: {runs: {max_concurrent_runs: 2}}"
    doctor(home, settings)
    with (
        dg.DagsterInstance.from_config(str(home)) as instance,
        dg.build_sensor_context(instance=instance, definitions=definitions) as context,
    ):
        said: list[str] = []
        context.log.warning = said.append
        warn_of_few_slots(context)
    (warning,) = said
    assert "has 2 slots. Each stream holds one for as long as it runs, and there are 2" in warning
    assert "In dagster.yaml: concurrency: {runs: {max_concurrent_runs: 12}}" in warning
