"""Texts with a collation: Spark takes texts for equal whose bytes differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dagster_jet.errors import PipelineError

_BYTES = "UTF8_BINARY"


def refuse_collations(fields: Iterable[Any], keys: Sequence[str]) -> None:
    """Refuses keys with a collation. State, shards and tables compare the bytes of keys, so rows of
    keys that Spark takes for one would be in several places.

    Args:
        fields: of a Spark schema.

    Raises:
        PipelineError: names the column.
    """
    for field in fields:
        collation = getattr(field.dataType, "collation", _BYTES)
        if field.name in keys and collation != _BYTES:
            raise PipelineError(
                f"the column {field.name!r} has the collation {collation} and cannot be a key: "
                "keys are compared by their bytes.",
                cure=f'Convert it, for example select("lower({field.name}) COLLATE {_BYTES} AS '
                f'{field.name}").',
            )
