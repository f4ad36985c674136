"""Scaffolds an example for `dg scaffold defs dagster_jet.ObservedStreamsComponent NAME`."""

from __future__ import annotations

from typing import Any

from dagster.components.component_scaffolding import scaffold_component
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest


class ObservedStreamsScaffolder(Scaffolder[Any]):
    """Writes a `defs.yaml` with one stream, whose place has to be changed."""

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        """Write the file. It loads as it is; the check `alive` is red until the place is right."""
        name = request.target_path.name
        stream = {"key": name, "checkpoint": "{{ project_root }}/checkpoints/" + name}
        scaffold_component(request, {"structured_streaming": [stream]})
