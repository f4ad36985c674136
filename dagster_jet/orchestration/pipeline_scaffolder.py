"""Scaffolds a runnable pipeline for `dg scaffold defs dagster_jet.JetPipelineComponent NAME`."""

from __future__ import annotations

import keyword
import os
from pathlib import Path
from typing import Any

from dagster.components.component_scaffolding import scaffold_component
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest

from dagster_jet.orchestration.dagster_name import dagster_name

_PIPELINE = '''\
"""The pipeline: replace its source by one of your own."""

from dagster_jet import Pipeline, sinks, sources


def {name}(sink: str) -> Pipeline:
    p = Pipeline("{name}")
    numbers = p.read_from(sources.sequence(rate=10), name="numbers")
    numbers.write_to(sinks.files(sink, format="json"), name="out")
    return p
'''
_IMPORTED = ("Pipeline", "sinks", "sources")
"""Names that the written code imports; its function cannot have one of them."""


def _path(request: ScaffoldRequest[Any]) -> tuple[str, ...]:
    """Returns the component's path in the folder `defs`, so that `eu/orders` and `us/orders` are
    two pipelines; its own folder alone if the project has another folder of definitions."""
    root = request.project_root or request.target_path.parent
    parts = Path(os.path.relpath(request.target_path, root)).parts
    return parts[parts.index("defs") + 1 :] if "defs" in parts[:-1] else parts[-1:]


class PipelineScaffolder(Scaffolder[Any]):
    """Writes `defs.yaml` and, beside it, `pipeline.py`."""

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        """Write both files; an existing `pipeline.py` is not changed."""
        name = dagster_name("_".join(_path(request)))  # also fit for asset keys
        if not name.isidentifier() or keyword.iskeyword(name) or name in _IMPORTED:
            name = f"pipeline_{name}"
        root = "{{ project_root }}"
        attributes = {
            "pipeline": f"pipeline.py:{name}",
            "arguments": {"sink": f"{root}/data/{name}"},
            "resource": {
                # A store is never created below a missing folder.
                "store": [f"file://{root}/jet_store"],
                "backup_count": 0,
                "spark_config": {"spark.master": "local[2]"},
            },
        }
        scaffold_component(request, attributes)
        code = request.target_path / "pipeline.py"
        if not code.exists():
            code.write_text(_PIPELINE.format(name=name), encoding="utf-8")
