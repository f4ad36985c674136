"""Types as DDL, also those with odd names of fields."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster_jet.core.ddl import quoted_name

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def type_ddl(type: DataType) -> str:
    """Return a type as DDL: as `simpleString`, which does not quote the names of fields."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match type:
        case ArrayType():
            return f"array<{type_ddl(type.elementType)}>"
        case MapType():
            return f"map<{type_ddl(type.keyType)},{type_ddl(type.valueType)}>"
        case StructType():
            fields = (f"{_plain_or_quoted(f.name)}:{type_ddl(f.dataType)}" for f in type)
            return f"struct<{','.join(fields)}>"
    return type.simpleString()


def _plain_or_quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else quoted_name(name)
