"""``dagster-jet store``: what it prints, what it changes, and its exit codes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from dagster_jet.cli import app
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, record_register
from dagster_jet.snapshot.manifest import Manifest, checksum
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef
from dagster_jet.store import MapKey, Store, StoreConfig

Run = Callable[..., Result]


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return [f"file://{tmp_path}/{name}" for name in "abc"]


@pytest.fixture
def store(urls: list[str]) -> None:
    with Store.open(StoreConfig(tuple(urls), partition_count=12)) as store:
        store.map("m").put_all({MapKey(p, "k"): b"value" for p in range(12)})


@pytest.fixture
def run(urls: list[str]) -> Run:
    def run(*arguments: str, store: list[str] | None = None) -> Result:
        environment = {"DAGSTER_JET_STORE": " ".join(store or urls), "COLUMNS": "200"}
        return CliRunner().invoke(app, list(arguments), env=environment)

    return run


@pytest.mark.usefixtures("store")
def test_a_safe_store_is_told_by_a_table_and_by_exit_code_0(run: Run, urls: list[str]) -> None:
    shown = run("store", "status")
    assert shown.exit_code == 0
    assert all(url in shown.stdout for url in urls)
    assert "Safe: every partition has all its replicas." in shown.stdout
    document = json.loads(run("store", "status", "--json").stdout)
    assert document["safe"] is True
    assert [member["member_id"] for member in document["members"]] == urls
    assert document["members"][0]["primaries"] == 4


@pytest.mark.usefixtures("store")
def test_a_lost_member_is_told_by_exit_code_1_and_repaired(
    run: Run, urls: list[str], tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "b")
    shown = run("store", "status")
    assert shown.exit_code == 1
    assert "Not safe: 8 partitions have fewer replicas" in shown.stdout
    assert json.loads(run("store", "status", "--json").stdout)["under_replicated"][0] == {
        "partition": 0,
        "missing": 1,
        "away": [urls[1]],
    }
    assert run("store", "verify").exit_code == 1
    (tmp_path / "b").mkdir()  # whoever repairs says so that the disk is there, and empty
    repaired = run("store", "repair")
    assert repaired.exit_code == 0, repaired.stdout
    assert f"{urls[1]} was given its data again." in repaired.stdout
    assert run("store", "status").exit_code == 0
    assert json.loads(run("store", "verify", "--json").stdout)["copies"] == 24


@pytest.mark.usefixtures("store")
def test_members_are_added_and_removed(run: Run, urls: list[str], tmp_path: Path) -> None:
    new = f"file://{tmp_path}/d"
    added = run("store", "add", new)
    assert added.exit_code == 0, added.stdout + added.stderr
    assert f"{new} joined." in added.stdout
    assert "Add its URL to the configuration of every job" in added.stdout
    status = run("store", "status")
    assert status.exit_code == 0
    assert f"{new} is a member, but not configured here: add its URL." in status.stdout
    removed = run("store", "remove", urls[0], "--json", store=[*urls, new])
    assert removed.exit_code == 0, removed.stdout
    assert json.loads(removed.stdout)["left"] == [urls[0]]
    left = run("store", "status", store=[*urls, new])
    assert left.exit_code == 0
    assert f"{urls[0]} is not a member of this store" in left.stdout


@pytest.mark.usefixtures("store")
def test_what_cannot_be_done_is_a_sentence_and_exit_code_2(run: Run, urls: list[str]) -> None:
    for arguments, said in (
        (("store", "add", urls[0]), "is already a member of the store"),
        (("store", "remove", "file:///not/a/member"), "is not a member of the store"),
        (("store", "add", "ftp://x"), "is not a known scheme"),
        (("store", "remove"), "Missing argument"),
    ):
        shown = run(*arguments)
        assert shown.exit_code == 2
        assert said in shown.stderr
        assert "Traceback" not in shown.stderr


def test_looking_does_not_create_a_store(run: Run, urls: list[str]) -> None:
    for arguments in (("store", "status"), ("jobs",), ("store", "repair")):
        shown = run(*arguments)
        assert shown.exit_code == 2
        assert "no store was found on file://" in shown.stderr
        assert "a store is created by the first job" in shown.stderr


@pytest.mark.usefixtures("store")
def test_an_interrupted_repair_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dagster_jet.store.upkeep.administration.verify_store", interrupted)
        shown = run("store", "repair")
    assert shown.exit_code == 1
    assert "'dagster-jet store repair' continues from here" in shown.stdout
    assert run("store", "repair").exit_code == 0


# --- garbage ----------------------------------------------------------------------------------


def manifest(execution: int, snapshot: int) -> Manifest:
    return Manifest(
        job="j",
        snapshot_id=snapshot,
        epoch_id=1,
        execution_id=execution,
        timeline=1,
        plan_fingerprint="",
        partition_count=12,
        sources={},
        watermarks={},
        shards={},
        artifacts=(),
    )


def ref(of: Manifest) -> SnapshotRef:
    return SnapshotRef(
        of.snapshot_id, 1, of.execution_id, of.name, checksum(of.to_bytes()), 0, 0, True
    )


def with_job(urls: list[str], status: JobStatus) -> list[str]:
    """A job whose record names one snapshot; a dead execution has left another and a chunk."""
    with Store.open(StoreConfig(tuple(urls), partition_count=12)) as store:
        kept, dead = manifest(2, 7), manifest(1, 8)
        state, directory = store.map("jobs/j/state"), store.map(JOB_DIRECTORY)
        state.put_all(
            {
                state.key(kept.name): kept.to_bytes(),
                state.key(dead.name): dead.to_bytes(),
                state.key("stage/000000000008-1-0-0"): b"chunk of a dead execution",
                state.key("stage/000000000009-3-0-0"): b"chunk of an execution to come",
            }
        )
        directory.put_all({directory.key("j"): b""})
        record = ExecutionRecord("j", 2, status, snapshots=(ref(kept),))
        store.register(record_register("j")).claim(2, "me").write(record.to_bytes())
        return [kept.name, "stage/000000000009-3-0-0"]


def names(urls: list[str]) -> list[str]:
    with Store.open(StoreConfig(tuple(urls), partition_count=12)) as store:
        return sorted(key.name for key in store.map("jobs/j/state").keys(""))


@pytest.mark.usefixtures("store")
def test_gc_keeps_what_the_record_names_and_what_is_to_come(run: Run, urls: list[str]) -> None:
    kept = with_job(urls, JobStatus.SUSPENDED)
    assert len(names(urls)) == 4
    shown = run("store", "gc", "--json")
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout) == {
        "jobs": [{"job": "j", "removed": 2, "skipped": None}],
        "of_exports": 0,
        "leftover_copies": 0,
    }
    assert names(urls) == kept


@pytest.mark.usefixtures("store")
def test_gc_leaves_a_live_job_alone(run: Run, urls: list[str]) -> None:
    with_job(urls, JobStatus.RUNNING)
    shown = run("store", "gc")
    assert shown.exit_code == 0
    assert "it is RUNNING" in shown.stdout
    assert len(names(urls)) == 4


@pytest.mark.usefixtures("store")
def test_gc_removes_copies_from_members_that_do_not_hold_them(run: Run, urls: list[str]) -> None:
    with Store.open(StoreConfig(tuple(urls), partition_count=12)) as store:
        elsewhere = next(m for m in urls if m not in store.table.replicas[0])
        config = store.config
    member = config.open_member(elsewhere)
    member.put_many({b"map/default/m/0000/left over": b"copy"})
    assert json.loads(run("store", "gc", "--json").stdout)["leftover_copies"] == 1
    assert member.list_keys(b"map/default/m/0000/left") == []
    member.close()


@pytest.mark.usefixtures("store")
def test_jobs_are_listed_whatever_the_settings_of_the_store(run: Run, urls: list[str]) -> None:
    with_job(urls, JobStatus.SUSPENDED)
    (row,) = json.loads(run("jobs", "--json").stdout)
    assert (row["job"], row["status"], row["execution"]) == ("j", "SUSPENDED", 2)
    assert json.loads(run("snapshots", "j", "--json").stdout)[0]["snapshot"] == 7
    assert run("job", "unknown").exit_code == 2


@pytest.mark.usefixtures("store")
def test_a_store_is_named_by_a_variable_or_in_a_file(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_FIRST", urls[0])
    (tmp_path / "others").write_text("\n".join(urls[1:]) + "\n")
    options = ["--store", "env:THE_FIRST", "--store", f"@{tmp_path}/others"]
    shown = CliRunner().invoke(app, ["store", "status", "--json", *options])
    assert [m["member_id"] for m in json.loads(shown.stdout)["members"]] == urls
    missing = CliRunner().invoke(app, ["store", "status", "--store", "@/no/such/file"])
    assert missing.exit_code == 2 and "cannot be read" in missing.stderr


def test_a_password_on_the_command_line_is_refused(run: Run) -> None:
    """Failed before: everybody on the machine could read it in the list of processes."""
    url = "redis://:hunter2@127.0.0.1:1/0?timeout=0.1&connect_timeout=0.1"
    for arguments in (["store", "status", "--store", url], ["store", "add", url]):
        refused = run(*arguments)
        assert refused.exit_code == 2
        assert "is on the command line" in refused.stderr and "--store @FILE" in refused.stderr
        assert "hunter2" not in refused.stderr
    allowed = run("store", "status", store=[url])  # from the environment
    assert "command line" not in allowed.stderr and "hunter2" not in allowed.stderr
