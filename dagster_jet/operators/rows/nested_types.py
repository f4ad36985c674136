"""The types inside of a type."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def types_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yields the type, and those of all fields, elements, keys and values in it."""
    yield kind
    if pa.types.is_struct(kind):
        for field in kind:
            yield from types_in(field.type)
    elif pa.types.is_map(kind):
        yield from types_in(kind.key_type)
        yield from types_in(kind.item_type)
    elif (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        yield from types_in(kind.value_type)
