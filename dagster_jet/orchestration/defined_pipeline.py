"""Carries a pipeline in the metadata of its assets, so that a run needs only its context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.translator import DagsterJetTranslator
from dagster_jet.pipeline import Pipeline

MetadataByKey = Mapping[dg.AssetKey, Mapping[str, Any]]


class DefinedPipeline(str):
    """Name of a pipeline, carrying the pipeline itself and the settings that make it into assets.

    It is a string because Dagster shows metadata to users; another object would be shown as
    "[Pipeline] (unserializable)". Code gets the same object back.
    """

    pipeline: Pipeline
    translator: DagsterJetTranslator
    links: Mapping[str, tuple[str, ...]]
    of_partition: Callable[[str], Pipeline] | None

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        translator: DagsterJetTranslator | None = None,
        links: Mapping[str, tuple[str, ...]] | None = None,
        of_partition: Callable[[str], Pipeline] | None = None,
    ) -> DefinedPipeline:
        """Return the metadata value for a pipeline, or for a pipeline per partition."""
        defined = cls(pipeline.name)
        defined.pipeline = pipeline
        defined.translator = translator or DagsterJetTranslator()
        defined.links = links or {}
        defined.of_partition = of_partition
        return defined


def assets_in(
    repository: dg.RepositoryDefinition | None, pipeline: str
) -> dg.AssetsDefinition | None:
    """Return a pipeline's assets as a code location defines them in the end.

    Args:
        repository: of the context of a tick; None outside of a code location.
        pipeline: name of the pipeline.
    """
    found = repository.assets_defs_by_key.values() if repository is not None else ()
    for assets_def in found:
        if defined_in(assets_def.metadata_by_key) == pipeline:
            return assets_def
    return None


def defined_in(metadata_by_key: MetadataByKey) -> DefinedPipeline | None:
    """Return the value that `jet_assets` put into the metadata; None if there is none."""
    for metadata in metadata_by_key.values():
        defined = metadata.get(keys.META_PIPELINE)
        if isinstance(defined, DefinedPipeline):
            return defined
    return None
