"""Users can install and use the wheel, built from the sdist."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import dagster as dg
import pandas
import psutil
import pytest
from packaging.requirements import Requirement
from pyspark.sql.pandas.utils import require_minimum_pandas_version

import dagster_jet
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.run_worker import RunWorker
from tests.e2e.test_component import DEFINITIONS
from tests.e2e.test_component import PROJECT as LAKE
from tests.long import long
from tests.servers import wait_until
from tests.servers.members import free_port

from .tiny import committed_rows

REPOSITORY = Path(__file__).parents[2]
PROJECT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
BUILD = [sys.executable, "-m", "build", str(REPOSITORY), "--outdir"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run([*BUILD, str(place)], check=True)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def empty_environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and its declared dependencies. Returns its folder.

    Nothing is downloaded: what is declared is linked, from this environment, and nothing else is.
    """
    place = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    options = ["--quiet", "--no-compile", "--no-deps", "--no-index"]
    subprocess.run([*pip, "install", *options, str(built)], check=True)
    about = zipfile.Path(built, f"dagster_jet-{dagster_jet.__version__}.dist-info/")
    link(metadata.PathDistribution(about).requires or [], place)
    subprocess.run([*pip, "check"], check=True)
    return place


def link(requirements: Iterable[str], environment: Path) -> None:
    """Links what is required, and what that requires, without its scripts."""
    (libraries,) = (environment / "lib").glob("python3*/site-packages")
    owners = metadata.packages_distributions()
    todo, seen = wanted(requirements), set()
    while todo:
        one = todo.pop()
        if (one.name, *sorted(one.extras)) in seen:
            continue
        seen.add((one.name, *sorted(one.extras)))
        found = metadata.distribution(one.name)
        todo += wanted(found.requires or (), *one.extras)
        for file in found.files or ():
            shared = len(set(owners.get(file.parts[0], ()))) > 1  # a namespace: link its files
            name = libraries / (file if shared else file.parts[0])
            if file.parts[0] != ".." and not name.exists():
                name.parent.mkdir(parents=True, exist_ok=True)
                name.symlink_to(found.locate_file(name.relative_to(libraries)))


def wanted(requirements: Iterable[str], *extras: str) -> list[Requirement]:
    """Requirements that hold in this environment with these extras."""
    return [
        one
        for one in map(Requirement, requirements)
        if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))
    ]


@pytest.fixture(scope="module")
def with_dg(empty_environment: Path) -> Path:
    """The same environment with `dg` and Dagster's webserver, which are not declared."""
    link(["dagster-dg-cli", "dagster-webserver"], empty_environment)
    script = empty_environment / "bin" / "dg"
    _, program = Path(sys.executable).with_name("dg").read_text(encoding="utf-8").split("\n", 1)
    script.write_text(f"#!{empty_environment}/bin/python\n{program}", encoding="utf-8")
    script.chmod(0o755)
    return empty_environment


def variables(home: Path) -> dict[str, str]:
    """Environment variables of a new shell."""
    kept = {k: v for k, v in os.environ.items() if k in ("JAVA_HOME", "JDK_JAVA_OPTIONS")}
    return {**kept, "HOME": str(home), "DAGSTER_JET_CLASS_ARCHIVE": "off"}


def run_in(environment: Path, folder: Path, *command: str) -> str:
    """Runs a command as in a new shell, outside the checkout. Returns its output."""
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder,
        env={**variables(folder), "PATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """No `pipelines`, `resources` or `tests` that would hide a user's own."""
    names = wheel.namelist()
    about = f"dagster_jet-{dagster_jet.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"dagster_jet", about}
    written = {path for path in (REPOSITORY / "dagster_jet").rglob("*") if path.is_file()}
    ours = {str(p.relative_to(REPOSITORY)) for p in written if p.parent.name != "__pycache__"}
    assert {name for name in names if not name.startswith(about)} == ours


def test_the_checkout_builds_the_same_as_the_sdist(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    subprocess.run([*BUILD, str(tmp_path), "--wheel"], check=True)
    (path,) = tmp_path.iterdir()
    direct = zipfile.ZipFile(path)
    names = direct.namelist()
    assert sorted(names) == sorted(wheel.namelist())
    assert [name for name in names if direct.read(name) != wheel.read(name)] == []


def test_it_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert "dagster_jet/py.typed" in wheel.namelist()


def test_it_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    """The version is that of the package, which is written in one place."""
    about = f"dagster_jet-{dagster_jet.__version__}.dist-info"
    said = Parser().parsestr(wheel.read(f"{about}/METADATA").decode())
    assert said["Version"] == dagster_jet.__version__
    assert dagster_jet.__version__ not in PROJECT
    (source,) = re.findall(r'^Source = "(.+)"$', PROJECT, re.MULTILINE)
    assert said["Project-URL"] == f"Source, {source}"
    assert said["Description-Content-Type"] == "text/markdown"
    entry_points = wheel.read(f"{about}/entry_points.txt").decode()
    assert "[dagster_dg_cli.registry_modules]\ndagster_jet = dagster_jet\n" in entry_points


def test_the_first_example_runs_with_what_is_declared(
    empty_environment: Path, tmp_path: Path
) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    example, printed = re.findall(r"^```(?:python)?\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[
        :2
    ]
    script = tmp_path / "auctions.py"
    script.write_text(example.replace("/tmp/jet", str(tmp_path / "store")), encoding="utf-8")
    rows = re.compile(r"^│ .* │$", re.MULTILINE)
    said = run_in(empty_environment, tmp_path, "python", str(script))
    assert sorted(rows.findall(said)) == sorted(rows.findall(printed)) != []


def test_the_terminal_works_with_what_is_declared(empty_environment: Path, tmp_path: Path) -> None:
    assert "snapshots" in run_in(empty_environment, tmp_path, "dagster-jet", "--help")


BESIDE = ("dagster-dbt", "dbt-core", "dagster-dlt", "dlt", "delta-spark", "pandas>=2,<3")
RESOLVED = {
    **{f"Python 3.{minor}": (f"3.{minor}", set[str](), ()) for minor in (10, 11, 12, 13)},
    "Python 3.14": ("3.14", {"sketches"}, ()),
    "beside others": ("3.11", set(), BESIDE),
}
"""The Python, the extras that it lacks, and what is installed beside, by the name of a case."""


def resolve(wheel: Path, folder: Path, python: str, *beside: str, extras: str = "") -> str:
    """Resolves the wheel's requirements from the registry, as `uv pip install` does.

    Only wheels count, as if no compiler were there. PySpark has none: its requirements are this
    environment's, so that its 400 MB are not downloaded. Returns the versions, or the refusal.
    """
    folder.mkdir()
    spark = metadata.requires("pyspark") or []
    (folder / "uv.toml").write_text(
        f'[[dependency-metadata]]\nname = "pyspark"\nrequires-dist = {json.dumps(spark)}\n',
        encoding="utf-8",
    )
    wanted = folder / "wanted.in"
    wanted.write_text("\n".join([f"dagster-jet[{extras}] @ {wheel.as_uri()}", *beside]), "utf-8")
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--config-file", "uv.toml"]
    options = ["--only-binary", ":all:", "--no-binary", "pyspark", "--no-header", "--no-annotate"]
    done = subprocess.run(
        [*uv, *options, "--quiet", "--python-version", python, str(wanted)],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def resolved(built: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Resolved packages of each case. All cases run at once: they wait for the registry."""
    place = tmp_path_factory.mktemp("resolved")
    about = zipfile.Path(built, f"dagster_jet-{dagster_jet.__version__}.dist-info/")
    known = set(metadata.PathDistribution(about).metadata.get_all("Provides-Extra") or ())

    def case(number: int, python: str, missing: set[str], beside: tuple[str, ...]) -> str:
        extras = ",".join(sorted(known - missing))
        return resolve(built, place / f"{number}", python, *beside, extras=extras)

    with ThreadPoolExecutor(len(RESOLVED)) as pool:
        said = pool.map(lambda one: case(one[0], *one[1]), enumerate(RESOLVED.values()))
        return dict(zip(RESOLVED, said, strict=True))


@long  # half a minute of the registry's; what is declared is installed below
@pytest.mark.parametrize("case", RESOLVED)
def test_what_it_requires_exists(case: str, resolved: dict[str, str]) -> None:
    """All extras, of which `sketches` has no wheel for Python 3.14."""
    python, missing, beside = RESOLVED[case]
    found = {line.partition("==")[0]: line.strip() for line in resolved[case].splitlines()}
    assert {"dagster", "pyspark", *(Requirement(one).name for one in beside)} <= found.keys()
    assert ("datasketches" in found) == ("sketches" not in missing)
    assert found["pandas"].startswith("pandas==2."), python


@long
def test_pandas_3_is_refused_because_spark_warns_of_it(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once PySpark supports it, this fails, and the bound goes."""
    refusal = resolve(built, tmp_path / "uv", "3.14", "pandas>=3")
    assert "dagster-jet==0.1.0 depends on pandas>=2.2,<3" in " ".join(refusal.split())
    monkeypatch.setattr(pandas, "__version__", "3.0.0")
    with pytest.warns(FutureWarning, match="does not yet fully support pandas >= 3"):
        require_minimum_pandas_version()


def project(environment: Path, root: Path) -> None:
    """Project made by `create-dagster project`, installed."""
    made = root / "src" / "lake"
    (made / "defs").mkdir(parents=True)
    (root / "pyproject.toml").write_text(LAKE, encoding="utf-8")
    (made / "__init__.py").touch()
    (made / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
    (libraries,) = (environment / "lib").glob("python3*/site-packages")
    (libraries / "lake.pth").write_text(str(root / "src"), encoding="utf-8")


WATCH = """
import dagster as dg
from lake.definitions import defs

repository = defs().get_repository_def()
with dg.build_sensor_context(repository_def=repository) as context:
    for event in repository.get_sensor_def("payments_observer").evaluate_tick(context).asset_events:
        facts = event.metadata["state"].value if "state" in event.metadata else event.passed
        print(type(event).__name__, facts)
"""


@long
def test_a_stream_of_another_engine_is_watched_with_what_is_declared(
    with_dg: Path, tmp_path: Path
) -> None:
    project(with_dg, tmp_path)
    component = "dagster_jet.ObservedStreamsComponent"
    run_in(with_dg, tmp_path, "dg", "scaffold", "defs", component, "payments")
    for folder, text in (("offsets", 'v1\n{"batchWatermarkMs":0}\n0'), ("commits", "v1\n{}")):
        file = tmp_path / "checkpoints" / "payments" / folder / "0"
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    said = run_in(with_dg, tmp_path, "python", "-c", WATCH).splitlines()
    assert said == ["AssetObservation after epoch 0", "AssetCheckEvaluation True"]


@contextmanager
def dagster_of(environment: Path, root: Path) -> Iterator[None]:
    """Runs `dg dev` of a project until the block ends, with its code servers and runs."""
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    with (root / "dagster.log").open("w") as log:
        process = subprocess.Popen(
            ["dg", "dev", "--port", str(free_port())],
            cwd=root,
            env={**variables(root), "PATH": path, "DAGSTER_HOME": str(root)},
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    dagster = psutil.Process(process.pid)
    try:
        yield
    finally:
        family = [dagster, *dagster.children(recursive=True)]
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family)
        process.wait()


@long  # its steps: the scaffold above, a killed run that heals in browser/test_ui.py
def test_the_first_ten_minutes(
    with_dg: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new user's: scaffold, `dg dev`, the sensor on, rows; the run is killed, and heals."""
    began = time.monotonic()
    steps: list[str] = []

    def done(step: str) -> None:
        steps.append(f"{(time.monotonic() - began) / 60:4.1f} min  {step}")

    def numbers() -> list[int]:
        return [row["value"] for row in committed_rows(tmp_path / "data" / "x")]

    project(with_dg, tmp_path)
    run_in(with_dg, tmp_path, "dg", "scaffold", "defs", "dagster_jet.JetPipelineComponent", "x")
    settings = tmp_path / "src" / "lake" / "defs" / "x" / "defs.yaml"
    settings.write_text(settings.read_text("utf-8") + "  supervisor: running\n", encoding="utf-8")
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    done("scaffolded")
    with (
        dagster_of(with_dg, tmp_path),
        dg.DagsterInstance.from_config(str(tmp_path)) as instance,
    ):
        wait_until(numbers, within=300)
        done(f"{len(numbers())} rows are committed")
        (killed,) = instance.get_runs()
        worker = RunWorker.from_tag(killed.tags.get(keys.TAG_WORKER), killed.run_id)
        assert worker is not None
        os.kill(worker.pid, signal.SIGKILL)
        committed = len(numbers())
        done(f"its process is killed after {committed} rows")
        wait_until(lambda: len(numbers()) > committed, within=300)
        done(f"{len(numbers())} rows: another run continues")
        assert sorted(numbers()) == list(range(len(numbers()))), "none is lost or doubled"
        successor, failed = instance.get_runs()
        assert failed.run_id == killed.run_id and failed.status is dg.DagsterRunStatus.FAILURE
        assert successor.status is dg.DagsterRunStatus.STARTED
    with capsys.disabled():
        print("", *steps, sep="\n")
    assert time.monotonic() - began < 600
