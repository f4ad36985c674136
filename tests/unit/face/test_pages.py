"""Examples on the pages are run: every block of Python and YAML, every `dagster-jet` command as far
as its words go. Blocks that need Spark are run by tests/integration/test_tutorial.py, those that
need PostgreSQL by tests/integration/connectors/test_postgres_changes.py, and those that need DuckDB
by tests/integration/test_epochs_table.py."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import typer
import yaml
from dagster.components.testing.utils import create_defs_folder_sandbox

import dagster_jet
from dagster_jet import (
    Jet,
    JetPipelineComponent,
    JetResource,
    ObservedStreamsComponent,
    Pipeline,
    Secret,
    sinks,
    sources,
    windows,
)
from dagster_jet import aggregates as agg
from dagster_jet.cli.app import app
from dagster_jet.dag import Processor

ROOT = Path(dagster_jet.__file__).parents[1]
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
ON_SPARK = {"README.md", "docs/kafka-to-iceberg.md", "docs/tutorial.md"}
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_COMMAND = re.compile(r"(?:^\$? ?|`)(dagster-jet [a-z][^`#\n]*)", re.MULTILINE)


def blocks(page: str) -> Iterator[tuple[int, str]]:
    """Each with the line it stands in."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        yield text.count("\n", 0, block.start(1)), block[1]


def known_names() -> dict[str, Any]:
    """Names that an example may use without defining or importing them."""
    p = Pipeline("examples")
    schema = (
        "flight string, origin string, order_id string, at timestamp, delay double, paid double"
    )
    flights, orders, events = (
        p.read_from(sources.files("/in", format="json", schema=schema), name=name).with_timestamps(
            "at"
        )
        for name in ("flights", "orders", "events")
    )

    def add(state: Any, row: Any) -> Any:
        state.value.append(row["delay"])
        return {"origin": row["origin"], "total": sum(state.value)}

    def airport_delays(inbox: str = "in", out: str = "out") -> Pipeline:
        pipeline = Pipeline("airport_delays")
        rows = pipeline.read_from(
            sources.files(inbox, format="json", schema=schema), name="flights"
        ).with_timestamps("at", allowed_lag="2 hours")
        hourly = rows.group_by("origin").window(windows.tumbling("1 hour"))
        counts = hourly.aggregate(n=agg.count(), name="hourly_delays")
        counts.write_to(sinks.files(f"{out}/hourly", format="json"), name="hourly_out")
        return pipeline

    return {
        "p": p,
        "flights": flights,
        "orders": orders,
        "events": events,
        "add": add,
        "out": "out",
        "airport_delays": airport_delays,
        "Pairs": Processor,
        "Pipeline": Pipeline,
        "Secret": Secret,
        "Jet": Jet,
        "JetResource": JetResource,
        "agg": agg,
        "dg": dg,
        "sinks": sinks,
        "sources": sources,
        "windows": windows,
    }


@pytest.mark.filterwarnings("ignore::dagster.PreviewWarning")
@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page))])
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code is run from top to bottom; /var/jet is a folder of the test's own."""
    if page in ON_SPARK:
        return  # see test_what_needs_spark_is_run_with_it
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jet").mkdir()
    its_own: dict[str, Any] = {}
    for line, code in blocks(page):
        given = known_names()  # a pipeline for each block, in which names are free
        names = {**given, **its_own}
        code = code.replace("/var/jet", str(tmp_path / "jet"))
        # Blank lines in front: a traceback names the line of the page.
        exec(compile("\n" * line + code, str(ROOT / page), "exec", dont_inherit=True), names)
        its_own = {name: it for name, it in names.items() if it is not given.get(name)}


def test_what_needs_spark_is_run_with_it() -> None:
    test = (ROOT / "tests" / "integration" / "test_tutorial.py").read_text(encoding="utf-8")
    assert [page for page in sorted(ON_SPARK) if Path(page).name not in test] == []


def fenced(language: str) -> list[tuple[str, str]]:
    """The blocks of a language, each with the page that it is of."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [
        (page, block)
        for page in PAGES
        for block in pattern.findall((ROOT / page).read_text(encoding="utf-8"))
    ]


def test_no_example_meets_the_job_of_another_one() -> None:
    """Failed before: README's first job was COMPLETED when Dagster's page started another one of
    its name on its store, so that one read nothing."""
    jobs = [
        (store, name)
        for page in PAGES
        for _, block in blocks(page)
        for name in re.findall(r'Pipeline\("(\w+)"\)', block)
        for store in re.findall(r'store=\["(file://[^"]+)"', block)
    ]
    assert len(jobs) > 3 and len(set(jobs)) == len(jobs), sorted(jobs)


def test_every_kind_of_block_is_looked_at() -> None:
    """Blocks without a language are commands, tested below, or output and drawings."""
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    opened = re.findall(r"^```(\w*)$", text, re.MULTILINE)
    assert set(opened) == {"", "python", "yaml", "sql", "sh"}
    assert [page for page, _ in fenced("sql")] == [
        "docs/connectors/delta.md",
        "docs/connectors/postgres-changes.md",
    ]
    assert len(fenced("yaml")) == 4


@pytest.mark.parametrize("settings", [False, True], ids=["", "with settings"])
@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")
def test_the_component_of_a_page_loads(tmp_path: Path, settings: bool) -> None:
    """The component is loaded beside the README's pipeline, as the page says, in a project with a
    resource."""
    (pipeline,) = (code for _, code in blocks("README.md") if "def airport_delays(" in code)
    (block,) = (block for _, block in fenced("yaml") if "JetPipelineComponent" in block)
    contents = yaml.safe_load(block)
    if settings:
        (more,) = (block for _, block in fenced("yaml") if block.startswith("  supervisor: {"))
        contents["attributes"] |= yaml.safe_load(more)
    store = [f"file://{tmp_path}/store"]
    contents["attributes"]["resource"] = {"store": store, "backup_count": 0}
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(JetPipelineComponent, defs_yaml_contents=contents)
        (path / "pipeline.py").write_text(pipeline.partition("\nwith ")[0], encoding="utf-8")
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, definitions):
            assert isinstance(component, JetPipelineComponent)
            assert component.arguments == contents["attributes"]["arguments"]
            repository = definitions.get_repository_def()
            sensor = repository.get_sensor_def("airport_delays_supervisor")
            assert repository.has_job("airport_delays_job")
            assert sensor.default_status is dg.DefaultSensorStatus.RUNNING


@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")
def test_the_observed_streams_of_a_page_load() -> None:
    (block,) = (block for _, block in fenced("yaml") if "ObservedStreamsComponent" in block)
    contents = yaml.safe_load(block)
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(ObservedStreamsComponent, defs_yaml_contents=contents)
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
            graph = definitions.get_repository_def().asset_graph
    checks = {f"{key.asset_key.to_user_string()} {key.name}" for key in graph.asset_check_keys}
    limits = {"lake/payments watermark_lag", "sessions lag"}
    assert checks == limits | {f"{key} alive" for key in ("lake/payments", "sessions", "billing")}


def test_the_settings_of_dagsters_instance_are_some(tmp_path: Path) -> None:
    (block,) = (block for _, block in fenced("yaml") if "run_monitoring" in block)
    (tmp_path / "dagster.yaml").write_text(block, encoding="utf-8")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.run_monitoring_enabled
        assert instance.get_settings("run_monitoring")["cancel_timeout_seconds"] == 60
        assert not instance.run_retries_enabled


def commands(page: str) -> list[str]:
    return _COMMAND.findall((ROOT / page).read_text(encoding="utf-8"))


def variants(line: str) -> Iterator[list[str]]:
    """The words of a command; of `a | b` each."""
    words = shlex.split(line.rstrip(",.;:) "))[1:]
    while "|" in words:
        at = words.index("|")
        yield words[:at]
        words[at - 1 : at + 1] = []
    yield words


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_the_commands_of_a_page_are_accepted(page: str) -> None:
    """The command line parses each command, up to the call. A sentence may leave out words at the
    end."""
    for line in commands(page):
        for words in variants(line):
            command: Any = typer.main.get_command(app)
            while (among := getattr(command, "commands", None)) is not None:
                assert words and words[0] in among, f"{page}: {line}"
                command = among[words.pop(0)]
            try:
                command.make_context("dagster-jet", words)
            except Exception as error:
                said = str(getattr(error, "message", "") or error)
                is_short = type(error).__name__ == "MissingParameter" or "requires" in said
                assert is_short, f"{page}: {line}: {error!r} {said}"


def test_targets_of_make_and_modules_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = "\n".join(
        (ROOT / page).read_text(encoding="utf-8") for page in [*PAGES, "benchmarks/README.md"]
    )
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE))
    assert {"demo", "dev", "test", "soak", "bench"} <= named <= targets
    modules = set(re.findall(r"python -m ([\w.]+)", text))
    assert "benchmarks" in modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def messages_of(page: str) -> list[str]:
    """Fragments in code spans, with a blank in them, in tables of messages; around what is filled
    in, which stands as an ellipsis."""
    text = (ROOT / page).read_text(encoding="utf-8")
    tables = re.findall(r"^\| (?:message|symptom) \|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [row.split("|")[1] for table in tables for row in table.splitlines()]
    fragments = [span for row in rows for span in re.findall(r"`([^`]+ [^`]+)`", row)]
    said = [f for f in fragments if not f.startswith("dagster-jet ")]
    return [part.strip() for one in said for part in re.split(r"…|\.\.\.", one) if part.strip()]


def test_the_messages_in_tables_of_errors_are_those_of_the_code() -> None:
    connectors = [page for page in PAGES if page.startswith("docs/connectors/")]
    messages = {page: messages_of(page) for page in ("docs/troubleshooting.md", *connectors)}
    assert len(messages["docs/troubleshooting.md"]) >= 8
    assert min(len(messages[f"docs/connectors/{name}.md"]) for name in ("rabbitmq", "sqs")) >= 9
    sources = "\n".join(said_in(path) for path in (ROOT / "dagster_jet").rglob("*.py"))
    assert [
        (page, message)
        for page, said in messages.items()
        for message in said
        if message not in sources
    ] == []


def said_in(path: Path) -> str:
    """The texts of a file, put together as Python does; what is filled in stands as `{}`."""
    return "\n".join(
        "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in text.values)
        if isinstance(text, ast.JoinedStr)
        else str(text.value)
        for text in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(text, ast.JoinedStr | ast.Constant)
    )


def test_pages_are_looked_at() -> None:
    assert sum(any(blocks(page)) for page in PAGES) >= 10
    assert sum(len(commands(page)) for page in PAGES) >= 20
