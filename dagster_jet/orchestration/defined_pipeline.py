"""A pipeline inside the metadata of its assets, so that a run needs nothing but its context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.translator import DagsterJetTranslator
from dagster_jet.pipeline import Pipeline

MetadataByKey = Mapping[dg.AssetKey, Mapping[str, Any]]


class DefinedPipeline(str):
    """The name of a pipeline, with the pipeline itself and how its stages become assets.

    A text, because Dagster shows metadata to people: another object would be shown as
    "[Pipeline] (unserializable)". To code it gives back the very object.
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
        """Return it for a pipeline, or for a pipeline per partition."""
        defined = cls(pipeline.name)
        defined.pipeline = pipeline
        defined.translator = translator or DagsterJetTranslator()
        defined.links = links or {}
        defined.of_partition = of_partition
        return defined


def defined_in(metadata_by_key: MetadataByKey) -> DefinedPipeline | None:
    """Return what `jet_assets` has left in the metadata of assets; None if it did not make them."""
    for metadata in metadata_by_key.values():
        defined = metadata.get(keys.META_PIPELINE)
        if isinstance(defined, DefinedPipeline):
            return defined
    return None
