"""This deployment's code location: everything under `pipelines/`, with its resources."""

from pathlib import Path

import dagster as dg

from resources.jet import jet_resource


@dg.definitions
def defs() -> dg.Definitions:
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent / "pipelines"),
        dg.Definitions(resources={"jet": jet_resource()}),
    )
