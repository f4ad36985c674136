"""The dashboard and the page of metrics show what the exporter really emits, by its names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dagster_jet.observe.metrics.instruments import COUNTERS, HISTOGRAMS, READINGS

from .measured_job import everything, measured

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "docs" / "dashboards" / "dagster_jet.json"
_SELECTOR = re.compile(r"\b(dagster_jet_\w+)(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"by \(([^)]*)\)")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Labels of each sample that Prometheus would store of a job."""
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    with measured(tmp_path_factory.mktemp("store"), reader) as (job, _):
        for event in everything():
            job.note(event)
        text = generate_latest(registry).decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def panels() -> list[dict[str, Any]]:
    document = json.loads(DASHBOARD.read_text("utf-8"))
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_every_query_asks_for_what_is_there(exported: dict[str, set[str]]) -> None:
    asked = 0
    for query in queries():
        for name, selected in _SELECTOR.findall(query):
            labels = re.findall(r"(\w+)=", selected)
            for grouped in _GROUPED.findall(query):
                labels += [label.strip() for label in grouped.split(",")]
            known = exported.get(name)
            assert known is not None, f"{name} is not exported: {query}"
            # A panel may group several metrics' labels; those of its own metric must be there.
            assert set(labels) <= known, f"{name} has {sorted(known)}: {query}"
            asked += 1
    assert asked > 25


def test_every_metric_is_shown(exported: dict[str, set[str]]) -> None:
    shown = {name for query in queries() for name, _ in _SELECTOR.findall(query)}
    bases = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in shown}
    emitted = {
        re.sub(r"_(bucket|sum|count|created)$", "", name)
        for name in exported
        if name.startswith("dagster_jet_")
    }
    assert emitted - bases == set()


def test_panels_have_places_of_their_own_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["description"].endswith(".") and place["x"] + place["w"] <= 24


def test_the_page_lists_every_metric_with_its_unit(exported: dict[str, set[str]]) -> None:
    page = (ROOT / "docs" / "observability.md").read_text("utf-8")
    listed = re.findall(r"^\| `(dagster_jet\.[\w.]+)` \| (\S+) \| (.*?) \|", page, re.MULTILINE)
    known = {**COUNTERS, **HISTOGRAMS, **READINGS}
    assert {name: unit.strip("`") for name, unit, _ in listed} == {
        name: unit for name, (unit, _) in known.items()
    }
    for name, _, attributes in listed:
        prefix = name.replace(".", "_")
        samples = [labels for sample, labels in exported.items() if sample.startswith(prefix)]
        own = {label for labels in samples for label in labels if label.startswith("jet_")}
        said = {f"jet_{word.strip(' `')}" for word in attributes.split(",")}
        assert said <= own, name
