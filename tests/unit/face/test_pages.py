"""What the pages show is run: every block of Python, every `dagster-jet` command as far as its
words go. What needs Spark is run by tests/integration/test_tutorial.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import typer

import dagster_jet
from dagster_jet import Jet, JetResource, Pipeline, Secret, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.cli.app import app
from dagster_jet.dag import Processor

ROOT = Path(dagster_jet.__file__).parents[1]
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
ON_SPARK = {"README.md", "docs/tutorial.md"}
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_COMMAND = re.compile(r"(?:^\$? ?|`)(dagster-jet [a-z][^`#\n]*)", re.MULTILINE)


def blocks(page: str) -> Iterator[tuple[int, str]]:
    """Each with the line it stands in."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        yield text.count("\n", 0, block.start(1)), block[1]


def known_names() -> dict[str, Any]:
    """What an example may use without saying where it comes from."""
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


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page))])
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom; /var/jet is a folder of the test's own."""
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


def commands(page: str) -> list[str]:
    return _COMMAND.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_the_commands_of_a_page_exist(page: str) -> None:
    for line in commands(page):
        command: Any = typer.main.get_command(app)
        words = line.split()[1:]
        while (among := getattr(command, "commands", None)) is not None:
            name = words.pop(0).rstrip(",.;:)")
            assert name in among, f"{page}: {line}"
            command = among[name]
        options = {option for parameter in command.params for option in parameter.opts}
        given = {word.split("=")[0] for word in words if word.startswith("--")}
        unknown = given - options
        assert not unknown, f"{page}: {line}"


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
